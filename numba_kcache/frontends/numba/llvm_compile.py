"""Compile a Numba kernel: typing, lowering and PTX by Numba, the cubin by nvJitLink.

Method      Numba's own `_Kernel`, with our own linking: the flags `-no-cache` of nvJitLink and `--no-cache` of
            NVRTC turn off their own caches, and link files are read again and in order (Numba reads each file once in a
            process, and links them as a set, in no order).
Not here    What both Numbas need for a compile (compiled_code), and the key (llvm).
Source      numba-cuda 0.30.4, dispatcher.py `_Kernel.__init__`, codegen.py `CUDACodeLibrary._link_all`.
"""

from __future__ import annotations

import builtins
import os
import warnings
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from ...errors import CompileError, LinkError
from ...model import LinkInput, Target
from ...model.linkable import LINK_SUFFIXES
from ...model.text import decoded
from ...toolchain.diagnostics import excerpt
from ...toolchain.nvjitlink import link
from ...toolchain.nvrtc import run_nvrtc
from . import home_folder, toolkit_dirs
from .arguments import Values
from .compiled_code import Code, compiler
from .fingerprint import Refused, read_link
from .llvm import DECORATOR_OPTIONS, NUMBA


def compile_signature(
    function: Any,
    types: Values,
    options: Mapping[str, Any],
    target: Target,
    generated: Target,
    links: Iterable[LinkInput],
) -> Code:
    """Compile one signature; link inputs that are in the key are linked as they were read for it. See
    `compiled_code.compile_kernel`."""
    parts, cc = compiler(NUMBA), assumed(target, generated)
    chosen = {name: options.get(name) for name in DECORATOR_OPTIONS}
    chosen["lto"] = chosen["lto"] and generated is target
    kernel = parts._Kernel(function, types, **chosen)
    library = kernel.library
    cubin, log = link_kernel(library, chosen, target, cc, links)
    attributes = {"exceptions": _exception_table(kernel.call_helper)} if chosen["debug"] else {}
    callbacks = *library._setup_functions, *library._teardown_functions
    return Code(
        cubin, str(kernel.entry_name), library.get_asm_str(cc=cc), log, attributes, kernel.cooperative,
        library.needs_cudadevrt, callbacks, why_uncacheable(kernel, attributes, parts),
    )  # fmt: skip


def assumed(_target: Target, generated: Target) -> Values:
    """The compute capability of the device that a compile assumes: that of the code, since linking is done here."""
    return *generated.cc, generated.suffix


def device_answer(cc: Values, library: Any = None, asked: Any = None) -> Any:
    """A device with this compute capability; for a code library, the one that was asked for, or this one."""
    return SimpleNamespace(compute_capability=cc[:2]) if library is None else asked or cc


def compile_callee(dispatcher: Any, types: Any, result: Any) -> None:
    """Compile a device function for argument types again; `result` is that of the last compile."""
    dispatcher.compile_device(types, result.signature.return_type)


def prepare() -> None:
    """Make Numba fill its registries, as its first compile does, and drop the functions that it compiled to be used
    inside others: an intrinsic of the program may have some."""
    context = compiler(NUMBA).cuda_target.target_context
    with compiler(NUMBA).numba_target_override():
        context.refresh()
    context.cached_internal_func.clear()


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


def why_uncacheable(kernel: Any, attributes: Mapping[str, Any], parts: SimpleNamespace) -> str:
    """The reason why this kernel is only valid in this process; "" if it consists of its cubin and attributes."""
    if attributes.get("exceptions", ()) is None:
        return "it raises an exception that is not built in, or one with arguments that are not constants"
    if kernel.launch_config_sensitive:
        return "its code depends on the launch configuration"
    if any(hasattr(each, "__cuda_array_interface__") for each in kernel.library.referenced_objects.values()):
        return "it uses a global or captured device array, whose address is in the code"
    if parts.cuda_target.target_context.enable_nrt and parts.config.CUDA_NRT_STATS:
        return "statistics of Numba's runtime are on"
    return ""


def link_kernel(
    library: Any, chosen: Mapping[str, Any], target: Target, cc: Values, links: Iterable[LinkInput]
) -> tuple[bytes, str]:
    """Link the kernel with all inputs that it and its callees need. Returns the code and the linker's log.

    Args:
        library: Numba's code library with the kernel.
        chosen: The options `link`, to which Numba has added its own files, `lto`, `max_registers`.
        target: The target to link for.
        cc: That of the kernel's own code.
        links: Link inputs as they are in the key.
    """
    lto, logs = bool(chosen["lto"]), list[str]()
    keyed = {os.path.join(each.folder, each.name): each for each in links if each.folder}
    of_callees = [_read(each, keyed) for each in library._linking_files.difference(chosen["link"])]
    of_callees.sort(key=lambda each: (each.kind, each.name, each.data))
    runtime = [compiler(NUMBA).get_cudalib("cudadevrt", static=True)] if library.needs_cudadevrt else []
    read = [_read(each, keyed) for each in (*chosen["link"], *runtime)]
    if lto:
        code = [LinkInput("ltoir", "kernel.ltoir", library.get_ltoir(cc=cc))]
    else:  # one module with optimisation, or one per function in debug mode
        modules = library.get_asm_strs(cc=cc)
        code = [LinkInput("ptx", f"kernel{number}.ptx", each.encode()) for number, each in enumerate(modules)]
    code += [_compiled(each, target, lto, logs) for each in dict.fromkeys((*read, *of_callees))]
    flags = ["-lto"] if any(each.kind == "ltoir" for each in code) else []
    flags += [f"-maxrregcount={chosen['max_registers']}"] if chosen["max_registers"] else []
    cubin, log = link(code, target.name, flags)
    return cubin, "\n".join([*logs, log]).strip()


def _read(item: Any, keyed: Mapping[str, LinkInput]) -> LinkInput:
    """Read a path or a `LinkableCode` object, unless it is in the key."""
    known = keyed.get(os.path.abspath(item)) if isinstance(item, (str, os.PathLike)) else None
    try:
        found = known or read_link(item)
    except Refused as refusal:
        raise LinkError(f"cannot link {item!r}", str(refusal)) from None
    if not found.kind:
        raise LinkError(f"cannot link {item!r}", f"its suffix is not one of {', '.join(LINK_SUFFIXES)}", "rename it")
    is_numbas = item is compiler(NUMBA).NRT_LIBRARY
    return found._replace(folder=os.path.join(home_folder(NUMBA), "memory_management")) if is_numbas else found


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
