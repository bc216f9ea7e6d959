"""Another cache directory as a tier: an image layer, a team's share.

Promise     A read-only directory is never written to, not even to renew an entry's time of use. A directory that others
            can write to is refused, like the local one, unless `shared` says that they are trusted; one that root
            owns counts as the user's own.
Method      The same tree of files as the local store's, without its locks, limits and fallbacks.
Not here    Limits: run `prune` on that directory to keep them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..store import Tree, require_key
from .tier import Tier
from .trust import SIGNATURE

if TYPE_CHECKING:
    from ..settings import Durability


class DirectoryTier(Tier):
    """A directory that another cache has filled.

    Args:
        path: Absolute.
        shared: Trust it though others can write to it.
        durability: What a put forces to the disk.
    """

    def __init__(self, path: str, *, shared: bool = False, durability: Durability = "none") -> None:
        self.name = path
        self._tree = Tree(path, shared=shared, durability=durability)
        self._signatures = Tree(path, shared=shared, below=("signatures",), durability=durability)

    def get(self, kind: int, key: str) -> bytes | None:
        """Read a file as it is."""
        self._check()
        tree, kind = self._place(kind)
        try:
            return tree.read(kind, key)
        except FileNotFoundError:
            return None

    def put(self, kind: int, key: str, data: bytes) -> None:
        """Publish a file; the first put makes the directory."""
        from ..store.writing import write

        tree, kind = self._place(kind)
        write(tree, kind, require_key(key), data, time_ns=time.time_ns())

    def keys(self, kind: int) -> Iterator[str]:
        """List the keys of all entries or manifests."""
        self._check()
        return (file.key for file in self._tree.walk(kind))

    def _place(self, kind: int) -> tuple[Tree, int]:
        return (self._signatures, kind - SIGNATURE) if kind > SIGNATURE else (self._tree, kind)

    def _check(self) -> None:
        """Raise OSError if a directory that is only read is not there, Refused if one must not be used."""
        try:
            self._tree.base()
        except FileNotFoundError:
            if self.readonly:
                os.close(self._tree.open_root())  # the directory exists, and nothing was stored in it yet
