"""Hand every event to whoever listens, and say troubles once.

Promise     Emitting never raises, whatever a listener does. Trouble with the cache is one warning per kind of
            trouble and process; nothing else is printed.
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


class Events:
    """The events of one cache and who listens to them."""

    def __init__(self) -> None:
        self._listeners: tuple[Callable[[Event], object], ...] = ()
        self._lock = threading.Lock()
        self._said: set[str] = set()

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
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:  # a listener is the user's code: its faults must not reach a launch
                _logger().exception("a listener of numba_kcache failed")
        if event.kind in _QUIET:
            return  # the log has nothing of them: emitting costs a warm start next to nothing
        if "logging" in sys.modules:  # importing it costs 5 ms, and a program without it has nowhere to log to
            _logger().info(
                "%s %s", event.kind, {name: each for name, each in event.fields.items() if name != "reasons"}
            )
        text = _warning_of(event)
        if text is not None:
            self._warn_once(*text)

    def _warn_once(self, subject: str, text: str) -> None:
        with self._lock:
            if subject in self._said:
                return
            self._said.add(subject)
        try:
            warnings.warn(text, KCacheWarning, stacklevel=_depth_of_caller())
        except Exception:  # warnings turned into errors, a closed stderr, a broken showwarning: no launch fails by it
            _logger().warning(text)


def _logger() -> Any:
    import logging

    return logging.getLogger("numba_kcache")


def set_log_level(name: str) -> None:
    """Set the level of the `numba_kcache` logger; "warning", the default, leaves it to the program."""
    if name != "warning":
        levels = {"debug": 10, "info": 20, "error": 40, "off": 1000}
        _logger().setLevel(levels[name])


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
