"""Start an eviction pass in the background when a tree may exceed its limits, and keep space on the disk free.

Promise     A pass runs in its own thread, at most one per process; no caller waits for it. Failures are events.
            Where little space is free on the filesystem, nothing is stored.
Method      The size of the tree is not recorded. Keys are digests, so each of the 256 folders holds about a 256th of
            the tree. A put looks at the folder that it has just written to; if that holds more than a 256th of a limit,
            the put starts a pass, which walks the whole tree and sums its files. Folders are of unequal size, so passes
            also start early: every second put starts one in a tree at its limit, and every twelfth in a tree of 20,000
            entries at 85 % of the limit.
Not here    What a pass does (store.eviction, which a put imports only if it starts one).
"""

from __future__ import annotations

import errno
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from ..model import Event, EventKind, tell_wait
from . import renewed_in_children
from .folders import QUARANTINE, Folder
from .locks import LockFile
from .tree import FOLDERS, SHARDS, Found, Tree

if TYPE_CHECKING:  # writing imports this module, and disk imports writing; a put that starts no pass needs no report
    from .disk import DiskStore
    from .report import Removed

LEFT_FREE_BYTES = 512 << 20
"""Bytes to leave free on the filesystem; if it has less than 10 GiB, a twentieth of it is left free."""

_LEFT_FREE_SHARE = 20

PASS_EVERY_S = 24 * 3600
"""Longest time between passes while entries are stored: a pass also removes what killed processes left."""

ASK_EVERY_S = 60.0
"""Time for which a process does not ask again whether a pass is due."""

LONGEST_WAIT_S = 5.0
"""Longest wait for a pass in another thread: passes may run at the same time."""

_ABANDONED_S = 60.0
"""Age of a pass from which its lock does not count: its process may be stopped, and passes may run at the same time."""

_LOCK = "evict.lock"


