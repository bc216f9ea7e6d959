"""Compile a Numba kernel for a target: typing and lowering by Numba, code by NVVM, the cubin by nvJitLink.

Promise     Any target on any machine: no device, driver or context is needed. The program is compiled in its present
            state: a device function that Numba has compiled before, for other globals or another target, is compiled
            again. Numba's own errors pass unchanged. The user's `link` list is not modified.
Method      The steps of Numba's `_Kernel`, with our own linking: the flags `-no-cache` of nvJitLink and `--no-cache` of
            NVRTC turn off their own caches, and link files are read again and in order (Numba reads each file once in a
            process, and links them as a set, in no order).
Not here    The key (llvm). A result that must not be stored has the reason in `NumbaBuild.uncacheable`.
Source      numba-cuda 0.30.4, dispatcher.py `_Kernel.__init__`, codegen.py `CUDACodeLibrary._link_all`.
"""

from __future__ import annotations

import builtins
import os
import re
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FunctionType, SimpleNamespace
from typing import Any

from ...errors import CompileError, LinkError, UncacheableError
from ...keys import sha256
from ...model import Artifact, LinkInput, NamedTuple, Target
from ...model.linkable import LINK_SUFFIXES, callbacks_of
from ...model.text import decoded
from ...toolchain.diagnostics import excerpt
from ...toolchain.nvjitlink import link
from ...toolchain.nvrtc import run_nvrtc
from .compiled_code import assumed_device, attributes_of, compiler, entry_of, fresh_functions, recorded, rows_of
from .flavour import home_folder, toolkit_dirs
from .llvm import DECORATOR_OPTIONS, NUMBA
from .objects import read_link
from .value import Refused, Trust

_internal_cache_state: list[Any] = [None]
"""The flags of our last compile, and the number of entries that Numba's `cached_internal_func` had after it. A list of
one item, so that it can be replaced."""


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


def compile_kernel(
    declared: Any,
    types: tuple[Any, ...],
    target: Target,
    *,
    links: Iterable[LinkInput],
    runtime_build: str | None,
    **more: Any,
) -> Artifact:
    """Compile one signature of a kernel, to be stored.

    Args:
        declared, types, target, more: As for `compile_numba`.
        links: Link inputs in the key.
        runtime_build: Build of the device runtime in the key; None for none.

    Raises:
        UncacheableError: The result is only valid in this process, or a link input changed since it was keyed.
    """
    made = compile_numba(declared, types, target, **more)
    read = {(each.folder, each.name): each for each in made.linked if each.folder}
    changed = next((each.name for each in links if read.get((each.folder, each.name), each) != each), None)
    runtime = [f"sha256:{sha256(each.data).hexdigest()}" for each in made.linked if each.name == DEVICE_RUNTIME]
    why = made.uncacheable or (changed and f"the link input {changed} changed meanwhile")
    if not why and runtime and runtime != [runtime_build]:
        why = "the build of CUDA's device runtime that was linked is not the one in the kernel's key"
    if why:
        raise UncacheableError("cannot cache it", why)
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
    parts = compiler(NUMBA)
    chosen = {name: dispatcher.targetoptions.get(name) for name in DECORATOR_OPTIONS}
    if ptx_target is not None:
        chosen["lto"] = False
    generated = ptx_target or target
    fresh = _fresh(parts, generated.cc, chosen, device_functions)
    with recorded(parts.global_compiler_lock) as warned, assumed_device(NUMBA, generated.cc), fresh:
        result = _lowered(parts, dispatcher.py_func, tuple(argument_types), generated.cc, chosen)
        symbol = _as_kernel(parts, result, chosen)
        library = result.library
        ptx = library.get_asm_str(cc=(*generated.cc, generated.suffix))
        cubin, log, inputs = link_kernel(library, ptx, chosen, target, generated)
    entry = entry_of(cubin, symbol, dispatcher.py_func.__name__)
    attributes = attributes_of(chosen, argument_types, is_cooperative=result.library.use_cooperative)
    if chosen["debug"]:
        attributes["exceptions"] = _exception_table(result.call_helper)
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


@contextmanager
def _fresh(
    parts: SimpleNamespace, cc: tuple[int, int], chosen: Mapping[str, Any], functions: Iterable[tuple[Any, str]]
) -> Iterator[None]:
    """Compile without code that Numba compiled earlier in this process: of device functions, and of its own functions
    for other flags, or with operators that the program registered."""
    with fresh_functions(NUMBA, functions, cc, _on_device, _compile_callee):
        cached, trust = parts.cuda_target.target_context.cached_internal_func, Trust(NUMBA.packages)
        known_flags, _internal_cache_state[0] = _internal_cache_state[0], None
        are_numbas = all(trust.has_file(key[0].co_filename) for key in cached)
        _of_value, of_attribute, of_all = NUMBA.registrations()
        if of_attribute or of_all or not are_numbas or known_flags != (_flags(cc, chosen), len(cached)):
            cached.clear()
        yield
    _internal_cache_state[0] = (_flags(cc, chosen), len(cached))


def _flags(cc: tuple[int, int], chosen: Mapping[str, Any]) -> tuple[Any, ...]:
    return (cc, *(repr(chosen[name]) for name in ("debug", "lineinfo", "fastmath", "opt", "forceinline")))


