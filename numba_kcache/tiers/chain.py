"""The local store with tiers behind it, in order: what is stored goes to all of them, one of them has leases.

Promise     Whatever a tier does, the local store is written as without it.
Method      A put goes to the local store, then to every tier that accepts entries.
Not here    Look-ups (engine), and the work of one tier (tiers.checked_tier).
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from ..model import Emit, tell_wait
from ..store import StoredEntry, StoredRow
from ..store.encoding import encode_entry
from .checked_tier import CheckedTier
from .trust import Trust
from .upload_queue import UploadQueue

if TYPE_CHECKING:  # a warm start does not import these modules
    from ..store.disk import Check, DiskStore
    from .lease import Election
    from .tier import Tier, TierReport

_NOWHERE = "0" * 64


class Chain:
    """The local store with its tiers.

    Args:
        local: The local store.
        tiers: In the order in which they are tried.
        emit: Called with events of the kinds TROUBLE and WAITED.
        trust: Signatures that are required and made; None: neither.
        check: Raises ValueError for an entry not to accept although its digest and signature are right: its meaning,
            which no module of tiers knows, is wrong.
        counts: The counts of the tiers in this process, under names of the store's counters, are added to these.

    Attributes:
        uploads: Queue of writes to remote or slow tiers.
    """

    def __init__(
        self,
        local: DiskStore,
        tiers: Sequence[Tier],
        emit: Emit,
        trust: Trust | None = None,
        check: Check = lambda entry: None,
        counts: Counter[str] | None = None,
    ) -> None:
        self.local, self._emit, self._trust, self._check = local, emit, trust, check
        self.counts = Counter() if counts is None else counts
        self.uploads = UploadQueue(lambda waited_s: tell_wait(emit, "writes to tiers", waited_s))
        self.tiers = tuple(self._checked(tier) for tier in tiers)

    def _checked(self, tier: Tier) -> CheckedTier:
        given = self._emit, self.uploads, self.counts
        return CheckedTier(tier, self.local, *given, trust=self._trust, check=self._check)

    def mount(self, tier: Tier) -> None:
        """Add a tier before the others, or replace the one of the same name."""
        others = (each for each in self.tiers if each.tier.name != tier.name)
        self.tiers = (self._checked(tier), *others)

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
