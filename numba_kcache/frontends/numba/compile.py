"""Compile a Numba kernel for a target: typing and lowering by Numba, code by NVVM, the cubin by nvJitLink.

Promise     Any target on any machine: no device, driver or context is needed. The program is compiled in its present
            state: a device function that Numba has compiled before, for other globals or another target, is compiled
            again. Numba's own errors pass unchanged. The user's `link` list is not modified.
Method      The steps of Numba's `_Kernel`, with our own linking: the flags `-no-cache` of nvJitLink and `--no-cache` of
            NVRTC turn off their own caches, and link files are read again and in order (Numba reads each file once in a
            process, and links them as a set, in no order).
Not here    The key (request). A result that must not be stored has the reason in `NumbaBuild.uncacheable`.
Source      numba-cuda 0.30.4, dispatcher.py `_Kernel.__init__`, codegen.py `CUDACodeLibrary._link_all`.
"""

from __future__ import annotations

import builtins
import time
from collections.abc import Iterable, Mapping, Sequence
from types import FunctionType, SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

from ...errors import CompileError, UncacheableError
from ...keys import sha256
from ...model import NamedTuple, Target
from ...model.artifact import Artifact, Entry, Parameter
from ...model.cubin import read_cubin
from ...model.linkable import callbacks_of
from ...model.request import LinkInput
from ..python.compiled_code import forget_implementations, is_plain
from ..python.function import Fingerprint, Uncapturable
from ..python.value import Trust
from ..python.warned import recorded, rows_of
from . import dialect
from .definition import DECORATOR_OPTIONS, CompilerLock, NumbaDefinition
from .internals import assumed_device, internals
from .link import DEVICE_RUNTIME, link_kernel

_Freshness = tuple[str, tuple[int, int], int]
_compiled_as: WeakKeyDictionary[Any, _Freshness] = WeakKeyDictionary()
"""For each device function: the digest and target of its last compile, and the number of its overloads then."""

_internal_cache_state: list[Any] = [None]
"""The flags of our last compile, and the number of entries that Numba's `cached_internal_func` had after it. A list of
one item, so that it can be replaced."""


_CARVEOUTS = {"default": -1, "maxl1": 0, "maxshared": 100}


class NumbaBuild(NamedTuple):
    """A compiled kernel.

    Args:
        artifact: Of kind "numba", with one entry. Its attributes: `cooperative`, `carveout`, `debug`, `lineinfo`,
            `launch_bounds`, `max_registers`, `signature`, and for `debug` the table `exceptions` of
            [code, builtin exception, arguments, [function, file, line] or None].
        uncacheable: Reason why it must not be stored, although it runs in this process; None if it may be stored.
        linked: The user's and Numba's link inputs, with the bytes that were linked.
    """

    artifact: Artifact
    uncacheable: str | None
    linked: tuple[LinkInput, ...] = ()


def build(
    definition: NumbaDefinition,
    fingerprint: Fingerprint | Uncapturable,
    types: tuple[Any, ...],
    target: Target,
    ptx_target: Target | None,
    runtime_build: str | None,
) -> Artifact:
    """Compile the artifact of a request.

    Args:
        definition, types, target, ptx_target: As for `python.definition.kernel_request`.
        fingerprint: The kernel's fingerprint, or the reason why it has none.
        runtime_build: Build of the device runtime in the key; None for none.

    Raises:
        UncacheableError: The result is only valid in this process, or a link input changed since it was keyed.
    """
    functions, links = (
        ((), ()) if isinstance(fingerprint, Uncapturable) else (fingerprint.device_functions(), fingerprint.links)
    )
    try:
        with CompilerLock():
            made = compile_numba(
                definition.declared, types, target, ptx_target=ptx_target, device_functions=functions,
                keep_ptx=definition.keep_ptx,
            )  # fmt: skip
    except Exception as error:  # mostly Numba's own, whose message is kept
        error.add_note(f"while compiling the Numba kernel {definition.label} for ({', '.join(map(str, types))})")
        raise
    if made.uncacheable:
        raise UncacheableError(f"cannot cache {definition.label}", made.uncacheable)
    read = {(each.folder, each.name): each for each in made.linked if each.folder}
    changed = next((each.name for each in links if read.get((each.folder, each.name), each) != each), None)
    if changed:
        raise UncacheableError(f"cannot cache {definition.label}", f"the link input {changed} changed meanwhile")
    linked = [f"sha256:{sha256(each.data).hexdigest()}" for each in made.linked if each.name == DEVICE_RUNTIME]
    if linked and linked != [runtime_build]:
        why = "the build of CUDA's device runtime that was linked is not the one in the kernel's key"
        raise UncacheableError(f"cannot cache {definition.label}", why)
    return made.artifact


