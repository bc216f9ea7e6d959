"""Circuit breaker: after a server failed to answer, no process of the node asks it for a while.

Promise     After a failure no process of this node asks the server for `period_s`. Then one process asks; the others
            ask again if it got an answer, or wait for another period. Of processes that start at the same time one asks
            first, and the others when that one has its answer. Exception: for `FRESH_S` after an answer the processes
            do not take turns, so if the server fails then, each process that asks may wait for one timeout.
Method      Two files beside the local store: the time of `<tier>.down` is that of the last failure, the time of
            `<tier>.up` that of the last answer, by the monotonic clock that all processes of a system share; a file of
            another boot or machine counts for at most one period. While neither file is recent, processes take turns
            (store.locks): the holder asks, the others wait for its result. The holder renews an expired `.down` before
            it asks, so that the others stay away meanwhile; an answer removes it. Where no directory can be written
            to, each process has its own breaker.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

from ..store.folders import Folder
from ..store.locks import KeyLocks, Turn
from ..store.tree import touch

PERIOD_S = 30.0
FRESH_S = 5.0
"""Time after an answer for which the server counts as reachable, in seconds."""

MAX_WAIT_S = 3.0
"""Longest wait, in seconds, while another process asks the server: that process may have been suspended."""


class Away(Exception):
    """The server must not be asked at present."""


class Breaker:
    """The breaker of one tier.

    Args:
        folder: Folder of the two files; None for a breaker of this process alone.
        label: Their name, without an ending.
        period_s: Seconds after a failure in which the server is not asked.
        clock: Seconds of a clock that is never set, the same in all processes of the system.
    """

    def __init__(
        self,
        folder: Folder | None,
        label: str = "",
        *,
        period_s: float = PERIOD_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._period_s, self._clock = folder, period_s, clock
        self._down, self._up = f"{label}.down", f"{label}.up"
        self._until_s = self._next_mark_s = 0.0
        self._locks = KeyLocks(folder)

    @contextmanager
    def asking(self, *, is_awaited: bool = True) -> Iterator[None]:
        """A context in which the caller asks the server: an OSError that leaves it is a failure, its end an answer.

        Args:
            is_awaited: False for background work, which waits for another process's result only if the server's last
                known state is a failure.

        Raises:
            Away: The server must not be asked now.
        """
        known = self._is_reachable()
        turn: AbstractContextManager[Turn[bool]] = nullcontext(Turn(known, 0.0, False))
        if known is None and (is_awaited or self._marked_s(self._down) is not None):
            turn = self._locks.turn(f"{self._down}.lock", self._is_reachable, MAX_WAIT_S)
        with turn as taken:
            if taken.found is False:
                raise Away
            is_probe = taken.found is None and self._marked_s(self._down) is not None
            if is_probe:
                self._mark(self._down, self._clock())
            try:
                yield
            except OSError:
                self._failed()
                raise
            self._answered(is_probe)

    def _is_reachable(self) -> bool | None:
        """True after a recent answer, False after a recent failure; None if neither is known."""
        now_s = self._clock()
        if now_s < self._until_s:
            return False
        if self._folder is None:
            return True
        failed_s, answered_s = self._marked_s(self._down), self._marked_s(self._up)
        if failed_s is not None:
            if not 0 <= now_s - failed_s < self._period_s:
                return None
            self._until_s = failed_s + self._period_s
            return False
        return True if answered_s is not None and 0 <= now_s - answered_s < FRESH_S else None

    def _answered(self, is_probe: bool) -> None:
        now_s = self._clock()
        if self._folder is not None and (is_probe or now_s >= self._next_mark_s):
            self._next_mark_s = now_s + FRESH_S / 2  # renew `.up` at half its lifetime
            self._mark(self._up, now_s)
            if is_probe:
                with suppress(OSError):
                    self._folder.unlink(self._down)

    def _failed(self) -> None:
        now_s = self._clock()
        self._until_s, self._next_mark_s = now_s + self._period_s, 0.0
        self._mark(self._down, now_s)

    def _marked_s(self, name: str) -> float | None:
        if self._folder is None:
            return None
        try:
            return self._folder.status(name).st_mtime
        except OSError:
            return None

    def _mark(self, name: str, now_s: float) -> None:
        """Set the time of a file, creating the file; if that fails, `_until_s` alone records a failure."""
        if self._folder is None:
            return
        with suppress(OSError):
            fd = self._folder.open(name, os.O_RDWR | os.O_CREAT, make=True)
            try:
                touch(fd, int(now_s * 1e9))
            finally:
                os.close(fd)
