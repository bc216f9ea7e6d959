"""The local store with tiers behind it: asked in order, verified on arrival, kept locally from then on.

Promise     The verbs of the local store mean what they meant, but that `get` goes on to the tiers where the local store
            has nothing. No byte of a tier is believed before it was decoded under the key that was asked for. Whatever
            a tier does is a miss, one event and a count; it never reaches the caller.
Method      A hit in a tier is written to the local store as it came, with its variant of the manifest, so that it is
            asked for once. A put goes to the local store, then to every tier that takes it.
Not here    What may stand in for what (resolver), and how a tier moves bytes (tiers.directory, tiers.bundle, ...).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import reduce
from typing import Any, TypeVar

from ..keys.digests import sha256
from ..model.event import Emit, Event, EventKind
from ..store.directory import format_directory
from ..store.disk import DiskStore
from ..store.entry import MANIFEST, DamagedEntry, StoredEntry, check_payloads, decode_entry, encode_entry
from ..store.manifest import Variant, merge, variants_of
from ..store.memory import MemoryStore
from .behind import WriteBehind
from .breaker import Breaker
from .lease import NO_ELECTION, Election, Electoral, elected
from .tier import Tier, TierReport

Result = TypeVar("Result")


class CheckedTier:
    """One tier, asked in safety: what it says is verified, what it does wrong is told and counted.

    Args:
        tier: What moves the bytes.
        local: Where a hit is kept.
        emit: Takes TROUBLE.
        behind: Where what is put in a remote tier waits.
    """

    def __init__(self, tier: Tier, local: DiskStore | MemoryStore, emit: Emit, behind: WriteBehind) -> None:
        self.tier, self._local, self._emit, self._behind = tier, local, emit, behind
        self._breaker = Breaker(_breaker_path(tier, local)) if tier.is_remote else None
        self._counting = threading.Lock()
        self._hits = self._misses = self._errors = 0
        self._bytes_read = self._bytes_written = self._operations = 0
        self._seconds = 0.0
        self._is_reachable: bool | None = None

    @property
    def readonly(self) -> bool:
        """Whether nothing is put here; then any compiler's code will do, and a lesser target's."""
        return self.tier.readonly

    def get(self, key: str) -> StoredEntry | None:
        """The entry of `key`, verified and from now on kept locally; None if there is none that can be trusted."""
        data = self._asked(lambda: self.tier.get_entry(key))
        if data is None:
            self._misses += 1
            return None
        self._bytes_read += len(data)
        try:
            entry = decode_entry(data, key)
            check_payloads(entry)
        except DamagedEntry as error:
            self._trouble(f"the entry {key} arrived damaged: {error}")
            self._misses += 1
            return None
        self._hits += 1
        self._local.put_encoded(key, data)
        return entry

    def peek(self, key: str) -> StoredEntry | None:
        """As `get`, but it is not kept locally and counts as no hit."""
        data = self._asked(lambda: self.tier.get_entry(key))
        try:
            return None if data is None else decode_entry(data, key)
        except DamagedEntry:
            return None

    def get_manifest(self, family: str) -> list[Variant]:
        """The variants of `family`, newest first; none if there is no manifest that can be trusted."""
        data = self._asked(lambda: self.tier.get_manifest(family))
        if data is None:
            return []
        self._bytes_read += len(data)
        try:
            return variants_of(decode_entry(data, family, MANIFEST).header)
        except ValueError as error:
            self._trouble(f"the manifest {family} arrived damaged: {error}")
            return []

    def keep_variant(self, family: str, variant: Variant) -> None:
        """Keep the variant that a hit came from locally, so that the next process need not ask."""
        self._local.add_variant(family, variant)

    def put(self, key: str, data: bytes) -> None:
        """Hand an entry on, to a remote tier when nobody waits for it."""
        self._later(len(data), lambda: self._given(len(data), lambda: self.tier.put_entry(key, data)))

    def add_variant(self, family: str, *variants: Variant) -> None:
        """As the local store's. Of two that do so at once one may be lost: a miss, later."""
        self._later(0, lambda: self._add_variant(family, *variants))

    def _add_variant(self, family: str, *variants: Variant) -> None:
        before = self.get_manifest(family)
        after = reduce(merge, variants, before)
        if after != before:
            data = encode_entry(StoredEntry(family, {"variants": after}, {}), MANIFEST)
            self._given(len(data), lambda: self.tier.put_manifest(family, data))

    def elected(self, key: str) -> AbstractContextManager[Election]:
        """Take or await a key's turn among all nodes; for a tier that holds leases."""
        assert isinstance(self.tier, Electoral)
        return elected(self.tier, key, self._asked, self._behind.add, lambda: self._errors)

    def report(self) -> TierReport:
        """What was seen of it in this process."""
        latency_s = self._seconds / self._operations if self._operations else 0.0
        return TierReport(
            self.tier.name, self.readonly, self._hits, self._misses, self._errors,
            self._bytes_read, self._bytes_written, latency_s, self._is_reachable,
        )  # fmt: skip

    def close(self) -> None:
        """Let the tier go."""
        self._asked(self.tier.close)

    def _later(self, size_bytes: int, work: Callable[[], None]) -> None:
        if self._breaker is None:
            work()
            return
        try:
            self.tier.ready()
        except Exception as error:  # whatever an import does
            self._trouble(str(error))
            return
        if not self._behind.add(work, size_bytes):
            self._trouble("too much waits to be handed on: an entry is kept locally alone")

    def _given(self, size_bytes: int, put: Callable[[], object]) -> None:
        if self._asked(lambda: put() or True):
            with self._counting:
                self._bytes_written += size_bytes

    def _asked(self, operation: Callable[[], Result]) -> Result | None:
        if self._breaker is not None and not self._breaker.allows():
            return None  # the failure that it stands for was told and counted
        start = time.perf_counter()
        try:
            result = operation()
            self._is_reachable = True
            if self._breaker is not None:
                self._breaker.answered()
            return result
        except Exception as error:  # whatever a server, a client library or a disk does, a launch goes on without
            self._is_reachable = False
            if self._breaker is not None and isinstance(error, OSError):
                self._breaker.failed()
            self._trouble(str(error) or type(error).__name__)
            return None
        finally:
            with self._counting:
                self._operations += 1
                self._seconds += time.perf_counter() - start

    def _trouble(self, error: str) -> None:
        with self._counting:
            self._errors += 1
        self._emit(Event(EventKind.TROUBLE, {"where": f"tier {self.tier.name}", "error": error}))


