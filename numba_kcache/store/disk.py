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
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from ..model import Emit, Event, EventKind, NamedTuple, trouble
from . import (
    CLOEXEC,
    FOLDER,
    NOCTTY,
    NOFOLLOW,
    NONBLOCK,
    Refused,
    above_streams,
    is_network,
    open_below,
    renewed_in_children,
    resolve,
    stat_in,
)
from .entry import (
    ENTRY,
    FORMAT,
    MANIFEST,
    MAX_FILE_BYTES,
    MAX_MANIFEST_BYTES,
    MAX_VARIANTS,
    RECORD,
    DamagedEntry,
    Header,
    StoredEntry,
    Variant,
    decode_entry,
    decode_manifest,
    decode_record,
    require_key,
)

if TYPE_CHECKING:
    from typing import Literal

    from ..settings import Settings
    from .counters import Counters
    from .listing import EntryInfo, Order, Problem, Removed, Usage
    from .locks import KeyLocks, KeyTurn
    from .writing import Writer

    Durability = Literal["none", "data", "full"]
    Decode = Callable[[bytes, str], object]

Result = TypeVar("Result")

RECENCY_NS = 3600 * 10**9
"""A hit renews a file's time of use if that is longer ago than this, in nanoseconds."""

READ = os.O_RDONLY | NOFOLLOW | CLOEXEC | NONBLOCK | NOCTTY  # a FIFO must not block the reader
FOLDERS = {ENTRY: "entries", MANIFEST: "manifests", RECORD: "records"}
HEADERS = "headers"
"""Folder of the root with the headers that NVRTC holds itself, as extracted."""

SIGNED = "signed"
"""Folder of the root with the tree for sessions that demand signatures."""

ABSENT = (errno.ENOENT, errno.ENOTDIR)
_IRREGULAR = (errno.ELOOP, errno.ENXIO)


class Descriptor(int):
    """An open descriptor; closed with its last reference, unless its number belongs to another file by then."""

    identity: tuple[int, int]

    def __del__(self) -> None:
        try:
            if identity_of(os.fstat(self)) == self.identity:
                os.close(self)
        except Exception:  # the program has closed it, or the interpreter is shutting down
            pass


class Found(NamedTuple):
    """A file found by a walk."""

    kind: int
    key: str
    tree: Tree
    size_bytes: int
    used_ns: int


