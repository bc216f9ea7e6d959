"""Change the tree of a store on disk: put, remove, and take turns to build.

Promise     A failure is an event, and the caller continues. After a full disk nothing is written for a minute, or until
            something is removed.
Not here    Limits (store.limits), publishing (store.publish), and who takes a turn (store.locks).
"""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from ..model import Event, EventKind, tell_wait
from .entry import ENTRY
from .folders import LOCKS, PRIVATE, Folder, local_directory, unwritable, words_of
from .limits import Limits
from .locks import KeyLocks
from .tree import Tree

if TYPE_CHECKING:  # disk imports this module
    from .disk import DiskStore
    from .report import Removed

PAUSE_S = 60.0
"""Time without writing after the disk was found full, or nearly so."""

_MANIFEST_WAIT_S = 1.0
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Writer:
    """The changes to one store on disk."""

    def __init__(self, store: DiskStore) -> None:
        self._store, self._tree = store, store.tree
        self.limits = Limits(store)
        self._locks: KeyLocks | None = None
        self._paused_s = -math.inf

    @property
    def locks(self) -> KeyLocks:
        """Turns of this node. Their files are in the tree or, if that is not local, on a local disk."""
        store, tree = self._store, self._tree
        if self._locks is None:
            folder = None if store.readonly else Folder(tree, LOCKS)
            with suppress(OSError):  # reported when something is stored
                if folder is not None:
                    with tree.opened(LOCKS, make="none"):
                        pass
                if folder is not None and store.is_network:
                    folder = Folder(Tree(local_directory(store.directory)), LOCKS)
            with store.opening:
                self._locks = self._locks or KeyLocks(folder)
        return self._locks

    def prepare(self) -> str:
        """Make the directory. Returns the reason why it cannot be written to, or ""."""
        try:
            with self._tree.opened(PRIVATE, make="none"):
                pass
        except OSError as error:
            self._store.failed("directory", error, is_written=True)
            return words_of(error, self._store.directory)
        return unwritable(self._tree)

    def put_all(self, files: Iterable[tuple[str, bytes]], size_bytes: int) -> None:
        """Store all of these encoded entries, or raise OSError and store none."""
        from .files import publish_all

        store = self._store
        shortage = self.limits.shortage(size_bytes)
        if shortage or size_bytes > store.max_size_bytes:
            reason = shortage or f"{size_bytes} bytes are above the limit of {store.max_size_bytes}"
            raise OSError(errno.ENOSPC, reason)
        publish_all(self._tree, files, durability=store.durability, time_ns=int(store.clock() * 1e9))
        if not store.is_network:
            self.limits.start()

    @contextmanager
    def changing(self, family: str) -> Iterator[None]:
        """A context in which no other process changes a manifest; after a second it begins without that."""
        with self.locks.turn(f"{family}.manifest", lambda: None, _MANIFEST_WAIT_S) as (_, waited_s, _):
            tell_wait(self._store.emit, "another process that changes the same manifest", waited_s)
            yield

    def put(self, kind: int, key: str, data: bytes) -> bool:
        """Store an encoded file; returns True if it was stored."""
        store = self._store
        if len(data) > store.max_size_bytes:
            store.trouble("put", f"an entry of {len(data)} bytes is above the limit of {store.max_size_bytes}")
            return False
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
            store.failed("put", error, is_written=True)
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

    def removed(self, work: Callable[[Limits], Removed]) -> Removed:
        """Return what `work` removes from the tree; there may then be room for new entries."""
        from .report import Removed

        if not (self._store.is_written() and self._store.is_usable()):
            return Removed(0, 0)
        self.limits.wait()
        try:
            return work(self.limits)
        finally:
            self._paused_s = -math.inf
