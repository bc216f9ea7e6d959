"""The request of a Numba kernel: from its definition, argument types and a target to components.

Promise     A request's components hold everything that decides the code: the kernel's fingerprint, its types, its
            options (part of the fingerprint) and Numba's configuration, as a compilation starting now would use it.
            What cannot be captured makes the request uncacheable, with the name of what is to blame. Two signatures
            have one digest only if Numba compiles the same code for both. Nothing is compiled here.
Method      Numba's own text of a type leaves out the field names of a named tuple and the members of an enum. Two
            settings have defaults that Numba takes from the installed CUDA runtime: left alone they say who compiles,
            and stand in a component of their own; set by a program they say what.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...engine.request import Request
from ...keys import Component, Plain, component
from ...model import Target
from ...model.request import LinkInput
from ...settings import NVRTC_VARIABLES, variables
from ..python.function import Fingerprint, Uncapturable, fingerprint
from ..python.value import Refused
from . import dialect

if TYPE_CHECKING:
    from ...headers.folders import Folders
    from ...headers.search import HeaderQuery
    from ...model.artifact import Artifact
    from ...model.reason import ReasonKind
    from ...toolchain import Toolchain
    from .definition import NumbaDefinition

_LIBRARIES = ("nvvm", "libdevice", "nvJitLink", "nvrtc", "nvrtc-builtins")
"""NVRTC takes part in every kernel: Numba asks it for the architecture, and its fp16 is CUDA C++."""

_DISTRIBUTIONS = ("numba", "numba-cuda", "llvmlite", "numpy", "cuda-core")

CODE_SETTINGS = (
    "OPT", "FORCE_CUDA_CC", "CUDA_DEBUGINFO_DEFAULT", "CUDA_DEBUG_POLY", "CUDA_DEBUG_POLY_USE_TYPED_CONST",
    "DEBUG_JIT", "BOUNDSCHECK", "EXTEND_VARIABLE_LIFETIMES", "CUDA_ENABLE_NRT", "CUDA_NRT_STATS", "DEBUG_NRT",
    "CUDA_NVRTC_EXTRA_SEARCH_PATHS", "CUDA_INCLUDE_PATH", "USE_LEGACY_TYPE_SYSTEM",
)  # fmt: skip
"""Attributes of `numba.core.config` that change code; each has an environment variable `NUMBA_...` of about the same
name. Decorator options are in the fingerprint."""

_OF_TOOLKIT = {
    "CUDA_DEBUG_POLY": "DEBUG_POLY_SUPPORTED", "CUDA_DEBUG_POLY_USE_TYPED_CONST": "DEBUG_POLY_USE_TYPED_CONST",
}  # fmt: skip
"""Settings whose default depends on the toolkit, and where in `numba.cuda.debuginfo` it stands."""

_CONFIG = "numba.cuda.core.config"


def component_kinds() -> Mapping[str, ReasonKind]:
    """What the components of a Numba kernel are about. docs/keys.md has a row for each."""
    from ...model.reason import ReasonKind
    from ..python.reasons import KINDS

    return {
        **KINDS,
        "argument types": ReasonKind.SIGNATURE,
        "numba settings": ReasonKind.ENVIRONMENT,
        "numba toolkit": ReasonKind.COMPILER,
    }


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
        kinds=component_kinds,
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
    changed = functools.partial(_changed, definition, components, types, target, ptx_target)
    return request._replace(components=components, headers=headers, changed=changed)


def _changed(definition: NumbaDefinition, before: Sequence[Component], types: tuple[Any, ...], *targets: Any) -> str:
    """Read all again, and name what is not as it was before the compile; "" for nothing.

    Another thread, or typing code itself, may have set a global or registered something meanwhile.
    """
    now = numba_request(definition, read_function(definition), types, *targets)
    if now.uncacheable:
        return now.uncacheable
    old, new = ({each.name: each.digest for each in components} for components in (before, now.components))
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return f"{names[-1]} changed while it was compiled" if names else ""  # the last is the most special


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
    unplaced = [each.unplaced for each, scan in zip(texts, scans, strict=True) if "/" in each.name and scan.asks_files]
    if unplaced:
        return unplaced[0], ()
    if runtime is None and not any(scan.asks_files or scan.has_location or scan.has_assert for scan in scans):
        return "", ()
    from ...headers.search import HeaderQuery
    from ...model.text import decoded

    extra = tuple(filter(None, str(dialect.loaded(_CONFIG, "CUDA_NVRTC_EXTRA_SEARCH_PATHS") or "").split(":")))
    return "", tuple(
        HeaderQuery(
            decoded(each.data),
            (*extra, *filter(None, (each.folder,))),
            each,
            toolkit=("numba_include_dirs", _toolkit_dirs),
        )
        for each in dict.fromkeys((*texts, *filter(None, (runtime,))))
    )


def _toolkit_dirs() -> Sequence[str]:
    from .link import toolkit_dirs

    return toolkit_dirs()


def _build(
    definition: NumbaDefinition,
    found: Fingerprint | Uncapturable,
    types: tuple[Any, ...],
    target: Target,
    ptx_target: Target | None,
    _toolchain: Toolchain,
    headers: Folders | None,
) -> Artifact:
    from .compile import build

    return build(definition, found, types, target, ptx_target, headers)


def signature_component(types: Sequence[Any], *, is_vouched: bool = False) -> Component | Uncapturable:
    """The types in order; the component's value is their text, for explanations.

    Args:
        types: Of Numba.
        is_vouched: Whether the user says what the code of an extension's types depends on.
    """
    try:
        form = [dialect.form_of_type(each, is_vouched) for each in types]
    except Refused as refusal:
        return Uncapturable(str(refusal), "argument types")
    return component("argument types", form)._replace(value=[str(each) for each in types])


def code_environment() -> tuple[Component, ...]:
    """Read the settings by name, and the defaults that are the toolkit's; () while `numba.cuda` is not loaded.

    Numba reads changed environment variables when it starts to compile. It does so here already: key and code are of
    the same settings.
    """
    config = sys.modules.get(_CONFIG)
    if config is None:
        return ()
    try:
        config.reload_config()
    except Exception:  # a variable that Numba cannot read: the compilation will say so, a lookup must not
        pass
    settings = {name: _plain(getattr(config, name, None)) for name in CODE_SETTINGS}
    defaults = {name: _plain(dialect.loaded("numba.cuda.debuginfo", where)) for name, where in _OF_TOOLKIT.items()}
    for name, default in defaults.items():
        if settings[name] == default:
            settings[name] = None
    return component("numba settings", settings), component("numba toolkit", defaults)


def _plain(value: object) -> Plain:
    """Numba's optimisation level is an int with a name of its own ("max"); the rest are plain."""
    if value is None or type(value) in (bool, str):
        return value  # type: ignore[return-value]
    if isinstance(value, (tuple, list)):
        return [_plain(each) for each in value]
    return repr(value)
