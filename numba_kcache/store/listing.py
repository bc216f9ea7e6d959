"""List entries by age, size, cost or hits, reading no more of the files than the list needs; and find damaged files.

Promise     Files are sorted without opening them, except by cost; of the listed files, only the headers are read. Their
            digests are not checked: a list is shown to people, and no code is loaded from it. Files that are not
            entries are skipped, and listing does not renew the time of use.
            `damaged` reads every file in full, changes nothing, and skips files that vanish meanwhile.
Not here    Moving damaged files to the quarantine (store.disk).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Literal

from . import entry as entry_format
from . import open_in
from .compression import check_payloads
from .entry import MANIFEST, RECORD, DamagedEntry, Header, StoredEntry
from .report import EntryInfo
from .tree import FOLDERS, READ, Found, Tree

Order = Literal["age", "size", "cost", "hits"]

ORDERS: tuple[Order, ...] = ("age", "size", "cost", "hits")
"""Most recently used first, largest first, longest compilation first, most hits first."""

HITS_DIGITS = 16
"""Leading digits of a key under which its hits are counted."""

_FIRST_BYTES = 8192


def listed(
    files: Iterable[Found],
    get: Callable[[str], bytes | None],
    *,
    by: Order,
    limit: int | None,
    hits: Mapping[str, int],
) -> list[EntryInfo]:
    """The first `limit` entries in an order.

    Args:
        files: The files found by a walk.
        get: Returns the bytes of an entry of a store in memory, by its key.
        by: The order.
        limit: Number of entries; None for all.
        hits: Hits by the leading digits of the key.
    """
    if by == "cost":  # the cost is in the header: all headers have to be read
        return sorted(_infos(files, get, hits), key=lambda each: (-each.compile_time_s, each.key))[:limit]
    sort_key = {
        "age": lambda file: (-file.used_ns, file.key),
        "size": lambda file: (-file.size_bytes, file.key),
        "hits": lambda file: (-hits.get(file.key[:HITS_DIGITS], 0), -file.used_ns, file.key),
    }[by]
    return list(islice(_infos(sorted(files, key=sort_key), get, hits), limit))


def info_of(file: Found, entry: StoredEntry) -> EntryInfo:
    """The row of a listing for an entry that was already read in full."""
    return _info(file, entry.header, entry_format.payload_records(entry))


def damaged(
    tree: Tree, refusal_of: Callable[[StoredEntry], str], tell: Callable[[], object]
) -> Iterator[tuple[Found, str]]:
    """Yield each damaged or untrusted file, with the reason. All payloads are checked.

    Args:
        tree: Tree of the files.
        refusal_of: Returns the reason not to trust an entry whose digest is right; "" for none.
        tell: Called for each file.
    """
    for file in tree.walk(*FOLDERS):
        tell()
        try:
            data = tree.read(file.kind, file.key)
            if file.kind == MANIFEST:
                entry_format.decode_manifest(data, file.key)
            elif file.kind == RECORD:
                entry_format.decode_record(data, file.key)
            else:
                entry = entry_format.decode_entry(data, file.key)
                check_payloads(entry)
                if refusal := refusal_of(entry):
                    yield file, refusal
        except FileNotFoundError:
            continue
        except (ValueError, OSError, MemoryError) as error:
            yield file, str(error) or repr(error)


def _infos(files: Iterable[Found], get: Callable[[str], bytes | None], hits: Mapping[str, int]) -> Iterator[EntryInfo]:
    for file in files:
        try:
            data = get(file.key) or b"" if file.tree is None else _read_head(file.tree, file)
            header, records = entry_format.decode_head(data, file.key)
        except (DamagedEntry, OSError):
            continue
        yield _info(file, header, records)._replace(hits=hits.get(file.key[:HITS_DIGITS], 0))


def _info(file: Found, header: Header, records: list[entry_format.PayloadRecord]) -> EntryInfo:
    sizes = {each.name: each.size_bytes for each in records}
    return EntryInfo(file.key, header, file.size_bytes, file.used_ns / 1e9, sizes)


def _read_head(tree: Tree, file: Found) -> bytes:
    with tree.opened(FOLDERS[file.kind], file.key[:2]) as folder:
        fd = open_in(folder, file.key[2:], READ)
    try:
        data = os.read(fd, _FIRST_BYTES)
        return data + os.pread(fd, max(0, entry_format.head_bytes(data) - len(data)), len(data))
    finally:
        os.close(fd)
