"""How much a tree holds, known without walking it.

Promise     Each change costs one small append. The sum is right but for changes whose writer was killed
            between its file and its record, and what was added during a walk may be counted twice; the next
            walk sets both right. Counting too much is harmless: it only brings that walk forward.
Method      One file of fixed records (bytes, entries, time), appended with O_APPEND, which the kernel makes
            atomic on a local filesystem. A walk appends the difference between what it has counted and the
            sum that was there before it, so that no addition of others is lost. The next append fills a torn record
            up so that it is passed over, and those after it are in their places.
Not here    Deciding when to walk (store.disk).
"""

from __future__ import annotations

import os
from struct import Struct

from .publish import publish
from .report import Usage
from .system import CLOEXEC, NOFOLLOW, NONBLOCK

_RECORD = Struct("<qqq")  # bytes, entries, and in records of a walk its time, in seconds
MANY_RECORDS = 4096
"""From so many records on, the file is shortened by the next walk."""

_MOST_BYTES, _MOST_ENTRIES, _LAST_S = 1 << 48, 1 << 32, 1 << 40
"""What no change amounts to: a record that says more is damage, and passed over."""

_FILL = b"\x7f" * _RECORD.size
"""What the rest of a torn record is filled with: wherever it was torn, it then says too much."""

_READ_BYTES = 1024 * _RECORD.size
_APPEND = os.O_RDWR | os.O_APPEND | os.O_CREAT | NOFOLLOW | CLOEXEC | NONBLOCK


class UsageFile:
    """The file at `path`; of a file that it has read before it reads only what is new."""

    __slots__ = ("_path", "_seen")

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen = 0, Usage(0, 0, 0, 0)  # inode, and the sum of the records that were read from it

    def add(self, size_bytes: int, entries: int) -> Usage:
        """Record a change and return the sum.

        Raises:
            OSError: It cannot be written or read.
        """
        return self._append(_RECORD.pack(size_bytes, entries, 0))

    def correct(self, before: Usage | None, size_bytes: int, entries: int, walked_s: int) -> Usage:
        """Record what a walk has counted, as its difference to the sum that was read before the walk.

        Raises:
            OSError: It cannot be written or read.
        """
        then = before or Usage(0, 0, 0, 0)
        return self._append(_RECORD.pack(size_bytes - then.size_bytes, entries - then.entries, walked_s))

    def read(self) -> Usage | None:
        """The sum; None where nothing was ever recorded.

        Raises:
            OSError: It is there and cannot be read.
        """
        try:
            fd = os.open(self._path, os.O_RDONLY | NOFOLLOW | CLOEXEC | NONBLOCK)
        except FileNotFoundError:
            return None
        try:
            return self._sum(fd)
        finally:
            os.close(fd)

    def begin(self, walked_s: int) -> None:
        """Begin with nothing, in a tree that was just made; one that is there is left.

        Raises:
            OSError: It cannot be written.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NOFOLLOW | CLOEXEC
        try:
            fd = os.open(self._path, flags, 0o666)
        except FileExistsError:
            return
        try:
            os.write(fd, _RECORD.pack(0, 0, walked_s))
        finally:
            os.close(fd)

    def shorten(self, private: str) -> None:
        """Replace many records by their sum. What others add in that moment is lost until the next walk.

        Raises:
            OSError: It cannot be written.
        """
        usage = self.read()
        if usage is not None and usage.records > MANY_RECORDS:
            record = _RECORD.pack(*usage[:3])
            publish(record, self._path, private=private, durability="none", time_ns=usage.walked_s * 10**9)

    def _append(self, record: bytes) -> Usage:
        fd = os.open(self._path, _APPEND, 0o666)
        try:
            torn = os.fstat(fd).st_size % _RECORD.size
            os.write(fd, _FILL[torn:] + record if torn else record)
            return self._sum(fd)
        finally:
            os.close(fd)

    def _sum(self, fd: int) -> Usage:
        inode, (size_bytes, entries, walked_s, records) = self._seen
        status = os.fstat(fd)
        if status.st_ino != inode or status.st_size < records * _RECORD.size:
            size_bytes = entries = walked_s = records = 0
        while True:
            data = os.pread(fd, _READ_BYTES, records * _RECORD.size)
            whole = len(data) - len(data) % _RECORD.size
            for size, number, when in _RECORD.iter_unpack(data[:whole]):
                if abs(size) > _MOST_BYTES or abs(number) > _MOST_ENTRIES or not 0 <= when <= _LAST_S:
                    continue
                size_bytes += size
                entries += number
                walked_s = when or walked_s
            records += whole // _RECORD.size
            if whole < _READ_BYTES:
                break
        usage = Usage(size_bytes, entries, walked_s, records)
        self._seen = status.st_ino, usage
        return usage
