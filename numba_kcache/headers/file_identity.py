"""Recognise an unchanged file by its stat, if that is reliable, and digest its content otherwise.

Promise     A file with an equal `FileStat` has the content it had then, if `is_settled` was true then.
Method      Size, mtime, ctime, device and inode. The kernel sets ctime at every change of content or name, so a
            restored mtime does not deceive it. Two changes within one tick of the file system's clock have the same
            ctime: a stat is settled only once ctime is two seconds old. A process that writes through a shared mapping
            does not set ctime at each write. So before a file is read, a read lease is taken and released; the kernel
            refuses the lease if the file is open or mapped for writing, and then the stat is not settled. Where leases
            are not available, the file has to be older than any dirty page. Where another host can write (network file
            systems) or the kernel does not set ctime, no stat is settled and contents are compared.
Source      stat(2), fcntl(2) "Leases"; ccache, "inodecache.hpp", for the two seconds. On tmpfs a write through a
            mapping does not set ctime once the page was read (seen on Linux 6.18); elsewhere it does, once the page was
            written back.
"""

from __future__ import annotations

import functools
import os
import stat as modes
from collections.abc import Sequence

from ..keys import sha256
from ..model import NamedTuple

SETTLED_AFTER_NS = 2_000_000_000
"""Time resolution of the coarsest local file system still in use (FAT, 2 s), in nanoseconds."""

WRITTEN_BACK_AFTER_NS = 90_000_000_000
"""Age by which the kernel has written a dirty page back: 30 s (dirty_expire_centisecs), rounds of 5 s, and a margin."""

MAX_HEADER_BYTES = 64 << 20

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO must not block

_LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "overlay"})


class FileStat(NamedTuple):
    """The fields of a stat by which two states of a file are distinguished without reading it."""

    size: int
    mtime_ns: int
    ctime_ns: int
    device: int
    inode: int


class Reading(NamedTuple):
    """A file's content and stat; the stat was equal before and after reading. `has_writer`: a process had the file open
    or mapped for writing; None if that is unknown."""

    stat: FileStat
    data: bytes
    has_writer: bool | None


class Unsteady(OSError):
    """The file changed while it was read."""


def stat_of(found: os.stat_result) -> FileStat:
    """The fields of a stat that are compared."""
    return FileStat(found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_dev, found.st_ino)


def read_steady(path: str) -> Reading:
    """Read a regular file and its stat, which must be equal before and after.

    Raises:
        OSError: It cannot be read, is not a regular file, or is larger than `MAX_HEADER_BYTES`.
        Unsteady: It changed meanwhile.
    """
    handle = os.open(path, _READ)
    try:
        before = os.fstat(handle)
        if not modes.S_ISREG(before.st_mode) or before.st_size > MAX_HEADER_BYTES:
            raise OSError(f"not a regular file of at most {MAX_HEADER_BYTES} bytes")
        has_writer, data = _has_writer(handle), b""
        while chunk := os.read(handle, before.st_size + 1 - len(data)):
            data += chunk
        now = stat_of(os.fstat(handle))
        if now != stat_of(before) or len(data) != now.size:
            raise Unsteady("it changed while it was read")
        return Reading(now, data, has_writer)
    finally:
        os.close(handle)


def digest(data: bytes) -> str:
    """The sha256 of a content, as 64 hexadecimal digits."""
    global _digested_bytes
    _digested_bytes += len(data)
    if _digested_bytes <= _FOR_OPENSSL_BYTES:
        return sha256(data).hexdigest()
    from hashlib import sha256 as by_openssl

    return by_openssl(data).hexdigest()


_FOR_OPENSSL_BYTES = 1 << 20
"""Bytes whose digests by CPython's own code take longer than loading OpenSSL."""

_digested_bytes = 0


def is_settled(stat: FileStat, path: str, now_ns: int, *, has_writer: bool | None) -> bool:
    """Check whether an equal stat at any later time implies equal content.

    Args:
        stat: The stat of a file, or of a folder, which has no writers.
        path: Its path.
        now_ns: The time before it was read.
        has_writer: As in `Reading`.
    """
    if stat.ctime_ns + SETTLED_AFTER_NS > now_ns:
        return False
    kind = _kind(path, stat.device)
    # an overlay does not report writers of a file in its lower layer
    is_written = has_writer is False and kind != "overlay"
    return kind in _LOCAL and (is_written or stat.ctime_ns + WRITTEN_BACK_AFTER_NS <= now_ns)


def is_settled_without(names: Sequence[str], stat: FileStat, folder: str, now_ns: int) -> bool:
    """Check whether an equal stat of a folder at any later time implies that there is nothing at these names in it.

    It does not for the name of a link that leads nowhere, or of a file that may not be read: what these lead to can
    change while their folder does not.
    """
    return is_settled(stat, folder, now_ns, has_writer=False) and not any(
        os.path.lexists(os.path.join(folder, each)) for each in names
    )


def _has_writer(handle: int) -> bool | None:
    """Check whether a process has the open file open, or mapped, for writing; None if that cannot be known."""
    try:
        import fcntl
        import signal

        fcntl.fcntl(handle, fcntl.F_SETSIG, signal.SIGURG)  # sent if another process opens it; SIGIO would kill
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False


def _kind(path: str, device: int) -> str:
    """The type of file system that a file is on; "" if the file is on another device than its folder."""
    if os.path.islink(path):
        path = os.path.realpath(path)
    kind, of = _kind_of_folder(os.path.dirname(path))
    return kind if of == device or kind == "overlay" else ""


@functools.lru_cache(maxsize=1024)
def _kind_of_folder(folder: str) -> tuple[str, int]:
    real = os.path.realpath(folder)
    try:
        device = os.stat(real).st_dev
    except OSError:
        return "", -1
    kinds = _mounts()
    while real not in kinds and real != "/":
        real = os.path.dirname(real)
    return kinds.get(real, ""), device


@functools.cache
def _mounts() -> dict[str, str]:
    """The type of file system at each mount point; empty if the platform does not list them."""
    kinds = {}
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                words, _, kind = line.partition(" - ")
                point = words.split(" ")[4]
                kinds[point.encode().decode("unicode_escape") if "\\" in point else point] = kind.split(" ")[0]
    except (OSError, IndexError, ValueError):
        return {}
    return kinds
