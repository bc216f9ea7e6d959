"""Observe the NVRTC that this process calls: the questions that it asks the file system on this thread.

Promise     `observed` yields a list that holds each question when the context ends. An NVRTC that cannot be observed
            for certain has a reason, which `unobservable` returns; it compiles as before.
Method      `launch/observe.c` replaces the functions of the library that open files. An NVRTC that imports a function
            which the observer does not know is refused. NVRTC looks up each program's own file first, so that a
            compile that was not seen shows.
Not here    The meaning of the questions (record).
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from ..launch import native
from ..model import Artifact, NamedTuple
from ..toolchain.loaded import called_library, loaded_library
from ..toolchain.nvrtc import run_nvrtc

Event = tuple[str, bytes, int, tuple[int, int, int, int, int, int], bytes]
"""Kind ("r" read, "l" looked up, "o" not recorded), path, errno, stat, and bytes read."""

_MOST_KEPT = 64 << 20
"""Bytes of headers above which those of older marks are forgotten."""

_TWO = "this process calls two NVRTCs"


class Seen:
    """What NVRTC has asked on one thread since it is watched, for any number of readers.

    Args:
        is_edited: As for `observed`.
        left_out: As for `begin_observing`.

    Attributes:
        events: What was asked, as far as it was collected.
        readers: Number of marks that have not ended.
        is_lost: Whether it was too much to keep.
    """

    def __init__(self, *, is_edited: bool = False, left_out: bytes = b"") -> None:
        self.events, self.is_edited, self.readers, self.is_lost = list[Event](), is_edited, 0, False
        self.left_out = left_out
        _thread.watches.append(self)
        self._watch()

    def _watch(self) -> None:
        native.watch(self.is_edited)
        if self.left_out:
            native.leave_out(self.left_out)

    def collect(self) -> None:
        """Add what was asked since the last call; it is the innermost watch of this thread."""
        self.events += native.unwatch()
        self._watch()

    def end(self) -> None:
        """End the watch, which is the innermost of this thread."""
        _thread.watches.remove(self)
        self.events += native.unwatch()


class _Thread(threading.local):
    def __init__(self) -> None:
        self.watches = list[Seen]()  # the innermost last


_thread = _Thread()


class Mark(NamedTuple):
    """A moment in the compiles of a thread: the watch, and the number of events before it."""

    seen: Seen
    start: int
    thread: int

    def end(self) -> list[Event] | None:
        """Return what was asked since; None if that is not known, as for a compile of another thread."""
        seen, watches = self.seen, _thread.watches
        seen.readers -= 1
        if self.thread != threading.get_ident() or seen.is_lost or seen in watches[:-1]:
            return None
        if seen in watches:
            seen.collect()
        found = seen.events[self.start :]
        if watches[-1:] == [seen] and not seen.readers:
            seen.end()
        return found


@contextmanager
def observed(*, is_edited: bool = False) -> Iterator[list[Event]]:
    """Collect what NVRTC asks on this thread, which no other reader sees; with `is_edited`, headers are handed over
    without `__DATE__` and the like."""
    seen = Seen(is_edited=is_edited)
    try:
        yield seen.events
    finally:
        seen.end()


def begin_observing(left_out: bytes = b"") -> Mark:
    """Mark the moment before a compile that another library makes on this thread.

    Marks end in any order: each sees all that was asked since it began, but for a compile of another `left_out`.

    Args:
        left_out: The folder, with a slash, whose files the other library has in its key: they are not recorded.
    """
    for seen in _thread.watches[-1:]:
        seen.collect()
        if _thread.watches == [seen] and sum(len(each[4]) for each in seen.events) > _MOST_KEPT:
            seen.end()
            seen.is_lost, seen.events = True, []  # of marks that nobody ends, since their compiles failed
    innermost = _thread.watches[-1] if _thread.watches else None
    seen = innermost if innermost and innermost.left_out == left_out else Seen(left_out=left_out)
    seen.readers += 1
    return Mark(seen, len(seen.events), threading.get_ident())


def compile_alone(build: Callable[[], Artifact], distributions: Iterable[str] = ()) -> tuple[Artifact, str]:
    """Compile texts that should ask for no file. Returns the reason not to store the code; "" if they asked for none.

    Args:
        build: Compiles.
        distributions: The packages that compile. Headers in their own folders belong to their versions.
    """
    why = unobservable()
    with observed() as events:
        artifact = build()
    files = (getattr(sys.modules.get(each.replace("-", "_")), "__file__", None) for each in distributions)
    folders = tuple(os.path.dirname(file) + "/" for file in files if file)
    paths = (os.fsdecode(each[1]) for each in events if each[0] != "l")
    asked = [path for path in paths if not path.startswith(folders)]
    return artifact, f"it asks for {asked[0]} in a form that is not known" if asked else why if why == _TWO else ""


def unobservable() -> str:
    """Make the NVRTC of this process observable. Returns the reason why it is not; "" if it is.

    A compile after it is seen: NVRTC looks up each program's own file first.
    """
    found = called_library("nvrtc")
    if found is None:
        return _TWO if loaded_library("nvrtc") else "it is not loaded"
    return native.observe(found[0])  # each time: another hooker may have written the slots since


@functools.cache
def is_seen() -> bool:
    """Check with an empty program that a compile is seen."""
    with observed() as events, suppress(Exception):
        run_nvrtc("", "numba_kcache_probe.cu", [], ())
    return bool(events)
