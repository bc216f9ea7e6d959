"""Single flight: one builder per key among the threads and processes of a node; the others wait for a limited time.

Promise     At most one thread of a node holds the turn (the lock) of a key. A waiter whose time runs out, or whose
            predecessor failed, builds without the turn. A turn ends when its owner ends, even if it is killed. If the
            owner's process is stopped, one waiter takes the turn over after `STOPPED_S`, which a process spends once in
            its life, and the others wait for that waiter; an owner that runs is not replaced, however long it builds.
            The time that a process waits in vain is bounded over its whole life. No thread waits for another key, nor
            while it holds the turn of one. Correctness does not depend on turns: at worst a kernel is compiled twice.
            An exception at any line, such as a signal handler's, leaves no turn behind once it was handled.
Method      A mark per key within the process (waiting), flock on a file per key between processes. flock belongs to an
            open file and ends with it. It takes 3 us; creating and removing a lock file takes 20 us, and the filelock
            package 174 us. The owner removes the file before it unlocks; a process that locks a removed file starts
            over. An owner that fails leaves a mark in the file; its waiters then build at once, so that 256 ranks do
            not fail one after the other. A builder writes its process into the file; a waiter asks the system whether
            that is stopped. A process that cannot be seen, as in another container, counts as running. One that is not
            named, as of a stranger's lock, counts as stopped.
Not here    The search for the built entry: a waiter calls `look` at each step.
Source      flock(2): a forked child inherits a lock, so it closes the lock files that its parent holds.
"""

from __future__ import annotations

import errno
import math
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .. import waiting
from ..model import NamedTuple
from . import identity_of, renewed_in_children, touch, try_flock, unlock

if TYPE_CHECKING:  # locks among threads alone need no folder
    from .folders import Folder

Result = TypeVar("Result")

STOPPED_S = 5.0
"""Time, in seconds, after which a builder that is stopped is replaced."""

_FIRST_PAUSE_S = 0.002
_LONGEST_PAUSE_S = 0.05
_GROWTH = 1.2
"""Factor from one pause to the next. A waiter notices the end of a turn only after its last pause, which with this
factor is at most a sixth of the whole wait."""


class Turn(NamedTuple, Generic[Result]):
    """Outcome of a caller's wait.

    Args:
        found: The entry that another thread or process built meanwhile; None: the caller builds.
        waited_s: Seconds that the caller waited.
        has_turn: Whether the caller holds the key's turn; False if the wait ran out, the turn's owner failed, or the
            system has no locks.
    """

    found: Result | None
    waited_s: float
    has_turn: bool


_FAILED = b"its owner failed"  # longer than the number of any process


def _has_failed(status: os.stat_result) -> bool:
    """Check by the stat of a lock file whether its owner has failed."""
    return status.st_size == len(_FAILED) and not status.st_nlink


