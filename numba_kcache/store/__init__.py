"""The calls of the operating system that only Linux has, in this module alone, and the interface of all stores."""

from __future__ import annotations

import errno
import os
import stat
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar

from .entry import (
    ENTRY,
    MANIFEST,
    MAX_MANIFEST_BYTES,
    RECORD,
    DamagedEntry,
    Header,
    StoredEntry,
    Variant,
    decode_entry,
    decode_manifest,
    decode_record,
    encode_entry,
    encode_manifest,
    merge,
    require_key,
)

if TYPE_CHECKING:  # a hit does not import these modules
    from typing import Protocol

    from .listing import Order
    from .locks import KeyLocks, KeyTurn
    from .report import EntryInfo, Usage
    from .tree import Found

    class Forked(Protocol):
        """An object with locks or threads that have to be replaced in a forked child."""

        def after_fork(self) -> None:
            """Replace, in the child, locks that another thread of the parent may have held."""


Result = TypeVar("Result")

CLOEXEC, DIRECTORY, NOFOLLOW, NONBLOCK, NOCTTY = os.O_CLOEXEC, os.O_DIRECTORY, os.O_NOFOLLOW, os.O_NONBLOCK, os.O_NOCTTY
FOLDER = os.O_RDONLY | DIRECTORY | NOFOLLOW | CLOEXEC


class Refused(PermissionError):
    """A directory or file that is not trusted because other users can change it."""

    def __init__(self, why: str) -> None:
        super().__init__(errno.EACCES, why)

    def __str__(self) -> str:
        return str(self.strerror)


def try_flock(fd: int) -> None:
    """Lock the open file `fd` exclusively, without waiting.

    Raises:
        BlockingIOError: Another process or thread holds the lock.
        OSError: This filesystem has no locks.
    """
    import fcntl  # not at the top: a hit takes no lock

    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def unlock(fd: int) -> None:
    """Unlock a file that `try_flock` has locked; closing it is not enough while a forked child has it open."""
    import fcntl

    with suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_UN)


def sync_data(fd: int) -> None:
    """Force the bytes of the open file `fd` to the disk."""
    os.fdatasync(fd)


renewed_in_children: weakref.WeakSet[Forked] = weakref.WeakSet()
"""Objects whose `after_fork()` is called in each child that is forked while they exist."""


# A folder is named by its descriptor, and no link is followed in it.


def open_in(folder: int, name: str, flags: int, mode: int = 0o600) -> int:
    """Open a file or folder; with O_CREAT a missing file is made."""
    return os.open(name, flags | NOFOLLOW | CLOEXEC, mode, dir_fd=folder)


def open_below(folder: int, names: Sequence[str], flags: int) -> int:
    """Open a file or folder that is some folders further down."""
    at = folder
    try:
        for name in names[:-1]:
            above, at = at, os.open(name, FOLDER, dir_fd=at)
            if above != folder:
                os.close(above)
        return os.open(names[-1], flags, dir_fd=at)
    finally:
        if at != folder:
            os.close(at)


def stat_in(folder: int, name: str) -> os.stat_result:
    """The stat of a file, folder or link."""
    return os.stat(name, dir_fd=folder, follow_symlinks=False)


def rename_in(folder: int, name: str, to_folder: int, to_name: str) -> None:
    """Rename a file, in place of any other of the new name."""
    os.rename(name, to_name, src_dir_fd=folder, dst_dir_fd=to_folder)


def unlink_in(folder: int, name: str) -> None:
    """Remove a file or link."""
    os.unlink(name, dir_fd=folder)


def touch_in(folder: int, name: str) -> None:
    """Set the time of a file to now."""
    os.utime(name, dir_fd=folder, follow_symlinks=False)


def is_writable(folder: int) -> bool:
    """Check whether the user may make files in a folder."""
    return os.access(".", os.W_OK | os.X_OK, dir_fd=folder)


def make_folder_in(parent: int | None, name: str, mode: int) -> None:
    """Make a folder. Its owner may use it despite the umask, which another thread may have narrowed.

    Args:
        parent: Descriptor of the folder to make it in; None if `name` is a path.
        name: Its name.
        mode: Its permissions, without those that the umask withholds from others.

    Raises:
        OSError: The folder cannot be made, or something has this name.
    """
    os.mkdir(name, mode, dir_fd=parent)
    made = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    if stat.S_ISDIR(made) and made & 0o700 != 0o700:
        os.chmod(name, made & 0o7777 | 0o700, dir_fd=parent)


