"""Single flight: one builder per key among the threads and processes of a node; the others wait for a limited time.

Promise     At most one thread of a node holds the turn (the lock) of a key. A waiter whose time runs out, or whose
            predecessor failed, builds without the turn. A turn ends when its owner ends, even if it is killed. If the
            owner shows no sign of life, one waiter takes the turn over and the others wait for that waiter. The time
            that a process waits in vain is bounded over its whole life. Different keys never wait for each other.
            Correctness does not depend on turns: at worst a kernel is compiled twice.
Method      A threading.Lock per key within the process, flock on a file per key between processes. flock belongs to an
            open file and ends with it. It takes 3 us; creating and removing a lock file takes 20 us, and the filelock
            package 174 us. The owner removes the file before it unlocks; a process that locks a removed file starts
            over. An owner that fails leaves a byte in the file; its waiters then build at once, so that 256 ranks do
            not fail one after the other. A thread of the builder sets the file's time each second, as long as the
            process runs; a waiter that sees no new time for `SILENT_S`, by its own monotonic clock, removes the file
            and so takes the turn over.
            A waiter may be given other work (`meanwhile`), whose time does not count as waiting. The slots for the
            compilers that run at once on a node are locked files too: a killed owner's lock ends with it.
Not here    The search for the built entry: a waiter calls `look` at each step.
Source      flock(2): a forked child inherits a lock, so it closes the lock files that its parent holds.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Generic, TypeVar

from ..model import NamedTuple
from ..waiting import is_reentered, wait
from . import renewed_in_children, try_flock

if TYPE_CHECKING:  # locks among threads alone need no folder
    from .folders import Folder

Result = TypeVar("Result")

SILENT_S = 10.0
"""Longest time that a living builder leaves its lock file's time unchanged, in seconds."""

WARM_UPS = 1 << 32
"""Number of the slot for a warm-up (a directory runs one at a time); compilers have the slots from 0 on."""

Meanwhile = Callable[[], bool]
"""Does some other work while waiting; returns False if there is none."""

BEAT_S = 1.0
_FIRST_PAUSE_S = 0.002
_LONGEST_PAUSE_S = 0.05
_GROWTH = 1.2
"""Factor from one pause to the next. A waiter notices the end of a turn only after its last pause, which with this
factor is at most a sixth of the whole wait."""
_OPEN = os.O_RDWR | os.O_CREAT


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


class _Seat:
    """The turn of one key among the threads of this process."""

    __slots__ = ("failed", "lock", "owner", "users")

    def __init__(self) -> None:
        # not an RLock: a thread that needs a key again while it builds that key builds without the turn
        self.lock, self.users, self.failed = threading.Lock(), 0, False
        self.owner = threading.get_ident(), os.getpid()

    def take(self, wait_s: float = 0.0) -> bool:
        """Acquire the lock within `wait_s`, unless this thread holds it itself; returns True if it was acquired."""
        is_acquired = self.lock.acquire(blocking=False)
        if not is_acquired and wait_s > 0:
            is_acquired = wait(lambda pause_s: self.lock.acquire(timeout=pause_s), self.owner, wait_s)
        if is_acquired:
            self.owner = threading.get_ident(), os.getpid()
        return is_acquired