class Tree:
    """The tree below one root.

    Args:
        root: Absolute path of the directory.
        shared: Trust the directory's owner, and the group that may write to it.
        below: Names of the folders between the root and the tree.
        durability: What a write forces to the disk before it returns: nothing, the bytes, or the bytes and their name.

    Attributes:
        status: The stat of the root, when it was last opened; None before.
        refusal: The reason why the directory is not trusted; "" if it is, or was not opened yet.
        is_private: No other user can write below the root, so its files need no check of their own.
        takes_unsigned: Each write marks the tree as one with code whose signature was not checked (store.signed).
    """

    takes_unsigned = False

    def __init__(
        self, root: str, *, shared: bool = False, below: tuple[str, ...] = (), durability: Durability = "none"
    ) -> None:
        self.root, self.shared, self.durability = root, shared, durability
        self.names = (*below, f"v{FORMAT}")
        self.status: os.stat_result | None = None
        self.refusal = self._resolved = ""
        self._kept: dict[str, Descriptor] = {}
        self._is_network: bool | None = None
        self.is_private = False

    # Opening

    def base(self, name: str = "") -> int:
        """The descriptor of the tree's own folder, or of a folder in it, which was checked; the tree closes it.

        Raises:
            Refused: The folder is not trusted.
            OSError: The path does not exist, or is not a folder.
        """
        kept = self._kept.get(name)
        if kept is not None:
            try:
                status = os.fstat(kept)
                if status.st_nlink and (status.st_dev, status.st_ino) == kept.identity:
                    return kept
            except OSError:
                pass  # closed by the program, or gone from the file server
        if name:
            at = os.open(name, FOLDER, dir_fd=self.base())
        else:
            at = self.open_root()
            for below in self.names:
                above = at
                try:
                    at = os.open(below, FOLDER, dir_fd=above)
                finally:
                    os.close(above)
        try:
            if at < 3:  # the program closed its standard streams, whose numbers C libraries still write to
                at = above_streams(at)
            status = os.fstat(at)
            if not self.is_private:
                self.require_trusted(status, name or self.names[-1])
        except BaseException:
            os.close(at)
            raise
        kept = Descriptor(at)
        kept.identity = status.st_dev, status.st_ino
        self._kept[name] = kept
        return kept

    def forget(self) -> None:
        """Open and check the root again when it is next needed."""
        self._kept = {}

    def open_root(self, *, makes: bool = False) -> int:
        """A descriptor of the root, which was checked; the caller closes it.

        Args:
            makes: Make the root and its parents if they are missing.

        Raises:
            Refused: The root is not trusted.
            OSError: The root does not exist.
        """
        if self.refusal:
            raise Refused(self.refusal)
        try:
            resolved, exposed = resolve(self._resolved or self.root, shared=self.shared, makes=makes)
            fd = os.open(resolved, FOLDER)
            try:
                status = os.fstat(fd)
                is_private = status.st_uid == os.geteuid() and not status.st_mode & 0o077
                if not is_private:  # a private root is never refused
                    self._require_root(status, exposed)
            except BaseException:
                os.close(fd)
                raise
        except Refused as error:
            self.refusal = str(error)
            raise
        self.status, self.is_private, self._resolved = status, is_private and not self.shared, resolved
        return fd

    def _require_root(self, status: os.stat_result, exposed: Sequence[tuple[str, os.stat_result]]) -> None:
        """Raise Refused if other users may have made the root, or the files in it."""
        path, mode = self.root, status.st_mode & 0o777
        for parent, above in exposed:
            is_known = above.st_uid in (0, os.geteuid(), status.st_uid) and not above.st_mode & 0o002
            if not (self.shared and is_known and above.st_gid == status.st_gid):
                use = f"below such a folder, a store must be yours and have mode 700 (this one has mode {mode:o})"
                raise Refused(
                    f"{parent} can be written by others, who may put another directory in place of {path}: {use}"
                )
        if not self.shared and status.st_uid not in (0, os.geteuid()):
            raise Refused(f"{path} belongs to user {status.st_uid}; set shared=True to trust it")
        if not self.shared and mode & 0o022:
            raise Refused(f"{path} can be written by others (mode {mode:o}); chmod 700 it or set shared=True")

    def require_trusted(self, status: os.stat_result, name: str) -> None:
        """Raise Refused if a user who is not trusted may have written to this file or folder of the tree."""
        if self.is_private:
            return
        assert self.status is not None
        mode, owners = self.status.st_mode, (0, os.geteuid(), self.status.st_uid)
        if not self.shared:
            is_bad = status.st_uid not in owners or status.st_mode & 0o022
        elif mode & 0o002:  # everybody may put files there: those of other users are not trusted
            is_bad = not stat.S_ISDIR(status.st_mode) and (status.st_uid not in owners or status.st_mode & 0o002)
        else:
            is_bad = status.st_mode & 0o002
        if is_bad:
            why = f"belongs to user {status.st_uid}, or others can write to it (mode {status.st_mode & 0o777:o})"
            raise Refused(f"{name} in {self.root} is not trusted: it {why}")

    def is_network(self) -> bool:
        """Check whether the tree is on a filesystem shared with other machines; False as long as that is not known."""
        if self._is_network is None and self.status is not None:
            self._is_network = is_network(self.status)
        return bool(self._is_network)

    def open(self, names: Sequence[str], flags: int) -> int:
        """A descriptor of a file or folder in the tree; the folders on the way are checked, and the caller closes it.

        Raises:
            Refused: A folder is not trusted.
            OSError: The path does not exist, or a folder on the way is none.
        """
        base = self.base(names[0])
        return open_below(base, names[1:], flags, None if self.is_private else self.require_trusted)

    @contextmanager
    def opened(self, *names: str, make: bool = False) -> Iterator[int]:
        """Open a folder for a context, which was checked.

        Args:
            names: Names of the folders on the way from the tree's own folder.
            make: Make missing folders.

        Raises:
            OSError: As `open`.
        """
        if make:
            from .folders import make_folder

            fd = make_folder(self, names)
        elif names[1:]:
            fd = self.open(names, FOLDER)
        else:
            fd = os.open(".", FOLDER, dir_fd=self.base(*names))  # a duplicate shares its place in a listing
        try:
            if names[1:] and not self.is_private:
                self.require_trusted(os.fstat(fd), names[-1])
            yield fd
        finally:
            os.close(fd)

    # Files

    def read(self, kind: int, key: str, now_ns: int | None = None) -> bytes:
        """Read a file, and renew its time of use if that is an hour old, on the network a day.

        Raises:
            ValueError: `key` is not 64 lower-case hexadecimal digits.
            Refused: The file is not trusted.
            OSError: The file cannot be read, or is not regular (ELOOP, ENXIO).
            DamagedEntry: The file is larger than the format allows.
        """
        if len(key) != 64 or key.strip("0123456789abcdef"):
            require_key(key)  # raises
        base = self.base(FOLDERS[kind])
        check = None if self.is_private else self.require_trusted
        fd = open_below(base, (key[:2], key[2:]), READ, check)
        try:
            status = os.fstat(fd)
            size = status.st_size
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.ENXIO, "not a regular file")
            if size > MAX_FILE_BYTES:
                raise DamagedEntry(f"too large: {size} bytes")
            if check is not None:
                check(status, key)
            data = os.read(fd, size + 1)
            while len(data) < size and (more := os.read(fd, size + 1 - len(data))):
                data += more  # a network filesystem may return the file in parts
            age_ns = 0 if now_ns is None or status.st_nlink > 1 else abs(now_ns - status.st_mtime_ns)
            if now_ns is not None and age_ns > RECENCY_NS and (age_ns > 24 * RECENCY_NS or not self.is_network()):
                touch(fd, now_ns)
            return data
        finally:
            os.close(fd)

    def walk(self, *kinds: int) -> Iterator[Found]:
        """Yield each file of these kinds; files that vanish meanwhile are skipped."""
        for kind in kinds:
            shards: list[str] = []
            with suppress(OSError), self.opened(FOLDERS[kind]) as folder:
                shards = sorted(name for name in os.listdir(folder) if len(name) == 2)
            for shard in shards:
                found: list[Found] = []
                with suppress(OSError), self.opened(FOLDERS[kind], shard) as folder:
                    found = self.scan(kind, shard, folder)
                yield from found

    def scan(self, kind: int, shard: str, folder: int) -> list[Found]:
        """List the files of a kind in one of its 256 folders, which is open."""
        found = []
        with os.scandir(folder) as files:
            for file in files:
                with suppress(OSError, ValueError):
                    key, status = require_key(shard + file.name), file.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        found.append(Found(kind, key, self, status.st_size, status.st_mtime_ns))
        return found


