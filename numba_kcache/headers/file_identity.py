"""Recognise an unchanged file by its stat, if that is reliable, and digest its content otherwise.

Promise     A file with an equal `FileStat` has the content it had then, if `is_settled` was true then.
Method      Size, mtime, ctime, device and inode. The kernel sets ctime at every change of content or name, so a
            restored mtime does not deceive it. But two changes within one tick of the file system's clock have the same
            ctime, and a process that writes through a shared mapping does not set ctime at each write. So a file is
            settled once it is older than any dirty page, and a folder, which has no writers, after two seconds. Where
            another host can write (network file systems) or the kernel does not set ctime, no stat is settled and
            contents are compared.
Source      stat(2); ccache, "inodecache.hpp", for the two seconds. On tmpfs a write through a mapping does not set
            ctime once the page was read (seen on Linux 6.18); elsewhere it does, once the page was written back.
"""

from __future__ import annotations

import functools
import os
import stat as modes
from collections.abc import Sequence

from ..keys import sha256
from ..model import NamedTuple
from ..store import filesystem_of

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


class Unsteady(OSError):
    """The file changed while it was read."""


def stat_of(found: os.stat_result) -> FileStat:
    """The fields of a stat that are compared."""
    fields = found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_dev, found.st_ino
    return tuple.__new__(FileStat, fields)  # its own constructor takes three times as long


def read_steady(path: str) -> tuple[FileStat, bytes]:
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
        data = b""
        while chunk := os.read(handle, before.st_size + 1 - len(data)):
            data += chunk
        now = stat_of(os.fstat(handle))
        if now != stat_of(before) or len(data) != now.size:
            raise Unsteady("it changed while it was read")
        return now, data
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


def is_settled(stat: FileStat, now_ns: int, *, is_folder: bool = False) -> bool:
    """Check whether an equal stat at any later time implies equal content.

    Args:
        stat: The stat of a file or folder.
        now_ns: The time before it was read.
        is_folder: Whether it is a folder.
    """
    settled_ns = stat.ctime_ns + (SETTLED_AFTER_NS if is_folder else WRITTEN_BACK_AFTER_NS)
    return settled_ns <= now_ns and _kind(stat.device) in _LOCAL


def is_settled_without(names: Sequence[str], stat: FileStat, folder: str, now_ns: int) -> bool:
    """Check whether an equal stat of a folder at any later time implies that there is nothing at these names in it.

    It does not for the name of a link that leads nowhere, or of a file that may not be read: what these lead to can
    change while their folder does not.
    """
    return is_settled(stat, now_ns, is_folder=True) and not any(
        os.path.lexists(os.path.join(folder, each)) for each in names
    )


_kind = functools.cache(filesystem_of)
"""The type of the filesystem on a device, as at the first call for it."""
