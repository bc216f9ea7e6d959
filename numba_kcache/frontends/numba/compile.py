"""Compile a Numba kernel for a target: typing and lowering by Numba, code by NVVM, the cubin by nvJitLink.

Promise     Any target on any machine: no device, driver or context is needed. What is compiled is the program
            as it is now: a device function that Numba has compiled before, for other globals or another
            target, is compiled anew. Numba's own errors pass unchanged. The user's `link` list stays as it is.
Method      The steps of Numba's `_Kernel`, with a link of our own: nvJitLink and NVRTC are told not to keep
            hidden caches, link files are read afresh and in order (Numba reads each once in a process and links
            a set).
Not here    What is in the key (inputs.python_function) and whether the result may be stored: `uncacheable`
            says why not.
Ground      numba-cuda 0.30.4, dispatcher.py `_Kernel.__init__`, codegen.py `CUDACodeLibrary._link_all`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from types import FunctionType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from ...errors import CompileError
from ...model.artifact import Artifact, Entry, Parameter
from ...model.cubin import read_cubin
from ...model.request import LinkInput
from ...model.target import Target
from ...toolchain.time_trace import TimeTrace
from .internals import Internals, compiling_for, forget_implementations, internals
from .link import link_kernel
from .outcome import exception_table, why_uncacheable

KERNEL_OPTIONS = (
    "debug", "lineinfo", "fastmath", "opt", "forceinline", "max_registers", "launch_bounds", "lto", "link",
    "shared_memory_carveout", "extensions",
)  # fmt: skip
"""Options of `cuda.jit` that make a kernel; others are for device functions, or mean nothing here."""

_Freshness = tuple[str, tuple[int, int], int]
_compiled_as: WeakKeyDictionary[Any, _Freshness] = WeakKeyDictionary()
"""For each function on the device: the digest and target it was compiled under, and how many overloads it had."""

_subroutines_of: list[Any] = [None]
"""Flags under which Numba's own subroutines in its cache were compiled, and how many there were."""


class NumbaBuild(NamedTuple):
    """A compiled kernel.

    Args:
        artifact: Of kind "numba", with one entry. Its attributes: `cooperative`, `carveout`, `debug`, `lineinfo`,
            `launch_bounds`, `max_registers`, `signature`, and for `debug` the table `exceptions` of
            [code, builtin exception, arguments, [function, file, line] or None].
        uncacheable: Why it must not be stored, although it runs in this process; None if it may be.
        linked: The user's and Numba's link inputs, as they were read.
    """

    artifact: Artifact
    uncacheable: str | None
    linked: tuple[LinkInput, ...] = ()


def compile_numba(
    dispatcher: Any,
    argument_types: Sequence[Any],
    target: Target,
    *,
    options: Mapping[str, Any] | None = None,
    ptx_target: Target | None = None,
    device_functions: Iterable[tuple[Any, str]] = (),
    keep_ptx: bool = True,
    trace: TimeTrace | None = None,
) -> NumbaBuild:
    """Compile one signature of a kernel.

    Args:
        dispatcher: Of `cuda.jit`, with its options.
        argument_types: Numba types, in order.
        target: A real target.
        options: `KERNEL_OPTIONS` that take precedence over the dispatcher's.
        ptx_target: The virtual target to generate PTX for, where the user asked for one (then without LTO).
        device_functions: Dispatchers it calls, and functions under `@overload` or `@intrinsic`, each with a
            digest of what decides its code (`Fingerprint.device_functions`).
        keep_ptx: Whether the artifact holds Numba's PTX, as it is before linking.
        trace: Where NVRTC tells which headers it read, for each linked CUDA C++ text.

    Raises:
        NumbaError: Numba's own: typing, lowering, unsupported features.
        LinkError, CompileError: A linked file was refused.
        ToolchainMissingError: Numba, NVVM or nvJitLink is missing or of an unknown version.
    """
    start = time.perf_counter()
    parts = internals()
    chosen = {name: dispatcher.targetoptions.get(name) for name in KERNEL_OPTIONS} | dict(options or {})
    if ptx_target is not None:
        chosen["lto"] = False
    generated = ptx_target or target
    with compiling_for(generated.cc):
        _forget_stale(parts, generated.cc, chosen, device_functions := tuple(device_functions))
        result = _lowered(parts, dispatcher.py_func, tuple(argument_types), generated.cc, chosen)
        symbol = _as_kernel(parts, result, chosen)
        library = result.library
        ptx = library.get_asm_str(cc=(*generated.cc, generated.suffix))
        cubin, log, inputs = link_kernel(library, ptx, chosen, target, generated, trace)
        _remember(parts, generated.cc, chosen, device_functions)
    entry = _entry(cubin, symbol, dispatcher.py_func.__name__)
    attributes = _attributes(parts, result, chosen, argument_types)
    extras = {"log": log.encode(), **({"ptx": ptx.encode()} if keep_ptx else {})}
    seconds = time.perf_counter() - start
    artifact = Artifact("numba", target, (entry,), cubin, seconds, attributes, extras)
    return NumbaBuild(artifact, why_uncacheable(result, chosen, attributes, parts), inputs)


