"""Open a directory one path component at a time, safe against other users who replace components meanwhile.

Promise     The directory was reached without following a link that another user may have put there. Missing folders on
            the way are made through the descriptor of their parent.
Method      Each component is opened without following links, through the descriptor of the one before. A link is read
            and followed by this module, unless it is in a folder that others can write to; in a folder with the sticky
            bit (/tmp) it must belong to this user, the superuser or the folder's owner.
Not here    Which owners and modes the directory itself may have (store.tree.refusal).
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

from . import CLOEXEC, DIRECTORY, NOFOLLOW, make_folder_in
from .folders import file_mode
from .tree import FOLDER, Refused, Tree

_PARENT = getattr(os, "O_PATH", os.O_RDONLY) | DIRECTORY | NOFOLLOW | CLOEXEC  # O_PATH needs no read permission
_MAX_LINKS = 40
_CACHEDIR_TAG = (
    b"Signature: 8a477f597d28d172789f06886806bc55\n"
    b"# This file marks a directory that numba_kcache can make again (https://bford.info/cachedir/).\n"
)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NOFOLLOW | CLOEXEC


def descend(path: str, *, shared: bool, make: bool = False) -> tuple[int, str]:
    """Open a directory.

    Args:
        path: Absolute path.
        shared: Trust the directory's owner and group, also where they can write to its parents.
        make: Make missing folders: the last one for its owner alone or, if `shared`, with what the umask permits.

    Returns:
        The directory's descriptor, which the caller closes, and the first parent in which users who are not trusted may
        rename entries; "" for none.

    Raises:
        Refused: A link is in a folder that others can write to.
        OSError: The path does not exist, or is not a directory.
    """
    remaining, at, above, links = _parts(path), os.open("/", _PARENT), "/", 0
    exposed: list[tuple[str, os.stat_result]] = []
    try:
        while remaining:
            name, parent = remaining.pop(), os.fstat(at)
            if others_may_swap(parent):
                exposed.append((above, parent))
            target = _link(name, at, parent, above)
            if target is not None:
                links += 1
                if links > _MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                remaining += _parts(target)
                if target.startswith("/"):
                    at, above = _next(at, "/", _PARENT), "/"
                continue
            flags = _PARENT if remaining else FOLDER
            try:
                at = _next(at, name, flags)
            except FileNotFoundError:
                if not make:
                    raise
                with suppress(FileExistsError):  # another process was faster
                    make_folder_in(at, name, 0o777 if remaining or shared else 0o700)
                at = _next(at, name, flags)
            above = os.path.join(above, name)
        status = os.fstat(at)
    except BaseException:
        os.close(at)
        raise
    for name, parent in exposed:
        is_trusted = parent.st_uid in (0, os.geteuid(), status.st_uid) and not parent.st_mode & 0o002
        if not (shared and is_trusted and parent.st_gid == status.st_gid):
            return at, name
    return at, ""


def others_may_swap(folder: os.stat_result) -> bool:
    """Check whether anybody but the superuser and this user may create, remove and rename files in a folder."""
    mode = folder.st_mode
    return folder.st_uid not in (0, os.geteuid()) or bool(mode & 0o022 and not mode & stat.S_ISVTX)


def _parts(path: str) -> list[str]:
    """The components of a path, the first one last."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _next(at: int, name: str, flags: int) -> int:
    """Open the folder `name` in the folder `at`, and close `at` if that succeeds."""
    below = os.open(name, flags, dir_fd=at)
    os.close(at)
    return below


def _link(name: str, at: int, parent: os.stat_result, above: str) -> str | None:
    """The target of a link that may be followed; None if there is no link.

    Raises:
        Refused: Another user may have put the link there.
    """
    try:
        status = os.stat(name, dir_fd=at, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISLNK(status.st_mode):
        return None
    is_sticky = parent.st_mode & 0o022 and parent.st_mode & stat.S_ISVTX
    if others_may_swap(parent) or (is_sticky and status.st_uid not in (0, os.geteuid(), parent.st_uid)):
        raise Refused(f"{os.path.join(above, name)} is a link, and others can write to {above}")
    return os.readlink(name, dir_fd=at)


def make_root(tree: Tree) -> int:
    """Make the root if it is missing, with a CACHEDIR.TAG for backup programs, and return a descriptor of it.

    Raises:
        OSError: The folder cannot be made, or is not trusted.
    """
    try:
        root = tree.open_root()
    except FileNotFoundError:
        os.close(descend(tree.root, shared=tree.shared, make=True)[0])
        root = tree.open_root()
    try:
        if not os.listdir(root):  # otherwise it has the tag, or other files, which backups must not skip
            with suppress(FileExistsError):
                tag = os.open("CACHEDIR.TAG", _CREATE, file_mode(tree), dir_fd=root)
                try:
                    os.write(tag, _CACHEDIR_TAG)
                finally:
                    os.close(tag)
    except BaseException:
        os.close(root)
        raise
    return root
