"""Show what is being done when it takes longer than a second: a compile, or work on many entries.

Promise     Work of less than a second shows nothing. A longer one shows a live line on standard error if that
            is a terminal. An error in showing it never reaches the work.
Method      Each work starts a thread that waits for its end. A hit starts none, nor does a compile without a terminal.
Not here    The log line that every compile gets at its end (observe).
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TextIO

from ..errors import plain

_EVERY_S = 1.0
_ERASE_LINE = "\x1b[K"


@contextmanager
def shown(
    what: str,
    after_s: float = 1.0,
    stream: TextIO | None = None,
    *,
    words: tuple[str, str] = ("compiling", "compiled"),
    count: Callable[[], str] = lambda: "",
) -> Iterator[None]:
    """Show what is being done once the context has lasted longer than `after_s`.

    Args:
        what: The kernel and its target, `"saxpy for sm_90"`.
        after_s: Seconds without output.
        stream: Stream for the live line, if it is a terminal; None for standard error.
        words: The work, while it lasts and when it is done.
        count: Returns how much is done, such as `"1200 "`.
    """
    line = _Line(what, after_s, stream or sys.stderr, words, count)
    with suppress(RuntimeError):  # no more threads can be started: show nothing
        line.start()
    try:
        yield
        line.has_succeeded = True
    finally:
        line.finish()


@contextmanager
def shown_count(doing: str, done: str, is_shown: bool) -> Iterator[Callable[[], object]]:
    """Show how many files are done; the context is a function to call for each."""
    number = 0

    def tell() -> None:
        nonlocal number
        number += 1

    with shown("files", words=(doing, done), count=lambda: f"{number} ") if is_shown else nullcontext():
        yield tell


class _Line(threading.Thread):
    def __init__(
        self, what: str, after_s: float, stream: TextIO, words: tuple[str, str], count: Callable[[], str]
    ) -> None:
        super().__init__(name="numba_kcache progress", daemon=True)
        self._what, self._after_s, self._stream = plain(what), after_s, stream
        (self._doing, self._done), self._count = words, count
        self._since_s = time.perf_counter()
        self._is_done = threading.Event()
        self._is_live = self.has_succeeded = False

    def run(self) -> None:
        if self._is_done.wait(self._after_s):
            return
        self._is_live = True
        while True:
            self._write(f"{self._doing} {self._count()}{self._what} ... {time.perf_counter() - self._since_s:.0f} s")
            if self._is_done.wait(_EVERY_S):
                return

    def finish(self) -> None:
        """Finish the line with the duration, or clear it for the error that follows."""
        self._is_done.set()
        if self.is_alive():
            self.join(_EVERY_S)  # a blocked terminal must not hold up the compile
        if self._is_live:
            from .text import seconds_text

            took = seconds_text(time.perf_counter() - self._since_s)
            if self.has_succeeded:
                self._write(f"{self._done} {self._count()}{self._what} in {took}", "\n")
            else:
                self._write("")

    def _write(self, text: str, end: str = "") -> None:
        with suppress(OSError, ValueError, AttributeError):  # no terminal, or closed, or something else
            columns = os.get_terminal_size(self._stream.fileno()).columns or 80  # 0 where the size is unknown
            line = f"numba_kcache: {text}"[: columns - 1] if text else ""
            self._stream.write(f"\r{_ERASE_LINE}{line}{end}")
            self._stream.flush()
