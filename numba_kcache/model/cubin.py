"""Parse a cubin (target, kernels, their parameters and resources, variables), and find the cubin in a fatbin.

Promise     Nothing is read outside the given bytes, and no length in them is trusted: bytes that are not a
            well-formed cubin are a ValueError; a malformed fatbin counts as one without a cubin. No driver is needed.
Method      A cubin is a 64-bit little-endian ELF of machine EM_CUDA. Kernels are the sections
            `.text.NAME` whose symbol is marked as an entry, with a `.nv.info.NAME` beside them; its records give
            parameter offsets and sizes, `.nv.info` gives registers and stack by symbol index, section sizes give
            shared and constant memory. Variables are the objects in `.nv.global`, `.nv.global.init` and
            `.nv.constant3`.
            A fatbin is a header of 16 bytes, then pieces, each with a header that holds its kind, its own size, the
            size of the data after it and the compute capability. Only linked, uncompressed code is used, which is how
            nvcc writes cubins.
Source      ELF-64 Object File Format; record codes as printed by `cuobjdump -elf`: EIATTR_KPARAM_INFO 0x17,
            EIATTR_KPARAM_INFO_V2 0x45 (above 4,352 bytes of parameters), EIATTR_PARAM_CBANK 0x0a,
            EIATTR_REGCOUNT 0x2f, EIATTR_FRAME_SIZE 0x11, EIATTR_MAX_THREADS 0x05, EIATTR_REQNTID 0x10;
            STO_CUDA_ENTRY 0x10. Registers of a block: CUDA C++ Programming Guide, "Technical Specifications per
            Compute Capability".
            `cuobjdump -lelf`, and fatbins of nvcc 13.0: kind 2 is ELF, flags 0x2000 LZ4, 0x8000 zstd.
            EI_ABIVERSION 8 (CUDA 13) keeps the SM number in bits 8-15 of e_flags, earlier ones in bits 0-7.
"""

from __future__ import annotations

import struct

from . import NamedTuple, Target

EM_CUDA = 190

_ET_REL = (1).to_bytes(2, "little")

_EIFMT_SIZED = 4
_KPARAM_INFO = 0x17
_KPARAM_INFO_V2 = 0x45
_REGCOUNT = 0x2F
_FRAME_SIZE = 0x11
_LAUNCH_BOUNDS = (0x05, 0x10)

_STT_OBJECT = 1
_STO_ENTRY = 0x10
_CONSTANTS = ".nv.constant3"
_VARIABLES = (".nv.global", ".nv.global.init", _CONSTANTS)

_RESERVED_SHARED = 1024
"""Shared memory per block that the system reserves from compute capability 9.0 on, in bytes. Each section of shared
memory includes it; compiler and driver do not report it (CUDA C++ Programming Guide, "Shared Memory" of 9.0)."""

_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")


class CubinKernel(NamedTuple):
    """One kernel of a cubin: its symbol, parameters as (offset, size) in bytes, and resources.

    Args:
        symbol: The lowered name.
        parameters: (offset, size) of each, in order.
        registers: Registers per thread.
        shared_bytes: Static shared memory per block.
        local_bytes: Stack frame per thread.
        safe_threads: Threads per block that it can use on every device of its target; 0 where that is not known.
    """

    symbol: str
    parameters: tuple[tuple[int, int], ...]
    registers: int
    shared_bytes: int
    local_bytes: int
    safe_threads: int = 0


class CubinVariable(NamedTuple):
    """A variable of a cubin: its symbol, its bytes, and whether it is in constant memory."""

    symbol: str
    size_bytes: int
    is_constant: bool


class Cubin(NamedTuple):
    """The contents of a cubin, as parsed.

    Args:
        sm: The compute capability as one number, 90 for 9.0 (an `a` or `f` suffix is not recorded in it).
        kernels: In the order of their sections.
        const_bytes: Constant memory of the module's own variables (bank 3).
        variables: In the order of their symbols, including those of the compiler (`$str`).
    """

    sm: int
    kernels: tuple[CubinKernel, ...]
    const_bytes: int
    variables: tuple[CubinVariable, ...] = ()


