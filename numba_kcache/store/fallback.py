"""The private store: a directory below /var/tmp that replaces an unusable store, or caches one on a network.

Promise     The directory belongs only to this user and is on a local disk, or it is not used. Each store directory that
            needs a private store has one of its own.
Source      Caches at predictable paths of /tmp have been attacked; so the directory is made, examined without
            following links, and used only if it is a directory of this user that is closed to others.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..keys import sha256
from . import CLOEXEC, DIRECTORY, make_folder_in
from .tree import FOLDER, Refused, Tree, refusal

if TYPE_CHECKING:  # disk imports this module
    from .disk import DiskStore
    from .memory import MemoryStore

LOCAL_PARENT = "/var/tmp"
"""Parent of the private directory: it survives reboots and is on a local disk."""

_DIGITS = 12
_PARENT = getattr(os, "O_PATH", os.O_RDONLY) | DIRECTORY | CLOEXEC


def private_directory(directory: str) -> tuple[str | None, str]:
    """Make a directory on a local disk that only this user can use.

    Args:
        directory: The store directory that the new one replaces or caches; "" if there is none.

    Returns:
        The path of the new directory, or None if there is no place for one; and the places that failed, with reasons.
    """
    tried: list[str] = []
    names = [f"numba_kcache-{os.geteuid()}"]
    if directory:
        names.append(sha256(directory.encode("utf-8", "surrogateescape")).hexdigest()[:_DIGITS])
    for parent in dict.fromkeys((LOCAL_PARENT, _temporary())):
        if not parent:
            tried.append("there is no temporary directory")
            continue
        path, at = parent, -1
        try:
            at = os.open(parent, _PARENT)
            for each in names:
                exposed, path = path, f"{path}/{each}"
                at = _made(at, each, path, exposed)
            return path, ", ".join(tried)
        except OSError as error:
            tried.append(f"{path}: {error.strerror or error}")
        finally:
            if at >= 0:
                os.close(at)
    return None, ", ".join(tried)


def _made(parent: int, name: str, path: str, exposed: str) -> int:
    """Open a directory that only this user can use, made if need be, and close its parent's descriptor.

    Raises:
        OSError: The directory cannot be made, written to, or trusted; the parent stays open.
    """
    with suppress(FileExistsError):
        make_folder_in(parent, name, 0o700)
    at = os.open(name, FOLDER, dir_fd=parent)
    try:
        reason = refusal(path, os.fstat(at), shared=False, exposed=exposed)
        if reason is not None:
            raise Refused(reason)
        if not os.access(".", os.W_OK | os.X_OK, dir_fd=at):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except BaseException:
        os.close(at)
        raise
    os.close(parent)
    return at


def private_store(
    directory: str, limits: dict[str, Any], more: dict[str, Any], *, in_memory: bool
) -> tuple[DiskStore | MemoryStore, str]:
    """Make the private store of a directory. Returns the store, and its place in words."""
    from .disk import DiskStore
    from .memory import MemoryStore

    path, tried = (None, "") if in_memory else private_directory(directory)
    place = where(path, tried)
    if path is None or path == directory:
        return MemoryStore(**limits), place
    return DiskStore(path, stands_in=True, **limits, **more), place


def where(path: str | None, tried: str) -> str:
    """Say in words where entries are kept, with the places that failed."""
    return path or (f"memory only (tried {tried})" if tried else "memory only")


def words_of(reason: object, directory: str) -> str:
    """The reason why a directory cannot be used, with the name of the file or folder in it that the system refused."""
    if not isinstance(reason, OSError) or not reason.strerror:
        return f"{reason}"
    name = reason.filename if isinstance(reason.filename, str) else ""
    return f"{reason.strerror} ({name})" if name not in ("", directory) else reason.strerror


def unwritable(tree: Tree) -> str:
    """The reason why a tree cannot be written to now; "" if it can. Leaves no file behind."""
    try:
        if os.access(".", os.W_OK | os.X_OK, dir_fd=tree.base()):
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
        return error.strerror or str(error)
    return f"{tree.root} cannot be written to"


def _temporary() -> str:
    import tempfile

    try:
        return tempfile.gettempdir()
    except OSError:
        return ""
