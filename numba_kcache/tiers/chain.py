"""The local store with tiers behind it, in order, and each tier with its failures contained.

Promise     Whatever a tier does, the local store is written as without it. No bytes of a tier are used before they are
            decoded and verified under the requested key. Every failure of a tier is a miss, one event and a count; no
            exception reaches the caller.
Method      A put goes to the local store, then to every tier that accepts entries, by a queue if that is remote. A hit
            is written to the local store unchanged. One of the tiers has leases.
Not here    Look-ups (engine), and how a tier moves bytes (tiers.directory, tiers.bundle, ...).
"""

from __future__ import annotations

import functools
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, TypeVar

from .. import store as entry_format
from ..errors import KCacheError, why_of
from ..keys import sha256
from ..model import Emit, tell_wait, trouble
from ..store import ENTRY, MANIFEST, StoredEntry, StoredRow, renewed_in_children
from ..store.encoding import check_payloads, encode_entry, encode_manifest, merge
from .breaker import Breaker
from .tier import Tier, TierReport
from .trust import SIGNATURE, SignedOther, Trust, Unsigned
from .upload_queue import HURRIED_S, UploadQueue

if TYPE_CHECKING:  # a warm start does not import these modules
    from ..store.disk import Check, DiskStore
    from .lease import Election, Elections

Result = TypeVar("Result")

_NOWHERE = "0" * 64


class Chain:
    """The local store with its tiers.

    Args:
        local: The local store.
        tiers: In the order in which they are tried.
        emit: Called with events of the kinds TROUBLE and WAITED.
        trust: Signatures that are required and made.
        check: Raises ValueError for an entry not to accept although its digest and signature are right: its meaning,
            which no module of tiers knows, is wrong.
        counts: The counts of the tiers in this process, under names of the store's counters, are added to these.

    Attributes:
        uploads: Queue of writes to remote or slow tiers.
    """

    def __init__(
        self, local: DiskStore, tiers: Sequence[Tier], emit: Emit, trust: Trust, check: Check, counts: Counter[str]
    ) -> None:
        self.local, self.emit, self.trust, self.check, self.counts = local, emit, trust, check, counts
        self.uploads = UploadQueue(lambda waited_s: tell_wait(emit, "writes to tiers", waited_s))
        self.tiers = tuple(CheckedTier(tier, self) for tier in tiers)

    def mount(self, tier: Tier) -> None:
        """Add a tier before the others, or replace the one of the same name."""
        others = (each for each in self.tiers if each.tier.name != tier.name)
        self.tiers = (CheckedTier(tier, self), *others)

    def put(self, entry: StoredEntry) -> bool:
        """Store `entry` locally and in the tiers. Returns True if it was stored locally."""
        data = encode_entry(entry)
        stored = self.local.put_encoded(entry.key, data)
        for tier in self._writable():
            tier.later(len(data), functools.partial(tier.put, entry, data))
        return stored

    def add_rows(self, family: str, *rows: StoredRow) -> bool:
        """Put `rows` before those of `family`, locally and in the tiers. Returns True if stored locally."""
        stored = self.local.add_rows(family, *rows)
        for tier in self._writable():
            tier.later(0, functools.partial(tier.add_rows, family, *rows))
        return stored

    def elected(self, key: str, *, waits: bool = True) -> AbstractContextManager[Election]:
        """Take a key's lease in the first tier that has leases, or wait for the node that holds it.

        Args:
            key: Key of the entry to build.
            waits: Whether to wait; else an election that another node has won is lost.

        Returns:
            A context with the outcome; `NO_ELECTION`, after which the caller builds, if no tier has leases.
        """
        from .lease import NO_ELECTION

        for tier in self._writable():
            if hasattr(tier.tier, "claim"):
                return tier.elected(key, waits=waits)
        return nullcontext(NO_ELECTION)

    def ask(self) -> None:
        """Ask every tier for a key that does not exist, to measure whether and how fast it answers."""
        for tier in self.tiers:
            tier.peek(_NOWHERE)

    def reports(self, sums: Mapping[str, float] | None = None) -> tuple[TierReport, ...]:
        """Reports of each tier in this process; with `sums` of the counters, the counts of all processes."""
        return tuple(tier.report(sums) for tier in self.tiers)

    def _writable(self) -> list[CheckedTier]:
        return [] if self.local.readonly else [tier for tier in self.tiers if tier.takes]


_COUNTED = ("hits", "misses", "errors", "bytes_read", "bytes_written")
WORTH_S, _NEAR_WORTH_S, _MOST_WORTH_S = 1.0, 0.25, 10.0
"""Seconds that a hit may take, for it saves a compile: at least (from a server; from a directory, which is near), and
at most if the entry records a longer compile."""


