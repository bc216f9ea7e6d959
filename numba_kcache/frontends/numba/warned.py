"""Store the warnings of a compile with the artifact, and issue them again when a hit replaces the compile.

Promise     The warnings of a compile are issued when it has ended, under the program's filters. A hit issues the same
            texts, at the kernel's file and line: that a source is missing, or what NVRTC warns of in a linked file, is
            true of the hit as well.
Method      ccache stores a compiler's warnings in the same way. An artifact without warnings has no attribute for them.
Not here    Warnings of launches, and output that is printed.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from types import FunctionType
from typing import Any

_FUNCTION = "\0function\0"
"""Replaces the text of the kernel's function in a stored warning, since that text contains an address."""

_MOST, _LONGEST = 16, 4000


@contextlib.contextmanager
def recorded(lock: contextlib.AbstractContextManager[Any]) -> Iterator[list[warnings.WarningMessage]]:
    """Collect the warnings of this thread in a block, and issue those of all threads when it has ended.

    Warning filters belong to the whole process. The compiler's lock is held, so that two compiles cannot restore each
    other's filters. Warnings of other threads are not recorded for the kernel, but delayed until the end of the block.
    If another thread's `catch_warnings` restores this block's filters and function later, they work as those before.
    """
    found: list[warnings.WarningMessage] = []
    delayed: list[warnings.WarningMessage] = []
    thread, is_over = threading.get_ident(), False

    def show(*row: Any, **named: Any) -> None:
        if is_over:
            show_before(*row, **named)
            return
        delayed.append(warnings.WarningMessage(*row, **named))
        if threading.get_ident() == thread:
            found.append(delayed[-1])

    try:
        with lock:  # not catch_warnings: if another thread's overlaps it, changes of the block would stay in force
            show_before, before = warnings.showwarning, warnings.filters
            warnings.filters = filters = [*before]
            warnings.simplefilter("always")
            warnings.showwarning = show
            try:
                yield found
            finally:
                is_over = True
                warnings.filters = before if warnings.filters is filters else warnings.filters
                warnings.showwarning = show_before if warnings.showwarning is show else warnings.showwarning
                filters[:] = before  # another thread's `catch_warnings` may restore this list when it ends
    finally:
        for each in delayed:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


def rows_of(found: Sequence[warnings.WarningMessage], function: FunctionType) -> list[list[str]]:
    """The category and text of each warning, to be stored with an artifact."""
    own = str(function)
    return [[each.category.__name__, str(each.message)[:_LONGEST].replace(own, _FUNCTION)] for each in found[:_MOST]]


def issue_again(rows: object, function: FunctionType, home: str) -> None:
    """Issue stored warnings again, up to the first malformed row; `home` has the compiler's classes."""
    errors, code = sys.modules.get(home), function.__code__
    for row in rows[:_MOST] if type(rows) is list else ():
        if type(row) is not list or [type(each) for each in row] != [str, str]:
            return
        category = getattr(errors, row[0], None) or getattr(sys.modules["builtins"], row[0], None)
        if not (isinstance(category, type) and issubclass(category, Warning)):
            category = UserWarning
        text = row[1][:_LONGEST].replace(_FUNCTION, str(function))
        text = "".join(each if each.isprintable() or each in "\n\t" else "?" for each in text)
        warnings.warn_explicit(text, category, code.co_filename, code.co_firstlineno)
