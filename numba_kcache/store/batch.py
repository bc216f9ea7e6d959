"""Publish many entries together: all of them, or none.

Promise     When publish_all() raises, nothing of the call is left. A process that is killed while the names are given
            leaves some of the entries, each whole.
Method      Every file is written and synced under a private name first: what can fail for want of room, fails there.
            Then each is renamed.
Not here    Whole entries that are there already: the caller leaves them out, since undoing would remove them.
Faults      batch.written, .named (tests/crash kills here).
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from .entry import ENTRY
from .faults import reached
from .publish import Durability, publish
from .tree import Tree, remove

FAULT_POINTS = ("batch.written", "batch.named")


def publish_all(tree: Tree, files: Iterable[tuple[str, bytes]], *, durability: Durability, time_ns: int) -> None:
    """Publish entries.

    Args:
        tree: Where to.
        files: Key and bytes of each.
        durability: As for one.
        time_ns: Modification time that the files are given.

    Raises:
        OSError: None was published.
    """
    mode = 0o666 if tree.shared else 0o600
    written: list[tuple[str, str]] = []
    named: list[str] = []
    try:
        for key, data in files:
            target = tree.path(ENTRY, key)
            private = f"{tree.private}/{os.getpid()}.{os.urandom(8).hex()}.batch"
            publish(data, private, private=tree.private, durability=durability, time_ns=time_ns, mode=mode)
            written.append((private, target))
        reached("batch.written")
        for folder in {os.path.dirname(target) for _, target in written}:
            tree.make(folder, durability)
        for private, target in written:
            os.rename(private, target)
            named.append(target)
            reached("batch.named")
    except BaseException:  # an interrupt too must leave nothing behind
        for path in (*named, *(private for private, _ in written)):
            remove(path)
        raise
