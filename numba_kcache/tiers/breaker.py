"""Skip a tier that is down or slow, so that it cannot delay a program for long.

Promise     After a failure a process does not ask the tier for `PERIOD_S`. Besides, it loses at most `LIMIT_S` and one
            request to a tier at first, and the fraction `SHARE` of its run time after that, however slow each answer
            is; the time that hits save is not lost (`worth_s`).
Method      The lost time is a token bucket, full at first: elapsed time refills it, and while it is negative, the tier
            is not asked.
Not here    Failures of other processes: one that begins while the tier is down loses one request to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

PERIOD_S = 30.0
LIMIT_S = 1.5
SHARE = 1 / 60
"""Seconds that the bucket regains per second."""

FAIR_S = 0.05
"""Round trip to a store in the same region, in seconds, which is not charged."""


class Breaker:
    """The breaker of one tier.

    Args:
        clock: Seconds of a clock that is never set.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._down_until_s, self._left_s, self._at_s = 0.0, LIMIT_S, clock()

    def is_open(self, *, is_awaited: bool = True) -> bool:
        """Check whether the tier must not be asked now.

        Args:
            is_awaited: False for background work, which is done although the tier is slow.
        """
        return self._clock() < self._down_until_s or (is_awaited and self._filled_s() < 0)

    def open(self) -> None:
        """Record a failure."""
        self._down_until_s = self._clock() + PERIOD_S

    def left_s(self) -> float:
        """Seconds that may be lost to the tier now."""
        return max(0.0, self._filled_s())

    def charge(self, seconds: float, worth_s: float = 0.0) -> bool:
        """Charge the time of an answer that saved `worth_s`. Returns True if that made the bucket negative."""
        before = self._filled_s()
        self._left_s = before - max(0.0, seconds - FAIR_S - worth_s)
        return before >= 0 > self._left_s

    def _filled_s(self) -> float:
        now_s = self._clock()
        self._left_s = min(LIMIT_S, self._left_s + (now_s - self._at_s) * SHARE)
        self._at_s = now_s
        return self._left_s
