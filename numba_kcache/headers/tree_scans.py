"""What the headers of a toolkit ask for, remembered: their tree is known by its identity, and so are its texts.

Promise     A scan is given back only for the tree of the same identity, made by the same scanner. What a store gives
            back is held against types before it is believed; another shape is forgotten.
Method      One record per tree, for this process and, where there is a store, for later ones: to scan CUB anew takes a
            fifth of its compile.
Not here    Trees' identities (toolchain.libraries), scanning (include_scanner), where records are kept (the caller).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..keys.digests import sha256
from . import scanner as include_scanner
from .scanner import Form, Include, Scan

Record = dict[str, Any]
Uses = tuple[tuple[Include, ...], bool]
"""What a text asks through wrappers of `__has_include`, and whether there may be more."""


class TreeScans:
    """The scans of one tree's files, by their path below its root.

    Attributes:
        scans: What each file asks for.
        uses: For each set of wrappers, as text, what each file asks through them.
    """

    def __init__(self, record: Record | None = None) -> None:
        self.scans: dict[str, Scan] = {}
        self.uses: dict[str, dict[str, Uses]] = {}
        try:
            if record is not None:
                self.scans = {str(path): _scan(fields) for path, fields in record["scans"].items()}
                self.uses = {
                    str(wrappers): {str(path): (_includes(asked), bool(more)) for path, (asked, more) in of.items()}
                    for wrappers, of in record["uses"].items()
                }
        except (KeyError, TypeError, ValueError, AttributeError):
            self.scans, self.uses = {}, {}
        self._saved = self._size()

    def is_new(self) -> bool:
        """Whether there is more than was saved."""
        return self._size() != self._saved

    def record(self) -> Record:
        """All of it as JSON values; counts as saved from now on."""
        self._saved = self._size()
        return {"scans": {path: list(scan) for path, scan in self.scans.items()}, "uses": self.uses}

    def _size(self) -> tuple[int, int]:
        return len(self.scans), sum(map(len, self.uses.values()))


_known: dict[str, TreeScans] = {}


def tree_scans(identity: str, load: Callable[[str], Record | None]) -> TreeScans:
    """The scans of a tree's files as far as they are known."""
    found = _known.get(identity)
    if found is None:
        name = _name(identity)
        found = _known[identity] = TreeScans(load(name) if name else None)
    return found


def save_scans(scans: Mapping[str, TreeScans], save: Callable[[str, Record], None]) -> None:
    """Keep what is new of these trees, by identity, for later processes."""
    for identity, each in scans.items():
        name = _name(identity)
        if name and each.is_new():
            save(name, each.record())


def _name(identity: str) -> str:
    """Of the tree's record: another scanner has others."""
    try:
        with open(include_scanner.__file__, "rb") as file:
            return sha256(b"scans\0" + identity.encode() + b"\0" + file.read()).hexdigest()
    except OSError:
        return ""  # in an archive: remembered by this process alone


def _scan(fields: list[Any]) -> Scan:
    includes, has_includes, computed, wrappers, is_opaque, has_clock, has_location, named = fields
    return Scan(
        _includes(includes),
        _includes(has_includes),
        tuple(map(str, computed)),
        tuple(map(str, wrappers)),
        bool(is_opaque),
        bool(has_clock),
        bool(has_location),
        tuple((str(macro), Include(Form(form), str(name))) for macro, (form, name) in named),
    )


def _includes(fields: list[Any]) -> tuple[Include, ...]:
    return tuple(Include(Form(form), str(name)) for form, name in fields)