def _lowered(parts: Internals, function: Any, types: tuple[Any, ...], cc: tuple[int, int], chosen: Any) -> Any:
    """Numba's compile result: typed and lowered to LLVM IR."""
    nvvm_options: dict[str, Any] = {"fastmath": chosen["fastmath"], "opt": 3 if chosen["opt"] else 0}
    if chosen["debug"]:
        nvvm_options["g"] = None
    return parts.compile_cuda(
        function,
        parts.types.void,
        types,
        debug=chosen["debug"],
        lineinfo=chosen["lineinfo"],
        forceinline=chosen["forceinline"],
        fastmath=chosen["fastmath"],
        nvvm_options=nvvm_options,
        cc=cc,
        max_registers=chosen["max_registers"],
        lto=chosen["lto"],
    )


def _as_kernel(parts: Internals, result: Any, chosen: Mapping[str, Any]) -> str:
    """Make the lowered function a kernel; its symbol."""
    library, name = result.library, result.fndesc.llvm_func_name
    kernel = library.get_function(name)
    library._entry_name = name
    parts.kernel_fixup(kernel, chosen["debug"])
    parts.set_launch_bounds(kernel, chosen["launch_bounds"])
    return str(kernel.name)


def _forget_stale(
    parts: Internals, cc: tuple[int, int], chosen: Mapping[str, Any], functions: tuple[tuple[Any, str], ...]
) -> None:
    """Drop what Numba compiled earlier in this process for another target, other globals or other flags."""
    for function, digest in functions:
        twin = _on_device(function)
        if isinstance(twin, FunctionType):
            if _compiled_as.get(twin) != (digest, cc, 0):
                forget_implementations(twin)
        elif twin is not None and twin.overloads and _compiled_as.get(twin) != (digest, cc, len(twin.overloads)):
            _compile_anew(twin)
    cached = parts.cuda_target.target_context.cached_internal_func
    if _subroutines_of[0] != (_flags(cc, chosen), len(cached)):
        cached.clear()


def _remember(
    parts: Internals, cc: tuple[int, int], chosen: Mapping[str, Any], functions: tuple[tuple[Any, str], ...]
) -> None:
    for function, digest in functions:
        twin = _on_device(function)
        if twin is not None:
            _compiled_as[twin] = (digest, cc, len(getattr(twin, "overloads", ())))
    _subroutines_of[0] = (_flags(cc, chosen), len(parts.cuda_target.target_context.cached_internal_func))


def _flags(cc: tuple[int, int], chosen: Mapping[str, Any]) -> tuple[Any, ...]:
    return (cc, *(repr(chosen[name]) for name in ("debug", "lineinfo", "fastmath", "opt", "forceinline")))


def _on_device(dispatcher: Any) -> Any:
    """What Numba compiles for the device: for a function under `njit`, a dispatcher that it keeps there."""
    if isinstance(dispatcher, (internals().CUDADispatcher, FunctionType)):
        return dispatcher
    return getattr(dispatcher, "_CUDATypingContext__dispatcher", None)


def _compile_anew(dispatcher: Any) -> None:
    """Forget the overloads of a device function; those given to its decorator cannot come back by themselves."""
    before = dict(dispatcher.overloads)
    dispatcher.overloads.clear()
    if not dispatcher._can_compile:
        for types, result in before.items():
            dispatcher.compile_device(types, result.signature.return_type)


def _entry(cubin: bytes, symbol: str, name: str) -> Entry:
    described = read_cubin(cubin)
    for kernel in described.kernels:
        if kernel.symbol == symbol:
            parameters = tuple(Parameter(offset, size, "?") for offset, size in kernel.parameters)
            resources = kernel.registers, kernel.shared_bytes, kernel.local_bytes, described.const_bytes
            return Entry(name, symbol, parameters, False, *resources)
    raise CompileError(f"cannot compile {name}", f"the linked cubin has no kernel {symbol}")


def _attributes(
    parts: Internals, result: Any, chosen: Mapping[str, Any], argument_types: Sequence[Any]
) -> dict[str, Any]:
    bounds, carveout = chosen["launch_bounds"], chosen["shared_memory_carveout"]
    attributes: dict[str, Any] = {
        "cooperative": bool(result.library.use_cooperative),
        "carveout": {"default": -1, "maxl1": 0, "maxshared": 100}[carveout.lower()]
        if isinstance(carveout, str)
        else carveout,
        "debug": bool(chosen["debug"]),
        "lineinfo": bool(chosen["lineinfo"]),
        "launch_bounds": list(bounds) if isinstance(bounds, (tuple, list)) else bounds,
        "max_registers": chosen["max_registers"],
        "signature": [str(each) for each in argument_types],
    }
    if chosen["debug"]:
        attributes["exceptions"] = exception_table(result.call_helper)
    return attributes
