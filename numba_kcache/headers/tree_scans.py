"""Remember what the headers of a toolkit ask for: their tree is known by its identity, and so are its texts.

Promise     A scan is given back only for the tree of the same identity, made by the same scanner. What a store gives
            back is held against types before it is believed; another shape is forgotten.
Method      One record per tree, for this process and, where there is a store, for later ones: to scan CUB anew takes a
            fifth of its compile.
Not here    Trees' identities (toolchain), scanning (scanner), and the place of the records (the caller).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..keys import sha256
from . import scanner
from .scanner import Form, Include, Scan

Record = dict[str, Any]
Uses = tuple[tuple[Include, ...], bool]
"""The files that a text asks for through wrappers of `__has_include`; True if there may be more."""


class TreeScans:
    """The scans of one tree's files, by their path below its root.

    Attributes:
        scans: The scan of each file.
        uses: For each set of wrappers, as text, what each file asks through them.
    """

    def __init__(self, record: Record | None = None) -> None:
        self.scans: dict[str, Scan] = {}
        self.uses: dict[str, dict[str, Uses]] = {}
        try:
            if record is not None:
                self.scans = {path: _scan(*fields) for path, fields in record["scans"].items()}
                self.uses = {
                    wrappers: {path: (_includes(asked), bool(more)) for path, (asked, more) in of.items()}
                    for wrappers, of in record["uses"].items()
                }
        except Exception:  # a record of another shape: the files are scanned again
            self.scans, self.uses = {}, {}
        self._saved = self._size()

    def is_new(self) -> bool:
        """Tell if there is more than was saved."""
        return self._size() != self._saved

    def record(self) -> Record:
        """Turn all of it into JSON values; counts as saved from now on."""
        self._saved = self._size()
        return {"scans": self.scans, "uses": self.uses}

    def _size(self) -> tuple[int, int]:
        return len(self.scans), sum(map(len, self.uses.values()))


_known: dict[str, TreeScans] = {}


def tree_scans(identity: str, load: Callable[[str], Record | None]) -> TreeScans:
    """Return the scans of a tree's files as far as they are known."""
    if identity not in _known:
        name = _name(identity)
        _known[identity] = TreeScans(load(name) if name else None)
    return _known[identity]


def save_scans(scans: Mapping[str, TreeScans], save: Callable[[str, Record], None]) -> None:
    """Keep what is new of these trees, by identity, for later processes."""
    for identity, each in scans.items():
        name = _name(identity)
        if name and each.is_new():
            save(name, each.record())


def _name(identity: str) -> str:
    """Name the tree's record: another scanner has others."""
    try:
        with open(scanner.__file__, "rb") as file:
            return sha256(b"scans\0" + identity.encode() + b"\0" + file.read()).hexdigest()
    except OSError:
        return ""  # in an archive: remembered by this process alone


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
