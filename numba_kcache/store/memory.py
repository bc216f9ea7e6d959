"""The store in memory: the interface of the store on disk, without files.

Promise     The promises of store.disk, for the life of one process; limits hold exactly and at once.
Method      A dict from kind and key to the bytes that a file would hold, in order of use. The store is used where no
            directory can be used; tests/property compares the store on disk with it.
"""

from __future__ import annotations

import errno
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from . import Result, Store, renewed_in_children
from .entry import ENTRY, MANIFEST, RECORD, Variant, require_key
from .eviction import LOW_WATER, sum_of, time_before_ns
from .limits import choose
from .locks import KeyLocks
from .report import Problem, Removed
from .tree import Found


class MemoryStore(Store):
    """Entries and manifests of this process. The arguments are those of DiskStore."""

    def __init__(
        self,
        *,
        max_size_bytes: int = 1 << 30,
        max_entries: int = 20_000,
        clock: Callable[[], float] = time.time,
        max_wait_s: float = 120.0,
    ) -> None:
        self.directory, self.place, self.readonly, self.tree = "", "", False, None
        self.max_size_bytes, self.max_entries = max_size_bytes, max_entries
        self._clock, self.max_wait_s = clock, max_wait_s
        self._files: dict[tuple[int, str], tuple[bytes, int]] = {}  # bytes, time of use in nanoseconds
        self.after_fork()
        renewed_in_children.add(self)
        self._locks = KeyLocks(None)
        self.counters = MemoryCounters()

    def after_fork(self) -> None:
        """Replace the lock that another thread of the parent may have held."""
        self._mutex = threading.RLock()

    def private_folder(self, name: str) -> str:
        """Return "": nothing is written to disk."""
        return ""

    def read(self, kind: int, key: str, decode: Callable[[bytes, str], Result]) -> Result | None:
        """Read and decode a file, and renew its time of use."""
        name, now_ns = (kind, require_key(key)), int(self._clock() * 1e9)
        with self._mutex:
            data, _ = self._files.pop(name, (None, 0))
            if data is not None:
                self._files[name] = data, now_ns
        return None if data is None else decode(data, key)

    def put_encoded(self, key: str, data: bytes, kind: int = ENTRY) -> bool:
        """Store bytes of `encode_entry` for `key`, verified by the caller. Returns True if they were stored."""
        if len(data) > self.max_size_bytes:
            return False
        with self._mutex:
            self._files.pop((kind, key), None)
            self._files[kind, key] = data, int(self._clock() * 1e9)
            self._evict(self.max_size_bytes, 0, LOW_WATER)
        return True

    def put_all(self, files: Iterable[tuple[str, bytes]], size_bytes: int) -> None:
        """Store all of these encoded entries, which the caller has verified, or raise OSError and store none."""
        if size_bytes > self.max_size_bytes:
            raise OSError(errno.ENOSPC, f"{size_bytes} bytes are above the limit of {self.max_size_bytes}")
        for key, data in list(files):
            self.put_encoded(key, data)

    def get_encoded(self, key: str, kind: int = ENTRY) -> bytes | None:
        """The bytes of an entry or manifest, without renewing its time of use."""
        return self._files.get((kind, require_key(key)), (None, 0))[0]

    def files(self, *kinds: int) -> Iterator[Found]:
        """Every entry or manifest, in order of use."""
        with self._mutex:
            items = list(self._files.items())  # copied at once: a signal handler may change the dict
        files = [Found(kind, key, None, len(data), used) for (kind, key), (data, used) in items]
        return (file for file in files if file.kind in kinds)

    def add_variant(self, family: str, *variants: Variant) -> bool:
        """Put `variants` before those of `family`, the last one first. Returns True if they were stored."""
        with self._mutex:
            return super().add_variant(family, *variants)

    @property
    def locks(self) -> KeyLocks:
        """The turns of the threads of this process."""
        return self._locks

    def obstacle(self) -> str:
        """Return "": memory can always be written to."""
        return ""

    def prepare(self) -> str:
        """Return "": no directory has to be made."""
        return ""

    def remove(self, key: str) -> bool:
        """Remove the entry of `key`; returns True if there was one."""
        return self._files.pop((ENTRY, require_key(key)), None) is not None

    def set_aside(self, key: str) -> None:
        """Remove the entry of `key`: its bytes are undamaged, but it cannot be used."""
        self.remove(key)

    def prune(self, max_size_bytes: int | None = None, older_than: float | None = None) -> Removed:
        """Remove entries not used for `older_than` seconds, then the least recently used down to the limit."""
        limit = self.max_size_bytes if max_size_bytes is None else max_size_bytes
        return self._evict(limit, time_before_ns(self._clock(), older_than), 1.0)

    def clear(self, _tell: Callable[[], object] | None = None) -> Removed:
        """Remove everything."""
        with self._mutex:
            removed = sum_of(self.files(ENTRY, MANIFEST, RECORD))
            self._files.clear()
        return removed

    def verify(self, *_: object) -> list[Problem]:
        """Return no problems: entries in memory are not checked for damage."""
        return []

    def wait_for_eviction(self) -> None:
        """Return at once: each put evicts what exceeds the limits."""

    def _evict(self, max_size_bytes: int, before_ns: int, low_water: float) -> Removed:
        with self._mutex:
            doomed = choose(
                list(self.files(ENTRY, MANIFEST, RECORD)),
                max_size_bytes=max_size_bytes,
                max_entries=self.max_entries,
                before_ns=before_ns,
                low_water=low_water,
            )
            for file in doomed:
                self._files.pop((file.kind, file.key), None)
        return sum_of(doomed)


class MemoryCounters:
    """The counters of this process, with the methods of CounterFile."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self.after_fork()
        renewed_in_children.add(self)

    def after_fork(self) -> None:
        """Replace the lock that another thread of the parent may have held."""
        self._mutex = threading.RLock()

    def add(self, counts: Mapping[str, float]) -> bool:
        """Add to the counters of these names."""
        with self._mutex:
            self._counts.update(counts)
        return True

    def clear(self) -> bool:
        """Remove all counts."""
        with self._mutex:
            self._counts.clear()
        return True

    def read(self) -> dict[str, float]:
        """The sums of all that was added."""
        with self._mutex:
            return dict(self._counts)
