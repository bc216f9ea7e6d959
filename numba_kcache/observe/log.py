"""Write log lines under `numba_kcache` and warnings about events.

Promise     The log has one line for each compile, with the reason of the miss, and none for ordinary hits. A warning
            names the user's line. Both are one line without control characters, whatever an event holds; neither ever
            raises, whatever the program did to its streams, handlers and filters.
"""

from __future__ import annotations

import sys
import warnings
from contextlib import suppress
from typing import Any

from ..errors import KCacheWarning, plain
from ..model import Event, EventKind

INFO, WARNING, ERROR = 20, 30, 40
"""Log levels, with the numbers of `logging`."""

_LEVELS = {"debug": 10, "info": INFO, "warning": WARNING, "error": ERROR, "off": 1000}


def logger() -> Any:
    """The `numba_kcache` logger."""
    import logging

    return logging.getLogger("numba_kcache")


def record(level: int, text: str, *, with_error: bool = False) -> None:
    """Write a line to the log. Never raises: a handler's stream may be closed, and filters are user code."""
    with suppress(Exception):
        logger().log(level, "%s", plain(text), exc_info=with_error, stacklevel=2)


def set_log_level(name: str) -> None:
    """Set the level of the `numba_kcache` logger.

    A program that has not set up logging gets lines of a chosen level on standard error.
    """
    log = logger()
    log.setLevel(_LEVELS[name])
    if name != "off" and not log.hasHandlers():
        import logging

        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s"))
        log.addHandler(handler)


def line_of(event: Event, reason: object) -> str:
    """The line of the log about an event.

    Args:
        event: The event.
        reason: Reason of this thread's last miss.
    """
    from .text import bytes_text, seconds_text

    kind, fields = event.kind, event.fields
    target = fields.get("target")
    what = f"{fields.get('kernel')}{f' for {target}' if target != 'any' else ''}"
    if kind is EventKind.COMPILE_END:
        return f"compiled {what} in {seconds_text(fields.get('compile_time_s', 0.0))}: {reason}"
    if kind is EventKind.COMPILE_FAILED:
        error = str(fields.get("error")).partition("\n")[0]
        return f"could not compile {what} ({reason}): {error}"
    if kind is EventKind.WAITED:
        whose = fields.get("what") or f"another process's compile of {what}"
        return f"waited {seconds_text(fields.get('waited_s', 0.0))} for {whose}"
    if kind is EventKind.EVICTED:
        size = bytes_text(fields.get("size_bytes", 0))
        return f"removed {fields.get('entries')} entries ({size}) to keep the limits"
    return warning_of(event)[1] or f"{kind} {dict(fields)}"


def warning_of(event: Event) -> tuple[str, str]:
    """Subject and text of the warning about an event; empty for events without one. Each subject is warned of once."""
    fields = event.fields
    if event.kind is EventKind.TROUBLE:
        cause = fields.get("errno") or fields.get("where")  # a full disk fails many calls, and is one trouble
        return f"trouble {cause}", f"the kernel cache continues after a failure: {fields.get('error')}"
    if event.kind is EventKind.DAMAGED:
        moved = "a damaged cache entry was moved to quarantine and will be compiled again"
        return "damaged", f"{moved}: {fields.get('reason')}"
    if event.kind is EventKind.UNCACHEABLE:
        return f"uncacheable {fields.get('kernel')}", f"{fields.get('kernel')} is not cached: {fields.get('reason')}"
    if event.kind is EventKind.FALLBACK:
        return f"fallback {fields.get('target')}", f"{fields.get('reason')}"
    return "", ""


def warn(text: str) -> None:
    """Warn the user, at the first line outside this package."""
    text = plain(text)
    try:
        warnings.warn(text, KCacheWarning, stacklevel=_depth_of_caller())
    except Exception:  # warnings turned into errors, a closed stderr, a broken showwarning: must not fail a launch
        record(WARNING, text)


def _depth_of_caller() -> int:
    """Stack level of the first frame outside this package, as `warnings.warn` in `warn` counts them."""
    depth = 1
    frame = sys._getframe(1)
    package = __name__.partition(".")[0]
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == package:
        frame = frame.f_back
        depth += 1
    return depth
