"""Open a directory one path component at a time, safe against other users who replace components meanwhile.

Promise     The directory was reached without following a link that another user may have put there. Missing folders on
            the way are made through the descriptor of their parent.
Method      Each component is opened without following links, through the descriptor of the one before. A link is read
            and followed by hand, unless it is where others may write; in a folder with the sticky bit (/tmp) it must
            belong to this user, the superuser or the folder's owner.
Not here    Which owners and modes the directory itself may have (store.tree.refusal).
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

from . import CLOEXEC, DIRECTORY, NOFOLLOW
from .tree import FOLDER, Refused

_PASS = getattr(os, "O_PATH", os.O_RDONLY) | DIRECTORY | NOFOLLOW | CLOEXEC  # a parent may be closed to readers
_MAX_LINKS = 40


def descend(path: str, *, shared: bool, make: bool = False) -> tuple[int, str]:
    """Open a directory.

    Args:
        path: Absolute.
        shared: Trust its owner and its group, also with its parents.
        make: Make missing folders: the last one for its owner alone, or with the umask's permissions if `shared`.

    Returns:
        Its descriptor, which the caller closes, and the first parent in which others may swap names; "" for none.

    Raises:
        Refused: A link is where others may write.
        OSError: It is not there, or is no directory.
    """
    waiting, at, above, links = _parts(path), os.open("/", _PASS), "/", 0
    exposed: list[tuple[str, os.stat_result]] = []
    try:
        while waiting:
            name, parent = waiting.pop(), os.fstat(at)
            if others_may_swap(parent):
                exposed.append((above, parent))
            target = _link(name, at, parent, above)
            if target is not None:
                links += 1
                if links > _MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                waiting += _parts(target)
                if target.startswith("/"):
                    at, above = _next(at, "/", _PASS), "/"
                continue
            flags = _PASS if waiting else FOLDER
            try:
                at = _next(at, name, flags)
            except FileNotFoundError:
                if not make:
                    raise
                with suppress(FileExistsError):  # another was faster
                    os.mkdir(name, 0o777 if waiting or shared else 0o700, dir_fd=at)
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
    """Open a folder in place of the one that it is in, which is closed if that succeeds."""
    below = os.open(name, flags, dir_fd=at)
    os.close(at)
    return below


def _link(name: str, at: int, parent: os.stat_result, above: str) -> str | None:
    """The target of a link that may be followed; None if there is no link.

    Raises:
        Refused: Others may have put it there.
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
