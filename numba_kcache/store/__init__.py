"""The calls of the operating system that only Linux has, in this module alone, and what a forked child renews."""

from __future__ import annotations

import errno
import os
import stat
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import get_ident
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Protocol

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


def link_in(folder: int, name: str, to_folder: int, to_name: str) -> bool:
    """Rename a file unless another one has the new name; False if this filesystem cannot do that.

    Raises:
        FileExistsError: Another file has the new name.
    """
    try:
        os.link(name, to_name, src_dir_fd=folder, dst_dir_fd=to_folder, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError:
        return False
    with suppress(OSError):  # both names stay; eviction removes the old one later
        unlink_in(folder, name)
    return True


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
