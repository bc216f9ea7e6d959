"""From the definition of a Numba kernel, argument types and a target to a request.

Promise     A request's components hold everything that decides the code: the kernel's fingerprint, its types, its
            options (part of the fingerprint) and Numba's configuration. What cannot be captured makes the request
            uncacheable, with the name of what is to blame. Nothing is compiled here.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...engine.request import Request
from ...errors import UncacheableError
from ...keys.components import component
from ...model.artifact import Artifact
from ...model.reason import ReasonKind
from ...model.request import LinkInput
from ...model.target import Target
from ...settings import NVRTC_VARIABLES, variables
from ...toolchain.libraries import Toolchain
from ..python.function import KINDS as PYTHON_KINDS
from ..python.function import Fingerprint, Uncapturable, fingerprint
from . import dialect
from .environment import code_environment, extra_search_paths
from .signature import signature_component

if TYPE_CHECKING:
    from ...headers.search import HeaderQuery
    from ...toolchain.time_trace import TimeTrace
    from .definition import NumbaDefinition

_LIBRARIES = ("nvvm", "libdevice", "nvJitLink", "nvrtc", "nvrtc-builtins")
"""NVRTC takes part in every kernel: Numba asks it for the architecture, and its fp16 is CUDA C++."""

_DISTRIBUTIONS = ("numba", "numba-cuda", "llvmlite", "numpy", "cuda-core")

KINDS: Mapping[str, ReasonKind] = {
    **PYTHON_KINDS,
    "argument types": ReasonKind.SIGNATURE,
    "numba settings": ReasonKind.ENVIRONMENT,
    "numba toolkit": ReasonKind.COMPILER,
}
"""What the components of a Numba kernel are about. docs/keys.md has a row for each."""


def read_function(definition: NumbaDefinition) -> Fingerprint | Uncapturable:
    """Read what the kernel is made of now."""
    options = definition.declared.targetoptions
    with_lines = bool(options.get("debug") or options.get("lineinfo"))
    return fingerprint(definition.declared, dialect, with_lines=with_lines, depends=definition.depends)


def numba_request(
    definition: NumbaDefinition,
    found: Fingerprint | Uncapturable,
    types: tuple[Any, ...],
    target: Target,
    ptx_target: Target | None,
) -> Request:
    """Make the request of one signature for one target.

    Args:
        definition: The kernel.
        found: What it is made of (`read_function`).
        target: What to build for.
        ptx_target: The virtual target to compile to first, where the user gave one.
        types: Numba types of its arguments.
    """
    request = Request(
        label=definition.label,
        target=target,
        components=(),
        libraries=_LIBRARIES,
        distributions=_DISTRIBUTIONS,
        build=functools.partial(_build, definition, found, types, target, ptx_target),
        strict=definition.strict,
        texts=dict if isinstance(found, Uncapturable) else found.sources,
        file=definition.file,
        name=definition.qualname,
        kinds=KINDS,
    )
    if isinstance(found, Uncapturable):
        return request._replace(uncacheable=f"{found.name}: {found.reason}")
    signature = signature_component(types, is_vouched=bool(definition.depends))
    if isinstance(signature, Uncapturable):
        return request._replace(uncacheable=signature.reason)
    environment = code_environment()  # Numba's settings are those of now from here on
    clock, headers = _read_off(found.links)
    if clock:
        return request._replace(uncacheable=clock)
    components = (
        component("kind", "numba"),
        component("function", found.digest),
        signature,
        component("target", [target.name, ptx_target.name if ptx_target else None]),
        component("environment", dict(variables(NVRTC_VARIABLES))),
        *environment,
        *([] if definition.keep_ptx else [component("options", {"keep_ptx": False})]),
        *found.components,
    )
    return request._replace(components=components, headers=headers)


def _toolkit_dirs() -> Sequence[str]:
    from .link import toolkit_dirs

    return toolkit_dirs()


_TOOLKIT = "numba_include_dirs", _toolkit_dirs


def _read_off(links: Sequence[LinkInput]) -> tuple[str, tuple[HeaderQuery, ...]]:
    """Reason for which these link inputs cannot be keyed, "" where they can; and what CUDA C++ among them, and the
    runtime that Numba may add, can include."""
    texts = [each for each in links if each.kind == "cu"]
    runtime = dialect.runtime()
    if not texts and runtime is None:
        return "", ()
    from ...headers.scanner import scan_includes

    scans = [scan_includes(each.data) for each in texts]
    if any(scan.has_clock and not scan.asks_files for scan in scans):
        return "what it links uses __DATE__ or __TIME__", ()
    if runtime is None and not any(scan.asks_files or scan.has_location for scan in scans):
        return "", ()
    from ...headers.search import HeaderQuery

    extra = tuple(filter(None, extra_search_paths().split(":")))
    return "", tuple(
        HeaderQuery(
            each.data.decode("utf-8", "replace"),
            (*extra, *filter(None, (each.folder,))),
            each,
            toolkit=_TOOLKIT,
        )
        for each in dict.fromkeys((*texts, *filter(None, (runtime,))))
    )


def _build(
    definition: NumbaDefinition,
    found: Fingerprint | Uncapturable,
    types: tuple[Any, ...],
    target: Target,
    ptx_target: Target | None,
    _toolchain: Toolchain,
    trace: TimeTrace | None,
) -> Artifact:
    from .compile import compile_numba

    functions, links = ((), ()) if isinstance(found, Uncapturable) else (found.device_functions(), found.links)
    try:
        build = compile_numba(
            definition.declared,
            types,
            target,
            ptx_target=ptx_target,
            device_functions=functions,
            keep_ptx=definition.keep_ptx,
            trace=trace,
        )
    except Exception as error:  # Numba's own, mostly: its words stay as they are
        error.add_note(f"while compiling the Numba kernel {definition.label} for ({', '.join(map(str, types))})")
        raise
    if build.uncacheable:
        raise UncacheableError(f"cannot cache {definition.label}", build.uncacheable)
    read = {(each.folder, each.name): each for each in build.linked if each.folder}
    changed = next((each.name for each in links if read.get((each.folder, each.name), each) != each), None)
    if changed:
        raise UncacheableError(f"cannot cache {definition.label}", f"the link input {changed} changed meanwhile")
    return build.artifact
