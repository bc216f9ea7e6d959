"""The private store: in place of a directory that cannot be used, in front of one on a network filesystem.

Promise     It belongs to this user alone, on a disk of this machine, else in memory.
Ground      Known attacks on caches in predictable directories of /tmp; so the private one is made and then
            looked at without following links, and used only if it is a directory, ours, and closed to others.
"""

from __future__ import annotations

import os
from typing import Any

from ..model import Emit
from .disk import DiskStore
from .memory import MemoryStore
from .publish import Durability
from .tree import refusal

LOCAL_PARENT = "/var/tmp"
"""Parent of the private directory: kept over reboots, and local on every machine."""


def private_store(
    directory: str, *, readonly: bool, durability: Durability, emit: Emit, **limits: Any
) -> DiskStore | MemoryStore:
    """The private store beside that of `directory`, with its options; in memory where nothing is to be written."""
    path = None if readonly else private_directory()
    if path is None or path == directory:
        return MemoryStore(**limits)
    return DiskStore(path, durability=durability, emit=emit, **limits)


def private_directory() -> str | None:
    """A directory of this user alone on a local disk, made if need be; None where there is none to be had."""
    import tempfile

    name = f"numba_kcache-{os.geteuid()}"
    for parent in (LOCAL_PARENT, tempfile.gettempdir()):
        path = f"{parent}/{name}"
        try:
            try:
                os.mkdir(path, 0o700)
            except FileExistsError:
                pass
            status = os.lstat(path)
            if refusal(path, status, shared=False) is None and os.access(path, os.W_OK | os.X_OK):
                return path
        except OSError:
            continue
    return None
