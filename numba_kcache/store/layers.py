"""Where a store goes: whether its own directory will do, and what stands in front of it or in its place.

Promise     A directory that is not ours, or that cannot be made or written to, is replaced by a private one, or by
            memory; a directory on a network filesystem gets a private local one in front of it, and no lock and no
            walk goes over the network. Each of these is found once, and said once.
Method      One stat at the first use that finds the directory there; making it, and a look whether it can be
            written to, at the first write.
Not here    What is done there (store.disk), and which directory may be trusted (store.directory).
"""

from __future__ import annotations

import errno
import os
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..model.event import Emit, trouble
from . import directory
from .system import after_fork
from .tree import RECENCY_NS, Tree

if TYPE_CHECKING:  # these are for writing, or for when something is wrong: a hit goes without them
    from .disk import DiskStore
    from .limits import Limits
    from .locks import KeyLocks
    from .memory import MemoryStore

ABSENT = (errno.ENOENT, errno.ENOTDIR)
_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR)


class Layers:
    """What stands in front and in place of one tree.

    Args:
        tree: Whose root is looked at.
        readonly: Nothing is made.
        limits: Those of the tree; asked for when they are needed.
        private_store: Makes a store of this user alone on a local disk, or in memory.
        emit: Takes TROUBLE.

    Attributes:
        front: Asked before the tree, and given what the tree holds; None for most.
        spare: Takes what the tree cannot; None while the tree can.
        is_checked: Whether the directory was there and has been looked at.
        is_refused: Whether the tree must not be read.
        refresh_ns: How old the recency of a file must be before a hit renews it.
        opening: Held by the thread that finds out any of this, or makes what is made once.
    """

    __slots__ = (
        "__weakref__",
        "_emit",
        "_is_settled",
        "_limits",
        "_locks",
        "_private_store",
        "_readonly",
        "_tree",
        "front",
        "is_checked",
        "is_refused",
        "opening",
        "refresh_ns",
        "spare",
    )

    def __init__(
        self,
        tree: Tree,
        *,
        readonly: bool,
        limits: Callable[[], Limits],
        private_store: Callable[[], DiskStore | MemoryStore],
        emit: Emit,
    ) -> None:
        self._tree, self._readonly, self._emit = tree, readonly, emit
        self._limits, self._private_store = limits, private_store
        self.front: DiskStore | MemoryStore | None = None
        self.spare: DiskStore | MemoryStore | None = None
        self.is_checked = self.is_refused = self._is_settled = False
        self.refresh_ns = RECENCY_NS
        self._locks: KeyLocks | None = None
        self.opening = threading.RLock()
        _all.add(self)

    def others(self) -> list[DiskStore | MemoryStore]:
        """The stores in front and in place of the tree."""
        return [layer for layer in (self.front, self.spare) if layer is not None]

    def is_usable(self) -> bool:
        """Whether the tree may be read and written to, as far as is known."""
        if not self.is_checked:
            self.check()
        return not self.is_refused

    def check(self) -> None:
        """Look at the directory once, as soon as it is there."""
        root = self._tree.root
        try:
            status = os.stat(root)
        except OSError as error:
            if error.errno not in ABSENT:
                self._refuse(error)
            return
        with self.opening:
            if self.is_checked:
                return
            reason = directory.refusal(root, status, shared=self._tree.shared)
            if reason is not None:
                self._refuse(reason)
            elif directory.is_network(root, status):
                self.refresh_ns = 24 * RECENCY_NS
                self.front = self._private_store()
                self._limits().is_kept = False
            self.is_checked = True

    def settle(self) -> None:
        """Before the first write: make the directory, or find that it cannot be written to."""
        if self._is_settled:
            return
        with self.opening:
            if self._is_settled:
                return
            if not self.is_checked:
                self.check()
            if self.spare is None:
                try:
                    if self._tree.make(self._tree.private):
                        self._limits().begin()
                    if not os.access(self._tree.root, os.W_OK | os.X_OK):
                        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), self._tree.root)
                except OSError as error:
                    if error.errno in _PASSING:
                        return
                    self._emit(trouble("directory", error))
                    self.go_elsewhere()
            if not self.is_checked:
                self.check()
            self._is_settled = True

    def go_elsewhere(self) -> None:
        """From now on what is new goes to a private store."""
        with self.opening:
            if self.spare is None:
                self.spare = self._private_store()

    def _refuse(self, reason: object) -> None:
        with self.opening:
            self._emit(trouble("directory", reason))
            self.is_refused = self.is_checked = True
            self.go_elsewhere()

    def locks(self) -> KeyLocks:
        """The locks, in the tree or, where it is not local or not writable, in a private directory."""
        if self._locks is None:
            if not self._readonly:
                self.settle()
            with self.opening:
                if self._locks is None:
                    self._locks = self._choose_locks()
        return self._locks

    def _choose_locks(self) -> KeyLocks:
        from .disk import DiskStore
        from .locks import KeyLocks

        other = self.front or self.spare
        if isinstance(other, DiskStore):
            return other.layers.locks()
        if other is not None or self._readonly:
            return KeyLocks(None)
        tree = self._tree
        return KeyLocks(tree.locks, lambda: tree.make(tree.locks), mode=0o666 if tree.shared else 0o600)


_all: weakref.WeakSet[Layers] = weakref.WeakSet()


def _after_fork() -> None:
    for each in _all:
        each.opening = threading.RLock()  # another thread of the parent may have held it


after_fork(_after_fork)
