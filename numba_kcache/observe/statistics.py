"""Count what happens: per process from events, over processes from the store's counters.

Promise     A resolution counts as one hit or one miss; launches count nothing. `time_saved_s` sums entry
            compile time less load time over hits that came from a store.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from ..model.event import Event, EventKind


class Counts:
    """Sums since some moment. Times are in seconds."""

    def __init__(self, sums: Mapping[str, float] | None = None) -> None:
        """Sums by name; names of other versions are left out."""
        known = sums or {}
        self.hits = int(known.get("hits", 0))
        self.misses = int(known.get("misses", 0))
        self.waited = int(known.get("waited", 0))
        self.evictions = int(known.get("evictions", 0))
        self.errors = int(known.get("errors", 0))
        self.compiles = int(known.get("compiles", 0))
        self.loads = int(known.get("loads", 0))
        self.compile_time_s = float(known.get("compile_time_s", 0.0))
        self.load_time_s = float(known.get("load_time_s", 0.0))
        self.time_saved_s = float(known.get("time_saved_s", 0.0))

    def as_dict(self) -> dict[str, float]:
        """The sums that are not zero, by name."""
        return {name: value for name, value in vars(self).items() if value}


class Statistics:
    """The counts of this process, kept from the events of one cache."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.process = Counts()
        self._unsaved = Counts()

    def listen(self, event: Event) -> None:
        """Count one event."""
        with self._lock:
            _count(self.process, event)
            _count(self._unsaved, event)

    def take_unsaved(self) -> dict[str, float]:
        """What was counted since the last call, to be added to the store's counters."""
        with self._lock:
            unsaved, self._unsaved = self._unsaved, Counts()
        return unsaved.as_dict()


def _count(counts: Counts, event: Event) -> None:
    kind, data = event.kind, event.fields
    if kind is EventKind.HIT:
        counts.hits += 1
        counts.waited += data.get("source") == "waited"
        if data.get("source") != "memory":
            counts.loads += 1
            counts.load_time_s += data.get("load_time_s", 0.0)
            counts.time_saved_s += data.get("compile_time_s", 0.0) - data.get("load_time_s", 0.0)
    elif kind is EventKind.LOAD and data.get("stored"):
        counts.load_time_s += data.get("load_time_s", 0.0)
        counts.time_saved_s -= data.get("load_time_s", 0.0)
    elif kind is EventKind.MISS:
        counts.misses += 1
    elif kind is EventKind.COMPILE_END:
        counts.compiles += 1
        counts.compile_time_s += data.get("compile_time_s", 0.0)
    elif kind is EventKind.EVICTED:
        counts.evictions += data.get("entries", 0)
    elif kind in (EventKind.TROUBLE, EventKind.DAMAGED):
        counts.errors += 1
