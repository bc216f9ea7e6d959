"""Publish many entries together: all of them, or none.

Promise     When publish_all() raises, none of its files is left. A process that is killed while it renames leaves some
            of the entries, each complete.
Method      Every file is written under a private name first, and synced where the durability requires it, so that a
            full disk is found before the first rename. Then each is renamed.
Not here    Entries that the store has already: the caller leaves them out, since a rollback would remove them.
Faults      batch.written, .named (tests/crash kills here).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from . import rename_in, unlink_in
from .entry import ENTRY, require_key
from .faults import reached
from .folders import PRIVATE, file_mode
from .publish import Durability, private_name, publish
from .shards import is_irregular, mark_if_unsigned, set_aside
from .tree import FOLDERS, Tree

FAULT_POINTS = ("batch.written", "batch.named")


def publish_all(tree: Tree, files: Iterable[tuple[str, bytes]], *, durability: Durability, time_ns: int) -> None:
    """Publish all entries, or none.

    Args:
        tree: Tree to publish into.
        files: Key and bytes of each entry.
        durability: As that of `publish`.
        time_ns: Modification time of the files.

    Raises:
        OSError: No entry was published.
    """
    written: list[tuple[str, str]] = []
    renamed: list[str] = []
    mark_if_unsigned(tree)
    with tree.opened(PRIVATE, make=durability) as private:
        try:
            for key, data in files:
                private_file, mode = f"{private_name()}.batch", file_mode(tree)
                publish(data, private, private_file, private=private, durability=durability, time_ns=time_ns, mode=mode)
                written.append((private_file, require_key(key)))
            reached("batch.written")
            for private_file, key in written:
                with tree.opened(FOLDERS[ENTRY], key[:2], make=durability) as folder:
                    if is_irregular(folder, key[2:]):
                        set_aside(tree, ENTRY, key)
                    rename_in(private, private_file, folder, key[2:])
                renamed.append(key)
                reached("batch.named")
        except BaseException:  # an interrupt too must leave nothing behind
            for key in renamed:
                with suppress(OSError), tree.opened(FOLDERS[ENTRY], key[:2]) as folder:
                    unlink_in(folder, key[2:])
            for private_file, _ in written:
                with suppress(OSError):
                    unlink_in(private, private_file)
            raise