def compile_numba(
    dispatcher: Any,
    argument_types: Sequence[Any],
    target: Target,
    *,
    ptx_target: Target | None = None,
    device_functions: Iterable[tuple[Any, str]] = (),
    keep_ptx: bool = True,
) -> NumbaBuild:
    """Compile one signature of a kernel.

    Args:
        dispatcher: A dispatcher of `cuda.jit`, with its options.
        argument_types: Numba types, in order.
        target: A real target.
        ptx_target: The virtual target to generate PTX for, if the user requested one (then without LTO).
        device_functions: Dispatchers it calls, and functions under `@overload` or `@intrinsic`, each with a
            digest of everything that determines its code (`Fingerprint.device_functions`).
        keep_ptx: Whether the artifact contains Numba's PTX, as it is before linking.

    Raises:
        NumbaError: Numba's own: typing, lowering, unsupported features.
        LinkError, CompileError: A linked file was refused.
        ToolchainMissingError: Numba, NVVM or nvJitLink is missing or of an unknown version.
    """
    start = time.perf_counter()
    parts = internals()
    chosen = {name: dispatcher.targetoptions.get(name) for name in DECORATOR_OPTIONS}
    if ptx_target is not None:
        chosen["lto"] = False
    generated = ptx_target or target
    with recorded(parts.global_compiler_lock) as warned, assumed_device(generated.cc):
        _forget_stale(parts, generated.cc, chosen, device_functions := tuple(device_functions))
        result = _lowered(parts, dispatcher.py_func, tuple(argument_types), generated.cc, chosen)
        symbol = _as_kernel(parts, result, chosen)
        library = result.library
        ptx = library.get_asm_str(cc=(*generated.cc, generated.suffix))
        cubin, log, inputs = link_kernel(library, ptx, chosen, target, generated)
        _remember(parts, generated.cc, chosen, device_functions)
    entry = _entry(cubin, symbol, dispatcher.py_func.__name__)
    attributes = _attributes(parts, result, chosen, argument_types)
    if warned:
        attributes["warnings"] = rows_of(warned, dispatcher.py_func)
    extras = {"log": log.encode(), **({"ptx": ptx.encode()} if keep_ptx else {})}
    seconds = time.perf_counter() - start
    artifact = Artifact("numba", target, (entry,), cubin, seconds, attributes, extras)
    return NumbaBuild(artifact, why_uncacheable(result, chosen, attributes, parts), inputs)


def _lowered(parts: SimpleNamespace, function: Any, types: tuple[Any, ...], cc: tuple[int, int], chosen: Any) -> Any:
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


def _as_kernel(parts: SimpleNamespace, result: Any, chosen: Mapping[str, Any]) -> str:
    """Turn the lowered function into a kernel. Returns its symbol."""
    library, name = result.library, result.fndesc.llvm_func_name
    kernel = library.get_function(name)
    library._entry_name = name
    parts.kernel_fixup(kernel, chosen["debug"])
    parts.set_launch_bounds(kernel, chosen["launch_bounds"])
    return str(kernel.name)


def _forget_stale(
    parts: SimpleNamespace, cc: tuple[int, int], chosen: Mapping[str, Any], functions: tuple[tuple[Any, str], ...]
) -> None:
    """Drop code that Numba compiled earlier in this process for another target, other globals or other flags.

    The records of the last compile are removed here, and `_remember` writes them after success: so the next compile
    drops what a failed one leaves. The code of functions under `@overload` and `@intrinsic` is always dropped: kernels
    outside this package add some too, which this package cannot count.
    """
    implementations = []
    for function, digest in functions:
        on_device = _on_device(function)
        if isinstance(on_device, FunctionType):
            implementations.append(on_device)
        elif on_device is not None:
            known, overloads = _compiled_as.pop(on_device, None), on_device.overloads
            is_known = known == (digest, cc, len(overloads))
            if overloads and not (is_known and is_plain((*overloads,), dialect.form_of_type)):
                _recompile(on_device)
    has_operators = bool(dialect.registrations().of_all)
    forget_implementations(dialect.registries(), implementations, dialect.form_of_type, all_code=has_operators)
    cached, trust = parts.cuda_target.target_context.cached_internal_func, Trust(dialect.packages)
    known_flags, _internal_cache_state[0] = _internal_cache_state[0], None
    are_numbas = all(trust.has_file(key[0].co_filename) for key in cached)
    if has_operators or not are_numbas or known_flags != (_flags(cc, chosen), len(cached)):
        cached.clear()


