"""Leave a server that does not answer alone for a while: one slow start for a node, not one for each kernel and rank.

Promise     From a failure on, nobody of this node asks for `period_s`; then one process asks, and the others from when
            it got an answer, or not for another period. Of processes that begin at the same moment one asks first, and
            the others when it got its answer. Only a server that fell silent within `FRESH_S` of its last answer may
            cost several processes a wait, at the same time, once.
Method      Two files beside the local store. `<tier>.down` is empty: its time is that of the last failure. Who finds it
            too old renews it under a lock before it asks, so that the others stay away meanwhile; an answer removes it.
            The time of `<tier>.up` is that of the last answer, and the lock on it is held by who asks while nobody
            knows. Where there is no directory, or none that is written to, each process has a breaker of its own.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from ..store.system import CLOEXEC, NOFOLLOW, try_flock

PERIOD_S = 30.0
FRESH_S = 5.0
"""How long an answer says that the server is there."""

_GATE_S = 6.0
"""Longest wait for another's answer: it may have been stopped while it asked."""


class Breaker:
    """The breaker of one tier. Each `allows` that says yes is followed by `ended`.

    Args:
        path: Of the file of the last failure, `.down`; None for this process alone.
        period_s: How long a server is left alone.
        clock: Seconds since the epoch, as the file's times are.
    """

    def __init__(self, path: str | None, *, period_s: float = PERIOD_S, clock: Callable[[], float] = time.time) -> None:
        self._path, self._period_s, self._clock = path, period_s, clock
        self._until_s = self._fresh_until_s = 0.0
        self._is_probe = False
        self._gate: tuple[int, int] | None = None

    def allows(self, *, is_awaited: bool = True) -> bool:
        """Whether the server may be asked now; for what nobody waits for, nobody else waits either."""
        now_s = self._clock()
        if now_s < self._until_s:
            return False
        if self._path is None:
            return True
        try:
            failed_s = os.stat(self._path).st_mtime
        except OSError:
            return not is_awaited or now_s < self._fresh_until_s or self._at_gate(self._path)
        if 0 <= now_s - failed_s < self._period_s:
            self._until_s = failed_s + self._period_s
            return False
        self._is_probe = self._renewed(failed_s, now_s)
        if not self._is_probe:
            self._until_s = now_s + self._period_s
        return self._is_probe

    def _at_gate(self, down: str) -> bool:
        """Whether the server may be asked, where it is not known to be away: at once, or when another has asked."""
        fd, is_locked, pause_s, end_s = -1, False, 0.0005, time.monotonic() + _GATE_S
        try:
            fd = _opened(_up(down))
            while not (self._is_fresh(fd) or os.path.exists(down)) and time.monotonic() < end_s:
                if is_locked:
                    self._gate, fd = (threading.get_ident(), fd), -1
                    return True
                is_locked = self._gate is None and _locked(fd)  # and look again: who had it may have ended since
                if not is_locked:
                    time.sleep(pause_s)
                    pause_s = min(2 * pause_s, 0.02)
        except (OSError, AttributeError):
            return True  # not to be written, or no locks here
        finally:
            if fd >= 0:
                os.close(fd)
        return not os.path.exists(down) or self.allows()

    def _is_fresh(self, fd: int) -> bool:
        now_s, status = self._clock(), os.fstat(fd)
        if not (status.st_size and 0 <= now_s - status.st_mtime < FRESH_S):
            return False
        self._fresh_until_s = status.st_mtime + FRESH_S
        return True

    def _renewed(self, failed_s: float, now_s: float) -> bool:
        """Whether this process is the one that asks next."""
        try:
            fd = os.open(self._path or "", os.O_RDWR | NOFOLLOW | CLOEXEC)
        except OSError:
            return True  # another got an answer meanwhile, or it cannot be written
        try:
            try_flock(fd)
            if os.fstat(fd).st_mtime != failed_s:
                return False
            os.utime(fd, (now_s, now_s))
            return True
        except BlockingIOError:
            return False
        except OSError:
            return True  # no locks here
        finally:
            os.close(fd)

    def answered(self) -> None:
        """The server answered."""
        now_s = self._clock()
        if self._path is None or now_s < self._fresh_until_s:
            return
        self._fresh_until_s = now_s + FRESH_S
        try:
            gate = self._own_gate()
            fd = _opened(_up(self._path)) if gate is None else gate
            try:
                os.ftruncate(fd, 1)  # an empty one, only just made, says nothing
                os.utime(fd, (now_s, now_s))
            finally:
                if gate is None:
                    os.close(fd)
            if self._is_probe:
                os.unlink(self._path)
        except OSError:
            pass  # then it is this process's alone
        self._is_probe = False

    def failed(self) -> None:
        """The server did not answer."""
        now_s = self._clock()
        self._until_s, self._fresh_until_s, self._is_probe = now_s + self._period_s, 0.0, False
        if self._path is not None:
            try:
                fd = _opened(self._path)
                try:
                    os.utime(fd, (now_s, now_s))
                finally:
                    os.close(fd)
            except OSError:
                pass  # then it is this process's alone

    def ended(self) -> None:
        """What was asked has an end, whichever."""
        gate = self._own_gate()
        if gate is not None:
            self._gate = None
            os.close(gate)

    def _own_gate(self) -> int | None:
        """The descriptor on which this thread holds the lock."""
        return self._gate[1] if self._gate is not None and self._gate[0] == threading.get_ident() else None


def _up(down: str) -> str:
    return f"{down.removesuffix('.down')}.up"


def _locked(fd: int) -> bool:
    """Whether this process has the lock on a file now. This kind is among processes, and its import is there."""
    try:
        os.lockf(fd, os.F_TLOCK, 0)  # fcntl, for flock, takes 0.25 ms to import
        return True
    except (BlockingIOError, PermissionError):
        return False


def _opened(path: str) -> int:
    """The file, made where there is none, with its folder."""
    flags = os.O_RDWR | os.O_CREAT | NOFOLLOW | CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return os.open(path, flags, 0o600)