class LockFile:
    """A file of a folder, and the open descriptor by which this process locks it.

    The descriptor is used only while it leads to the file that was opened: some programs close descriptors that they
    did not open, and their own files then have the numbers. It is closed with the last reference to this object.
    """

    _fd = -1
    _identity: tuple[int, int] | None = None

    def __init__(self, folder: Folder, name: str) -> None:
        self.folder, self.name = folder, name

    def open(self, *, make: bool = False) -> None:
        """Open the file unless it is open; a missing one is made and, with `make`, a missing folder."""
        if self._fd < 0:
            self._identity = None
            self._fd = self.folder.open(self.name, os.O_RDWR | os.O_CREAT, make=make)
            self._identity = identity_of(os.fstat(self._fd))

    def status(self) -> os.stat_result:
        """The stat of the open file.

        Raises:
            OSError: It is not open any more.
        """
        status = os.fstat(self._fd)
        if self._identity not in (None, identity_of(status)):
            raise OSError(errno.EBADF, "closed by the program")
        return status

    def try_lock(self) -> bool:
        """Lock the open file; False if another process or thread has locked it."""
        self.status()
        try:
            try_flock(self._fd)
        except BlockingIOError:
            return False
        return True

    def touch(self, now_ns: int) -> None:
        """Set the time of the file, which was just opened."""
        touch(self._fd, now_ns)

    def write(self, data: bytes) -> None:
        """Replace the content of the open file."""
        self.status()
        os.ftruncate(self._fd, len(data))
        os.pwrite(self._fd, data, 0)

    def remove(self) -> None:
        """Remove the file from its folder, unless another one has its name: another process may have taken over."""
        with suppress(FileNotFoundError):
            self.folder.unlink(self.name, only=self.status())

    def is_stopped(self) -> bool:
        """Check whether the process that the open file names is stopped; a file that names none counts as stopped."""
        process = os.pread(self._fd, 20, 0)
        if not process.isdigit():
            return True
        try:
            with open(b"/proc/%b/stat" % process, "rb") as file:
                return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")  # the name before it may be anything
        except OSError:
            return False

    def close(self, *, unlocks: bool = True) -> None:
        """Unlock and close the file; in a forked child, whose parent has the lock, without unlocking."""
        try:
            if self._fd >= 0:
                self.status()
                if unlocks:
                    unlock(self._fd)
                os.close(self._fd)
        except OSError:  # it was closed by the program
            pass
        self._fd = -1

    def __del__(self) -> None:  # CPython drops an exception that a signal handler raises here: do little
        if self._fd >= 0:
            self.close()


