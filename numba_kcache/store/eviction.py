"""Evict the least recently used entries of a tree down to its limits, and remove what killed processes left.

Promise     After a pass the tree is within its limits, except for files that others added meanwhile; the most recently
            used entry is removed last; no file that changed since the walk is removed. A reader that has opened a file
            can read it to the end. Readers, writers and other passes may run at the same time.
Method      Walk, sort by recency, remove until 85 % of the limit is reached, so that passes are rare. Each file's stat
            is read again before it is removed. One pass per node at a time: a process that does not get the lock at
            once leaves the pass to the process that has it.
Not here    When to run, and which files to remove (store.limits).
Faults      eviction.walked, .removing, .removed (tests/crash kills here).
Source      Walking 100,000 files takes 0.4 s, removing one 9 us. Bazel's disk cache compares stats too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from .counters import CounterFile
from .entry import ENTRY
from .faults import reached
from .folders import LOCKS, PRIVATE, STATISTICS, Folder
from .limits import begin_pass, choose
from .locks import LockFile
from .names import PATTERNS, remove, remove_named
from .publish import private_name
from .report import Removed
from .tree import FOLDERS, RECENCY_NS, Found, Tree

FAULT_POINTS = ("eviction.walked", "eviction.removing", "eviction.removed")

LOW_WATER = 0.85
"""Share of a limit down to which a pass removes."""

STALE_S = 3600
"""Age from which a private file, or a lock file that no process has locked, is removed."""


def evict(
    tree: Tree,
    *,
    max_size_bytes: int,
    max_entries: int,
    now_s: float,
    older_than_s: float | None = None,
    low_water: float = 1.0,
) -> Removed | None:
    """Run one pass.

    Args:
        tree: The tree to evict from.
        max_size_bytes: Limit of all files together.
        max_entries: Limit of the number of files of each kind.
        now_s: Time, in seconds since the epoch.
        older_than_s: Also remove files that were not used for this many seconds.
        low_water: Share of an exceeded limit down to which files are removed.

    Returns:
        The number of entries removed and the bytes freed; None if another pass is running.

    Raises:
        OSError: The tree cannot be used.
    """
    lock = begin_pass(tree, now_s)
    if lock is None:
        return None
    try:
        latest_ns = int(now_s * 1e9) + RECENCY_NS  # a clock that was ahead set later times: those files go first
        files = sorted(tree.walk(*FOLDERS), key=lambda file: (file.used_ns <= latest_ns, file.used_ns))
        reached("eviction.walked")
        doomed = choose(
            files,
            max_size_bytes=max_size_bytes,
            max_entries=max_entries,
            before_ns=time_before_ns(now_s, older_than_s),
            low_water=low_water,
        )
        removed = []
        for file in doomed:
            reached("eviction.removing")
            if remove(file, unchanged=True):
                removed.append(file)
                reached("eviction.removed")
        reap(tree)
        CounterFile(Folder(tree, STATISTICS), clock=lambda: now_s).fold()
        return sum_of(removed)
    finally:
        lock.close()


def time_before_ns(now_s: float, older_than_s: float | None) -> int:
    """The time, in nanoseconds, before which an entry's last use counts as too old; 0 for any age."""
    return 0 if older_than_s is None else int((now_s - older_than_s) * 1e9)


def sum_of(files: Iterable[Found]) -> Removed:
    """Count these files and their bytes, as the result of removing them."""
    gone = list(files)
    return Removed(sum(file.kind == ENTRY for file in gone), sum(file.size_bytes for file in gone))


def reap(tree: Tree) -> None:
    """Remove temporary files and lock files whose processes have ended.

    Age is the difference to the time of a file made now on the same filesystem, whose clock may differ from ours.
    """
    private, locks = Folder(tree, PRIVATE), Folder(tree, LOCKS)
    try:
        probe = private_name()
        os.close(private.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, make=True))
        now_s = private.status(probe).st_mtime
        private.unlink(probe)
        with tree.opened(PRIVATE) as folder:
            remove_named(folder, PRIVATE, before_s=now_s - STALE_S)
    except OSError:
        return
    for name in (each for each in locks.names() if re.fullmatch(PATTERNS[LOCKS], each)):
        try:
            if locks.status(name).st_ctime < now_s - STALE_S:
                lock = LockFile(locks, name)
                lock.open()
                try:
                    is_free = lock.try_lock()
                except OSError:  # a filesystem without locks
                    is_free = True
                if is_free:
                    lock.remove()  # while it is locked: a process that waits for it starts over
                lock.close()
        except OSError:
            continue
