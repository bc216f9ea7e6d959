"""Start an eviction pass in the background when a tree may exceed its limits, and keep space on the disk free.

Promise     A pass runs in its own thread, at most one per process; no caller waits for it. Failures are events.
            Where little space is free on the filesystem, nothing is stored.
Method      The size of the tree is not recorded. Keys are digests, so each of the 256 folders holds about a 256th of
            the tree. A put looks at the folder that it has just written to; if that holds more than a 256th of a limit,
            the put starts a pass, which walks the whole tree and sums its files. Folders are of unequal size, so passes
            also start early: every second put starts one in a tree at its limit, and every twelfth in a tree of 20,000
            entries at 85 % of the limit.
Not here    What a pass does (store.eviction).
"""

from __future__ import annotations

import errno
import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from ..model import Event, EventKind
from . import renewed_in_children
from .entry import ENTRY, MANIFEST
from .eviction import LOW_WATER, choose, evict, is_due, sum_of
from .folders import QUARANTINE
from .names import remove, remove_named
from .report import Removed
from .tree import SHARDS

if TYPE_CHECKING:  # writing imports this module, and disk imports writing
    from .disk import DiskStore

LEFT_FREE_BYTES = 512 << 20
"""Bytes to leave free on the filesystem; if it has less than 10 GiB, a twentieth of it is left free."""

_LEFT_FREE_SHARE = 20


class Limits:
    """The limits of one tree.

    Args:
        store: The store of the tree, with its limits.
    """

    def __init__(self, store: DiskStore) -> None:
        self._store, self._tree = store, store.tree
        self.after_fork()
        renewed_in_children.add(self)

    def after_fork(self) -> None:
        """Replace the lock that another thread of the parent may have held; a running pass stays with the parent."""
        self._mutex = threading.RLock()
        self._thread: threading.Thread | None = None

    def start_if_due(self, key: str) -> None:
        """Start a pass if the folders of `key` hold more than their share of a limit, or none ran for a day."""
        is_full = choose(
            list(self._tree.walk(ENTRY, MANIFEST, shards=(key[:2],))),
            max_size_bytes=self._store.max_size_bytes / len(SHARDS),
            max_entries=self._store.max_entries / len(SHARDS),
        )
        try:
            if is_full or is_due(self._tree, self._store.clock()):
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
            thread = threading.Thread(target=self.prune, name="numba_kcache limits", daemon=True)
            try:
                thread.start()
                self._thread = thread
                return
            except RuntimeError as error:  # the interpreter is shutting down, or there are no more threads
                trouble = error
        self._store.trouble("evict", trouble)

    def wait(self) -> None:
        """Return when the pass that was started is over."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def prune(self, max_size_bytes: int | None = None, older_than_s: float | None = None) -> Removed:
        """Run a pass in this thread; nothing is removed while another process runs one.

        Args:
            max_size_bytes: Size to reach; None: the low-water mark of the limit, if the limit is exceeded.
            older_than_s: Also remove files that were not used for this many seconds.
        """
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
        if removed.size_bytes:
            self._store.emit(Event(EventKind.EVICTED, removed._asdict()))
        return removed

    def clear(self) -> Removed:
        """Remove every entry, manifest and damaged file."""
        with suppress(OSError), self._tree.opened(QUARANTINE) as folder:
            remove_named(folder, QUARANTINE)
        return sum_of(file for file in self._tree.walk(MANIFEST, ENTRY) if remove(file))
