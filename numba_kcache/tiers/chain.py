"""The local store with tiers behind it: asked in order, verified on arrival, kept locally from then on.

Promise     The verbs of the local store mean what they meant, but that `get` goes on to the tiers where the local store
            has nothing. No byte of a tier is believed before it was decoded under the key that was asked for. Whatever
            a tier does is a miss, one event and a count; it never reaches the caller.
Method      A hit in a tier is written to the local store as it came, with its variant of the manifest, so that it is
            asked for once; behind the launch, which need not wait for a disk. A put goes to the local store, then to
            every tier that takes it.
Not here    What may stand in for what (resolver), and how a tier moves bytes (tiers.directory, tiers.bundle, ...).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import KCacheError
from ..keys.digests import sha256
from ..model.event import Emit, Event, EventKind
from ..store.entry import (
    ENTRY,
    MANIFEST,
    DamagedEntry,
    StoredEntry,
    Variant,
    check_payloads,
    decode_entry,
    encode_entry,
    merge,
    variants_of,
)
from ..store.tree import format_directory
from .breaker import Breaker
from .signing import Unsigned
from .trust import Trust
from .upload_queue import UploadQueue

if TYPE_CHECKING:  # a warm start goes without them, or takes what it needs of them before
    from ..store.disk import DiskStore
    from ..store.memory import MemoryStore
    from .lease import Election
    from .tier import Tier, TierReport

Result = TypeVar("Result")

_NOWHERE = "0" * 64
_TRIES = 4
"""To add to a manifest to which others add."""

_SETTLE_S = 60.0
"""Longest wait for the local disk."""

_OF_ALL = frozenset(("clear", "entries", "find", "listing", "manifests", "prune", "size", "verify"))
"""Verbs over all that the local store has: what was found in tiers is to be there by then."""


class CheckedTier:
    """One tier, asked in safety: what it says is verified, what it does wrong is told and counted.

    Args:
        tier: What moves the bytes.
        local: Where a hit is kept.
        emit: Takes TROUBLE.
        behind: Where what is put in a remote tier waits.
        keeping: Where what was found in one waits to be kept locally.
        trust: Whom to believe, and how to be believed; None: everybody.
    """

    def __init__(
        self,
        tier: Tier,
        local: DiskStore | MemoryStore,
        emit: Emit,
        *,
        behind: UploadQueue,
        keeping: UploadQueue,
        trust: Trust | None = None,
    ) -> None:
        self.tier, self._local, self._emit, self._behind, self._keeping = tier, local, emit, behind, keeping
        self._breaker = Breaker(_breaker_path(tier, local)) if tier.is_remote else None
        self._trust = None if tier.is_vouched else trust
        self._counting = threading.Lock()
        self._hits = self._misses = self._errors = 0
        self._bytes_read = self._bytes_written = self._operations = 0
        self._seconds = 0.0
        self._is_reachable: bool | None = None
        self._saved: Mapping[str, int] = {}

    @property
    def readonly(self) -> bool:
        """Whether nothing is put here; then any compiler's code will do, and a lesser target's."""
        return self.tier.readonly

    def get(self, key: str) -> StoredEntry | None:
        """The entry of `key`, verified and from now on kept locally; None if there is none that can be trusted."""
        data = self._asked(lambda: self.tier.get_entry(key))
        entry = None if data is None else self._verified(key, data)
        if data is None or entry is None:
            self._misses += 1
            return None
        self._hits += 1
        self._keep(lambda: self._local.put_encoded(key, data), len(data))
        return entry

    def _verified(self, key: str, data: bytes) -> StoredEntry | None:
        """The entry in what arrived, if it is whole and to be believed."""
        self._bytes_read += len(data)
        try:
            target = self._signed_for(ENTRY, key, data)
            entry = decode_entry(data, key)
            check_payloads(entry)
            if target is not None and entry.header.get("target") != target:
                raise Unsigned(f"it is not for {target}, for which it was signed")
            return entry
        except (DamagedEntry, Unsigned, KCacheError) as error:
            how = "arrived damaged" if isinstance(error, DamagedEntry) else "is not to be believed"
            self._trouble(f"the entry {key} {how}: {error}")
            return None

    def _signed_for(self, kind: int, key: str, data: bytes) -> str | None:
        """The target for which these bytes are signed; None where nothing has to be.

        Raises:
            Unsigned, ToolchainMissingError: They are not, or it cannot be known.
        """
        if self._trust is None or not self._trust.demands:
            return None
        record = self._asked(lambda: self.tier.get_signature(kind, key))
        return self._trust.check(kind, key, data, record or b"")

    def peek(self, key: str) -> StoredEntry | None:
        """As `get`, but it is not kept locally and counts as no hit."""
        data = self._asked(lambda: self.tier.get_entry(key))
        return None if data is None else self._verified(key, data)

    def get_manifest(self, family: str) -> list[Variant]:
        """The variants of `family`, newest first; none if there is no manifest that can be trusted."""
        return self._variants(family, self._asked(lambda: self.tier.get_manifest(family)))

    def _variants(self, family: str, data: bytes | None) -> list[Variant]:
        if data is None:
            return []
        self._bytes_read += len(data)
        try:
            self._signed_for(MANIFEST, family, data)
            return variants_of(decode_entry(data, family, MANIFEST).header)
        except (ValueError, KCacheError) as error:
            how = "is not to be believed" if isinstance(error, (Unsigned, KCacheError)) else "arrived damaged"
            self._trouble(f"the manifest {family} {how}: {error}")
            return []

    def keep_variant(self, family: str, variant: Variant) -> None:
        """Keep the variant that a hit came from locally, so that the next process need not ask."""
        self._keep(lambda: self._local.add_variant(family, variant), 0)

    def _keep(self, work: Callable[[], object], size_bytes: int) -> None:
        """Have what a launch found kept, behind the launch where there is room."""
        if self._local.readonly:
            return
        if not self._keeping.add(work, size_bytes):
            work()

    def settle(self) -> None:
        """Return when all that was found is kept."""
        self._keeping.flush(_SETTLE_S)

    @property
    def takes(self) -> bool:
        """Whether what is put here is of use: where signatures are demanded, not what cannot be signed here."""
        return not self.readonly and (self._trust is None or self._trust.signs or not self._trust.demands)

    def put(self, entry: StoredEntry, data: bytes) -> None:
        """Hand an entry on, to a remote tier when nobody waits for it."""
        target = str(entry.header.get("target", ""))
        record = self._record(ENTRY, entry.key, data, target)
        if record is not None:
            self._later(len(data), lambda: self._give(ENTRY, entry.key, data, record))

    def put_now(self, entry: StoredEntry, data: bytes) -> bool:
        """Hand an entry on; whether it was taken."""
        record = self._record(ENTRY, entry.key, data, str(entry.header.get("target", "")))
        return record is not None and bool(self._give(ENTRY, entry.key, data, record))

    def add_variant(self, family: str, *variants: Variant) -> None:
        """As the local store's."""
        self._later(0, lambda: self.add_variant_now(family, *variants))

    def add_variant_now(self, family: str, *variants: Variant) -> None:
        """As `add_variant`, before it returns. What is lost when others write all the time is a hit, later."""
        for _ in range(_TRIES):
            there = self._asked(lambda: self.tier.get_manifest(family))
            before = self._vouched_variants(family, there)
            after = reduce(merge, variants, before)
            if after == before:
                return
            data = encode_entry(StoredEntry(family, {"variants": after}, {}), MANIFEST)
            record = self._record(MANIFEST, family, data, "")
            if record is None or self._give(MANIFEST, family, data, record, there) is not False:
                return

    def _vouched_variants(self, family: str, data: bytes | None) -> list[Variant]:
        """The variants that are there, those for which nobody trusted vouches left out if we are to sign for them."""
        if self._trust is None or self._trust.demands or not self._trust.signs:
            return self._variants(family, data)
        record = self._asked(lambda: self.tier.get_signature(MANIFEST, family)) or b""
        try:
            is_own = self._trust.is_own(MANIFEST, family, data or b"", record)
            return variants_of(decode_entry(data or b"", family, MANIFEST).header) if is_own else []
        except (ValueError, KCacheError):
            return []

    def _record(self, kind: int, key: str, data: bytes, target: str) -> bytes | None:
        """What stands beside a file; None where it should be signed and cannot be, which is told."""
        try:
            return b"" if self._trust is None else self._trust.record(kind, key, data, target)
        except KCacheError as error:
            self._trouble(str(error))
            return None

    def _give(self, kind: int, key: str, data: bytes, record: bytes, before: bytes | None = None) -> bool | None:
        """Whether it was taken; None where that failed, False where another manifest than `before` stands there."""

        def work() -> bool:
            if record and before is None:
                self.tier.put_signature(kind, key, record)  # first: a file without one would be an error elsewhere
            if kind == ENTRY:
                self.tier.put_entry(key, data)
            elif not self.tier.put_manifest(key, data, before):
                return False
            elif record and before is not None:
                self.tier.put_signature(kind, key, record)  # then: who lost leaves the other's as it is
            return True

        is_taken = self._asked(work, is_awaited=False)
        if is_taken:
            with self._counting:
                self._bytes_written += len(data)
        return is_taken

    def elected(self, key: str) -> AbstractContextManager[Election]:
        """Take or await a key's turn among all nodes; for a tier that holds leases."""
        from .lease import Electoral, elected

        assert isinstance(self.tier, Electoral)
        return elected(self.tier, key, self._asked, self._behind.add, lambda: self._errors)

    def report(self, sums: Mapping[str, float] | None = None) -> TierReport:
        """What was seen of it in this process; with `sums` of the counters, the counts of all processes."""
        from .tier import TierReport

        counts = self._counts()
        if sums is not None:
            label = _label(self.tier)
            counts = {name: int(sums.get(f"tier/{label}/{name}", 0)) for name in counts}
        latency_s = self._seconds / self._operations if self._operations else 0.0
        return TierReport(self.tier.name, self.readonly, latency_s=latency_s, is_reachable=self._is_reachable, **counts)

    def _counts(self) -> dict[str, int]:
        return {
            "hits": self._hits, "misses": self._misses, "errors": self._errors,
            "bytes_read": self._bytes_read, "bytes_written": self._bytes_written,
        }  # fmt: skip

    def take_unsaved(self) -> dict[str, float]:
        """What was counted since the last call, under names of the store's counters."""
        with self._counting:
            before, self._saved = self._saved, self._counts()
            new = {name: value - before.get(name, 0) for name, value in self._saved.items()}
        label = _label(self.tier)
        return {f"tier/{label}/{name}": value for name, value in new.items() if value}

    def close(self) -> None:
        """Let the tier go."""
        self._asked(self.tier.close)

    def _later(self, size_bytes: int, work: Callable[[], object]) -> None:
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

    def _asked(self, operation: Callable[[], Result], *, is_awaited: bool = True) -> Result | None:
        if self._breaker is not None and not self._breaker.allows(is_awaited=is_awaited):
            self._is_reachable = False
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
            if self._breaker is not None:
                self._breaker.ended()
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
    return f"{format_directory(local.directory)}/tiers/{_label(tier)}.down"


