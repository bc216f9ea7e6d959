"""Find the cubin for a device in a fatbin.

Promise     Nothing is read outside the given bytes; a malformed fatbin counts as one without a cubin.
Method      A fatbin is a header of 16 bytes, then entries, each with a header that holds its kind, its own size, the
            size of the data after it and the compute capability. Only linked, uncompressed code is used, which is how
            nvcc writes cubins.
Source      `cuobjdump -lelf`, and the files of nvcc 13.0: kind 2 is ELF, flags 0x2000 LZ4, 0x8000 zstd.
"""

from __future__ import annotations

import struct

from . import Target

_HEADER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQIIHHI")
_MAGIC, _ELF, _EXECUTABLE = 0xBA55ED50, 2, b"\x02\x00"


def cubin_in_fatbin(data: bytes, cc: tuple[int, int]) -> bytes | None:
    """The best linked cubin for a device of this compute capability; None if there is none that can be read."""
    try:
        magic, _version, at, _size = _HEADER.unpack_from(data)
        best: tuple[int, bytes] | None = None
        while magic == _MAGIC and at + _ENTRY.size <= len(data):
            kind, _, own, size, packed, _, _, _, sm = _ENTRY.unpack_from(data, at)
            code = data[at + own : at + own + size]
            is_ready = kind == _ELF and not packed and code[16:18] == _EXECUTABLE and len(code) == size
            if is_ready and Target(*divmod(sm, 10)).runs_on(cc) and (best is None or sm > best[0]):
                best = sm, code
            at += max(own, 1) + size
        return best[1] if best else None
    except struct.error:
        return None
