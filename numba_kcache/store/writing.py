"""Change the tree of a store on disk: put, remove, and take turns to build.

Promise     A failure is an event, and the caller continues; a directory that cannot be written to is replaced by the
            private store. After a full disk nothing is written for a minute.
Not here    Limits (store.limits), publishing (store.publish), and who takes a turn (store.locks).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ..model import Event, EventKind
from .entry import ENTRY, MANIFEST, Variant, encode_manifest, merge
from .folders import LOCKS, PRIVATE, Folder
from .limits import Limits
from .locks import KeyLocks

if TYPE_CHECKING:  # disk imports this module
    from .disk import DiskStore
    from .memory import MemoryStore
    from .report import Removed

PAUSE_S = 60.0
"""Time without writing after the disk was found full, or nearly so."""

_MANIFEST_WAIT_S = 1.0
_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_TEMPORARY = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR)


class Writer:
    """The changes to one store on disk."""

    def __init__(self, store: DiskStore) -> None:
        self._store, self._tree = store, store.tree
        self.limits = Limits(store)
        self.is_settled = False
        self._locks: KeyLocks | None = None
        self._paused_s = -PAUSE_S

    @property
    def locks(self) -> KeyLocks:
        """Turns of this node. Their files are in the tree or, if that is not local or writable, in the private one."""
        store, tree = self._store, self._tree
        if not store.readonly:
            self.settle()
        with store.opening:
            if self._locks is None and store.private is not None:
                self._locks = store.private.locks
            elif self._locks is None:
                self._locks = KeyLocks(None if store.readonly else Folder(tree, LOCKS))
            return self._locks

    def settle(self) -> None:
        """Make the directory before the first write; where it cannot be written to, replace it."""
        store = self._store
        if self.is_settled:
            return
        store.is_usable()
        if not store.is_replaced:  # many threads may do this at once: no lock is held when it is reported
            try:
                with self._tree.opened(PRIVATE, make="none"):
                    pass
                if not os.access(".", os.W_OK | os.X_OK, dir_fd=self._tree.base()):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), store.directory)
            except OSError as error:
                if error.errno in _TEMPORARY:
                    return
                store.replace(error)
            store.is_usable()
        self.is_settled = True

    def put(self, key: str, data: bytes) -> bool:
        """Store an encoded entry; returns True if it was stored."""
        store = self._store
        if len(data) > store.max_size_bytes:
            store.trouble("put", f"an entry of {len(data)} bytes is above the limit of {store.max_size_bytes}")
            return False
        self.settle()
        is_stored = not store.is_replaced and self._write(ENTRY, key, data)
        if store.private is not None:  # `settle` may just have set it
            is_stored = store.private.put_encoded(key, data) or is_stored
        return is_stored

    def put_all(self, files: Iterable[tuple[str, bytes]], size_bytes: int) -> None:
        """Store all of these encoded entries, or raise OSError and store none."""
        from .batch import publish_all

        store = self._store
        self.settle()
        if store.is_replaced and store.private is not None:
            store.private.put_all(files, size_bytes)
            return
        shortage = self.limits.shortage(size_bytes)
        if shortage or size_bytes > store.max_size_bytes:
            reason = shortage or f"{size_bytes} bytes are above the limit of {store.max_size_bytes}"
            raise OSError(errno.ENOSPC, reason)
        publish_all(self._tree, files, durability=store.durability, time_ns=int(store.clock() * 1e9))
        if not store.is_network:
            self.limits.start()

    def add_variant(self, family: str, *variants: Variant) -> bool:
        """Put `variants` before those of `family`, the last one first. Returns True if they were stored."""
        store = self._store
        self.settle()
        if store.is_replaced and store.private is not None:
            return store.private.add_variant(family, *variants)
        with self.locks.turn(f"{family}.manifest", lambda: None, _MANIFEST_WAIT_S):
            before = store.read_variants(family)
            after = merge(before, *variants)
            if after == before:
                return True
            return self._write(MANIFEST, family, encode_manifest(family, after))

    def _write(self, kind: int, key: str, data: bytes) -> bool:
        store = self._store
        now_s = store.clock()
        if 0 <= now_s - self._paused_s < PAUSE_S:  # unless the clock was set back
            return False
        shortage = self.limits.shortage(len(data))
        if shortage:
            store.trouble("put", shortage)
            return self._pause()
        try:
            self._tree.write(kind, key, data, durability=store.durability, time_ns=int(now_s * 1e9))
        except OSError as error:
            if error.errno in _NOT_WRITABLE:
                store.replace(error)
            else:
                store.trouble("put", error)
            return self._pause() if error.errno in _FULL else False
        if kind == ENTRY:
            store.emit(Event(EventKind.STORED, {"key": key, "size_bytes": len(data)}))
        if not store.is_network:
            self.limits.start_if_due(key)
        return True

    def _pause(self) -> bool:
        """Store nothing for `PAUSE_S`, and start a pass that may make room."""
        self._paused_s = self._store.clock()
        self.limits.start()
        return False

    def removed(self, work: Callable[[Limits | DiskStore | MemoryStore], Removed]) -> Removed:
        """The sum of what `work` removes from the tree and from the private store."""
        from .report import Removed

        store = self._store
        if store.readonly:
            return Removed(0, 0)
        parts: list[Limits | DiskStore | MemoryStore] = [self.limits] if store.is_usable() else []
        if store.private is not None:
            parts.append(store.private)
        self.limits.wait()
        removed = [work(each) for each in parts]
        return Removed(sum(each.entries for each in removed), sum(each.size_bytes for each in removed))
