"""Recognise this package's files in a tree by their names, to remove them, and list all other files.

Promise     Only regular files whose names match the pattern of their folder are removed, and no folder. Links, devices,
            pipes and files of other programs are left where they are, and `strangers` lists them.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator

from . import Refused, stat_in
from .folders import LOCKS, PRIVATE, QUARANTINE, STATISTICS, TIERS, unlink
from .origin import UNSIGNED
from .tree import FOLDERS, Found, Tree

MAX_QUARANTINED = 20
"""Most damaged files that are kept for inspection."""

_PRIVATE = r"[0-9]{1,10}\.[0-9a-f]{16}(\.batch)?"
PATTERNS = {
    PRIVATE: _PRIVATE,
    LOCKS: r"[0-9a-f]{64}(\.manifest)?",
    QUARANTINE: r"[0-9a-f]{62}\.[0-9a-f]{8}",
    STATISTICS: rf"[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}\.jsonl|total|{_PRIVATE}",
    TIERS: r"[0-9a-f]{16}\.(down|up|down\.lock)",
}
"""Pattern of the file names in each folder, other than those of entries and manifests."""

_FOLDER = "|".join((*PATTERNS, *(f"{name}(/[0-9a-f]{{2}})?" for name in FOLDERS.values())))
_FILE = "|".join(
    (
        *(f"{name}/({pattern})" for name, pattern in PATTERNS.items()),
        *(f"{name}/[0-9a-f]{{2}}/[0-9a-f]{{62}}" for name in FOLDERS.values()),
        rf"evict\.lock|{UNSIGNED}",
    )
)
"""Patterns of the paths, below the tree's own folder, of this package's folders and files."""

_KINDS = (
    (stat.S_ISREG, "a file"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISLNK, "a link"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
)


def remove(file: Found, *, unchanged: bool = False) -> bool:
    """Remove an entry, manifest or record; returns True if it is gone.

    Args:
        file: The file, as a walk found it.
        unchanged: Remove it only if it was not used or replaced since the walk.
    """
    try:
        assert file.tree is not None
        with file.tree.opened(FOLDERS[file.kind], file.key[:2]) as folder:
            if unchanged:
                status = stat_in(folder, file.key[2:])
                if (status.st_mtime_ns, status.st_size) != (file.used_ns, file.size_bytes):
                    return False
            return unlink(folder, file.key[2:])
    except OSError:
        return False


def remove_named(folder: int, name: str, *, before_s: float | None = None) -> None:
    """Remove the files of an open folder whose names match the pattern of that folder.

    Args:
        folder: Descriptor of the folder.
        name: Name of the folder.
        before_s: Remove only files that have not changed since this time; None: all.
    """
    for each in os.listdir(folder):
        if not re.fullmatch(PATTERNS[name], each):
            continue
        try:
            status = stat_in(folder, each)
        except OSError:
            continue
        if before_s is None or status.st_ctime < before_s:
            unlink(folder, each)


def trim_quarantine(folder: int) -> None:
    """Remove the oldest damaged files where there are too many."""
    quarantined = []
    for name in os.listdir(folder):
        status = stat_in(folder, name)
        if re.fullmatch(PATTERNS[QUARANTINE], name) and stat.S_ISREG(status.st_mode):
            quarantined.append((status.st_ctime_ns, name))
    for _, name in sorted(quarantined)[: max(0, len(quarantined) - MAX_QUARANTINED)]:
        unlink(folder, name)


def strangers(tree: Tree) -> Iterator[tuple[str, str]]:
    """Yield the path below the root and the kind of each file or folder that this package did not make.

    Links and devices with names of this package's files are included; the contents of the quarantine are not.
    """
    try:
        root = tree.open_root()
    except OSError:
        return
    try:
        status = stat_in(root, tree.names[0])
        if not stat.S_ISDIR(status.st_mode):
            yield tree.names[0], _kind(status)
    except OSError:
        return
    finally:
        os.close(root)
    yield from _strangers_in(tree, ())


def _strangers_in(tree: Tree, names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    try:
        with tree.opened(*names) as folder:
            found = [(each, stat_in(folder, each)) for each in sorted(os.listdir(folder))]
    except Refused as error:
        yield "/".join((*tree.names, *names)), str(error)
        return
    except OSError:  # it was removed; or it is no folder, and was listed
        return
    for each, status in found:
        path = "/".join((*names, each))
        is_kept = stat.S_ISREG(status.st_mode) or names == (QUARANTINE,)
        if stat.S_ISDIR(status.st_mode) and re.fullmatch(_FOLDER, path):
            yield from _strangers_in(tree, (*names, each))
        elif not (is_kept and re.fullmatch(_FILE, path)):
            yield "/".join((*tree.names, path)), _kind(status)


def _kind(status: os.stat_result) -> str:
    return next((text for is_kind, text in _KINDS if is_kind(status.st_mode)), "a device")
