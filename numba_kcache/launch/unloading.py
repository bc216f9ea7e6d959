"""Unload modules without references, once the launches of their kernels are done.

Promise     No module is unloaded in a finalizer, while a launch of it may be queued, or while a known stream is being
            captured: that is left to a later load. The host never waits. A module stays loaded as long as its context
            if a kernel of it was captured, launched on a stream that may be destroyed, or given out as a handle.
Method      The finalizer of a module makes a `Dropped`. The next load records an event in each stream that its
            kernels were launched on; that load or a later one finds all events completed, and unloads it.
Source      A graph keeps functions by handle. An event of the legacy default stream comes after all that the blocking
            streams have queued; cuStreamIsCapturing of it fails while one of those is captured.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from . import DISABLE_TIMING, context_id, stream_handle


class Dropped(NamedTuple):
    """A module without references.

    Args:
        ordinal: Ordinal of its device.
        context: The id of the context that it was loaded in.
        streams: Streams that its kernels were launched on, the default one excepted: by handle, each one's owner.
        unload: Unloads it.
        events: Events recorded after its launches; none before the first load after it was dropped.
        pid: The process that loaded it.
    """

    ordinal: int
    context: int | None
    streams: Mapping[int, Any]
    unload: Callable[[], object]
    events: list[int]
    pid: int


MOST_STREAMS = 64
"""Limit of the streams that are known of one module; a module launched on more of them stays loaded."""


def keeps_its_stream(stream: Any) -> bool:
    """True for a stream that lives as long as its object: those that CuPy, PyTorch and Numba create themselves.

    Source:
        PyTorch 2.11, c10/cuda/CUDAStream.cpp: the id of a stream made from a foreign handle is that handle.
    """
    kind = type(stream)
    owner, number = kind.__module__.partition(".")[0], getattr(stream, "stream_id", 0)
    is_foreign = getattr(stream, "external", False) or (number and number == getattr(stream, "cuda_stream", 0))
    return kind.__name__ == "Stream" and owner in ("cupy", "torch", "numba") and not is_foreign


def owner_of(handle: int, arguments: Sequence[Any], ordinal: int) -> Any:
    """The object of the stream that was chosen for a launch; the handle itself if none of their libraries has one."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    found = [each.stream for each in arguments if getattr(each, "__cuda_ndarray__", False)]
    if cupy is not None and any(isinstance(each, cupy.ndarray) for each in arguments):
        found.append(cupy.cuda.get_current_stream())
    if torch is not None and any(isinstance(each, torch.Tensor) for each in arguments):
        found.append(torch.cuda.current_stream(ordinal))
    return next((each for each in found if stream_handle(each) == handle), handle)


def unload_dropped(dropped: list[Any], driver: Any, ordinal: int, streams: Mapping[int, Any]) -> None:
    """Unload the modules of a list of `Dropped` whose launches are done. The current context is of device `ordinal`.

    Args:
        dropped: The list; modules that cannot be unloaded yet stay in it.
        driver: `devices.bindings()`.
        ordinal: Ordinal of the current device.
        streams: Streams that kernels were launched on: by handle, the object that owns each.
    """
    known = {handle for handle, stream in list(streams.items()) if stream_handle(stream) == handle}
    if any(driver.cuStreamIsCapturing(handle) != (0, 0) for handle in (*known, *_current_streams(ordinal))):
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
    """Unload a module, or leave it loaded for good; False if that cannot be decided yet."""
    streams = [0, *dropped.streams]
    if any(stream_handle(stream) != handle for handle, stream in dropped.streams.items()):
        return True  # the stream was destroyed since: its work cannot be tracked, and the module stays loaded
    if any(driver.cuStreamIsCapturing(stream) != (0, 0) for stream in streams):
        return False
    if not dropped.events:
        for stream in streams:
            status, event = driver.cuEventCreate(DISABLE_TIMING)
            if status or driver.cuEventRecord(event, stream)[0]:
                dropped.events.clear()
                return False
            dropped.events.append(event)
    if any(driver.cuEventQuery(event)[0] for event in dropped.events):
        return False
    for event in dropped.events:
        driver.cuEventDestroy_v2(event)
    dropped.unload()
    return True
