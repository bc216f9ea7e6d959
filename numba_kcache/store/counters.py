"""Counters that many processes add to without waiting for each other; a crash loses at most the last addition.

Promise     A record that `add` wrote is in every later `read` exactly once, also while another process folds files,
            and if any process is killed at any time. Counters with unknown names are summed like the others.
Method      Each process appends JSON lines to its own file, and starts another file after ten minutes. A read sums all
            files. Once there are more than 128, and no process looked for files to fold in the last ten minutes, those
            last written an hour ago or earlier (by the clock of their filesystem) are folded (totals). A line begins
            with a line feed too, so that a torn line damages no other.
Not here    When to add: never in the launch of a kernel that is already resolved. Sums of the files (totals): a process
            that saves its counts at its end does not import that module.
Faults      counters.appended, .summed, .folded, .dropped (tests/crash kills here).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping

from ..model import Emit, trouble
from . import renewed_in_children
from .entry import json_of
from .faults import reached
from .folders import Folder

FAULT_POINTS = ("counters.appended", "counters.summed", "counters.folded", "counters.dropped")

Counts = dict[str, float]

_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT
ROTATE_S = 600
_STALE_S = 3600
_MANY_FILES = 128


class CounterFile:
    """The counters kept in one folder.

    Args:
        folder: Folder of the files, made at the first addition.
        emit: Takes the event TROUBLE.
        readonly: Additions are dropped.
        monotonic: A clock that is never set, in seconds.
    """

    def __init__(
        self,
        folder: Folder,
        *,
        emit: Emit = lambda event: None,
        readonly: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._emit, self._readonly, self._monotonic = emit, readonly, monotonic
        self._file, self._pid, self._since = "", 0, 0.0
        self.after_fork()
        renewed_in_children.add(self)

    def after_fork(self) -> None:
        """Replace the lock that another thread of the parent may have held."""
        self._mutex = threading.RLock()

    def add(self, counts: Mapping[str, float]) -> bool:
        """Add to the counters of these names; returns True if the addition was written."""
        if self._readonly:
            return False
        record = json_of(dict(counts))
        try:
            is_new, name = self._own_file()
            fd = self._folder.open(name, _APPEND, make=True)
            try:
                os.write(fd, f"\n{record}\n".encode("ascii"))
            finally:
                os.close(fd)
            reached("counters.appended")
            if is_new and self._is_fold_due(name) and len(self._folder.names()) > _MANY_FILES:
                self.fold()
        except OSError as error:
            self._emit(trouble("counters", error))
            return False
        return True

    def read(self) -> Counts:
        """The sums of all that was added."""
        from .totals import read

        return read(self._folder, self._emit)

    def clear(self) -> bool:
        """Remove all counts. Returns True if none is left. Counts that others add meanwhile may be removed as well."""
        from .totals import clear

        return not self._readonly and clear(self._folder, self._emit)

    def fold(self, *, stale_s: float = _STALE_S) -> None:
        """Sum the files that no process appends to any more into `total`.

        Args:
            stale_s: Age, in seconds, from which a file counts as no longer written to.
        """
        from .totals import fold

        if not self._readonly:
            fold(self._folder, self._emit, stale_s)

    def _is_fold_due(self, new_file: str) -> bool:
        """Check that no process looked for files to fold in the last ten minutes, so that not every process looks."""
        try:
            before = self._folder.status("fold.lock").st_mtime
        except FileNotFoundError:
            return True
        return abs(self._folder.status(new_file).st_mtime - before) > ROTATE_S

    def _own_file(self) -> tuple[bool, str]:
        with self._mutex:
            now, pid = self._monotonic(), os.getpid()
            is_new = pid != self._pid or now - self._since > ROTATE_S
            if is_new:
                self._file, self._pid, self._since = f"{pid}-{os.urandom(8).hex()}.jsonl", pid, now
            return is_new, self._file
