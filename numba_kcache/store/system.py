"""What the store needs of the system, under names that are there on every system.

Promise     Every module of this room can be imported everywhere. `missing()` says what a store of files lacks here;
            where it lacks something nobody makes a DiskStore, and kernels are kept in memory.
Ground      Windows has no fcntl, no O_NOFOLLOW and no fork; macOS has all but fdatasync, for which fsync stands in.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

CLOEXEC: int = getattr(os, "O_CLOEXEC", 0)
DIRECTORY: int = getattr(os, "O_DIRECTORY", 0)
NOFOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
NONBLOCK: int = getattr(os, "O_NONBLOCK", 0)

_NEEDED = ("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "geteuid", "pread", "register_at_fork")


def missing() -> str:
    """The first thing that a store of files needs and this system lacks; "" where it lacks none."""
    return next((f"os.{name}" for name in _NEEDED if not hasattr(os, name)), "")


def try_flock(fd: int) -> None:
    """Lock the open file `fd` for this owner alone, without waiting.

    Raises:
        BlockingIOError: Another has it.
        OSError: This filesystem, or this system, has no locks.
    """
    try:
        import fcntl  # here, for a hit takes no lock
    except ImportError:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from None
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def sync_data(fd: int) -> None:
    """Force the bytes of the open file `fd` to the disk."""
    getattr(os, "fdatasync", os.fsync)(fd)


def after_fork(work: Callable[[], object]) -> None:
    """Have `work` called in every child that is forked, where there is fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=work)
