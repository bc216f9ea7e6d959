"""The contents of a cache, its counts and the time it saved, as one value that prints as a table; the counts by day.

Promise     Names of counters of unknown form, from a later version or a forged file, are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import plain
from ..model import KEY_DIGITS, Counts, NamedTuple
from .text import aligned, bytes_text, counted, entries_text, reason_text, seconds_text, shows_text


@shows_text
class CacheInfo(NamedTuple):
    """Contents of a cache, and what happened since it began ("lifetime") or in this process ("process").

    Args:
        scope: `"lifetime"` or `"process"`: the range of the counts. Entries and sizes are the same for both.
        directory: Directory of the entries; `""` for a cache in memory.
        entries: Number of entries.
        size_bytes: Bytes that entries and manifests take.
        max_size_bytes: Size limit, beyond which the least recently used entries are removed.
        hits: Resolutions of (kernel, target, signature) found in the cache.
        misses: Resolutions not found in the cache.
        waited: Hits that waited for another thread or process to compile.
        evictions: Entries removed to keep the limits.
        errors: Troubles of the cache: damage, full disk, refused directory.
        compiles: Compilations that succeeded.
        loads: Hits that came from a store.
        compile_time_s: Seconds spent compiling.
        load_time_s: Seconds spent reading, verifying and loading stored entries.
        time_saved_s: Recorded compile time of the entries loaded, less the time to load them.
        tiers: A report of each store behind the local directory (`tiers.tier.TierReport`); reachability and latency
            are those seen by this process.
        obstacle: The reason why new entries are not written to the directory, and their place instead; "" if they are.
        waits: Waits above a second, for other processes, threads, passes, nodes and tiers.
        wait_time_s: Seconds of all these.
        reasons: Number of misses for each kind of reason, the most frequent first; only for all processes.
    """

    scope: str
    directory: str
    entries: int
    size_bytes: int
    max_size_bytes: int
    hits: int
    misses: int
    waited: int
    evictions: int
    errors: int
    compiles: int
    loads: int
    compile_time_s: float
    load_time_s: float
    time_saved_s: float
    tiers: tuple[Any, ...] = ()
    obstacle: str = ""
    waits: int = 0
    wait_time_s: float = 0.0
    reasons: Mapping[str, int] = {}

    @property
    def hit_rate(self) -> float:
        """Fraction of resolutions that were hits, 0 to 1; 0 where there were none."""
        return self.hits / (self.hits + self.misses) if self.hits + self.misses else 0.0

    @property
    def avg_compile_time_s(self) -> float:
        """Seconds of one compilation on average; 0 where there was none."""
        return self.compile_time_s / self.compiles if self.compiles else 0.0

    @property
    def avg_load_time_s(self) -> float:
        """Seconds to read, verify and load one stored entry on average; 0 where there was none."""
        return self.load_time_s / self.loads if self.loads else 0.0

    @property
    def advice(self) -> tuple[str, ...]:
        """Advice for figures that indicate a problem; empty where there is none."""
        found = []
        again = {kind: number for kind, number in self.reasons.items() if kind not in _OF_NEW_KERNELS}
        if sum(again.values()) >= max(_FEW, self.hits):
            why = reason_text(next(iter(again)))
            found.append(f"kernels are compiled again and again, mostly for this reason: {why}; keep it as it is")
        if self.evictions:
            verb = "was" if self.evictions == 1 else "were"
            found.append(
                f"{entries_text(self.evictions)} {verb} removed to keep the limits: raise max_size_bytes "
                "(NUMBA_KCACHE_MAX_SIZE) or max_entries (NUMBA_KCACHE_MAX_ENTRIES) if they are compiled again"
            )
        if self.errors:
            times = "once" if self.errors == 1 else f"{self.errors} times"
            after = "; `numba-kcache info --zero` resets this count" if self.scope == "lifetime" else ""
            found.append(f"the cache had trouble {times}: `numba-kcache doctor` looks for the cause{after}")
        return tuple(found)

    def to_dict(self) -> dict[str, Any]:
        """Every figure under its name, and the advice."""
        names = ("hit_rate", "avg_compile_time_s", "avg_load_time_s", "advice")
        derived = {name: getattr(self, name) for name in names}
        return {**self._asdict(), "tiers": tuple(each._asdict() for each in self.tiers), **derived}

    def __str__(self) -> str:
        lines = [*aligned(self._rows()), *(f"hint: {text}" for text in self.advice)]
        return "\n  ".join([f"numba_kcache, {_SCOPES[self.scope]}", *lines])

    def _rows(self) -> Sequence[tuple[str, str]]:
        """Name and text of each row of the table."""
        share = f"{self.size_bytes / self.max_size_bytes:.0%}" if self.max_size_bytes else "0%"
        waited = f", {self.waited} waited for" if self.waited else ""
        return (
            ("directory", self.directory or "in memory"),
            *((("", f"cannot be used: {plain(self.obstacle)}"),) if self.obstacle else ()),
            ("entries", f"{self.entries}"),
            ("size", f"{bytes_text(self.size_bytes)} of {bytes_text(self.max_size_bytes)} ({share})"),
            ("hits", str(self.hits) + (f" ({self.hit_rate:.0%})" if self.hits + self.misses else "") + waited),
            ("misses", f"{self.misses}"),
            ("compiles", _with_average(self.compiles, self.avg_compile_time_s)),
            ("loads", _with_average(self.loads, self.avg_load_time_s)),
            ("time saved", seconds_text(self.time_saved_s) if self.time_saved_s > 0 else "none yet"),
            *((("waits", f"{self.waits}, {seconds_text(self.wait_time_s)} in all"),) if self.waits else ()),
            ("evictions", f"{self.evictions}"),
            ("errors", f"{self.errors}"),
            *(("tier", _tier_text(each, self.scope)) for each in self.tiers),
        )


def _with_average(number: int, seconds: float) -> str:
    return f"{number}, {seconds_text(seconds)} on average" if number else "0"


def _tier_text(tier: Any, scope: str) -> str:
    answers = {None: "not contacted yet", True: f"answers in {seconds_text(tier.latency_s)}", False: "does not answer"}
    return (
        f"{tier.name}{', read-only' if tier.readonly else ''}: {answers[tier.is_reachable]}; "
        f"{counted(tier.hits, 'hit')}, {counted(tier.misses, 'miss', 'misses')}, {counted(tier.errors, 'error')}, "
        f"{bytes_text(tier.bytes_read)} read, {bytes_text(tier.bytes_written)} written"
        + (" in this process" if scope == "process" else "")
    )


_FEW = 20
"""Fewest repeated misses for advice on them."""

_OF_NEW_KERNELS = frozenset(("never_stored", "other_targets", "target", "signature", "entry"))
"""The reasons of first compiles, which a warm-up has too: each kernel, target and signature misses once."""

_SCOPES = {"lifetime": "all processes since the cache began", "process": "this process"}


# -- counts by day, entry and reason -------------------------------------------------------------------------------

_DATE = r"\d{4}-\d{2}-\d{2}"
_KEY = rf"[0-9a-f]{{{KEY_DIGITS}}}"


class Day(NamedTuple):
    """The counts that processes saved on one day (UTC), `"2026-11-21"`."""

    date: str
    counts: Counts


class History(NamedTuple):
    """The counts by day, by entry and by reason: those of counters named `group/label` (store.counters).

    Args:
        days: Days with counts, in order of time.
        hits: Number of hits on each entry, by the leading digits of its key.
        reasons: Number of misses for each kind of reason, the most frequent first.
    """

    days: tuple[Day, ...]
    hits: Mapping[str, int]
    reasons: Mapping[str, int]


def history_of(sums: Mapping[str, float]) -> History:
    """The history in the sums of the counters."""
    days: dict[str, dict[str, float]] = {}
    hits: dict[str, int] = {}
    reasons: dict[str, int] = {}
    for name, value in sums.items():
        group, _, label = name.partition("/")
        if group == "hits" and re.fullmatch(_KEY, label):
            hits[label] = int(value)
        elif group == "reason" and label:
            reasons[label] = int(value)
        elif group == "day":
            date, _, counted = label.partition("/")
            if re.fullmatch(_DATE, date):
                days.setdefault(date, {})[counted] = value
    ranked = dict(sorted(reasons.items(), key=lambda each: (-each[1], each[0])))
    return History(tuple(Day(date, Counts.of(days[date])) for date in sorted(days)), hits, ranked)
