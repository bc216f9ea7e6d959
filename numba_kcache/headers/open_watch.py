"""Watch which of the surveyed headers are opened while the compiler runs: it did not read the others.

Promise     A header is named only if the watch on it has answered an opening of our own, no event was lost, and its
            path leads to the same unchanged file as before. Any other is taken to have been read.
Method      inotify(7), which reports openings by any process; one too many costs nothing but a dependency. It makes up
            for the trace that NVRTC lacks before 13.0: of a scanner's headers most are in branches not taken.
Not here    The use of that (trace). Toolkits' headers, which are known by the identity of their tree.
Ground      inotify(7): IN_OPEN is reported for the file itself by whatever path, equal events in a row become one, and
            a queue that overflowed reports the watch -1.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

from .file_identity import stat_of
from .search import Place
from .survey import Survey

_IN_OPEN = 0x20
_HEADER = struct.Struct("iIII")
_BUFFER_BYTES = 1 << 16


class OpenWatch:
    """A watch on the user's headers of a survey, from now until `close`."""

    def __init__(self, survey: Survey) -> None:
        self._survey = survey
        self._watched: dict[Place, int] = {}
        self._fd = -1
        try:
            self._start()
        except (OSError, ImportError, AttributeError):  # no such system, or too many watches: all count as read
            self._watched.clear()

    def _start(self) -> None:
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            return
        for place in sorted(self._survey.surveyed()):
            path = self._survey.headers[place].path
            number = libc.inotify_add_watch(self._fd, os.fsencode(path), _IN_OPEN)
            if number >= 0:
                self._watched[place] = number
                os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
        answered = set(self._opened())
        self._watched = {place: number for place, number in self._watched.items() if number in answered}

    def unread(self) -> frozenset[Place]:
        """List the headers that certainly nobody has opened, as they were when they were surveyed."""
        opened = set(self._opened()) if self._watched else set()
        if -1 in opened:
            return frozenset()
        unopened = (place for place, number in self._watched.items() if number not in opened)
        return frozenset(place for place in unopened if self._is_same(place))

    def close(self) -> None:
        """End the watch."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _is_same(self, place: Place) -> bool:
        header = self._survey.headers[place]
        try:
            return stat_of(os.stat(header.path)) == header.stat
        except OSError:
            return False

    def _opened(self) -> Iterator[int]:
        """Yield the watches of which an opening, or the end, was reported; -1 where some may have been lost."""
        while True:
            try:
                data = os.read(self._fd, _BUFFER_BYTES)
            except BlockingIOError:
                return
            except OSError:
                yield -1
                return
            at = 0
            while at < len(data):
                number, _mask, _cookie, length = _HEADER.unpack_from(data, at)
                yield number
                at += _HEADER.size + length
