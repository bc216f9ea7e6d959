"""Wait for another thread of this process that does the same work, without ever deadlocking with it.

Promise     Code that re-enters the package (from a signal handler, a subscriber, `__del__`, the callback of a weak
            reference, an audit hook or a log handler) never waits: the other thread may be waiting for the work that
            this code interrupted. No thread waits for one that has ended or runs user code, or without a time limit.
            A thread that does not wait does the work itself: at worst it is done twice.
Method      A thread that begins some work puts itself and its process under a name into a dict, by `setdefault`, which
            is atomic and needs no lock: no lock is held while foreign code runs, and a forked child inherits none. A
            thread that finds the mark of another thread polls it here. Re-entry shows on the thread's own stack;
            threads in user code are listed in `model.IN_USER_CODE`. `sys._current_frames()` is not used: a garbage
            collection that it starts may deadlock it (CPython 3.11).
Not here    Turns between processes (store.locks). A warm start does not import this module.
Source      CPython runs handlers of signals, finalizers and audit hooks on the stack of the code that they interrupt.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from importlib import import_module
from types import FrameType
from typing import Any

from .errors import LaunchError
from .model import IN_USER_CODE

Owner = tuple[int, int]
"""A thread, by `threading.get_ident()`, and its process. Each call makes a new tuple: `is` compares calls."""

LONGEST_S = 120.0
"""Longest wait for another thread, in seconds; a compile takes less."""

IN_USER_CODE_S = 0.25
"""Longest time that others wait for a thread in user code, in seconds."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.0005, 0.02

_OURS = __name__.partition(".")[0]
_CALLERS = tuple(f"{_OURS}.{name}" for name in ("__main__", "cli", "numba_hook", "warmup"))
"""Modules that run the user's program: they are on its stack without a re-entry."""


def is_reentered() -> bool:
    """Check whether this thread's stack entered the package before, or comes from within a compile of Numba."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and (_is_ours(frame) or frame.f_globals.get("__name__") == "contextlib"):
        frame = frame.f_back
    if frame is not None and str(frame.f_globals.get("__name__")).startswith(("numba.", "numba_cuda_mlir.")):
        return True  # this thread holds Numba's compiler lock, for which the other thread may be waiting
    while frame is not None and not _is_ours(frame):
        frame = frame.f_back
    return frame is not None


def waited(marks: Mapping[Hashable, Owner], name: Hashable, other: Owner, wait_s: float = LONGEST_S) -> bool:
    """Wait until the call of `other` has ended; False if the caller has to do the work itself.

    Args:
        marks: The owner of each piece of work in progress, by name.
        name: Name of the work.
        other: The owner found in `marks` under this name.
        wait_s: Longest wait, in seconds.
    """

    def is_over(pause_s: float) -> bool:
        if marks.get(name) is other:
            time.sleep(pause_s)
        return marks.get(name) is not other

    return wait(is_over, other, wait_s)


def wait(attempt: Callable[[float], bool], other: Owner, wait_s: float) -> bool:
    """Repeat an attempt until it succeeds; False if waiting for `other` is not allowed or took too long.

    Args:
        attempt: Called with a number of seconds, waits at most that long, and returns whether it succeeded.
        other: The thread whose call has to end first.
        wait_s: Longest wait, in seconds.
    """
    if other[0] == threading.get_ident() or is_reentered():
        return attempt(0.0)
    deadline_s, pause_s, in_user_code_since_s = time.monotonic() + wait_s, _FIRST_PAUSE_S, 0.0
    while not attempt(pause_s):
        now_s = time.monotonic()
        if now_s >= deadline_s or not _is_alive(other):
            return False
        in_user_code_since_s = (in_user_code_since_s or now_s) if other[0] in IN_USER_CODE else 0.0
        if in_user_code_since_s and now_s - in_user_code_since_s > IN_USER_CODE_S:
            return False
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S, max(0.0, deadline_s - now_s))
    return True


_importing: dict[str, int] = {}
"""The modules that a thread of this package is importing, with the process of that thread."""


def imported(name: str) -> Any:
    """Import another package's module in a new thread, so that a signal handler in the main thread can wait for it.

    Raises:
        ImportError: The module cannot be imported.
        LaunchError: This thread is importing the module already, and a finalizer or audit hook interrupted the import.
    """
    if threading.current_thread() is threading.main_thread():
        if name not in sys.modules and name not in _importing:
            _importing[name] = os.getpid()
            try:
                threading.Thread(target=_import, args=(name,), daemon=True).start()
            except RuntimeError:  # the interpreter is shutting down
                _importing.pop(name, None)
        while _importing.get(name) == os.getpid():  # polled: joining the import's lock may deadlock in CPython 3.11
            time.sleep(_FIRST_PAUSE_S)
    module = import_module(name)
    if getattr(module.__spec__, "_initializing", False):
        why = "this thread was importing it when code that needs it interrupted the import"
        raise LaunchError(f"cannot use {name}", why, "import it before a finalizer or an audit hook may launch")
    return module


def _import(name: str) -> None:
    try:
        import_module(name)
    except Exception:  # the waiting thread repeats the import, and reports the error
        pass
    finally:
        _importing.pop(name, None)


def _is_ours(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__") or ""
    return name.startswith(f"{_OURS}.") and not name.startswith(_CALLERS)


def _is_alive(owner: Owner) -> bool:
    """False for a thread that has ended, or that belongs to the process this one was forked from."""
    return owner[1] == os.getpid() and any(each.ident == owner[0] for each in threading.enumerate())