def _breaker_path(tier: Tier, local: DiskStore | MemoryStore) -> str | None:
    if not local.directory or local.readonly:
        return None
    return f"{format_directory(local.directory)}/tiers/{sha256(tier.name.encode()).hexdigest()[:16]}.down"


class Chain:
    """The local store and what is behind it. What is not here is the local store's.

    Args:
        local: Where everything is kept.
        tiers: In the order in which they are asked.
        emit: Takes TROUBLE.
    """

    def __init__(self, local: DiskStore | MemoryStore, tiers: Sequence[Tier], emit: Emit) -> None:
        self.local, self._emit = local, emit
        self._behind = WriteBehind()
        self.tiers = tuple(self._checked(tier) for tier in tiers)

    def _checked(self, tier: Tier) -> CheckedTier:
        return CheckedTier(tier, self.local, self._emit, self._behind)

    def mount(self, tier: Tier) -> None:
        """Ask one more tier, before the others, in place of one of the same name."""
        others = (each for each in self.tiers if each.tier.name != tier.name)
        self.tiers = (self._checked(tier), *others)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.local, name)

    def get(self, key: str) -> StoredEntry | None:
        """The entry of `key` from the local store, else from the first tier that has it; None if none does."""
        entry = self.local.get(key)
        for tier in self.tiers if entry is None else ():
            entry = tier.get(key)
            if entry is not None:
                break
        return entry

    def put(self, entry: StoredEntry) -> bool:
        """Store `entry` locally and hand it on; whether it was stored locally."""
        data = encode_entry(entry)
        stored = self.local.put_encoded(entry.key, data)
        for tier in self._writable():
            tier.put(entry.key, data)
        return stored

    def add_variant(self, family: str, *variants: Variant) -> bool:
        """Put `variants` before those of `family`, locally and in the tiers; whether they are there locally."""
        stored = self.local.add_variant(family, *variants)
        for tier in self._writable():
            tier.add_variant(family, *variants)
        return stored

    def elected(self, key: str) -> AbstractContextManager[Election]:
        """Take or await a key's turn among all nodes, in the first tier that holds leases; else it is everybody's."""
        electoral = (tier for tier in self._writable() if isinstance(tier.tier, Electoral))
        first = next(electoral, None)
        return nullcontext(NO_ELECTION) if first is None else first.elected(key)

    def reports(self) -> tuple[TierReport, ...]:
        """What was seen of each tier in this process."""
        return tuple(tier.report() for tier in self.tiers)

    def flush(self, wait_s: float) -> bool:
        """Wait until everything was handed on, or for `wait_s`; whether it was."""
        return self._behind.flush(wait_s)

    def close(self) -> None:
        """Let every tier go."""
        for tier in self.tiers:
            tier.close()

    def _writable(self) -> list[CheckedTier]:
        return [] if self.local.readonly else [tier for tier in self.tiers if not tier.readonly]
