"""Take turns among the threads of this process, without ever deadlocking.

Promise     A thread waits for another one's turn as long as that thread lives. It does not wait, and does the work
            itself (at worst twice), if the two would wait for each other; if it re-enters the package (from a signal
            handler, a subscriber, `__del__`, a log handler or other user code) or is called by Numba, whose compiler
            lock it may hold, since the other thread may need what this one has interrupted or holds; and if the other
            thread runs user code for longer than `IN_USER_CODE_S`, or belongs to the process that forked this one.
Method      A turn is a mark under its name in a dict, made by `setdefault`, which is atomic: no lock is held while
            foreign code runs, and a forked child inherits none. Waiting threads poll the mark. A turn ends with its
            context or, if an exception interrupted that, with the last reference to it. Re-entry shows on the thread's
            own stack; threads in user code are listed in `model.IN_USER_CODE`. `sys._current_frames()` is not used: a
            garbage collection that it starts may deadlock it (CPython 3.11).
Not here    Turns between processes (store.locks). A warm start does not import this module.
Source      CPython runs handlers of signals, finalizers and audit hooks on the stack of the code that they interrupt.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Hashable
from contextlib import suppress
from importlib import import_module
from types import FrameType, TracebackType
from typing import Any

from .model import IN_USER_CODE, Emit, tell_wait

IN_USER_CODE_S = 0.25
"""Longest time that others wait for a thread in user code, in seconds."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.0005, 0.02

_OURS = __name__.partition(".")[0]
_CALLERS = tuple(f"{_OURS}.{name}" for name in ("__main__", "cli", "numba_hook", "warmup"))
"""Modules that run the user's program: they are on its stack without a re-entry."""

_NUMBAS = ("numba.", "numba_cuda_mlir.")


Owner = tuple[int, int]
"""A thread, by `threading.get_ident()`, and its process. Each turn makes a new tuple: `is` compares turns."""


class _Mark(tuple[int, int]):
    """The owner of a turn that tells the threads that waited for it whether its work failed."""

    has_failed = False


Turns = dict[Hashable, Owner]
"""The turns of one kind that threads have now, by name. Equality of names must not call Python code."""

awaited: dict[int, Owner] = {}
"""The turn that each waiting thread waits for, by `threading.get_ident()`."""


class Turn:
    """A context in which this thread has the turn of a name or, if it must not wait for that, works without it.

    Args:
        turns: All turns of this kind.
        name: Name of the work.
        wait_s: Longest wait for another thread's turn.

    Attributes:
        waited_s: Seconds that it waited for other threads.
    """

    _turns: Turns | None = None

    def __init__(self, turns: Turns, name: Hashable, *, wait_s: float = math.inf) -> None:
        self._name, self._wait_s, self.waited_s = name, wait_s, 0.0
        self._mark = _Mark((threading.get_ident(), os.getpid()))
        self._turns = turns

    @property
    def is_mine(self) -> bool:
        """True while this thread has the turn."""
        return self._turns is not None and self._turns.get(self._name) is self._mark

    def __enter__(self) -> Turn:
        turns, name = self._turns, self._name
        assert turns is not None
        try:
            while (other := turns.setdefault(name, self._mark)) is not self._mark:
                start_s = time.monotonic()
                is_over = waited(turns, name, other, self._wait_s - self.waited_s)
                self.waited_s += time.monotonic() - start_s
                if not is_over or getattr(other, "has_failed", False):  # of many threads, none waits for each to fail
                    break
            return self
        except BaseException:
            self.end()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: object, where: TracebackType | None) -> None:
        self.end(has_failed=kind is not None)

    def end(self, *, has_failed: bool = False) -> None:
        """End the turn, if this thread has it."""
        if self._turns is not None and self.is_mine:
            self._mark.has_failed = has_failed
            self._turns.pop(self._name, None)

    __del__ = end


def waited(
    turns: Turns, name: Hashable, other: Owner, wait_s: float = math.inf, tell: Emit = lambda event: None
) -> bool:
    """Wait until the turn of another thread is over; False if this thread must not wait for it (any longer).

    Args:
        turns: All turns of this kind.
        name: Name of the work.
        other: The owner found in `turns` under this name.
        wait_s: Longest wait, in seconds.
        tell: Takes the event of a long wait.
    """
    me, pause_s, in_user_code_since_s = threading.get_ident(), _FIRST_PAUSE_S, 0.0
    start_s = time.monotonic()
    if is_reentered():
        return False
    try:
        awaited[me] = other
        while turns.get(name) is other:
            now_s = time.monotonic()
            if now_s - start_s >= wait_s or not _is_alive(other) or _leads_to(me, other):
                break
            in_user_code_since_s = (in_user_code_since_s or now_s) if other[0] in IN_USER_CODE else 0.0
            if in_user_code_since_s and now_s - in_user_code_since_s > IN_USER_CODE_S:
                break
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return turns.get(name) is not other  # it may have ended since it was last looked at
    finally:
        awaited.pop(me, None)
        tell_wait(tell, "another thread that resolves the same kernel", time.monotonic() - start_s)


def _leads_to(me: int, other: Owner | None) -> bool:
    """Check whether the thread of `other` waits, directly or through others, for a turn of the thread `me`."""
    for _ in range(len(awaited) + 1):  # the turns may change meanwhile
        if other is None or other[0] == me:
            return other is not None
        other = awaited.get(other[0])
    return False


def _is_alive(owner: Owner) -> bool:
    """False for a thread that has ended, or that belongs to the process this one was forked from."""
    return owner[1] == os.getpid() and any(each.ident == owner[0] for each in threading.enumerate())


def is_reentered() -> bool:
    """Check whether this thread's stack entered the package before, or comes from within Numba."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and str(frame.f_globals.get("__name__")).startswith((f"{_OURS}.", "contextlib")):
        frame = frame.f_back
    while frame is not None and not _is_ours(frame):
        if str(frame.f_globals.get("__name__")).startswith(_NUMBAS):
            return True  # this thread may hold Numba's compiler lock, for which the other thread may be waiting
        frame = frame.f_back
    return frame is not None


def _is_ours(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__") or ""
    return name.startswith(f"{_OURS}.") and not name.startswith(_CALLERS)


def imported(name: str) -> Any:
    """Import another package's module, from the main thread in a new one: at the end of a stack half of it would be.

    Raises:
        ImportError: The module cannot be imported.
    """
    if name not in sys.modules and threading.current_thread() is threading.main_thread():
        with suppress(RuntimeError):  # the interpreter is shutting down
            thread = threading.Thread(target=_import, args=(name,), daemon=True)
            thread.start()
            thread.join()
    return import_module(name)


def _import(name: str) -> None:
    with suppress(Exception):  # the waiting thread repeats the import, and reports the error
        import_module(name)
