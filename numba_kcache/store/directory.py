"""Which directory a store may use: who may write to it, what filesystem it is on, and where to go instead.

Promise     A directory that another user owns or may write to is refused unless it was shared on purpose:
            what is in it becomes code on the GPU. Looking never writes.
Method      One stat of the root. The tree below it is made 0700 by the first that stores something.
Not here    The default directory (settings) and what to do with a refusal (store.disk).
Ground      Known attacks on caches in predictable directories of /tmp; so the private one is made and then
            looked at without following links, and used only if it is a directory, ours, and closed to others.
"""

from __future__ import annotations

import os
import stat

from .entry import FORMAT
from .system import CLOEXEC

_CACHEDIR_TAG = (
    b"Signature: 8a477f597d28d172789f06886806bc55\n"
    b"# This file marks a directory that numba_kcache can make again (https://bford.info/cachedir/).\n"
)
_NETWORK = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "lustre",
    "gpfs",
    "beegfs",
    "ceph",
    "afs",
    "9p",
    "panfs",
    "wekafs",
)


def refusal(path: str, status: os.stat_result, *, shared: bool) -> str | None:
    """Why what `status` describes must not be used as a store; None if it may be."""
    if not stat.S_ISDIR(status.st_mode):
        return f"{path} is not a directory"
    if shared:
        return None
    if status.st_uid != os.geteuid():
        return f"{path} belongs to user {status.st_uid}; set shared=True to trust it"
    if status.st_mode & 0o022:
        mode = f"{status.st_mode & 0o777:o}"
        return f"{path} can be written by others (mode {mode}); chmod 700 it or set shared=True"
    return None


def make_root(path: str, *, shared: bool) -> None:
    """Make `path` with its parents, and tag it for backup programs as something that can be made again.

    Raises:
        OSError: It cannot be made.
    """
    mode = 0o777 if shared else 0o700
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        if os.listdir(path):
            return  # tagged already, or it holds other things as well, which backups must not pass over
    try:
        fd = os.open(f"{path}/CACHEDIR.TAG", os.O_WRONLY | os.O_CREAT | os.O_EXCL | CLOEXEC, mode & 0o666)
    except FileExistsError:
        return
    try:
        os.write(fd, _CACHEDIR_TAG)
    finally:
        os.close(fd)


LOCAL_PARENT = "/var/tmp"
"""Where the private directory goes: kept over reboots, and local on every machine."""


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


def is_network(path: str, status: os.stat_result) -> bool:
    """Whether `path`, whose stat is `status`, is on a filesystem shared with other machines."""
    if os.major(status.st_dev) != 0:
        return False  # a block device; only the others are worth reading the list of mounts
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
            return is_network_mount(mounts.read(), os.path.realpath(path))
    except OSError:
        return False


def is_network_mount(mountinfo: str, path: str) -> bool:
    """Whether the absolute `path` is on a network mount, by the text of /proc/self/mountinfo."""
    found = False
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")[0]
        if len(fields) < 5:
            continue
        point = fields[4]
        if "\\" in point:  # a space is written as \040
            point = point.encode("utf-8", "surrogateescape").decode("unicode_escape")
        if path == point or path.startswith(point.rstrip("/") + "/"):
            found = kind in _NETWORK or kind.startswith("fuse.")  # the later mount lies over the earlier
    return found


def format_directory(root: str) -> str:
    """The directory below `root` that holds files of this format."""
    return f"{root}/v{FORMAT}"
