"""One directory tree of entries and manifests: whom to trust with it, where each file is, how it is read and walked.

Promise     No file outside the tree is touched, no link inside it is followed, and nothing that is not a
            regular file is read. Raises OSError and DamagedEntry; what these mean is for store.disk to say.
            A root that another user owns or may write to is refused unless it was shared on purpose: what is in it
            becomes code on the GPU. Looking never writes.
Method      <root>/v1/{entries,manifests}/<2 digits>/<62 digits>: 256 directories each, so that 100,000 files
            are 390 to a directory and a miss is one failed open. Modification times are recency, written
            explicitly and at most hourly: atime may be off or touched by others.
            Whom to trust is known by one stat of the root; the tree is made 0700 by the first that stores something.
Not here    Limits (store.eviction), locks (store.locks), events (store.disk), the default directory (settings).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from . import CLOEXEC, NOFOLLOW, NONBLOCK
from .entry import ENTRY, FORMAT, MANIFEST, MAX_FILE_BYTES, DamagedEntry, require_key

if TYPE_CHECKING:  # for writing: a hit goes without it
    from .publish import Durability

RECENCY_NS = 3600 * 10**9
"""How old a file's recency must be before a hit renews it."""

MAX_QUARANTINED = 20
"""Damaged files that are kept to be looked at."""

_READ = os.O_RDONLY | NOFOLLOW | CLOEXEC | NONBLOCK  # a FIFO must not hold the reader
_FOLDERS = {ENTRY: "entries", MANIFEST: "manifests"}
SHARDS = tuple(f"{number:02x}" for number in range(256))
"""Folders of each kind, named by the first digits of the keys in them."""

_NETWORK = (
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs"),
    *("lustre", "gpfs", "beegfs", "ceph", "panfs", "wekafs"),
)


class Found(NamedTuple):
    """A file met on a walk."""

    kind: int
    key: str
    path: str
    size_bytes: int
    used_ns: int


class Tree:
    """The tree below one root."""

    def __init__(self, root: str, *, shared: bool = False) -> None:
        self.root, self.shared = root, shared
        self.base = format_directory(root)
        self.entries, self.manifests = f"{self.base}/entries", f"{self.base}/manifests"
        self.private, self.locks = f"{self.base}/tmp", f"{self.base}/locks"
        self.quarantine, self.statistics = f"{self.base}/quarantine", f"{self.base}/statistics"

    def path(self, kind: int, key: str) -> str:
        """Where the file of `key` is.

        Raises:
            ValueError: `key` is not 64 lower-case hexadecimal digits.
        """
        if len(key) != 64 or key.strip("0123456789abcdef"):
            require_key(key)  # raises
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
        from .publish import publish

        target = self.path(kind, key)
        folder = os.path.dirname(target)
        mode = 0o666 if self.shared else 0o600
        if not os.path.isdir(folder):  # the first file here: a publish would find that out after it has synced
            self.make(folder, durability)
        try:
            publish(data, target, private=self.private, durability=durability, time_ns=time_ns, mode=mode)
        except FileNotFoundError:  # another process removed the directory
            self.make(folder, durability)
            publish(data, target, private=self.private, durability=durability, time_ns=time_ns, mode=mode)

    def make(self, directory: str, durability: Durability = "none") -> None:
        """Make the tree as far as `directory` needs it.

        Raises:
            OSError: It cannot be made.
        """
        from .publish import make_root, sync_directory

        mode = 0o777 if self.shared else 0o700
        make_root(self.root, shared=self.shared)
        for path in (self.base, self.private, os.path.dirname(directory), directory):
            try:
                os.mkdir(path, mode)
            except FileExistsError:
                continue
            if durability == "full":
                sync_directory(os.path.dirname(path))

    def walk(self, *kinds: int, shards: Sequence[str] = SHARDS) -> Iterator[Found]:
        """Every file of these kinds, or of these folders of them; those that vanish meanwhile are passed over."""
        for kind, shard in product(kinds, shards):
            try:
                with os.scandir(f"{self.base}/{_FOLDERS[kind]}/{shard}") as names:
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
