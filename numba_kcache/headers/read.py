"""Which headers a compile read: as NVRTC's trace says, held against what the source asks for.

Promise     Never fewer than the compiler read. A header of the trace that no include leads to, or an
            unconditional include of the source that the trace lacks, means that one of the two is wrong: then
            the headers cannot be told, or all that the scanner reaches is taken.
Method      The trace cuts the includes of the source down to those carried out. A computed include cannot be
            followed; it is taken to have named each header that nothing else explains, in every way it could.
Not here    What is kept of these headers (headers).
Ground      Of two paths to one file NVRTC traces only the first, if a guard or `#pragma once` stops the second.
"""

from __future__ import annotations

import os

from .scanner import Form, Include, unconditional_includes
from .search import MEMORY, SOURCE, Place, path_of
from .survey import START, Survey
from .trace import TraceResult
from .untrackable import Doubt, Uncapturable


def traced_headers(survey: Survey, trace: TraceResult) -> set[Place] | Uncapturable | None:
    """The places whose files the compiler read; None where the trace is not to be believed."""
    traced = _Traced(survey, trace)
    read = survey.walk(traced.was_read)
    unexplained = traced.unexplained(read)
    while unexplained:
        computing = [place for place in read if survey.headers[place].scan.computed]
        supposed = [_suppose(survey, path, place) for path in unexplained for place in computing]
        if not any(supposed):
            return Uncapturable(Doubt.UNEXPLAINED, unexplained[0])
        read = survey.walk(traced.was_read)
        unexplained = traced.unexplained(read)
    return None if _lacks_any(survey, read) else read


def scanned_headers(survey: Survey, unread: frozenset[Place] = frozenset()) -> set[Place] | Uncapturable:
    """All places that the compiler could have read from.

    Args:
        survey: Taken before it ran.
        unread: Headers that nobody opened meanwhile. Disbelieved, if the source must have included one of them, or if
            another was opened that they alone lead to.
    """

    def may_be_read(place: Place) -> bool:
        return place not in unread

    read = survey.walk(may_be_read)
    is_new, unlisted = survey.run_macros()
    while is_new:
        read = survey.walk(may_be_read)
        is_new, unlisted = survey.run_macros()
    if unread and (_lacks_any(survey, read) or not survey.surveyed() <= read | unread):
        return scanned_headers(survey)
    unlisted &= read
    return Uncapturable(Doubt.COMPUTED, survey.headers[min(unlisted)].path) if unlisted else read


def _lacks_any(survey: Survey, read: set[Place]) -> bool:
    """Whether an include that the source must have carried out led to none of these."""
    must = set(unconditional_includes(survey.source))
    return any(each.include in must and read.isdisjoint(each.found) for each in survey.includes[START])


def _suppose(survey: Survey, path: str, includer: Place) -> bool:
    """Let a computed include have named this header, in each way in which it could have; whether one is new."""
    folders = [folder.rstrip("/") + "/" for folder in survey.search.folders]
    if includer.base not in (SOURCE, MEMORY):
        folders.append(os.path.dirname(survey.headers[includer].path) + "/")
    names = [path[len(folder) :] for folder in folders if path.startswith(folder)] or [path]
    supposed = [survey.suppose(includer, Include(form, name)) for name in names for form in (Form.QUOTE, Form.ANGLE)]
    return any(supposed)


class _Traced:
    """The files of a trace, by their spelling and, as one file may have two paths, by device and inode."""

    def __init__(self, survey: Survey, trace: TraceResult) -> None:
        self._survey, self._names = survey, frozenset(trace.headers)
        found = {name: survey.stat(name) for name in trace.headers if name not in survey.search.memory}
        self._inodes = {name: (each.st_dev, each.st_ino) for name, each in found.items() if each is not None}
        self._read_inodes = frozenset(self._inodes.values())

    def was_read(self, place: Place) -> bool:
        """Whether the trace says that the compiler read the file at this place."""
        return not self._names.isdisjoint(self._spellings(place)) or self._inode(place) in self._read_inodes

    def unexplained(self, read: set[Place]) -> list[str]:
        """The traced headers that no include of a read file leads to."""
        names = {spelling for place in read for spelling in self._spellings(place)}
        inodes = {self._inode(place) for place in read}
        return [name for name in self._names if name not in names and self._inodes.get(name, ()) not in inodes]

    def _spellings(self, place: Place) -> tuple[str, ...]:
        if place.base == MEMORY:
            return (place.rest,)
        path = path_of(place, self._survey.search)
        if path.isascii():
            return (path,)
        return path, path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")  # as NVRTC writes it

    def _inode(self, place: Place) -> tuple[int, int] | None:
        stat = None if place.base <= SOURCE else self._survey.stat(path_of(place, self._survey.search))
        return stat and (stat.st_dev, stat.st_ino)
