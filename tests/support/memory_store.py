"""A model of the store on disk: the same answers, from a dict in memory, with limits that hold exactly and at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from numba_kcache.settings import Settings
from numba_kcache.store import MANIFEST, FoundFile, StoredRow, Tree, require_key
from numba_kcache.store.disk import DiskStore
from numba_kcache.store.encoding import encode_manifest, merge
from numba_kcache.store.eviction import LOW_WATER, choose, sum_of
from numba_kcache.store.listing import Usage


class MemoryStore(DiskStore):
    """Entries, manifests and records in a dict from kind and key to bytes and time of use, in order of use."""

    def __init__(self, *, max_size_bytes: int, max_entries: int, clock: Callable[[], float]) -> None:
        super().__init__("", Settings(max_size_bytes=max_size_bytes, max_entries=max_entries), clock=clock)
        self._files: dict[tuple[int, str], tuple[bytes, int]] = {}

    def read(self, kind: int, key: str, decode: Callable[[bytes, str], Any]) -> Any:
        """Read and decode a file, and renew its time of use."""
        data, _ = self._files.pop((kind, key), (None, 0))
        if data is None:
            return None
        self._files[kind, key] = data, int(self.clock() * 1e9)
        return decode(data, key)

    def put_encoded(self, key: str, data: bytes, kind: int = 1) -> bool:
        """Store bytes, and evict what exceeds the limits."""
        if len(data) > self.settings.max_size_bytes:
            return False
        self._files.pop((kind, require_key(key)), None)
        self._files[kind, key] = data, int(self.clock() * 1e9)
        self._evict(self.settings.max_size_bytes, 0, LOW_WATER)
        return True

    def add_rows(self, family: str, *variants: StoredRow) -> bool:
        """Put `variants` before those of `family`."""
        before = self.get_manifest(family)
        after = merge(before, *variants)
        return after == before or self.put_encoded(family, encode_manifest(family, after), MANIFEST)

    def files(self, *kinds: int) -> Iterator[FoundFile]:
        """Every file of these kinds, in order of use."""
        tree = Tree("")
        every = [FoundFile(kind, key, tree, len(data), used) for (kind, key), (data, used) in self._files.items()]
        return (file for file in every if file.kind in kinds)

    def get_encoded(self, key: str, kind: int = 1) -> bytes | None:
        """The bytes of a file; its time of use is not renewed."""
        return self._files.get((kind, key), (None, 0))[0]

    def size(self) -> Usage:
        """Number and bytes of the files."""
        return sum_of(list(self.files(1, 2, 3)))

    def remove(self, key: str) -> bool:
        """Remove the entry of `key`; returns True if there was one."""
        return self._files.pop((1, require_key(key)), None) is not None

    def prune(self, max_size_bytes: int | None = None, older_than: float | None = None) -> Usage:
        """Remove entries not used for `older_than` seconds, then the least recently used down to the limit."""
        before_ns = 0 if older_than is None else int((self.clock() - older_than) * 1e9)
        return self._evict(self.settings.max_size_bytes if max_size_bytes is None else max_size_bytes, before_ns, 1.0)

    def clear(self) -> Usage:
        """Remove everything."""
        removed = sum_of(list(self.files(1, 2, 3)))
        self._files.clear()
        return removed

    def _evict(self, max_size_bytes: int, before_ns: int, low_water: float) -> Usage:
        doomed = choose(
            list(self.files(1, 2, 3)),
            max_size_bytes=max_size_bytes,
            max_entries=self.settings.max_entries,
            before_ns=before_ns,
            low_water=low_water,
        )
        for file in doomed:
            self._files.pop((file.kind, file.key), None)
        return sum_of(doomed)