class KeyLocks:
    """The turns of one store.

    Args:
        folder: Folder of the lock files, on this node and writable; None: only threads of this process take turns.
        clock: A clock that is never set, in seconds.
        pause: Waits for a number of seconds; None for `time.sleep`.
    """

    def __init__(
        self,
        folder: Folder | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        self._folder, self._clock, self._pause = folder, clock, pause
        self._waited_in_vain_s = 0.0
        self._reset()
        renewed_in_children.add(self)

    def _reset(self) -> None:
        self._mutex = threading.RLock()
        self._seats: dict[str, _Seat] = {}
        self._held: set[int] = set()
        self._threads_with_slot: set[int] = set()
        self._slot_file: tuple[str, int] | None = None

    def after_fork(self) -> None:
        """Close the lock files that the parent holds, and start without turns."""
        for fd in self._held:
            with suppress(OSError):
                os.close(fd)
        self._reset()

    @contextmanager
    def turn(
        self,
        name: str,
        look: Callable[[], Result | None],
        wait_s: float,
        *,
        builds: bool = False,
        meanwhile: Meanwhile = lambda: False,
    ) -> Iterator[Turn[Result]]:
        """Wait for the turn of `name`, or until `look` finds something, or at most `wait_s` seconds.

        Args:
            name: A file name: the key.
            look: Returns the entry that is waited for, or None. Called after every wait, the last one included.
            wait_s: Longest wait; after it the caller builds without the turn.
            builds: The turn may last long: its owner shows signs of life, and waiters watch for them. A process waits
                in vain for at most `wait_s` seconds for all such turns together.
            meanwhile: Called while another process has the turn; where it returns False, the waiter pauses.
        """
        start = self._clock()
        wait_s = max(0.0, wait_s - self._waited_in_vain_s) if builds else wait_s
        helped_s = 0.0
        end_of_beat: Callable[[], object] = _no_beat
        with self._mutex:
            seat = self._seats.setdefault(name, _Seat())
            seat.users += 1
        has_seat, fd, failed = False, None, True
        try:
            found: Result | None = None
            has_seat = seat.take()
            if not has_seat:
                has_seat = seat.take(wait_s)
                found = look()
                if has_seat and seat.failed:
                    seat.lock.release()  # later threads must not wait for this one to fail as well
                    has_seat = False
            if found is None and has_seat:
                seat.failed = False
                silent_s = SILENT_S if builds else wait_s
                fd, found, helped_s = self._lock_file(name, look, start + wait_s, silent_s, meanwhile)
            waited_s = self._clock() - start - helped_s
            if builds and found is None:
                self._waited_in_vain_s += waited_s
            if builds and fd is not None:
                end_of_beat = _beating(fd)
            yield Turn(found, waited_s, fd is not None or (has_seat and self._folder is None))
            failed = False
        finally:
            end_of_beat()
            if fd is not None:
                self._unlock_file(name, fd, failed)
            if has_seat:
                seat.failed = seat.failed or failed
                seat.lock.release()
            with self._mutex:
                seat.users -= 1
                if not seat.users and self._seats.get(name) is seat:
                    del self._seats[name]

    @contextmanager
    def slot(self, count: int, first: int = 0) -> Iterator[bool]:
        """Take one of the node's `count` slots for compilers, if one is free; yields True if this process has one.

        A slot is the right to run a compiler. The threads of a process share one: a build may wait for others that it
        started, and compilers take turns within a process. Where the filesystem has no locks, every process has a slot.
        Slots for other purposes have numbers from `first` on, and `KeyLocks` of their own (`apart`).
        """
        thread = threading.get_ident()
        with self._mutex:
            is_first = thread not in self._threads_with_slot
            has_slot = bool(self._threads_with_slot) or self._took_slot(range(first, first + count))
            if has_slot:
                self._threads_with_slot.add(thread)
        try:
            yield has_slot
        finally:
            if is_first:
                self.release_slot()

    def release_slot(self) -> None:
        """Release this thread's share of the slot: after its compile, or while it waits during the compile."""
        with self._mutex:
            self._threads_with_slot.discard(threading.get_ident())
            if not self._threads_with_slot and self._slot_file is not None:
                (name, fd), self._slot_file = self._slot_file, None
                self._unlock_file(name, fd, False)

    def apart(self) -> KeyLocks:
        """Make other `KeyLocks` on the same files; the two exclude each other as two processes would."""
        return KeyLocks(self._folder)

    def _took_slot(self, numbers: range) -> bool:
        try:
            for name in (f"{number:064x}" for number in numbers):  # never an entry's key, which is a digest
                if self._folder is None:
                    return True
                fd = self._folder.open(name, _OPEN, make=True)
                try:
                    try_flock(fd)
                    if os.fstat(fd).st_nlink:
                        self._held.add(fd)
                        self._slot_file = name, fd
                        return True
                except BlockingIOError:
                    pass
                finally:
                    if fd not in self._held:
                        os.close(fd)
        except OSError:
            return True
        return False

    def is_taken(self, name: str) -> bool:
        """Check whether the turn of a name is held, or was held by a process that was killed."""
        try:
            return self._folder is not None and self._folder.status(name) is not None
        except OSError:
            return False

    def idle_s(self) -> float:
        """Seconds since a turn of this node was last taken or ended, by the system's clock."""
        try:
            return time.time() - self._folder.status(".").st_mtime if self._folder is not None else math.inf
        except OSError:
            return math.inf

    def _lock_file(
        self, name: str, look: Callable[[], Result | None], deadline: float, silent_s: float, meanwhile: Meanwhile
    ) -> tuple[int | None, Result | None, float]:
        """The descriptor of the locked file or None, the entry found, and the seconds spent on other work."""
        if self._folder is None:
            return None, look(), 0.0
        pause, fd, beat, heard, helped_s = _FIRST_PAUSE_S, -1, -1, 0.0, 0.0
        try:
            while True:
                if fd < 0:
                    fd = self._folder.open(name, _OPEN, make=True)
                try:
                    try_flock(fd)
                except BlockingIOError:
                    found, status, now = look(), os.fstat(fd), self._clock()
                    if status.st_mtime_ns != beat:
                        beat, heard = status.st_mtime_ns, now
                    remaining = deadline + helped_s - now
                    has_failed = status.st_size and not status.st_nlink
                    # a thread that re-entered the package may own the turn itself
                    if found is not None or remaining <= 0 or has_failed or is_reentered():
                        return None, found, helped_s
                    is_silent = now - heard >= silent_s
                    if is_silent:
                        self._remove(name, fd)
                    if is_silent or not status.st_nlink:  # the turn now belongs to another file of this name
                        os.close(fd)
                        fd = beat = -1
                        continue
                    if meanwhile():
                        helped_s, pause = helped_s + self._clock() - now, _FIRST_PAUSE_S
                        continue
                    (self._pause or time.sleep)(min(pause, remaining))
                    pause = min(_GROWTH * pause, _LONGEST_PAUSE_S)
                    continue
                found, status = look(), os.fstat(fd)
                if found is not None or (status.st_size and not status.st_nlink):
                    if status.st_nlink:
                        self._folder.unlink(name)
                    return None, found, helped_s  # built; or the owner that we waited for has failed
                if status.st_nlink:
                    os.ftruncate(fd, 0)  # erase the mark of an owner that was killed before it removed the file
                    held, fd = fd, -1
                    self._held.add(held)
                    return held, None, helped_s
                if self._clock() >= deadline + helped_s:  # others removed each file, or links are not counted
                    return None, None, helped_s
                os.close(fd)
                fd = -1
                (self._pause or time.sleep)(pause)
                pause = min(_GROWTH * pause, _LONGEST_PAUSE_S)
        except OSError:
            return None, look(), helped_s  # not writable, no locks on this filesystem, or the file is gone
        finally:
            if fd >= 0:
                os.close(fd)

    def _unlock_file(self, name: str, fd: int, failed: bool) -> None:
        if fd not in self._held:
            return  # forked meanwhile: the lock is the parent's
        self._held.discard(fd)
        assert self._folder is not None
        try:
            if failed:
                os.write(fd, b"!")
            self._remove(name, fd)
        except OSError:
            pass
        finally:
            os.close(fd)

    def _remove(self, name: str, fd: int) -> None:
        """Remove the file of a name if it is the open file `fd`: another process may have taken the turn over."""
        assert self._folder is not None
        with suppress(FileNotFoundError):
            self._folder.unlink(name, only=os.fstat(fd))


def _no_beat() -> None:
    """Do nothing: no thread was started."""


def _beating(fd: int) -> Callable[[], object]:
    """Set the time of the open file each second from a thread; returns the function that ends the thread."""
    ended = threading.Event()

    def work() -> None:
        with suppress(OSError):
            while not ended.wait(BEAT_S):
                os.utime(fd)

    thread = threading.Thread(target=work, name="numba_kcache-beat", daemon=True)
    pid = os.getpid()
    try:
        thread.start()
    except RuntimeError:  # no more threads can be started: another process may build the key a second time
        return _no_beat

    def end() -> None:
        if pid == os.getpid():  # a forked child has no such thread, and `ended` may be locked
            ended.set()
            thread.join()  # before the file is closed: another file may then have its number

    return end
