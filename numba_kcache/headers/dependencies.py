"""The headers of one compile: everything outside its source that its includes depended on, as a value.

Promise     If a compile of the same source and options finds each file of the set with the same content,
            each absent path absent, each `__has_include` with the same result and each part of a tree the same, it
            includes the same text. A stored record is checked against types and bounds before it is used.
Method      A compile that succeeded found each of its includes; which file it found is decided by which
            candidates before it were absent. By induction over the includes, the same answers lead to the same
            files, and the same contents to the same next includes. Additional records (of branches not taken)
            can only cause a needless compile.
Not here    Recording one (learn, reading) and comparing it (check).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..keys import Component, Plain, component
from ..model import NamedTuple
from .file_identity import FileStat
from .search import WORKING, Place
from .tree_parts import TreePart

_MAX_TREES = 1 << 17
_MAX_PATH = 1 << 14
_FORMAT = 1
_HEXADECIMAL = frozenset("0123456789abcdef")


class HeaderFile(NamedTuple):
    """A header that was read: its place, its digest, and its stat if an equal stat implies equal content."""

    place: Place
    sha256: str
    stat: FileStat | None = None


class Forced(NamedTuple):
    """A file given to `-include`, and whether it was found in the working directory; None if that cannot matter.

    It matters to `#include_next`, and to file names in the code, which are then relative.
    """

    place: Place
    is_beside: bool | None


class HeaderSet(NamedTuple):
    """Everything that the includes of one compile depended on.

    Args:
        layout: For each folder of the search the index of its tree and the path within; (-1, "") if it is in no tree.
        files: The headers read, but for those in trees; sorted by place.
        absent: Names, by the folder below which they start, at which a file would be taken instead of one of
            `files`. If the folder does not exist, its names need no check.
        clear: Places at which there must be neither a file nor a folder.
        answers: Results of `__has_include`: the places it looks at, and whether one of them has a file.
        same: Groups of indices into `files` that are one file under several paths (`#pragma once` depends on it).
        trees: The part of each toolkit tree that the compile used.
        forced: The file that each name given to `-include` led to. That depends on the working directory, so no place
            before it is in `absent`; instead the name has to lead to the same file again.
        folders: Pairs of names of one folder; places use the second.
    """

    layout: tuple[tuple[int, str], ...]
    files: tuple[HeaderFile, ...] = ()
    absent: tuple[tuple[Place, tuple[str, ...]], ...] = ()
    clear: tuple[Place, ...] = ()
    answers: tuple[tuple[tuple[Place, ...], bool], ...] = ()
    same: tuple[tuple[int, ...], ...] = ()
    trees: tuple[TreePart, ...] = ()
    forced: tuple[Forced, ...] = ()
    folders: tuple[tuple[Place, Place], ...] = ()


def headers_value(headers: HeaderSet) -> Plain:
    """Make the value of the component `headers`: digests of contents, with names that stay in a moved checkout."""
    return {
        "files": [(*file.place, file.sha256) for file in headers.files],
        "answers": [(answer, [list(place) for place in places]) for places, answer in headers.answers],
        "same": [list(group) for group in headers.same],
        "trees": [[each.tree, each.identity] for each in headers.trees],
        **({"forced": [[*each.place, each.is_beside] for each in headers.forced]} if headers.forced else {}),
    }


def headers_to_json(headers: HeaderSet) -> dict[str, Any]:
    """Turn a header set into JSON values."""
    return {
        **headers._asdict(),
        "format": _FORMAT,
        "files": [[*each.place, each.sha256, *(each.stat or ())] for each in headers.files],
        "absent": [[*folder, *names] for folder, names in headers.absent],
        "answers": [[answer, places] for places, answer in headers.answers],
        "trees": [[each.tree, each.identity, each.stat, *each.paths] for each in headers.trees],
        "forced": [[*each.place, each.is_beside] for each in headers.forced],
        "folders": [[*name, *first] for name, first in headers.folders],
    }


def headers_from_json(value: Any) -> HeaderSet:
    """Read a header set from a store.

    Raises:
        ValueError: It is not one that `headers_to_json` could have made.
    """
    try:
        _require(value["format"] == _FORMAT and len(value) == len(HeaderSet._fields) + 1)
        layout = tuple((_index(tree, _MAX_TREES, -1), _text(rest)) for tree, rest in value["layout"])
        folders = len(layout)
        files = tuple(_file(each, folders) for each in value["files"])
        return HeaderSet(
            layout,
            files,
            tuple((_place(folders, base, rest), tuple(map(_text, names))) for base, rest, *names in value["absent"]),
            tuple(_place(folders, *each) for each in value["clear"]),
            tuple(_answer(places, answer, folders) for answer, places in value["answers"]),
            tuple(tuple(_index(each, len(files)) for each in group) for group in value["same"]),
            tuple(_part(*each) for each in value["trees"]),
            tuple(
                Forced(_place(folders, base, rest), None if is_beside is None else _bool(is_beside))
                for base, rest, is_beside in value["forced"]
            ),
            tuple((_place(folders, *pair[:2]), _place(folders, *pair[2:])) for pair in value["folders"]),
        )
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise ValueError(f"not a header set: {error}") from None


def sets_components(sets: Sequence[HeaderSet | None], paths: Sequence[Plain]) -> tuple[Component, ...]:
    """Make the components of the key: the header set of each text, and the folders whose paths the code may contain."""
    values = [headers and headers_value(headers) for headers in sets]
    found = (component("headers", values[0] if len(values) == 1 else values),)
    return (*found, component("paths", list(paths))) if paths else found


def sets_to_json(sets: Sequence[HeaderSet | None]) -> list[Any]:
    """Turn the header set of each text into JSON values; None if the text was not needed."""
    return [headers and headers_to_json(headers) for headers in sets]


def _require(is_right: bool) -> None:
    if not is_right:
        raise ValueError("a value is out of its bounds")


def _file(fields: list[Any], folders: int) -> HeaderFile:
    base, rest, sha256, *stat = fields
    _require(type(sha256) is str and len(sha256) == 64 and _HEXADECIMAL.issuperset(sha256))
    _require(not stat or (len(stat) == 5 and all(type(each) is int for each in stat)))
    return HeaderFile(_place(folders, base, rest), sha256, FileStat(*stat) if stat else None)


def _part(index: Any, identity: Any, stat: Any, *paths: Any) -> TreePart:
    return TreePart(_index(index, _MAX_TREES), _text(identity), tuple(map(_text, paths)), _text(stat))


def _place(folders: int, base: Any, rest: Any) -> Place:
    return Place(_index(base, folders, WORKING), _text(rest))


def _answer(places: Any, answer: Any, folders: int) -> tuple[tuple[Place, ...], bool]:
    _require(bool(places))
    return tuple(_place(folders, *each) for each in places), _bool(answer)


def _text(value: Any) -> str:
    _require(type(value) is str and len(value) <= _MAX_PATH and "\0" not in value)
    return str(value)


def _index(value: Any, end: int, start: int = 0) -> int:
    _require(type(value) is int and start <= value < end)
    return int(value)


def _bool(value: Any) -> bool:
    _require(type(value) is bool)
    return bool(value)
