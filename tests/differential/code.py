"""Two pieces of compiled code: are they the same, up to names that the compiler makes up afresh for each place?"""

from __future__ import annotations

import hashlib
import itertools
import re
import struct
from typing import Any, NamedTuple

NO_BITS = 8


class Section(NamedTuple):
    """One section of an ELF file."""

    name: str
    kind: int
    info: int
    size: int
    content: bytes


def difference(one: bytes | str, other: bytes | str, *, exact: bool) -> str | None:
    """Name the first difference of two cubins, or of two PTX texts; None if there is none.

    Args:
        one, other: Both cubins or both PTX.
        exact: Whether every section of a cubin counts, or those alone that hold code and its data.
    """
    if one == other:
        return None
    if isinstance(one, str) or isinstance(other, str):
        return _ptx_difference(str(one), str(other))
    if exact and _renamed(one) == _renamed(other):
        return None
    mine, theirs = _meaning(one, exact), _meaning(other, exact)
    return next((name for name in sorted(mine.keys() | theirs.keys()) if mine.get(name) != theirs.get(name)), None)


def _renamed(cubin: bytes) -> bytes:
    return re.sub(rb"_INTERNAL_[0-9a-f]{8}", b"_INTERNAL_00000000", cubin)


def sections(cubin: bytes) -> list[Section]:
    """The sections of an ELF file, in order."""
    (at,) = struct.unpack_from("<Q", cubin, 40)
    width, count, names = struct.unpack_from("<HHH", cubin, 58)
    heads = [struct.unpack_from("<IIQQQQIIQQ", cubin, at + width * each) for each in range(count)]
    start = heads[names][4]
    found = []
    for name, kind, _flags, _address, offset, size, _link, info, _align, _entry in heads:
        text = cubin[start + name : cubin.index(b"\0", start + name)].decode("utf-8", "replace")
        found.append(Section(text, kind, info, size, b"" if kind == NO_BITS else cubin[offset : offset + size]))
    return found


def _plain_name(name: str) -> str:
    """A name without what the compiler made of the file's name and content."""
    return re.sub(r"\d+_INTERNAL_[0-9a-f]{8}_\d+_\w*?_cu_[0-9a-f]{8}_\d*|_?_INTERNAL_[0-9a-f]+", "_INTERNAL_", name)


def _meaning(cubin: bytes, exact: bool) -> dict[str, Any]:
    found = sections(cubin)
    symbols = _symbols(found)
    meaning: dict[str, Any] = {}
    for each in found:
        name = _plain_name(each.name)
        if name.startswith(".rela.text"):
            meaning[name] = [(*entry[:2], symbols[entry[2]]) for entry in _relocations(each.content)]
        elif name == ".debug_line":
            meaning[name] = without_times(each.content)
        elif name.startswith((".text.", ".nv.constant0.", ".nv.constant3", ".nv.global.init")):
            meaning[name] = each.content, each.info >> 24
        elif name.startswith(".nv.shared."):
            meaning[name] = each.size
        elif exact and not name.startswith((".strtab", ".shstrtab", ".symtab", ".rela", ".nv.info")) and name:
            meaning[name] = each.content, each.size
    if exact:
        meaning["symbols"] = sorted(symbols)
    return meaning


def without_times(table: bytes) -> bytes:
    """A line table without the files' times of modification.

    NVRTC before 13.1 writes them. They are no code, and keys leave times of files out: contents count.
    """
    shown, at = bytearray(), 0
    while at < len(table):  # one unit after another
        size, _version, head_size = struct.unpack_from("<IHI", table, at)
        program, end = at + 10 + head_size, at + 4 + size
        names = at + 14 + table[at + 14]  # behind the lengths of opcodes
        while table[names]:  # folders
            names = table.index(b"\0", names) + 1
        names += 1
        shown += table[at + 10 : names]  # not the two sizes, of which the times are part
        while table[names]:
            folder = table.index(b"\0", names) + 1
            time = _after_number(table, folder)
            shown += table[names:time]
            names = _after_number(table, _after_number(table, time))
            shown += table[_after_number(table, time) : names]
        shown += table[names:program] + table[program:end]
        at = end
    return bytes(shown)


def _after_number(table: bytes, at: int) -> int:
    """The place after a LEB128 number."""
    while table[at] & 0x80:
        at += 1
    return at + 1


def _symbols(found: list[Section]) -> list[str]:
    table = next(each.content for each in found if each.name == ".symtab")
    names = next(each.content for each in found if each.name == ".strtab")
    starts = [struct.unpack_from("<I", table, at)[0] for at in range(0, len(table), 24)]
    return [_plain_name(names[start : names.index(b"\0", start)].decode("utf-8", "replace")) for start in starts]


def _relocations(content: bytes) -> list[tuple[int, int, int]]:
    entries = [struct.unpack_from("<QQq", content, at) for at in range(0, len(content), 24)]
    return [(offset, info & 0xFFFFFFFF, info >> 32) for offset, info, _addend in entries]


_NAME = re.compile(r"\b_(?:Z|cuda)\w+?(?=_param_\d+\b|\b)")


def _ptx_difference(one: str, other: str) -> str | None:
    """A line that only one of them has, names being replaced by what they stand for."""
    mine, theirs = _definitions(one), _definitions(other)
    if sorted(mine) == sorted(theirs):
        return None
    left = "\n".join(sorted(set(mine) - set(theirs))).splitlines()
    right = "\n".join(sorted(set(theirs) - set(mine))).splitlines()
    pairs = itertools.zip_longest(left, right, fillvalue="nothing")
    return next((f"{one.strip()} / {other.strip()}" for one, other in pairs if one != other), "other functions")


def _definitions(ptx: str) -> list[str]:
    """Functions and variables, in no order. A name is the digest of what it names, and so of all that this uses.

    No order, because with `opt=False` NVVM writes functions as they come out of a set of Numba's.
    """
    lines = [re.sub(r"//.*", "", line).rstrip() for line in ptx.splitlines()]
    counted = r"(\$L__(?:BB|func_begin|func_end|tmp)|__local_depot|constant_array_|static_shared_memory_)\d+"
    text = re.sub(counted, r"\1", "\n".join(filter(None, lines)))
    files = dict(re.findall(r'(?m)^\s*\.file\s+(\d+)\s+(".*)$', text))  # numbered as functions come
    text = re.sub(r"(?m)^\s*\.file\s.*\n?", "", text)
    text = re.sub(r"(?m)^(\s*\.loc\s+)(\d+)", lambda found: found[1] + files.get(found[2], "?"), text)
    parts = [each.strip() for each in re.split(r"(?m)^(?=\.)", text)] + sorted(files.values())
    named: dict[str, list[str]] = {}
    for part in parts:
        if ".func" in part and "{" not in part:
            continue  # the declaration of what is called before it is defined, which the order decides
        found = _NAME.search(part)
        named.setdefault(found[0] if found else part, []).append(part)
    meaning = dict.fromkeys(named, "")
    shown: list[str] = []
    for _ in range(4):  # as deep as calls are followed
        texts = {name: sorted(_with_meanings(part, meaning) for part in each) for name, each in named.items()}
        shown = [text for each in texts.values() for text in each]
        meaning = {name: hashlib.sha256("".join(each).encode()).hexdigest()[:8] for name, each in texts.items()}
    return shown


def _with_meanings(text: str, meaning: dict[str, str]) -> str:
    return _NAME.sub(lambda found: meaning.get(found[0], "?"), text)
