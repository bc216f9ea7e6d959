"""Link a lowered Numba kernel: its own code, inputs that Numba adds, and the user's files.

Promise     The order is fixed: the kernel, the user's files as given, then the inputs of device functions and of
            Numba's library, sorted by content. Files are read when they are linked. NVRTC and nvJitLink use no cache
            of their own and need no driver.
Source      numba-cuda 0.30.4: `CUDACodeLibrary._link_all`, `_Linker`, `cudadrv.nvrtc.compile` (its flags and
            include folders), `_Kernel.maybe_link_nrt`.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from ...errors import CompileError, LinkError
from ...model import LinkInput, NamedTuple, Target
from ...model.linkable import LINK_SUFFIXES
from ...model.text import decoded
from ...toolchain.diagnostics import excerpt
from ...toolchain.nvjitlink import link
from ...toolchain.nvrtc import run_nvrtc
from .files import read_link
from .llvm_flavour import NUMBA
from .parts import compiler, home_folder, toolkit_dirs
from .value import Refused

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
