"""Counters that many processes add to without waiting for each other.

Promise     A record that `add` wrote is in every later `read` once, except that what others add while an eviction pass
            sums the file may be lost: these are statistics.
Method      An addition appends one line of JSON to a file. A read sums its lines. An eviction pass replaces a file
            above `FOLD_BYTES` by one line with the sums. A line begins with a line feed too, so that a torn line
            damages no other. Of counters with a label (`group/label`), the 20,000 highest of each group are kept; of
            the group `day`, the latest days. Counts that cannot be written are kept in memory.
Not here    When to add: never in the launch of a kernel that is already resolved.
Faults      counters.appended (tests/crash kills here).
"""

from __future__ import annotations

import errno
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress

from ..model import Emit, trouble
from . import Tree, json_of, reached
from .folders import Folder

FAULT_POINTS = ("counters.appended",)

Counts = dict[str, float]

FILE = "statistics"
FOLD_BYTES = 1 << 20
MOST_LABELS = 20_000
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT
_MAX_FILE_BYTES = 64 << 20
_MAX_COUNT = 1e15


class Counters:
    """The counters of one tree.

    Args:
        tree: Their file is in it, and made at the first addition.
        emit: Takes the event TROUBLE.
        readonly: Additions are dropped.
    """

    def __init__(self, tree: Tree, *, emit: Emit, readonly: bool = False) -> None:
        self._tree, self._folder, self._emit, self._readonly = tree, Folder(tree), emit, readonly
        self._unwritten: Counter[str] = Counter()

    def add(self, counts: Mapping[str, float]) -> bool:
        """Add to the counters of these names; returns True if the addition was written."""
        if self._readonly:
            return False
        line = f"\n{json_of(dict(counts))}\n".encode()
        try:
            fd = self._folder.open(FILE, _APPEND, make=True)
            try:
                os.write(fd, line)
            finally:
                os.close(fd)
        except OSError as error:
            self._unwritten.update(counts)
            if not self._tree.refusal and error.errno != errno.EROFS:  # the store reports these
                self._emit(trouble("counters", error))
            return False
        reached("counters.appended")
        return True

    def read(self) -> Counts:
        """The sums of all that was added."""
        total: defaultdict[str, float] = defaultdict(int, self._unwritten)
        for counts in self._records():
            for label, value in counts.items():
                total[label] = max(-_MAX_COUNT, min(total[label] + value, _MAX_COUNT))
        return _bounded(total)

    def clear(self) -> bool:
        """Remove all counts. Returns True if none is left. Counts that others add meanwhile may be removed as well."""
        self._unwritten.clear()
        try:
            return not self._readonly and (self._folder.unlink(FILE) or FILE not in self._folder.names())
        except OSError as error:
            self._emit(trouble("counters", error))
            return error.errno == errno.ENOENT

    def fold(self) -> None:
        """Replace a large file by the sums in it; the caller holds a lock against other folds.

        Raises:
            OSError: A call failed; no count was removed.
        """
        with suppress(FileNotFoundError):
            if self._folder.status(FILE).st_size > FOLD_BYTES:
                from .writing import publish

                data = json_of(self.read()).encode()
                with self._tree.opened() as folder:
                    publish(self._tree, data, folder, FILE, time_ns=time.time_ns())
                self._unwritten.clear()

    def _records(self) -> Iterator[Counts]:
        from ..model.json_values import fits, read_json

        try:
            fd = self._folder.open(FILE, os.O_RDONLY)
            try:
                text = os.read(fd, min(os.fstat(fd).st_size, _MAX_FILE_BYTES))
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno != errno.ENOENT and not self._tree.refusal:
                self._emit(trouble("counters", error))
            return
        for line in filter(None, text.split(b"\n")):
            with suppress(ValueError):  # torn by a crash or a full disk
                record = read_json(line)
                if fits(record, {str: float}):
                    yield record


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
