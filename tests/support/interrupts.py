"""Exceptions as signal handlers raise them, at each line of given modules."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


class Interrupt(BaseException):
    """Raised as by a signal handler."""


def lines_run(work: Callable[[], object], interrupts_at: int, *files: str) -> bool:
    """Run `work`, and raise Interrupt at one of the lines that it runs of these files, counted from 0.

    Returns:
        True if it has no such line; its ValueError is then suppressed.
    """
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        if frame.f_code.co_filename not in files:
            return None
        if event == "line":
            count += 1
            if count - 1 == interrupts_at:
                raise Interrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except ValueError:
        pass
    finally:
        sys.settrace(before)
    return count <= interrupts_at
