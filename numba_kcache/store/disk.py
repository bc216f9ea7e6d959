"""The store on disk: entries and manifests by key, for many processes at once, within limits.

Promise     `get` returns what was put under this very key, or None. Nothing that the system does (full or
            read-only disk, damage, a directory that vanishes) raises out of a method: it is a miss, or False,
            and one event. What is damaged is moved aside, so that the next put heals it.
            Making a DiskStore touches nothing; the first hit costs one stat more than the others.
Method      store.tree reads and publishes; here is what happens when that fails, and where else to go: a
            directory that is not ours, or not writable, is replaced by a private temporary one, or by memory;
            a directory on a network filesystem gets a private local one in front of it, and no lock and no
            walk goes over the network.
Not here    Kernels, keys. What goes when there is too much is store.limits' and store.eviction's.
"""

from __future__ import annotations

import errno
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from ..model.event import Emit, Event, EventKind
from . import directory as directories
from .entry import (
    ENTRY,
    MANIFEST,
    DamagedEntry,
    Header,
    StoredEntry,
    check_payloads,
    decode_entry,
    encode_entry,
    payload_sizes,
    require_key,
)
from .manifest import Variant, merge, variants_of
from .publish import Durability
from .report import EntryInfo, Problem, Removed, Usage
from .system import after_fork
from .tree import RECENCY_NS, Found, Tree, remove

if TYPE_CHECKING:  # these are for writing, or for when something is wrong: a hit goes without them
    from .counters import CounterFile
    from .limits import Limits
    from .locks import KeyLocks, Turn
    from .memory import MemoryCounters, MemoryStore

_PAUSE_S = 60.0
"""How long nothing is written after the disk was found full, or nearly so."""

_MANIFEST_WAIT_S = 1.0
_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR)
_ABSENT = (errno.ENOENT, errno.ENOTDIR)


