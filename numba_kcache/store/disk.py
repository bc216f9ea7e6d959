"""The store on disk: entries, manifests and records by key, for many processes at once, within limits.

Promise     `get` returns the entry that was put under this very key, or None. No failure of the system (full or
            read-only disk, damaged file, removed directory) raises out of a method of `DiskStore`: it is a miss, or
            False, and one event. A damaged file is moved to the quarantine, so that the next put replaces it.
            Constructing a store touches no file. A directory that is not trusted is not used, and one on a read-only
            filesystem not written to, for the life of the process, which is reported once; any other failure is tried
            again at the next use. No file outside the tree is touched, no link inside it is followed, and nothing that
            is not a regular file is read. A root that another user than root owns, or others may write to, is refused
            unless `shared` is set: the files in it become code on the GPU. Look-ups create no folder.
Method      <root>/v1/{entries,manifests,records}/<2 digits>/<62 digits>: 256 directories each, so that 100,000 files
            are 390 to a directory and a miss is one failed open. The path of the root is resolved once, component by
            component; a link counts only where no other user can have put it there. The root is opened and checked
            once, and the descriptors of <root>/v1 and of the folders in it are kept: the directory that was checked is
            the one used, whatever the path leads to later. Each folder below is opened by itself, without following
            links. Before a kept descriptor is used, its device and inode are compared, since some programs close
            descriptors that they did not open. If the directory was removed, or its file server reports ESTALE, the
            root is opened and checked again. Only a refusal is final.
            The modification time of a file records its last use, set explicitly and at most hourly: atime may be off
            or changed by others.
            This module has what a hit needs; methods import the rest.
Not here    Making and changing files (store.folders, store.writing), limits (store.eviction), the default directory
            (settings), deriving keys, and keeping artifacts in memory (engine).
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from ..model import Emit, Event, EventKind, trouble
from ..settings import Settings
from . import (
    ABSENT,
    ENTRY,
    FOLDERS,
    HEADERS,
    MANIFEST,
    MAX_MANIFEST_BYTES,
    RECORD,
    DamagedEntry,
    FoundFile,
    Header,
    StoredEntry,
    StoredRow,
    Tree,
    decode_entry,
    decode_manifest,
    decode_record,
    make_folder_in,
    renewed_in_children,
    require_key,
)

if TYPE_CHECKING:
    from .counters import Counters
    from .listing import EntryInfo, Order, Problem, Usage
    from .locks import KeyLocks, KeyTurn
    from .writing import Writer

    Decode = Callable[[bytes, str], object]
    Check = Callable[[StoredEntry], object]

Result = TypeVar("Result")


_IRREGULAR = (errno.ELOOP, errno.ENXIO)


class DiskStore:
    """The store below one directory.

    Args:
        directory: Absolute path; made when something is first stored. "" for none: nothing is found or stored.
        settings: Its limits, mode, durability, `shared`, the longest wait for a build of another process, and whether
            it finds only code compiled on this machine, or whose signature was checked (store.signed).
        emit: Takes the events TROUBLE, DAMAGED, STORED and EVICTED.
        clock: The time, in seconds since the epoch.

    Attributes:
        opening: A lock, held while writer and counters are made.
    """

    def __init__(
        self,
        directory: str,
        settings: Settings,
        *,
        emit: Emit = lambda event: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.directory, self.settings, self.emit, self.clock = directory, settings, emit, clock
        self.readonly = settings.mode in ("readonly", "frozen")
        tree = Tree
        if settings.trusted_keys or settings.signing_key is not None:  # as tiers.trust
            from .signed import SignedTree

            tree = SignedTree
        self.tree = tree(directory, shared=settings.shared, durability=settings.durability)
        self._obstacle = ""  # the reason why the directory is not tried again
        if not directory:
            self._obstacle = self.tree.refusal = "there is no directory"
        self._made_writer: Writer | None = None
        self._made_counters: Counters | None = None
        self.opening = threading.RLock()
        renewed_in_children.add(self)

    def after_fork(self) -> None:
        """Replace the lock that another thread of the parent may have held."""
        self.opening = threading.RLock()

    def header_folder(self) -> str:
        """Make the folder for extracted headers; "" if other users may write there, or nothing is written."""
        if self.readonly or self.tree.shared:
            return ""
        try:
            os.close(self.tree.open_root(makes=True))
            path = os.path.join(self.tree.root, HEADERS) if self.tree.is_private else ""
            with suppress(FileExistsError):
                make_folder_in(None, path, 0o700)
        except OSError:
            return ""
        return path

    @property
    def counters(self) -> Counters:
        """Statistics over processes, kept where the entries are; of this process, if they cannot be."""
        with self.opening:
            if self._made_counters is None:
                from .counters import Counters

                self._made_counters = Counters(self.tree, emit=self.emit, readonly=self.readonly)
            return self._made_counters

    @property
    def writer(self) -> Writer:
        """The part of the store that changes files."""
        with self.opening:
            if self._made_writer is None:
                from .writing import Writer

                self._made_writer = Writer(self)
            return self._made_writer

    @property
    def locks(self) -> KeyLocks:
        """The turns of this node, so that one process builds each key."""
        return self.writer.locks

    # The directory

    @property
    def place(self) -> str:
        """The directory, where new entries are written; "" if they are kept in memory only."""
        return "" if self._obstacle else self.directory

    def is_usable(self) -> bool:
        """Check whether the directory may be read, or does not exist yet."""
        try:
            self.tree.base()
        except OSError as error:
            if error.errno in ABSENT:
                return True
            self.failed("directory", error)
            return False
        return True

    def failed(self, where: str, error: OSError, *, is_written: bool = False) -> None:
        """Report a failure, after which the store continues. After a refusal the directory is not tried again.

        Args:
            where: The operation.
            error: The failure.
            is_written: The operation was a write: after EROFS the directory is not written to again.
        """
        from .folders import words_of

        why = self.tree.refusal or words_of(error, self.directory)
        if self.tree.refusal or (is_written and error.errno == errno.EROFS):
            with self.opening:
                is_known, self._obstacle = bool(self._obstacle), self._obstacle or why
            if is_known:
                return
            why += "; new kernels are kept in memory only, and compiled again by the next process"
        text = f"cannot use {self.directory}: {why}"  # unlocked: a subscriber may use this store
        self.emit(Event(EventKind.TROUBLE, {**trouble(where, error).fields, "error": text}))

    def obstacle(self) -> str:
        """The reason why new entries cannot be written to the directory; "" if they can. Changes nothing."""
        from .folders import unwritable

        return self._obstacle or unwritable(self.tree)

    # Reading

    def read(self, kind: int, key: str, decode: Callable[[bytes, str], Result]) -> Result | None:
        """Read and decode a file, and renew its time of use; None if there is none that can be trusted."""
        now_ns = None if self.readonly else int(self.clock() * 1e9)
        try:
            try:
                data = self.tree.read(kind, key, now_ns)
            except OSError as error:
                if error.errno != errno.ESTALE:
                    raise
                self.tree.forget()  # ESTALE: replaced on the file server
                data = self.tree.read(kind, key, now_ns)
            return decode(data, key)
        except DamagedEntry as error:
            self.set_aside(key, kind, str(error), decode)
        except OSError as error:
            if error.errno in _IRREGULAR:  # the file stays until a put replaces it
                self.emit(_damage(key, f"not a regular file: {error.strerror}"))
            elif error.errno not in ABSENT:
                self.failed("get", error)
        except MemoryError:  # the file may be undamaged, so it is not moved
            self.trouble("get", f"no memory for {key}")
        return None

    def get(self, key: str) -> StoredEntry | None:
        """The entry of `key`, verified; None if there is none that can be trusted.

        Raises:
            ValueError: `key` is not 64 lower-case hexadecimal digits.
        """
        return self.read(ENTRY, key, decode_entry)

    def get_manifest(self, family: str) -> list[StoredRow]:
        """The rows of `family`, newest first; none if there is no manifest that can be trusted."""
        return self.read(MANIFEST, family, decode_manifest) or []

    def get_record(self, name: str) -> Header | None:
        """The record of `name`, a key; None if there is none that can be trusted."""
        found = self.read(RECORD, name, decode_record)
        return found and found.header

    def get_encoded(self, key: str) -> bytes | None:
        """The bytes of an entry's file, not verified; its time of use is not renewed."""
        with suppress(OSError, DamagedEntry):
            return self.tree.read(ENTRY, key)
        return None

    @property
    def peeking(self) -> DiskStore:
        """The same store, for a reader that renews no times of use, reports nothing, and leaves damaged files."""
        from copy import copy

        reader = copy(self)
        reader.readonly, reader.emit = True, lambda event: None
        return reader

    # Lists

    def files(self, *kinds: int) -> Iterator[FoundFile]:
        """Every file of these kinds whose name is a key, in any order."""
        return self.tree.walk(*kinds) if self.is_usable() else iter(())

    def manifests(self) -> Iterator[tuple[str, list[StoredRow]]]:
        """Yield every family and its rows, unordered; damaged manifests are skipped."""
        reader = self.peeking
        found = ((file.key, reader.get_manifest(file.key)) for file in self.files(MANIFEST))
        return ((family, rows) for family, rows in found if rows)

    def find(self, prefix: str) -> list[FoundFile]:
        """The files of the entries whose key begins with `prefix`."""
        return [file for file in self.files(ENTRY) if file.key.startswith(prefix)]

    def entries(
        self, by: Order = "age", limit: int | None = None, hits: Mapping[str, int] | None = None
    ) -> Iterator[EntryInfo]:
        """Yield the first `limit` entries in an order, each verified; times of use are not renewed.

        Args:
            by: The order.
            limit: Number of entries; None for all.
            hits: Hits by the leading digits of the key.
        """
        from .listing import listed

        return islice(listed(self, by, hits or {}), limit)

    def size(self) -> Usage:
        """Number and bytes of the files, counted file by file."""
        from .eviction import sum_of

        return sum_of(list(self.files(*FOLDERS)))

    def damage(self, key: str) -> str:
        """The reason why the file of the entry of `key` is damaged; "" if it is not, or if there is no file."""
        data = self.get_encoded(key)
        try:
            if data is not None:
                decode_entry(data, key)
        except DamagedEntry as error:
            return str(error)
        return ""

    def verify(self, check: Check = lambda entry: None) -> list[Problem]:
        """Read every file in full; report those that are damaged or that `check` refuses, and quarantine them.

        Args:
            check: Raises ValueError for an entry that is not to be trusted.
        """
        from .listing import verify

        return list(verify(self, check))

    # Writing

    def is_written(self) -> bool:
        """Check whether new entries may be written."""
        return not self.readonly and not self._obstacle

    def require_room(self, size_bytes: int) -> None:
        """Raise OSError if so many bytes cannot be stored."""
        shortage, limit = self._obstacle or self.writer.limits.shortage(size_bytes), self.settings.max_size_bytes
        if shortage or size_bytes > limit:
            raise OSError(errno.ENOSPC, shortage or f"{size_bytes} bytes are above the limit of {limit}")
        if self.readonly:
            raise OSError(errno.EROFS, "the cache is read-only in this mode")

    def put(self, entry: StoredEntry, kind: int = ENTRY) -> bool:
        """Store `entry` in place of any other under its key. Returns True if it was stored.

        Raises:
            ValueError, TypeError: The entry cannot be encoded.
        """
        from .encoding import encode_entry

        data = encode_entry(entry, kind)
        return (kind == ENTRY or len(data) <= MAX_MANIFEST_BYTES) and self.put_encoded(entry.key, data, kind)

    def put_record(self, name: str, record: Header) -> bool:
        """Store the record of `name` in place of any other. Returns True if it was stored."""
        return self.put(StoredEntry(name, record, {}), RECORD)

    def put_encoded(self, key: str, data: bytes, kind: int = ENTRY) -> bool:
        """Store bytes of `encode_entry` for `key`, verified by the caller. Returns True if they were stored."""
        return self.is_written() and self.writer.put(kind, require_key(key), data)

    def add_rows(self, family: str, *rows: StoredRow) -> bool:
        """Put `rows`, each with a `"key"`, before those of `family`, the last one first. Returns True if stored."""
        return self.is_written() and self.writer.add_rows(require_key(family), rows)

    def building(self, key: str, wait_s: float | None = None) -> KeyTurn[StoredEntry]:
        """Take the turn to build `key`, or wait until another has built it.

        The context is a `Turn`: `found` is the entry that another stored meanwhile; where it is None, the caller builds
        and puts. Entering never raises and waits at most `wait_s` seconds, or `build_wait_s`, for other processes.
        """
        most_s = self.settings.build_wait_s if wait_s is None else wait_s
        return self.locks.turn(require_key(key), lambda: self.get(key), most_s, builds=True)

    def prune(self, max_size_bytes: int | None = None, older_than: float | None = None) -> Usage:
        """Remove entries not used for `older_than` seconds, then the least recently used down to the limit.

        Args:
            max_size_bytes: Limit of this pass; None for the store's.
            older_than: Seconds; None for any age.
        """
        return self.writer.removed(lambda limits: limits.prune(max_size_bytes, older_than))

    def clear(self) -> Usage:
        """Remove every entry, manifest, damaged file and extracted header; statistics stay."""
        return self.writer.removed(lambda limits: limits.clear())

    def remove(self, key: str) -> bool:
        """Remove the entry of `key`; returns True if there was one."""
        from .eviction import remove

        return self.is_written() and remove(FoundFile(ENTRY, require_key(key), self.tree, 0, 0))

    def set_aside(self, key: str, kind: int = ENTRY, damage: str = "", decode: Decode | None = None) -> None:
        """Move a file to the quarantine: it is damaged, or undamaged and cannot be used.

        Args:
            key: Its key.
            kind: Its kind.
            damage: The damage, which is reported; "" for none.
            decode: What found the damage; a file in which it finds none was stored meanwhile, and stays.
        """
        if self.is_written():
            from .writing import set_aside

            set_aside(self.tree, kind, key, decode)
        if damage:
            self.emit(_damage(key, damage))

    def trouble(self, where: str, error: object) -> None:
        """Emit the event for a failure that the store continues after."""
        self.emit(trouble(where, error))


def _damage(key: str, reason: str) -> Event:
    return Event(EventKind.DAMAGED, {"key": key, "reason": reason})


def open_store(settings: Settings, directory: str | None, emit: Emit) -> DiskStore:
    """Open the local store that the settings name; one without a directory with mode="off", or if none is known.

    Args:
        settings: The settings in force.
        directory: Directory of the store; None if no home directory is known.
        emit: Takes the events of the store.
    """
    if directory is None and settings.mode != "off":
        why = "no home directory is known (set NUMBA_KCACHE_DIR)"
        where = "new kernels are kept in memory only, and compiled again by the next process"
        emit(trouble("directory", f"{why}: {where}"))
    return DiskStore("" if settings.mode == "off" else directory or "", settings, emit=emit)