def above_streams(fd: int) -> int:
    """Duplicate a descriptor to a number above those of the standard streams."""
    import fcntl

    higher = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(fd)
    return higher


_MAX_LINKS = 40


def resolve(path: str, *, shared: bool, makes: bool = False) -> tuple[str, list[tuple[str, os.stat_result]]]:
    """Follow the links of a path.

    Args:
        path: Absolute path.
        shared: Others may use the folders that are made, as far as the umask permits.
        makes: Make missing folders.

    Returns:
        The path without links, and each folder on the way in which other users may rename entries, with its stat.

    Raises:
        Refused: Another user may have put a link there.
        OSError: The path does not exist.
    """
    remaining, at, links = path.split("/")[::-1], "", 0
    exposed: list[tuple[str, os.stat_result]] = []
    trusted = 0, os.geteuid()
    while remaining:
        name = remaining.pop()
        if name in ("", ".", ".."):
            at = at if name != ".." else at.rpartition("/")[0]
            continue
        parent = os.lstat(at or "/")
        mode = parent.st_mode
        is_sticky = bool(mode & 0o022 and mode & stat.S_ISVTX)
        is_exposed = parent.st_uid not in trusted or (mode & 0o022 and not is_sticky)  # others may rename entries
        if is_exposed:
            exposed.append((at or "/", parent))
        below = f"{at}/{name}"
        try:
            status = os.lstat(below)
        except FileNotFoundError:
            if not makes:
                raise
            with suppress(FileExistsError):  # another process was faster
                make_folder_in(None, below, 0o777 if shared else 0o700)
            status = os.lstat(below)
        if not stat.S_ISLNK(status.st_mode):
            at = below
            continue
        if is_exposed or (is_sticky and status.st_uid not in (*trusted, parent.st_uid)):
            raise Refused(f"{below} is a link, and others can write to {at or '/'}")
        links += 1
        if links > _MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        target = os.readlink(below)
        remaining += target.split("/")[::-1]
        at = "" if target.startswith("/") else at
    return at or "/", exposed


_NETWORK = (
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs"),
    *("lustre", "gpfs", "beegfs", "ceph", "panfs", "wekafs"),
)


def is_network(path: str, status: os.stat_result) -> bool:
    """Check whether `path`, whose stat is `status`, is on a filesystem shared with other machines."""
    if os.major(status.st_dev) != 0:
        return False  # on a block device, thus local: the list of mounts need not be read
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
            return is_network_mount(mounts.read(), os.path.realpath(path))
    except OSError:
        return False


def is_network_mount(mountinfo: str, path: str) -> bool:
    """Check whether the absolute `path` is on a network mount, by the text of /proc/self/mountinfo."""
    found = False
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")[0]
        if len(fields) < 5:
            continue
        point = fields[4]
        if "\\" in point:  # a space is written as \040
            point = point.encode("utf-8", "surrogateescape").decode("unicode_escape")
        if path == point or path.startswith(point.rstrip("/") + "/"):
            found = kind in _NETWORK or kind.startswith("fuse.")  # a later mount hides an earlier one
    return found


def _after_fork() -> None:
    """Renew all objects of a child; the error of one, which Python prints, comes after the others have been renewed."""
    _forget_imports_of_others()
    failed: Exception | None = None
    for each in list(renewed_in_children):
        try:
            each.after_fork()
        except Exception as error:
            failed = error
    if failed is not None:
        raise failed


_IMPORTS: Mapping[str, Callable[[], Any]] = getattr(sys.modules.get("_frozen_importlib"), "_module_locks", {})
"""The locks of the modules that are being imported now, by name; nearly always empty.

Source      CPython 3.11 to 3.14, importlib/_bootstrap.py: while a module is imported, it is half-initialised in
            `sys.modules` and has a lock, which stays locked in a forked child. The import returns the module that is in
            `sys.modules` at its end.
"""


