"""Named points at which a test may stop the process, or make the system fail.

Promise     In production `hook` is None, and reaching a point is one comparison.
Method      tests/crash set `hook`, usually to a function that kills its own process at one name.
"""

from __future__ import annotations

from collections.abc import Callable

hook: Callable[[str], None] | None = None
"""Called with the name of each point that is reached; set only by tests."""


def reached(point: str) -> None:
    """Mark that execution got to `point`."""
    if hook is not None:
        hook(point)
