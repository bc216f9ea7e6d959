"""Another cache directory as a tier: an image layer, a team's share.

Promise     Read-only, nothing is written there, recency neither. A directory that others can write to is refused
            unless `shared` says that they are trusted, as the local one is; root's is as good as the user's own.
Method      The same tree of files as the local store's, without its locks, limits and fallbacks.
Not here    Limits: `prune` on that directory keeps them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from ..store.entry import ENTRY, MANIFEST, require_key
from ..store.publish import Durability
from ..store.tree import Tree, refusal


class DirectoryTier:
    """A directory that another cache has filled.

    Args:
        path: Absolute.
        readonly: Whether nothing is put there.
        shared: Trust it though others can write to it.
        durability: What a put forces to the disk.
        is_vouched: Whether it is believed without signatures.
    """

    is_remote = False

    def __init__(
        self,
        path: str,
        *,
        readonly: bool = True,
        shared: bool = False,
        durability: Durability = "data",
        is_vouched: bool = False,
    ) -> None:
        self.name, self.readonly, self.is_vouched = path, readonly, is_vouched
        self._shared, self._durability = shared, durability
        self._tree = Tree(path, shared=shared)
        self._signatures = Tree(f"{path}/signatures", shared=shared)
        self._is_checked = False

    def get_entry(self, key: str) -> bytes | None:
        """The file of the entry `key`."""
        return self._read(ENTRY, key)

    def get_manifest(self, family: str) -> bytes | None:
        """The file of the manifest `family`."""
        return self._read(MANIFEST, family)

    def put_entry(self, key: str, data: bytes) -> None:
        """Publish the file of an entry."""
        self._write(ENTRY, key, data)

    def put_manifest(self, family: str, data: bytes, before: bytes | None) -> bool:
        """Publish the file of a manifest in place of `before`; False where another stands there by now."""
        if os.path.lexists(self.name) and self._read(MANIFEST, family) != before:
            return False
        self._write(MANIFEST, family, data)  # whoever writes in this moment, too, loses: there are no locks
        return True

    def get_signature(self, kind: int, key: str) -> bytes | None:
        """What stands beside an entry or manifest."""
        return self._read(kind, key, self._signatures)

    def put_signature(self, kind: int, key: str, record: bytes) -> None:
        """Publish it."""
        self._write(kind, key, record, self._signatures)

    def keys(self, kind: int) -> Iterator[str]:
        """The keys of all entries or manifests."""
        self._check()
        return (file.key for file in self._tree.walk(kind))

    def ready(self) -> None:
        """Nothing is needed."""

    def close(self) -> None:
        """Nothing is held open."""

    def _read(self, kind: int, key: str, tree: Tree | None = None) -> bytes | None:
        self._check()
        tree = tree or self._tree
        try:
            return tree.read(tree.path(kind, require_key(key)), None)
        except FileNotFoundError:
            return None

    def _write(self, kind: int, key: str, data: bytes, tree: Tree | None = None) -> None:
        if not self._is_checked and os.path.lexists(self.name):
            self._check()
        tree = tree or self._tree
        tree.write(kind, require_key(key), data, durability=self._durability, time_ns=time.time_ns())

    def _check(self) -> None:
        """Look at the directory once; PermissionError if it must not be used, OSError if it is not there."""
        if self._is_checked:
            return
        status = os.stat(self.name)
        if status.st_uid == 0:  # an image layer; root could write anywhere anyhow
            status = os.stat_result((*status[:4], os.geteuid(), *status[5:10]))
        reason = refusal(self.name, status, shared=self._shared)
        if reason is not None:
            raise PermissionError(reason)
        self._is_checked = True
