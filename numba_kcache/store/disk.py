"""The store on disk: entries and manifests by key, for many processes at once, within limits.

Promise     `get` returns the entry that was put under this very key, or None. No failure of the system (full or
            read-only disk, damaged file, removed directory) raises out of a method: it is a miss, or False, and one
            event. A damaged file is moved to the quarantine, so that the next put replaces it. Constructing a DiskStore
            touches no file. A directory that is not trusted is not used, and one on a read-only filesystem not written
            to, for the life of the process, which is reported once; any other failure is tried again at the next use.
Method      store.tree reads and publishes; this module handles its failures. Methods import what a hit does not need.
            On a network filesystem a put does not walk the directory, and locks are files on a local disk.
Not here    Deriving keys, and keeping artifacts in memory (engine).
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..model import Emit, Event, EventKind, trouble
from . import Result, Store, renewed_in_children
from .entry import ENTRY, DamagedEntry, StoredEntry, Variant, require_key
from .tree import Found, Tree

if TYPE_CHECKING:
    from ..settings import Settings
    from .counters import CounterFile
    from .locks import KeyLocks
    from .memory import MemoryCounters, MemoryStore
    from .publish import Durability
    from .report import Problem, Removed
    from .writing import Writer

ABSENT = (errno.ENOENT, errno.ENOTDIR)
_IRREGULAR = (errno.ELOOP, errno.ENXIO)


class DiskStore(Store):
    """The store below one directory.

    Args:
        directory: Absolute path; made when something is first stored.
        max_size_bytes: Limit of all entries and manifests together.
        max_entries: Limit of the number of entries.
        readonly: Nothing is written, not even recency.
        durability: What a put forces to the disk before it returns.
        shared: Trust a directory that others can write to, and let them read the entries.
        emit: Takes the events TROUBLE, DAMAGED, STORED and EVICTED.
        clock: The time, in seconds since the epoch.
        max_wait_s: Longest wait for a build of another process, in seconds.
        demands: Find only code compiled on this machine, or whose signature was checked (store.origin).

    Attributes:
        opening: A lock, held while writer and counters are made.
    """

    def __init__(
        self,
        directory: str,
        *,
        max_size_bytes: int = 1 << 30,
        max_entries: int = 20_000,
        readonly: bool = False,
        durability: Durability = "none",
        shared: bool = False,
        emit: Emit = lambda event: None,
        clock: Callable[[], float] = time.time,
        max_wait_s: float = 120.0,
        demands: bool = False,
    ) -> None:
        self.directory, self.readonly = directory, readonly
        self.max_size_bytes, self.max_entries = max_size_bytes, max_entries
        self.durability: Durability = durability
        self.emit, self.clock, self.max_wait_s = emit, clock, max_wait_s
        self.tree: Tree = Tree(directory, shared=shared)
        if demands:
            from .origin import SignedTree

            self.tree = SignedTree(directory, shared=shared)
        self._obstacle = ""  # the reason why the directory is not tried again
        self._made_writer: Writer | None = None
        self._made_counters: CounterFile | MemoryCounters | None = None
        self.opening = threading.RLock()
        renewed_in_children.add(self)

    def after_fork(self) -> None:
        """Replace the lock that another thread of the parent may have held."""
        self.opening = threading.RLock()

    def private_folder(self, name: str) -> str:
        """Make a folder beside the tree; "" if other users may write there, or nothing is written."""
        if self.readonly or self.tree.shared:
            return ""
        try:
            os.close(self.tree.open_root(makes=True))
            path = os.path.join(self.tree.root, name) if self.tree.is_private else ""
            with suppress(FileExistsError):
                os.mkdir(path, 0o700)
        except OSError:
            return ""
        return path

    @property
    def counters(self) -> CounterFile | MemoryCounters:
        """Statistics over processes, kept where the entries are; of this process, if they cannot be."""
        with self.opening:
            if self._made_counters is None:
                from .counters import CounterFile
                from .folders import STATISTICS, Folder

                folder = Folder(self.tree, STATISTICS)
                self._made_counters = CounterFile(folder, emit=self.emit, readonly=self.readonly, clock=self.clock)
            return self._made_counters

    @property
    def _writer(self) -> Writer:
        with self.opening:
            if self._made_writer is None:
                from .writing import Writer

                self._made_writer = Writer(self)
            return self._made_writer

    @property
    def locks(self) -> KeyLocks:
        """The turns of this node, so that one process builds each key."""
        return self._writer.locks

    # The directory

    @property
    def is_network(self) -> bool:
        """Whether the directory is on a filesystem shared with other machines; False as long as that is not known."""
        return self.tree.is_network()

    @property
    def place(self) -> str:
        """The directory, where new entries are written; "" if they are kept in memory only."""
        return "" if self._obstacle else self.directory

    def is_usable(self) -> bool:
        """Check whether the directory may be read, or does not exist yet."""
        try:
            self.tree.base()
        except OSError as error:
            if error.errno in ABSENT:
                return True
            self.failed("directory", error)
            return False
        return True

    def failed(self, where: str, error: OSError, *, is_written: bool = False) -> None:
        """Report a failure, after which the store continues. After a refusal the directory is not tried again.

        Args:
            where: The operation.
            error: The failure.
            is_written: The operation was a write: after EROFS the directory is not written to again.
        """
        is_final = bool(self.tree.refusal) or (is_written and error.errno == errno.EROFS)
        from .folders import words_of

        why = self.tree.refusal or words_of(error, self.directory)
        if is_final:
            with self.opening:
                is_known, self._obstacle = bool(self._obstacle), why
                if not is_known:
                    from .memory import MemoryCounters

                    self._made_counters = MemoryCounters()
            if is_known:
                return
            why += "; new kernels are kept in memory only, and compiled again by the next process"
        text = f"cannot use {self.directory}: {why}"  # unlocked: a subscriber may use this store
        self.emit(Event(EventKind.TROUBLE, {**trouble(where, error).fields, "error": text}))

    def obstacle(self) -> str:
        """The reason why new entries cannot be written to the directory; "" if they can. Changes nothing."""
        from .folders import unwritable

        return self._obstacle or unwritable(self.tree)

    def prepare(self) -> str:
        """Make the directory if need be. Returns the reason why entries cannot be written to it, or ""."""
        return "" if self.readonly else self._obstacle or self._writer.prepare()

    # Reading

    def read(self, kind: int, key: str, decode: Callable[[bytes, str], Result]) -> Result | None:
        """Read and decode a file, and renew its time of use; None if there is none that can be trusted."""
        now_ns = None if self.readonly else int(self.clock() * 1e9)
        try:
            try:
                data = self.tree.read(kind, key, now_ns)
            except OSError as error:
                if error.errno != errno.ESTALE:
                    raise
                self.tree.forget()  # ESTALE: replaced on the file server
                data = self.tree.read(kind, key, now_ns)
            return decode(data, key)
        except DamagedEntry as error:
            self._damaged(kind, key, str(error))
        except OSError as error:
            if error.errno in _IRREGULAR:  # the file stays until a put quarantines it
                self._report_damage(key, f"not a regular file: {error.strerror}")
            elif error.errno not in ABSENT:
                self.failed("get", error)
        except MemoryError:  # the file may be undamaged, so it is not moved
            self.trouble("get", f"no memory for {key}")
        return None

    def get_encoded(self, key: str, kind: int = ENTRY) -> bytes | None:
        """The bytes of an entry's or manifest's file, not verified; its time of use is not renewed."""
        with suppress(OSError, DamagedEntry):
            return self.tree.read(kind, key)
        return None

    def files(self, *kinds: int) -> Iterator[Found]:
        """Every file of these kinds whose name is a key, in any order."""
        return self.tree.walk(*kinds) if self.is_usable() else iter(())

    def verify(
        self, refusal_of: Callable[[StoredEntry], str] = lambda entry: "", tell: Callable[[], object] = lambda: None
    ) -> list[Problem]:
        """Read every file in full; report those that are damaged or that `refusal_of` refuses, and quarantine them.

        Files that are not the cache's own are reported by their name below the directory, and left where they are.

        Args:
            refusal_of: Returns the reason not to trust an entry; "" for none.
            tell: Called for each file.
        """
        from .listing import damaged
        from .report import Problem

        problems = []
        for file, reason in damaged(self.tree, refusal_of, tell) if self.is_usable() else ():
            problems.append(Problem(file.key, reason))
            self._damaged(file.kind, file.key, reason)
        return [*problems, *(Problem(name, f"{kind} that is not the cache's own") for name, kind in self.strangers())]

    def strangers(self) -> list[tuple[str, str]]:
        """Name and kind of each file or folder in the directory's tree that this package did not make."""
        from .names import strangers

        return list(strangers(self.tree))

    # Writing

    def take_unsigned(self) -> None:
        """Mark the directory, before the next write to it, as one with code whose signature was not checked."""
        self.tree.takes_unsigned = True

    def put_encoded(self, key: str, data: bytes, kind: int = ENTRY) -> bool:
        """Store bytes of `encode_entry` for `key`, verified by the caller. Returns True if they were stored."""
        return self.is_written() and self._writer.put(kind, require_key(key), data)

    def put_all(self, files: Iterable[tuple[str, bytes]], size_bytes: int) -> None:
        """Store many encoded entries that the caller has verified, all of them or none.

        Args:
            files: Key and bytes of each, `size_bytes` together.

        Raises:
            OSError: No entry was stored.
        """
        if not self.is_written():
            raise OSError(errno.EROFS, self._obstacle or "the cache is read-only in this mode")
        self._writer.put_all(files, size_bytes)

    def add_variant(self, family: str, *variants: Variant) -> bool:
        """Put `variants`, each with a `"key"`, before those of `family`, the last one first. Returns True if stored."""
        if not self.is_written():
            return False
        with self._writer.changing(require_key(family)):
            return super().add_variant(family, *variants)

    def prune(self, max_size_bytes: int | None = None, older_than: float | None = None) -> Removed:
        """Remove entries not used for `older_than` seconds, then the least recently used down to the limit.

        Args:
            max_size_bytes: Limit of this pass; None for the store's.
            older_than: Seconds; None for any age.
        """
        return self._writer.removed(lambda limits: limits.prune(max_size_bytes, older_than))

    def clear(self, tell: Callable[[], object] = lambda: None) -> Removed:
        """Remove every entry, manifest and damaged file, and call `tell` for each; statistics stay."""
        return self._writer.removed(lambda limits: limits.clear(tell))

    def remove(self, key: str) -> bool:
        """Remove the entry of `key`; returns True if there was one."""
        from .names import remove

        return self.is_written() and remove(Found(ENTRY, require_key(key), self.tree, 0, 0))

    def set_aside(self, key: str) -> None:
        """Move the entry of `key` to the quarantine: its bytes are undamaged, but it cannot be used."""
        if self.is_written():
            from .files import set_aside

            set_aside(self.tree, ENTRY, require_key(key))

    def wait_for_eviction(self) -> None:
        """Return when the eviction pass that a put has started is over."""
        self._writer.limits.wait()

    def trouble(self, where: str, error: object) -> None:
        """Emit the event for a failure that the store continues after."""
        self.emit(trouble(where, error))

    def is_written(self) -> bool:
        """Check whether new entries may be written."""
        return not self.readonly and not self._obstacle

    def _damaged(self, kind: int, key: str, reason: str) -> None:
        self._report_damage(key, reason)
        if self.is_written():
            from .files import set_aside

            set_aside(self.tree, kind, key)

    def _report_damage(self, key: str, reason: str) -> None:
        self.emit(Event(EventKind.DAMAGED, {"key": key, "reason": reason}))


