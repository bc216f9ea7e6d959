"""Hand every event to whoever listens, write the log, and say troubles once.

Promise     Emitting never raises, whatever a listener does. Trouble with the cache is one warning per kind of
            trouble and process; nothing else is printed. The log under `numba_kcache` has one line for each compile,
            with the reason of the miss, and nothing of ordinary hits.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

from ..errors import KCacheWarning
from ..model.event import Event, EventKind

_QUIET = frozenset((EventKind.COMPILE_BEGIN, EventKind.HIT, EventKind.LOAD, EventKind.STORED))
"""Events of ordinary work: listeners have them, the log does not."""

_LEVELS = {"debug": 10, "info": 20, "error": 40, "off": 1000}


class Events:
    """The events of one cache and who listens to them."""

    def __init__(self) -> None:
        self._listeners: tuple[Callable[[Event], object], ...] = ()
        self._lock = threading.Lock()
        self._said: set[str] = set()
        self._missed = threading.local()

    def subscribe(self, listener: Callable[[Event], object]) -> Callable[[], None]:
        """Call `listener` with every event from now on; the function returned ends that."""
        with self._lock:
            self._listeners = (*self._listeners, listener)

        def unsubscribe() -> None:
            with self._lock:
                self._listeners = tuple(each for each in self._listeners if each is not listener)

        return unsubscribe

    def emit(self, event: Event) -> None:
        """Tell the listeners, the log and, for trouble, the user once."""
        self.tell(event)
        if event.kind in _QUIET:
            return  # the log has nothing of them: emitting costs a warm start next to nothing
        if event.kind is EventKind.MISS:
            self._missed.reason = event.fields.get("reason")  # for the line of the compile that follows in this thread
        elif "logging" in sys.modules:  # importing it costs 5 ms, and a program without it has nowhere to log to
            logger().info("%s", _line_of(event, getattr(self._missed, "reason", None)))
        text = _warning_of(event)
        if text is not None:
            self._warn_once(*text)

    def tell(self, event: Event) -> None:
        """Tell the listeners alone."""
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:  # a listener is the user's code: its faults must not reach a launch
                logger().exception("a listener of numba_kcache failed")

    def _warn_once(self, subject: str, text: str) -> None:
        with self._lock:
            if subject in self._said:
                return
            self._said.add(subject)
        try:
            warnings.warn(text, KCacheWarning, stacklevel=_depth_of_caller())
        except Exception:  # warnings turned into errors, a closed stderr, a broken showwarning: no launch fails by it
            logger().warning(text)


def logger() -> Any:
    """The `numba_kcache` logger."""
    import logging

    return logging.getLogger("numba_kcache")


def set_log_level(name: str) -> None:
    """Set the level of the `numba_kcache` logger; "warning", the default, leaves it to the program.

    A program that has not set up logging gets lines of a chosen level on standard error.
    """
    if name == "warning":
        return
    log = logger()
    log.setLevel(_LEVELS[name])
    if name != "off" and not log.hasHandlers():
        import logging

        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s"))
        log.addHandler(handler)


def _line_of(event: Event, reason: object) -> str:
    """The line of the log about an event.

    Args:
        event: What happened.
        reason: Why the kernel that was last looked up in this thread was not there.
    """
    from .text import bytes_text, seconds_text

    kind, fields = event.kind, event.fields
    what = f"{fields.get('kernel')} for {fields.get('target')}"
    if kind is EventKind.COMPILE_END:
        return f"compiled {what} in {seconds_text(fields.get('compile_time_s', 0.0))}: {reason}"
    if kind is EventKind.COMPILE_FAILED:
        error = str(fields.get("error")).partition("\n")[0]
        return f"could not compile {what} ({reason}): {error}"
    if kind is EventKind.WAITED:
        return f"waited {seconds_text(fields.get('waited_s', 0.0))} for another's compile of {what}"
    if kind is EventKind.EVICTED:
        size = bytes_text(fields.get("size_bytes", 0))
        return f"removed {fields.get('entries')} entries ({size}) to keep the limits"
    text = _warning_of(event)
    return text[1] if text is not None else f"{kind} {dict(fields)}"


def _warning_of(event: Event) -> tuple[str, str] | None:
    """What to say once about an event, and the subject it is said once about; None for the others."""
    fields = event.fields
    if event.kind is EventKind.TROUBLE:
        cause = fields.get("errno") or fields.get("where")  # a full disk fails many calls, and is one trouble
        return f"trouble {cause}", f"the kernel cache goes on without: {fields.get('error')}"
    if event.kind is EventKind.DAMAGED:
        return "damaged", f"a damaged cache entry was set aside and will be compiled again: {fields.get('reason')}"
    if event.kind is EventKind.UNCACHEABLE:
        return f"uncacheable {fields.get('kernel')}", f"{fields.get('kernel')} is not cached: {fields.get('reason')}"
    if event.kind is EventKind.FALLBACK:
        return f"fallback {fields.get('target')}", f"{fields.get('reason')}"
    return None


def _depth_of_caller() -> int:
    """Stack level of the first frame outside this package, as `warnings.warn` in `_warn_once` counts."""
    depth = 1
    frame = sys._getframe(1)
    package = __name__.partition(".")[0]
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == package:
        frame = frame.f_back
        depth += 1
    return depth
