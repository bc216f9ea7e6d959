"""List many entries quickly: order them by what a walk shows, and read the heads of those that are shown.

Promise     Twenty thousand entries are ordered without opening one; a file is read up to the end of its header. What
            is listed was not held against its digest: it is for people to look at, and nothing is loaded by it.
            A file that is no entry is passed over, and looking does not count as use.
Not here    Whole entries (store.disk.get) and damage (store.disk.verify).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Literal

from .entry import (
    DamagedEntry,
    Header,
    decode_head,
    head_bytes,
)
from .report import EntryInfo
from .system import CLOEXEC, NOFOLLOW, NONBLOCK
from .tree import Found

Order = Literal["age", "size", "cost", "hits"]

ORDERS: tuple[Order, ...] = ("age", "size", "cost", "hits")
"""Most recently used first, largest first, longest compilation first, most hits first."""

HITS_DIGITS = 16
"""Leading digits of a key under which its hits are counted."""

_READ = os.O_RDONLY | NOFOLLOW | CLOEXEC | NONBLOCK
_FIRST_BYTES = 8192


def listed(files: Iterable[Found], *, by: Order, limit: int | None, hits: Mapping[str, int]) -> list[EntryInfo]:
    """The first `limit` entries in an order.

    Args:
        files: Those met on a walk.
        by: The order.
        limit: How many; None for all.
        hits: Hits by the leading digits of the key.
    """
    if by == "cost":  # it stands in the header: all have to be read
        return ordered(_heads(files, hits), by, limit)
    first = {
        "age": lambda file: (-file.used_ns, file.key),
        "size": lambda file: (-file.size_bytes, file.key),
        "hits": lambda file: (-hits.get(file.key[:HITS_DIGITS], 0), -file.used_ns, file.key),
    }[by]
    return list(islice(_heads(sorted(files, key=first), hits), limit))


def ordered(entries: Iterable[EntryInfo], by: Order, limit: int | None) -> list[EntryInfo]:
    """The first `limit` of these entries in an order."""
    first = {
        "age": lambda each: (-each.used_s, each.key),
        "size": lambda each: (-each.size_bytes, each.key),
        "cost": lambda each: (-each.compile_time_s, each.key),
        "hits": lambda each: (-each.hits, -each.used_s, each.key),
    }[by]
    return sorted(entries, key=first)[:limit]


def _heads(files: Iterable[Found], hits: Mapping[str, int]) -> Iterable[EntryInfo]:
    for file in files:
        try:
            header, sizes = _read_head(file.path, file.key)
        except (DamagedEntry, OSError):
            continue
        times = hits.get(file.key[:HITS_DIGITS], 0)
        yield EntryInfo(file.key, header, file.size_bytes, file.used_ns / 1e9, sizes, times)


def _read_head(path: str, key: str) -> tuple[Header, dict[str, int]]:
    fd = os.open(path, _READ)
    try:
        data = os.read(fd, _FIRST_BYTES)
        wanted = head_bytes(data)
        if wanted > len(data):
            data += os.pread(fd, wanted - len(data), len(data))
    finally:
        os.close(fd)
    return decode_head(data, key)
