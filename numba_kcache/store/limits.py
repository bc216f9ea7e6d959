"""Keep one tree within its limits without anybody waiting for it: sum up, and start a pass when it is time.

Promise     Recording a change costs one append. A pass runs in a thread of its own, at most one per process,
            when the sum is above a limit or was not counted for a day. Failures are events. The last room on
            a filesystem is left to others: where little is free nothing is stored.
Not here    What a pass does (store.eviction) and how the sum is kept (store.usage).
"""

from __future__ import annotations

import errno
import os
import threading
import weakref
from collections.abc import Callable

from ..model.event import (
    Emit,
    Event,
    EventKind,
    trouble,
)
from .eviction import LOW_WATER, WALK_EVERY_S, evict
from .report import Removed, Usage
from .system import after_fork
from .tree import Tree
from .usage import MANY_RECORDS, UsageFile

LEFT_FREE_BYTES = 512 << 20
"""What stays free on the filesystem; on one below 10 GiB a twentieth of it."""

_LEFT_FREE_SHARE = 20


class Limits:
    """The limits of one tree.

    Args:
        tree: What is limited.
        max_size_bytes: Limit of entries and manifests together.
        max_entries: Limit of the number of entries, and of that of manifests.
        emit: Takes TROUBLE and EVICTED.
        clock: Seconds since the epoch.
    """

    def __init__(
        self,
        tree: Tree,
        *,
        max_size_bytes: int,
        max_entries: int,
        emit: Emit,
        clock: Callable[[], float],
    ) -> None:
        self.max_size_bytes, self.max_entries = max_size_bytes, max_entries
        self.is_kept = True  # False on a network filesystem: appends are not atomic there, and nobody walks
        self._tree, self._emit, self._clock = tree, emit, clock
        self._usage = UsageFile(f"{tree.base}/usage")
        self._reset()
        _all.add(self)

    def _reset(self) -> None:
        self._mutex = threading.Lock()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Begin the sum of a tree that was just made.

        Raises:
            OSError: It cannot be written.
        """
        self._usage.begin(int(self._clock()))

    def account(self, size_bytes: int, entries: int) -> None:
        """Record a change, and start a pass if it is time for one."""
        if not self.is_kept:
            return
        try:
            usage = self._usage.add(size_bytes, entries)
        except OSError as error:
            self._trouble("usage", error)
            return
        too_much = usage.size_bytes > self.max_size_bytes or usage.entries > self.max_entries
        if too_much or usage.records > MANY_RECORDS or abs(self._clock() - usage.walked_s) > WALK_EVERY_S:
            self.start()

    def shortage(self, size_bytes: int) -> str:
        """Why so many bytes must not be added to the filesystem; "" where they may."""
        try:
            status = os.statvfs(self._tree.private)
        except OSError:
            return ""  # writing will tell
        free = status.f_bavail * status.f_frsize
        least = min(LEFT_FREE_BYTES, status.f_blocks * status.f_frsize // _LEFT_FREE_SHARE)
        if free - size_bytes >= least or not status.f_blocks:  # some filesystems do not say
            return ""
        return f"{free} bytes are free where {self._tree.root} is, of which {least} are left to others"

    def sum(self) -> Usage | None:
        """What the tree holds, by the sum; None where it is not known."""
        try:
            usage = self._usage.read()
        except OSError as error:
            self._trouble("size", error)
            return None
        if usage is None:
            return None
        return usage._replace(size_bytes=max(0, usage.size_bytes), entries=max(0, usage.entries))

    def start(self) -> None:
        """Start a pass, unless one of this process is running."""
        with self._mutex:
            if self._thread is not None and self._thread.is_alive():
                return
            thread = threading.Thread(target=self.run, name="numba_kcache limits", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the interpreter is going down, or there are no more threads
                self._trouble("evict", error)
                return
            self._thread = thread

    def wait(self) -> None:
        """Return when the pass that was started is over."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def run(self, older_than_s: float | None = None, max_size_bytes: int | None = None) -> Removed:
        """Run a pass here and now; nothing is removed where another process is at it.

        Args:
            older_than_s: Also remove what was not used for so many seconds.
            max_size_bytes: Go down to this; None: to the low-water mark of the limit, if it is exceeded.
        """
        try:
            removed = evict(
                self._tree,
                self._usage,
                max_size_bytes=self.max_size_bytes if max_size_bytes is None else max_size_bytes,
                max_entries=self.max_entries,
                now_s=self._clock(),
                older_than_s=older_than_s,
                low_water=LOW_WATER if max_size_bytes is None else 1.0,
            )
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                self._trouble("evict", error)
            removed = None
        if removed is None:
            return Removed(0, 0)
        if removed.size_bytes:
            self._emit(Event(EventKind.EVICTED, removed._asdict()))
        return removed

    def _trouble(self, where: str, error: object) -> None:
        self._emit(trouble(where, error))


_all: weakref.WeakSet[Limits] = weakref.WeakSet()


def _after_fork() -> None:
    for each in _all:
        each._reset()  # another thread of the parent may have held the mutex; its pass stays with the parent


after_fork(_after_fork)
