"""The header closure of one compile: everything outside its source that its includes depended on, as a value.

Promise     If a compile of the same source and options finds each file of the closure with the same content,
            each absent path absent, each question answered the same and each tree under the same identity, it
            includes the same text. What a store gives back is held against types and bounds before it is one.
Method      A compile that succeeded found each of its includes; which file it found is decided by which
            candidates before it were absent. By induction over the includes, the same answers lead to the same
            files, and the same contents to the same next includes. Whatever else was recorded (branches not
            taken) can only cost a needless compile.
Not here    How one is learned (headers, headers_read) and compared (closure_check).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..keys.encoding import Plain
from .file_identity import FileStat
from .search import WORKING, Place

MAX_PLACES = 1 << 17
_MAX_PATH = 1 << 14
_FORMAT = 1
_HEXADECIMAL = frozenset("0123456789abcdef")


class HeaderFile(NamedTuple):
    """A header that was read: its place, its content, and its stat where an equal one means equal content."""

    place: Place
    sha256: str
    stat: FileStat | None = None


class Closure(NamedTuple):
    """Everything that the includes of one compile depended on.

    Args:
        layout: For each folder of the search the index of its tree and the path within, or (-1, "").
        files: The headers read, but for those in trees; sorted by place.
        absent: Names, by the folder below which they start, at which a file would be taken instead of one of
            `files`. Where the folder does not exist there is no need to look at its names.
        clear: Places at which there must be nothing at all.
        answers: What `__has_include` was told: the places asked about, and whether at any of them is a file.
        same: Groups of indices into `files` that are one file under several paths (`#pragma once` tells).
        trees: Index and identity of each toolkit tree that was looked into.
        is_traced: Whether NVRTC's own trace told the files; otherwise a scanner did, and they are too many.
        has_location: Whether a header may expand to a line number or a file name.
    """

    layout: tuple[tuple[int, str], ...]
    files: tuple[HeaderFile, ...] = ()
    absent: tuple[tuple[Place, tuple[str, ...]], ...] = ()
    clear: tuple[Place, ...] = ()
    answers: tuple[tuple[tuple[Place, ...], bool], ...] = ()
    same: tuple[tuple[int, ...], ...] = ()
    trees: tuple[tuple[int, str], ...] = ()
    is_traced: bool = False
    has_location: bool = False


def closure_value(closure: Closure) -> Plain:
    """The closure as a component of a key: contents, by names that mean the same in a moved checkout."""
    return {
        "files": [(*file.place, file.sha256) for file in closure.files],
        "answers": [(answer, [list(place) for place in places]) for places, answer in closure.answers],
        "same": [list(group) for group in closure.same],
        "trees": [list(tree) for tree in closure.trees],
    }


def closure_to_json(closure: Closure) -> dict[str, Any]:
    """The closure as JSON values."""
    return {
        "format": _FORMAT,
        "layout": [list(each) for each in closure.layout],
        "files": [[*each.place, each.sha256, *(each.stat or ())] for each in closure.files],
        "absent": [[*folder, *names] for folder, names in closure.absent],
        "clear": [list(each) for each in closure.clear],
        "answers": [[answer, [list(place) for place in places]] for places, answer in closure.answers],
        "same": [list(each) for each in closure.same],
        "trees": [list(each) for each in closure.trees],
        "is_traced": closure.is_traced,
        "has_location": closure.has_location,
    }


def closure_from_json(value: Any) -> Closure:
    """Read a closure that a store gave back.

    Raises:
        ValueError: It is not one that `closure_to_json` could have made.
    """
    try:
        if value["format"] != _FORMAT or len(value) != len(Closure._fields) + 1:
            raise ValueError("another format")
        layout = tuple(_tree(each) for each in value["layout"])
        folders = len(layout)
        files = tuple(_file(each, folders) for each in value["files"])
        return Closure(
            layout,
            files,
            tuple((_place(base, rest, folders), tuple(map(_text, names))) for base, rest, *names in value["absent"]),
            tuple(_place(base, rest, folders) for base, rest in value["clear"]),
            tuple((_places(places, folders), _bool(answer)) for answer, places in value["answers"]),
            tuple(tuple(_index(each, len(files)) for each in group) for group in value["same"]),
            tuple((_index(index, MAX_PLACES), _text(identity)) for index, identity in value["trees"]),
            _bool(value["is_traced"]),
            _bool(value["has_location"]),
        )
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"not a header closure: {error}") from None


def _file(fields: list[Any], folders: int) -> HeaderFile:
    base, rest, sha256, *stat = fields
    if type(sha256) is not str or len(sha256) != 64 or not _HEXADECIMAL.issuperset(sha256):
        raise ValueError("not a header closure: a digest is none")
    if stat and (len(stat) != 5 or not all(type(each) is int for each in stat)):
        raise ValueError("not a header closure: a stat is none")
    return HeaderFile(_place(base, rest, folders), sha256, FileStat(*stat) if stat else None)


def _place(base: Any, rest: Any, folders: int) -> Place:
    if type(base) is not int or not WORKING <= base < folders:
        raise ValueError("not a header closure: a path starts nowhere")
    return Place(base, _text(rest))


def _places(value: Any, folders: int) -> tuple[Place, ...]:
    if not value:
        raise ValueError("not a header closure: a question asks for nothing")
    return tuple(_place(base, rest, folders) for base, rest in value)


def _tree(fields: Any) -> tuple[int, str]:
    index, rest = fields
    if type(index) is not int or not -1 <= index < MAX_PLACES:
        raise ValueError("not a header closure: no such tree")
    return index, _text(rest)


def _text(value: Any) -> str:
    if type(value) is not str or len(value) > _MAX_PATH or "\0" in value:
        raise ValueError("not a header closure: a path is none")
    return value


def _index(value: Any, limit: int) -> int:
    if type(value) is not int or not 0 <= value < limit:
        raise ValueError("not a header closure: an index leads nowhere")
    return value


def _bool(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("not a header closure: a truth value is none")
    return value
