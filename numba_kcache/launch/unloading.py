"""Unload modules without references, once the launches of their kernels are done.

Promise     No module is unloaded in a finalizer, while a launch of it may be queued, or while a stream that waits for
            the default stream, or the current stream of PyTorch or CuPy, is being captured: that is left to a later
            load. The host never waits. A module stays loaded as long as its context if a kernel of it was launched on
            another stream than the default one, which may be destroyed or captured, or was given out as a handle.
Method      The finalizer of a module makes a `Dropped`. The next load records an event in the default stream; that
            load or a later one finds the event completed, and unloads the module.
Source      A graph keeps functions by handle. cuStreamIsCapturing of the legacy default stream fails while a stream
            that waits for it is captured; an event recorded there would end that capture.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from . import DISABLE_TIMING, context_id


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


def unload_dropped(dropped: list[Any], driver: Any, ordinal: int) -> None:
    """Unload the modules of a list of `Dropped` whose launches are done. The current context is of device `ordinal`.

    Args:
        dropped: The list; modules that cannot be unloaded yet stay in it.
        driver: `launch.bindings()`.
        ordinal: Ordinal of the current device.
    """
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
