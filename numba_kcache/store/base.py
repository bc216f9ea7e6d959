"""Verbs that every store has in the same form, on disk and in memory: they follow from reading and walking files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from .entry import ENTRY, MANIFEST, DamagedEntry, StoredEntry, Variant, decode_entry, decode_manifest, encode_entry

if TYPE_CHECKING:  # a hit goes without them
    from .listing import Order
    from .report import EntryInfo, Usage
    from .tree import Found


class Store(ABC):
    """A store of entries and manifests by key."""

    @abstractmethod
    def put_encoded(self, key: str, data: bytes) -> bool:
        """Store the bytes that `encode_entry` made for `key`; the caller has verified them. Whether it was stored."""

    @abstractmethod
    def get_encoded(self, key: str, kind: int = ENTRY) -> bytes | None:
        """The file of an entry or manifest, as it is; it was not verified, and looking does not count as use."""

    @abstractmethod
    def files(self, *kinds: int) -> Iterator[Found]:
        """Every file of these kinds whose name is a key, in no order."""

    def put(self, entry: StoredEntry) -> bool:
        """Store `entry` in place of whatever its key led to; whether it was stored.

        Raises:
            ValueError, TypeError: The entry is not one that can be stored.
        """
        return self.put_encoded(entry.key, encode_entry(entry))

    def peek(self, key: str) -> StoredEntry | None:
        """As `get`, but looking does not count as use, and damage is left where it is."""
        data = self.get_encoded(key)
        try:
            return None if data is None else decode_entry(data, key)
        except DamagedEntry:
            return None

    def peek_manifest(self, family: str) -> list[Variant]:
        """As `get_manifest`, but looking does not count as use, and damage is left where it is."""
        data = self.get_encoded(family, MANIFEST)
        try:
            return [] if data is None else decode_manifest(data, family)
        except DamagedEntry:
            return []

    def manifests(self) -> Iterator[tuple[str, list[Variant]]]:
        """Every family and its variants, in no order; what is damaged is passed over."""
        found = ((file.key, self.peek_manifest(file.key)) for file in self.files(MANIFEST))
        return ((family, variants) for family, variants in found if variants)

    def find(self, prefix: str) -> list[Found]:
        """The files of the entries whose key begins with `prefix`."""
        return [file for file in self.files(ENTRY) if file.key.startswith(prefix)]

    def entries(self) -> Iterator[EntryInfo]:
        """Every entry that can be trusted, in no order; recency is left as it is."""
        from .listing import info_of

        for file in self.files(ENTRY):
            entry = self.peek(file.key)
            if entry is not None:
                yield info_of(file, entry)

    def listing(self, by: Order, limit: int | None, hits: Mapping[str, int]) -> list[EntryInfo]:
        """The first `limit` entries in an order, by their heads alone (store.listing); hits by leading digits."""
        from .listing import listed

        return listed(self.files(ENTRY), self.get_encoded, by=by, limit=limit, hits=hits)

    def size(self) -> Usage:
        """How much there is, counted file by file."""
        from .report import Usage

        files = [(file.size_bytes, file.kind == ENTRY) for file in self.files(ENTRY, MANIFEST)]
        return Usage(sum(size for size, _ in files), sum(is_entry for _, is_entry in files))
