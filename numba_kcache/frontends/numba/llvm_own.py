"""Convert streams for Numba's own launch, and wrap functions that Numba loaded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ...launch.devices import bindings, current_device, done, stream_handle
from ...launch.loader import LoadedKernel
from ...model.artifact import Entry


def numba_stream(stream: Any) -> Any:
    """Convert a stream for Numba's own launch: 0, Numba's and cuda.core's are unchanged, others are wrapped by handle.

    Raises:
        LaunchConfigError: It is not a known kind of stream.
    """
    if not stream or type(stream).__module__.startswith(("numba.", "cuda.core")):
        return stream or 0
    from numba.cuda import external_stream

    return external_stream(stream_handle(stream))


def loaded_by_numba(function: Any) -> LoadedKernel:
    """Wrap a function that Numba loaded on the current device as a `LoadedKernel`."""
    handle = done(bindings().cuKernelGetFunction(int(function.handle)), f"find {function.name}")
    entry = Entry(function.name, function.name, (), False, function.attrs.regs, function.attrs.shared)
    return LoadedKernel(entry, current_device(), handle, SimpleNamespace(live=[True], stays=[True]))
