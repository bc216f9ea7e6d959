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
from .tree import FOLDERS, SHARDS, Found, Tree

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

_ENTRY = r"[0-9a-f]{62}"
_OWN_FILES = ("evict.lock", UNSIGNED)
_KINDS = (
    (stat.S_ISREG, "a file"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISLNK, "a link"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
)


def remove(file: Found) -> bool:
    """Remove an entry or manifest; returns True if it is gone."""
    try:
        assert file.tree is not None
        with file.tree.opened(FOLDERS[file.kind], file.key[:2]) as folder:
            return unlink(folder, file.key[2:])
    except OSError:
        return False


def remove_unchanged(file: Found) -> bool:
    """Remove an entry or manifest unless it was used or replaced since the walk; returns True if it was removed."""
    try:
        assert file.tree is not None
        with file.tree.opened(FOLDERS[file.kind], file.key[:2]) as folder:
            status = stat_in(folder, file.key[2:])
            is_same = (status.st_mtime_ns, status.st_size) == (file.used_ns, file.size_bytes)
            return is_same and unlink(folder, file.key[2:])
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
    shards = {(folder, shard) for folder in FOLDERS.values() for shard in _folders_in(tree, folder)}
    for names in ((), *((name,) for name in (*FOLDERS.values(), *PATTERNS)), *sorted(shards)):
        try:
            with tree.opened(*names) as folder:
                found = [(each, stat_in(folder, each)) for each in os.listdir(folder)]
        except FileNotFoundError:
            continue
        except Refused as error:
            yield "/".join((*tree.names, *names)), str(error)
            continue
        except OSError:
            continue  # not a folder: it was listed with its kind already
        for each, status in found:
            if not _is_ours(names, each, status):
                yield "/".join((*tree.names, *names, each)), _kind(status)


def _folders_in(tree: Tree, folder: str) -> list[str]:
    try:
        with tree.opened(folder) as fd:
            return [name for name in os.listdir(fd) if name in SHARDS]
    except OSError:
        return []


def _is_ours(names: tuple[str, ...], name: str, status: os.stat_result) -> bool:
    is_folder, is_file = stat.S_ISDIR(status.st_mode), stat.S_ISREG(status.st_mode)
    if not names:
        return (is_folder and name in (*FOLDERS.values(), *PATTERNS)) or (is_file and name in _OWN_FILES)
    if names[0] in PATTERNS:
        return bool(re.fullmatch(PATTERNS[names[0]], name)) and (is_file or names[0] == QUARANTINE)
    if len(names) == 1:
        return is_folder and name in SHARDS
    return is_file and bool(re.fullmatch(_ENTRY, name))


def _kind(status: os.stat_result) -> str:
    return next((text for is_kind, text in _KINDS if is_kind(status.st_mode)), "a device")