def _forget_imports_of_others() -> None:
    """Let a child import again what other threads of its parent were importing; CPython would wait for the threads."""
    for name, reference in list(_IMPORTS.items()):
        lock = reference()
        if lock is None or getattr(lock, "owner", None) == get_ident():
            continue
        _IMPORTS.pop(name, None)  # type: ignore[attr-defined]
        if _is_half_initialised(name):
            del sys.modules[name]


def _is_half_initialised(name: str) -> bool:
    return bool(getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False))


os.register_at_fork(after_in_child=_after_fork)


class Store:
    """A store of entries, manifests and records by key.

    Attributes:
        max_wait_s: Longest wait for a build of another process, in seconds.
    """

    max_wait_s: float

    @property
    def locks(self) -> KeyLocks:
        """The turns of this node, so that one process builds each key."""
        raise NotImplementedError

    def get_encoded(self, key: str, kind: int = ENTRY) -> bytes | None:
        """The bytes of a file, not verified; its time of use is not renewed."""
        raise NotImplementedError

    def put_encoded(self, key: str, data: bytes, kind: int = ENTRY) -> bool:
        """Store bytes of `encode_entry` for `key`, verified by the caller. Returns True if they were stored."""
        raise NotImplementedError

    def read(self, kind: int, key: str, decode: Callable[[bytes, str], Result]) -> Result | None:
        """Read and decode a file, and renew its time of use; None if there is none that can be trusted."""
        raise NotImplementedError

    def files(self, *kinds: int) -> Iterator[Found]:
        """Every file of these kinds whose name is a key, in any order."""
        raise NotImplementedError

    def take_unsigned(self) -> None:
        """Mark the directory, before the next write to it, as one with code whose signature was not checked."""

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

    def put(self, entry: StoredEntry) -> bool:
        """Store `entry` in place of any other under its key. Returns True if it was stored.

        Raises:
            ValueError, TypeError: The entry cannot be encoded.
        """
        return self.put_encoded(entry.key, encode_entry(entry))

    def put_record(self, name: str, record: Header) -> bool:
        """Store the record of `name` in place of any other. Returns True if it was stored."""
        data = encode_entry(StoredEntry(name, record, {}), RECORD)
        return len(data) <= MAX_MANIFEST_BYTES and self.put_encoded(name, data, RECORD)

    def add_variant(self, family: str, *variants: Variant) -> bool:
        """Put `variants`, each with a `"key"`, before those of `family`, the last one first. Returns True if stored."""
        before = self.get_manifest(family)
        after = merge(before, *variants)
        return after == before or self.put_encoded(family, encode_manifest(family, after), MANIFEST)

    def building(self, key: str, wait_s: float | None = None) -> KeyTurn[StoredEntry]:
        """Take the turn to build `key`, or wait until another has built it.

        The context is a `Turn`: `found` is the entry that another stored meanwhile; where it is None, the caller builds
        and puts. Entering never raises and waits at most `wait_s` seconds, or `max_wait_s`, for other processes.
        """
        most_s = self.max_wait_s if wait_s is None else wait_s
        return self.locks.turn(require_key(key), lambda: self.get(key), most_s, builds=True)

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

    def damage(self, key: str) -> str:
        """The reason why the file of the entry of `key` is damaged; "" if it is not, or if there is no file."""
        data = self.get_encoded(key)
        try:
            if data is not None:
                decode_entry(data, key)
        except DamagedEntry as error:
            return str(error)
        return ""

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

        for file in self.files(ENTRY):
            entry = self.peek(file.key)
            if entry is not None:
                yield info_of(file, entry)

    def listing(self, by: Order, limit: int | None, hits: Mapping[str, int]) -> list[EntryInfo]:
        """The first `limit` entries in the order `by`, read from only their headers (store.listing).

        Args:
            by: The order.
            limit: Number of entries; None for all.
            hits: Hits by the leading digits of the key.
        """
        from .listing import listed

        return listed(self.files(ENTRY), self.get_encoded, by=by, limit=limit, hits=hits)

    def size(self) -> Usage:
        """Number and bytes of the files, counted file by file."""
        from .report import Usage

        files = list(self.files(ENTRY, MANIFEST, RECORD))
        return Usage(sum(file.size_bytes for file in files), sum(file.kind == ENTRY for file in files))