def is_cubin(data: bytes) -> bool:
    """Check whether these bytes start as a cubin does."""
    return data[:5] == b"\x7fELF\x02" and len(data) >= 64 and data[18:20] == EM_CUDA.to_bytes(2, "little")


def is_relocatable(data: bytes) -> bool:
    """Check whether a cubin is yet to be linked: an ELF of type ET_REL rather than ET_EXEC."""
    return is_cubin(data) and data[16:18] == _ET_REL


def read_cubin(data: bytes) -> Cubin:
    """Read a cubin.

    Raises:
        ValueError: The bytes are not a cubin, or are damaged.
    """
    if not is_cubin(data):
        raise ValueError("not a 64-bit CUDA ELF")
    try:
        return _read(data)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"damaged ELF: {error}") from None


def _sections(data: bytes) -> tuple[list[tuple[int, ...]], dict[str, tuple[int, ...]], int]:
    """Section headers in order and by name, and e_flags."""
    offset, flags = struct.unpack_from("<QI", data, 40)
    width, count, names_at = struct.unpack_from("<HHH", data, 58)
    if width != _SECTION.size:
        raise ValueError("section headers of another size")
    if offset > len(data):
        raise ValueError("section headers outside the file")
    if count == 0 and offset:  # more than 65,279 sections: the counts are in section 0
        first = _SECTION.unpack_from(data, offset)
        count, names_at = first[5], first[6]
    if count * width > len(data):
        raise ValueError("more sections than bytes")
    raw = [_SECTION.unpack_from(data, offset + index * width) for index in range(count)]
    names = _bytes(data, raw[names_at])
    return raw, {_string(names, each[0]): each for each in raw if each[0]}, flags


def _read(data: bytes) -> Cubin:
    raw, by_name, flags = _sections(data)
    table, symbols = _symbols(data, raw, by_name)
    entries = {symbols[index] for index, fields in enumerate(table) if fields[0] and fields[2] & _STO_ENTRY}
    places = {raw.index(by_name[name]): name == _CONSTANTS for name in _VARIABLES if name in by_name}
    variables = [
        CubinVariable(symbols.get(index, ""), size, places[section])
        for index, (_name, kind, _other, section, _value, size) in enumerate(table)
        if kind & 0xF == _STT_OBJECT and section in places
    ]
    sm = flags >> 8 & 0xFF if data[8] >= 8 else flags & 0xFF
    reserved = _RESERVED_SHARED if sm >= 90 else 0
    registers, frames = _resources(data, by_name.get(".nv.info"), symbols)
    kernels = []
    for name in by_name:
        symbol = name.removeprefix(".text.")
        info = by_name.get(f".nv.info.{symbol}")
        if symbol is name or info is None or symbol not in entries:
            continue  # a device function that was linked in has both sections too
        shared = by_name.get(f".nv.shared.{symbol}")
        records, used = _records(_bytes(data, info)), registers.get(symbol, 0)
        kernels.append(
            CubinKernel(
                symbol,
                tuple(_parameters(records)),
                used,
                max(shared[5] - reserved, 0) if shared else 0,
                frames.get(symbol, 0),
                _safe_threads(records, used) if sm >= 70 else 0,  # 5.3 and 6.2 have half the registers
            )
        )
    const = by_name.get(_CONSTANTS)
    return Cubin(sm, tuple(kernels), const[5] if const else 0, tuple(variables))


def _bytes(data: bytes, section: tuple[int, ...]) -> bytes:
    offset, size = section[4], section[5]
    if offset + size > len(data):
        raise ValueError("a section ends outside the file")
    return data[offset : offset + size]


def _string(table: bytes, offset: int) -> str:
    end = table.find(b"\0", offset)
    if end < 0:
        raise ValueError("a name without an end")
    return table[offset:end].decode()


