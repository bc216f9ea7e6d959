"""Show a compile that takes longer than a second.

Promise     A compile of less than a second shows nothing. A longer one shows a live line on standard error if that is a
            terminal. An error in showing it never reaches the compile.
Method      Each compile starts a thread that waits for its end. A hit starts none, nor does a compile without a
            terminal.
Not here    The log line that every compile gets at its end (log).
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from ..errors import plain
from .text import seconds_text

_EVERY_S = 1.0
_ERASE_LINE = "\x1b[K"


@contextmanager
def shown(what: str, after_s: float = 1.0, stream: TextIO | None = None) -> Iterator[None]:
    """Show what is compiled once the context has lasted longer than `after_s`.

    Args:
        what: The kernel and its target, `"saxpy for sm_90"`.
        after_s: Seconds without output.
        stream: Stream for the live line, if it is a terminal; None for standard error.
    """
    what, output, start_s = plain(what), stream or sys.stderr, time.perf_counter()
    is_done, is_live = threading.Event(), False

    def show() -> None:
        nonlocal is_live
        wait_s = after_s
        while not is_done.wait(wait_s):
            is_live, wait_s = True, _EVERY_S
            _write(output, f"compiling {what} ... {time.perf_counter() - start_s:.0f} s")

    thread = threading.Thread(target=show, name="numba_kcache progress", daemon=True)
    with suppress(RuntimeError):  # no more threads can be started: show nothing
        thread.start()
    end = ""
    try:
        yield
        end = f"compiled {what} in {seconds_text(time.perf_counter() - start_s)}"
    finally:  # the line stays with the duration, or is cleared for the error that follows
        is_done.set()
        if thread.is_alive():
            thread.join(_EVERY_S)  # a blocked terminal must not hold up the compile
        if is_live:
            _write(output, end, "\n" if end else "")


def _write(stream: TextIO, text: str, end: str = "") -> None:
    with suppress(OSError, ValueError, AttributeError):  # no terminal, or closed, or something else
        columns = os.get_terminal_size(stream.fileno()).columns or 80  # 0 where the size is unknown
        line = f"numba_kcache: {text}"[: columns - 1] if text else ""
        stream.write(f"\r{_ERASE_LINE}{line}{end}")
        stream.flush()
