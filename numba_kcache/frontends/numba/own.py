"""Streams as Numba's own launch takes them, and functions that Numba loaded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ...launch.devices import bindings, current_device, done, stream_handle
from ...launch.loader import LoadedKernel
from ...model.artifact import Entry


def numba_stream(stream: Any) -> Any:
    """The stream as Numba's own launch takes it: 0, Numba's or cuda.core's as they are, others by their handle.

    Raises:
        LaunchConfigError: It is no stream that is known here.
    """
    if not stream or type(stream).__module__.startswith(("numba.", "cuda.core")):
        return stream or 0
    from numba.cuda import external_stream

    return external_stream(stream_handle(stream))


def loaded_by_numba(function: Any) -> LoadedKernel:
    """A function that Numba loaded on the current device, as this package prepares and asks its own."""
    handle = done(bindings().cuKernelGetFunction(int(function.handle)), f"find {function.name}")
    entry = Entry(function.name, function.name, (), False, function.attrs.regs, function.attrs.shared)
    return LoadedKernel(entry, current_device(), handle, SimpleNamespace(live=[True], stays=[True]))
