"""Make the header set of a compile: the headers that it may have read, with the contents that a survey found.

Promise     The set contains every header that the compiler read, with the bytes that it read. Where that is not
            certain, the reason is raised.
Method      The survey runs before the compiler; afterwards `reading` lists which of its headers were read. From a
            mirror the compiler can have read nothing else. Where it read the user's own files, they and the links on
            the way to them are compared again: if one differs, it was edited during the compile.
Not here    Running NVRTC (toolchain), storing header sets (store), comparing them later (check).
Source      tests/unit/test_header_scenarios.py, tests/corpus/header_mutations.py.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable

from .check import Match, check_headers, is_there, same_files
from .dependencies import Forced, HeaderFile, HeaderSet
from .file_identity import FileStat, stat_of
from .lookup import bare
from .paths import links_to
from .reading import IsUnread, scanned_headers
from .scanner import Form
from .search import ABSOLUTE, MEMORY, SOURCE, Place, path_of
from .survey import START, Header, Lookup, Survey
from .tree_parts import Seen, TreePart, look_at, part_of, paths_in
from .untrackable import UntrackableError, UntrackableReason

_TICK_NS = 10_000_000
"""Largest lag, in nanoseconds, of the coarse clock from which the kernel takes ctime."""


def learn_headers(
    survey: Survey,
    is_unread: IsUnread | None = None,
    *,
    opened_in: Callable[[str], list[str] | None] = lambda root: None,
    is_mirrored: bool = False,
    is_timeless: bool = False,
    has_names: bool = True,
) -> HeaderSet:
    """Make the header set of a compile that has just succeeded.

    Args:
        survey: The survey made before the compile started.
        is_unread: Returns whether a header certainly was not read (open_watch); None if all may have been.
        opened_in: Lists the files of a toolkit's tree that the compiler opened; None if all may have been opened.
        is_mirrored: The compiler read a mirror of the survey.
        is_timeless: `__DATE__` and similar macros are in no branch of the user's texts that was taken.
        has_names: The code may contain the names of files, as they were found.

    Raises:
        UntrackableError: The headers cannot be captured.
    """
    try:
        read = scanned_headers(survey, is_unread)
        for place in read:
            _refuse(survey, place, survey.headers[place], is_timeless=is_timeless)
        survey.run_wrappers(read)
        is_computed = any(survey.headers[place].scan.computed and survey.in_tree(place) for place in read)
        # names formed by macros are listed or refused for the user's own headers, but not for the toolkit's
        shadows = _all_shadows(survey) if is_computed else set[Place]()
        headers = _header_set(survey, read, opened_in if is_computed else None, has_names=has_names)
        headers = headers._replace(clear=tuple(sorted(shadows)))
        settled = headers._replace(files=tuple(_settled(file, survey) for file in headers.files))
        if not is_mirrored:
            _require_same(headers, survey)
        return settled
    except OSError as error:
        raise UntrackableError(UntrackableReason.UNREADABLE, str(error.filename or "")) from None


def _require_same(headers: HeaderSet, survey: Survey) -> None:
    """Raise unless everything in the set, and the links to it, are unchanged since before the compiler ran."""
    for each in (headers, bare(headers)):  # stats, then contents: a write through a mapping need not change the stat
        outcome = check_headers(each, survey.search, now_ns=survey.now_ns)
        if not isinstance(outcome, Match):
            raise UntrackableError(UntrackableReason.MODIFIED, outcome.path)
        for old, new in zip(headers.files, (outcome.refreshed or each).files, strict=True):
            if each is headers and old != new:  # touched, or edited and restored
                raise UntrackableError(UntrackableReason.MODIFIED, path_of(old.place, survey.search))
    for path, link in survey.paths.links.items():
        if links_to(path) != link:
            raise UntrackableError(UntrackableReason.MODIFIED, path)


def _settled(file: HeaderFile, survey: Survey) -> HeaderFile:
    return file if survey.headers[file.place].is_settled else file._replace(stat=None)


def _refuse(survey: Survey, place: Place, header: Header, *, is_timeless: bool) -> None:
    """Raise the first reason for which a header set cannot contain this file."""
    if header.error:
        raise UntrackableError(UntrackableReason.UNREADABLE, header.path)
    if header.scan.has_clock and not (is_timeless and not survey.in_tree(place)):
        raise UntrackableError(UntrackableReason.CLOCK, header.path)
    if place in survey.opaque:
        raise UntrackableError(UntrackableReason.OPAQUE, header.path)
    if header.is_late and not survey.in_tree(place):
        raise UntrackableError(UntrackableReason.MODIFIED, header.path)


def _header_set(
    survey: Survey, places: set[Place], opened_in: Callable[[str], list[str] | None] | None, *, has_names: bool
) -> HeaderSet:
    """Collect the files and absent places that the lookups depend on, with the stat of every file, settled or not.

    `opened_in` is given if a toolkit's headers may have included files that are not among these.
    """
    layout = survey.search.layout()
    missing: dict[Place, None] = {}
    questions: dict[Lookup, None] = {}
    touched = set(places)
    for place in places:
        for lookup in survey.includes[place]:
            is_read = not places.isdisjoint(lookup.leads_to)  # otherwise the include was not executed
            if is_read and lookup.include.form is not Form.FORCED:
                missing.update(dict.fromkeys(lookup.absent))
        questions.update(dict.fromkeys(survey.questions[place]))
    touched.update(missing, *(place for lookup in questions for place in (lookup.found, lookup.absent)))
    own = sorted(place for place in places if place.base > SOURCE and not survey.in_tree(place))
    files = tuple(HeaderFile(place, survey.headers[place].sha256, survey.headers[place].stat) for place in own)
    within: dict[int, set[str]] = {}
    for place in touched:
        if survey.in_tree(place):
            within.setdefault(layout[place.base][0], set()).add(survey.inside(place))
    for index, root in enumerate(survey.search.trees):
        if opened_in is not None and index in within:
            opened = opened_in(root)
            within[index].update(opened or (), paths_in(root, with_files=opened is None))
    forced = [lookup for lookup in survey.includes[START] if lookup.include.form is Form.FORCED and lookup.found]
    has_next = any(lookup.include.form is Form.NEXT for place in places for lookup in survey.includes[place])
    return HeaderSet(
        layout,
        files,
        _by_folder(survey, (place for place in missing if not survey.in_tree(place))),
        (),
        tuple(sorted({answer for lookup in questions for answer in _answers(survey, lookup)})),
        same_files([(file.stat.device, file.stat.inode) for file in files if file.stat]),
        tuple(_part(survey, index, paths) for index, paths in sorted(within.items())),
        tuple(Forced(each.found[0], not each.absent if has_next or has_names else None) for each in forced),
        survey.paths.several(),
    )


def _part(survey: Survey, index: int, paths: Iterable[str]) -> TreePart:
    """Make the part of a tree at these paths, which must be unchanged since the survey began.

    Raises:
        UntrackableError: A path may have changed.
    """
    root, layout = survey.search.trees[index], survey.search.layout()
    known = {survey.inside(place): header for place, header in survey.headers.items()
             if survey.in_tree(place) and layout[place.base][0] == index}  # fmt: skip
    seen: dict[str, Seen] = {}
    for path in paths:
        place, header = os.path.join(root, path), known.get(path)
        if header is not None and header.stat is not None:
            seen[path] = header.stat, header.sha256
            is_steady = not header.is_late and _stat_now(place) == header.stat
        else:
            seen[path], is_steady = look_at(place), False
        stat = seen[path][0]
        if not is_steady and stat is not None and stat.ctime_ns >= survey.now_ns - _TICK_NS:
            raise UntrackableError(UntrackableReason.MODIFIED, place)
    return part_of(index, seen, survey.now_ns)


def _stat_now(path: str) -> FileStat | None:
    try:
        return stat_of(os.stat(path))
    except OSError:
        return None


def _answers(survey: Survey, question: Lookup) -> list[tuple[tuple[Place, ...], bool]]:
    """List the results of a `__has_include`, without those for a toolkit, which are in its `TreePart`."""
    found, absent = ({place for place in each if not survey.in_tree(place)} for each in question[1:])
    if any(place.base == MEMORY or survey.in_tree(place) for place in question.found):
        return []
    if question.include.form is Form.NEXT:  # the place at which the search starts is not known
        return [*(((place,), True) for place in found), *(((place,), False) for place in absent)]
    places = tuple(sorted(found | absent))
    return [(places, bool(found))] if places else []


def _by_folder(survey: Survey, places: Iterable[Place]) -> tuple[tuple[Place, tuple[str, ...]], ...]:
    """Group places by the topmost missing folder on their path, or else by the folder they are in.

    Most are in folders that the user's own tree lacks (`cub`, `cuda/std`): one stat then covers all of them.
    """

    @functools.cache
    def exists(folder: Place) -> bool:
        return is_there(path_of(folder, survey.search))

    groups: dict[Place, list[str]] = {}
    for place in sorted(places):
        *folders, name = place.rest.split("/")
        depth = len(folders) if place.base == ABSOLUTE else 0
        while depth < len(folders) and exists(Place(place.base, "/".join(folders[:depth]))):
            depth += 1
        folder = Place(place.base, "/".join(folders[:depth]))
        groups.setdefault(folder, []).append("/".join([*folders[depth:], name]))
    return tuple((folder, tuple(names)) for folder, names in sorted(groups.items()))


def _all_shadows(survey: Survey) -> set[Place]:
    """List the places at which one of the user's files would shadow a header of a toolkit.

    Raises:
        UntrackableError: There is such a file already.
    """
    layout = survey.search.layout()
    pending = [
        (Place(index, ""), tree_folder)
        for index, (tree, _rest) in enumerate(layout)
        for tree_folder, (other, _rest) in zip(survey.search.folders, layout, strict=True)
        if tree < 0 <= other and os.path.isdir(tree_folder)
    ]
    clear: set[Place] = set()
    for place, tree_folder in pending:  # grows where both have a folder of the same name
        for name in os.listdir(tree_folder):
            shadow, original = Place(place.base, os.path.join(place.rest, name)), os.path.join(tree_folder, name)
            path = path_of(shadow, survey.search)
            if not is_there(path):
                clear.add(shadow)
            elif not os.path.isdir(path):
                raise UntrackableError(UntrackableReason.COMPUTED, path)
            elif os.path.isdir(original):
                pending.append((shadow, original))
    return clear
