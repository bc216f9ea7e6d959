"""Show the progress of a warm-up: a bar where standard error is a terminal, a line for each kernel elsewhere.

Source      rich draws the bar; it is imported only for a terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..errors import plain
from ..observe.text import seconds_text

Tell = Callable[[str, str, float], None]
"""Takes the request, `"saxpy for sm_90"`; its status, `"built"`; and its duration in seconds."""


@contextmanager
def meter(total: int, *, shown: bool) -> Iterator[Tell]:
    """Yield the function to call at the end of each of `total` kernels; with `shown=False` it does nothing."""
    if not shown or not total:
        yield lambda _request, _status, _seconds: None
    elif sys.stderr is not None and sys.stderr.isatty():
        with _bar(total) as tell:
            yield tell
    else:
        yield _lines(total)


def _lines(total: int) -> Tell:
    done = 0

    def tell(request: str, status: str, seconds: float) -> None:
        nonlocal done
        done += 1
        took = f" in {seconds_text(seconds)}" if status != "hit" else ""
        if sys.stderr is not None:
            print(plain(f"numba_kcache: {done} of {total}: {request}: {status}{took}"), file=sys.stderr, flush=True)

    return tell


@contextmanager
def _bar(total: int) -> Iterator[Tell]:
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=total)

        def tell(request: str, status: str, _seconds: float) -> None:
            progress.update(task, advance=1, description=escape(plain(f"{request}: {status}")))

        yield tell
