"""Find the headers that a compile read: those that the scanner reaches, without those that were never opened.

Promise     Every header that the compiler read is listed. If an unconditional include of the source leads to no opened
            file, or no include leads to an opened header, the watch is unreliable and all headers count as read.
Method      A file outside the mirror cannot be read; in it, and in the toolkit's folders, a watch reports which files
            were opened (open_watch). NVRTC's own trace of headers is not used, since it changes the code.
Not here    Making the record of these headers (learn).
"""

from __future__ import annotations

from collections.abc import Callable

from .scanner import unconditional_includes
from .search import Place
from .survey import START, Survey
from .untrackable import UntrackableError, UntrackableReason

IsUnread = Callable[[Place], bool]
"""Returns whether the file at a place certainly was not read."""


def scanned_headers(survey: Survey, is_unread: IsUnread | None = None) -> set[Place]:
    """List all places that the compiler could have read from.

    Args:
        survey: The survey made before the compiler ran.
        is_unread: Returns whether a header was not opened meanwhile. Ignored if the source must have included such a
            header, or if a header was opened that only such headers include.

    Raises:
        UntrackableError: An include cannot be followed.
    """
    is_new = True
    while is_new:
        read = survey.walk(lambda place: is_unread is None or not is_unread(place))
        is_new, unlisted = survey.run_macros()
    if is_unread is not None:
        is_lost = any(place not in read and not is_unread(place) for place in survey.surveyed())
        if is_lost or _lacks_any(survey, read):
            return scanned_headers(survey)
    if unlisted & read:
        raise UntrackableError(UntrackableReason.COMPUTED, survey.headers[min(unlisted & read)].path)
    return read


def _lacks_any(survey: Survey, read: set[Place]) -> bool:
    """Check whether an include that the compiler must have executed leads to none of the headers read."""
    must = set(unconditional_includes(survey.source))
    return any(each.include in must and read.isdisjoint(each.found) for each in survey.includes[START])
