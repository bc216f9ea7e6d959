"""Why the headers of a compile cannot be captured: a value of its own, which lookups need not load."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Doubt(StrEnum):
    """Why the headers of a compile cannot be captured.

    CLOCK           A text expands __DATE__ or __TIME__.
    COMPUTED        An include names a macro whose values cannot be listed, and there is no whole trace.
    OPAQUE          A `__has_include` hides behind a macro.
    UNEXPLAINED     The trace and the survey contradict each other.
    MODIFIED        A header changed while the compiler ran.
    UNREADABLE      A header that the compiler may have read cannot be read here.
    TOO_MANY        There are more headers than are followed.
    """

    CLOCK = "clock"
    COMPUTED = "computed"
    OPAQUE = "opaque"
    UNEXPLAINED = "unexplained"
    MODIFIED = "modified"
    UNREADABLE = "unreadable"
    TOO_MANY = "too_many"


class Uncapturable(NamedTuple):
    """The compile must not be stored: why, and which file shows it ("" for the source)."""

    doubt: Doubt
    path: str = ""
