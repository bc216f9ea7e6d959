"""Look at everything in a tree: list it, count it, read it in full. Nothing is changed.

Promise     Files that vanish meanwhile are passed over; recency stays as it is.
Not here    What is done about damage (store.disk).
"""

from __future__ import annotations

from collections.abc import Iterator

from .entry import (
    ENTRY,
    MANIFEST,
    DamagedEntry,
    check_payloads,
    decode_entry,
    payload_sizes,
)
from .manifest import variants_of
from .report import EntryInfo, Usage
from .tree import Found, Tree


def listed(tree: Tree) -> Iterator[EntryInfo]:
    """Every entry that can be trusted, in no order; of the others `damaged` tells."""
    for file in tree.walk(ENTRY):
        try:
            entry = decode_entry(tree.read(file.path, None), file.key)
        except (DamagedEntry, OSError):
            continue
        yield EntryInfo(file.key, entry.header, file.size_bytes, file.used_ns / 1e9, payload_sizes(entry))


def damaged(tree: Tree) -> Iterator[tuple[Found, str]]:
    """Every file that is not what was stored, payloads that hits do not unpack included, with the reason."""
    for kind in (ENTRY, MANIFEST):
        for file in tree.walk(kind):
            try:
                entry = decode_entry(tree.read(file.path, None), file.key, file.kind)
                if file.kind == MANIFEST:
                    variants_of(entry.header)
                check_payloads(entry)
            except FileNotFoundError:
                continue
            except (ValueError, OSError) as error:
                yield file, str(error)


def counted(tree: Tree, now_s: float) -> Usage:
    """How much there is, file by file."""
    sizes = [(file.size_bytes, file.kind == ENTRY) for kind in (ENTRY, MANIFEST) for file in tree.walk(kind)]
    return Usage(sum(size for size, _ in sizes), sum(is_entry for _, is_entry in sizes), int(now_s), 0)
