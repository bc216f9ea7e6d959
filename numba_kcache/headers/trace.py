"""Find the headers that a compile read: by the trace that NVRTC writes with `--fdevice-time-trace`, or by the survey.

Promise     Never fewer than the compiler read. Nothing known to damage a trace has happened to one that is believed. A
            header of the trace that no include leads to, or an unconditional include of the source that the trace
            lacks, means that one of the two is wrong: then the headers cannot be known, or all that the scanner
            reaches is taken. Reading a trace never raises.
Method      The trace cuts the includes of the source down to those carried out. A computed include cannot be
            followed; it is taken to have named each header that nothing else explains, in every way it could.
            NVRTC processes its own `__nv_nvrtc_builtin_header.h` in every compile. After a compile that died
            inside a nested header, all later traces of the process lack headers, and lack this one first.
Not here    The flag and the private file (toolchain), and what is kept of these headers (learn).
Ground      NVRTC 13.0 to 13.5; 12.8 and 12.9 write a trace without headers, which is not whole either. Of two paths to
            one file NVRTC traces only the first, if a guard or `#pragma once` stops the second.
"""

from __future__ import annotations

import json
import os

from .scanner import Form, Include, unconditional_includes
from .search import MEMORY, SOURCE, Place, path_of
from .survey import START, Survey
from .untrackable import UntrackableError, UntrackableReason

Trace = tuple[str, ...]
"""The headers of one compile: paths as NVRTC spelled them, or names of in-memory headers; each once."""

BUILTIN_HEADER = "__nv_nvrtc_builtin_header.h"
_EVENT = "Processing Header File"


def read_trace(data: bytes) -> Trace | None:
    """Read the trace of one successful compile; None where it is none, or may lack a header."""
    try:
        events = json.loads(data)["traceEvents"]
        headers = dict.fromkeys(each["args"]["detail"] for each in events if each and each.get("name") == _EVENT)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if BUILTIN_HEADER not in headers or not all(type(each) is str for each in headers):
        return None
    return tuple(each for each in headers if each != BUILTIN_HEADER)


def traced_headers(survey: Survey, trace: Trace) -> set[Place] | None:
    """List the places whose files the compiler read; None where the trace is not to be believed.

    Raises:
        UntrackableError: No include leads to a header of the trace.
    """
    traced = _Traced(survey, trace)
    read = survey.walk(traced.was_read)
    while unexplained := traced.unexplained(read):
        computing = [place for place in read if survey.headers[place].scan.computed]
        supposed = [_suppose(survey, path, place) for path in unexplained for place in computing]
        if not any(supposed):
            raise UntrackableError(UntrackableReason.UNEXPLAINED, unexplained[0])
        read = survey.walk(traced.was_read)
    return None if _lacks_any(survey, read) else read


def scanned_headers(survey: Survey, unread: frozenset[Place] = frozenset()) -> set[Place]:
    """List all places that the compiler could have read from.

    Args:
        survey: Taken before it ran.
        unread: Headers that nobody opened meanwhile. Disbelieved, if the source must have included one of them, or if
            another was opened that they alone lead to.

    Raises:
        UntrackableError: An include cannot be followed.
    """
    is_new = True
    while is_new:
        read = survey.walk(lambda place: place not in unread)
        is_new, unlisted = survey.run_macros()
    if unread and (_lacks_any(survey, read) or not survey.surveyed() <= read | unread):
        return scanned_headers(survey)
    if unlisted & read:
        raise UntrackableError(UntrackableReason.COMPUTED, survey.headers[min(unlisted & read)].path)
    return read


def _lacks_any(survey: Survey, read: set[Place]) -> bool:
    """Tell if an include that the source must have carried out led to none of these."""
    must = set(unconditional_includes(survey.source))
    return any(each.include in must and read.isdisjoint(each.found) for each in survey.includes[START])


def _suppose(survey: Survey, path: str, includer: Place) -> bool:
    """Let a computed include have named this header, in each way in which it could have; return if one is new."""
    folders = [folder.rstrip("/") + "/" for folder in survey.search.folders]
    if includer.base not in (SOURCE, MEMORY):
        folders.append(os.path.dirname(survey.headers[includer].path) + "/")
    names = [path[len(folder) :] for folder in folders if path.startswith(folder)] or [path]
    supposed = [survey.suppose(includer, Include(form, name)) for name in names for form in (Form.QUOTE, Form.ANGLE)]
    return any(supposed)


class _Traced:
    """The files of a trace, by their spelling and, as one file may have two paths, by device and inode."""

    def __init__(self, survey: Survey, trace: Trace) -> None:
        self._survey, self._names = survey, frozenset(trace)
        found = {name: survey.stat(name) for name in trace if name not in survey.search.memory}
        self._inodes = {name: (each.st_dev, each.st_ino) for name, each in found.items() if each is not None}
        self._read_inodes = frozenset(self._inodes.values())

    def was_read(self, place: Place) -> bool:
        """Tell if by the trace the compiler read the file at this place."""
        return not self._names.isdisjoint(self._spellings(place)) or self._inode(place) in self._read_inodes

    def unexplained(self, read: set[Place]) -> list[str]:
        """List the traced headers that no include of a read file leads to."""
        names = {spelling for place in read for spelling in self._spellings(place)}
        inodes = {self._inode(place) for place in read}
        return [name for name in self._names if name not in names and self._inodes.get(name, ()) not in inodes]

    def _spellings(self, place: Place) -> tuple[str, ...]:
        if place.base == MEMORY:
            return (place.rest,)
        path = path_of(place, self._survey.search)
        return path, path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")  # as NVRTC writes it

    def _inode(self, place: Place) -> tuple[int, int] | None:
        stat = None if place.base <= SOURCE else self._survey.stat(path_of(place, self._survey.search))
        return stat and (stat.st_dev, stat.st_ino)
