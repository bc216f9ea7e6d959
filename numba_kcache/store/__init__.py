"""Calls of the operating system that only Linux has, in this module alone; what a forked child renews; a root's tree.

Promise     No file outside a `Tree` is touched, no link inside it is followed, and nothing but regular files is read. A
            directory that is not trusted is refused for the life of the process.
Method      The path of the root is resolved once, component by component, and the descriptors of the tree's own folders
            are kept (see disk); each folder below is opened by itself.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from threading import get_ident
from typing import TYPE_CHECKING, Any

from ..model import NamedTuple
from .entry import ENTRY, FORMAT, MANIFEST, MAX_FILE_BYTES, RECORD, DamagedEntry, require_key

if TYPE_CHECKING:
    from typing import Literal, Protocol

    Durability = Literal["none", "data", "full"]

    class Forked(Protocol):
        """An object with locks or threads that have to be replaced in a forked child."""

        def after_fork(self) -> None:
            """Replace, in the child, locks that another thread of the parent may have held."""


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


hook: Callable[[str], None] | None = None
"""Called with the name of each point that `reached` marks; set only by tests, to kill the process or fail a call."""


def reached(point: str) -> None:
    """Mark that execution got to `point`."""
    if hook is not None:
        hook(point)


renewed_in_children: weakref.WeakSet[Forked] = weakref.WeakSet()
"""Objects whose `after_fork()` is called in each child that is forked while they exist."""


# A folder is named by its descriptor, and no link is followed in it.


def open_in(folder: int, name: str, flags: int, mode: int = 0o600) -> int:
    """Open a file or folder; with O_CREAT a missing file is made."""
    return os.open(name, flags | NOFOLLOW | CLOEXEC, mode, dir_fd=folder)


def open_below(
    folder: int, names: Sequence[str], flags: int, check: Callable[[os.stat_result, str], object] | None = None
) -> int:
    """Open a file or folder that is some folders further down; `check` refuses a folder on the way by its stat."""
    at = folder
    try:
        for name in names[:-1]:
            above, at = at, os.open(name, FOLDER, dir_fd=at)
            if above != folder:
                os.close(above)
            if check is not None:
                check(os.fstat(at), name)
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


def remove_folder_in(folder: int, name: str) -> None:
    """Remove a folder with all that is in it."""
    import shutil

    shutil.rmtree(name, dir_fd=folder)


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


def is_network(status: os.stat_result) -> bool:
    """Check whether a file or folder with this stat is on a filesystem shared with other machines."""
    if os.major(status.st_dev) != 0:
        return False  # on a block device, thus local: the list of mounts need not be read
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
            return is_network_mount(mounts.read(), status.st_dev)
    except OSError:
        return False


def is_network_mount(mountinfo: str, device: int) -> bool:
    """Check whether a device is mounted from the network, by the text of /proc/self/mountinfo."""
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        if before.split(" ")[2:3] == [number]:
            kind = after.split(" ")[0]
            return kind in _NETWORK or kind.startswith("fuse.")
    return False


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


# -- the tree below a root --------------------------------------------------------------------------------------------


RECENCY_NS = 3600 * 10**9
"""A hit renews a file's time of use if that is longer ago than this, in nanoseconds."""

READ = os.O_RDONLY | NOFOLLOW | CLOEXEC | NONBLOCK | NOCTTY  # a FIFO must not block the reader
FOLDERS = {ENTRY: "entries", MANIFEST: "manifests", RECORD: "records"}
HEADERS = "headers"
"""Folder of the root with the headers that NVRTC holds itself, as extracted."""

SIGNED = "signed"
"""Folder of the root with the tree for sessions that demand signatures."""

ABSENT = (errno.ENOENT, errno.ENOTDIR)


class Descriptor(int):
    """An open descriptor; closed with its last reference, unless its number belongs to another file by then."""

    identity: tuple[int, int]

    def __del__(self) -> None:
        try:
            if identity_of(os.fstat(self)) == self.identity:
                os.close(self)
        except Exception:  # the program has closed it, or the interpreter is shutting down
            pass


class FoundFile(NamedTuple):
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
    def opened(self, *names: str) -> Iterator[int]:
        """Open a folder for a context, which was checked.

        Args:
            names: Names of the folders on the way from the tree's own folder.

        Raises:
            OSError: As `open`.
        """
        if names[1:]:
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

    def walk(self, *kinds: int) -> Iterator[FoundFile]:
        """Yield each file of these kinds; files that vanish meanwhile are skipped."""
        for kind in kinds:
            shards: list[str] = []
            with suppress(OSError), self.opened(FOLDERS[kind]) as folder:
                shards = sorted(name for name in os.listdir(folder) if len(name) == 2)
            for shard in shards:
                found: list[FoundFile] = []
                with suppress(OSError), self.opened(FOLDERS[kind], shard) as folder:
                    found = self.scan(kind, shard, folder)
                yield from found

    def scan(self, kind: int, shard: str, folder: int) -> list[FoundFile]:
        """List the files of a kind in one of its 256 folders, which is open."""
        found = []
        with os.scandir(folder) as files:
            for file in files:
                with suppress(OSError, ValueError):
                    key, status = require_key(shard + file.name), file.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        found.append(FoundFile(kind, key, self, status.st_size, status.st_mtime_ns))
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
