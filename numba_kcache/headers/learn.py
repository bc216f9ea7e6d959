"""Learn the header closure of a compile: from NVRTC's own trace, held against a survey of what it could read.

Promise     A closure is returned only if its files are the ones that the compiler read, or more, and held the
            same bytes before the compiler started and after it was done. Otherwise the reason why not.
Method      The survey runs before the compiler; afterwards headers_read says which of its headers were read. At
            last the closure is checked as on a warm start: a stat that moved meanwhile is a header edited under
            the compiler's hands. What was too young for its stat to tell is compared by content.
Not here    Running NVRTC (toolchain), keeping closures (store), comparing them later (closure_check).
Ground      tests/unit/test_header_scenarios.py, tests/corpus/header_mutations.py.
"""

from __future__ import annotations

import os
import stat as modes
from collections.abc import Iterable, Mapping

from .check import Match, check_closure, is_there, same_files
from .dependencies import Closure, HeaderFile
from .file_identity import is_older, is_settled
from .read import scanned_headers, traced_headers
from .scanner import Form
from .search import ABSOLUTE, MEMORY, SOURCE, Place, Search, path_of
from .survey import Header, Lookup, Survey, TooManyHeadersError
from .trace import TraceResult
from .tree_scans import TreeScans
from .untrackable import Doubt, Uncapturable

__all__ = ["Uncapturable", "find_embedded_paths", "learn_closure", "survey_headers"]


def survey_headers(source: str, search: Search, *, now_ns: int, scans: Mapping[str, TreeScans] | None = None) -> Survey:
    """Look at everything that the source could include. To be called right before the compiler starts.

    Args:
        source: The text as the compiler gets it.
        search: Where it looks for headers.
        now_ns: The time, by the wall clock.
        scans: What is known of the toolkit's trees, by identity.
    """
    return Survey(source, search, now_ns, scans)


def learn_closure(
    survey: Survey, trace: TraceResult | None, unread: frozenset[Place] = frozenset()
) -> Closure | Uncapturable:
    """Make the closure of a compile that has just succeeded.

    Args:
        survey: Taken before it started.
        trace: What NVRTC said that it read; None where it could not be asked.
        unread: Headers that it certainly did not read (open_watch), of use where there is no trace.
    """
    try:
        return _learn(survey, trace, unread)
    except TooManyHeadersError:
        return Uncapturable(Doubt.TOO_MANY)
    except OSError as error:
        return Uncapturable(Doubt.UNREADABLE, str(error.filename or ""))


def _learn(survey: Survey, trace: TraceResult | None, unread: frozenset[Place]) -> Closure | Uncapturable:
    read = traced_headers(survey, trace) if trace is not None and trace.is_whole else None
    is_traced = read is not None
    if read is None:
        read = scanned_headers(survey, unread)
    if isinstance(read, Uncapturable):
        return read
    refusal = _refuse(survey, read)
    if refusal is not None:
        return refusal
    asking = survey.run_wrappers(read)
    if asking is not None:
        return Uncapturable(Doubt.OPAQUE, survey.headers[asking].path)
    closure = _closure(survey, read)
    if not is_traced and any(survey.headers[place].scan.computed and survey.in_tree(place) for place in read):
        shadows, occupied = _all_shadows(survey)  # the user's own are listed or refused; the toolkit's are neither
        if occupied:
            return Uncapturable(Doubt.COMPUTED, occupied)
        closure = closure._replace(clear=tuple(sorted(shadows)))
    return _compared(closure._replace(is_traced=is_traced), survey)


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


def _refuse(survey: Survey, places: Iterable[Place]) -> Uncapturable | None:
    """The first thing in these files that no closure can hold."""
    for place in places:
        header = survey.headers[place]
        if header.error:
            return Uncapturable(Doubt.UNREADABLE, header.path)
        if header.scan.has_clock:
            return Uncapturable(Doubt.CLOCK, header.path)
        if header.scan.is_opaque:
            return Uncapturable(Doubt.OPAQUE, header.path)
        if header.is_late and not survey.in_tree(place) and not _is_older(header, survey):
            return Uncapturable(Doubt.MODIFIED, header.path)
    return None


