"""Share compiled headers among the kernels of a warm-up worker, by NVRTC's automatic precompiled headers.

Promise     Off, except in workers. Code, log and key are those of a plain compile. Precompiled headers are used only
            while each file that was opened when they were made is unchanged, which NVRTC itself does not check. A
            header contained in them counts as read, though it is not opened again.
Method      Only compiles from a mirror use them: the mirror's folder is named by the contents of the user's headers,
            is kept as long as the process, and is one of the options that NVRTC compares. The files that NVRTC opened
            while it made them are recorded with their stats, under the folder that holds the precompiled headers: one
            for all texts with the same mirror, options and beginning, up to the last `#include`. When their memory is
            exhausted, or there are `MOST` of them, no more are made; nor in a process that was forked from the one that
            made them.
Not here    Compiles without a watch on the files opened: they get no precompiled headers.
Source      NVRTC 13.5: its files contain addresses of this process and of those forked from it. NVRTC does not notice
            an edit of a header contained in one.
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
"""Limit of the precompiled headers of a process: each takes some 300 MB with CUB."""

_NEVER = FileStat(-1, -1, -1, -1, -1)
"""Recorded for a file that may have been written while it was read: no real stat equals it."""

_INCLUDE = r"(?m)^[ \t]*#[ \t]*include\b.*$"


def beginning_of(source: str) -> str:
    """The text up to its last `#include`; "" if it has none."""
    ends = [each.end() for each in re.finditer(_INCLUDE, source)]
    return source[: ends[-1]] if ends else ""


class Precompiled:
    """The precompiled headers of this process.

    Attributes:
        root: The private folder that holds them, and their mirrors; "" while they are off.
        mirrors: For each mirror that is kept its root, and its folders by the user's folders that they replace.
        most: Limit of the number of precompiled headers; 0 if they belong to another process.
    """

    def __init__(self) -> None:
        self.root, self.most = "", MOST
        self.mirrors: dict[tuple[str, ...], tuple[str, dict[str, str]]] = {}
        self._opened: dict[str, dict[str, FileStat | None]] = {}
        self._places: dict[str, set[str]] = {}

    def begin(self, parent: str | None = None) -> None:
        """Enable precompiled headers, if NVRTC supports them, in a private folder of this user."""
        from ..toolchain.nvrtc import reserve_precompiled

        if not self.root and reserve_precompiled():
            with suppress(OSError):
                self.root = tempfile.mkdtemp(prefix="numba_kcache-pch-", dir=parent)

    def are_made(self) -> bool:
        """Check whether precompiled headers were made, which forked processes may use."""
        return bool(self.root and self._opened)

    def end(self) -> None:
        """Remove the precompiled headers, if they belong to this process."""
        if not self.most:
            return
        root, self.root = self.root, ""
        shutil.rmtree(root or os.devnull, ignore_errors=True)
        self.mirrors.clear()

    def folder(self, mirror: str, source: str, flags: Sequence[str] = ()) -> str:
        """The folder of precompiled headers for a source that reads a mirror; "" to compile without them.

        Args:
            mirror: Folder of the mirror.
            source: CUDA C++.
            flags: NVRTC's flags.
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
        """Record the files opened in a compile with such a folder; they count as opened in later compiles with it.

        Args:
            folder: The folder used in the compile.
            watches: Watches on all files that it may have opened.
            trees: Roots of the toolkit's trees, in which a new file may be found before another.
            since_ns: Time at which the compile began: a file changed later may have been read in its earlier state.
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
            watch.mark_opened(path for path in known if path not in places)


precompiled = Precompiled()


def _stat(path: str) -> FileStat | None:
    try:
        return stat_of(os.stat(path))
    except OSError:
        return None