def _on_device(function: Any) -> Any:
    """The object that Numba compiles for the device.

    A CUDA dispatcher or a plain function is that object itself. For a function under `njit`, Numba makes a second,
    CUDA dispatcher when a kernel first calls it; None before that.
    """
    if isinstance(function, (compiler(NUMBA).CUDADispatcher, FunctionType)):
        return function
    return getattr(function, "_CUDATypingContext__dispatcher", None)


def _compile_callee(dispatcher: Any, types: Any, result: Any) -> None:
    dispatcher.compile_device(types, result.signature.return_type)


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


DEVICE_RUNTIME = "CUDA's device runtime"
"""Name of the link input that Numba adds to kernels which synchronise the grid."""


class Linked(NamedTuple):
    """The linked code, the linker's log, and the inputs with their bytes."""

    cubin: bytes
    log: str
    inputs: tuple[LinkInput, ...]


def link_kernel(
    library: Any,
    ptx: str,
    chosen: Mapping[str, Any],
    target: Target,
    generated: Target,
) -> Linked:
    """Link the kernel with all inputs that it and its callees need.

    Args:
        library: Numba's code library with the kernel.
        ptx: Its PTX, whose names show which parts of Numba's own library are needed.
        chosen: The options `link`, `lto`, `max_registers`.
        target: The target to link for.
        generated: The target that the kernel's own code was generated for.
    """
    parts = compiler(NUMBA)
    lto = bool(chosen["lto"])
    logs: list[str] = []
    user = [chosen["link"]] if isinstance(chosen["link"], (str, os.PathLike)) else list(chosen["link"] or ())
    of_callees = [_read(each) for each in library._linking_files]
    of_callees.sort(key=lambda each: (each.kind, each.name, each.data))
    read = [*map(_read, user), *of_callees, *_numbas_own(parts, library, ptx, user)]
    code = _own_code(library, lto, (*generated.cc, generated.suffix))
    code += [_compiled(each, target, lto, logs) for each in dict.fromkeys(read)]
    flags = ["-lto"] if any(each.kind == "ltoir" for each in code) else []
    flags += [f"-maxrregcount={chosen['max_registers']}"] if chosen["max_registers"] else []
    cubin, log = link(code, target.name, flags)
    return Linked(cubin, "\n".join([*logs, log]).strip(), tuple(read))


def _own_code(library: Any, lto: bool, cc: tuple[int, int, str]) -> list[LinkInput]:
    if lto:
        return [LinkInput("ltoir", "kernel.ltoir", library.get_ltoir(cc=cc))]
    modules = library.get_asm_strs(cc=cc)  # one module with optimisation, or one per function in debug mode
    return [LinkInput("ptx", f"kernel{number}.ptx", each.encode()) for number, each in enumerate(modules)]


def _numbas_own(parts: SimpleNamespace, library: Any, ptx: str, user: Iterable[Any]) -> list[LinkInput]:
    """Inputs that Numba adds: helpers of reshape, its runtime if it is enabled, grid synchronisation."""
    found = []
    if any(name in ptx for name in parts.reshape_funcs):
        found.append(_read(os.path.join(home_folder(NUMBA), "reshape_funcs.cu")))
    if parts.cuda_target.target_context.enable_nrt:
        names = "|".join(parts._Kernel.NRT_functions)
        pattern = rf"\.extern\s+\.func\s+(?:\s*\(.+\)\s*)?({names})\s*\([^)]*\)\s*;"
        if re.search(pattern, ptx) or any(getattr(each, "nrt", False) for each in user):
            found.append(
                _read(parts.NRT_LIBRARY)._replace(folder=os.path.join(home_folder(NUMBA), "memory_management"))
            )
    if library.use_cooperative:
        library.needs_cudadevrt = True
    if library.needs_cudadevrt:
        found.append(_read(parts.get_cudalib("cudadevrt", static=True))._replace(name=DEVICE_RUNTIME))
    return found


def _read(item: Any) -> LinkInput:
    """Read a path or a `LinkableCode` object now."""
    try:
        found = read_link(item)
    except Refused as refusal:
        raise LinkError(f"cannot link {item!r}", str(refusal)) from None
    if not found.kind:
        raise LinkError(f"cannot link {item!r}", f"its suffix is not one of {', '.join(LINK_SUFFIXES)}", "rename it")
    return found


def _compiled(item: LinkInput, target: Target, lto: bool, logs: list[str]) -> LinkInput:
    """Prepare an input for the linker: CUDA C++ is compiled by NVRTC first, to LTO-IR or PTX as Numba does."""
    if item.kind != "cu":
        return item
    kind = "ltoir" if lto else "ptx"
    flags = [f"-arch={target.name}", "--relocatable-device-code=true"]
    flags += ["--dlink-time-opt"] if lto else []
    extra = compiler(NUMBA).config.CUDA_NVRTC_EXTRA_SEARCH_PATHS.split(":")
    flags += [f"--include-path={folder}" for folder in (*toolkit_dirs(NUMBA), *filter(None, (*extra, item.folder)))]
    # The program name includes the folder, so that quoted includes are searched for there.
    program = os.path.join(item.folder, item.name)
    result = run_nvrtc(decoded(item.data), program, flags, (kind,))
    if not result.ok:
        raise CompileError(f"cannot compile the link input {item.name}", excerpt(result.log), "", result.log)
    if result.log:
        logs.append(result.log)
        warnings.warn(f"NVRTC log messages: {result.log}", stacklevel=2)  # as Numba's own link does
    return LinkInput(kind, item.name, result.code[kind])
