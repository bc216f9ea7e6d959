"""Identify the build of a library by the GNU build-id in its ELF notes.

Promise     A file has one identity at any path: its build-id, or its content's digest if it has none. Nothing is
            loaded. A mapped library is read from memory, since its file may have been replaced.
Source      ELF gABI "Note Section", "Program Header", "Sections".
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator

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
    """Check whether the file at this path is the one mapped at this address."""
    try:
        found = os.stat(path)
        with open("/proc/self/maps") as file:
            number = f" {found.st_ino} "
            for line in file:
                if number not in line:  # a process has thousands of lines, and parsing them all takes milliseconds
                    continue
                span, _access, _offset, device, inode, *_ = line.split(maxsplit=5)
                first, last = (int(each, 16) for each in span.split("-"))
                if first <= address < last:
                    major, minor = (int(each, 16) for each in device.split(":"))
                    return (os.makedev(major, minor), int(inode)) == (found.st_dev, found.st_ino)
    except (OSError, ValueError):
        pass
    return False
