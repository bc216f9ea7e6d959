"""The warnings of a compile, which are kept with the artifact and given again where that is found.

Promise     A compile gives its warnings, under the program's filters, when it has ended. A hit gives the same texts, at
            the kernel's file and line: that a source is missing, or what NVRTC says of a linked file, holds as before.
Method      As of a compiler that is run by ccache. An entry without warnings has no such attribute.
Not here    Warnings of launches, and what is printed.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator, Sequence
from types import FunctionType

from .internals import HOME

_FUNCTION = "\0function\0"
"""Stands for the text of the kernel's function, which has its address."""

_MOST, _LONGEST = 16, 4000


@contextlib.contextmanager
def recorded() -> Iterator[list[warnings.WarningMessage]]:
    """Collect the warnings of a block, and give them when it has ended."""
    found: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                yield found
            finally:
                found += caught
    finally:
        for each in found:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno, source=each.source)


def rows_of(found: Sequence[warnings.WarningMessage], function: FunctionType) -> list[list[str]]:
    """The category and text of each warning, to be kept with an artifact."""
    own = str(function)
    return [[each.category.__name__, str(each.message)[:_LONGEST].replace(own, _FUNCTION)] for each in found[:_MOST]]


def give_again(rows: object, function: FunctionType) -> None:
    """Give the warnings of these rows, as they were stored; none where they have another form."""
    errors, code = sys.modules.get(f"{HOME}.core.errors"), function.__code__
    for row in rows if type(rows) is list else ():
        if type(row) is not list or [type(each) for each in row] != [str, str]:
            return
        category = getattr(errors, row[0], None) or getattr(sys.modules["builtins"], row[0], None)
        if not (isinstance(category, type) and issubclass(category, Warning)):
            category = UserWarning
        text = row[1].replace(_FUNCTION, str(function))
        warnings.warn_explicit(text, category, code.co_filename, code.co_firstlineno)
