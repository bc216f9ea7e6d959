"""Show the progress of a warm-up: one live line on a terminal, a line for each kernel elsewhere."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..errors import plain
from ..observe.text import seconds_text

Tell = Callable[[str, str, float], None]
"""Takes the request, `"saxpy for sm_90"`; its status, `"built"`; and its duration in seconds."""

_ERASE_LINE = "\r\x1b[K"


@contextmanager
def meter(total: int, *, shown: bool) -> Iterator[Tell]:
    """Yield the function to call at the end of each of `total` kernels; with `shown=False` it does nothing."""
    stream, done = sys.stderr, 0
    is_live = stream is not None and stream.isatty()

    def tell(request: str, status: str, seconds: float) -> None:
        nonlocal done
        done += 1
        took = f" in {seconds_text(seconds)}" if status != "hit" else ""
        text = plain(f"numba_kcache: {done} of {total}: {request}: {status}{took}")
        if shown and stream is not None:
            width = shutil.get_terminal_size().columns - 1
            print(_ERASE_LINE + text[:width] if is_live else text, end="" if is_live else "\n", file=stream, flush=True)

    yield tell
    if done and shown and is_live:
        print(end=_ERASE_LINE, file=stream, flush=True)
