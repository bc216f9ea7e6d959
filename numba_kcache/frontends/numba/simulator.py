"""Numba kernels under `NUMBA_ENABLE_CUDASIM`: they run in Numba's simulator, as they do without this package.

Not here    Whether it is on (definition.is_simulated), so that nobody else imports this. CUDA C++, which
            nothing simulates: asking for the device says so (launch.devices).
Ground      numba-cuda 0.30.4, simulator/: its `jit` gives a kernel for each function, and knows few options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...launch import LaunchShape

_WITHOUT_MEANING = {"lineinfo", "inline", "forceinline", "lto", "max_registers", "launch_bounds"}
"""Options of code, of which the simulator makes none."""


def simulated(thing: Any, options: Mapping[str, Any]) -> Any:
    """Give a function as the simulator's kernel; what its `cuda.jit` made already, as it is."""
    if hasattr(thing, "py_func"):
        return thing
    from numba import cuda

    return cuda.jit(**{name: value for name, value in options.items() if name not in _WITHOUT_MEANING})(thing)


def simulate(kernel: Any, shape: LaunchShape, arguments: Sequence[Any]) -> None:
    """Run a kernel of the simulator; it has one stream."""
    kernel[shape.grid, shape.block, 0, shape.shared_bytes](*arguments)
