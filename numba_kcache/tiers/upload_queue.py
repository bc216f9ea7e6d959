"""Queue of writes: a thread does them while launches continue; its memory is bounded.

Promise     `add` never waits. Tasks run one after the other, in order. The queue is bounded in number and in bytes;
            a task that does not fit is refused. At the end of the process the queue gets `FLUSH_S` seconds to finish.
Method      A daemon thread that exists while there are tasks. A forked child begins with an empty queue: the parent
            runs its own tasks.
Not here    Failures of a task: a task must not raise (tiers.chain).
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

MOST_WAITING = 1024
MOST_BYTES = 256 << 20
FLUSH_S = 5.0
HURRIED_S = 1.0
"""Used instead of `FLUSH_S` if the server is slow, in seconds."""


class UploadQueue:
    """One queue.

    Args:
        on_wait: Called with the seconds that a `flush` took.

    Attributes:
        flush_s: Longest time that the queue gets when the process ends, in seconds.
    """

    def __init__(self, on_wait: Callable[[float], object] = lambda waited_s: None) -> None:
        self._on_wait, self.flush_s = on_wait, FLUSH_S
        self.after_fork()
        renewed_in_children.add(self)
        queues.add(self)

    def after_fork(self) -> None:
        """Empty the queue in the child: its tasks are the parent's."""
        self._changed = threading.Condition()
        self._waiting: deque[tuple[int, Callable[[], object]]] = deque()
        self._bytes = self._worker = 0

    def add(self, work: Callable[[], object], size_bytes: int = 0) -> bool:
        """Queue a task. Returns True if there was room for it.

        Args:
            work: The task; must not raise.
            size_bytes: Bytes that the task keeps in memory.
        """
        with self._changed:
            if len(self._waiting) >= MOST_WAITING or self._bytes + size_bytes > MOST_BYTES:
                return False
            self._waiting.append((size_bytes, work))
            self._bytes += size_bytes
            try:
                self._start()
            except RuntimeError:  # no more threads, or the interpreter ends
                self._waiting.pop()
                self._bytes -= size_bytes
                return False
        return True

    def _start(self) -> None:
        """Start the thread unless it runs, with the lock held. One that finds another at work ends at once, so that
        nothing is left to do after the start, where an exception of a signal handler may come."""
        if self._waiting and not self._worker:
            threading.Thread(target=self._work, name="numba_kcache-tiers", daemon=True).start()

    def flush(self, wait_s: float = FLUSH_S) -> bool:
        """Wait until the queue is empty, at most `wait_s` seconds. Returns True if it is."""
        if self._worker == threading.get_ident():  # called by a subscriber from within a task
            return False
        start_s = time.monotonic()
        with self._changed:
            with suppress(RuntimeError):
                self._start()
            is_empty = self._changed.wait_for(lambda: not self._waiting, wait_s)
        self._on_wait(time.monotonic() - start_s)
        return is_empty

    def _work(self) -> None:
        with self._changed:
            if self._worker:
                return
            self._worker = threading.get_ident()
        while True:
            with self._changed:
                if not self._waiting:
                    self._worker = 0
                    return
                size_bytes, work = self._waiting[0]
            with suppress(Exception):  # a task raises only if memory is exhausted or similar: the next ones still run
                work()
            with self._changed:
                self._waiting.popleft()
                self._bytes -= size_bytes
                self._changed.notify_all()


queues: weakref.WeakSet[UploadQueue] = weakref.WeakSet()
"""All queues of this process."""


def flush_all() -> None:
    """Wait until all queues of this process are empty, or for `FLUSH_S`. Registered with atexit."""
    deadline = time.monotonic() + FLUSH_S
    for each in list(queues):
        each.flush(min(each.flush_s, max(0.0, deadline - time.monotonic())))


atexit.register(flush_all)
