"""Leave a server that does not answer alone for a while: one slow start for a node, not one for each kernel and rank.

Promise     From a failure on, nobody of this node asks for `period_s`; then one process asks, and the others from when
            it got an answer, or not for another period. Processes that ask at the same moment for the first time may
            each wait, at the same time, once.
Method      A file beside the local store, empty: its time is that of the last failure. Who finds it too old renews it
            under a lock before it asks, so that the others stay away meanwhile; an answer removes it. Where there is
            no directory, or none that is written to, each process has a breaker of its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from ..store.system import CLOEXEC, NOFOLLOW, try_flock

PERIOD_S = 30.0


class Breaker:
    """The breaker of one tier.

    Args:
        path: Of the file; None for this process alone.
        period_s: How long a server is left alone.
        clock: Seconds since the epoch, as the file's times are.
    """

    def __init__(self, path: str | None, *, period_s: float = PERIOD_S, clock: Callable[[], float] = time.time) -> None:
        self._path, self._period_s, self._clock = path, period_s, clock
        self._until_s = 0.0
        self._is_probe = False

    def allows(self) -> bool:
        """Whether the server may be asked now."""
        now_s = self._clock()
        if now_s < self._until_s:
            return False
        if self._path is None:
            return True
        try:
            failed_s = os.stat(self._path).st_mtime
        except OSError:
            return True
        if 0 <= now_s - failed_s < self._period_s:
            self._until_s = failed_s + self._period_s
            return False
        self._is_probe = self._renewed(failed_s, now_s)
        if not self._is_probe:
            self._until_s = now_s + self._period_s
        return self._is_probe

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
        if self._is_probe:
            self._is_probe = False
            try:
                os.unlink(self._path or "")
            except OSError:
                pass

    def failed(self) -> None:
        """The server did not answer."""
        now_s = self._clock()
        self._until_s, self._is_probe = now_s + self._period_s, False
        if self._path is not None:
            try:
                os.makedirs(os.path.dirname(self._path), exist_ok=True)
                fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | NOFOLLOW | CLOEXEC, 0o600)
                try:
                    os.utime(fd, (now_s, now_s))
                finally:
                    os.close(fd)
            except OSError:
                pass  # then it is this process's alone
