"""Change the tree of a store on disk: put, set aside, and take turns to build.

Promise     Every reader finds all of a file or none of it. When `publish` returns, the name leads to the new bytes;
            until then it leads to the previous file. No reader ever sees a mixture, whichever process is killed. After
            a power cut: with durability "none", the default, a file that the system had not written back may be empty,
            torn or an older one; with "data" it is whole or absent; with "full" it is whole. When `publish` raises, no
            private file of this call is left. A failure of `Writer` is an event, and the caller continues. After a full
            disk nothing is written for a minute, or until something is removed. No row of a manifest is lost to
            another process of this node that adds one at the same time, unless that takes more than a second, or the
            filesystem has no locks.
Method      Write a private file into the tree's own folder, then rename it, through the descriptors of both folders.
            With "data" the file is synced before the rename, so that the name never leads to unsynced bytes; with
            "full" the folder is synced too, after the rename. Correctness needs no sync, since every read checks digest
            and key. A sync saves compiling the last half minute's entries again after a power cut, and costs each
            compile three waits for the disk.
            A manifest is read, merged and published under the turn of its family (store.locks).
Not here    Limits (store.eviction), and who takes a turn (store.locks). Private files of killed processes are removed
            by store.eviction.
Faults      publish.created, .half_written, .written, .synced, .renamed (tests/crash kills here).
Source      rename(2) replaces atomically; fsync(2) of a file does not cover its directory entry. Without the sync, ext4
            and XFS kept 500 of 500 new files with no bytes in them after a power cut; with a sync of the files but not
            of the folder, one of 500 was lost and none was wrong.
"""

from __future__ import annotations

import errno
import functools
import math
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ..model import Event, EventKind, tell_wait
from . import (
    ENTRY,
    FOLDERS,
    MANIFEST,
    MAX_FILE_BYTES,
    READ,
    DamagedEntry,
    StoredRow,
    Tree,
    open_in,
    reached,
    rename_in,
    sync_data,
    unlink_in,
)
from .encoding import encode_manifest, merge
from .eviction import QUARANTINED, Limits, named, sum_of
from .folders import LOCKS, QUARANTINE, Folder, file_mode, local_directory, made, unlink
from .locks import KeyLocks, Turn

if TYPE_CHECKING:  # disk imports this module
    from .disk import Decode, DiskStore
    from .listing import Usage

FAULT_POINTS = ("publish.created", "publish.half_written", "publish.written", "publish.synced", "publish.renamed")

PAUSE_S = 60.0
"""Time without writing after the disk was found full, or nearly so."""

MANIFEST_WAIT_S = 2.0
"""Longest wait for another process that changes the same manifest."""

MAX_QUARANTINED = 20
"""Most damaged files that are kept for inspection."""

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Writer:
    """The changes to one store on disk."""

    def __init__(self, store: DiskStore) -> None:
        self._store, self._tree = store, store.tree
        self.limits = Limits(store)
        self._locks: KeyLocks | None = None
        self._paused_s = -math.inf

    @property
    def locks(self) -> KeyLocks:
        """Turns of this node. Their files are in the tree or, if that is not local, on a local disk."""
        store, tree = self._store, self._tree
        if self._locks is None:
            folder = None if store.readonly or not store.place else Folder(tree, LOCKS)
            with suppress(OSError):  # reported when something is stored
                if folder is not None and tree.status is None:
                    with made(tree, LOCKS):  # before that, it is not known where the tree is
                        pass
                if folder is not None and tree.is_network():
                    folder = Folder(Tree(local_directory(store.directory)), LOCKS)
            with store.opening:
                self._locks = self._locks or KeyLocks(folder)
        return self._locks

    def put(self, kind: int, key: str, data: bytes) -> bool:
        """Store an encoded file; returns True if it was stored."""
        store, limit = self._store, self._store.settings.max_size_bytes
        if len(data) > limit:
            store.trouble("put", f"an entry of {len(data)} bytes is above the limit of {limit}")
            return False
        checks = kind != MANIFEST  # of a history, beside a family's manifest, which is checked
        if not self._is_done(lambda: self._write(kind, key, data, checks=checks), len(data)):
            return False
        if kind == ENTRY:
            store.emit(Event(EventKind.STORED, {"key": key, "size_bytes": len(data)}))
        return True

    def _check(self, kind: int, key: str, folder: int) -> None:
        """Check the limits by the open folder of a file that was just published."""
        if not self._tree.is_network():
            self.limits.start_if_due(self._tree.scan(kind, key[:2], folder))

    def add_rows(self, family: str, rows: Sequence[StoredRow]) -> bool:
        """Put `rows` before those of `family`, the last one first. Returns True if they were stored."""
        return self._is_done(lambda: self._add(family, rows))

    def _add(self, family: str, rows: Sequence[StoredRow]) -> None:
        store = self._store
        turn: Turn[object]
        with self.locks.turn(family, lambda: None, MANIFEST_WAIT_S) as turn:
            tell_wait(store.emit, "another process that changes the same manifest", turn.waited_s)
            before = store.get_manifest(family)
            after = merge(before, *rows)
            if after != before:
                self._write(MANIFEST, family, encode_manifest(family, after))

    def _write(self, kind: int, key: str, data: bytes, *, checks: bool = True) -> None:
        then = functools.partial(self._check, kind, key) if checks else lambda folder: None
        write(self._tree, kind, key, data, time_ns=int(self._store.clock() * 1e9), then=then)

    def _is_done(self, work: Callable[[], object], size_bytes: int = 0) -> bool:
        """Run a write of so many bytes. Returns False if it failed, or if there is no room; both are reported."""
        store = self._store
        if 0 <= store.clock() - self._paused_s < PAUSE_S:  # unless the clock was set back
            return False
        shortage, is_full = self.limits.shortage(size_bytes), True
        try:
            if not shortage:
                work()
                return True
            store.trouble("put", shortage)
        except OSError as error:
            store.failed("put", error, is_written=True)
            is_full = error.errno in _FULL
        if is_full:  # store nothing for a while, and start a pass that may make room
            self._paused_s = store.clock()
            self.limits.start()
        return False

    def removed(self, work: Callable[[Limits], Usage]) -> Usage:
        """Return what `work` removes from the tree; there may then be room for new entries."""
        if not (self._store.is_written() and self._store.is_usable()):
            return sum_of([])
        self.limits.wait()
        try:
            return work(self.limits)
        finally:
            self._paused_s = -math.inf


