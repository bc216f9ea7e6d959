"""Learn the header closure of a compile: from NVRTC's own trace, held against a survey of what it could read.

Promise     A closure is returned only if its files are the ones that the compiler read, or more, and held the
            same bytes before the compiler started and after it was done. Otherwise the reason why not.
Method      The survey runs before the compiler. Afterwards a whole trace cuts it down to the files that were
            read; without one (NVRTC 12, a damaged trace) all of it stays. A header in the trace that the survey
            cannot explain, and no computed include can either, or an unconditional include of the source that
            the trace lacks, means that one of the two is wrong, and the wider one is taken or none. At last the
            closure is checked as on a warm start: a stat that moved meanwhile is a header edited under the
            compiler's hands.
Not here    Running NVRTC (toolchain), keeping closures (store), comparing them later (closure_check).
Ground      tests/unit/test_header_scenarios.py, tests/corpus/header_mutations.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from .closure import Closure, HeaderFile
from .closure_check import Match, check_closure, is_there, same_files
from .file_identity import is_settled
from .header_survey import START, Survey
from .header_trace import TraceResult
from .include_scanner import Form, Include, unconditional_includes
from .include_search import ABSOLUTE, MEMORY, SOURCE, Place, Search, path_of


class Doubt(StrEnum):
    """Why the headers of a compile cannot be captured.

    CLOCK           A text expands __DATE__ or __TIME__.
    COMPUTED        An include names a macro whose values cannot be listed, and there is no whole trace.
    OPAQUE          A `__has_include` hides behind a macro.
    UNEXPLAINED     The trace and the survey contradict each other.
    MODIFIED        A header changed while the compiler ran.
    UNREADABLE      A header that the compiler may have read cannot be read here.
    TOO_MANY        There are more headers than are followed.
    """

    CLOCK = "clock"
    COMPUTED = "computed"
    OPAQUE = "opaque"
    UNEXPLAINED = "unexplained"
    MODIFIED = "modified"
    UNREADABLE = "unreadable"
    TOO_MANY = "too_many"


class Uncapturable(NamedTuple):
    """The compile must not be stored: why, and which file shows it ("" for the source)."""

    doubt: Doubt
    path: str = ""


def survey_headers(source: str, search: Search, *, now_ns: int) -> Survey:
    """Look at everything that the source could include. To be called right before the compiler starts.

    Args:
        source: The text as the compiler gets it.
        search: Where it looks for headers.
        now_ns: The time, by the wall clock.
    """
    return Survey(source, search, now_ns)


def learn_closure(survey: Survey, trace: TraceResult | None) -> Closure | Uncapturable:
    """Make the closure of a compile that has just succeeded.

    Args:
        survey: Taken before it started.
        trace: What NVRTC said that it read; None where it could not be asked.
    """
    if survey.is_cut:
        return Uncapturable(Doubt.TOO_MANY)
    read = _traced(survey, trace) if trace is not None and trace.is_whole else None
    if isinstance(read, Uncapturable):
        return read
    places = set(survey.files) if read is None else read
    refusal = _refuse(survey, places, is_traced=read is not None)
    if refusal is not None:
        return refusal
    closure = _closure(survey, places, is_traced=read is not None)
    if isinstance(closure, Uncapturable):
        return closure
    return _compared(closure, survey)


def _compared(closure: Closure, survey: Survey) -> Closure | Uncapturable:
    """The closure with the stats that can be trusted, if nothing in it changed while the compiler ran."""
    outcome = check_closure(closure, survey.search, now_ns=survey.now_ns)
    if not isinstance(outcome, Match):
        return Uncapturable(Doubt.MODIFIED, outcome.path)
    if outcome.refreshed is not None:  # a stat moved: touched, or edited and put back
        moved = next(old for old, new in zip(closure.files, outcome.refreshed.files, strict=True) if old != new)
        return Uncapturable(Doubt.MODIFIED, path_of(moved.place, survey.search))
    files = tuple(_settled(file, survey) for file in closure.files)
    if files == closure.files:
        return closure
    closure = closure._replace(files=files)  # what is too young for its stat to tell is read again
    outcome = check_closure(closure, survey.search, now_ns=survey.now_ns)
    return closure if isinstance(outcome, Match) else Uncapturable(Doubt.MODIFIED, outcome.path)


def _settled(file: HeaderFile, survey: Survey) -> HeaderFile:
    path = path_of(file.place, survey.search)
    if file.stat is not None and is_settled(file.stat, path, survey.now_ns):
        return file
    return file._replace(stat=None)


def find_embedded_paths(code: bytes, paths: Iterable[str]) -> tuple[str, ...]:
    """Those of `paths` whose spelling stands in the compiled code: it is bound to where they are."""
    return tuple(path for path in dict.fromkeys(paths) if len(path) > 1 and os.fsencode(path) in code)


def _traced(survey: Survey, trace: TraceResult) -> set[Place] | Uncapturable | None:
    """The places whose files the compiler read; None where the trace is not to be believed."""
    traced = _Traced(survey, trace)
    read = traced.reachable()
    known, unexplained = set(survey.files), traced.unexplained(read)
    computing = [place for place in read if place in survey.unresolved]
    while unexplained and computing:
        for path in unexplained:
            _suppose(survey, path, computing)
        before, read = read, traced.reachable()
        if read == before:
            break
        unexplained = traced.unexplained(read)
        computing = [place for place in read if place in survey.unresolved]
    if unexplained:
        return Uncapturable(Doubt.UNEXPLAINED, unexplained[0])
    for place in read - known:  # looked at after the compile: only its age says that the compiler saw the same
        reached = survey.files[place]
        if not survey.in_tree(place) and not (reached.stat and is_settled(reached.stat, reached.path, survey.now_ns)):
            return Uncapturable(Doubt.MODIFIED, reached.path)
    must = set(unconditional_includes(survey.source))
    lacks = (each for each in survey.includes[START] if each.include in must and read.isdisjoint(each.found))
    return None if any(lacks) else read


def _suppose(survey: Survey, path: str, computing: Iterable[Place]) -> None:
    """Let every computed include have named this header, in each way in which it could have."""
    for place in computing:
        folders = [folder.rstrip("/") + "/" for folder in survey.search.folders]
        if place.base not in (SOURCE, MEMORY):
            folders.append(os.path.dirname(survey.files[place].path) + "/")
        names = [path[len(folder) :] for folder in folders if path.startswith(folder)]
        for name in dict.fromkeys(names or [path]):
            survey.suppose(place, Include(Form.QUOTE, name))
            survey.suppose(place, Include(Form.ANGLE, name))


class _Traced:
    """The files of a trace, by their spelling and, as one file may have two paths, by device and inode."""

    def __init__(self, survey: Survey, trace: TraceResult) -> None:
        self._survey, self._names = survey, frozenset(trace.headers)
        found = {name: survey.stat(name) for name in trace.headers if name not in survey.search.memory}
        self._inodes = {name: (each.st_dev, each.st_ino) for name, each in found.items() if each is not None}
        self._read_inodes = frozenset(self._inodes.values())

    def reachable(self) -> set[Place]:
        """From the source along the includes that the trace says were carried out."""
        read, pending = {START}, [START]
        while pending:
            for lookup in self._survey.includes[pending.pop()]:
                for place in lookup.leads_to:
                    if place not in read and self._was_read(place):
                        read.add(place)
                        pending.append(place)
        return read

    def _was_read(self, place: Place) -> bool:
        return not self._names.isdisjoint(self._spellings(place)) or self._inode(place) in self._read_inodes

    def unexplained(self, read: set[Place]) -> list[str]:
        """The traced headers that no include of a read file leads to."""
        names = {spelling for place in read for spelling in self._spellings(place)}
        inodes = {self._inode(place) for place in read}
        return [name for name in self._names if name not in names and self._inodes.get(name, ()) not in inodes]

    def _spellings(self, place: Place) -> tuple[str, ...]:
        if place.base == MEMORY:
            return (place.rest,)
        path = self._survey.files[place].path
        if path.isascii():
            return (path,)
        return path, path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")  # as NVRTC writes it

    def _inode(self, place: Place) -> tuple[int, int] | None:
        stat = self._survey.files[place].stat
        return stat and (stat.device, stat.inode)


def _refuse(survey: Survey, places: Iterable[Place], is_traced: bool) -> Uncapturable | None:
    """The first thing in these files that no closure can hold."""
    for place in places:
        reached = survey.files[place]
        if reached.error:
            return Uncapturable(Doubt.UNREADABLE, reached.path)
        if reached.scan.has_clock:
            return Uncapturable(Doubt.CLOCK, reached.path)
        if reached.scan.is_opaque:
            return Uncapturable(Doubt.OPAQUE, reached.path)
        if place in survey.unresolved and not is_traced and not survey.in_tree(place):
            return Uncapturable(Doubt.COMPUTED, reached.path)
    return None


def _closure(survey: Survey, places: set[Place], is_traced: bool) -> Closure | Uncapturable:
    """What the lookups of these files rest on, with the stat of every file, settled or not."""
    layout = survey.search.layout()
    missing: dict[Place, None] = {}
    answers: dict[Place, bool] = {}
    touched = set(places)
    for place in places:
        for lookup in survey.includes[place]:
            if lookup.found:  # one that leads nowhere was not carried out: the compile succeeded
                missing.update(dict.fromkeys(lookup.absent))
        for lookup in survey.questions[place]:
            answers.update(dict.fromkeys(lookup.found, True))
            answers.update(dict.fromkeys(lookup.absent, False))
    touched |= missing.keys() | answers.keys()
    clear, absent = _topmost(survey, (place for place in missing if not survey.in_tree(place)))
    if not is_traced and any(place in survey.unresolved for place in places):
        shadows = _all_shadows(survey)
        occupied = next((place for place in shadows if is_there(path_of(place, survey.search))), None)
        if occupied is not None:
            return Uncapturable(Doubt.COMPUTED, path_of(occupied, survey.search))
        clear |= shadows
    own = sorted(place for place in places if place.base > SOURCE and not survey.in_tree(place))
    files = tuple(HeaderFile(place, survey.files[place].sha256, survey.files[place].stat) for place in own)
    trees = {layout[place.base][0] for place in touched if survey.in_tree(place)}
    return Closure(
        layout,
        files,
        tuple(sorted(absent)),
        tuple(sorted(clear)),
        tuple(
            sorted(
                (place, answer)
                for place, answer in answers.items()
                if place.base > SOURCE and not survey.in_tree(place)
            )
        ),
        same_files(files, [file.stat for file in files if file.stat]),
        tuple((index, survey.search.trees[index].identity) for index in sorted(trees)),
        is_traced,
        any(survey.files[place].scan.has_location for place in own),
    )


def _topmost(survey: Survey, places: Iterable[Place]) -> tuple[set[Place], set[Place]]:
    """The same absent paths in fewer: for those below a folder that does not exist, the folder.

    Returns:
        Places where there is nothing, and places where there is no file.
    """
    clear, absent, known = set(), set(), {}
    for place in places:
        at = ""
        parts = place.rest.split("/")[:-1] if place.base != ABSOLUTE else []
        for part in ["", *parts]:
            at = os.path.join(at, part)
            folder = Place(place.base, at)
            if folder not in known:
                known[folder] = place.base != ABSOLUTE and not is_there(path_of(folder, survey.search))
            if known[folder]:
                clear.add(folder)
                break
        else:
            absent.add(place)
    return clear, absent


def _all_shadows(survey: Survey) -> set[Place]:
    """Every name in the user's folders by which some header of a toolkit tree could be shadowed."""
    layout = survey.search.layout()
    names = {
        name
        for folder, (tree, _rest) in zip(survey.search.folders, layout, strict=True)
        if tree >= 0 and is_there(folder)
        for name in os.listdir(folder)
    }
    return {Place(index, name) for index, (tree, _rest) in enumerate(layout) if tree < 0 for name in names}
