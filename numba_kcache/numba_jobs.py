"""From a Numba dispatcher, argument types and a target to a job for the resolver.

Promise     A job's components hold everything that decides the code: the kernel's fingerprint, its types, its options
            (part of the fingerprint) and Numba's configuration. What cannot be captured makes the job uncacheable,
            with the name of what is to blame. Nothing is compiled here.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .errors import UncacheableError
from .inputs import numba_dialect
from .inputs.code_environment import code_environment, extra_search_paths
from .inputs.numba_signature import signature_component
from .inputs.python_function import Fingerprint, Uncapturable, fingerprint
from .jobs import HeaderQuestion, Job
from .keys.components import component
from .model.artifact import Artifact
from .model.request import LinkInput
from .model.target import Target
from .settings import NVRTC_VARIABLES, variables
from .toolchain.libraries import Toolchain

if TYPE_CHECKING:
    from .toolchain.time_trace import TimeTrace

_LIBRARIES = ("nvvm", "libdevice", "nvJitLink", "nvrtc", "nvrtc-builtins")
"""NVRTC takes part in every kernel: Numba asks it for the architecture, and its fp16 is CUDA C++."""

_DISTRIBUTIONS = ("numba", "numba-cuda", "llvmlite", "numpy", "cuda-core")


class NumbaPlan(NamedTuple):
    """A Numba kernel, and what its user said of it.

    Args:
        dispatcher: Of `cuda.jit`, with its options; or what would be one (`Declared`).
        label: What people call it.
        depends: Values or files whose content enters the key.
        strict: Refuse rather than run uncached.
        keep_ptx: Keep the PTX beside the cubin.
        file: The file that defines it; "" for none.
    """

    dispatcher: Any
    label: str
    depends: Sequence[Any] = ()
    strict: bool = False
    keep_ptx: bool = True
    file: str = ""


def defining_file(function: Any) -> str:
    """The file that defines a function; "" for none."""
    path = function.__code__.co_filename
    return os.path.abspath(path) if os.path.isfile(path) else ""


def read_function(plan: NumbaPlan) -> Fingerprint | Uncapturable:
    """What the kernel is made of now."""
    options = plan.dispatcher.targetoptions
    with_lines = bool(options.get("debug") or options.get("lineinfo"))
    return fingerprint(plan.dispatcher, numba_dialect, with_lines=with_lines, depends=plan.depends)


def numba_job(
    plan: NumbaPlan, found: Fingerprint | Uncapturable, types: tuple[Any, ...], target: Target, through: Target | None
) -> Job:
    """The job of one signature for one target.

    Args:
        plan: The kernel.
        found: What it is made of (`read_function`).
        types: Numba types of its arguments.
        target: What to build for.
        through: The virtual target to compile to first, where the user gave one.
    """

    questions: tuple[HeaderQuestion, ...] = ()

    def job(components: Any, uncacheable: str) -> Job:
        def build(_toolchain: Toolchain, trace: TimeTrace | None) -> Artifact:
            return _built(plan, found, types, target, through, trace)

        headers = () if uncacheable else questions
        texts = dict if isinstance(found, Uncapturable) else found.sources
        return Job(
            plan.label, target, components, _LIBRARIES, _DISTRIBUTIONS, build, uncacheable, plan.strict, headers, texts,
            plan.file,
        )  # fmt: skip

    if isinstance(found, Uncapturable):
        return job((), f"{found.name}: {found.reason}")
    signature = signature_component(types, is_vouched=bool(plan.depends))
    if isinstance(signature, Uncapturable):
        return job((), signature.reason)
    environment = code_environment()  # Numba's settings are those of now from here on
    clock, questions = read_off(found.links)
    if clock:
        return job((), clock)
    return job(
        (
            component("kind", "numba"),
            component("function", found.digest),
            signature,
            component("target", [target.name, through.name if through else None]),
            component("environment", dict(variables(NVRTC_VARIABLES))),
            *environment,
            *([] if plan.keep_ptx else [component("options", {"keep_ptx": False})]),
            *found.components,
        ),
        "",
    )


def read_off(links: Sequence[LinkInput]) -> tuple[str, tuple[HeaderQuestion, ...]]:
    """Why these link inputs cannot be keyed, "" where they can; and what CUDA C++ among them, and the runtime that
    Numba may add, can include."""
    texts = [each for each in links if each.kind == "cu"]
    runtime = numba_dialect.runtime()
    if not texts and runtime is None:
        return "", ()
    from .inputs.include_scanner import scan_includes

    scans = [scan_includes(each.data) for each in texts]
    if any(scan.has_clock and not scan.asks_files for scan in scans):
        return "what it links uses __DATE__ or __TIME__", ()
    if runtime is None and not any(scan.asks_files or scan.has_location for scan in scans):
        return "", ()
    extra = tuple(filter(None, extra_search_paths().split(":")))
    return "", tuple(
        HeaderQuestion(
            each.data.decode("utf-8", "replace"),
            (*extra, *filter(None, (each.folder,))),
            each,
            is_linked_by_numba=True,
        )
        for each in dict.fromkeys((*texts, *filter(None, (runtime,))))
    )


def _built(
    plan: NumbaPlan,
    found: Fingerprint | Uncapturable,
    types: tuple[Any, ...],
    target: Target,
    through: Target | None,
    trace: TimeTrace | None,
) -> Artifact:
    from .toolchain.numba_nvvm import compile_numba

    functions, links = ((), ()) if isinstance(found, Uncapturable) else (found.device_functions(), found.links)
    try:
        build = compile_numba(
            plan.dispatcher,
            types,
            target,
            ptx_target=through,
            device_functions=functions,
            keep_ptx=plan.keep_ptx,
            trace=trace,
        )
    except Exception as error:  # Numba's own, mostly: its words stay as they are
        error.add_note(f"while compiling the Numba kernel {plan.label} for ({', '.join(map(str, types))})")
        raise
    if build.uncacheable:
        raise UncacheableError(f"cannot cache {plan.label}", build.uncacheable)
    read = {(each.folder, each.name): each for each in build.linked if each.folder}
    changed = next((each.name for each in links if read.get((each.folder, each.name), each) != each), None)
    if changed:
        raise UncacheableError(f"cannot cache {plan.label}", f"the link input {changed} changed meanwhile")
    return build.artifact
