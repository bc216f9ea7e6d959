"""Find the files of the compiler libraries that this process would load, without loading them.

Promise     The file found is the one that the bindings would load: cuda.pathfinder's own search steps are used. Only
            if those find nothing on disk, the library is loaded as the bindings do, since only the system's loader
            can find it then.
Source      cuda-pathfinder 1.9, `load_nvidia_dynamic_lib`: `EARLY_FIND_STEPS` (wheels, conda) come before the system's
            loader. These names are private: in a version that lacks them, the library is loaded.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import ToolchainMissingError
from ..waiting import imported

if TYPE_CHECKING:
    from . import Library


def locate(name: str, library: Callable[[str], Library | None]) -> str | None:
    """Return the path of a library by name; None if it is absent.

    Args:
        name: As for `Toolchain.library`.
        library: Identifies another library by its name: NVRTC, if its builtins are to be found.
    """
    if name == "nvrtc-builtins":
        nvrtc = library("nvrtc")
        return builtins_of(nvrtc.path) if nvrtc else None
    if ":" in name:
        return _static_library(*name.split(":"))
    return (name == "libdevice" and _numbas_libdevice()) or on_disk(name) or loaded_path(name)


def builtins_of(nvrtc: str, name: str = "") -> str | None:
    """Find the builtins beside an NVRTC.

    Args:
        nvrtc: The path of NVRTC.
        name: The builtins' file name; "" if unknown: of several files, the one that NVRTC's file names is returned.
    """
    folder = os.path.dirname(os.path.realpath(nvrtc))
    try:
        found = [each for each in os.listdir(folder) if each == name or not name]
        found = [each for each in found if each.startswith(("libnvrtc-builtins.so", "nvrtc-builtins64"))]
        if len(found) > 1:
            with open(nvrtc, "rb") as file:
                content = file.read()
            found = [each for each in found if each.encode() + b"\0" in content] or [max(found)]
    except OSError:
        return None
    return os.path.join(folder, found[0]) if found else None


def _numbas_libdevice() -> str:
    """Ask Numba for libdevice, which it searches in other places and another order; "" if it is not imported."""
    find = getattr(sys.modules.get("numba.cuda.cuda_paths"), "_get_libdevice_path", None)
    try:
        return str(find().info or "") if find is not None else ""
    except Exception:  # a private name, which an unknown version may lack
        return ""


def _static_library(package: str, name: str) -> str | None:
    """Ask a Numba for a static library that it links, which is never mapped; None if it finds none."""
    try:
        return str(imported(f"{package}.cudadrv.libs").get_cudalib(name, static=True))
    except Exception:  # a private name, or the archive is not installed
        return None


def on_disk(name: str) -> str | None:
    """Find the file of a library where packages put it, without loading it; None if there is none."""
    try:
        from cuda.pathfinder._dynamic_libs.lib_descriptor import LIB_DESCRIPTORS
        from cuda.pathfinder._dynamic_libs.search_steps import EARLY_FIND_STEPS, SearchContext, run_find_steps

        found = run_find_steps(SearchContext(LIB_DESCRIPTORS[name]), EARLY_FIND_STEPS)
    except Exception:  # a version without these private names
        return None
    return str(found.abs_path) if found is not None else None


def loaded_path(name: str) -> str | None:
    """Load a library as the CUDA bindings will, and return its path; None if it is not installed."""
    try:
        from cuda.pathfinder import find_bitcode_lib, load_nvidia_dynamic_lib

        path = find_bitcode_lib("device") if name == "libdevice" else load_nvidia_dynamic_lib(name).abs_path
    except (ImportError, RuntimeError):  # no cuda.pathfinder, or no such library
        return None
    return str(path) if path else None


def header_folders(nvrtc: str) -> list[str]:
    """List the header folders of the toolkit: CCCL before the rest, as nvcc orders them, since CCCL's wheels are newer
    than the toolkit's copy; empty if there are none.

    Args:
        nvrtc: The path of NVRTC; "" if it is not known.
    """
    try:
        from cuda.pathfinder import find_nvidia_header_directory
    except ImportError:
        return []
    found = [_without_process(name, nvrtc) or find_nvidia_header_directory(name) for name in ("cccl", "cudart")]
    if found[1] and not found[0]:
        bundled = os.path.join(found[1], "cccl")
        found[0] = bundled if os.path.isdir(bundled) else None
    return [os.path.realpath(path) for path in found if path]


def _without_process(name: str, nvrtc: str) -> str | None:
    """Find a header folder without starting a process; None if that is not possible.

    These are cuda.pathfinder's steps up to the one that starts a process, in which the system's loader finds the
    toolkit (70 ms). In place of that step, the toolkit of NVRTC is searched.
    """
    try:
        from cuda.pathfinder._dynamic_libs.search_steps import derive_ctk_root
        from cuda.pathfinder._headers import find_nvidia_headers as headers

        wanted = headers.HEADER_DESCRIPTORS[name]
        steps = headers.FIND_STEPS[: headers.FIND_STEPS.index(headers.find_via_ctk_root_canary)]
        found = headers.run_find_steps(wanted, steps)
        if found is not None:
            return str(found.abs_path)
        root = derive_ctk_root(nvrtc)
        beside = headers._locate_in_anchor_layout(wanted, root) if root else None
        return beside and str(beside)
    except Exception:  # a version without these private names
        return None


def missing(what: str, library: str) -> ToolchainMissingError:
    """Make the error for a compiler library that is not installed."""
    return ToolchainMissingError(
        f"cannot {what}",
        f"the {library} library is not installed",
        "pip install 'numba-kcache[cu13]' (or [cu12] for a driver older than 580)",
    )