def _remember(
    parts: SimpleNamespace, cc: tuple[int, int], chosen: Mapping[str, Any], functions: tuple[tuple[Any, str], ...]
) -> None:
    for function, digest in functions:
        on_device = _on_device(function)
        if on_device is not None and not isinstance(on_device, FunctionType):
            _compiled_as[on_device] = (digest, cc, len(on_device.overloads))
    _internal_cache_state[0] = (_flags(cc, chosen), len(parts.cuda_target.target_context.cached_internal_func))


def _flags(cc: tuple[int, int], chosen: Mapping[str, Any]) -> tuple[Any, ...]:
    return (cc, *(repr(chosen[name]) for name in ("debug", "lineinfo", "fastmath", "opt", "forceinline")))


def _on_device(function: Any) -> Any:
    """The object that Numba compiles for the device.

    A CUDA dispatcher or a plain function is that object itself. For a function under `njit`, Numba makes a second,
    CUDA dispatcher when a kernel first calls it; None before that.
    """
    if isinstance(function, (internals().CUDADispatcher, FunctionType)):
        return function
    return getattr(function, "_CUDATypingContext__dispatcher", None)


def _recompile(dispatcher: Any) -> None:
    """Drop the overloads of a device function; signatures given to its decorator are then compiled explicitly."""
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
            return Entry(name, symbol, parameters, False, *resources, kernel.safe_threads)
    raise CompileError(f"cannot compile {name}", f"the linked cubin has no kernel {symbol}")


def _attributes(
    parts: SimpleNamespace, result: Any, chosen: Mapping[str, Any], argument_types: Sequence[Any]
) -> dict[str, Any]:
    bounds, carveout = chosen["launch_bounds"], chosen["shared_memory_carveout"]
    attributes: dict[str, Any] = {
        "cooperative": bool(result.library.use_cooperative),
        "carveout": _CARVEOUTS[carveout.lower()] if isinstance(carveout, str) else carveout,
        "debug": bool(chosen["debug"]),
        "lineinfo": bool(chosen["lineinfo"]),
        "launch_bounds": list(bounds) if isinstance(bounds, (tuple, list)) else bounds,
        "max_registers": chosen["max_registers"],
        "signature": [str(each) for each in argument_types],
    }
    if chosen["debug"]:
        attributes["exceptions"] = _exception_table(result.call_helper)
    return attributes


def _exception_table(call_helper: Any) -> list[Any] | None:
    """The Python exceptions that a debug kernel can raise, by code; None if one is not plain.

    Returns:
        [code, name of a builtin exception, arguments, [function, file, line] or None] of each.
    """
    table: list[Any] = []
    for code, (kind, arguments, place) in call_helper.exceptions.items():
        if kind is not None and getattr(builtins, kind.__name__, None) is not kind:
            return None
        if not all(type(each) in (str, int, float, bool, type(None)) for each in arguments or ()):
            return None
        table.append([code, kind and kind.__name__, list(arguments or ()), list(place) if place else None])
    return table


def why_uncacheable(
    result: Any, chosen: Mapping[str, Any], attributes: Mapping[str, Any], parts: SimpleNamespace
) -> str | None:
    """The reason why this kernel is only valid in this process; None if it consists of its cubin and attributes."""
    library = result.library
    if attributes["debug"] and attributes["exceptions"] is None:
        return "it raises an exception that is not built in, or one with arguments that are not constants"
    if (getattr(result, "metadata", None) or {}).get("launch_config_sensitive"):
        return "its code depends on the launch configuration"
    if any(hasattr(each, "__cuda_array_interface__") for each in library.referenced_objects.values()):
        return "it uses a global or captured device array, whose address is in the code"
    if parts.cuda_target.target_context.enable_nrt and parts.config.CUDA_NRT_STATS:
        return "statistics of Numba's runtime are on"
    callbacks = [*library._setup_functions, *library._teardown_functions]
    callbacks += [callback for each in chosen["link"] or () for callback in callbacks_of(each)]
    foreign = [each for each in callbacks if not str(getattr(each, "__module__", "")).startswith("numba.")]
    return "linked code has callbacks to run when it is loaded" if foreign else None
