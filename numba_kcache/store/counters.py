"""Counters that many processes add to without waiting for each other; a crash loses at most the last addition.

Promise     A record that `add` wrote is in every later `read` exactly once, also while another process folds files,
            and whichever process is killed at any time. Unknown names are summed like the others.
Method      Each process appends JSON lines to its own file, and starts another file after ten minutes. A read sums all
            files. Once there are more than 128, and no process looked for files to fold in the last ten minutes, those
            last written an hour ago or earlier (by the clock of their filesystem) are folded: their sum and their names
            are written to `total` in one publish, then they are removed. A file named in `total` is not read again. Of
            counters with a label (`group/label`), a fold keeps the 20,000 highest of each group; of the group `day`,
            the latest days. A line begins with a line feed too, so that a torn line damages no other.
Not here    When to add: never on the path of a hit that is already resolved.
Faults      counters.appended, .summed, .folded, .dropped (tests/crash kills here).
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from ..model import Emit, trouble
from . import renewed_in_children, try_flock, unlock
from .faults import reached
from .folders import Folder

FAULT_POINTS = ("counters.appended", "counters.summed", "counters.folded", "counters.dropped")

Counts = dict[str, float]

_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT
_PROCESS_FILE = r"[0-9]{1,10}-[0-9a-f]{16}\.jsonl"
_ROTATE_S = 600
_STALE_S = 3600
_MANY_FILES = 128
_MAX_FILE_BYTES = 64 << 20
MOST_LABELS = 20_000
_MAX_COUNT = 1e15


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
        record = json.dumps(dict(counts), separators=(",", ":"), allow_nan=False)
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
        try:
            for _ in range(8):  # a fold between the two reads would hide the counts that it moved
                before = self._total_identity()
                total, folded = self._read_total()
                counts = _sum([total, *self._read_files(self._process_files() - folded)])
                if self._total_identity() == before:
                    break
            return counts
        except OSError as error:
            self._emit(trouble("counters", error))
            return {}

    def clear(self) -> bool:
        """Remove all counts. Returns True if none is left. Counts that others add meanwhile may be removed as well."""
        if self._readonly:
            return False
        try:
            for name in [*sorted(self._process_files()), "total"]:
                with suppress(FileNotFoundError):
                    self._folder.unlink(name)
        except FileNotFoundError:  # nothing was ever counted
            pass
        except OSError as error:
            self._emit(trouble("counters", error))
            return False
        return True

    def fold(self, *, stale_s: float = _STALE_S) -> None:
        """Sum the files that no process appends to any more into `total`.

        Args:
            stale_s: Age, in seconds, from which a file counts as no longer written to.
        """
        if self._readonly:
            return
        try:
            lock = self._folder.open("fold.lock", os.O_RDWR | os.O_CREAT)
            try:
                try_flock(lock)
                os.utime(lock)
                self._fold(os.fstat(lock).st_mtime - stale_s)
            except BlockingIOError:
                pass
            finally:
                unlock(lock)  # a child that was forked meanwhile has it open
                os.close(lock)
        except OSError as error:
            self._emit(trouble("counters", error))

    def _is_fold_due(self, new_file: str) -> bool:
        """Check that no process looked for files to fold in the last ten minutes, so that not every process looks."""
        try:
            before = self._folder.status("fold.lock").st_mtime
        except FileNotFoundError:
            return True
        return abs(self._folder.status(new_file).st_mtime - before) > _ROTATE_S

    def _fold(self, stale_before_s: float) -> None:
        total, folded = self._read_total()
        present = self._process_files()
        stale = {name for name in present - folded if self._folder.status(name).st_mtime < stale_before_s}
        if stale:
            total = _bounded(_sum([total, *self._read_files(stale)]))
            reached("counters.summed")
            record = {"counts": total, "folded": sorted(stale | (folded & present))}
            self._folder.publish("total", json.dumps(record).encode("ascii"), durability="data", time_ns=time.time_ns())
            reached("counters.folded")
        for name in stale | (folded & present):
            self._folder.unlink(name)
            reached("counters.dropped")

    def _own_file(self) -> tuple[bool, str]:
        with self._mutex:
            now, pid = self._monotonic(), os.getpid()
            is_new = pid != self._pid or now - self._since > _ROTATE_S
            if is_new:
                self._file, self._pid, self._since = f"{pid}-{os.urandom(8).hex()}.jsonl", pid, now
            return is_new, self._file

    def _process_files(self) -> set[str]:
        return {name for name in self._folder.names() if re.fullmatch(_PROCESS_FILE, name)}

    def _total_identity(self) -> tuple[int, int] | None:
        try:
            status = self._folder.status("total")
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_mtime_ns

    def _read_total(self) -> tuple[Counts, set[str]]:
        try:
            record = json.loads(self._read("total"))
            return _checked(record["counts"]), {str(name) for name in record["folded"]}
        except FileNotFoundError:
            return {}, set()
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            self._emit(trouble("counters", error))
            return {}, set()

    def _read_files(self, names: Iterable[str]) -> list[Counts]:
        counts = []
        for name in names:
            try:
                text = self._read(name)
            except OSError as error:
                if not isinstance(error, FileNotFoundError):  # not a file, or owned by an untrusted user
                    self._emit(trouble("counters", error))
                continue
            for line in text.split(b"\n"):
                try:
                    if line:
                        counts.append(_checked(json.loads(line)))
                except (ValueError, TypeError, RecursionError):
                    continue  # torn by a crash or a full disk
        return counts

    def _read(self, name: str) -> bytes:
        fd = self._folder.open(name, os.O_RDONLY)
        try:
            return os.read(fd, min(os.fstat(fd).st_size, _MAX_FILE_BYTES))
        finally:
            os.close(fd)


def _checked(record: object) -> Counts:
    if type(record) is not dict:
        raise ValueError("not counts")
    for value in record.values():
        if type(value) not in (int, float) or not -_MAX_COUNT < value < _MAX_COUNT:
            raise ValueError("not a count")
    return record


def _sum(many: Iterable[Counts]) -> Counts:
    total: defaultdict[str, float] = defaultdict(int)
    for counts in many:
        for name, value in counts.items():
            total[name] += value
    return dict(total)


def _bounded(counts: Counts) -> Counts:
    """The counts, reduced to the limit of labels: the smallest of each group and the oldest days are dropped."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for name in counts:
        if "/" in name:
            groups[name.partition("/")[0]].append(name)
    for group, names in groups.items():
        names.sort(key=None if group == "day" else counts.__getitem__)
        for name in names[:-MOST_LABELS]:
            del counts[name]
    return counts
