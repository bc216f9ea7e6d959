"""The store on disk: entries and manifests by key, for many processes at once, within limits.

Promise     `get` returns the entry that was put under this very key, or None. No failure of the system (full or
            read-only disk, damaged file, removed directory) raises out of a method: it is a miss, or False, and one
            event. A damaged file is moved to the quarantine, so that the next put replaces it. Constructing a DiskStore
            touches no file. A directory that is not trusted, or that cannot be made or written to, is replaced by a
            private store, which is reported once. A directory on a network filesystem gets a private store in front, so
            that a put neither locks files nor walks the directory over the network.
Method      store.tree reads and publishes; this module handles its failures. Methods import what a hit does not need.
Not here    Deriving keys. The private store is not a tier (tiers.chain): prune, clear and remove apply to it too, and
            its entries are this user's own and need no signature.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from ..model import Emit, Event, EventKind, trouble
from . import Store, missing, renewed_in_children
from . import entry as entry_format
from . import tree as trees
from .entry import ENTRY, MANIFEST, DamagedEntry, StoredEntry, Variant, require_key
from .tree import RECENCY_NS, Found, Refused, Tree

if TYPE_CHECKING:
    from ..settings import Settings
    from .counters import CounterFile
    from .locks import KeyLocks, Turn
    from .memory import MemoryCounters, MemoryStore
    from .publish import Durability
    from .report import Problem, Removed
    from .writing import Writer

Result = TypeVar("Result")

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
        max_wait_s: Longest wait for a build of another thread or process, in seconds.
        stands_in: This is the private store of another store; its own private store is in memory.
        demands: Find only code compiled on this machine, or whose signature was checked (store.origin).

    Attributes:
        private: Store in front of a directory on the network, or in place of one that cannot be used; None for most.
        is_network: Whether the directory is on a filesystem shared with other machines.
        is_replaced: Whether new entries go only to `private`.
        opening: A lock, held while these attributes are set, and while writer and counters are made.
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
        stands_in: bool = False,
        demands: bool = False,
    ) -> None:
        self.directory, self.readonly = directory, readonly
        self.max_size_bytes, self.max_entries = max_size_bytes, max_entries
        self.durability: Durability = durability
        self.emit, self.clock, self.max_wait_s = emit, clock, max_wait_s
        self.tree, self._demands = Tree(directory, shared=shared), demands
        if demands:
            from .origin import SignedTree

            self.tree = SignedTree(directory, shared=shared)
        self.private: DiskStore | MemoryStore | None = None
        self.is_network = self.is_replaced = self._is_refused = self._is_checked = False
        self._replaced_for, self._stands_in = "", stands_in
        self._made_writer: Writer | None = None
        self._made_counters: CounterFile | None = None
        self.opening = threading.RLock()
        renewed_in_children.add(self)

    def after_fork(self) -> None:
        """Replace the lock that another thread of the parent may have held."""
        self.opening = threading.RLock()

    @property
    def counters(self) -> CounterFile | MemoryCounters:
        """Statistics over processes, kept where the entries are."""
        if self._replacement is not None:
            return self._replacement.counters
        with self.opening:
            if self._made_counters is None:
                from .counters import CounterFile
                from .folders import STATISTICS, Folder

                folder = Folder(self.tree, STATISTICS)
                self._made_counters = CounterFile(folder, emit=self.emit, readonly=self.readonly)
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

    # The directory, and the private store

    @property
    def _replacement(self) -> DiskStore | MemoryStore | None:
        return self.private if self.is_replaced else None

    def is_usable(self) -> bool:
        """Check whether the directory may be read. It is checked once, when it exists; until then it may be read."""
        if self._is_checked:
            return not self._is_refused
        reason: OSError | None = None
        try:
            self.tree.base()
        except OSError as error:
            if not isinstance(error, Refused) and error.errno in ABSENT:
                if self.tree.status is None:
                    return True
            else:
                reason = error
        with self.opening:
            if not self._is_checked:
                self._is_refused = reason is not None
                if reason is None and self.tree.status and trees.is_network(self.directory, self.tree.status):
                    self.is_network, self.private = True, self._made_private()[0]
                self._is_checked = True
        if reason is not None:
            self.replace(reason)
        return not self._is_refused

    def replace(self, reason: object) -> None:
        """Write new entries to the private store from now on."""
        from .fallback import words_of

        with self.opening:
            if self.is_replaced:
                return
            private, place = self._made_private() if self.private is None else (self.private, self.private.place)
            why = f"{words_of(reason, self.directory)}; new entries are kept in {place or 'memory only'}"
            self.private, self.is_replaced, self._replaced_for = private, True, why
        self.trouble("directory", f"cannot use {self.directory}: {why}")  # unlocked: a subscriber may use this store

    def _made_private(self) -> tuple[DiskStore | MemoryStore, str]:
        from .fallback import private_store

        limits: dict[str, Any] = {"max_size_bytes": self.max_size_bytes, "max_entries": self.max_entries}
        limits |= {"clock": self.clock, "max_wait_s": self.max_wait_s}
        more = {"durability": self.durability, "emit": self.emit, "demands": self._demands}
        found = private_store(self.directory, limits, more, in_memory=self.readonly or self._stands_in)
        if self.tree.takes_unsigned:
            found[0].take_unsigned()
        return found

    def obstacle(self) -> str:
        """The reason why new entries cannot be written to the directory; "" if they can. Changes nothing."""
        if not self.is_replaced and self.is_usable() and not self.is_replaced:
            from .fallback import unwritable

            return unwritable(self.tree)
        return self._replaced_for

    def prepare(self) -> str:
        """Make the directory if need be. Returns the reason why entries cannot be written to it, or ""."""
        if not self.readonly:
            self._writer.settle()
        return self._replaced_for

    @property
    def place(self) -> str:
        """The directory that new entries are written to, as far as is known; "" for memory."""
        return self.directory if self._replacement is None else self._replacement.place

    # Reading

    def get(self, key: str) -> StoredEntry | None:
        """The entry of `key`, verified; None if there is none that can be trusted.

        Raises:
            ValueError: `key` is not 64 lower-case hexadecimal digits.
        """
        if not self._is_checked:
            self.is_usable()
        entry = None if self.private is None else self.private.get(key)
        if entry is None and not self._is_refused:
            entry = self._read(ENTRY, key, entry_format.decode_entry)
            if entry is not None and self.is_network and self.private is not None:
                if not self._demands:
                    self.private.take_unsigned()  # the entry may come from a marked directory
                self.private.put(entry)
        return entry

    def get_manifest(self, family: str) -> list[Variant]:
        """The variants of `family`, newest first; none if there is no manifest that can be trusted."""
        if not self._is_checked:
            self.is_usable()
        variants = [] if self._is_refused else self._read(MANIFEST, family, entry_format.decode_manifest) or []
        if not self.is_replaced or self.private is None:
            return variants
        return entry_format.merge(variants, *reversed(self.private.get_manifest(family)))

    def read_variants(self, family: str) -> list[Variant]:
        """The variants of `family` in the directory itself."""
        return self._read(MANIFEST, family, entry_format.decode_manifest) or []

    def _read(self, kind: int, key: str, decode: Callable[[bytes, str], Result]) -> Result | None:
        now_ns = None if self.readonly else int(self.clock() * 1e9)
        refresh_ns = 24 * RECENCY_NS if self.is_network else RECENCY_NS
        try:
            try:
                data = self.tree.read(kind, key, now_ns, refresh_ns)
            except OSError as error:
                if error.errno != errno.ESTALE:
                    raise
                self.tree.forget()  # ESTALE: replaced on the file server
                data = self.tree.read(kind, key, now_ns, refresh_ns)
            return decode(data, key)
        except DamagedEntry as error:
            self._damaged(kind, key, str(error))
        except OSError as error:
            if error.errno in _IRREGULAR:  # the file stays until a put quarantines it
                self._report_damage(key, f"not a regular file: {error.strerror}")
            elif error.errno not in ABSENT:
                self.trouble("get", error)
        except MemoryError:  # the file may be undamaged, so it is not moved
            self.trouble("get", f"no memory for {key}")
        return None

    def get_encoded(self, key: str, kind: int = ENTRY) -> bytes | None:
        """The bytes of an entry's or manifest's file, not verified; its time of use is not renewed."""
        is_usable = self.is_usable()
        data = None if self._replacement is None else self._replacement.get_encoded(key, kind)
        if data is None and is_usable:
            with suppress(OSError, DamagedEntry):
                data = self.tree.read(kind, key)
        return data

    def files(self, *kinds: int) -> Iterator[Found]:
        """Every file of these kinds whose name is a key, in any order."""
        if self.is_usable():
            yield from self.tree.walk(*kinds)
        if self._replacement is not None:
            yield from self._replacement.files(*kinds)

    def verify(self, refusal_of: Callable[[StoredEntry], str] = lambda entry: "") -> list[Problem]:
        """Read every file in full; report those that are damaged or that `refusal_of` refuses, and quarantine them.

        Files that are not the cache's own are reported by their name below the directory, and left where they are.
        """
        from .listing import damaged
        from .report import Problem

        problems = []
        for file, reason in damaged(self.tree, refusal_of) if self.is_usable() else ():
            problems.append(Problem(file.key, reason))
            self._damaged(file.kind, file.key, reason)
        return [*problems, *(Problem(name, f"{kind} that is not the cache's own") for name, kind in self.strangers())]

    def strangers(self) -> list[tuple[str, str]]:
        """Name and kind of each file or folder in the directory's tree that this package did not make."""
        from .names import strangers

        return list(strangers(self.tree))

    # Writing

    def put_encoded(self, key: str, data: bytes) -> bool:
        """Store bytes of `encode_entry` for `key`, verified by the caller. Returns True if they were stored."""
        return not self.readonly and self._writer.put(key, data)

    def put_all(self, files: Iterable[tuple[str, bytes]], size_bytes: int) -> None:
        """Store many encoded entries that the caller has verified, all of them or none.

        Args:
            files: Key and bytes of each, `size_bytes` together.

        Raises:
            OSError: No entry was stored.
        """
        if self.readonly:
            raise OSError(errno.EROFS, "the cache is read-only in this mode")
        self._writer.put_all(files, size_bytes)

    def add_variant(self, family: str, *variants: Variant) -> bool:
        """Put `variants`, each with a `"key"`, before those of `family`, the last one first. Returns True if stored."""
        return not self.readonly and self._writer.add_variant(require_key(family), *variants)

    def building(self, key: str, wait_s: float | None = None, **more: Any) -> AbstractContextManager[Turn[StoredEntry]]:
        """Take the turn to build `key`, or wait until another has built it; `more` is passed to `KeyLocks.turn`.

        The context is a `Turn`: `found` is the entry that another stored meanwhile; where it is None, the caller builds
        and puts. Entering never raises and waits at most `wait_s` seconds, or `max_wait_s`.
        """
        most_s = self.max_wait_s if wait_s is None else wait_s
        return self.locks.turn(require_key(key), lambda: self.get(key), most_s, builds=True, **more)

    def prune(self, max_size_bytes: int | None = None, older_than: float | None = None) -> Removed:
        """Remove entries not used for `older_than` seconds, then the least recently used down to the limit.

        Args:
            max_size_bytes: Limit of this pass; None for the store's.
            older_than: Seconds; None for any age.
        """
        return self._writer.removed(lambda each: each.prune(max_size_bytes, older_than))

    def clear(self) -> Removed:
        """Remove every entry, manifest and damaged file; statistics stay."""
        return self._writer.removed(lambda each: each.clear())

    def remove(self, key: str) -> bool:
        """Remove the entry of `key`; returns True if there was one."""
        from .names import remove

        is_gone = not self.readonly and self.is_usable() and remove(Found(ENTRY, require_key(key), self.tree, 0, 0))
        return (self.private is not None and self.private.remove(key)) or is_gone

    def set_aside(self, key: str) -> None:
        """Move the entry of `key` to the quarantine: its bytes are undamaged, but it cannot be used."""
        if not self.readonly and self.is_usable():
            from .shards import set_aside

            set_aside(self.tree, ENTRY, require_key(key))
        if self.private is not None:
            self.private.set_aside(key)

    def wait_for_eviction(self) -> None:
        """Return when the eviction pass that a put has started is over."""
        self._writer.limits.wait()

    def trouble(self, where: str, error: object) -> None:
        """Emit the event for a failure that the store continues after."""
        self.emit(trouble(where, error))

    def _damaged(self, kind: int, key: str, reason: str) -> None:
        self._report_damage(key, reason)
        if not self.readonly:
            from .shards import set_aside

            set_aside(self.tree, kind, key)

    def _report_damage(self, key: str, reason: str) -> None:
        self.emit(Event(EventKind.DAMAGED, {"key": key, "reason": reason}))


