"""The directory of the private store, which stands in for one that cannot be used, or before one on a network.

Promise     It belongs to this user alone, on a disk of this machine, else there is none. Each directory that needs one
            has its own.
Ground      Known attacks on caches in predictable directories of /tmp; so the private one is made and then
            looked at without following links, and used only if it is a directory, ours, and closed to others.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..keys import sha256
from ..model import Emit
from . import CLOEXEC, DIRECTORY
from .tree import FOLDER, Refused, Tree, refusal

if TYPE_CHECKING:  # disk imports this module
    from .disk import DiskStore
    from .memory import MemoryStore
    from .publish import Durability

LOCAL_PARENT = "/var/tmp"
"""Parent of the private directory: kept over reboots, and local on every machine."""

_DIGITS = 12
_PARENT = getattr(os, "O_PATH", os.O_RDONLY) | DIRECTORY | CLOEXEC


def private_directory(directory: str) -> tuple[str | None, str]:
    """A directory of this user alone on a local disk, made if need be.

    Args:
        directory: In place of which, or before which, it is used; "" where there is none.

    Returns:
        Its path, and what was tried in vain; None where there is none to be had.
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
    """Open a directory of this user alone, made if need be, in place of its parent, which is closed.

    Raises:
        OSError: It cannot be made, written to, or trusted; the parent is open then.
    """
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent)
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
    directory: str, limits: dict[str, Any], durability: Durability, emit: Emit, *, in_memory: bool
) -> tuple[DiskStore | MemoryStore, str]:
    """The store that stands in for that of a directory, or before it, and where it is, in words."""
    from .disk import DiskStore
    from .memory import MemoryStore

    path, tried = (None, "") if in_memory else private_directory(directory)
    place = where(path, tried)
    if path is None or path == directory:
        return MemoryStore(**limits), place
    return DiskStore(path, durability=durability, emit=emit, stands_in=True, **limits), place


def where(path: str | None, tried: str) -> str:
    """The place of what is kept, in words, with what was tried in vain."""
    return path or (f"memory only (tried {tried})" if tried else "memory only")


def words_of(reason: object, directory: str) -> str:
    """The reason for which a directory cannot be used: the system's, with the name of what in it is concerned."""
    if not isinstance(reason, OSError) or not reason.strerror:
        return f"{reason}"
    name = reason.filename if isinstance(reason.filename, str) else ""
    return f"{reason.strerror} ({name})" if name not in ("", directory) else reason.strerror


def unwritable(tree: Tree) -> str:
    """The reason for which nothing could be written to a tree now; "" where there is none. Leaves nothing behind."""
    try:
        if os.access(".", os.W_OK | os.X_OK, dir_fd=tree.base()):
            return ""
    except FileNotFoundError:
        there = tree.root
        while not os.path.lexists(there):
            there = os.path.dirname(there)
        probe = os.path.join(there, f".numba_kcache-{os.getpid()}-{os.urandom(4).hex()}")
        try:  # what access(2) allows, a filesystem such as /proc may still refuse
            os.mkdir(probe, 0o700)
            os.rmdir(probe)
        except OSError as error:
            return f"{there} cannot be written to: {error.strerror}"
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
