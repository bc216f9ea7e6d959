"""Compare the headers on record for a compile with the file system: the check of every warm start.

Promise     `Match` only if everything in the record is unchanged; otherwise the first difference. A file that cannot
            be read is a difference, never an exception. Nothing is written.
Method      One complete loop per kind of fact, with no state between the loops. (sccache's check returned early; the
            comparisons that it skipped let stale objects through.) tests/unit/test_header_check.py removes each
            comparison in turn and finds that a scenario then fails.
Not here    Recording (learn), and storing the record with newer stats (the caller).
"""

from __future__ import annotations

import os
import stat as modes
from collections.abc import Iterator
from enum import StrEnum

from ..model import NamedTuple
from .dependencies import HeaderFile, HeaderSet
from .file_identity import digest, is_settled, read_steady
from .scanner import Form, Include
from .search import SOURCE, Place, Search, candidates, path_of
from .tree_parts import TreePart, part_now


class Change(StrEnum):
    """The kinds of mismatch; after the colon, the `old` and `new` values of such a `Mismatch`.

    LAYOUT      The include folders differ, or their order: number and places of the folders.
    TOOLKIT     The part of a toolkit's header tree that the compile used differs: its identities.
    SHADOWED    A file has appeared that is found before the one that was read: "absent", "present".
    ANSWER      A `__has_include` has another result: "absent" or "present".
    GONE        A header cannot be read any more: its digest, the system's error.
    CONTENT     A header's content differs: its digests.
    SAME_FILE   Paths that led to one file lead to several, or the other way round: the number of files then and now.
    """

    LAYOUT = "layout"
    TOOLKIT = "toolkit"
    SHADOWED = "shadowed"
    ANSWER = "answer"
    GONE = "gone"
    CONTENT = "content"
    SAME_FILE = "same_file"


class Match(NamedTuple):
    """The headers are unchanged. `refreshed` has newer stats if contents had to be read to find that."""

    refreshed: HeaderSet | None = None


class Mismatch(NamedTuple):
    """One difference."""

    change: Change
    path: str
    old: str
    new: str


def check_headers(known: HeaderSet, search: Search, *, now_ns: int) -> Match | Mismatch:
    """Compare headers with the file system, up to the first difference.

    Args:
        known: The recorded header set, of this machine or another.
        search: The folders that are searched for headers now.
        now_ns: The time, by the wall clock.
    """
    files: list[HeaderFile] = []
    trees: list[TreePart] = []
    for mismatch in differences(known, search, now_ns=now_ns, files=files, trees=trees):
        return mismatch
    found = known._replace(files=tuple(files), trees=tuple(trees))
    return Match(None if found == known else found)


def differences(
    known: HeaderSet,
    search: Search,
    *,
    now_ns: int,
    files: list[HeaderFile] | None = None,
    trees: list[TreePart] | None = None,
) -> Iterator[Mismatch]:
    """Yield each difference from the file system; unchanged files and tree parts are added to `files` and `trees`."""
    layout = search.layout()
    if layout != known.layout:
        yield Mismatch(Change.LAYOUT, "", repr(known.layout), repr(layout))
        return  # the indices in places mean other folders now
    for part in known.trees:
        root = search.trees[part.tree] if part.tree < len(search.trees) else ""
        now_there = part_now(part, root, now_ns)
        if now_there.identity != part.identity:
            yield Mismatch(Change.TOOLKIT, root, part.identity, now_there.identity)
        if trees is not None:
            trees.append(now_there)
    roots = [root and root.rstrip("/") + "/" for root in search.roots]
    for base, rest in known.clear:
        path = roots[base] + rest
        if is_there(path):
            yield Mismatch(Change.SHADOWED, path, "absent", "present")
    if known.forced or search.forced:
        yield from _forced_elsewhere(known, search)
    for long, first in known.folders:
        of_name = folder_at(path_of(long, search))
        if of_name is None or of_name != folder_at(path_of(first, search)):
            yield Mismatch(Change.SAME_FILE, path_of(long, search), "1", "2")
    for (base, rest), names in known.absent:
        folder = roots[base] + rest
        if is_there(folder):
            for name in names:
                path = os.path.join(folder, name)
                if is_file(path):
                    yield Mismatch(Change.SHADOWED, path, "absent", "present")
    for places, answer in known.answers:
        paths = [roots[base] + rest for base, rest in places]
        if any(map(is_file, paths)) != answer:
            words = ("present", "absent") if answer else ("absent", "present")
            yield Mismatch(Change.ANSWER, next(filter(is_file, paths), paths[0]), *words)
    inodes: list[tuple[int, int]] = []
    for file in known.files:
        (base, rest), sha256, stat = file
        path = roots[base] + rest
        try:
            now = os.stat(path)
            if (now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_dev, now.st_ino) != stat:
                reading = read_steady(path)
                found = digest(reading.data)
                if found != sha256:
                    yield Mismatch(Change.CONTENT, path, sha256, found)
                file = HeaderFile(file.place, found, reading.stat if is_settled(reading, path, now_ns) else None)
        except (OSError, ValueError) as error:
            yield Mismatch(Change.GONE, path, sha256, getattr(error, "strerror", None) or str(error))
            continue
        inodes.append((now.st_dev, now.st_ino))
        if files is not None:
            files.append(file)
    same = same_files(inodes)
    if same != known.same and len(inodes) == len(known.files):
        yield Mismatch(Change.SAME_FILE, "", str(len(known.same)), str(len(same)))


def _forced_elsewhere(known: HeaderSet, search: Search) -> Iterator[Mismatch]:
    """Yield each name given to `-include` that now leads to a file in another folder, or to none."""
    if len(known.forced) != len(search.forced):
        yield Mismatch(Change.LAYOUT, "", str(len(known.forced)), str(len(search.forced)))
    for name, (old, is_beside) in zip(search.forced, known.forced, strict=False):
        places = candidates(search, Include(Form.FORCED, name), Place(SOURCE, ""))
        now = next((place for place in places if is_file(path_of(place, search))), None)
        if now is None:
            yield Mismatch(Change.GONE, path_of(old, search), "present", "absent")
        elif now != old or is_beside not in (None, now == places[0]):
            yield Mismatch(Change.SHADOWED, path_of(now, search), "absent", "present")


def same_files(inodes: list[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
    """List the groups of indices with equal (device, inode), in order."""
    if len(set(inodes)) == len(inodes):
        return ()
    groups: dict[tuple[int, int], list[int]] = {}
    for index, inode in enumerate(inodes):
        groups.setdefault(inode, []).append(index)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)


def folder_at(path: str) -> tuple[int, int] | None:
    """Device and inode of the file or folder at a path; None if there is neither."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino


def is_there(path: str) -> bool:
    """Check whether the path leads to a file or a folder."""
    try:
        os.stat(path)
    except (OSError, ValueError):
        return False
    return True


def is_file(path: str) -> bool:
    """Check whether the path leads to a file that a compiler would take as a header (not a folder)."""
    try:
        return not modes.S_ISDIR(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False
