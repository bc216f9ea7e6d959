"""`Transcript`: what NVRTC asked the file system in one compile, and the answers, as a value.

Promise     If a compile of the same texts and options by the same NVRTC gets the same answers, it reads the same bytes
            and makes the same code. A stored value is checked against types and bounds before it is used.
Method      A compile depends on the file system only by its questions. The first is determined by text and options, and
            each further one by the answers before it; so equal answers lead to equal questions, by induction.
Not here    Recording one (record), and comparing it with the file system (check).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..keys import Component, Plain, component
from ..model import NamedTuple
from .file_identity import FileStat
from .roots import WORKING, Place

ABSENT, FOLDER, FILE = "absent", "folder", "file"
"""Answers other than the digest of what was read; `FILE` is a file that was only looked up."""

_FORMAT = 2
_MOST_FOLDERS = 1 << 20
_HEXADECIMAL = frozenset("0123456789abcdef")


class Toolkit(NamedTuple):
    """The places within the toolkit's folders: they count by one identity.

    Args:
        identity: Digest of the answers at these places.
        places: Files and folders that were found.
        absent: As in `Transcript`.
        stat: Digest of their stats, if an equal one implies equal answers; "" if it would not.
    """

    identity: str
    places: tuple[Place, ...]
    absent: Mapping[Place, tuple[str, ...]] = {}
    stat: str = ""


class Transcript(NamedTuple):
    """The questions and answers of one compile.

    Args:
        own: Number of the user's folders.
        layout: `Roots.layout` of the search.
        places: The answer at each place outside the toolkit: `FOLDER`, `FILE`, or the digest of what was read.
        absent: Names at which there was nothing, by the folder that they are in. They are separate so that the identity
            of a folder answers for all its names.
        same_files: Groups of places that are one file (`#pragma once` depends on it).
        toolkit: The places within the toolkit; None if there are none.
        stats: The identity by which an unchanged file of `places`, or an unchanged folder of `absent`, is recognised; a
            place is missing if an equal stat would not imply an equal answer.
    """

    own: int
    layout: tuple[tuple[int, str], ...]
    places: Mapping[Place, str] = {}
    absent: Mapping[Place, tuple[str, ...]] = {}
    same_files: tuple[tuple[Place, ...], ...] = ()
    toolkit: Toolkit | None = None
    stats: Mapping[Place, FileStat] = {}


def transcript_value(transcript: Transcript) -> Plain:
    """Make the value of the component `headers`: answers, at places that stay in a moved checkout."""
    return {
        "layout": [[root, rest] for root, rest in transcript.layout],
        "places": [[*place, answer] for place, answer in sorted(transcript.places.items())],
        "absent": [[*folder, *names] for folder, names in sorted(transcript.absent.items())],
        "same": [[list(place) for place in group] for group in transcript.same_files],
        "toolkit": transcript.toolkit and transcript.toolkit.identity,
    }


def transcript_components(transcript: Transcript, paths: Sequence[Plain]) -> tuple[Component, ...]:
    """Make the components of the key: the transcript, and the folders whose paths the code may contain."""
    found = (component("headers", transcript_value(transcript)),)
    return (*found, component("paths", list(paths))) if paths else found


def transcript_to_json(transcript: Transcript) -> dict[str, Any]:
    """Turn a transcript into JSON values."""
    toolkit, stats = transcript.toolkit, transcript.stats
    return {
        "format": _FORMAT,
        "own": transcript.own,
        "layout": transcript.layout,
        "places": [[*place, answer, *stats.get(place, ())] for place, answer in transcript.places.items()],
        "absent": _grouped(transcript.absent, stats),
        "same": transcript.same_files,
        "toolkit": toolkit and [toolkit.identity, toolkit.stat, toolkit.places, _grouped(toolkit.absent, {})],
    }


def _grouped(absent: Mapping[Place, tuple[str, ...]], stats: Mapping[Place, FileStat]) -> list[Any]:
    """Write the names that several folders lack once: [names, folder, folder, ...]."""
    groups: dict[tuple[str, ...], list[Any]] = {}
    for folder, names in absent.items():
        groups.setdefault(names, [names]).append([*folder, *stats.get(folder, ())])
    return [*groups.values()]


def transcript_from_json(value: Any) -> Transcript:
    """Read a transcript from a store.

    Raises:
        ValueError: It is not one that `transcript_to_json` could have made.
    """
    try:
        _require(value["format"] == _FORMAT and len(value) == 7)
        count = len(value["layout"])
        # the folder that one is in may be of a toolkit that was not asked, and is not listed
        layout = tuple((_index(root, _MOST_FOLDERS, -1), _text(rest)) for root, rest in value["layout"])
        own = _index(value["own"], count + 1)
        stats: dict[Place, FileStat] = {}
        places = {_place(own, row, stats, 3): _answer(row[2]) for row in value["places"]}
        _require(len(places) == len(value["places"]))
        absent = _absent(value["absent"], own, stats)
        same = tuple(tuple(_place(count, each, {}, 2) for each in group) for group in value["same"])
        toolkit = None
        if value["toolkit"] is not None:
            identity, stat, found, missing = value["toolkit"]
            of_toolkit = tuple(_place(count, each, {}, 2) for each in found)
            _require(len(set(of_toolkit)) == len(of_toolkit))
            toolkit = Toolkit(_text(identity), of_toolkit, _absent(missing, count, {}), _text(stat))
        return Transcript(own, layout, places, absent, same, toolkit, stats)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise ValueError(f"not a transcript: {error}") from None


def _require(is_right: bool) -> None:
    if not is_right:
        raise ValueError("a value is out of its bounds")


def _absent(groups: Any, count: int, stats: dict[Place, FileStat]) -> dict[Place, tuple[str, ...]]:
    found: dict[Place, tuple[str, ...]] = {}
    for names, *folders in groups:
        texts = tuple(map(_text, names))
        _require(bool(texts))
        for folder in folders:
            place = _place(count, folder, stats, 2)
            _require(place not in found)
            found[place] = texts
    return found


def _answer(value: Any) -> str:
    is_digest = type(value) is str and len(value) == 64 and _HEXADECIMAL.issuperset(value)
    _require(is_digest or value in (FOLDER, FILE))
    return str(value)


def _place(count: int, row: Any, stats: dict[Place, FileStat], fields: int) -> Place:
    root, rest, stat = row[0], row[1], row[fields:]
    _require(type(root) is int and WORKING <= root < count and type(rest) is str)
    place = tuple.__new__(Place, (root, rest))  # its own constructor takes three times as long
    if stat:
        _require(len(stat) == 5 and all(type(each) is int for each in stat))
        stats[place] = FileStat(*stat)
    return place


def _text(value: Any) -> str:
    _require(type(value) is str)
    return str(value)


def _index(value: Any, end: int, start: int = 0) -> int:
    _require(type(value) is int and start <= value < end)
    return int(value)
