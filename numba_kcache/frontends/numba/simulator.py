"""Numba kernels under `NUMBA_ENABLE_CUDASIM`: they run in Numba's simulator, as they do without this package.

Not here    If the simulator is on (definition.is_simulated): only a program that uses it imports this. CUDA C++ cannot
            be simulated: launch.devices says so.
Ground      numba-cuda 0.30.4, simulator/: its `jit` gives a kernel for each function, and knows few options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...launch import LaunchShape

_WITHOUT_MEANING = {"lineinfo", "inline", "forceinline", "lto", "max_registers", "launch_bounds"}
"""Options about generated code: the simulator generates none."""


def simulated(thing: Any, options: Mapping[str, Any]) -> Any:
    """Make the simulator's kernel of a function; return one that its `cuda.jit` has made as it is."""
    if hasattr(thing, "py_func"):
        return thing
    from numba import cuda

    return cuda.jit(**{name: value for name, value in options.items() if name not in _WITHOUT_MEANING})(thing)


def simulate(kernel: Any, shape: LaunchShape, arguments: Sequence[Any]) -> None:
    """Run a kernel of the simulator; it has one stream."""
    kernel[shape.grid, shape.block, 0, shape.shared_bytes](*arguments)
