"""Evict the least recently used entries of a tree down to its limits, and keep space on the disk free.

Promise     A pass runs in its own thread, at most one per process; no caller waits for it. Failures are events. After a
            pass the tree is within its limits, except for files that others added meanwhile; the most recently used
            entry is removed last; no file that changed since the walk is removed. A reader that has opened a file can
            read it to the end. Readers, writers and other passes may run at the same time.
            Where little space is free on the filesystem, nothing is stored. Only regular files whose names match the
            pattern of their folder are removed, and no folder but those of extracted headers: links, devices, pipes and
            files of other programs stay.
Method      The size of the tree is not recorded. Keys are digests, so each of the 256 folders of a kind holds about a
            256th of the tree. A put looks at the folder that it has just written to; if that holds more than a 256th
            of a limit, the put starts a pass. Folders are of unequal size, so passes also start early:
            every second put starts one in a tree at its limit, and every twelfth in a tree of 20,000 entries at 85 % of
            the limit.
            A pass walks the tree, sorts by recency, and removes until 85 % of the limit is reached, so that passes are
            rare. Each file's stat is read again before it is removed. One pass per node at a time: a process that does
            not get the lock at once leaves the pass to the process that has it.
Faults      eviction.walked, .removing, .removed (tests/crash kills here).
Source      Walking 100,000 files takes 0.4 s, removing one 9 us. Bazel's disk cache compares stats too.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from ..model import Event, EventKind, tell_wait
from . import (
    ABSENT,
    ENTRY,
    FOLDER,
    FOLDERS,
    HEADERS,
    RECENCY_NS,
    FoundFile,
    Tree,
    open_in,
    reached,
    remove_folder_in,
    rename_in,
    renewed_in_children,
    stat_in,
)
from .folders import LOCKS, QUARANTINE, Folder, unlink
from .locks import LockFile

if TYPE_CHECKING:  # writing imports this module, and disk imports writing; a put that starts no pass needs no report
    from .disk import DiskStore
    from .listing import Usage

FAULT_POINTS = ("eviction.walked", "eviction.removing", "eviction.removed")

LEFT_FREE_BYTES = 512 << 20
"""Bytes to leave free on the filesystem; if it has less than 10 GiB, a twentieth of it is left free."""

_LEFT_FREE_SHARE = 20
LOW_WATER = 0.85
"""Share of a limit down to which a pass removes."""

PASS_EVERY_S = 24 * 3600
"""Longest time between passes while entries are stored: a pass also removes what killed processes left."""

LONGEST_WAIT_S = 5.0
"""Longest wait for a pass in another thread: passes may run at the same time."""

STALE_S = 3600
"""Age from which a private file, or a lock file that no process has locked, is removed."""

_ABANDONED_S = 60.0
"""Age of a pass from which its lock does not count: its process may be stopped, and passes may run at the same time."""

_LOCK = "evict.lock"
_SHARDS = 256
_PRIVATE = r"[0-9]{1,10}\.[0-9a-f]{16}"
_LOCK_FILE = r"[0-9a-f]{64}"
_HEADERS = r"new-.*|[0-9a-f]{32}"
QUARANTINED = r"[0-9a-f]{62}\.[0-9a-f]{8}"


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
        self.mutex = threading.RLock()
        self._thread: threading.Thread | None = None

    def start_if_due(self, files: list[FoundFile]) -> None:
        """Start a pass if the files of a folder are more than its share of a limit, or none ran for a day."""
        limits, size_bytes = self._store.settings, sum(file.size_bytes for file in files)
        is_full = len(files) * _SHARDS > limits.max_entries or size_bytes * _SHARDS > limits.max_size_bytes
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
        with self.mutex:
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
    ) -> Usage:
        """Run a pass in this thread; nothing is removed while another process runs one.

        Args:
            max_size_bytes: Size to reach; None: the low-water mark of the limit, if the limit is exceeded.
            older_than_s: Also remove files that were not used for this many seconds.
            is_asked: Report if another pass is running.
        """
        removed: list[FoundFile] = []
        try:
            lock = begin_pass(self._tree, self._store.clock())
            if lock is not None:
                try:
                    removed = self._pass(max_size_bytes, older_than_s)
                finally:
                    lock.close()
            elif is_asked:
                why = f"another process holds {_LOCK} in {self._tree.root}: it removes entries now, try again later"
                self._store.trouble("evict", f"nothing was removed: {why}")
        except OSError as error:
            if error.errno not in ABSENT:
                self._store.trouble("evict", error)
        found = sum_of(removed)
        if found.size_bytes:
            self._store.emit(Event(EventKind.EVICTED, found._asdict()))
        return found

    def _pass(self, max_size_bytes: int | None, older_than_s: float | None) -> list[FoundFile]:
        """Remove files; the caller holds the lock."""
        store, now_s = self._store, self._store.clock()
        latest_ns = int(now_s * 1e9) + RECENCY_NS  # a clock that was ahead set later times: those files go first
        files = sorted(self._tree.walk(*FOLDERS), key=lambda file: (file.used_ns <= latest_ns, file.used_ns))
        reached("eviction.walked")
        doomed = choose(
            files,
            max_size_bytes=store.settings.max_size_bytes if max_size_bytes is None else max_size_bytes,
            max_entries=store.settings.max_entries,
            before_ns=0 if older_than_s is None else int((now_s - older_than_s) * 1e9),
            low_water=LOW_WATER if max_size_bytes is None else 1.0,
        )
        removed = []
        for file in doomed:
            reached("eviction.removing")
            if remove(file, unchanged=True):
                removed.append(file)
                reached("eviction.removed")
        reap(self._tree)
        store.counters.fold()
        return removed

    def clear(self) -> Usage:
        """Remove every entry, manifest, damaged file and extracted header."""
        with suppress(OSError), self._tree.opened(QUARANTINE) as folder:
            for name in named(folder, QUARANTINED):
                unlink(folder, name)
        remove_headers(self._tree)
        return sum_of([file for file in self._tree.walk(*FOLDERS) if remove(file)])


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
    files: list[FoundFile], *, max_size_bytes: float, max_entries: float, before_ns: int = 0, low_water: float = 1.0
) -> list[FoundFile]:
    """Choose the files to remove.

    Args:
        files: All files, sorted from the least recently used.
        max_size_bytes: Limit of all files together.
        max_entries: Limit of the number of files of each kind.
        before_ns: Also choose files that were last used before this time.
        low_water: Share of an exceeded limit down to which files are chosen.
    """
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


def remove(file: FoundFile, *, unchanged: bool = False) -> bool:
    """Remove an entry, manifest or record; returns True if it is gone.

    Args:
        file: The file, as a walk found it.
        unchanged: Remove it only if it was not used or replaced since the walk.
    """
    with suppress(OSError), file.tree.opened(FOLDERS[file.kind], file.key[:2]) as folder:
        status = stat_in(folder, file.key[2:])
        if not unchanged or (status.st_mtime_ns, status.st_size) == (file.used_ns, file.size_bytes):
            return unlink(folder, file.key[2:])
    return False


def remove_headers(tree: Tree) -> None:
    """Remove the extracted headers beside a tree. A compile that needs them extracts them again.

    A folder loses its name first: under that, no process may find a part of the headers.
    """
    if not tree.is_private:
        return
    with suppress(OSError):
        root = tree.open_root()
        try:
            above = open_in(root, HEADERS, FOLDER)
        finally:
            os.close(root)
        try:
            for name in named(above, _HEADERS):
                doomed = f"new-{name}"
                with suppress(OSError):
                    if stat.S_ISDIR(stat_in(above, name).st_mode):
                        rename_in(above, name, above, doomed)
                    remove_folder_in(above, doomed)
        finally:
            os.close(above)


def sum_of(files: list[FoundFile]) -> Usage:
    """Count these files and their bytes."""
    from .listing import Usage  # here: a put that starts no pass does not need it

    return Usage(sum(file.size_bytes for file in files), sum(file.kind == ENTRY for file in files))


def named(folder: int, pattern: str) -> Iterator[str]:
    """Yield the names in an open folder that match a pattern."""
    return (name for name in os.listdir(folder) if re.fullmatch(pattern, name))


def reap(tree: Tree) -> None:
    """Remove private files and lock files whose processes have ended.

    Age is the difference to the time of the pass's lock file, which was just set by the filesystem's clock: that may
    differ from ours.
    """
    locks = Folder(tree, LOCKS)
    with suppress(OSError), tree.opened() as folder:
        stale_s = stat_in(folder, _LOCK).st_ctime - STALE_S
        for name in named(folder, _PRIVATE):
            with suppress(OSError):
                if stat_in(folder, name).st_ctime < stale_s:
                    unlink(folder, name)
        for name in locks.names():
            with suppress(OSError):
                if re.fullmatch(_LOCK_FILE, name) and locks.status(name).st_ctime < stale_s:
                    lock = LockFile(locks, name)
                    lock.open()
                    with suppress(OSError):  # a filesystem without locks
                        if not lock.try_lock():
                            continue
                    lock.remove()  # while it is locked: a process that waits for it starts over
                    lock.close()