def _symbols(
    data: bytes, raw: list[tuple[int, ...]], by_name: dict[str, tuple[int, ...]]
) -> tuple[list[tuple[int, ...]], dict[int, str]]:
    """The symbol table, and the names in it by index."""
    section = by_name.get(".symtab")
    if section is None:
        return [], {}
    names, table = _bytes(data, raw[section[6]]), list(_SYMBOL.iter_unpack(_bytes(data, section)))
    return table, {index: _string(names, fields[0]) for index, fields in enumerate(table) if fields[0]}


def _records(info: bytes) -> list[tuple[int, bytes]]:
    """(attribute, value) of each record with a size; the other records are not needed here."""
    found, at = [], 0
    while at + 4 <= len(info):
        layout, attribute, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if layout == _EIFMT_SIZED:
            found.append((attribute, info[at : at + size]))
            at += size
    return found


def _safe_threads(records: list[tuple[int, bytes]], registers: int) -> int:
    """The threads for which 65,536 registers suffice, 256 of any kernel; or the launch bounds, if they are less."""
    threads = 1024 if 0 < registers <= 64 else 256
    for attribute, value in records:
        if attribute in _LAUNCH_BOUNDS:
            x, y, z = struct.unpack("<III", value)
            threads = min(threads, x * y * z)
    return threads


def _parameters(records: list[tuple[int, bytes]]) -> list[tuple[int, int]]:
    """(offset, size) by ordinal.

    A record is u32 index, u16 ordinal, u16 offset, u32 with the size in bits 18-31; of version 2,
    the last is u16 size and u16 0.
    """
    found = {}
    for attribute, value in records:
        if attribute == _KPARAM_INFO:
            _index, ordinal, offset, flags = struct.unpack("<IHHI", value)
            found[ordinal] = (offset, flags >> 18)
        elif attribute == _KPARAM_INFO_V2:
            _index, ordinal, offset, size = struct.unpack_from("<IHHH", value)
            found[ordinal] = (offset, size)
    if sorted(found) != list(range(len(found))):
        raise ValueError("parameters with gaps")
    return [found[ordinal] for ordinal in range(len(found))]


def _resources(
    data: bytes, section: tuple[int, ...] | None, symbols: dict[int, str]
) -> tuple[dict[str, int], dict[str, int]]:
    """Registers and stack bytes by symbol. A record is u32 symbol index, u32 value."""
    registers: dict[str, int] = {}
    frames: dict[str, int] = {}
    for attribute, value in _records(_bytes(data, section)) if section else ():
        if attribute in (_REGCOUNT, _FRAME_SIZE) and len(value) == 8:
            index, amount = struct.unpack("<II", value)
            (registers if attribute == _REGCOUNT else frames)[symbols.get(index, "")] = amount
    return registers, frames


# -- fatbins -----------------------------------------------------------------------------------------------------------

_FATBIN = struct.Struct("<IHHQ")
_PIECE = struct.Struct("<HHIQIIHHI")
_FATBIN_MAGIC, _LINKED_ELF, _ET_EXEC = 0xBA55ED50, 2, b"\x02\x00"


def cubin_in_fatbin(data: bytes, cc: tuple[int, int]) -> bytes | None:
    """The best linked cubin for a device of this compute capability; None if there is none that can be read."""
    try:
        magic, _version, at, _size = _FATBIN.unpack_from(data)
        best: tuple[int, bytes] | None = None
        while magic == _FATBIN_MAGIC and at + _PIECE.size <= len(data):
            kind, _, own, size, packed, _, _, _, sm = _PIECE.unpack_from(data, at)
            code = data[at + own : at + own + size]
            is_ready = kind == _LINKED_ELF and not packed and code[16:18] == _ET_EXEC and len(code) == size
            if is_ready and Target(*divmod(sm, 10)).runs_on(cc) and (best is None or sm > best[0]):
                best = sm, code
            at += max(own, 1) + size
        return best[1] if best else None
    except struct.error:
        return None
