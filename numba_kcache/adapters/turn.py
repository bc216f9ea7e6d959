"""A build that another library makes between two of its calls, a look-up that misses and a store, not in a callback.

Promise     Of all threads, processes and nodes that miss at once, one builds. A build that failed, and so is never
            stored, ends with the next turn of the same name, or within `LOOK_S` of the end of the function that began
            it, if that is known. On any failure of the cache the library builds.
Method      On a miss, the thread of a turn is in `find_or_build`, whose build function waits for what is stored.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ..engine import Session
from ..engine.built import Build, Built, Makers, find_built, find_or_build
from ..errors import FrozenCacheError
from ..headers.roots import HeaderSearch
from ..model import trouble

LOOK_S = 0.5
"""Time, in seconds, between two looks whether the function that began a build still runs."""

_MAX_STORE_S = 30.0
_turns: dict[Hashable, Turn] = {}


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
    session: Session,
    components: Mapping[str, Any],
    label: str,
    mismatch: Callable[[Mapping[str, bytes]], str],
    name: Hashable,
    *,
    caller: FrameType | None = None,
    makers: Makers = (),
    headers: HeaderSearch | None = None,
) -> Built | Turn | None:
    """Find code, wait for the process that builds it, or take the turn to build it.

    Args:
        session: Session of the cache.
        components: The components of its key.
        label: Its name in messages.
        mismatch: Returns the reason why stored code cannot be the one that the library looks for; "" if it can.
        name, caller: As for `Turn`.
        makers, headers: As in `find_or_build`.

    Returns:
        The code; the turn, if it has to be built; None if what is stored cannot be used, twice.

    Raises:
        FrozenCacheError: The code is not stored, and the mode is frozen.
    """
    for _ in range(2):
        found = find_built(session, components, label, headers, makers)
        built = found and found[0]
        if built is None:
            find = functools.partial(
                find_or_build, session, components, label=label, depends=(), meta=None, caller="", makers=makers,
                headers=headers,
            )  # fmt: skip
            turn = Turn(name, find, caller)
            built = turn.wait()
            if built is None:
                return turn
        why = mismatch(built.payloads)
        if not why:
            return built
        session.set_aside(built.key, why)
    return None


class Turn:
    """One call of `find_or_build`.

    Args:
        name: Names the build; a build of the same name that did not end has failed.
        find: Calls `find_or_build` with a build function.
        caller: The library's function that looks up, compiles and stores; None if it is not known.
    """

    def __init__(self, name: Hashable, find: Callable[[Build], Built], caller: FrameType | None = None) -> None:
        before = _turns.pop(name, None)
        if before is not None:  # a failed build, which a traceback may keep alive
            before.give_up()
        import queue  # not at the top: a hit does not need it

        self._name = name
        self._answer: queue.SimpleQueue[Built | BaseException | None] = queue.SimpleQueue()
        self._files: queue.SimpleQueue[Mapping[str, bytes] | None] = queue.SimpleQueue()
        owner = threading.get_ident()
        self._thread = threading.Thread(target=self._run, args=(find, caller, owner), daemon=True)

    def wait(self) -> Built | None:
        """Wait for the code; None if it has to be built."""
        self._thread.start()
        answer = self._answer.get()
        if isinstance(answer, BaseException):
            raise answer
        if answer is None:
            _turns[self._name] = self
        return answer

    def finish(self, files: Mapping[str, bytes] | None) -> None:
        """Pass the built files on, None for a failed build, and return when they are stored."""
        _turns.pop(self._name, None)
        self._files.put(files)
        self._thread.join(_MAX_STORE_S)

    def give_up(self) -> None:
        """End the turn without files, so that others may build; does nothing after `finish`."""
        _turns.pop(self._name, None)
        self._files.put(None)

    def _run(self, find: Callable[[Build], Built], caller: FrameType | None, owner: int) -> None:
        answer: Built | BaseException
        try:
            answer = find(lambda: self._build(caller, owner))
        except BaseException as error:  # raised again in the thread that called `wait`, if it still waits
            answer = error
        self._answer.put(answer)

    def _build(self, caller: FrameType | None, owner: int) -> Mapping[str, bytes]:
        import queue

        self._answer.put(None)
        while True:
            try:
                files = self._files.get(timeout=LOOK_S if caller is not None else None)
                break
            except queue.Empty:
                if not _runs(caller, owner):
                    self.give_up()
        if files is None:
            raise _GivenUp
        return files


def _runs(caller: FrameType | None, owner: int) -> bool:
    """Check whether a function is on the stack of a thread."""
    frame = sys._current_frames().get(owner)
    while frame is not None and frame is not caller:
        frame = frame.f_back
    return frame is not None
