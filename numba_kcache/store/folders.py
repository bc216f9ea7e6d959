"""Make the folders of a tree, and open, list and remove files in them, through descriptors.

Promise     Every name is looked up in a folder that was opened without following links, and whose owner and mode were
            checked. Only regular files with a single hard link are opened.
Method      New files and folders in a shared tree get the group permissions of its root, and never write permission for
            everybody.
Not here    The files of entries and manifests (writing), and removing files by their names (eviction).
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from ..errors import why_of
from ..keys import sha256
from . import FOLDER, NOCTTY, NONBLOCK, Tree, is_writable, make_folder_in, open_in, stat_in, unlink_in

LOCKS, QUARANTINE = "locks", "quarantine"

_CACHEDIR_TAG = (
    b"Signature: 8a477f597d28d172789f06886806bc55\n"
    b"# This file marks a directory that numba_kcache can make again (https://bford.info/cachedir/).\n"
)


class Folder:
    """One folder of a tree: its own or one in it, by the descriptor that the tree keeps.

    Args:
        tree: The tree that the folder is in.
        names: The folder's name; none for the tree's own folder.
    """

    def __init__(self, tree: Tree, *names: str) -> None:
        self.tree, self._names = tree, names

    def open(self, name: str, flags: int, *, make: bool = False) -> int:
        """Open a regular file; returns its descriptor.

        Args:
            name: Name of the file.
            flags: As those of os.open; with O_CREAT a missing file is made.
            make: Make a missing folder.

        Raises:
            OSError: The file cannot be opened, is not regular, or has a second hard link.
        """
        try:
            folder = self.tree.base(*self._names)
        except FileNotFoundError:
            if not make:
                raise
            with made(self.tree, *self._names):
                folder = self.tree.base(*self._names)
        fd = open_in(folder, name, flags | NONBLOCK | NOCTTY, file_mode(self.tree))
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
                raise OSError(errno.ENXIO, "not a file of this cache", name)
            if flags & os.O_CREAT:
                give_rights(self.tree, fd, status)
            else:
                self.tree.require_trusted(status, name)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def names(self) -> list[str]:
        """List the names in the folder; empty if it is missing."""
        with suppress(FileNotFoundError), self.tree.opened(*self._names) as folder:
            return os.listdir(folder)
        return []

    def status(self, name: str) -> os.stat_result:
        """The stat of the file with this name.

        Raises:
            OSError: There is no such file.
        """
        return stat_in(self.tree.base(*self._names), name)

    def unlink(self, name: str, only: os.stat_result | None = None) -> bool:
        """Remove a regular file. Returns True if it was there and is gone.

        Args:
            name: Its name.
            only: Remove only the file with this device and inode; None: any file.

        Raises:
            OSError: The folder cannot be opened.
        """
        return unlink(self.tree.base(*self._names), name, only)


def unlink(folder: int, name: str, only: os.stat_result | None = None) -> bool:
    """Remove a regular file, or `only` this one, from an open folder; returns True if it is gone."""
    with suppress(OSError):
        status = stat_in(folder, name)
        if stat.S_ISREG(status.st_mode) and (only is None or os.path.samestat(status, only)):
            unlink_in(folder, name)
            return True
    return False


def file_mode(tree: Tree) -> int:
    """The mode bits of a new file."""
    rights = tree.status.st_mode if tree.shared and tree.status is not None else 0
    return rights & 0o664 | 0o600


def give_rights(tree: Tree, fd: int, status: os.stat_result) -> None:
    """Give a file or folder that this user made in a shared tree the permissions of its root, despite the umask."""
    if not tree.shared or tree.status is None or status.st_uid != os.geteuid():
        return
    rights = tree.status.st_mode & 0o2775 | 0o700 if stat.S_ISDIR(status.st_mode) else file_mode(tree)
    if status.st_mode & 0o7777 != rights:
        with suppress(OSError):  # a filesystem without permissions
            os.chmod(fd, rights)


@contextmanager
def made(tree: Tree, *names: str) -> Iterator[int]:
    """Open a folder for a context as `Tree.opened`, made with its parents if missing."""
    fd = make_folder(tree, names)
    try:
        yield fd
    finally:
        os.close(fd)


def make_folder(tree: Tree, names: Sequence[str]) -> int:
    """Open a folder, made with its parents if missing; the caller closes the descriptor.

    Raises:
        OSError: The folder cannot be made, or is not trusted.
    """
    with suppress(FileNotFoundError):
        above = tree.base(*names[:1])
        return _made(tree, above, names[1]) if names[1:] else os.dup(above)
    tree.forget()  # it may have been removed while open: not all filesystems report that, but it has no folders
    at = _made_root(tree)
    for name in (*tree.names, *names):
        try:
            below = _made(tree, at, name)
        finally:
            os.close(at)
        at = below
    return at


def _made(tree: Tree, above: int, name: str) -> int:
    """A descriptor of a folder in an open one, made if it is missing."""
    try:
        fd = open_in(above, name, FOLDER)
    except FileNotFoundError:
        with suppress(FileExistsError):
            make_folder_in(above, name, 0o700 if not tree.shared else 0o770)
            if tree.durability == "full":
                os.fsync(above)
        fd = open_in(above, name, FOLDER)
    try:
        if not tree.is_private:
            give_rights(tree, fd, os.fstat(fd))
            tree.require_trusted(os.fstat(fd), name)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _made_root(tree: Tree) -> int:
    """A descriptor of the root, made if it is missing, with a CACHEDIR.TAG for backup programs."""
    root = tree.open_root(makes=True)
    try:
        if not os.listdir(root):  # otherwise it has the tag, or other files, which backups must not skip
            with suppress(FileExistsError):
                tag = open_in(root, "CACHEDIR.TAG", os.O_WRONLY | os.O_CREAT | os.O_EXCL, file_mode(tree))
                try:
                    os.write(tag, _CACHEDIR_TAG)
                finally:
                    os.close(tag)
    except BaseException:
        os.close(root)
        raise
    return root


LOCAL_PARENT = "/var/tmp"
"""Parent of the private directory: it survives reboots and is on a local disk."""


def local_directory(purpose: str) -> str:
    """Make a directory on a local disk that only this user can use, and return its path.

    Args:
        purpose: Text that names the directory, by its digest.

    Raises:
        OSError: It cannot be made, or is not trusted.
    """
    name = sha256(purpose.encode("utf-8", "surrogateescape")).hexdigest()[:12]
    path = f"{LOCAL_PARENT}/numba_kcache-{os.geteuid()}/{name}"
    os.close(Tree(path).open_root(makes=True))
    return path


def words_of(error: OSError, directory: str) -> str:
    """The reason why a directory cannot be used, with the name of the file or folder in it that the system refused."""
    name = error.filename if isinstance(error.filename, str) else ""
    why = why_of(error)
    return f"{why} ({name})" if name not in ("", directory) else why


def unwritable(tree: Tree) -> str:
    """The reason why a tree cannot be written to now; "" if it can. Leaves no file behind."""
    try:
        if is_writable(tree.base()):
            return ""
    except FileNotFoundError:
        existing = tree.root
        while not os.path.lexists(existing):
            existing = os.path.dirname(existing)
        probe = os.path.join(existing, f".numba_kcache-{os.getpid()}-{os.urandom(4).hex()}")
        try:  # a filesystem such as /proc may refuse what access(2) allows
            os.mkdir(probe, 0o700)
            os.rmdir(probe)
        except OSError as error:
            return f"{existing} cannot be written to: {error.strerror}"
        return ""
    except OSError as error:
        return why_of(error)
    return f"{tree.root} cannot be written to"