def write(
    tree: Tree,
    kind: int,
    key: str,
    data: bytes,
    *,
    time_ns: int,
    then: Callable[[int], object] = lambda folder: None,
) -> None:
    """Publish a file and make missing folders; a folder that has its name is moved to the quarantine first.

    `then` is called with the file's open folder.

    Raises:
        OSError: The file was not published.
    """
    for is_last in (False, True):
        try:
            with made(tree, FOLDERS[kind], key[:2]) as folder:
                publish(tree, data, folder, key[2:], time_ns=time_ns)
                then(folder)
            return
        except (FileNotFoundError, IsADirectoryError) as error:  # another process removed the folder
            if is_last:
                raise
            if isinstance(error, IsADirectoryError):
                set_aside(tree, kind, key)


def publish(tree: Tree, data: bytes, folder: int, name: str, *, time_ns: int) -> None:
    """Write a file, in place of any other of its name.

    Args:
        tree: The tree that it is in.
        data: All bytes of the file.
        folder: Descriptor of its folder.
        name: Name of the file.
        time_ns: Modification time of the file, in nanoseconds since the epoch.

    Raises:
        OSError: A call failed; the file that had the name is unchanged.
    """
    if tree.takes_unsigned:
        from .signed import mark

        mark(tree)
    private, private_file, mode = tree.base(), f"{os.getpid()}.{os.urandom(8).hex()}", file_mode(tree)
    try:
        fd = open_in(private, private_file, _CREATE, mode)
        try:
            if mode & 0o077:
                os.chmod(fd, mode)  # whatever the umask
            reached("publish.created")
            view = memoryview(data)
            half = len(data) // 2
            write_all(fd, view[:half])
            reached("publish.half_written")
            write_all(fd, view[half:])
            os.utime(fd, ns=(time_ns, time_ns))
            reached("publish.written")
            if tree.durability != "none":
                sync_data(fd)
            reached("publish.synced")
        finally:
            os.close(fd)
        rename_in(private, private_file, folder, name)
    except BaseException:  # an interrupt too must leave nothing behind
        with suppress(OSError):
            unlink_in(private, private_file)
        raise
    reached("publish.renamed")
    if tree.durability == "full":
        os.fsync(folder)


def write_all(fd: int, view: memoryview) -> None:
    """Write all of `view`."""
    while view:  # on a full disk, or at a limit, write(2) may write a part without an error
        view = view[os.write(fd, view) :]


def set_aside(tree: Tree, kind: int, key: str, decode: Decode | None = None) -> None:
    """Move a file to the quarantine, which is bounded; one in which `decode` finds no damage stays."""
    name, moved = key[2:], f"{key[2:]}.{os.urandom(4).hex()}"
    with suppress(OSError), tree.opened(FOLDERS[kind], key[:2]) as folder, made(tree, QUARANTINE) as quarantine:
        if decode is not None:  # another process may have replaced the damaged file since it was read
            with suppress(DamagedEntry), open(open_in(folder, name, READ), "rb") as file:
                decode(file.read(MAX_FILE_BYTES), key)
                return
        for old in list(named(quarantine, QUARANTINED))[MAX_QUARANTINED - 1 :]:
            unlink(quarantine, old)
        rename_in(folder, name, quarantine, moved)
