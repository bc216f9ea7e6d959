"""Bound the time that launches lose to a server that answers slowly and has no entry for them.

Promise     The time that a process waits for misses of a server is at most `LIMIT_S` and one request at first, and the
            fraction `SHARE` of its run time after that, however slow each answer is. Hits are not counted.
Method      A token bucket, full at first. Each miss removes its duration beyond `FAIR_S`; elapsed time refills it.
            While the bucket is negative, this process does not ask the server.
Not here    A server that does not answer at all, which the processes of a node detect together (breaker).
"""

from __future__ import annotations

import time
from collections.abc import Callable

LIMIT_S = 1.5
SHARE = 1 / 60
"""Seconds that the bucket regains per second."""

FAIR_S = 0.05
"""Round trip to a store in the same region, in seconds, which is not charged."""


class Allowance:
    """The bucket of one tier in this process.

    Args:
        clock: Seconds of a clock that is never set.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left_s, self._at_s = LIMIT_S, clock()

    def is_spent(self) -> bool:
        """True while the server must not be asked."""
        return self._filled() < 0

    def charge(self, seconds: float) -> bool:
        """Charge the duration of a miss. Returns True if that made the bucket negative."""
        before = self._filled()
        self._left_s = before - max(0.0, seconds - FAIR_S)
        return before >= 0 > self._left_s

    def _filled(self) -> float:
        now_s = self._clock()
        self._left_s = min(LIMIT_S, self._left_s + (now_s - self._at_s) * SHARE)
        self._at_s = now_s
        return self._left_s
