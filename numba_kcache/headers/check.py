"""Whether a header closure still holds: the check of every warm start, and the one that must not be clever.

Promise     `Match` only where each thing that the closure names is as it was; the first difference is returned
            as a value. A file that cannot be looked at is a difference, never an exception. Nothing is written.
Method      One loop per kind of thing, each over everything, no state between them: sccache's check returned
            early and skipped comparisons, and both served stale objects (tests/unit/test_closure_check.py takes
            each comparison out and sees a scenario fail).
Not here    Learning (headers), and keeping the refreshed closure (the caller).
"""

from __future__ import annotations

import os
import stat as modes
from enum import StrEnum
from typing import NamedTuple

from .dependencies import Closure, HeaderFile
from .file_identity import digest, is_settled, read_steady
from .search import Search, Tree


class Change(StrEnum):
    """In what a closure does not hold; `old` and `new` of the mismatch.

    LAYOUT      The include folders lie otherwise: number and place of folders.
    TOOLKIT     A toolkit's header tree is another one: its identities.
    SHADOWED    A file has appeared that is found before the one that was read: "absent", "present".
    ANSWER      A `__has_include` gets another answer: "absent" or "present".
    GONE        A header cannot be read any more: its digest, the system's error.
    CONTENT     A header holds something else: its digests.
    SAME_FILE   Paths that were one file are several, or the other way round: how many they were and are.
    """

    LAYOUT = "layout"
    TOOLKIT = "toolkit"
    SHADOWED = "shadowed"
    ANSWER = "answer"
    GONE = "gone"
    CONTENT = "content"
    SAME_FILE = "same_file"


class Match(NamedTuple):
    """The closure holds. `refreshed` is the same with newer stats, where contents had to be read to know."""

    refreshed: Closure | None = None


class Mismatch(NamedTuple):
    """The first thing found that differs."""

    change: Change
    path: str
    old: str
    new: str


def check_closure(closure: Closure, search: Search, *, now_ns: int) -> Match | Mismatch:
    """Compare a closure with the file system.

    Args:
        closure: As it was learned, here or elsewhere.
        search: Where headers are looked for now.
        now_ns: The time, by the wall clock.
    """
    layout = search.layout()
    if layout != closure.layout:
        return Mismatch(Change.LAYOUT, "", repr(closure.layout), repr(layout))
    for index, identity in closure.trees:
        tree = search.trees[index] if index < len(search.trees) else Tree("", "")
        if tree.identity != identity:
            return Mismatch(Change.TOOLKIT, tree.root, identity, tree.identity)
    roots = [root and root.rstrip("/") + "/" for root in search.roots]
    for base, rest in closure.clear:
        path = roots[base] + rest
        if is_there(path):
            return Mismatch(Change.SHADOWED, path, "absent", "present")
    for (base, rest), names in closure.absent:
        folder = roots[base] + rest
        if is_there(folder):
            for name in names:
                path = os.path.join(folder, name)
                if is_file(path):
                    return Mismatch(Change.SHADOWED, path, "absent", "present")
    for places, answer in closure.answers:
        paths = [roots[base] + rest for base, rest in places]
        if any(map(is_file, paths)) != answer:
            words = ("present", "absent") if answer else ("absent", "present")
            return Mismatch(Change.ANSWER, next(filter(is_file, paths), paths[0]), *words)
    inodes: list[tuple[int, int]] = []
    files: list[HeaderFile] = []
    for file in closure.files:
        (base, rest), sha256, stat = file
        path = roots[base] + rest
        try:
            now = os.stat(path)
            if (now.st_size, now.st_mtime_ns, now.st_ctime_ns, now.st_dev, now.st_ino) != stat:
                fresh, data = read_steady(path)
                found = digest(data)
                if found != sha256:
                    return Mismatch(Change.CONTENT, path, sha256, found)
                file = HeaderFile(file.place, found, fresh if is_settled(fresh, path, now_ns) else None)
        except (OSError, ValueError) as error:
            return Mismatch(Change.GONE, path, sha256, getattr(error, "strerror", None) or str(error))
        inodes.append((now.st_dev, now.st_ino))
        files.append(file)
    same = same_files(inodes)
    if same != closure.same:
        return Mismatch(Change.SAME_FILE, "", str(len(closure.same)), str(len(same)))
    return Match(None if tuple(files) == closure.files else closure._replace(files=tuple(files)))


def same_files(inodes: list[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
    """The groups of indices at which there is one and the same (device, inode), in order."""
    if len(set(inodes)) == len(inodes):
        return ()
    groups: dict[tuple[int, int], list[int]] = {}
    for index, inode in enumerate(inodes):
        groups.setdefault(inode, []).append(index)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)


def is_there(path: str) -> bool:
    """Whether the path leads to anything."""
    try:
        os.stat(path)
    except (OSError, ValueError):
        return False
    return True


def is_file(path: str) -> bool:
    """Whether the path leads to anything that the search for a header does not pass over."""
    try:
        return not modes.S_ISDIR(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False