class DiskStore:
    """The store below one directory.

    Args:
        directory: Absolute path; made when something is first stored.
        max_size_bytes: Limit of all entries and manifests together.
        max_entries: Limit of the number of entries.
        readonly: Nothing is written, not even recency.
        durability: What a put forces to the disk before it returns.
        shared: Trust a directory that others can write to, and let them read what is stored.
        emit: Takes the events TROUBLE, DAMAGED, STORED and EVICTED.
        clock: Seconds since the epoch.
        max_wait_s: Longest wait for another's build.
    """

    def __init__(
        self,
        directory: str,
        *,
        max_size_bytes: int = 1 << 30,
        max_entries: int = 20_000,
        readonly: bool = False,
        durability: Durability = "data",
        shared: bool = False,
        emit: Emit = lambda event: None,
        clock: Callable[[], float] = time.time,
        max_wait_s: float = 120.0,
    ) -> None:
        self.directory = directory
        self.readonly = readonly
        self.max_size_bytes, self.max_entries = max_size_bytes, max_entries
        self._durability: Durability = durability
        self._shared, self._emit, self._clock, self._max_wait_s = shared, emit, clock, max_wait_s
        self._tree = Tree(directory, shared=shared)
        self._is_checked = self._is_refused = self._is_settled = False
        self._refresh_ns = RECENCY_NS
        self._front: DiskStore | MemoryStore | None = None
        self._spare: DiskStore | MemoryStore | None = None
        self._locks: KeyLocks | None = None
        self._own_limits: Limits | None = None
        self._own_counters: CounterFile | None = None
        self._paused_until_s = 0.0
        self._opening = threading.RLock()
        _all.add(self)

    @property
    def counters(self) -> CounterFile | MemoryCounters:
        """Statistics over processes, kept where the entries are."""
        if self._spare is not None:
            return self._spare.counters
        with self._opening:
            if self._own_counters is None:
                from .counters import CounterFile

                self._own_counters = CounterFile(self._tree.statistics, emit=self._emit, readonly=self.readonly)
            return self._own_counters

    @property
    def _limits(self) -> Limits:
        with self._opening:
            if self._own_limits is None:
                from .limits import Limits

                self._own_limits = Limits(
                    self._tree,
                    max_size_bytes=self.max_size_bytes,
                    max_entries=self.max_entries,
                    emit=self._emit,
                    clock=self._clock,
                )
            return self._own_limits

    # Reading

    def get(self, key: str) -> StoredEntry | None:
        """The entry of `key`, verified; None if there is none that can be trusted.

        Raises:
            ValueError: `key` is not 64 lower-case hexadecimal digits.
        """
        if not self._is_checked:
            self._check()
        if self._front is not None:
            entry = self._front.get(key)
            if entry is not None:
                return entry
        entry = None if self._is_refused else self._read(ENTRY, key)
        if entry is None:
            return None if self._spare is None else self._spare.get(key)
        if self._front is not None:
            self._front.put(entry)
        return entry

    def peek(self, key: str) -> StoredEntry | None:
        """The entry of `key`, or None; it counts as no use, and what is damaged is left where it is.

        Raises:
            DamagedEntry: It is there, and not as it was written.
            ValueError: `key` is not 64 lower-case hexadecimal digits.
        """
        return self._peek(ENTRY, require_key(key))

    def peek_manifest(self, family: str) -> list[Variant]:
        """The variants of `family`, newest first; none if there is no manifest that can be trusted. Nothing changes."""
        try:
            manifest = self._peek(MANIFEST, require_key(family))
            return [] if manifest is None else variants_of(manifest.header)
        except ValueError:
            return []

    def _peek(self, kind: int, key: str) -> StoredEntry | None:
        if self._is_usable():
            try:
                return decode_entry(self._tree.read(self._tree.path(kind, key), None), key, kind)
            except OSError:
                pass
        for layer in self._others():
            found = layer._peek(kind, key)
            if found is not None:
                return found
        return None

    def get_manifest(self, family: str) -> list[Variant]:
        """The variants of `family`, newest first; none if there is no manifest that can be trusted."""
        variants = self._read_variants(family) if self._is_usable() else []
        return variants or (self._spare.get_manifest(family) if self._spare is not None else [])

    def _read_variants(self, family: str) -> list[Variant]:
        manifest = self._read(MANIFEST, family)
        if manifest is None:
            return []
        try:
            return variants_of(manifest.header)
        except ValueError as error:
            self._damaged(family, self._tree.path(MANIFEST, family), str(error))
            return []

    def _read(self, kind: int, key: str) -> StoredEntry | None:
        path = self._tree.path(kind, require_key(key))
        now_ns = None if self.readonly else int(self._clock() * 1e9)
        try:
            try:
                data = self._tree.read(path, now_ns, self._refresh_ns)
            except OSError as error:
                if error.errno != errno.ESTALE:
                    raise
                data = self._tree.read(path, now_ns, self._refresh_ns)  # replaced on the file server
            return decode_entry(data, key, kind)
        except DamagedEntry as error:
            self._damaged(key, path, str(error))
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                self._damaged(key, path, f"not a regular file: {error.strerror}")
            elif error.errno not in _ABSENT:
                self._trouble("get", error)
        return None

    # Writing

    def put(self, entry: StoredEntry) -> bool:
        """Store `entry` in place of whatever its key led to; whether it was stored.

        Raises:
            ValueError, TypeError: The entry is not one that can be stored.
        """
        data = encode_entry(entry)
        if self.readonly:
            return False
        if len(data) > self.max_size_bytes:
            self._trouble("put", f"an entry of {len(data)} bytes is above the limit of {self.max_size_bytes}")
            return False
        self._settle()
        if self._front is not None:
            self._front.put(entry)
        if self._spare is None and self._write(ENTRY, entry.key, data):
            return True
        return self._spare is not None and self._spare.put(entry)

    def add_variant(self, family: str, variant: Variant) -> bool:
        """Put `variant`, which has a `"key"`, in front of those of `family`; whether it was stored."""
        require_key(family)
        if self.readonly:
            return False
        self._settle()
        if self._spare is not None:
            return self._spare.add_variant(family, variant)
        locks, nothing = self._key_locks(), lambda: None
        with locks.turn(f"{family}.manifest", nothing, _MANIFEST_WAIT_S):
            before = self._read_variants(family)
            if before[:1] == [variant]:
                return True
            header: Header = {"variants": merge(before, variant)}
            return self._write(MANIFEST, family, encode_entry(StoredEntry(family, header, {}), MANIFEST))

    def building(self, key: str) -> AbstractContextManager[Turn[StoredEntry]]:
        """Take the turn to build `key`, or wait until another has built it.

        The context is a `Turn`: `found` is the entry that appeared meanwhile, or None, and then the caller
        builds and puts. It never raises and never waits beyond `max_wait_s`.
        """
        require_key(key)
        return self._key_locks().turn(key, lambda: self.get(key), self._max_wait_s)

    def _write(self, kind: int, key: str, data: bytes) -> bool:
        if self._clock() < self._paused_until_s:
            return False
        shortage = self._limits.shortage(len(data))
        if shortage:
            self._trouble("put", shortage)
            return self._pause()
        path = self._tree.path(kind, key)
        before = self._tree.size_of(path)
        now_ns = int(self._clock() * 1e9)
        try:
            self._tree.write(kind, key, data, durability=self._durability, time_ns=now_ns)
        except OSError as error:
            return self._write_failed(kind, key, path, data, error)
        if kind == ENTRY:
            self._emit(Event(EventKind.STORED, {"key": key, "size_bytes": len(data)}))
        self._limits.account(len(data) - (before or 0), int(kind == ENTRY and before is None))
        return True

    def _write_failed(self, kind: int, key: str, path: str, data: bytes, error: OSError) -> bool:
        if error.errno in (errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST) and self._tree.set_aside(path):
            return self._write(kind, key, data)  # something that is no file was in its place
        self._trouble("put", error)
        if error.errno in _NOT_WRITABLE:
            self._spare = self._private_store()
        return self._pause() if error.errno in _FULL else False

    def _pause(self) -> bool:
        """Store nothing for a while; a pass may make room meanwhile."""
        self._paused_until_s = self._clock() + _PAUSE_S
        self._limits.start()
        return False

    # Limits

    def wait_for_eviction(self) -> None:
        """Return when the pass that a put has started is over."""
        self._limits.wait()

    def prune(self, max_size_bytes: int | None = None, older_than: float | None = None) -> Removed:
        """Remove what was not used for `older_than` seconds, then the oldest down to the limit.

        Args:
            max_size_bytes: Limit of this pass; None for the store's.
            older_than: Seconds; None for any age.
        """
        if self.readonly:
            return Removed(0, 0)
        removed = [layer.prune(max_size_bytes, older_than) for layer in self._others()]
        if self._is_usable():
            self._limits.wait()
            removed.append(self._limits.run(older_than, max_size_bytes))
        return Removed(sum(each.entries for each in removed), sum(each.size_bytes for each in removed))

    def clear(self) -> Removed:
        """Remove every entry, manifest and damaged file; statistics stay."""
        if self.readonly:
            return Removed(0, 0)
        self._limits.wait()
        entries = size_bytes = 0
        for file in self._walk(MANIFEST, ENTRY):
            if remove(file.path):
                entries += file.kind == ENTRY
                size_bytes += file.size_bytes
        if self._is_usable():
            for path, _ in self._tree.quarantined():
                remove(path)
        if entries or size_bytes:
            self._limits.run()  # counts what is left, which is little
        others = [layer.clear() for layer in self._others()]
        entries += sum(each.entries for each in others)
        return Removed(entries, size_bytes + sum(each.size_bytes for each in others))

    def remove(self, key: str) -> bool:
        """Remove the entry of `key`; whether there was one."""
        path = self._tree.path(ENTRY, require_key(key))
        gone = False
        if not self.readonly and self._is_usable():
            size = self._tree.size_of(path)
            if size is not None and remove(path):
                self._limits.account(-size, -1)
                gone = True
        for layer in self._others():
            gone = layer.remove(key) or gone
        return gone

    # Looking

    def entries(self) -> Iterator[EntryInfo]:
        """Every entry that can be trusted, in no order; recency is left as it is."""
        for file in self._walk(ENTRY):
            try:
                entry = decode_entry(self._tree.read(file.path, None), file.key)
            except (DamagedEntry, OSError):
                continue  # verify() says so; a listing does not change the store
            used_s, sizes = file.used_ns / 1e9, payload_sizes(entry)
            yield EntryInfo(file.key, entry.header, file.size_bytes, used_s, sizes)
        if self._spare is not None:
            yield from self._spare.entries()

    def verify(self) -> list[Problem]:
        """Read every file in full; what is damaged is moved aside, and said with the reason."""
        problems = []
        for file in self._walk(ENTRY, MANIFEST):
            try:
                entry = decode_entry(self._tree.read(file.path, None), file.key, file.kind)
                if file.kind == MANIFEST:
                    variants_of(entry.header)
                check_payloads(entry)
            except FileNotFoundError:
                continue
            except (ValueError, OSError) as error:
                problems.append(Problem(file.key, str(error)))
                self._damaged(file.key, file.path, str(error))
        return problems

    def size(self, *, exact: bool = False) -> Usage:
        """How much there is: from the sum that puts keep, or counted file by file."""
        usage = self._limits.sum() if not exact and self._is_usable() else None
        if usage is None:
            sizes = [(file.size_bytes, file.kind == ENTRY) for file in self._walk(ENTRY, MANIFEST)]
            size_bytes, entries = sum(size for size, _ in sizes), sum(is_entry for _, is_entry in sizes)
            usage = Usage(size_bytes, entries, int(self._clock()), 0)
        if self._spare is not None:
            more = self._spare.size(exact=exact)
            usage = usage._replace(size_bytes=usage.size_bytes + more.size_bytes, entries=usage.entries + more.entries)
        return usage

    def _walk(self, *kinds: int) -> Iterator[Found]:
        if self._is_usable():
            for kind in kinds:
                yield from self._tree.walk(kind)

    def _others(self) -> list[DiskStore | MemoryStore]:
        """The stores in front and in place of this tree."""
        return [layer for layer in (self._front, self._spare) if layer is not None]

    # Where to go

    def _is_usable(self) -> bool:
        """Whether this tree may be read and written to, as far as is known."""
        if not self._is_checked:
            self._check()
        return not self._is_refused

    def _check(self) -> None:
        """Look at the directory once, as soon as it is there."""
        try:
            status = os.stat(self.directory)
        except OSError as error:
            if error.errno not in _ABSENT:
                self._refuse(str(error))
            return
        with self._opening:
            if self._is_checked:
                return
            reason = directories.refusal(self.directory, status, shared=self._shared)
            if reason is not None:
                self._refuse(reason)
            elif directories.is_network(self.directory, status):
                self._refresh_ns = 24 * RECENCY_NS
                self._front = self._private_store()
                self._limits.is_kept = False
            self._is_checked = True

    def _refuse(self, reason: str) -> None:
        with self._opening:
            self._trouble("directory", reason)
            self._is_refused = self._is_checked = True
            if self._spare is None:
                self._spare = self._private_store()

    def _settle(self) -> None:
        """Before the first write: make the directory, or find that it cannot be written to."""
        if self._is_settled:
            return
        with self._opening:
            if self._is_settled:
                return
            if not self._is_checked:
                self._check()
            if self._spare is None:
                try:
                    if self._tree.make(self._tree.private):
                        self._limits.begin()
                    if not os.access(self.directory, os.W_OK | os.X_OK):
                        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), self.directory)
                except OSError as error:
                    if error.errno in _PASSING:
                        return
                    self._trouble("directory", error)
                    self._spare = self._private_store()
            if not self._is_checked:
                self._check()
            self._is_settled = True

    def _private_store(self) -> DiskStore | MemoryStore:
        """A store of this user alone on a local disk, or else in memory."""
        path = None if self.readonly else directories.private_directory()
        if path is None or path == self.directory:
            from .memory import MemoryStore

            return MemoryStore(
                max_size_bytes=self.max_size_bytes,
                max_entries=self.max_entries,
                clock=self._clock,
                max_wait_s=self._max_wait_s,
            )
        return DiskStore(
            path,
            max_size_bytes=self.max_size_bytes,
            max_entries=self.max_entries,
            durability=self._durability,
            emit=self._emit,
            clock=self._clock,
            max_wait_s=self._max_wait_s,
        )

    def _key_locks(self) -> KeyLocks:
        """The locks, in this tree or, where it is not local or not writable, in a private directory."""
        if self._locks is None:
            if not self.readonly:
                self._settle()
            with self._opening:
                if self._locks is None:
                    self._locks = self._choose_locks()
        return self._locks

    def _choose_locks(self) -> KeyLocks:
        from .locks import KeyLocks

        other = self._front or self._spare
        if isinstance(other, DiskStore):
            return other._key_locks()
        if other is not None or self.readonly:
            return KeyLocks(None)
        tree = self._tree
        return KeyLocks(tree.locks, lambda: tree.make(tree.locks), mode=0o666 if self._shared else 0o600)

    # Saying

    def _trouble(self, where: str, error: object) -> None:
        self._emit(Event(EventKind.TROUBLE, {"where": where, "error": str(error)}))

    def _damaged(self, key: str, path: str, reason: str) -> None:
        """Report a damaged file and move it out of the way."""
        self._emit(Event(EventKind.DAMAGED, {"key": key, "reason": reason}))
        if not self.readonly:
            size = self._tree.size_of(path)
            if size is not None and self._tree.set_aside(path):
                self._limits.account(-size, -int(path.startswith(self._tree.entries)))


_all: weakref.WeakSet[DiskStore] = weakref.WeakSet()


def _after_fork() -> None:
    for each in _all:
        each._opening = threading.RLock()  # another thread of the parent may have held it


after_fork(_after_fork)
