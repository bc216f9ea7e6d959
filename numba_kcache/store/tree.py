"""One directory tree of entries and manifests: refuse an unsafe root, find, read and walk files.

Promise     No file outside the tree is touched, no link inside it is followed, and nothing that is not a
            regular file is read. Raises OSError and DamagedEntry, which store.disk turns into misses and events.
            A root that another user owns or may write to is refused unless `shared` is set: the files in it become code
            on the GPU. Look-ups create no folder.
Method      <root>/v1/{entries,manifests,records}/<2 digits>/<62 digits>: 256 directories each, so that 100,000 files
            are 390 to a directory and a miss is one failed open. The path of the root is resolved once, component by
            component; a link counts only where no other user can have put it there. The root is opened and checked
            once, and the descriptor of <root>/v1 is kept: the directory that was checked is the one used, whatever the
            path leads to later. Each folder below it is opened by itself, without following links. Before the kept
            descriptor is used, its device and inode are compared, since some programs close descriptors that they did
            not open. If the directory was removed, or its file server reports ESTALE, the root is opened and checked
            again. Only a refusal is final.
            The modification time of a file records its last use, set explicitly and at most hourly: atime may be off
            or changed by others. The first write makes the tree, and missing parents, with mode 0700; in a shared one
            new files get the permissions of the root, whatever the umask.
Not here    Making and removing files (store.folders, store.names); limits (store.eviction), events (store.disk), the
            default directory (settings).
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from ..model import NamedTuple
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
    open_in,
    resolve,
)
from .entry import ENTRY, FORMAT, MANIFEST, MAX_FILE_BYTES, RECORD, DamagedEntry, require_key

if TYPE_CHECKING:  # needed only to write: a hit does not import this module
    from .publish import Durability

RECENCY_NS = 3600 * 10**9
"""A hit renews a file's time of use if that is longer ago than this, in nanoseconds."""

READ = os.O_RDONLY | NOFOLLOW | CLOEXEC | NONBLOCK | NOCTTY  # a FIFO must not block the reader
FOLDERS = {ENTRY: "entries", MANIFEST: "manifests", RECORD: "records"}
SHARDS = tuple(bytes(range(256)).hex(" ").split())
"""Folders of each kind, named by the first digits of the keys in them."""


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
    """A file found by a walk; one of a store in memory has no tree."""

    kind: int
    key: str
    tree: Tree | None
    size_bytes: int
    used_ns: int


