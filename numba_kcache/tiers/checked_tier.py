"""One tier, asked in safety: verified on arrival, its failures counted, its writes queued.

Promise     No byte of a tier is believed before it was decoded under the key that was asked for. Whatever a tier does
            is a miss, one event and a count; it never reaches the caller.
Method      A hit is written to the local store as it came, behind the launch, which need not wait for a disk.
Not here    The order of tiers (tiers.chain), and how a tier moves bytes (tiers.directory, tiers.bundle, ...).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import reduce
from typing import TYPE_CHECKING, TypeVar

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

_TRIES = 4
"""To add to a manifest to which others add."""

SETTLE_S = 60.0
"""Longest wait for the local disk."""


class CheckedTier:
    """One tier, asked in safety: what it hands over is verified, what it does wrong is reported and counted.

    Args:
        tier: What moves the bytes.
        local: Where a hit is kept.
        emit: Takes TROUBLE.
        uploads: Queue of what is put in a remote tier.
        keeping: Queue of what was found in one and is to be kept locally.
        trust: Signatures that are demanded and made; None: neither.
    """

    def __init__(
        self,
        tier: Tier,
        local: DiskStore | MemoryStore,
        emit: Emit,
        *,
        uploads: UploadQueue,
        keeping: UploadQueue,
        trust: Trust | None = None,
    ) -> None:
        self.tier, self._local, self._emit, self._uploads, self._keeping = tier, local, emit, uploads, keeping
        self._breaker = Breaker(_breaker_path(tier, local)) if tier.is_remote else None
        self._trust = None if tier.is_vouched else trust
        self._label = _label(tier)
        self._counting = threading.Lock()
        self._counts = dict.fromkeys(("hits", "misses", "errors", "bytes_read", "bytes_written"), 0)
        self._saved: Mapping[str, int] = {}
        self._operations, self._seconds = 0, 0.0
        self._is_reachable: bool | None = None

    @property
    def readonly(self) -> bool:
        """Whether nothing is put here; then any compiler's code will do, and a lesser target's."""
        return self.tier.readonly

    def get(self, key: str) -> StoredEntry | None:
        """The entry of `key`, verified and from now on kept locally; None if there is none that can be trusted."""
        data = self._asked(lambda: self.tier.get_entry(key))
        entry = None if data is None else self._verified(key, data)
        if data is None or entry is None:
            self._count("misses")
            return None
        self._count("hits")
        self._keep(lambda: self._local.put_encoded(key, data), len(data))
        return entry

    def _verified(self, key: str, data: bytes) -> StoredEntry | None:
        """The entry in what arrived, if it is whole and to be believed."""
        self._count("bytes_read", len(data))
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
        self._count("bytes_read", len(data))
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
        self._keeping.flush(SETTLE_S)

    @property
    def takes(self) -> bool:
        """Whether what is put here is of use: where signatures are demanded, not what cannot be signed here."""
        return not self.readonly and (self._trust is None or self._trust.signs or not self._trust.demands)

    def put(self, entry: StoredEntry, data: bytes) -> None:
        """Hand an entry on, to a remote tier when nobody waits for it."""
        record = self._entry_record(entry, data)
        if record is not None:
            self._later(len(data), lambda: self._give(ENTRY, entry.key, data, record))

    def put_now(self, entry: StoredEntry, data: bytes) -> bool:
        """Hand an entry on; whether it was taken."""
        record = self._entry_record(entry, data)
        return record is not None and bool(self._give(ENTRY, entry.key, data, record))

    def _entry_record(self, entry: StoredEntry, data: bytes) -> bytes | None:
        return self._record(ENTRY, entry.key, data, str(entry.header.get("target", "")))

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
            self._count("bytes_written", len(data))
        return is_taken

    def elected(self, key: str) -> AbstractContextManager[Election]:
        """Take or await a key's turn among all nodes; for a tier that holds leases."""
        from .lease import Electoral, elected

        assert isinstance(self.tier, Electoral)
        return elected(self.tier, key, self._asked, self._uploads.add, lambda: self._counts["errors"])

    def report(self, sums: Mapping[str, float] | None = None) -> TierReport:
        """What was seen of it in this process; with `sums` of the counters, the counts of all processes."""
        from .tier import TierReport

        counts = self._counts
        if sums is not None:
            counts = {name: int(sums.get(f"tier/{self._label}/{name}", 0)) for name in counts}
        latency_s = self._seconds / self._operations if self._operations else 0.0
        return TierReport(self.tier.name, self.readonly, latency_s=latency_s, is_reachable=self._is_reachable, **counts)

    def _count(self, name: str, number: int = 1) -> None:
        with self._counting:
            self._counts[name] += number

    def take_unsaved(self) -> dict[str, float]:
        """Return what was counted since the last call, under names of the store's counters."""
        with self._counting:
            before, self._saved = self._saved, dict(self._counts)
        new = {name: value - before.get(name, 0) for name, value in self._saved.items()}
        return {f"tier/{self._label}/{name}": value for name, value in new.items() if value}

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
        if not self._uploads.add(work, size_bytes):
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
        self._count("errors")
        self._emit(Event(EventKind.TROUBLE, {"where": f"tier {self.tier.name}", "error": error}))


def _breaker_path(tier: Tier, local: DiskStore | MemoryStore) -> str | None:
    if not local.directory or local.readonly:
        return None
    return f"{format_directory(local.directory)}/tiers/{_label(tier)}.down"


def _label(tier: Tier) -> str:
    """What a tier is called where its name may not stand."""
    return sha256(tier.name.encode()).hexdigest()[:16]
