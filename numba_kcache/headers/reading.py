"""Find the headers that a compile read: those that the scanner reaches, but for what nobody opened meanwhile.

Promise     Never fewer than the compiler read. An unconditional include of the source that leads to nothing that was
            opened, or an opened header that nothing leads to, means that the watch is wrong: then all count as read.
Method      What is not in the mirror cannot be read; in it, and in the toolkit's folders, a watch tells which files
            were opened (open_watch). No question is put to the compiler: its trace of headers changes the code.
Not here    What is kept of these headers (learn).
"""

from __future__ import annotations

from collections.abc import Callable

from .scanner import unconditional_includes
from .search import Place
from .survey import START, Survey
from .untrackable import UntrackableError, UntrackableReason

IsUnread = Callable[[Place], bool]
"""Tells if the file at a place was certainly not read."""


def scanned_headers(survey: Survey, is_unread: IsUnread | None = None) -> set[Place]:
    """List all places that the compiler could have read from.

    Args:
        survey: Taken before it ran.
        is_unread: The headers that nobody opened meanwhile. Disbelieved, if the source must have included one of them,
            or if another was opened that they alone lead to.

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
    """Check whether an include that the source must have carried out led to none of these."""
    must = set(unconditional_includes(survey.source))
    return any(each.include in must and read.isdisjoint(each.found) for each in survey.includes[START])
