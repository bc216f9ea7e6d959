"""Tell a file that is still the one that was read, by its stat where that can be trusted.

Promise     A file with an equal `FileStat` holds the bytes it held then, if `is_settled` was true then.
Method      Size, mtime, ctime, device and inode. The kernel sets ctime at every change of content or name, so
            a restored mtime does not deceive it. Two changes within one tick of the file system's clock have
            the same ctime: a stat is settled only once ctime is two seconds old. Where another host can write
            (network file systems) or ctime is not the kernel's, no stat is settled and contents are compared.
Ground      stat(2); ccache, "inodecache.hpp", for the two seconds.
"""

from __future__ import annotations

import functools
import os
import stat as modes
from typing import NamedTuple

from ..keys import sha256

SETTLED_AFTER_NS = 2_000_000_000
"""The coarsest clock of a local file system that is still in use (FAT, 2 s)."""

CLOCKS_APART_NS = 120_000_000_000
"""Distance of the clock of a file server from ours, at most."""

MAX_HEADER_BYTES = 64 << 20

_READ = os.O_RDONLY
for _flag in ("O_CLOEXEC", "O_NONBLOCK", "O_BINARY"):  # a FIFO must not hold us; no system has them all
    _READ |= getattr(os, _flag, 0)

_LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "tmpfs", "zfs", "f2fs", "bcachefs", "overlay", "ramfs"})


class FileStat(NamedTuple):
    """The values that tell two states of a file apart without reading it."""

    size: int
    mtime_ns: int
    ctime_ns: int
    device: int
    inode: int


class Unsteady(OSError):
    """The file changed while it was read."""


def stat_of(found: os.stat_result) -> FileStat:
    """Take the part of a stat that is compared."""
    return FileStat(found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_dev, found.st_ino)


def read_steady(path: str) -> tuple[FileStat, bytes]:
    """Read a regular file, and a stat that was the same before and after reading them.

    Raises:
        OSError: It cannot be read, is no regular file, or is larger than any header.
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
    """Name a content by 64 hexadecimal digits."""
    return sha256(data).hexdigest()


def is_settled(stat: FileStat, path: str, now_ns: int) -> bool:
    """Tell if an equal stat, seen at any later time, will mean equal content. `now_ns` is when `stat` was taken."""
    return stat.ctime_ns + SETTLED_AFTER_NS <= now_ns and _is_local(os.path.dirname(path))


def is_older(ctime_ns: int, path: str, time_ns: int) -> bool:
    """Tell if something with this ctime has certainly not changed since `time_ns`."""
    slack_ns = SETTLED_AFTER_NS if _is_local(os.path.dirname(path)) else CLOCKS_APART_NS
    return ctime_ns + slack_ns <= time_ns


@functools.lru_cache(maxsize=1024)
def _is_local(folder: str) -> bool:
    real = os.path.realpath(folder)
    kinds = _mounts()
    while real not in kinds and real != "/":
        real = os.path.dirname(real)
    return kinds.get(real, "") in _LOCAL


@functools.cache
def _mounts() -> dict[str, str]:
    """The kind of file system at each mount point; empty where the platform does not say."""
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