def _label(tier: Tier) -> str:
    """What a tier is called where its name may not stand."""
    return sha256(tier.name.encode()).hexdigest()[:16]


class Chain:
    """The local store and what is behind it. What is not here is the local store's.

    Args:
        local: Where everything is kept.
        tiers: In the order in which they are asked.
        emit: Takes TROUBLE.
        trust: Whom to believe, and how to be believed; None: everybody.
    """

    def __init__(
        self, local: DiskStore | MemoryStore, tiers: Sequence[Tier], emit: Emit, trust: Trust | None = None
    ) -> None:
        self.local, self._emit, self._trust = local, emit, trust
        self._behind, self._keeping = UploadQueue(), UploadQueue()
        self.tiers = tuple(self.checked(tier) for tier in tiers)

    def checked(self, tier: Tier) -> CheckedTier:
        """A tier, to be asked in safety."""
        return CheckedTier(tier, self.local, self._emit, behind=self._behind, keeping=self._keeping, trust=self._trust)

    def mount(self, tier: Tier) -> None:
        """Ask one more tier, before the others, in place of one of the same name."""
        others = (each for each in self.tiers if each.tier.name != tier.name)
        self.tiers = (self.checked(tier), *others)

    def __getattr__(self, name: str) -> Any:
        if name in _OF_ALL:
            self.settle()
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
            tier.put(entry, data)
        return stored

    def add_variant(self, family: str, *variants: Variant) -> bool:
        """Put `variants` before those of `family`, locally and in the tiers; whether they are there locally."""
        stored = self.local.add_variant(family, *variants)
        for tier in self._writable():
            tier.add_variant(family, *variants)
        return stored

    def elected(self, key: str) -> AbstractContextManager[Election]:
        """Take or await a key's turn among all nodes, in the first tier that holds leases; else it is everybody's."""
        from .lease import NO_ELECTION, Electoral

        electoral = (tier for tier in self._writable() if isinstance(tier.tier, Electoral))
        first = next(electoral, None)
        return nullcontext(NO_ELECTION) if first is None else first.elected(key)

    def ask(self) -> None:
        """Ask every tier for something that is not there: whether it answers, and how fast."""
        for tier in self.tiers:
            tier.peek(_NOWHERE)

    def reports(self, sums: Mapping[str, float] | None = None) -> tuple[TierReport, ...]:
        """What was seen of each tier in this process; with `sums` of the counters, the counts of all processes."""
        return tuple(tier.report(sums) for tier in self.tiers)

    def take_unsaved(self) -> dict[str, float]:
        """What was counted of the tiers since the last call, under names of the store's counters."""
        return {name: value for tier in self.tiers for name, value in tier.take_unsaved().items()}

    def flush(self, wait_s: float) -> bool:
        """Wait until everything was handed on and kept, or for `wait_s` each; whether it was."""
        return self._behind.flush(wait_s) and self._keeping.flush(wait_s)

    def settle(self) -> None:
        """Return when all that was found in tiers is kept locally."""
        self._keeping.flush(_SETTLE_S)

    def close(self) -> None:
        """Let every tier go."""
        for tier in self.tiers:
            tier.close()

    def _writable(self) -> list[CheckedTier]:
        return [] if self.local.readonly else [tier for tier in self.tiers if tier.takes]