def open_store(settings: Settings, directory: str | None, emit: Emit) -> DiskStore | MemoryStore:
    """Open the local store that the settings name: in memory with mode="off", or where no directory can be used.

    Args:
        settings: The settings in force.
        directory: Directory of the store; None if no home directory is known.
        emit: Takes the events of the store.
    """
    limits: dict[str, Any] = {"max_size_bytes": settings.max_size_bytes, "max_entries": settings.max_entries}
    limits["max_wait_s"] = settings.build_wait_s
    readonly, lacks = settings.mode in ("readonly", "frozen"), missing()
    if settings.mode != "off" and directory is not None and lacks:
        why = f"no {lacks} on this system: kernels are kept in memory only, and compiled again by the next process"
        emit(trouble("directory", why))
    elif settings.mode != "off" and directory is None:
        from .fallback import private_directory, where

        directory, tried = (None, "") if readonly else private_directory("")
        place = f"kernels are kept in {where(directory, tried)}; set NUMBA_KCACHE_DIR to a better place"
        emit(trouble("directory", f"no home directory is known: {place}"))
    if settings.mode == "off" or directory is None or lacks:
        from .memory import MemoryStore

        return MemoryStore(**limits)
    demands = settings.trusted_keys != () or settings.signing_key is not None  # as tiers.trust
    limits |= {"durability": settings.durability, "shared": settings.shared, "demands": demands}
    return DiskStore(directory, readonly=readonly, emit=emit, **limits)
