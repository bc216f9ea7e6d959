"""The reasons why the headers of a compile cannot be tracked. A look-up does not import this module."""

from __future__ import annotations

from enum import StrEnum


class UntrackableReason(StrEnum):
    """The reason why the headers of a compile cannot be tracked.

    CLOCK           A text expands __DATE__ or __TIME__.
    COMPUTED        An include names a macro whose values cannot be listed.
    OPAQUE          A `__has_include` hides behind a macro.
    MODIFIED        A header changed while the compiler ran.
    WRITABLE        A header that the compiler read in place is open or mapped for writing.
    UNREADABLE      A header that the compiler may have read cannot be read here.
    TOO_MANY        There are more headers than are followed.
    """

    CLOCK = "clock"
    COMPUTED = "computed"
    OPAQUE = "opaque"
    MODIFIED = "modified"
    WRITABLE = "open for writing"
    UNREADABLE = "unreadable"
    TOO_MANY = "too_many"


class UntrackableError(Exception):
    """The compile must not be stored: the reason, and the file that shows it ("" for the source)."""

    def __init__(self, reason: UntrackableReason, path: str = "") -> None:
        why = "it uses __DATE__ or __TIME__" if reason == "clock" else f"its headers cannot be captured: {reason}"
        super().__init__(f"{why}{f' in {path}' if path else ''}")
        self.reason, self.path = reason, path