class KeyLocks:
    """The turns of one store.

    Args:
        folder: Folder of the lock files, on this node and writable; None: only threads of this process take turns.
        clock: A clock that is never set, in seconds.
        pause: Waits for a number of seconds.
    """

    def __init__(
        self,
        folder: Folder | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self.folder, self.clock, self.pause = folder, clock, pause
        self.waited_in_vain_s, self.has_met_stopped = 0.0, False
        self.turns: waiting.Turns = {}
        self.held: weakref.WeakSet[LockFile] = weakref.WeakSet()
        renewed_in_children.add(self)

    def after_fork(self) -> None:
        """Close the lock files that the parent holds, and start without turns."""
        for file in list(self.held):
            file.close(unlocks=False)
        self.turns, self.held = {}, weakref.WeakSet()
        _building.clear()

    def is_taken(self, name: str) -> bool:
        """Check whether a process has the turn of a name, or was killed while it had it."""
        try:
            return self.folder is not None and bool(self.folder.status(name))
        except OSError:
            return False

    def turn(
        self,
        name: str,
        look: Callable[[], Result | None],
        wait_s: float,
        *,
        builds: bool = False,
        has_keys: bool = False,
    ) -> KeyTurn[Result]:
        """Wait for the turn of `name`, or until `look` finds something, or at most `wait_s` seconds for processes.

        A process waits in vain for at most `wait_s` seconds for all turns together.

        Args:
            name: A file name: the key.
            look: Returns the entry that is waited for, or None. Called after every wait, the last one included.
            wait_s: Longest wait for other processes; after it the caller builds without the turn. 0: wait for nobody.
            builds: The turn may last long: waiters replace an owner that is stopped.
            has_keys: A thread with this turn may wait for keys: it is not the turn of one.
        """
        return KeyTurn(self, name, look, wait_s, builds=builds, is_key=builds and not has_keys)


_building: dict[int, weakref.ref[Any]] = {}
"""The first of the turns with `builds` that each thread has, by `threading.get_ident()`."""


class KeyTurn(Generic[Result]):
    """A context in which the caller has the turn of a name, or works without it, as its `Turn` says."""

    def __init__(
        self,
        locks: KeyLocks,
        name: str,
        look: Callable[[], Result | None],
        wait_s: float,
        *,
        builds: bool,
        is_key: bool,
    ) -> None:
        self._locks, self._name, self._look, self._wait_s = locks, name, look, wait_s
        self._builds, self._is_key = builds, is_key
        self._mark: waiting.Turn | None = None
        self._file: LockFile | None = None
        self._has_waited = False

    def __enter__(self) -> Turn[Result]:
        try:
            return self._take()
        except BaseException:
            self._end(has_failed=True)
            raise

    def __exit__(self, kind: type[BaseException] | None, error: object, where: TracebackType | None) -> None:
        self._end(has_failed=kind is not None)

    def _take(self) -> Turn[Result]:
        locks, me = self._locks, threading.get_ident()
        start_s, builds = locks.clock(), _building.get(me)
        is_building = self._is_key and builds is not None and builds() is not None
        most_s = 0.0 if is_building else self._wait_s  # the other one may wait for a turn of this thread
        self._mark = waiting.Turn(locks.turns, self._name, wait_s=math.inf if self._builds and most_s else most_s)
        mark = self._mark.__enter__()
        found = self._look() if mark.waited_s or not mark.is_mine else None
        if found is None and mark.is_mine:
            deadline_s = locks.clock() + most_s - locks.waited_in_vain_s
            found = self._look() if locks.folder is None else self._take_file(deadline_s)
        waited_s = locks.clock() - start_s if mark.waited_s or self._has_waited else 0.0
        if found is None and (self._builds or self._file is None):
            locks.waited_in_vain_s += waited_s - mark.waited_s
        if found is None and self._is_key and not is_building:
            _building[me] = weakref.ref(self)
        return Turn(found, waited_s, self._file is not None or (mark.is_mine and locks.folder is None))

    def _take_file(self, deadline_s: float) -> Result | None:
        """Take the lock among processes into `_file`, unless `_look` finds the entry, which is returned."""
        locks, pause_s = self._locks, _FIRST_PAUSE_S
        ran_s = locks.clock()
        assert locks.folder is not None
        file = LockFile(locks.folder, self._name)
        locks.held.add(file)
        try:
            while True:
                file.open(make=True)
                if file.try_lock():
                    status = file.status()
                    if status.st_nlink and (self._builds or status.st_size):  # a mark: its owner was killed
                        file.write(b"%d" % os.getpid())
                    found = self._look()
                    if found is not None or _has_failed(status):
                        file.remove()  # built; or the owner that this waited for has failed
                        return found
                    if status.st_nlink:
                        self._file = file
                        return None
                    self._has_waited, now_s = True, locks.clock()
                    is_over = now_s >= deadline_s  # others removed each file, or links are not counted
                    file.close()
                else:
                    self._has_waited = True
                    found, status, now_s = self._look(), file.status(), locks.clock()
                    is_over = found is not None or _has_failed(status) or now_s >= deadline_s
                    is_over = is_over or waiting.is_reentered()  # it may wait for what this thread has interrupted
                    if not is_over and self._builds and status.st_nlink:
                        if not file.is_stopped():
                            ran_s = now_s
                        elif locks.has_met_stopped or now_s - ran_s >= STOPPED_S:
                            locks.has_met_stopped = True
                            file.remove()
                            status = file.status()
                    if not is_over and not status.st_nlink:  # the turn now belongs to another file of this name
                        file.close()
                        ran_s = now_s
                        continue
                if is_over:
                    return found
                locks.pause(min(pause_s, max(0.0, deadline_s - now_s)))
                pause_s = min(_GROWTH * pause_s, _LONGEST_PAUSE_S)
        except OSError:
            return self._look()  # not writable, no locks on this filesystem, or the file is gone
        finally:
            if file is not self._file:
                file.close()

    def _end(self, *, has_failed: bool) -> None:
        """End the turn; if an exception interrupts this, the rest is done with the last reference to this object."""
        file, mark = self._file, self._mark
        if file is not None:
            with suppress(OSError):
                if has_failed:
                    file.write(_FAILED)
                file.remove()
            file.close()
            self._file = None
        if mark is not None:
            mark.end(has_failed=has_failed)
        builds = _building.get(me := threading.get_ident())
        if builds is not None and builds() is self:
            _building.pop(me, None)