class Tree:
    """The tree below one root.

    Args:
        root: Absolute path of the directory.
        shared: Trust the directory's owner, and the group that may write to it.
        below: Names of the folders between the root and the tree.
        format: Version of the file format, which is in the name of the tree's own folder.
        trusts_superuser: Trust a directory that the superuser owns like the user's own.

    Attributes:
        status: The stat of the root, when it was last opened; None before.
        refusal: The reason why the directory is not trusted; "" if it is, or was not opened yet.
        is_private: No other user can write below the root, so its files need no check of their own.
        takes_unsigned: Each write marks the tree as one with code whose signature was not checked (store.origin).
    """

    takes_unsigned = False

    def __init__(
        self,
        root: str,
        *,
        shared: bool = False,
        below: tuple[str, ...] = (),
        format: int = FORMAT,
        trusts_superuser: bool = False,
    ) -> None:
        self.root, self.shared = root, shared
        self.names = (*below, f"v{format}")
        self.status: os.stat_result | None = None
        self.refusal = self._resolved = ""
        self._trusts_superuser = trusts_superuser
        self._base: Descriptor | None = None
        self._is_network: bool | None = None
        self.is_private = False

    # Opening

    def base(self) -> int:
        """The descriptor of the tree's own folder, which was checked; the tree closes it.

        Raises:
            Refused: The folder is not trusted.
            OSError: The path does not exist, or is not a folder.
        """
        base = self._base
        if base is not None:
            try:
                status = os.fstat(base)
                if status.st_nlink and (status.st_dev, status.st_ino) == base.identity:
                    return base
            except OSError:
                pass  # closed by the program, or gone from the file server
        root = self.open_root()
        try:
            at = open_below(root, self.names, FOLDER)
        finally:
            os.close(root)
        try:
            if at < 3:  # the program closed its standard streams, whose numbers C libraries still write to
                at = above_streams(at)
            status = os.fstat(at)
            if not self.is_private:
                self.require_trusted(status, self.names[-1])
        except BaseException:
            os.close(at)
            raise
        base = Descriptor(at)
        base.identity = status.st_dev, status.st_ino
        self._base = base
        return base

    def forget(self) -> None:
        """Open and check the root again when it is next needed."""
        self._base = None

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
        def is_trusted(parent: os.stat_result) -> bool:
            is_known = parent.st_uid in (0, os.geteuid(), status.st_uid) and not parent.st_mode & 0o002
            return self.shared and is_known and parent.st_gid == status.st_gid

        path = next((path for path, parent in exposed if not is_trusted(parent)), "")
        reason = refusal(self.root, status, shared=self.shared, trusts_superuser=self._trusts_superuser, exposed=path)
        if reason is not None:
            raise Refused(reason)

    def require_trusted(self, status: os.stat_result, name: str) -> None:
        """Raise Refused if a user who is not trusted may have written to this file or folder of the tree."""
        assert self.status is not None
        mode, owners = self.status.st_mode, (0, os.geteuid(), self.status.st_uid)
        if self.is_private:
            return
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
            self._is_network = is_network(self._resolved, self.status)
        return bool(self._is_network)

    def folder(self, *names: str) -> int:
        """A descriptor of a folder in the tree, which was checked; the caller closes it.

        Raises:
            Refused: The folder is not trusted.
            OSError: The path does not exist, or is not a folder.
        """
        base = self.base()
        at: int = base if names else os.dup(base)
        for name in names:
            above = at
            try:
                at = open_in(above, name, FOLDER)
            finally:
                if above is not base:
                    os.close(above)
            if not self.is_private:
                try:
                    self.require_trusted(os.fstat(at), name)
                except BaseException:
                    os.close(at)
                    raise
        return at

    @contextmanager
    def opened(self, *names: str, make: Durability | None = None) -> Iterator[int]:
        """Open a folder for a context.

        Args:
            names: Names of the folders on the way from the tree's own folder.
            make: Make missing folders, with this durability; None: make none.

        Raises:
            OSError: As `folder`.
        """
        if make is None:
            fd = self.folder(*names)
        else:
            from .folders import make_folder

            fd = make_folder(self, names, make)
        try:
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
        base = self.base()
        names = FOLDERS[kind], key[:2], key[2:]
        if self.is_private:
            fd = open_below(base, names, READ)
        else:
            folder = self.folder(*names[:-1])
            try:
                fd = open_below(folder, names[-1:], READ)
            finally:
                os.close(folder)
        try:
            status = os.fstat(fd)
            size = status.st_size
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.ENXIO, "not a regular file")
            if size > MAX_FILE_BYTES:
                raise DamagedEntry(f"too large: {size} bytes")
            if not self.is_private:
                self.require_trusted(status, key)
            data = os.read(fd, size + 1)
            while len(data) < size and (more := os.read(fd, size + 1 - len(data))):
                data += more  # a network filesystem may return the file in parts
            age_ns = 0 if now_ns is None or status.st_nlink > 1 else abs(now_ns - status.st_mtime_ns)
            if now_ns is not None and age_ns > RECENCY_NS and (age_ns > 24 * RECENCY_NS or not self.is_network()):
                touch(fd, now_ns)
            return data
        finally:
            os.close(fd)

    def write(self, kind: int, key: str, data: bytes, *, durability: Durability, time_ns: int) -> None:
        """Publish a file and make missing folders. A link, folder or device that has its name is quarantined first.

        Raises:
            OSError: The file was not published.
        """
        from .files import publish_entry

        publish_entry(self, kind, require_key(key), data, durability=durability, time_ns=time_ns)

    def walk(self, *kinds: int, shards: Sequence[str] = SHARDS) -> Iterator[Found]:
        """Yield each file of these kinds in these shards; files that vanish meanwhile are skipped."""
        from .files import walk

        return walk(self, kinds, shards)


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


def refusal(
    path: str, status: os.stat_result, *, shared: bool, trusts_superuser: bool = False, exposed: str = ""
) -> str | None:
    """The reason why a directory must not be used as a store; None if it may be.

    Args:
        path: Path of the directory.
        status: Stat of the directory, taken by descriptor.
        shared: The directory's owner and group are trusted.
        trusts_superuser: The superuser is trusted like the user.
        exposed: A parent folder in which other users may rename entries; "" if there is none.
    """
    mode = status.st_mode & 0o777
    if not stat.S_ISDIR(status.st_mode):
        return f"{path} is not a directory"
    if exposed and (status.st_uid != os.geteuid() or mode & 0o077):
        use = f"below such a folder, a store must be yours and have mode 700 (this one has mode {mode:o})"
        return f"{exposed} can be written by others, who may put another directory in place of {path}: {use}"
    if shared:
        return None
    if status.st_uid != os.geteuid() and not (trusts_superuser and status.st_uid == 0):
        return f"{path} belongs to user {status.st_uid}; set shared=True to trust it"
    if mode & 0o022:
        return f"{path} can be written by others (mode {mode:o}); chmod 700 it or set shared=True"
    return None
