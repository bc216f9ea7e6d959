"""Let workers compile the headers that their kernels have in common once: by NVRTC's automatic precompiled headers.

Promise     Off, unless a worker says otherwise. Code, log and key are those of a plain compile. Precompiled headers are
            used only while each file that was opened when they were made is as it was then: NVRTC itself does not look.
            A header behind them counts as read, though nobody opens it any more.
Method      Only what reads a mirror has them: its folder is named by the user's headers, stays as long as the process,
            and is a part of the options that NVRTC compares. What it opened while it made them is noted with its stat,
            by the folder in which it keeps them: one for all texts that have mirror, options and beginning in common,
            up to the last file that they include. Where their memory runs out, or one more than `MOST` comes, there are
            no new ones; nor in a process that was forked from the one that made them.
Not here    Reading stats of files that nobody watched: without a watch there are none.
Ground      NVRTC 13.5: its files hold addresses of this process and of those forked from it. An edit of a header
            behind one goes unseen.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from .file_identity import FileStat, stat_of

if TYPE_CHECKING:
    from .open_watch import OpenWatch

MOST = 2
"""Of them in a process: each takes some 300 MB with CUB."""

_NEVER = FileStat(-1, -1, -1, -1, -1)
"""Of a file that may have been written while it was read: it is never as it was."""

_include = re.compile(r"^[ \t]*#[ \t]*include\b.*$", re.MULTILINE)


def beginning_of(source: str) -> str:
    """Give the text up to the last file that it includes; "" where it includes none."""
    ends = [each.end() for each in _include.finditer(source)]
    return source[: ends[-1]] if ends else ""


class Precompiled:
    """The precompiled headers of this process.

    Attributes:
        root: The private folder that holds them, and their mirrors; "" while they are off.
        mirrors: What is kept of them: the root of each, and its folders by those of the user.
        most: How many there may be; 0 where they are another process's.
    """

    def __init__(self) -> None:
        self.root, self.most = "", MOST
        self.mirrors: dict[tuple[str, ...], tuple[str, dict[str, str]]] = {}
        self._opened: dict[str, dict[str, FileStat | None]] = {}
        self._places: dict[str, set[str]] = {}

    def begin(self, parent: str | None = None) -> None:
        """Use them from now on, where NVRTC has them, below a folder of this user alone."""
        from ..toolchain.nvrtc import reserve_precompiled

        if not self.root and reserve_precompiled():
            with suppress(OSError):
                self.root = tempfile.mkdtemp(prefix="numba_kcache-pch-", dir=parent)

    def are_made(self) -> bool:
        """Check whether there are some, which a forked process may use."""
        return bool(self.root and self._opened)

    def end(self) -> None:
        """Remove them, if they are this process's."""
        if not self.most:
            return
        root, self.root = self.root, ""
        shutil.rmtree(root or os.devnull, ignore_errors=True)
        self.mirrors.clear()

    def folder(self, mirror: str, source: str, flags: Sequence[str] = ()) -> str:
        """Name the folder for a source that reads a mirror; "" where it is compiled without.

        Args:
            mirror: Folder of the mirror.
            source: CUDA C++.
            flags: Of NVRTC.
        """
        beginning = beginning_of(source)
        if not self.root or not beginning:
            return ""
        from ..keys import digest_of

        path = os.path.join(self.root, digest_of([mirror, beginning, *flags])[:16])
        known = self._opened.get(path)
        if known is None:
            if len(self._opened) >= self.most:
                return ""
            with suppress(OSError):
                os.makedirs(path)
            return path
        return path if all(_stat(file) == stat for file, stat in known.items()) else ""

    def learn(self, folder: str, watches: Sequence[OpenWatch], trees: Sequence[str], since_ns: int) -> None:
        """Note what was opened in a compile with such a folder, and have it count as opened in the next.

        Args:
            folder: Of the compile.
            watches: On all that it may have opened.
            trees: Roots of the toolkit's trees, in which a file that appears may come before another.
            since_ns: When it began: what changed later may have been read before.
        """
        known = self._opened.setdefault(folder, {})
        opened = [path for watch in watches for path in watch.opened() if path not in known]
        roots = [os.path.realpath(root) for root in trees]
        inside = {os.path.relpath(os.path.dirname(path), root) for path in opened for root in roots
                  if path.startswith(root + "/")}  # fmt: skip
        places = self._places[folder] = self._places.get(folder, set()) | {
            os.path.normpath(os.path.join(root, each)) for root in roots for each in inside
        }
        for path in (*opened, *places):
            stat = _stat(path)
            is_new = stat is not None and max(stat.mtime_ns, stat.ctime_ns) >= since_ns
            known.setdefault(path, _NEVER if is_new else stat)
        for watch in watches:
            watch.suppose(path for path in known if path not in places)


precompiled = Precompiled()


def _stat(path: str) -> FileStat | None:
    try:
        return stat_of(os.stat(path))
    except OSError:
        return None
