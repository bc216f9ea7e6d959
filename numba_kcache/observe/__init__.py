"""The events of a cache: subscribers, statistics counted from them, and one warning for each kind of trouble.

Promise     Emitting never raises, whatever a subscriber does. Each kind of trouble is one warning per process; nothing
            else is printed. A resolution counts as one hit or one miss; launches are not counted. The memory used is
            bounded, however many kernels a process resolves.
Method      Counters are sums with names. A count for one key, reason, day or tier has that in its name:
            `hits/<key>`, `reason/<kind of reason>`, `day/<date>/<name>`, `tier/<which>/<name>`; they are summed
            like the others. A process's counts belong to the day (UTC) on which it saves them.
Not here    Log lines (log), and the presentation of the sums (info, page).
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from threading import get_ident
from typing import Any

from ..errors import OptionError
from ..model import IN_USER_CODE, LONG_WAIT_S, Event, EventKind

_QUIET = frozenset((EventKind.COMPILE_BEGIN, EventKind.HIT, EventKind.LOAD, EventKind.STORED))
"""Events of ordinary work: sent to subscribers, not logged."""

_ORDINARY = frozenset((EventKind.COMPILE_END, EventKind.COMPILE_FAILED, EventKind.EVICTED, EventKind.WAITED))
"""Events that are logged, but cause no warning."""

KEY_DIGITS = 16
"""Leading digits of a key under which its hits are counted."""

MOST_KEYS = 4096
_MOST_HEARD = 256


class Counts:
    """Sums over some period. Times are in seconds."""

    hits = misses = waited = evictions = errors = compiles = loads = waits = 0
    compile_time_s = load_time_s = time_saved_s = wait_time_s = 0.0

    @classmethod
    def of(cls, sums: Mapping[str, float]) -> Counts:
        """Read sums by name; unknown names, of other versions, are ignored."""
        counts = cls()
        for name in _COUNTED:
            setattr(counts, name, type(getattr(cls, name))(sums.get(name, 0)))
        return counts

    def as_dict(self) -> dict[str, Any]:
        """List all sums by name."""
        return {name: getattr(self, name) for name in _COUNTED}


_COUNTED = tuple(name for name in vars(Counts) if not name.startswith("_") and name not in ("of", "as_dict"))


class Statistics:
    """The counts of this process, made from the events of one cache.

    Args:
        clock: Seconds since the epoch; decides the day that counts belong to.

    Attributes:
        heard: Events that are not counted yet. A launch only appends events; they are counted when statistics are read.
        sources: Functions that return counts made elsewhere since their last call, by names of counters.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._lock, self._is_counting = threading.RLock(), False
        self._clock = clock
        self.heard: deque[Event] = deque()
        self._process = Counts()
        self._unsaved = Counts()
        self._hits: dict[str, int] = {}
        self._reasons: dict[str, int] = {}
        self.sources: list[Callable[[], Mapping[str, float]]] = []
        self._is_forked = False

    @property
    def process(self) -> Counts:
        """The counts of this process so far."""
        self.settle()
        return self._process

    def settle(self) -> None:
        """Count the events in `heard`. Taking from a deque is atomic: events of other threads are not lost."""
        with self._lock:
            if self._is_counting:  # called by a signal handler that interrupted the loop below, which counts the rest
                return
            self._is_counting = True
            try:
                while self.heard:
                    self._count(self.heard.popleft())
            finally:
                self._is_counting = False

    def _count(self, event: Event) -> None:
        _count(self._process, event)
        _count(self._unsaved, event)
        if event.kind is EventKind.HIT:
            _count_label(self._hits, str(event.fields.get("key"))[:KEY_DIGITS], MOST_KEYS)
        elif event.kind is EventKind.MISS:
            for kind in dict.fromkeys(each.kind for each in event.fields.get("reasons", ())):
                self._reasons[kind] = self._reasons.get(kind, 0) + 1

    def take_unsaved(self) -> dict[str, float]:
        """Counts since the last call, to be added to the store's counters."""
        self.settle()
        with self._lock:
            fresh = Counts()
            counted, self._unsaved = self._unsaved, fresh  # atomic swap: each count is saved once
            hits, self._hits = self._hits, {}
            reasons, self._reasons = self._reasons, {}
        unsaved = {name: value for name, value in counted.as_dict().items() if value}
        elsewhere: dict[str, float] = {}
        for source in self.sources:
            more = source()
            for name, value in () if self._is_forked else more.items():
                elsewhere[name] = elsewhere.get(name, 0) + value
        self._is_forked = False  # the first counts of each source after a fork were the parent's
        day = time.strftime("%Y-%m-%d", time.gmtime(self._clock()))
        return {
            **unsaved,
            **{f"day/{day}/{name}": value for name, value in unsaved.items()},
            **{f"hits/{key}": number for key, number in hits.items()},
            **{f"reason/{reason}": number for reason, number in reasons.items()},
            **elsewhere,
        }

    def after_fork(self) -> None:
        """Drop, in a forked child, the counts from before the fork, which the parent saves."""
        self._lock, self._is_counting = threading.RLock(), False
        self.heard.clear()
        self._process, self._unsaved, self._hits, self._reasons = Counts(), Counts(), {}, {}
        self._is_forked = True


