"""Wait for another thread of this process that is at the same, and never for oneself.

Promise     A signal handler, a subscriber, `__del__`, the callback of a weak reference, an audit hook or a log handler
            that comes back into the package waits for nobody: whoever it would wait for may wait for what it
            interrupted. Nobody waits for a thread that is gone, for one that is in the user's code, or without bound.
            Whoever does not wait goes on by itself: work may be done twice, and nothing else.
Method      Who begins something puts its thread and process under a name into a dict, by `setdefault`, which is atomic
            and no lock: nothing is held while foreign code runs, and a forked child inherits nothing that it could wait
            for. Who finds another's mark comes here, and looks at it again and again. That this thread was in the
            package already is read off its own stack; that another is in the user's code it says itself
            (`model.CALLED_OUT`). `sys._current_frames()` is not asked: a collection that it starts may deadlock it
            (CPython 3.11).
Not here    Turns between processes (store.locks). A warm start imports nothing of this: it waits for nobody.
Ground      CPython runs handlers of signals, finalizers and audit hooks on the stack of the code that they interrupt.
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
from .model import CALLED_OUT

Owner = tuple[int, int]
"""A thread, by `threading.get_ident()`, and its process. Each that is made is another object: it names one call."""

LONGEST_S = 120.0
"""Longest wait for another thread; a compile takes less."""

ABROAD_S = 0.25
"""Longest time of a thread in the user's code before the others go on without it."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.0005, 0.02

_OURS = __name__.partition(".")[0]
_AROUND = tuple(f"{_OURS}.{name}" for name in ("__main__", "cli", "numba_hook", "warmup"))
"""Modules that run the user's program, and are on the stack of all that it does."""


def is_reentered() -> bool:
    """Check whether this thread was in the package already when the code that runs now began, or comes out of Numba."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and (_is_ours(frame) or frame.f_globals.get("__name__") == "contextlib"):
        frame = frame.f_back
    if frame is not None and str(frame.f_globals.get("__name__")).startswith(("numba.", "numba_cuda_mlir.")):
        return True  # it has its lock over all compiles, for which whoever one would wait for may be waiting
    while frame is not None and not _is_ours(frame):
        frame = frame.f_back
    return frame is not None


def waited(marks: Mapping[Hashable, Owner], name: Hashable, other: Owner, wait_s: float = LONGEST_S) -> bool:
    """Wait until the call that `other` names is through; False where this one has to go on by itself.

    Args:
        marks: Who is at what.
        name: What is wanted.
        other: Who is at it.
        wait_s: Longest wait.
    """

    def is_over(pause_s: float) -> bool:
        if marks.get(name) is other:
            time.sleep(pause_s)
        return marks.get(name) is not other

    return wait(is_over, other, wait_s)


def wait(attempt: Callable[[float], bool], other: Owner, wait_s: float) -> bool:
    """Attempt something until it succeeds; False where it is not worth waiting for its owner.

    Args:
        attempt: Waits the seconds that it is given, at most, and tells if it succeeded.
        other: Who has to be through for that.
        wait_s: Longest wait.
    """
    if other[0] == threading.get_ident() or is_reentered():
        return attempt(0.0)
    deadline_s, pause_s, abroad_since_s = time.monotonic() + wait_s, _FIRST_PAUSE_S, 0.0
    while not attempt(pause_s):
        now_s = time.monotonic()
        if now_s >= deadline_s or not _is_alive(other):
            return False
        abroad_since_s = (abroad_since_s or now_s) if other[0] in CALLED_OUT else 0.0
        if abroad_since_s and now_s - abroad_since_s > ABROAD_S:
            return False
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S, max(0.0, deadline_s - now_s))
    return True


_importing: dict[str, int] = {}
"""The import that a thread of ours makes, and the process it is in."""


def imported(name: str) -> Any:
    """Import another package's module, in a thread: a signal handler, which is in the main one, can wait for that.

    Raises:
        ImportError: It cannot be imported.
        LaunchError: This very thread is importing it, and a finalizer or an audit hook interrupted that.
    """
    if threading.current_thread() is threading.main_thread():
        if name not in sys.modules and name not in _importing:
            _importing[name] = os.getpid()
            try:
                threading.Thread(target=_import, args=(name,), daemon=True).start()
            except RuntimeError:  # no thread begins while the interpreter ends
                _importing.pop(name, None)
        while _importing.get(name) == os.getpid():  # not for the lock of the import: CPython 3.11 has it met by one
            time.sleep(_FIRST_PAUSE_S)
    module = import_module(name)
    if getattr(module.__spec__, "_initializing", False):
        why = "this thread is importing it, and was interrupted in that by what asks for it now"
        raise LaunchError(f"cannot use {name}", why, "import it before a finalizer or an audit hook may launch")
    return module


def _import(name: str) -> None:
    try:
        import_module(name)
    except Exception:  # who waits tries it again, and says so
        pass
    finally:
        _importing.pop(name, None)


def _is_ours(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__") or ""
    return name.startswith(f"{_OURS}.") and not name.startswith(_AROUND)


def _is_alive(owner: Owner) -> bool:
    """False for a thread that is over, or was the parent's."""
    return owner[1] == os.getpid() and any(each.ident == owner[0] for each in threading.enumerate())
