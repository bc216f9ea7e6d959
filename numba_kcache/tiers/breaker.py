"""Skip a tier that is down or slow, so that it cannot delay a program for long.

Promise     After a failure no process of this node asks the tier for `PERIOD_S`; then one asks, and the others again if
            it got an answer. Nobody waits for another process. Besides, a process loses at most `LIMIT_S` and one
            request to a tier at first, and the fraction `SHARE` of its run time after that, however slow each answer
            is; the time that hits save is not lost (`worth_s`).
Method      A file beside the local store: the time of `<tier>.down` is that of the last failure, by the monotonic clock
            that all processes of a system share; a file of another boot or machine counts for at most one period. A
            process that finds it expired renews it before asking, so that the others stay away meanwhile; an answer
            removes it. Where no directory can be written to, each process has its own breaker. The lost time is a token
            bucket, full at first: elapsed time refills it, and while it is negative, this process does not ask.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from ..store import touch
from ..store.folders import Folder

PERIOD_S = 30.0
LIMIT_S = 1.5
SHARE = 1 / 60
"""Seconds that the bucket regains per second."""

FAIR_S = 0.05
"""Round trip to a store in the same region, in seconds, which is not charged."""


class Away(Exception):
    """The tier must not be asked at present."""


class Breaker:
    """The breaker of one tier.

    Args:
        folder: Folder of the file; None for a breaker of this process alone.
        label: Its name, without an ending.
        clock: Seconds of a clock that is never set, the same in all processes of the system.
    """

    def __init__(self, folder: Folder | None, label: str = "", *, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._name, self._clock = folder, f"{label}.down", clock
        self._down_until_s, self._left_s, self._at_s = 0.0, LIMIT_S, clock()

    @contextmanager
    def asking(self, *, is_awaited: bool = True, opens: bool = True) -> Iterator[None]:
        """A context in which the caller asks the tier: an OSError that leaves it is a failure, its end an answer.

        Args:
            is_awaited: False for background work, which is done although the tier is slow.
            opens: False for an operation whose failure does not mean that others fail.

        Raises:
            Away: The tier must not be asked now.
        """
        is_probe = self._is_probe()
        if is_awaited and self._filled_s() < 0:
            raise Away
        try:
            if is_probe:
                self._mark()
            yield
        except OSError:
            if opens:
                self._down_until_s = self._clock() + PERIOD_S
                self._mark()
            raise
        if is_probe and self._folder is not None:
            with suppress(OSError):
                self._folder.unlink(self._name)

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

    def _is_probe(self) -> bool:
        """True if a failure is on record that is too old to keep this process from asking."""
        now_s = self._clock()
        if now_s < self._down_until_s:
            raise Away
        if self._folder is None:
            return False
        try:
            failed_s = self._folder.status(self._name).st_mtime
        except OSError:
            return False
        if 0 <= now_s - failed_s < PERIOD_S:
            self._down_until_s = failed_s + PERIOD_S
            raise Away
        return True

    def _mark(self) -> None:
        """Set the time of the file, creating it; if that fails, this process alone remembers a failure."""
        if self._folder is None:
            return
        with suppress(OSError):
            fd = self._folder.open(self._name, os.O_RDWR | os.O_CREAT, make=True)
            try:
                touch(fd, int(self._clock() * 1e9))
            finally:
                os.close(fd)
