"""The counters of all processes by day, by entry and by reason of the miss.

Promise     Names of unknown form, from a later version or a forged file, are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..model import NamedTuple
from . import KEY_DIGITS, Counts

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
