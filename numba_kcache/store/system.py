"""What the store needs of the system, under names that are there on every system.

Promise     Every module of this room can be imported everywhere. `missing()` says what a store of files lacks here;
            where it lacks something nobody makes a DiskStore, and kernels are kept in memory.
Ground      Windows has no fcntl, no O_NOFOLLOW and no fork; macOS has all but fdatasync, for which fsync stands in.
"""

from __future__ import annotations

import errno
import os
import weakref
from contextlib import suppress
from typing import Protocol

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


def unlock(fd: int) -> None:
    """Unlock a file that `try_flock` has locked; closing it is not enough while a forked child has it open."""
    with suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_UN)


def sync_data(fd: int) -> None:
    """Force the bytes of the open file `fd` to the disk."""
    getattr(os, "fdatasync", os.fsync)(fd)


class Forked(Protocol):
    """What holds locks or threads that a forked child does not have."""

    def after_fork(self) -> None:
        """Make anew, in the child, what another thread of the parent may have held."""


def renew_in_children(each: Forked) -> None:
    """Have `each.after_fork()` called in every child that is forked while it lives, where there is fork."""
    _forked.add(each)


_forked: weakref.WeakSet[Forked] = weakref.WeakSet()


def _after_fork() -> None:
    for each in list(_forked):
        each.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
