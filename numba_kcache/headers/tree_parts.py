"""The part of a toolkit's header tree that a compile used (files, missing files, folders), recorded as one value.

Promise     Two parts with equal identity have the same contents at the same paths. An edit in place changes the
            identity, and so does a new file at a path that was looked up.
Method      A tree has thousands of files, of which a compile reads a few: hashing all of them takes longer than the
            compile. So only the files that the compile opened or may have opened are hashed, and each later look-up
            compares one digest of their stats. Where the toolkit computes the name of a file that it includes, the
            listing of each of its folders counts as well, since a new file could be the one that is found.
Not here    The choice of these paths (learn).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from ..keys import digest_of
from ..model import NamedTuple
from .file_identity import SETTLED_AFTER_NS, FileStat, digest, read_steady, stat_of


class TreePart(NamedTuple):
    """A part of one tree.

    Args:
        tree: The tree's index in `Search.trees`.
        identity: Digest of the contents at these paths.
        paths: Paths below the tree's root, sorted.
        stat: Digest of their stats, if an equal one implies equal contents; "" if it would not.
    """

    tree: int
    identity: str
    paths: tuple[str, ...]
    stat: str = ""


Seen = tuple[FileStat | None, str]
"""The stat of a file or folder, None for a missing one, and a digest of its content."""


def part_of(tree: int, seen: Mapping[str, Seen], now_ns: int) -> TreePart:
    """Make the part from what was seen at its paths (`look_at`) before `now_ns`."""
    paths = tuple(sorted(seen))
    stats = [seen[path][0] for path in paths]
    # the type of filesystem is not checked: no program writes to a toolkit's headers through a mapping
    is_settled = all(each is None or each.ctime_ns + SETTLED_AFTER_NS <= now_ns for each in stats)
    identity = digest_of([[path, seen[path][1]] for path in paths])
    return TreePart(tree, identity, paths, _digest_of_stats(stats) if is_settled else "")


def part_now(part: TreePart, root: str, now_ns: int) -> TreePart:
    """Make the part at the same paths as they are now; they are read only if their stats differ."""
    places = [os.path.join(root, path) for path in part.paths]
    if part.stat and _digest_of_stats(list(map(_stat, places))) == part.stat:
        return part
    seen: dict[str, Seen] = {}
    for path, place in zip(part.paths, places, strict=True):
        try:
            seen[path] = look_at(place)
        except (OSError, ValueError):
            seen[path] = None, "unreadable"
    return part_of(part.tree, seen, now_ns)


def look_at(place: str) -> Seen:
    """Observe a path: a file's content, the names in a folder, or that it does not exist.

    Raises:
        OSError: It changed meanwhile, or cannot be read.
    """
    stat = _stat(place)
    if stat is None:
        return None, ""
    if os.path.isdir(place):
        return stat, digest("\0".join(sorted(os.listdir(place))).encode("utf-8", "surrogateescape"))
    reading = read_steady(place)
    return reading.stat, digest(reading.data)


def paths_in(root: str, *, with_files: bool) -> Iterable[str]:
    """Yield the path of each folder of a tree, and on request of each file, below the tree's root."""
    for folder, folders, names in os.walk(root):
        folders.sort()
        below = os.path.relpath(folder, root)
        yield below
        if with_files:
            yield from (os.path.normpath(os.path.join(below, name)) for name in names)


def _stat(place: str) -> FileStat | None:
    try:
        return stat_of(os.stat(place))
    except (OSError, ValueError):
        return None


def _digest_of_stats(stats: Sequence[FileStat | None]) -> str:
    return digest(repr([each and tuple(each) for each in stats]).encode())