def _count_label(counts: dict[str, int], label: str, most: int) -> None:
    if label in counts or len(counts) < most:
        counts[label] = counts.get(label, 0) + 1


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
    elif kind is EventKind.WAITED and data.get("waited_s", 0.0) >= LONG_WAIT_S:
        counts.waits += 1
        counts.wait_time_s += data["waited_s"]
    elif kind is EventKind.EVICTED:
        counts.evictions += data.get("entries", 0)
    elif kind in (EventKind.TROUBLE, EventKind.DAMAGED):
        counts.errors += 1


class Events:
    """The events of one cache.

    Args:
        process: The events of the process's own cache, whose subscribers receive these as well.

    Attributes:
        statistics: The counts of these events.
    """

    def __init__(self, process: Events | None = None) -> None:
        self.statistics = Statistics()
        self._process = process
        self._subscribers: dict[object, Callable[[Event], object]] = {}
        self._warned: dict[str, object] = {}
        self._missed = threading.local()

    def subscribe(self, subscriber: Callable[[Event], object]) -> Callable[[], None]:
        """Call `subscriber` with every event from now on. Returns the function that unsubscribes it."""
        if not callable(subscriber):
            raise OptionError(f"cannot subscribe {subscriber!r}", "it cannot be called", "give a function of one event")
        token = object()
        self._subscribers[token] = subscriber

        def unsubscribe() -> None:
            self._subscribers.pop(token, None)

        return unsubscribe

    def emit(self, event: Event) -> None:
        """Count an event, pass it to the subscribers and the log, and warn the user of trouble once."""
        heard = self.statistics.heard
        heard.append(event)
        if len(heard) > _MOST_HEARD:
            self.statistics.settle()
        subscribers = list(self._subscribers.values())
        if self._process:
            subscribers += self._process._subscribers.values()
        if not subscribers and event.kind in _QUIET:
            return  # not logged, so that emitting costs a warm start next to nothing
        me = get_ident()
        depth = IN_USER_CODE[me] = IN_USER_CODE.get(me, 0) + 1
        try:
            self._tell(event, subscribers)
        finally:
            IN_USER_CODE[me] = depth - 1
            if depth == 1:
                IN_USER_CODE.pop(me, None)  # a signal handler that ran before this line may have removed it

    def _tell(self, event: Event, subscribers: Iterable[Callable[[Event], object]]) -> None:
        """Call user code: subscribers, and the handlers of logs and warnings."""
        for subscriber in subscribers:
            try:
                subscriber(event)
            except Exception:  # user code: its errors must not reach a launch
                from .log import ERROR, record

                record(ERROR, "a subscriber of numba_kcache failed", with_error=True)
        if event.kind in _QUIET:
            return
        if event.kind is EventKind.MISS:
            self._missed.reason = event.fields.get("reason")  # for the log line of this thread's next compile
            return
        if "logging" in sys.modules:  # importing it costs 5 ms, and a program without it has no handlers
            from .log import INFO, line_of, record

            record(INFO, line_of(event, getattr(self._missed, "reason", None)))
        if event.kind in _ORDINARY:
            return
        from .log import warn, warning_of

        subject, text = warning_of(event)
        token = object()
        if text and self._warned.setdefault(subject, token) is token:
            warn(text)