def open_store(settings: Settings, directory: str | None, emit: Emit) -> DiskStore | MemoryStore:
    """Open the local store that the settings name: in memory with mode="off", or where there is no directory.

    Args:
        settings: The settings in force.
        directory: Directory of the store; None if no home directory is known.
        emit: Takes the events of the store.
    """
    left_bytes = settings.max_size_bytes - _bytes_of_headers(directory or "")
    limits: dict[str, Any] = {"max_size_bytes": max(left_bytes, 0), "max_entries": settings.max_entries}
    limits["max_wait_s"] = settings.build_wait_s
    if settings.mode == "off" or directory is None:
        if settings.mode != "off":
            why = "no home directory is known (set NUMBA_KCACHE_DIR)"
            where = "new kernels are kept in memory only, and compiled again by the next process"
            emit(trouble("directory", f"{why}: {where}"))
        from .memory import MemoryStore

        return MemoryStore(**limits)
    demands = settings.trusted_keys != () or settings.signing_key is not None  # as tiers.trust
    limits |= {"durability": settings.durability, "shared": settings.shared, "demands": demands}
    return DiskStore(directory, readonly=settings.mode in ("readonly", "frozen"), emit=emit, **limits)


def _bytes_of_headers(directory: str) -> int:
    """Sum the sizes of the headers kept beside the tree, which the names of their folders tell (toolchain.nvrtc)."""
    try:
        return sum(int(each.rpartition("-")[2]) for each in os.listdir(f"{directory}/headers") if each[:4] != "new-")
    except (OSError, ValueError):
        return 0
