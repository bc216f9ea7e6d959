"""Counters that many processes add to without waiting for each other.

Promise     A record that `add` wrote is in every later `read` once. Exception: counts of a day that a pass was folding
            when it was killed, or while they are read, may be counted twice. Counters with unknown names are summed
            like the others.
Method      An addition appends one line of JSON to the file of its day (UTC). A read sums all files. Each eviction pass
            sums the files of days before yesterday into `total`. A line begins with a line feed too, so that a torn
            line damages no other. Of counters with a label (`group/label`), `total` keeps the 20,000 highest of each
            group; of the group `day`, the latest days.
Not here    When to add: never in the launch of a kernel that is already resolved.
Faults      counters.appended, .folded (tests/crash kills here).
"""

from __future__ import annotations

import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from ..model import Emit, trouble
from .entry import json_of
from .faults import reached
from .folders import Folder

FAULT_POINTS = ("counters.appended", "counters.folded")

Counts = dict[str, float]

MOST_LABELS = 20_000
_FILE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}\.jsonl|total"
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT
_DAY_S = 24 * 3600
_MAX_FILE_BYTES = 64 << 20
_MAX_COUNT = 1e15


class CounterFile:
    """The counters kept in one folder.

    Args:
        folder: Folder of the files, made at the first addition.
        emit: Takes the event TROUBLE.
        readonly: Additions are dropped.
        clock: The time, in seconds since the epoch.
    """

    def __init__(
        self,
        folder: Folder,
        *,
        emit: Emit = lambda event: None,
        readonly: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder, self._emit, self._readonly, self._clock = folder, emit, readonly, clock

    def add(self, counts: Mapping[str, float]) -> bool:
        """Add to the counters of these names; returns True if the addition was written."""
        if self._readonly:
            return False
        line = f"\n{json_of(dict(counts))}\n".encode("ascii")
        try:
            fd = self._folder.open(f"{_day(self._clock())}.jsonl", _APPEND, make=True)
            try:
                os.write(fd, line)
            finally:
                os.close(fd)
        except OSError as error:
            self._emit(trouble("counters", error))
            return False
        reached("counters.appended")
        return True

    def read(self) -> Counts:
        """The sums of all that was added."""
        try:
            return self._sum(self._names())
        except OSError as error:
            self._emit(trouble("counters", error))
            return {}

    def clear(self) -> bool:
        """Remove all counts. Returns True if none is left. Counts that others add meanwhile may be removed as well."""
        try:
            for name in () if self._readonly else self._names():
                with suppress(FileNotFoundError):
                    self._folder.unlink(name)
        except OSError as error:
            self._emit(trouble("counters", error))
            return False
        return not self._readonly

    def fold(self) -> None:
        """Sum the files of days before yesterday into `total`; the caller holds a lock against other folds.

        Raises:
            OSError: A call failed; no count was removed.
        """
        now_s = self._clock()
        old = [name for name in self._names() if name < _day(now_s - _DAY_S)]  # "total" is above any digit
        if old:
            record = json_of(_bounded(self._sum([*old, "total"]))).encode("ascii")
            self._folder.publish("total", record, durability="data", time_ns=int(now_s * 1e9))
            reached("counters.folded")
        for name in old:
            self._folder.unlink(name)

    def _names(self) -> list[str]:
        return sorted(name for name in self._folder.names() if re.fullmatch(_FILE, name))

    def _sum(self, names: list[str]) -> Counts:
        total: defaultdict[str, float] = defaultdict(int)
        for name in names:
            for counts in self._records(name):
                for label, value in counts.items():
                    total[label] = max(-_MAX_COUNT, min(total[label] + value, _MAX_COUNT))
        return dict(total)

    def _records(self, name: str) -> Iterator[Counts]:
        import json

        try:
            fd = self._folder.open(name, os.O_RDONLY)
            try:
                text = os.read(fd, min(os.fstat(fd).st_size, _MAX_FILE_BYTES))
            finally:
                os.close(fd)
        except FileNotFoundError:  # no total yet, or another process has folded the file
            return
        except OSError as error:  # not a file, or owned by an untrusted user
            self._emit(trouble("counters", error))
            return
        for line in filter(None, text.split(b"\n")):
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue  # torn by a crash or a full disk
            if type(record) is dict and all(
                type(each) in (int, float) and -_MAX_COUNT <= each <= _MAX_COUNT for each in record.values()
            ):
                yield record


def _day(now_s: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(now_s))


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
