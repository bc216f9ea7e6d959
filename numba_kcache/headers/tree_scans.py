"""Cache the scans and digests of a toolkit's headers while their stats are unchanged.

Promise     A row is returned only for a file with exactly the stat that it had when it was read, and made by the same
            version of the scanner. A stored record is checked against types; a malformed one is ignored.
Method      One record per tree, for this process and, if there is a store, for later ones: reading and scanning CUB
            again takes a fifth of its compile time.
Not here    The files' component in a key (tree_parts), scanning (scanner), and storing the records (the caller).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from ..keys import sha256
from ..model import NamedTuple
from . import scanner
from .file_identity import SETTLED_AFTER_NS, FileStat, digest, read_steady, stat_of
from .scanner import Form, Include, Scan, scan_includes

Record = dict[str, Any]
Uses = tuple[tuple[Include, ...], bool]
"""The files that a text tests for through wrappers of `__has_include`; True if there may be more."""


class Row(NamedTuple):
    """One file: its stat when it was read, its content's digest, and its scan."""

    stat: FileStat
    sha256: str
    scan: Scan


class TreeScans:
    """Scans of one tree's files, by their path below its root.

    Attributes:
        rows: The row of each file, by its path below the root.
        uses: By the set of wrappers, as text, and by the digest of a content: its tests through these wrappers.
    """

    def __init__(self, record: Record | None = None) -> None:
        self.rows: dict[str, Row] = {}
        self.uses: dict[str, dict[str, Uses]] = {}
        try:
            if record is not None:
                self.rows = {path: _row(*fields) for path, fields in record["rows"].items()}
                self.uses = {
                    wrappers: {content: (_includes(asked), bool(more)) for content, (asked, more) in of.items()}
                    for wrappers, of in record["uses"].items()
                }
        except Exception:  # a record of another shape: the files are scanned again
            self.rows, self.uses = {}, {}
        self._saved = self._size()
        self._is_changed = False

    def look(self, inside: str, path: str, now_ns: int) -> Row:
        """The row of the file at `path`, whose path below the root is `inside`; it is read if the stat differs.

        Raises:
            OSError: It cannot be read.
        """
        row = self.rows.get(inside)
        if row is not None and row.stat == stat_of(os.stat(path)):
            return row
        reading = read_steady(path)
        row = Row(reading.stat, digest(reading.data), scan_includes(reading.data))
        if reading.stat.ctime_ns + SETTLED_AFTER_NS <= now_ns:
            self._is_changed = self._is_changed or inside in self.rows
            self.rows[inside] = row
        return row

    def is_new(self) -> bool:
        """Check whether there are rows that are not saved yet."""
        return self._is_changed or self._size() != self._saved

    def record(self) -> Record:
        """Convert the scans to JSON values to save; `is_new` is False afterwards."""
        self._saved, self._is_changed = self._size(), False
        return {"rows": self.rows, "uses": self.uses}

    def _size(self) -> tuple[int, int]:
        return len(self.rows), sum(map(len, self.uses.values()))


known: dict[str, TreeScans] = {}
"""The scans of each tree that this process has used, by its root."""


def tree_scans(root: str, load: Callable[[str], Record | None]) -> TreeScans:
    """Return the cached scans of a tree, loading its record at the first call."""
    if root not in known:
        name = _name(root)
        known[root] = TreeScans(load(name) if name else None)
    return known[root]


def save_scans(scans: Mapping[str, TreeScans], save: Callable[[str, Record], None]) -> None:
    """Save the scans of these trees, by root, if some are new."""
    for root, each in scans.items():
        if each.is_new() and (name := _name(root)):  # making the name reads the scanner's source
            save(name, each.record())


def _name(root: str) -> str:
    """Name the tree's record, with a digest of the scanner's source, so that a new version of it makes a new record."""
    try:
        with open(scanner.__file__, "rb") as file:
            return sha256(b"scans\0" + os.fsencode(root) + b"\0" + file.read()).hexdigest()
    except OSError:
        return ""  # this package is in an archive: scans are cached by this process alone


def _row(stat: Any, content: Any, scan: Any) -> Row:
    return Row(FileStat(*(int(each) for each in stat)), str(content), _scan(*scan))


def _scan(
    includes: Any, has_includes: Any, computed: Any, wrappers: Any, is_opaque: Any, has_clock: Any, has_location: Any,
    named: Any, has_assert: Any, asked: Any,
) -> Scan:  # fmt: skip
    names = tuple((str(macro), _includes([include])[0]) for macro, include in named)
    texts = tuple(map(str, computed)), tuple(map(str, wrappers))
    flags = bool(is_opaque), bool(has_clock), bool(has_location)
    words = bool(has_assert), tuple(map(str, asked))
    return Scan(_includes(includes), _includes(has_includes), *texts, *flags, names, *words)


def _includes(fields: Any) -> tuple[Include, ...]:
    return tuple(Include(Form(form), str(name)) for form, name in fields)
