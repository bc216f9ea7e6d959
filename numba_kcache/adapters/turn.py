"""A build that another library makes between two of its calls, a look-up that misses and a store, not in a callback.

Promise     Of all threads, processes and nodes that miss at once, one builds. A build that failed, and so is never
            stored, ends with the next turn of the same name, or within `LOOK_S` of the end of the function that began
            it. If that cannot be watched, nobody waits for it. On any failure of the cache the library builds.
Method      The turn is a context that is entered by the look-up, on its thread, and left by the store. While there are
            turns, one thread looks whether the functions that began them still run. A forked child has no turns.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType

from ..engine import Session
from ..engine.built import Build, Built, Wanted
from ..errors import FrozenCacheError
from ..model import trouble

LOOK_S = 0.5
"""Time, in seconds, between two looks whether the functions that began builds still run."""

_turns: dict[Hashable, Turn] = {}

os.register_at_fork(after_in_child=_turns.clear)  # the parent finishes its builds, and counts them

_watchers: dict[int, threading.Thread] = {}
"""The thread that looks, by process: a forked child has none."""


class _GivenUp(Exception):
    """The library looked the code up but did not store it: its compile failed."""


@contextmanager
def without_trouble(session: Session, what: str, label: str) -> Iterator[None]:
    """Report an error of the cache as trouble of the library that a label begins with; a frozen cache's passes."""
    try:
        yield
    except FrozenCacheError:
        raise
    except Exception as error:  # on any failure of the cache, the library compiles
        session.events.emit(trouble(label.partition(":")[0], f"cannot {what} {label}: {error}"))


def find_or_begin(
    wanted: Wanted, mismatch: Callable[[Mapping[str, bytes]], str], name: Hashable, caller: FrameType
) -> Built | Turn | None:
    """Find code, wait for the process that builds it, or take the turn to build it.

    Args:
        wanted: The code.
        mismatch: Returns the reason why stored code cannot be the one that the library looks for; "" if it can.
        name: Names the build; a build of the same name that did not end has failed.
        caller: The library's function that looks up, compiles and stores, on this thread.

    Returns:
        The code; the turn, if it has to be built; None if what is stored cannot be used, twice.

    Raises:
        FrozenCacheError: The code is not stored, and the mode is frozen.
    """
    for _ in range(2):
        found = wanted.find()
        built = found and found[0]
        if built is None:
            before = _turns.get(name)
            if before is not None:  # a failed build, which a traceback may keep alive
                before.finish()
            with ExitStack() as stack:
                outcome = stack.enter_context(wanted.turn())
                if not isinstance(outcome, Built):
                    return Turn(wanted, name, caller, outcome, stack.pop_all())
            built = outcome
        why = mismatch(built.payloads)
        if not why:
            return built
        wanted.session.set_aside(built.key, why)
    return None


class Turn:
    """The turn to build one result.

    Args:
        wanted, name, caller: As for `find_or_begin`.
        keep: Stores what a build function returns, with the time that it took.
        stack: Ends the turn.
    """

    def __init__(
        self,
        wanted: Wanted,
        name: Hashable,
        caller: FrameType,
        keep: Callable[[Build, float], None],
        stack: ExitStack,
    ) -> None:
        self._wanted, self._name, self._caller = wanted, name, caller
        self._keep, self._stack = keep, stack
        self._owner, self._start_s = threading.get_ident(), time.perf_counter()
        _turns[name] = self
        try:
            _begin_watching()
        except RuntimeError:  # no more threads can be started: if this build failed, others would wait for ever
            stack.close()

    def finish(self, files: Mapping[str, bytes] | None = None) -> None:
        """Store the built files, None for a failed build, and let others build; does nothing the second time."""
        if _turns.get(self._name) is not self or _turns.pop(self._name, None) is not self:
            return

        def build() -> Mapping[str, bytes]:
            if files is None:
                raise _GivenUp
            return files

        with without_trouble(self._wanted.session, "store", self._wanted.label), suppress(_GivenUp), self._stack:
            self._keep(build, time.perf_counter() - self._start_s)

    def is_over(self) -> bool:
        """Check whether the function that began it, `caller`, has ended."""
        frame = sys._current_frames().get(self._owner)
        while frame is not None and frame is not self._caller:
            frame = frame.f_back
        return frame is None


def _begin_watching() -> None:
    me = os.getpid()
    thread = threading.Thread(target=_watch, args=(me,), daemon=True)
    if _watchers.setdefault(me, thread) is thread:
        try:
            thread.start()
        except RuntimeError:
            _watchers.pop(me)
            raise


def _watch(process: int) -> None:
    while True:
        time.sleep(LOOK_S)
        for each in list(_turns.values()):
            if each.is_over():
                with suppress(Exception):  # a frozen cache refuses, and this thread goes on with the others
                    each.finish()
        mine = _watchers.pop(process)
        if not _turns or _watchers.setdefault(process, mine) is not mine:
            return
