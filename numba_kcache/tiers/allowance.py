"""Bound the time that launches lose to a server that answers, slowly or with nothing of use.

Promise     What a process waits for a server in vain is at most `LIMIT_S` and one question at first, and a share of
            its time after that, however slow each answer is. What the server has is never counted.
Method      An account: it is full at first, a question in vain takes what lasted beyond a fair round trip, and time
            fills it again. While it is below nothing, nobody of this process asks.
Not here    A server that does not answer at all, which the processes of a node find out together (breaker).
"""

from __future__ import annotations

import time
from collections.abc import Callable

LIMIT_S = 1.5
SHARE = 1 / 60
"""Seconds that come back to the account in each second."""

FAIR_S = 0.05
"""Round trip to a store in the same region, which nobody is charged for."""


class Allowance:
    """The account of one tier in this process.

    Args:
        clock: Seconds of a clock that is never set.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left_s, self._at_s = LIMIT_S, clock()

    def is_spent(self) -> bool:
        """True while the server is to be left alone."""
        return self._filled() < 0

    def charge(self, seconds: float) -> bool:
        """Take what a question in vain lasted; whether that was the end of it for now."""
        before = self._filled()
        self._left_s = before - max(0.0, seconds - FAIR_S)
        return before >= 0 > self._left_s

    def _filled(self) -> float:
        now_s = self._clock()
        self._left_s = min(LIMIT_S, self._left_s + (now_s - self._at_s) * SHARE)
        self._at_s = now_s
        return self._left_s