class CheckedTier:
    """One tier: its bytes are verified, its failures reported and counted.

    Args:
        tier: The tier, which transfers the bytes.
        chain: The chain that it is in.

    Attributes:
        is_patient: Take whatever time the tier needs, for a call whose purpose is to read it.
        readonly: Nothing is put here. Code of any compiler, and for a lower target, is accepted from it.
        takes: Whether entries can be put here: no if the tier is read-only, or if signatures are required and this
            process cannot sign.
    """

    def __init__(self, tier: Tier, chain: Chain) -> None:
        self.tier, self._local, self._emit, self.uploads = tier, chain.local, chain.emit, chain.uploads
        self._check, self._counts = chain.check, chain.counts
        self._trust = Trust() if tier.is_trusted else chain.trust
        self._is_vouched = chain.trust.demands  # by a signature, or by the user: `?unsigned=1`
        self.readonly = tier.readonly
        self.takes = not tier.readonly and (self._trust.signs or not self._trust.demands)
        name = tier.name.encode("utf-8", "surrogatepass")  # a path need not be UTF-8
        self._label = sha256(name).hexdigest()[:16]  # in names of files and counters
        self._breaker = Breaker()
        self.is_patient = False
        self._elections: Elections | None = None
        self.after_fork()
        renewed_in_children.add(self)
        self._operations, self._seconds = 0, 0.0
        self._is_reachable: bool | None = None

    def after_fork(self) -> None:
        """Replace the locks in a forked child: threads that exist only in the parent may have held them."""
        self._counting = threading.RLock()

    # -- reading -----------------------------------------------------------------------------------

    def get(self, key: str) -> StoredEntry | None:
        """The entry of `key`, verified, which is then stored locally; None if there is none that can be trusted."""
        data, entry = self._entry(key)
        self._count("misses" if entry is None else "hits")
        if data is not None and entry is not None:
            self._local.put_encoded(key, data)
        return entry

    def peek(self, key: str) -> StoredEntry | None:
        """As `get`, but the entry is not stored locally and not counted as a hit."""
        return self._entry(key)[1]

    def _entry(self, key: str) -> tuple[bytes | None, StoredEntry | None]:
        start_s = time.perf_counter()
        data = self._read(ENTRY, key)
        entry = None if data is None else self._verified(ENTRY, key, data, entry_format.decode_entry)
        worth_s = 0.0
        if entry is not None:
            compile_s = entry.header.get("compile_time_s")
            least_s = WORTH_S if self.tier.is_remote else _NEAR_WORTH_S
            worth_s = max(least_s, min(compile_s, _MOST_WORTH_S)) if isinstance(compile_s, float) else least_s
        self.charge(start_s, worth_s=worth_s)
        return data, entry

    def get_manifest(self, family: str) -> list[StoredRow]:
        """The rows of `family`, newest first; none if there is no manifest that can be trusted."""
        start_s = time.perf_counter()
        rows = self._rows(family, self._read(MANIFEST, family))
        self.charge(start_s, worth_s=WORTH_S if rows else 0.0)
        return rows

    def _rows(self, family: str, data: bytes | None) -> list[StoredRow]:
        return (data and self._verified(MANIFEST, family, data, entry_format.decode_manifest)) or []

    def _read(self, kind: int, key: str, *, is_awaited: bool = True) -> bytes | None:
        return self.asked(lambda: self.tier.get(kind, key), is_awaited=is_awaited)

    def _verified(self, kind: int, key: str, data: bytes, decode: Callable[[bytes, str], Result]) -> Result | None:
        """Decode the bytes that arrived; report them and return None if they are damaged or not trusted."""
        self._count("bytes_read", len(data))
        try:
            target = None
            if self._trust.demands:
                target = self._trust.check_file(kind, key, data, self._read(kind + SIGNATURE, key) or b"")
            found = decode(data, key)
            if isinstance(found, StoredEntry):
                check_payloads(found)
                if target is not None and found.header.get("target") != target:
                    raise Unsigned(f"it is not for {target}, for which it was signed")
                self._check(found)
            if not self._is_vouched:
                self._local.tree.takes_unsigned = True
            return found
        except Exception as error:  # bytes of a tier may raise anything, also MemoryError: each is a miss
            if kind == MANIFEST and isinstance(error, SignedOther):
                return None  # its writer has replaced the signature, and the manifest not yet
            is_trusted = not isinstance(error, (Unsigned, KCacheError))
            how = "arrived damaged" if is_trusted else "is not trusted"
            self._trouble(f"the {'entry' if kind == ENTRY else 'manifest'} {key} {how}: {why_of(error)}")
            return None

    # -- writing -----------------------------------------------------------------------------------

    def put(self, entry: StoredEntry, data: bytes) -> bool:
        """Put an entry into the tier. Returns True if it was accepted."""
        return self._give(ENTRY, entry.key, data, str(entry.header.get("target", "")))

    def add_rows(self, family: str, *rows: StoredRow) -> None:
        """Add rows to the manifest of `family`.

        Of two nodes that do so at the same moment, the later one wins, and the other's row is added again at its next
        compile.
        """
        before = self._rows(family, self._read(MANIFEST, family, is_awaited=False))
        after = merge(before, *rows)
        if after != before:
            self._give(MANIFEST, family, encode_manifest(family, after), "")

    def _give(self, kind: int, key: str, data: bytes, target: str) -> bool:
        """Write a file after its signature record, without which readers report it. Returns True if it was accepted."""

        def work() -> bool:
            record = self._trust.record(kind, key, data, target)
            if record:
                self.tier.put(kind + SIGNATURE, key, record)
            self.tier.put(kind, key, data)
            return True

        is_taken = self.asked(work, is_awaited=False, opens=self.tier.is_remote)  # a full share can still be read
        if is_taken:
            self._count("bytes_written", len(data))
        return bool(is_taken)

    def later(self, size_bytes: int, work: Callable[[], object]) -> None:
        """Write to a tier: now to one that is near and fast, otherwise in the background."""
        start_s = time.perf_counter()
        if not self.tier.is_remote and self._breaker.left_s() > 0:
            work()
            self.charge(start_s)
            return
        if not self.uploads.add(work, size_bytes):
            self._trouble("the upload queue is full: an entry is stored only locally")

    # -- asking ------------------------------------------------------------------------------------

    def elected(self, key: str, *, waits: bool) -> AbstractContextManager[Election]:
        """Take a key's lease among all nodes, or wait for it; for a tier with leases."""
        from .lease import Elections

        if self._elections is None:
            self._elections = Elections(self)
        return self._elections.elected(key, waits=waits)

    def timed(self, operation: Callable[[], Result]) -> Result | None:
        start_s = time.perf_counter()
        result = self.asked(operation)
        self.charge(start_s)
        return result

    def asked(self, operation: Callable[[], Result], *, is_awaited: bool = True, opens: bool = True) -> Result | None:
        """Run an operation of the tier; None if it fails, or if the tier must not be asked now."""
        if self._breaker.is_open(is_awaited=is_awaited):
            return None  # the failure or delay that opened it was reported and counted
        start_s, result, is_reachable = time.perf_counter(), None, False
        try:
            result = operation()
            is_reachable = True
        except Exception as error:  # servers, client libraries and disks may raise anything; a launch must not fail
            if opens and isinstance(error, (OSError, KCacheError)):  # a bundle is refused, or a package is missing
                self._breaker.open()
            self._trouble(why_of(error))
        with self._counting:
            self._is_reachable = is_reachable
            self._operations += 1
            self._seconds += time.perf_counter() - start_s
        return result

    def charge(self, start_s: float, what: str = "its answer", worth_s: float = 0.0) -> None:
        """Charge the time that a launch waited for the tier, or spent on what the tier said.

        Args:
            start_s: The time by `time.perf_counter` at which it began.
            what: What took the time.
            worth_s: Seconds that the result saves.
        """
        seconds = time.perf_counter() - start_s
        self.report_wait(what, seconds)
        if not self.is_patient and self._breaker.charge(seconds, worth_s):
            self.uploads.flush_s = min(self.uploads.flush_s, HURRIED_S)
            self._trouble(f"it is slow ({seconds:.1f} s for the last answer): launches skip it for a while")

    def report_wait(self, what: str, waited_s: float) -> None:
        tell_wait(self._emit, f"{what}: tier {self.tier.name}", waited_s)

    # -- counting ----------------------------------------------------------------------------------

    def report(self, sums: Mapping[str, float] | None = None) -> TierReport:
        """The counts of this process; with `sums` of the counters, those of all processes."""
        sums = self._counts if sums is None else sums
        counts = {name: int(sums.get(self._counter(name), 0)) for name in _COUNTED}
        latency_s = self._seconds / self._operations if self._operations else 0.0
        return TierReport(self.tier.name, self.readonly, latency_s=latency_s, is_reachable=self._is_reachable, **counts)

    def hits(self) -> int:
        return self._counts[self._counter("hits")]

    def _counter(self, name: str) -> str:
        return f"tier/{self._label}/{name}"

    def _count(self, name: str, number: int = 1) -> None:
        with self._counting:
            self._counts[self._counter(name)] += number

    def _trouble(self, error: str) -> None:
        self._count("errors")
        tier = f"tier {self.tier.name}"
        self._emit(trouble(tier, f"{tier}: {error}".replace("\n  hint: ", "; ")))
