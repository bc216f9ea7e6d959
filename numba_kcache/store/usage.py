"""How much a tree holds, known without walking it.

Promise     Each change costs one small append; the sum is right but for changes whose writer was killed
            between its file and its record, until the next walk sets it right.
Method      One file of fixed records (bytes, entries, time), appended with O_APPEND, which the kernel makes
            atomic on a local filesystem. The first record holds what a walk counted, and when; a walk
            replaces the file. A torn record at the end is passed over.
Not here    Deciding when to walk (store.eviction).
"""

from __future__ import annotations

import os
from struct import Struct

from .publish import publish
from .report import Usage

_RECORD = Struct("<qqq")  # bytes, entries, and in the first record the time of the walk, in seconds
MANY_RECORDS = 4096
"""From so many records on, reading the sum is worth a walk."""

_MAX_BYTES = 4 * MANY_RECORDS * _RECORD.size
_APPEND = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class UsageFile:
    """The file at `path`."""

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    def add(self, size_bytes: int, entries: int) -> Usage:
        """Record a change and return the sum.

        Raises:
            OSError: It cannot be written or read.
        """
        fd = os.open(self._path, _APPEND, 0o666)
        try:
            os.write(fd, _RECORD.pack(size_bytes, entries, 0))
            return _sum(os.pread(fd, _MAX_BYTES, 0))
        finally:
            os.close(fd)

    def read(self) -> Usage | None:
        """The sum; None where nothing was ever recorded.

        Raises:
            OSError: It is there and cannot be read.
        """
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        try:
            return _sum(os.read(fd, _MAX_BYTES))
        finally:
            os.close(fd)

    def begin(self, walked_s: int) -> None:
        """Begin with nothing, in a tree that was just made; one that is there is left.

        Raises:
            OSError: It cannot be written.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fd = os.open(self._path, flags, 0o666)
        except FileExistsError:
            return
        try:
            os.write(fd, _RECORD.pack(0, 0, walked_s))
        finally:
            os.close(fd)

    def replace(self, size_bytes: int, entries: int, walked_s: int, *, private: str) -> None:
        """Begin anew with what a walk has counted.

        Raises:
            OSError: It cannot be written.
        """
        record = _RECORD.pack(size_bytes, entries, walked_s)
        publish(record, self._path, private=private, durability="none", time_ns=walked_s * 10**9)


def _sum(data: bytes) -> Usage:
    size_bytes = entries = walked_s = 0
    whole = len(data) - len(data) % _RECORD.size
    for size, number, when in _RECORD.iter_unpack(data[:whole]):
        size_bytes += size
        entries += number
        walked_s = walked_s or when
    return Usage(max(0, size_bytes), max(0, entries), walked_s, whole // _RECORD.size)
