"""The local store with tiers behind it: asked in order, verified on arrival, kept locally from then on.

Promise     The verbs of the local store mean what they meant, but that `get` goes on to the tiers where the local store
            has nothing.
Method      A hit in a tier is written to the local store, with its variant of the manifest, so that it is asked for
            once. A put goes to the local store, then to every tier that takes it.
Not here    What may stand in for what (engine), and what is done with one tier (tiers.checked_tier).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from ..model import Emit
from ..store.entry import StoredEntry, Variant, encode_entry
from .checked_tier import SETTLE_S, CheckedTier
from .trust import Trust
from .upload_queue import UploadQueue

if TYPE_CHECKING:  # a warm start goes without them, or takes what it needs of them before
    from ..store.disk import DiskStore
    from ..store.memory import MemoryStore
    from .lease import Election
    from .tier import Tier, TierReport

_NOWHERE = "0" * 64

_OF_ALL = frozenset(("clear", "entries", "find", "listing", "manifests", "prune", "size", "verify"))
"""Verbs over all that the local store has; they wait until what was found in tiers is kept there."""


class Chain:
    """The local store with its tiers; a verb that is not here is the local store's.

    Args:
        local: Where everything is kept.
        tiers: In the order in which they are asked.
        emit: Takes TROUBLE.
        trust: Signatures that are demanded and made; None: neither.
        refusal_of: The reason not to take an entry that is whole and vouched for; "" for none. What an entry means is
            known further up.
    """

    def __init__(
        self,
        local: DiskStore | MemoryStore,
        tiers: Sequence[Tier],
        emit: Emit,
        trust: Trust | None = None,
        refusal_of: Callable[[StoredEntry], str] = lambda entry: "",
    ) -> None:
        self.local, self._emit, self._trust, self._refusal_of = local, emit, trust, refusal_of
        self._uploads, self._keeping = UploadQueue(), UploadQueue()
        self.tiers = tuple(self.checked(tier) for tier in tiers)

    def checked(self, tier: Tier) -> CheckedTier:
        """A tier, to be asked in safety."""
        queues = {"uploads": self._uploads, "keeping": self._keeping}
        return CheckedTier(tier, self.local, self._emit, trust=self._trust, refusal_of=self._refusal_of, **queues)

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

    def elected(
        self, key: str, meanwhile: Callable[[], bool] | None = lambda: False
    ) -> AbstractContextManager[Election]:
        """Take or await a key's turn among all nodes, in the first tier that holds leases; else it is everybody's.

        Args:
            key: What is to be built.
            meanwhile: Called instead of each pause; None: not to wait.
        """
        from .lease import NO_ELECTION, Electoral

        electoral = (tier for tier in self._writable() if isinstance(tier.tier, Electoral))
        first = next(electoral, None)
        return nullcontext(NO_ELECTION) if first is None else first.elected(key, meanwhile)

    def ask(self) -> None:
        """Ask every tier for something that is not there: whether it answers, and how fast."""
        for tier in self.tiers:
            tier.peek(_NOWHERE)

    def reports(self, sums: Mapping[str, float] | None = None) -> tuple[TierReport, ...]:
        """Reports of each tier in this process; with `sums` of the counters, the counts of all processes."""
        return tuple(tier.report(sums) for tier in self.tiers)

    def take_unsaved(self) -> dict[str, float]:
        """Counts of the tiers since the last call, under names of the store's counters."""
        return {name: value for tier in self.tiers for name, value in tier.take_unsaved().items()}

    def flush(self, wait_s: float) -> bool:
        """Wait until everything was handed on and kept, or for `wait_s` each; returns True if it was."""
        return self._uploads.flush(wait_s) and self._keeping.flush(wait_s)

    def settle(self) -> None:
        """Return when all that was found in tiers is kept locally."""
        self._keeping.flush(SETTLE_S)

    def close(self) -> None:
        """Let every tier go."""
        for tier in self.tiers:
            tier.close()

    def _writable(self) -> list[CheckedTier]:
        return [] if self.local.readonly else [tier for tier in self.tiers if tier.takes]
