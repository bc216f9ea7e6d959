"""Make one stream wait for another on the device.

Promise     `enqueue_wait` never blocks the host.
Source      An event can be recorded again without affecting waits that were queued before. A stream that is being
            captured waits for a stream outside the capture by an external event node (CU_EVENT_WAIT_EXTERNAL).
"""

from __future__ import annotations

from typing import Any

from ..errors import LaunchError
from .devices import DISABLE_TIMING, done

_HINT = "launch on the stream that produces the arguments"


class StreamWaits:
    """Makes one stream of a context wait for another; must not outlive the context.

    Args:
        driver: `devices.bindings()`, or an object with its event functions.
    """

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._idle: list[Any] = []  # events; a list, because pop and append are atomic

    def enqueue_wait(self, producer: int, consumer: int) -> None:
        """Make all later work in `consumer` wait for all present work in `producer`; the host does not wait.

        Raises:
            LaunchError: The driver refused.
        """
        driver, action = self._driver, f"wait for stream {producer:#x} on stream {consumer:#x}"
        is_external = self._is_outside_capture(producer, consumer, action)
        try:
            event = self._idle.pop()
        except IndexError:
            event = done(driver.cuEventCreate(DISABLE_TIMING), action, _HINT)
        done(driver.cuEventRecord(event, producer), action, _HINT)
        done(driver.cuStreamWaitEvent(consumer, event, int(is_external)), action, _HINT)  # 1: CU_EVENT_WAIT_EXTERNAL
        if not is_external:  # a graph waits for this event at each of its launches: it must not be recorded again
            self._idle.append(event)

    def _is_outside_capture(self, producer: int, consumer: int, action: str) -> bool:
        """True if the consumer is being captured and the producer is not: the graph then waits for an event."""
        code, capturing = self._driver.cuStreamIsCapturing(consumer)
        if code or not capturing:
            return False
        code, capturing = self._driver.cuStreamIsCapturing(producer)
        if code:
            raise LaunchError(
                f"cannot {action}",
                "an argument is produced on the default stream, which nothing can wait for while another is captured",
                "in the argument's library, make the captured stream the current one",
            )
        return not capturing
