"""Order a launch with streams other than its own; keep what it borrowed, and its module, until it is done.

Promise     Waiting is on the device: `enqueue_wait` never blocks the host. What `hold` keeps is freed by a later
            launch, once the work that used it is done; the host waits only if thousands of launches are pending.
            No module is unloaded in a finalizer, while a launch of it may be queued, or while a stream that waits for
            the default stream, or the current stream of PyTorch or CuPy, is being captured: that is left to a later
            load. A module stays loaded as long as its context if a kernel of it was launched on another stream than the
            default one, which may be destroyed or captured, or was given out as a handle.
Method      The finalizer of a module makes a `Dropped`. The next load records an event in the default stream; that
            load or a later one finds the event completed, and unloads the module.
Not here    Choosing the stream of a launch, and which others it is ordered with (`choose` and `others` in launch).
Source      An event can be recorded again without affecting waits that were queued before. A stream that is being
            captured waits for a stream outside the capture by an external event node (CU_EVENT_WAIT_EXTERNAL).
            cuEventQuery ends a capture in global mode of any thread, unless its own thread is in relaxed mode.
            A graph keeps functions by handle. cuStreamIsCapturing of the legacy default stream fails while a stream
            that waits for it is captured; an event recorded there would end that capture.
"""

from __future__ import annotations

import functools
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from ..errors import LaunchError
from . import DISABLE_TIMING, bindings, context_id, done, is_capturing, relaxed

_HINT = "launch on the stream that produces the arguments"

_NOT_READY = 600
"""CUDA_ERROR_NOT_READY."""

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
        with relaxed():
            _free(driver)
            if is_capturing(driver, handle):
                return
            while len(_held) >= HELD_LIMIT:
                driver.cuEventSynchronize(_held[0][0])
                _free(driver)
            event = done(driver.cuEventCreate(DISABLE_TIMING), action)
            done(driver.cuEventRecord(event, handle), action)
            _held.append((event, borrowed))

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


# -- modules without references ---------------------------------------------------------------------------------------


class Dropped(NamedTuple):
    """A module without references.

    Args:
        ordinal: Ordinal of its device.
        context: The id of the context that it was loaded in.
        unload: Unloads it.
        events: The event recorded after its launches; none before the first load after it was dropped.
        pid: The process that loaded it.
    """

    ordinal: int
    context: int | None
    unload: Callable[[], object]
    events: list[int]
    pid: int


def unload_dropped(dropped: list[Any], ordinal: int) -> None:
    """Unload the modules of a list of `Dropped` whose launches are done. The current context is of device `ordinal`.

    Args:
        dropped: The list; modules that cannot be unloaded yet stay in it.
        ordinal: Ordinal of the current device.
    """
    driver = bindings()
    if any(driver.cuStreamIsCapturing(handle) != (0, 0) for handle in (0, *_current_streams(ordinal))):
        return
    context, waiting = context_id(), list[Dropped]()
    while True:
        try:
            each = Dropped(*dropped.pop())
        except IndexError:  # the list is empty: another thread may have taken the last item
            break
        if each.pid != os.getpid():
            continue
        if each.ordinal != ordinal or (each.context == context and not _unload_if_done(each, driver)):
            waiting.append(each)  # the others were unloaded, or are left to the end of their context
    dropped += waiting


def _current_streams(ordinal: int) -> Iterable[int]:
    """The current streams of PyTorch and CuPy, where the program uses them."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized():
        yield torch.cuda.current_stream(ordinal).cuda_stream
    if cupy is not None and hasattr(cupy, "cuda"):
        yield cupy.cuda.get_current_stream().ptr


def _unload_if_done(dropped: Dropped, driver: Any) -> bool:
    """Unload a module if its launches are done."""
    if not dropped.events:
        status, event = driver.cuEventCreate(DISABLE_TIMING)
        if status or driver.cuEventRecord(event, 0)[0]:
            return False
        dropped.events.append(event)
    if driver.cuEventQuery(dropped.events[0])[0]:
        return False
    driver.cuEventDestroy_v2(dropped.events[0])
    dropped.unload()
    return True