class Limits:
    """The limits of one tree.

    Args:
        store: The store of the tree, with its limits.
    """

    def __init__(self, store: DiskStore) -> None:
        self._store, self._tree = store, store.tree
        self._asked_s = -math.inf  # when this process last asked for the time of the last pass
        self.after_fork()
        renewed_in_children.add(self)

    def after_fork(self) -> None:
        """Replace the lock that another thread of the parent may have held; a running pass stays with the parent."""
        self._mutex = threading.RLock()
        self._thread: threading.Thread | None = None

    def start_if_due(self, key: str) -> None:
        """Start a pass if the folders of `key` hold more than their share of a limit, or none ran for a day."""
        is_full = choose(
            list(self._tree.walk(*FOLDERS, shards=(key[:2],))),
            max_size_bytes=self._store.max_size_bytes / len(SHARDS),
            max_entries=self._store.max_entries / len(SHARDS),
        )
        try:
            now_s = self._store.clock()
            is_asked = abs(now_s - self._asked_s) >= ASK_EVERY_S
            if is_asked:
                self._asked_s = now_s
            if is_full or (is_asked and is_due(self._tree, now_s)):
                self.start()
        except OSError as error:
            self._store.trouble("evict", error)

    def shortage(self, size_bytes: int) -> str:
        """The reason why `size_bytes` must not be added to the filesystem; "" if they may."""
        try:
            status = os.statvfs(self._tree.base())
        except OSError:
            return ""  # an actual lack of space shows when the file is written
        free = status.f_bavail * status.f_frsize
        least = min(LEFT_FREE_BYTES, status.f_blocks * status.f_frsize // _LEFT_FREE_SHARE)
        if free - size_bytes >= least or not status.f_blocks:  # some filesystems report no size
            return ""
        return f"{free} bytes are free where {self._tree.root} is, of which {least} are left to others"

    def start(self) -> None:
        """Start a pass, unless one of this process is running."""
        with self._mutex:
            if self._thread is not None and self._thread.is_alive():
                return
            thread = threading.Thread(
                target=self.prune, kwargs={"is_asked": False}, name="numba_kcache limits", daemon=True
            )
            try:
                thread.start()
                self._thread = thread
                return
            except RuntimeError as error:  # the interpreter is shutting down, or there are no more threads
                trouble = error
        self._store.trouble("evict", trouble)

    def wait(self) -> None:
        """Return when the pass that was started is over, or after `LONGEST_WAIT_S`."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            start_s = time.monotonic()
            thread.join(LONGEST_WAIT_S)
            tell_wait(self._store.emit, "this process's eviction pass", time.monotonic() - start_s)

    def prune(
        self, max_size_bytes: int | None = None, older_than_s: float | None = None, *, is_asked: bool = True
    ) -> Removed:
        """Run a pass in this thread; nothing is removed while another process runs one.

        Args:
            max_size_bytes: Size to reach; None: the low-water mark of the limit, if the limit is exceeded.
            older_than_s: Also remove files that were not used for this many seconds.
            is_asked: Report if another pass is running.
        """
        from .eviction import LOW_WATER, evict
        from .report import Removed

        try:
            removed = evict(
                self._tree,
                max_size_bytes=self._store.max_size_bytes if max_size_bytes is None else max_size_bytes,
                max_entries=self._store.max_entries,
                now_s=self._store.clock(),
                older_than_s=older_than_s,
                low_water=LOW_WATER if max_size_bytes is None else 1.0,
            )
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                self._store.trouble("evict", error)
            return Removed(0, 0)
        if removed is None:
            if is_asked:
                why = f"another process holds {_LOCK} in {self._tree.root}: it removes entries now, try again later"
                self._store.trouble("evict", f"nothing was removed: {why}")
            return Removed(0, 0)
        if removed.size_bytes:
            self._store.emit(Event(EventKind.EVICTED, removed._asdict()))
        return removed

    def clear(self, tell: Callable[[], object]) -> Removed:
        """Remove every entry, manifest and damaged file, and call `tell` for each."""
        from .eviction import sum_of
        from .names import remove, remove_named

        with suppress(OSError), self._tree.opened(QUARANTINE) as folder:
            remove_named(folder, QUARANTINE)
        removed = []
        for file in self._tree.walk(*FOLDERS):
            tell()
            if remove(file):
                removed.append(file)
        return sum_of(removed)


def is_due(tree: Tree, now_s: float) -> bool:
    """Check whether the last pass began a day ago or earlier. A new tree, with nothing to remove, is not due."""
    try:
        return abs(now_s - Folder(tree).status(_LOCK).st_mtime) > PASS_EVERY_S
    except FileNotFoundError:
        begin_pass(tree, now_s)
        return False


def begin_pass(tree: Tree, now_s: float) -> LockFile | None:
    """Lock the file whose time is that of the last pass, and set its time; None if another pass is running."""
    lock = LockFile(Folder(tree), _LOCK)
    lock.open()
    try:
        if not lock.try_lock() and abs(now_s - lock.status().st_mtime) < _ABANDONED_S:
            return None
    except OSError as error:  # a filesystem without locks
        if error.errno == errno.EBADF:
            raise
    lock.touch(int(now_s * 1e9))
    return lock


def choose(
    files: list[Found], *, max_size_bytes: float, max_entries: float, before_ns: int = 0, low_water: float = 1.0
) -> list[Found]:
    """Choose the files to remove; `files` are sorted from the least recently used."""
    size, count = sum(file.size_bytes for file in files), Counter(file.kind for file in files)
    size_goal = max_size_bytes * (low_water if size > max_size_bytes else 1.0)
    goals = {kind: max_entries * (low_water if number > max_entries else 1.0) for kind, number in count.items()}
    doomed = []
    for file in files:
        if file.used_ns < before_ns or size > size_goal or count[file.kind] > goals[file.kind]:
            doomed.append(file)
            size -= file.size_bytes
            count[file.kind] -= 1
    return doomed