def touch(fd: int, now_ns: int) -> None:
    """Set the time of use of an open file. On another user's file, utime(2) allows only the current time."""
    with suppress(OSError):  # a read-only filesystem: eviction is then less exact
        try:
            os.utime(fd, ns=(now_ns, now_ns))
        except PermissionError:
            os.utime(fd)


def identity_of(status: os.stat_result) -> tuple[int, int]:
    """Device and inode."""
    return status.st_dev, status.st_ino


class DiskStore:
    """The store below one directory.

    Args:
        directory: Absolute path; made when something is first stored. "" for none: nothing is found or stored.
        max_size_bytes: Limit of all entries and manifests together.
        max_entries: Limit of the number of entries.
        readonly: Nothing is written, not even recency.
        durability: What a put forces to the disk before it returns.
        shared: Trust a directory that others can write to, and let them read the entries.
        emit: Takes the events TROUBLE, DAMAGED, STORED and EVICTED.
        clock: The time, in seconds since the epoch.
        max_wait_s: Longest wait for a build of another process, in seconds.
        demands: Find only code compiled on this machine, or whose signature was checked (store.signed).

    Attributes:
        opening: A lock, held while writer and counters are made.
    """

    def __init__(
        self,
        directory: str,
        *,
        max_size_bytes: int = 1 << 30,
        max_entries: int = 20_000,
        readonly: bool = False,
        durability: Durability = "none",
        shared: bool = False,
        emit: Emit = lambda event: None,
        clock: Callable[[], float] = time.time,
        max_wait_s: float = 120.0,
        demands: bool = False,
    ) -> None:
        self.directory, self.readonly = directory, readonly
        self.max_size_bytes, self.max_entries = max_size_bytes, max_entries
        self.emit, self.clock, self.max_wait_s = emit, clock, max_wait_s
        self.tree = Tree(directory, shared=shared, durability=durability)
        if demands:
            from .signed import SignedTree

            self.tree = SignedTree(directory, shared=shared, durability=durability)
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
                os.mkdir(path, 0o700)
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

    def prepare(self) -> str:
        """Make the directory if need be. Returns the reason why entries cannot be written to it, or ""."""
        return "" if self.readonly else self._obstacle or self.writer.prepare()

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

    def get_manifest(self, family: str) -> list[Variant]:
        """The variants of `family`, newest first; none if there is no manifest that can be trusted."""
        return self.read(MANIFEST, family, decode_manifest) or []

    def get_record(self, name: str) -> Header | None:
        """The record of `name`, a key; None if there is none that can be trusted."""
        return self.read(RECORD, name, decode_record)

    def get_encoded(self, key: str, kind: int = ENTRY) -> bytes | None:
        """The bytes of a file, not verified; its time of use is not renewed."""
        with suppress(OSError, DamagedEntry):
            return self.tree.read(kind, key)
        return None

    def peek(self, key: str) -> StoredEntry | None:
        """Return the same as `get`, but do not renew the time of use, and leave a damaged file where it is."""
        return self._peek(ENTRY, key, decode_entry)

    def peek_manifest(self, family: str) -> list[Variant]:
        """Return the same as `get_manifest`, but do not renew the time of use, and leave a damaged file where it is."""
        return self._peek(MANIFEST, family, decode_manifest) or []

    def peek_record(self, name: str) -> Header | None:
        """Return the same as `get_record`, but do not renew the time of use, and leave a damaged file where it is."""
        return self._peek(RECORD, name, decode_record)

    def _peek(self, kind: int, key: str, decode: Callable[[bytes, str], Result]) -> Result | None:
        data = self.get_encoded(key, kind)
        with suppress(DamagedEntry):
            return None if data is None else decode(data, key)
        return None

    def has(self, key: str) -> bool:
        """Check whether there is a file for the entry of `key`."""
        with suppress(OSError), self.tree.opened(FOLDERS[ENTRY], key[:2]) as folder:
            return bool(stat_in(folder, key[2:]))
        return False

    # Lists

    def files(self, *kinds: int) -> Iterator[Found]:
        """Every file of these kinds whose name is a key, in any order."""
        return self.tree.walk(*kinds) if self.is_usable() else iter(())

    def manifests(self) -> Iterator[tuple[str, list[Variant]]]:
        """Yield every family and its variants, unordered; damaged manifests are skipped."""
        found = ((file.key, self.peek_manifest(file.key)) for file in self.files(MANIFEST))
        return ((family, variants) for family, variants in found if variants)

    def find(self, prefix: str) -> list[Found]:
        """The files of the entries whose key begins with `prefix`."""
        return [file for file in self.files(ENTRY) if file.key.startswith(prefix)]

    def entries(self) -> Iterator[EntryInfo]:
        """Yield every entry that passes verification, unordered; times of use are not renewed."""
        from .listing import info_of

        found = ((file, self.peek(file.key)) for file in self.files(ENTRY))
        return (info_of(file, entry) for file, entry in found if entry is not None)

    def listing(self, by: Order, limit: int | None, hits: Mapping[str, int]) -> list[EntryInfo]:
        """The first `limit` entries in the order `by`, read from only their headers (store.listing).

        Args:
            by: The order.
            limit: Number of entries; None for all.
            hits: Hits by the leading digits of the key.
        """
        from .listing import listed

        return listed(self.files(ENTRY), by=by, limit=limit, hits=hits)

    def size(self) -> Usage:
        """Number and bytes of the files, counted file by file, and of extracted headers."""
        from .eviction import header_folders
        from .listing import Usage

        files = list(self.files(*FOLDERS))
        headers = sum(header_folders(self.directory).values())
        return Usage(headers + sum(file.size_bytes for file in files), sum(file.kind == ENTRY for file in files))

    def damage(self, key: str) -> str:
        """The reason why the file of the entry of `key` is damaged; "" if it is not, or if there is no file."""
        data = self.get_encoded(key)
        try:
            if data is not None:
                decode_entry(data, key)
        except DamagedEntry as error:
            return str(error)
        return ""

    def verify(
        self, refusal_of: Callable[[StoredEntry], str] = lambda entry: "", tell: Callable[[], object] = lambda: None
    ) -> list[Problem]:
        """Read every file in full; report those that are damaged or that `refusal_of` refuses, and quarantine them.

        Args:
            refusal_of: Returns the reason not to trust an entry; "" for none.
            tell: Called for each file.
        """
        from .listing import Problem, damaged

        problems = []
        for file, reason in damaged(self.files(*FOLDERS), refusal_of, tell):
            problems.append(Problem(file.key, reason))
            self.set_aside(file.key, file.kind, reason)
        return problems

    # Writing

    def is_written(self) -> bool:
        """Check whether new entries may be written."""
        return not self.readonly and not self._obstacle

    def require_room(self, size_bytes: int) -> None:
        """Raise OSError if so many bytes cannot be stored."""
        shortage = self._obstacle or self.writer.limits.shortage(size_bytes)
        if shortage or size_bytes > self.max_size_bytes:
            raise OSError(errno.ENOSPC, shortage or f"{size_bytes} bytes are above the limit of {self.max_size_bytes}")
        if self.readonly:
            raise OSError(errno.EROFS, "the cache is read-only in this mode")

    def put(self, entry: StoredEntry) -> bool:
        """Store `entry` in place of any other under its key. Returns True if it was stored.

        Raises:
            ValueError, TypeError: The entry cannot be encoded.
        """
        from .encoding import encode_entry

        return self.put_encoded(entry.key, encode_entry(entry))

    def put_record(self, name: str, record: Header) -> bool:
        """Store the record of `name` in place of any other. Returns True if it was stored."""
        from .encoding import encode_entry

        data = encode_entry(StoredEntry(name, record, {}), RECORD)
        return len(data) <= MAX_MANIFEST_BYTES and self.put_encoded(name, data, RECORD)

    def put_encoded(self, key: str, data: bytes, kind: int = ENTRY) -> bool:
        """Store bytes of `encode_entry` for `key`, verified by the caller. Returns True if they were stored."""
        return self.is_written() and self.writer.put(kind, require_key(key), data)

    def add_variant(self, family: str, *variants: Variant, most: int = MAX_VARIANTS) -> bool:
        """Put `variants`, each with a `"key"`, before those of `family`, the last one first; `most` are kept. Returns
        True if stored."""
        return self.is_written() and self.writer.add_variants(require_key(family), variants, most)

    def building(self, key: str, wait_s: float | None = None) -> KeyTurn[StoredEntry]:
        """Take the turn to build `key`, or wait until another has built it.

        The context is a `Turn`: `found` is the entry that another stored meanwhile; where it is None, the caller builds
        and puts. Entering never raises and waits at most `wait_s` seconds, or `max_wait_s`, for other processes.
        """
        most_s = self.max_wait_s if wait_s is None else wait_s
        return self.locks.turn(require_key(key), lambda: self.get(key), most_s, builds=True)

    def prune(self, max_size_bytes: int | None = None, older_than: float | None = None) -> Removed:
        """Remove entries not used for `older_than` seconds, then the least recently used down to the limit.

        Args:
            max_size_bytes: Limit of this pass; None for the store's.
            older_than: Seconds; None for any age.
        """
        return self.writer.removed(lambda limits: limits.prune(max_size_bytes, older_than))

    def clear(self, tell: Callable[[], object] = lambda: None) -> Removed:
        """Remove every entry, manifest, damaged file and extracted header, and call `tell` for each file of the tree;
        statistics stay."""
        return self.writer.removed(lambda limits: limits.clear(tell))

    def remove(self, key: str) -> bool:
        """Remove the entry of `key`; returns True if there was one."""
        from .eviction import remove

        return self.is_written() and remove(Found(ENTRY, require_key(key), self.tree, 0, 0))

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
    return DiskStore(
        "" if settings.mode == "off" else directory or "",
        max_size_bytes=settings.max_size_bytes,
        max_entries=settings.max_entries,
        readonly=settings.mode in ("readonly", "frozen"),
        durability=settings.durability,
        shared=settings.shared,
        emit=emit,
        max_wait_s=settings.build_wait_s,
        demands=settings.trusted_keys != () or settings.signing_key is not None,  # as tiers.trust
    )
