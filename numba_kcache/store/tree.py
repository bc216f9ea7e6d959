"""One directory tree of entries and manifests: where each file is, and how it is read, written and walked.

Promise     No file outside the tree is touched, no link inside it is followed, and nothing that is not a
            regular file is read. Raises OSError and DamagedEntry; what these mean is for store.disk to say.
Method      <root>/v1/{entries,manifests}/<2 digits>/<62 digits>: 256 directories each, so that 100,000 files
            are 390 to a directory and a miss is one failed open. Modification times are recency, written
            explicitly and at most hourly: atime may be off or touched by others.
Not here    Limits (store.eviction), locks (store.locks), events (store.disk).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

from .directory import format_directory, make_root
from .entry import (
    ENTRY,
    MANIFEST,
    MAX_FILE_BYTES,
    DamagedEntry,
)
from .publish import Durability, publish, sync_directory
from .system import CLOEXEC, NOFOLLOW, NONBLOCK

RECENCY_NS = 3600 * 10**9
"""How old a file's recency must be before a hit renews it."""

MAX_QUARANTINED = 20
"""Damaged files that are kept to be looked at."""

_READ = os.O_RDONLY | NOFOLLOW | CLOEXEC | NONBLOCK  # a FIFO must not hold the reader
_FOLDERS = {ENTRY: "entries", MANIFEST: "manifests"}
_SHARDS = tuple(f"{number:02x}" for number in range(256))


class Found(NamedTuple):
    """A file met on a walk."""

    kind: int
    key: str
    path: str
    size_bytes: int
    used_ns: int


class Tree:
    """The tree below one root."""

    __slots__ = (
        "base",
        "entries",
        "locks",
        "manifests",
        "private",
        "quarantine",
        "root",
        "shared",
        "statistics",
    )

    def __init__(self, root: str, *, shared: bool = False) -> None:
        self.root, self.shared = root, shared
        self.base = format_directory(root)
        self.entries, self.manifests = f"{self.base}/entries", f"{self.base}/manifests"
        self.private, self.locks = f"{self.base}/tmp", f"{self.base}/locks"
        self.quarantine, self.statistics = f"{self.base}/quarantine", f"{self.base}/statistics"

    def path(self, kind: int, key: str) -> str:
        """Where the file of `key` is."""
        return f"{self.entries if kind == ENTRY else self.manifests}/{key[:2]}/{key[2:]}"

    def read(self, path: str, now_ns: int | None, refresh_ns: int = RECENCY_NS) -> bytes:
        """The bytes of a file, which is marked as used if the mark is older than `refresh_ns`.

        Raises:
            OSError: It cannot be read.
            DamagedEntry: It is not a regular file of a size that can be one of ours.
        """
        fd = os.open(path, _READ)
        try:
            status = os.fstat(fd)
            size = status.st_size
            if not stat.S_ISREG(status.st_mode) or size > MAX_FILE_BYTES:
                raise DamagedEntry(f"not a regular file, or too large: {size} bytes")
            data = os.read(fd, size + 1)
            while len(data) < size:  # a network filesystem may hand it over in parts
                more = os.read(fd, size + 1 - len(data))
                if not more:
                    break
                data += more
            if now_ns is not None and abs(now_ns - status.st_mtime_ns) > refresh_ns:
                try:
                    os.utime(fd, ns=(now_ns, now_ns))
                except OSError:
                    pass  # not ours, or read-only: recency is a wish
            return data
        finally:
            os.close(fd)

    def write(self, kind: int, key: str, data: bytes, *, durability: Durability, time_ns: int) -> None:
        """Publish a file, making the directories that it needs.

        Raises:
            OSError: It was not published.
        """
        target = self.path(kind, key)
        folder = os.path.dirname(target)
        mode = 0o666 if self.shared else 0o600
        if not os.path.isdir(folder):  # the first file here: a publish would find that out after it has synced
            self.make(folder, durability)
        for last in (False, True):
            try:
                publish(data, target, private=self.private, durability=durability, time_ns=time_ns, mode=mode)
                return
            except FileNotFoundError:  # another process removed the directory
                if last:
                    raise
                self.make(folder, durability)

    def make(self, directory: str, durability: Durability = "none") -> bool:
        """Make the tree as far as `directory` needs it; whether it is a new tree.

        Raises:
            OSError: It cannot be made.
        """
        mode = 0o777 if self.shared else 0o700
        make_root(self.root, shared=self.shared)
        parent, is_new = os.path.dirname(directory), False
        for path in (self.base, self.private, parent, directory):
            try:
                os.mkdir(path, mode)
            except FileExistsError:
                continue
            is_new = is_new or path == self.base
            if durability == "full":
                sync_directory(os.path.dirname(path))
        return is_new

    def size_of(self, path: str) -> int | None:
        """Bytes of the file at `path`; None if there is none."""
        try:
            return os.lstat(path).st_size
        except OSError:
            return None

    def walk(self, kind: int) -> Iterator[Found]:
        """Every file of a kind; those that vanish meanwhile are passed over."""
        folder = f"{self.base}/{_FOLDERS[kind]}"
        for shard in _SHARDS:
            try:
                with os.scandir(f"{folder}/{shard}") as names:
                    for name in names:
                        try:
                            status = name.stat(follow_symlinks=False)
                        except OSError:
                            continue
                        yield Found(kind, shard + name.name, name.path, status.st_size, status.st_mtime_ns)
            except OSError:
                continue

    def set_aside(self, path: str) -> bool:
        """Move a damaged file to the quarantine, of which the oldest are dropped; whether it was moved."""
        aside = f"{self.quarantine}/{os.path.basename(path)}.{os.urandom(4).hex()}"
        try:
            os.mkdir(self.quarantine, 0o700)
        except OSError:
            pass
        try:
            os.rename(path, aside)
        except OSError:
            return False
        kept = sorted(self.quarantined(), key=lambda each: each[1])
        for name, _ in kept[: max(0, len(kept) - MAX_QUARANTINED)]:
            remove(name)
        return True

    def quarantined(self) -> list[tuple[str, int]]:
        """Path and time of each damaged file that was kept."""
        try:
            with os.scandir(self.quarantine) as names:
                return [(name.path, name.stat(follow_symlinks=False).st_ctime_ns) for name in names]
        except OSError:
            return []


def remove(path: str) -> bool:
    """Remove a file, or a directory that was planted in its place; whether it is gone."""
    try:
        os.unlink(path)
    except IsADirectoryError:
        import shutil

        shutil.rmtree(path, ignore_errors=True)
    except OSError:
        return False
    return True
