"""Queue of uploads: entries go to a server while the launch goes on, in a thread of their own, within bounds.

Promise     `add` never waits. Works are done one after the other, in order. What is waiting is bounded in number and in
            bytes; what does not fit is refused. At the end of the process what waits is given `FLUSH_S` seconds.
Method      A daemon thread that is there while there is work. A forked child begins with an empty queue: the parent
            does its own.
Not here    What a work's failure means: a work does not raise (tiers.checked_tier).
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from ..store import renewed_in_children

PAUSE_S = 0.01
"""Head start that a launch has before a new thread competes with it for the interpreter."""

MOST_WAITING = 1024
MOST_BYTES = 256 << 20
FLUSH_S = 5.0
HURRIED_S = 1.0
"""In place of `FLUSH_S`, where the server is slow."""


class UploadQueue:
    """One queue.

    Args:
        most: Works that may wait.
        most_bytes: Bytes that they may hold together.

    Attributes:
        flush_s: Seconds that it is given at most when the process ends.
    """

    def __init__(self, *, most: int = MOST_WAITING, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._most_bytes, self.flush_s = most, most_bytes, FLUSH_S
        self.after_fork()
        renewed_in_children.add(self)
        queues.add(self)

    def after_fork(self) -> None:
        """Begin with nothing: what waits is the parent's."""
        self._changed = threading.Condition()
        self._waiting: deque[tuple[int, Callable[[], object]]] = deque()
        self._bytes = 0
        self._is_working = self._is_awaited = False
        self._worker = 0

    def add(self, work: Callable[[], object], size_bytes: int = 0) -> bool:
        """Have `work` done; whether there was room for it.

        Args:
            work: Does not raise.
            size_bytes: Bytes that it holds.
        """
        with self._changed:
            if len(self._waiting) >= self._most or self._bytes + size_bytes > self._most_bytes:
                return False
            self._waiting.append((size_bytes, work))
            self._bytes += size_bytes
            if not self._is_working:
                try:
                    threading.Thread(target=self._work, name="numba_kcache-tiers", daemon=True).start()
                except RuntimeError:  # no more threads, or the interpreter ends
                    self._waiting.pop()
                    self._bytes -= size_bytes
                    return False
                self._is_working = True
        return True

    def flush(self, wait_s: float = FLUSH_S) -> bool:
        """Wait until nothing waits any more, or for `wait_s`; whether nothing does."""
        if self._worker == threading.get_ident():  # a subscriber that was called from a work
            return False
        with self._changed:
            self._is_awaited = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not self._is_working, wait_s)

    def _work(self) -> None:
        self._worker = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: self._is_awaited, PAUSE_S)
        while True:
            with self._changed:
                if not self._waiting:
                    self._is_working, self._is_awaited, self._worker = False, False, 0
                    self._changed.notify_all()
                    return
                size_bytes, work = self._waiting[0]
            with suppress(Exception):  # it raises only for want of memory or the like: the next ones are done
                work()
            with self._changed:
                self._waiting.popleft()
                self._bytes -= size_bytes


queues: weakref.WeakSet[UploadQueue] = weakref.WeakSet()
"""Those of this process."""


def flush_all() -> None:
    """Wait until no queue of this process has anything waiting, or for `FLUSH_S`; done by itself as Python ends."""
    deadline = time.monotonic() + FLUSH_S
    for each in list(queues):
        each.flush(min(each.flush_s, max(0.0, deadline - time.monotonic())))


atexit.register(flush_all)
