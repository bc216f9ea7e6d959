"""The directory of the private store, which stands in for one that cannot be used, or before one on a network.

Promise     It belongs to this user alone, on a disk of this machine, else in memory.
Ground      Known attacks on caches in predictable directories of /tmp; so the private one is made and then
            looked at without following links, and used only if it is a directory, ours, and closed to others.
"""

from __future__ import annotations

import os
from contextlib import suppress

from .tree import refusal

LOCAL_PARENT = "/var/tmp"
"""Parent of the private directory: kept over reboots, and local on every machine."""


def private_directory() -> str | None:
    """A directory of this user alone on a local disk, made if need be; None where there is none to be had."""
    import tempfile

    name = f"numba_kcache-{os.geteuid()}"
    for parent in (LOCAL_PARENT, tempfile.gettempdir()):
        path = f"{parent}/{name}"
        try:
            with suppress(FileExistsError):
                os.mkdir(path, 0o700)
            status = os.lstat(path)
            if refusal(path, status, shared=False) is None and os.access(path, os.W_OK | os.X_OK):
                return path
        except OSError:
            continue
    return None