def _is_older(header: Header, survey: Survey) -> bool:
    """Whether a header that was read after the compiler is the one that the compiler read, too.

    Its own age says so, and that of the links and folders that led to it: one of them may have been switched.
    Folders above those of the search are left out, as their entries come and go all the time.
    """
    if header.stat is None or not is_older(header.stat.ctime_ns, header.path, survey.now_ns):
        return False
    path = header.path
    while (path := os.path.dirname(path)) not in ("", "/"):
        found = os.lstat(path)
        counts = modes.S_ISLNK(found.st_mode) or any(path.startswith(each) for each in survey.search.folders)
        if counts and not is_older(found.st_ctime_ns, path, survey.now_ns):
            return False
    return True


def _closure(survey: Survey, places: set[Place]) -> Closure:
    """What the lookups of these files rest on, with the stat of every file, settled or not."""
    layout = survey.search.layout()
    missing: dict[Place, None] = {}
    questions: dict[Lookup, None] = {}
    touched = set(places)
    for place in places:
        for lookup in survey.includes[place]:
            if not places.isdisjoint(lookup.leads_to):  # otherwise it was not carried out: it would have been read
                missing.update(dict.fromkeys(lookup.absent))
        questions.update(dict.fromkeys(survey.questions[place]))
    touched.update(missing, *(place for lookup in questions for place in (lookup.found, lookup.absent)))
    own = sorted(place for place in places if place.base > SOURCE and not survey.in_tree(place))
    files = tuple(HeaderFile(place, survey.headers[place].sha256, survey.headers[place].stat) for place in own)
    trees = {layout[place.base][0] for place in touched if survey.in_tree(place)}
    return Closure(
        layout,
        files,
        _by_folder(survey, (place for place in missing if not survey.in_tree(place))),
        (),
        tuple(sorted({answer for lookup in questions for answer in _answers(survey, lookup)})),
        same_files([(file.stat.device, file.stat.inode) for file in files if file.stat]),
        tuple((index, survey.search.trees[index].identity) for index in sorted(trees)),
        has_location=any(survey.headers[place].scan.has_location for place in own),
    )


def _answers(survey: Survey, question: Lookup) -> list[tuple[tuple[Place, ...], bool]]:
    """What a `__has_include` was told, as far as it was not a toolkit that answered: of its identity, all is known."""
    found, absent = ({place for place in each if not survey.in_tree(place)} for each in question[1:])
    if any(place.base == MEMORY or survey.in_tree(place) for place in question.found):
        return []
    if question.include.form is Form.NEXT:  # which of the places count is not known
        return [*(((place,), True) for place in found), *(((place,), False) for place in absent)]
    places = tuple(sorted(found | absent))
    return [(places, bool(found))] if places else []


def _by_folder(survey: Survey, places: Iterable[Place]) -> tuple[tuple[Place, tuple[str, ...]], ...]:
    """These places by the topmost folder on the way to them that does not exist, or else by the one they are in.

    Most lie in folders that the user's own tree does not have (`cub`, `cuda/std`): one look answers for all.
    """
    known: dict[Place, bool] = {}
    groups: dict[Place, list[str]] = {}
    for place in sorted(places):
        parts = place.rest.split("/")
        depth = len(parts) - 1 if place.base == ABSOLUTE else 0
        folder = Place(place.base, "/".join(parts[:depth]))
        while depth < len(parts) - 1:
            if folder not in known:
                known[folder] = is_there(path_of(folder, survey.search))
            if not known[folder]:
                break
            depth += 1
            folder = Place(place.base, "/".join(parts[:depth]))
        groups.setdefault(folder, []).append("/".join(parts[depth:]))
    return tuple((folder, tuple(names)) for folder, names in sorted(groups.items()))


def _all_shadows(survey: Survey) -> tuple[set[Place], str]:
    """Where a file of the user's could shadow any header of a toolkit: at which there is nothing; and one, if any."""
    layout = survey.search.layout()
    pending = [
        (Place(index, ""), tree_folder)
        for index, (tree, _rest) in enumerate(layout)
        for tree_folder, (other, _rest) in zip(survey.search.folders, layout, strict=True)
        if tree < 0 <= other and os.path.isdir(tree_folder)
    ]
    clear: set[Place] = set()
    for place, tree_folder in pending:  # grows, where both have a folder of one name
        for name in os.listdir(tree_folder):
            shadow, original = Place(place.base, os.path.join(place.rest, name)), os.path.join(tree_folder, name)
            path = path_of(shadow, survey.search)
            if not is_there(path):
                clear.add(shadow)
            elif os.path.isdir(path) and os.path.isdir(original):
                pending.append((shadow, original))
            elif not os.path.isdir(path):
                return clear, path
    return clear, ""
