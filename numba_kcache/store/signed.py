"""Hide code whose signature was not checked from sessions that demand signatures.

Promise     A session that demands signatures finds no entry and no manifest that was stored in a directory after a
            session without that demand had accepted a file of a tier or a bundle, and no code linked from such entries.
Method      A session that has accepted such a file makes the empty file `unsigned` in the tree before each of its
            writes. A session that demands signatures looks for this file after each read, and once it is there uses
            the tree `<root>/signed/v1`. The file stays when the tree is cleared: a process may be about to write.
Not here    The check of signatures (tiers.trust). Code compiled on this machine, without tiers, needs none.
"""

from __future__ import annotations

import os

from . import SIGNED, Refused, Tree, open_in, stat_in

UNSIGNED = "unsigned"


class SignedTree(Tree):
    """The tree for a session that demands signatures: the usual one or, if that is marked, `<root>/signed/v1`."""

    def base(self, name: str = "") -> int:
        """As `Tree.base`, in a tree without the mark."""
        for _ in range(3):  # another thread may just have opened the marked folder again
            if not is_marked(super().base()):
                return super().base(name)
            self.names = (SIGNED, self.names[-1])
            self.forget()
        raise Refused(f"{self.root} has a file {UNSIGNED} where only signed code may be")

    def read(self, kind: int, key: str, now_ns: int | None = None) -> bytes:
        """As `Tree.read`, from a tree without the mark."""
        names, data = self.names, super().read(kind, key, now_ns)
        self.base()  # a mark is made before a file is written, so it is there after the file was read
        return data if self.names == names else self.read(kind, key, now_ns)


def mark(tree: Tree) -> None:
    """Record in a tree that it holds code whose signature was not checked.

    Raises:
        OSError: The mark was not made: the caller must not write.
    """
    folder = tree.base()
    if not is_marked(folder):
        os.close(open_in(folder, UNSIGNED, os.O_WRONLY | os.O_CREAT))
        os.fsync(folder)  # once: the mark must outlast a power cut if the entries do


def is_marked(folder: int) -> bool:
    """Check whether the open folder of a tree has the mark."""
    try:
        return bool(stat_in(folder, UNSIGNED))
    except FileNotFoundError:
        return False
