"""Scan a toolkit's headers while the compiler runs, as it opens them; otherwise they are scanned after the compile.

Promise     Only the cache of scans is filled: the caller compares the stat of each header with that of its row, as with
            the rows of an earlier process. Nothing is read that the compiler did not open. After the compile, `close`
            waits at most for one header.
Method      NVRTC runs without the GIL, and opens a header some milliseconds before its compile ends. A thread waits for
            the watch to report opened files. The two headers of `cuda_fp16.h` take 8 ms in a fresh process, with the
            compilation of the scanner's regular expressions.
Not here    Which headers were read (reading), and the rows (tree_scans).
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress

from .open_watch import OpenWatch
from .tree_scans import TreeScans


class ScanBeside:
    """A thread that scans headers from construction until `close`.

    Args:
        watch: The watch on the trees; no other thread may use it until `close`.
        scans: The cached scans of each tree, by its root; `close` adds to them.
        roots: The trees whose headers are scanned.
        now_ns: The time by the wall clock before the compile, in nanoseconds.
    """

    def __init__(self, watch: OpenWatch, scans: Mapping[str, TreeScans], roots: Iterable[str], now_ns: int) -> None:
        self._watch, self._scans, self._now_ns = watch, scans, now_ns
        self._found = {root: TreeScans() for root in roots}  # not in `scans` yet: another thread may be saving those
        self._places = [(os.path.realpath(root) + "/", each) for root, each in self._found.items()]
        self._end = self._wake = -1
        if self._places and watch.is_whole():
            with suppress(OSError):  # too many open files: the caller scans after the compile
                self._end, self._wake = os.pipe()
        self._thread = threading.Thread(target=self._work, name="numba_kcache headers", daemon=True)
        try:
            if self._end >= 0:
                self._thread.start()
        except RuntimeError:  # no more threads can be started
            self._close_pipe()

    def close(self) -> None:
        """End the thread, and add its scans to the cached ones."""
        if self._end < 0:
            return
        os.write(self._wake, b"!")
        self._thread.join()
        self._close_pipe()
        for root, found in self._found.items():
            for inside, row in found.rows.items():
                self._scans[root].rows.setdefault(inside, row)

    def _close_pipe(self) -> None:
        os.close(self._end)
        os.close(self._wake)
        self._end = -1

    def _work(self) -> None:
        ready, done = select.poll(), set[str]()
        ready.register(self._end, select.POLLIN)
        ready.register(self._watch.fileno(), select.POLLIN)
        while self._end not in dict(ready.poll()):
            for path in self._watch.opened():
                for root, scans in self._places:
                    if path not in done and path.startswith(root):
                        done.add(path)
                        with suppress(Exception):  # the caller scans the header again, and gets the same error
                            scans.look(path[len(root) :], path, self._now_ns)
                if dict(ready.poll(0)).get(self._end):
                    return
