"""Find the files of the compiler libraries that this process would load, without loading them, and their builds.

Promise     The file found is the one that the bindings would load: cuda.pathfinder's own search steps are used. Only
            if those find nothing on disk, the library is loaded as the bindings do, since only the system's loader
            can find it then. A file has one identity at any path: its GNU build-id, or its content's digest if it has
            none. A mapped library is read from memory, since its file may have been replaced.
Source      cuda-pathfinder 1.9, `load_nvidia_dynamic_lib`: `EARLY_FIND_STEPS` (wheels, conda) come before the system's
            loader. These names are private: in a version that lacks them, the library is loaded. ELF gABI "Note
            Section", "Program Header", "Sections".
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
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
        found = [each for each in found if each.startswith("libnvrtc-builtins.so")]
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


_PT_NOTE, _SHT_NOTE, _NT_GNU_BUILD_ID = 4, 7, 3
_MAX_NOTES_BYTES = 1 << 16

_Read = Callable[[int, int], bytes]
"""Returns bytes by offset and size, or fewer at the end."""


def build_of(path: str) -> str:
    """Return the identity of a library's file.

    Raises:
        OSError: It cannot be read.
    """
    with open(path, "rb") as file:

        def read(offset: int, size: int) -> bytes:
            file.seek(min(offset, 1 << 62))
            return file.read(size)

        found = _build_id(read, is_mapped=False)
        if found:
            return found
        import hashlib

        file.seek(0)
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


def build_at(address: int, path: str) -> str:
    """Return the identity of a mapped library.

    Args:
        address: Address of its ELF header.
        path: Its file; its content is used if there is no build-id and the file is still the one mapped.
    """
    import ctypes

    found = _build_id(lambda offset, size: ctypes.string_at(address + offset, size), is_mapped=True)
    if found:
        return found
    if _is_mapped_from(path, address):
        return build_of(path)
    return f"unknown:{os.urandom(16).hex()}"  # the file is gone: a random identity is never a hit


def _whole(form: str, table: bytes) -> Iterator[tuple[int, ...]]:
    size = struct.calcsize(form)
    return struct.iter_unpack(form, table[: len(table) // size * size])


def _build_id(read: _Read, *, is_mapped: bool) -> str:
    """Find the build-id in the notes of a 64-bit ELF image; "" if there is none."""
    head = read(0, 64)
    if head[:6] != b"\x7fELF\x02\x01" or len(head) < 64:
        return ""
    for at, size in _notes(read, head, is_mapped=is_mapped):
        notes = read(at, size) if size <= _MAX_NOTES_BYTES else b""
        while len(notes) >= 12:
            name_size, content_size, note = struct.unpack_from("<III", notes)
            start = 12 + (name_size + 3) // 4 * 4
            if note == _NT_GNU_BUILD_ID and notes[12:16] == b"GNU\0" and name_size == 4 and content_size >= 8:
                content = notes[start : start + content_size]
                if len(content) == content_size:
                    return "build-id:" + content.hex()
            notes = notes[start + (content_size + 3) // 4 * 4 :]
    return ""


def _notes(read: _Read, head: bytes, *, is_mapped: bool) -> Iterator[tuple[int, int]]:
    """Yield place and size of each segment of notes, then of each section of notes; a mapped image has no sections.

    NVRTC 12.8 of PyPI has a build-id in a section alone: patchelf moved the section, and left the segment where it was.
    """
    segments_at, sections_at = struct.unpack_from("<QQ", head, 32)
    segments, _section_bytes, sections = struct.unpack_from("<HHH", head, 56)
    table = read(segments_at, 56 * segments)
    for kind, _flags, offset, address, _pa, size, *_ in _whole("<IIQQQQQQ", table):
        if kind == _PT_NOTE:
            yield address if is_mapped else offset, size
    table = b"" if is_mapped else read(sections_at, 64 * sections)
    for _name, kind, _f, _a, offset, size, *_ in _whole("<IIQQQQIIQQ", table):
        if kind == _SHT_NOTE:
            yield offset, size


def _is_mapped_from(path: str, address: int) -> bool:
    """Check whether the file at this path is the one mapped at this address; "(deleted)" is behind a replaced one."""
    with suppress(OSError, ValueError), open("/proc/self/maps", errors="surrogateescape") as file:
        for line in file:
            if line.endswith(f" {path}\n"):
                first, last = (int(each, 16) for each in line.partition(" ")[0].split("-"))
                if first <= address < last:
                    return True
    return False
