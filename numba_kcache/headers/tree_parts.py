"""The part of a toolkit's header tree that a compile looked at: files, empty places, folders; held as one value.

Promise     Two parts with one identity have the same contents at the same paths. An edit in place is another identity,
            and a file that appears where one was looked for is.
Method      A tree has thousands of files, of which a compile reads a few: to hash all of them takes longer than to
            compile. So those are hashed that the compile opened or may have opened, and each later look-up compares
            one digest of their stats. Where the toolkit computes the name of a file that it includes, what is listed in
            each of its folders counts as well: a file more could be the one that is found.
Not here    Which paths those are (learn).
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
        tree: Its index in the search.
        identity: Of what is at its paths.
        paths: Below the tree's root, sorted.
        stat: Of all of them, where an equal one means equal contents; "" where nothing is known of that.
    """

    tree: int
    identity: str
    paths: tuple[str, ...]
    stat: str = ""


Seen = tuple[FileStat | None, str]
"""The stat of what is at a path, None for nothing, and a digest of what it holds."""


def part_of(tree: int, seen: Mapping[str, Seen], now_ns: int) -> TreePart:
    """Make the part that was seen at these paths before `now_ns`."""
    paths = tuple(sorted(seen))
    stats = [seen[path][0] for path in paths]
    # the kind of filesystem is not asked: nobody maps the headers of a toolkit to write to them
    is_settled = all(each is None or each.ctime_ns + SETTLED_AFTER_NS <= now_ns for each in stats)
    identity = digest_of([[path, seen[path][1]] for path in paths])
    return TreePart(tree, identity, paths, _digest_of_stats(stats) if is_settled else "")


def again(part: TreePart, root: str, now_ns: int) -> TreePart:
    """Look at the same paths of a tree; they are read only where their stats are others."""
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
    """Look at a path: at a file's content, at the names in a folder, or at nothing.

    Raises:
        OSError: It changes, or cannot be read.
    """
    stat = _stat(place)
    if stat is None:
        return None, ""
    if os.path.isdir(place):
        return stat, digest("\0".join(sorted(os.listdir(place))).encode("utf-8", "surrogateescape"))
    reading = read_steady(place)
    return reading.stat, digest(reading.data)


def everything(root: str, *, with_files: bool) -> Iterable[str]:
    """Yield each folder of a tree, and with them each file, as paths below its root."""
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
