"""Publish, quarantine and list the files of entries, manifests and records in a tree, through descriptors.

Promise     If something other than a regular file has the name of an entry, a publish moves it to the quarantine first.
            When publish_all() raises, none of its files is left. A process that is killed while it renames leaves some
            of the entries, each complete.
Method      Of many, every file is written under a private name first, and synced where the durability requires it, so
            that a full disk is found before the first rename. Then each is renamed.
Not here    The tree (tree), folders and files by any name (folders), and removing files (names). Entries that the store
            has already: the caller of publish_all() leaves them out, since a rollback would remove them.
Faults      batch.written, .named (tests/crash kills here).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from . import rename_in, stat_in, unlink_in
from .entry import ENTRY, is_key, require_key
from .faults import reached
from .folders import PRIVATE, QUARANTINE, Folder, file_mode
from .publish import Durability, private_name, publish
from .tree import FOLDERS, Found, Tree

FAULT_POINTS = ("batch.written", "batch.named")


def publish_entry(
    tree: Tree, kind: int, key: str, data: bytes, *, durability: Durability, time_ns: int, may_retry: bool = True
) -> None:
    """Publish an entry or manifest. If something that is not a regular file has its name, that is quarantined first.

    Raises:
        OSError: The file was not published.
    """
    mark_if_unsigned(tree)
    try:
        with (
            tree.opened(PRIVATE, make=durability) as private,
            tree.opened(FOLDERS[kind], key[:2], make=durability) as folder,
        ):
            mode = file_mode(tree)
            if is_irregular(folder, key[2:]):
                set_aside(tree, kind, key)
            publish(data, folder, key[2:], private=private, durability=durability, time_ns=time_ns, mode=mode)
    except FileNotFoundError:  # another process removed the folder
        if not may_retry:
            raise
        publish_entry(tree, kind, key, data, durability=durability, time_ns=time_ns, may_retry=False)


def publish_all(tree: Tree, files: Iterable[tuple[str, bytes]], *, durability: Durability, time_ns: int) -> None:
    """Publish all entries, or none.

    Args:
        tree: Tree to publish into.
        files: Key and bytes of each entry.
        durability: As that of `publish`.
        time_ns: Modification time of the files.

    Raises:
        OSError: No entry was published.
    """
    written: list[tuple[str, str]] = []
    renamed: list[str] = []
    mark_if_unsigned(tree)
    with tree.opened(PRIVATE, make=durability) as private:
        try:
            for key, data in files:
                private_file, mode = f"{private_name()}.batch", file_mode(tree)
                publish(data, private, private_file, private=private, durability=durability, time_ns=time_ns, mode=mode)
                written.append((private_file, require_key(key)))
            reached("batch.written")
            for private_file, key in written:
                with tree.opened(FOLDERS[ENTRY], key[:2], make=durability) as folder:
                    if is_irregular(folder, key[2:]):
                        set_aside(tree, ENTRY, key)
                    rename_in(private, private_file, folder, key[2:])
                renamed.append(key)
                reached("batch.named")
        except BaseException:  # an interrupt too must leave nothing behind
            for key in renamed:
                with suppress(OSError), tree.opened(FOLDERS[ENTRY], key[:2]) as folder:
                    unlink_in(folder, key[2:])
            for private_file, _ in written:
                with suppress(OSError):
                    unlink_in(private, private_file)
            raise


def mark_if_unsigned(tree: Tree) -> None:
    """Before a write, mark a tree that takes code whose signature was not checked.

    Raises:
        OSError: The mark was not made: the caller must not write.
    """
    if tree.takes_unsigned:
        from .origin import mark

        mark(tree)


def is_there(tree: Tree, key: str) -> bool:
    """Check whether a tree has a file for the entry of `key`."""
    try:
        return bool(Folder(tree, FOLDERS[ENTRY], require_key(key)[:2]).status(key[2:]))
    except OSError:
        return False


def is_irregular(folder: int, name: str) -> bool:
    """Check whether something other than a regular file has this name in an open folder."""
    try:
        return not stat.S_ISREG(stat_in(folder, name).st_mode)
    except FileNotFoundError:
        return False


def set_aside(tree: Tree, kind: int, key: str) -> bool:
    """Move the file of an entry or manifest to the quarantine, and remove the oldest files there beyond its limit.

    Returns:
        Whether it was moved.
    """
    from .names import trim_quarantine

    name = key[2:]
    try:
        with tree.opened(QUARANTINE, make="none") as quarantine, tree.opened(FOLDERS[kind], key[:2]) as folder:
            rename_in(folder, name, quarantine, f"{name}.{os.urandom(4).hex()}")
            trim_quarantine(quarantine)
    except OSError:
        return False
    return True


def walk(tree: Tree, kinds: Sequence[int], shards: Sequence[str]) -> Iterator[Found]:
    """Yield each file of these kinds in these shards; files that vanish meanwhile are skipped."""
    for kind in kinds:
        try:
            tree.base()
        except OSError:
            return
        for shard in shards:
            try:
                with tree.opened(FOLDERS[kind], shard) as folder, os.scandir(folder) as names:
                    found = [_found(tree, kind, shard, name) for name in names]
            except OSError:
                continue
            yield from (each for each in found if each is not None)


def _found(tree: Tree, kind: int, shard: str, name: os.DirEntry[str]) -> Found | None:
    try:
        if not is_key(shard + name.name) or not name.is_file(follow_symlinks=False):
            return None
        status = name.stat(follow_symlinks=False)
    except OSError:
        return None
    return Found(kind, shard + name.name, tree, status.st_size, status.st_mtime_ns)
