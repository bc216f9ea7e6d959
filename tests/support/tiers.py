"""A tier in memory, which can be made to fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from numba_kcache.model import Emit
from numba_kcache.store import MANIFEST, StoredEntry, StoredRow
from numba_kcache.store.disk import DiskStore
from numba_kcache.store.encoding import encode_entry, encode_manifest
from numba_kcache.tiers import chain
from numba_kcache.tiers.trust import SIGNATURE, Trust


class Chain(chain.Chain):
    """Tiers behind a local store, looked up in the order in which the engine looks them up."""

    def __init__(self, local: DiskStore, tiers: Sequence[Any], emit: Emit, trust: Trust | None = None) -> None:
        super().__init__(local, tiers, emit, trust or Trust(), lambda entry: None, Counter())

    def get(self, key: str) -> StoredEntry | None:
        entry = self.local.get(key)
        for tier in self.tiers if entry is None else ():
            entry = tier.get(key)
            if entry is not None:
                break
        return entry

    def flush(self, wait_s: float) -> bool:
        return self.uploads.flush(wait_s)


class Time:
    """A monotonic clock that a pause moves on.

    Attributes:
        meanwhile: Called in each pause.
    """

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.now_s, self.meanwhile = 1000.0, meanwhile

    def __call__(self) -> float:
        return self.now_s

    def pause(self, seconds: float) -> None:
        self.now_s += seconds
        self.meanwhile()


class MemoryTier:
    """A tier whose entries are kept in memory.

    Attributes:
        asked: Every operation with its key, in order.
        error: An exception that every operation raises; None for none.
    """

    def __init__(self, name: str = "memory", *, readonly: bool = False, is_remote: bool = False) -> None:
        self.name, self.readonly, self.is_remote = name, readonly, is_remote
        self.is_trusted = False
        self.entries: dict[str, bytes] = {}
        self.manifests: dict[str, bytes] = {}
        self.signatures: dict[tuple[int, str], bytes] = {}
        self.asked: list[tuple[str, str]] = []
        self.error: Exception | None = None

    def with_entry(self, entry: StoredEntry) -> MemoryTier:
        self.entries[entry.key] = encode_entry(entry)
        return self

    def with_rows(self, family: str, *variants: StoredRow) -> MemoryTier:
        self.manifests[family] = encode_manifest(family, list(variants))
        return self

    def targets(self) -> tuple[str, ...]:
        return ()

    def get(self, kind: int, key: str) -> bytes | None:
        self._operation("get", key)
        if kind > SIGNATURE:
            return self.signatures.get((kind - SIGNATURE, key))
        return (self.manifests if kind == MANIFEST else self.entries).get(key)

    def put(self, kind: int, key: str, data: bytes) -> None:
        self._operation("put", key)
        if kind > SIGNATURE:
            self.signatures[kind - SIGNATURE, key] = data
        else:
            (self.manifests if kind == MANIFEST else self.entries)[key] = data

    def keys(self, kind: int) -> list[str]:
        return list(self.manifests if kind == MANIFEST else self.entries)

    def _operation(self, name: str, key: str) -> None:
        self.asked.append((name, key))
        if self.error is not None:
            raise self.error
