"""Publish many entries together: all of them, or none.

Promise     When publish_all() raises, none of its files is left. A process that is killed while it renames leaves some
            of the entries, each complete.
Method      Every file is written under a private name first, and synced where the durability asks for it, so that a
            full disk is found before the first rename. Then each is renamed.
Not here    Entries that the store has already: the caller leaves them out, since a rollback would remove them.
Faults      batch.written, .named (tests/crash kills here).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from .entry import ENTRY, require_key
from .faults import reached
from .folders import PRIVATE, file_mode, is_irregular, set_aside
from .publish import Durability, private_name, publish
from .tree import FOLDERS, Tree

FAULT_POINTS = ("batch.written", "batch.named")


def publish_all(tree: Tree, files: Iterable[tuple[str, bytes]], *, durability: Durability, time_ns: int) -> None:
    """Publish entries.

    Args:
        tree: Tree to publish into.
        files: Key and bytes of each.
        durability: As of `publish`.
        time_ns: Modification time that the files are given.

    Raises:
        OSError: None was published.
    """
    written: list[tuple[str, str]] = []
    named: list[str] = []
    with tree.opened(PRIVATE, make=durability) as private:
        try:
            for key, data in files:
                own, mode = f"{private_name()}.batch", file_mode(tree)
                publish(data, private, own, private=private, durability=durability, time_ns=time_ns, mode=mode)
                written.append((own, require_key(key)))
            reached("batch.written")
            for own, key in written:
                with tree.opened(FOLDERS[ENTRY], key[:2], make=durability) as folder:
                    if is_irregular(folder, key[2:]):
                        set_aside(tree, ENTRY, key)
                    os.rename(own, key[2:], src_dir_fd=private, dst_dir_fd=folder)
                named.append(key)
                reached("batch.named")
        except BaseException:  # an interrupt too must leave nothing behind
            for key in named:
                with suppress(OSError), tree.opened(FOLDERS[ENTRY], key[:2]) as folder:
                    os.unlink(key[2:], dir_fd=folder)
            for own, _ in written:
                with suppress(OSError):
                    os.unlink(own, dir_fd=private)
            raise
