"""Order a launch with streams other than its own, and keep what it borrowed until it is done.

Promise     Waiting is on the device: `enqueue_wait` never blocks the host. What `hold` keeps is freed by a later
            launch, once the work that used it is done; the host waits only if thousands of launches are pending.
Not here    Choosing the stream of a launch, and which others it is ordered with (`choose` and `others` in launch).
Source      An event can be recorded again without affecting waits that were queued before. A stream that is being
            captured waits for a stream outside the capture by an external event node (CU_EVENT_WAIT_EXTERNAL).
            cuEventQuery ends a capture in global mode of any thread, unless its own thread is in relaxed mode.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Sequence
from typing import Any

from ..errors import LaunchError
from . import DISABLE_TIMING, bindings, done, is_capturing

_HINT = "launch on the stream that produces the arguments"

_NOT_READY = 600
"""CUDA_ERROR_NOT_READY."""

_RELAXED = 2
"""CU_STREAM_CAPTURE_MODE_RELAXED."""

HELD_LIMIT = 4096
"""Limit of the pending launches whose borrowed objects are kept: several times what the driver queues for a stream."""

_held: deque[tuple[int, Sequence[object]]] = deque()
"""Borrowed objects, oldest first, each with the event after which they may be freed."""


def _free(driver: Any) -> None:
    """Free the objects whose work is done, or whose context was destroyed."""
    while _held:
        try:
            first = _held.popleft()
        except IndexError:  # another thread took the last one
            return
        if driver.cuEventQuery(first[0])[0] == _NOT_READY:
            _held.appendleft(first)
            return
        driver.cuEventDestroy_v2(first[0])


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

    def follow(self, handle: int, streams: Sequence[int]) -> None:
        """Make streams wait for the launches queued on `handle`; while it is captured, only streams of a capture.

        Raises:
            LaunchError: The driver refused.
        """
        is_captured = bool(streams) and is_capturing(self._driver, handle)
        for each in streams:
            if not is_captured or is_capturing(self._driver, each):
                self.enqueue_wait(handle, each)

    def hold(self, handle: int, borrowed: Sequence[object]) -> None:
        """Keep objects alive until the work queued on a stream so far is done; free those whose work is done.

        While the stream is captured nothing is kept: a graph may run at any time, and the user keeps its arguments.
        """
        driver, action = self._driver, "keep the arguments of a launch"
        answer = driver.cuThreadExchangeStreamCaptureMode(_RELAXED)
        try:
            _free(driver)
            if is_capturing(driver, handle):
                return
            while len(_held) >= HELD_LIMIT:
                driver.cuEventSynchronize(_held[0][0])
                _free(driver)
            event = done(driver.cuEventCreate(DISABLE_TIMING), action)
            done(driver.cuEventRecord(event, handle), action)
            _held.append((event, borrowed))
        finally:
            if answer[0] == 0:
                driver.cuThreadExchangeStreamCaptureMode(answer[1])

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


@functools.lru_cache(maxsize=16)
def waits_in(_context: int | None) -> StreamWaits:
    """The `StreamWaits` of a context, by its id."""
    return StreamWaits(bindings())
