"""Streams of any library as driver handles, and one stream made to wait for another on the device.

Promise     `stream_handle` takes the streams of Numba, cuda.core, CuPy and PyTorch, whatever has
            `__cuda_stream__`, handles, 0 and None; it imports nothing and touches no device.
            `enqueue_wait` never blocks the host.
Method      A stream is known by what it offers, tried from the protocol down to the libraries' own names.
Ground      CUDA driver API: handles 0 and 1 are the legacy default stream, 2 the per-thread one. An event
            keeps what it recorded for the waits that were queued before it is recorded again. What is being
            captured waits for a stream outside through an external event node (CU_EVENT_WAIT_EXTERNAL).
"""

from __future__ import annotations

import operator
from typing import Any

from ..errors import LaunchConfigError, LaunchError

LEGACY_DEFAULT = 1
"""The handle that names the legacy default stream explicitly; 0 means the same stream."""


def stream_handle(stream: Any) -> int:
    """The driver handle of a stream, 0 for the default stream.

    Raises:
        LaunchConfigError: It is no stream that is known here.
    """
    if stream is None or (type(stream) is int and stream >= 0):
        return stream or 0
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        _version, handle = protocol() if callable(protocol) else protocol
        return int(handle)
    for name in ("cuda_stream", "ptr", "handle"):  # PyTorch, CuPy, Numba's and cuda.core's older ones
        handle = getattr(stream, name, None)
        if handle is not None and not isinstance(stream, type):
            return int(getattr(handle, "value", handle) or 0)
    inner = getattr(stream, "stream", None)  # cuda.core's GraphBuilder captures into its stream
    if inner is not None:
        return stream_handle(inner)
    if type(stream).__name__ == "CUstream":  # cuda.bindings: a handle with __int__ alone
        return int(stream)
    try:
        if isinstance(stream, bool):
            raise TypeError
        handle = operator.index(stream)
        if handle >= 0:
            return handle
    except TypeError:
        pass
    raise LaunchConfigError(
        f"cannot launch on stream {stream!r}" if isinstance(stream, (bool, int, float, str)) else
        f"cannot launch on a {type(stream).__module__}.{type(stream).__name__}",
        "it is not a stream",
        "pass a stream of Numba, cuda.core, CuPy or PyTorch, anything with __cuda_stream__, or its handle",
    )  # fmt: skip


def numba_stream(stream: Any) -> Any:
    """The stream as Numba's own launch takes it: 0, Numba's or cuda.core's as they are, others by their handle.

    Raises:
        LaunchConfigError: It is no stream that is known here.
    """
    if not stream or type(stream).__module__.startswith(("numba.", "cuda.core")):
        return stream or 0
    from numba.cuda import external_stream

    return external_stream(stream_handle(stream))


def stream_identity(handle: int) -> int:
    """A number that two handles share exactly where they name the same stream."""
    return 0 if handle == LEGACY_DEFAULT else handle


class StreamWaits:
    """Makes one stream of a context wait for another; to be dropped together with the context.

    Args:
        driver: `cuda.bindings.driver`, or what offers its event functions.
    """

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._idle: list[Any] = []  # events; a list, because pop and append are atomic

    def enqueue_wait(self, producer: int, consumer: int) -> None:
        """Let all later work in `consumer` wait for all that is in `producer` now; the host does not wait.

        Raises:
            LaunchError: The driver refused.
        """
        driver = self._driver
        is_external = self._is_outside_capture(producer, consumer)
        try:
            event = self._idle.pop()
        except IndexError:
            flags = driver.CUevent_flags.CU_EVENT_DISABLE_TIMING
            event = _answer(driver.cuEventCreate(flags), "create an event for", consumer)
        _answer(driver.cuEventRecord(event, producer), "record an event on", producer)
        wait = driver.CUevent_wait_flags.CU_EVENT_WAIT_EXTERNAL if is_external else 0
        _answer(driver.cuStreamWaitEvent(consumer, event, wait), "wait for another stream on", consumer)
        if not is_external:  # a graph waits for the event at each of its launches: it is not recorded again
            self._idle.append(event)

    def _is_outside_capture(self, producer: int, consumer: int) -> bool:
        """True where the consumer is being captured and the producer is not: the graph then waits for an event."""
        code, capturing = self._driver.cuStreamIsCapturing(consumer)
        if code or not capturing:
            return False
        code, capturing = self._driver.cuStreamIsCapturing(producer)
        if code:
            raise LaunchError(
                f"cannot wait for stream {producer:#x} on stream {consumer:#x}",
                "an argument is produced on the default stream, which nothing can wait for while another is captured",
                "make the stream that is captured the current one of the library the argument is from",
            )
        return not capturing


def _answer(answer: tuple[Any, ...], action: str, handle: int) -> Any:
    code, *rest = answer
    if code:
        raise LaunchError(
            f"cannot {action} stream {handle:#x}",
            f"the driver answered {getattr(code, 'name', code)}",
            "launch on the stream that produces the arguments",
        )
    return rest[0] if rest else None
