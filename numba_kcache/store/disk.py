"""The store on disk: entries and manifests by key, for many processes at once, within limits.

Promise     `get` returns what was put under this very key, or None. Nothing that the system does (full or
            read-only disk, damage, a directory that vanishes) raises out of a method: it is a miss, or False,
            and one event. What is damaged is moved aside, so that the next put heals it.
            Making a DiskStore touches nothing; the first hit costs one stat more than the others.
Method      store.tree reads and publishes; here is what happens when that fails. Each verb also speaks for the
            stores in front and in place of the tree, which store.layers finds.
Not here    Kernels, keys. What goes when there is too much is store.limits' and store.eviction's.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import reduce
from typing import TYPE_CHECKING

from ..model.event import (
    Emit,
    Event,
    EventKind,
    trouble,
)
from . import directory as directories
from .entry import (
    ENTRY,
    MANIFEST,
    DamagedEntry,
    Header,
    StoredEntry,
    decode_entry,
    encode_entry,
    require_key,
)
from .layers import ABSENT, Layers
from .manifest import Variant, merge, variants_of
from .publish import Durability
from .report import (
    EntryInfo,
    Problem,
    Removed,
    Usage,
)
from .tree import Found, Tree, remove

if TYPE_CHECKING:  # these are for writing, or for when something is wrong: a hit goes without them
    from .counters import CounterFile
    from .limits import Limits
    from .listing import Order
    from .locks import Turn
    from .memory import MemoryCounters, MemoryStore

_PAUSE_S = 60.0
"""How long nothing is written after the disk was found full, or nearly so."""

_MANIFEST_WAIT_S = 1.0
_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)
_FULL = (errno.ENOSPC, errno.EDQUOT)


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
        self.layers = Layers(
            self._tree,
            readonly=readonly,
            limits=lambda: self._limits,
            private_store=self._private_store,
            emit=emit,
        )
        self._own_limits: Limits | None = None
        self._own_counters: CounterFile | None = None
        self._paused_until_s = 0.0

    @property
    def counters(self) -> CounterFile | MemoryCounters:
        """Statistics over processes, kept where the entries are."""
        if self.layers.spare is not None:
            return self.layers.spare.counters
        with self.layers.opening:
            if self._own_counters is None:
                from .counters import CounterFile

                self._own_counters = CounterFile(self._tree.statistics, emit=self._emit, readonly=self.readonly)
            return self._own_counters

    @property
    def _limits(self) -> Limits:
        with self.layers.opening:
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
        layers = self.layers
        if not layers.is_checked:
            layers.check()
        if layers.front is not None:
            entry = layers.front.get(key)
            if entry is not None:
                return entry
        entry = None if layers.is_refused else self._read(ENTRY, key)
        if entry is None:
            return None if layers.spare is None else layers.spare.get(key)
        if layers.front is not None:
            layers.front.put(entry)
        return entry

    def get_manifest(self, family: str) -> list[Variant]:
        """The variants of `family`, newest first; none if there is no manifest that can be trusted."""
        variants = self._read_variants(family) if self.layers.is_usable() else []
        spare = self.layers.spare
        return variants or (spare.get_manifest(family) if spare is not None else [])

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
                data = self._tree.read(path, now_ns, self.layers.refresh_ns)
            except OSError as error:
                if error.errno != errno.ESTALE:
                    raise
                data = self._tree.read(path, now_ns, self.layers.refresh_ns)  # replaced on the file server
            return decode_entry(data, key, kind)
        except DamagedEntry as error:
            self._damaged(key, path, str(error))
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                self._damaged(key, path, f"not a regular file: {error.strerror}")
            elif error.errno not in ABSENT:
                self._trouble("get", error)
        return None

    # Writing

    def put(self, entry: StoredEntry) -> bool:
        """Store `entry` in place of whatever its key led to; whether it was stored.

        Raises:
            ValueError, TypeError: The entry is not one that can be stored.
        """
        return self.put_encoded(entry.key, encode_entry(entry))

    def put_encoded(self, key: str, data: bytes) -> bool:
        """Store the bytes that `encode_entry` made for `key`; the caller has verified them. Whether it was stored."""
        if self.readonly:
            return False
        if len(data) > self.max_size_bytes:
            self._trouble("put", f"an entry of {len(data)} bytes is above the limit of {self.max_size_bytes}")
            return False
        layers = self.layers
        layers.settle()
        if layers.front is not None:
            layers.front.put_encoded(key, data)
        if layers.spare is None and self._write(ENTRY, key, data):
            return True
        return layers.spare is not None and layers.spare.put_encoded(key, data)

    def put_all(self, files: Iterable[tuple[str, bytes]], size_bytes: int) -> None:
        """Store many encoded entries that the caller has verified, all of them or none.

        Args:
            files: Key and bytes of each.
            size_bytes: Of all together.

        Raises:
            OSError: None was stored.
        """
        from .batch import publish_all

        if self.readonly:
            raise OSError(errno.EROFS, "the cache is read-only in this mode")
        self.layers.settle()
        if self.layers.spare is not None:
            self.layers.spare.put_all(files, size_bytes)
            return
        shortage = self._limits.shortage(size_bytes)
        if shortage or size_bytes > self.max_size_bytes:
            raise OSError(errno.ENOSPC, shortage or f"{size_bytes} bytes are above the limit of {self.max_size_bytes}")
        now_ns = int(self._clock() * 1e9)
        self._limits.account(*publish_all(self._tree, files, durability=self._durability, time_ns=now_ns))

    def add_variant(self, family: str, *variants: Variant) -> bool:
        """Put `variants`, each with a `"key"`, before those of `family`, the last foremost; whether they are there."""
        require_key(family)
        if self.readonly:
            return False
        self.layers.settle()
        if self.layers.spare is not None:
            return self.layers.spare.add_variant(family, *variants)
        with self.layers.locks().turn(f"{family}.manifest", lambda: None, _MANIFEST_WAIT_S):
            before = self._read_variants(family)
            after = reduce(merge, variants, before)
            if after == before:
                return True
            header: Header = {"variants": after}
            return self._write(MANIFEST, family, encode_entry(StoredEntry(family, header, {}), MANIFEST))

    def building(self, key: str) -> AbstractContextManager[Turn[StoredEntry]]:
        """Take the turn to build `key`, or wait until another has built it.

        The context is a `Turn`: `found` is the entry that appeared meanwhile, or None, and then the caller
        builds and puts. It never raises and never waits beyond `max_wait_s`.
        """
        require_key(key)
        return self.layers.locks().turn(key, lambda: self.get(key), self._max_wait_s)

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
            self.layers.go_elsewhere()
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
        removed = [layer.prune(max_size_bytes, older_than) for layer in self.layers.others()]
        if self.layers.is_usable():
            self._limits.wait()
            removed.append(self._limits.run(older_than, max_size_bytes))
        return _together(removed)

    def clear(self) -> Removed:
        """Remove every entry, manifest and damaged file; statistics stay."""
        if self.readonly:
            return Removed(0, 0)
        removed = [layer.clear() for layer in self.layers.others()]
        if self.layers.is_usable():
            self._limits.wait()
            gone = [file for kind in (MANIFEST, ENTRY) for file in self._tree.walk(kind) if remove(file.path)]
            for path, _ in self._tree.quarantined():
                remove(path)
            if gone:
                self._limits.run()  # counts what is left, which is little
            removed.append(Removed(sum(file.kind == ENTRY for file in gone), sum(file.size_bytes for file in gone)))
        return _together(removed)

    def remove(self, key: str) -> bool:
        """Remove the entry of `key`; whether there was one."""
        path = self._tree.path(ENTRY, require_key(key))
        gone = False
        if not self.readonly and self.layers.is_usable():
            size = self._tree.size_of(path)
            if size is not None and remove(path):
                self._limits.account(-size, -1)
                gone = True
        for layer in self.layers.others():
            gone = layer.remove(key) or gone
        return gone

    # Looking

    def entries(self) -> Iterator[EntryInfo]:
        """Every entry that can be trusted, in no order; recency is left as it is."""
        from .audit import listed

        if self.layers.is_usable():
            yield from listed(self._tree)
        if self.layers.spare is not None:
            yield from self.layers.spare.entries()

    def listing(self, by: Order, limit: int | None, hits: Mapping[str, int]) -> list[EntryInfo]:
        """The first `limit` entries in an order, by their heads alone (store.listing); hits by leading digits."""
        from .listing import listed, ordered

        found = listed(self._files(), by=by, limit=limit, hits=hits)
        spare = self.layers.spare
        return found if spare is None else ordered([*found, *spare.listing(by, limit, hits)], by, limit)

    def find(self, prefix: str) -> list[Found]:
        """The files of the entries whose key begins with `prefix`."""
        found = [file for file in self._files() if file.key.startswith(prefix)]
        return found if self.layers.spare is None else [*found, *self.layers.spare.find(prefix)]

    def manifests(self) -> Iterator[tuple[str, list[Variant]]]:
        """Every family and its variants, in no order; what is damaged is passed over."""
        for file in self._tree.walk(MANIFEST) if self.layers.is_usable() else ():
            try:
                manifest = decode_entry(self._tree.read(file.path, None), file.key, MANIFEST)
                yield file.key, variants_of(manifest.header)
            except (ValueError, OSError):
                continue
        if self.layers.spare is not None:
            yield from self.layers.spare.manifests()

    def get_encoded(self, key: str) -> bytes | None:
        """The file of an entry, as it is; it was not verified, and looking does not count as use."""
        try:
            data = self._tree.read(self._tree.path(ENTRY, require_key(key)), None) if self.layers.is_usable() else None
        except (OSError, DamagedEntry):
            data = None
        if data is None and self.layers.spare is not None:
            return self.layers.spare.get_encoded(key)
        return data

    def peek(self, key: str) -> StoredEntry | None:
        """As `get`, but looking does not count as use, and damage is left where it is."""
        path = self._tree.path(ENTRY, require_key(key))
        try:
            if self.layers.is_usable():
                return decode_entry(self._tree.read(path, None), key)
        except (DamagedEntry, OSError):
            pass
        return None if self.layers.spare is None else self.layers.spare.peek(key)

    def peek_manifest(self, family: str) -> list[Variant]:
        """As `get_manifest`, but looking does not count as use, and damage is left where it is."""
        path = self._tree.path(MANIFEST, require_key(family))
        try:
            if self.layers.is_usable():
                return variants_of(decode_entry(self._tree.read(path, None), family, MANIFEST).header)
        except (ValueError, OSError):
            pass
        return [] if self.layers.spare is None else self.layers.spare.peek_manifest(family)

    def damage(self, key: str) -> str:
        """Why the file of the entry of `key` cannot be trusted; "" where it can be, or is not there."""
        try:
            if self.layers.is_usable():
                decode_entry(self._tree.read(self._tree.path(ENTRY, require_key(key)), None), key)
        except DamagedEntry as error:
            return str(error)
        except OSError:
            pass
        return ""

    def _files(self) -> Iterator[Found]:
        return self._tree.walk(ENTRY) if self.layers.is_usable() else iter(())

    def verify(self) -> list[Problem]:
        """Read every file in full; what is damaged is moved aside, and said with the reason."""
        from .audit import damaged

        problems = []
        for file, reason in damaged(self._tree) if self.layers.is_usable() else ():
            problems.append(Problem(file.key, reason))
            self._damaged(file.key, file.path, reason)
        return problems

    def size(self, *, exact: bool = False) -> Usage:
        """How much there is: from the sum that puts keep, or counted file by file."""
        usage = Usage(0, 0, 0, 0)
        if self.layers.is_usable():
            sum_of_puts = None if exact else self._limits.sum()
            if sum_of_puts is None:
                from .audit import counted

                usage = counted(self._tree, self._clock())
            else:
                usage = sum_of_puts
        if self.layers.spare is not None:
            more = self.layers.spare.size(exact=exact)
            usage = usage._replace(size_bytes=usage.size_bytes + more.size_bytes, entries=usage.entries + more.entries)
        return usage

    def _private_store(self) -> DiskStore | MemoryStore:
        """A store like this one, of this user alone on a local disk, or else in memory."""
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

    # Saying

    def _trouble(self, where: str, error: object) -> None:
        self._emit(trouble(where, error))

    def _damaged(self, key: str, path: str, reason: str) -> None:
        """Report a damaged file and move it out of the way."""
        self._emit(Event(EventKind.DAMAGED, {"key": key, "reason": reason}))
        if not self.readonly:
            size = self._tree.size_of(path)
            if size is not None and self._tree.set_aside(path):
                self._limits.account(-size, -int(path.startswith(self._tree.entries)))


def _together(removed: list[Removed]) -> Removed:
    return Removed(sum(each.entries for each in removed), sum(each.size_bytes for each in removed))
