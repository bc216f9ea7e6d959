"""Numba kernels under `NUMBA_ENABLE_CUDASIM`: they run in Numba's simulator, as they do without this package.

Not here    The check for the simulator (llvm.is_simulated): this module is imported only if it is on. The error
            for CUDA C++, which cannot be simulated (launch.devices).
Source      numba-cuda 0.30.4, simulator/: its `jit` returns a kernel for each function, and takes few options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...launch import LaunchShape

_WITHOUT_MEANING = {"lineinfo", "inline", "forceinline", "lto", "max_registers", "launch_bounds"}
"""Options for generated code, which are ignored: the simulator generates none."""


def simulated(thing: Any, options: Mapping[str, Any]) -> Any:
    """Make the simulator's kernel of a function; a kernel made by its own `cuda.jit` is returned unchanged."""
    if hasattr(thing, "py_func"):
        return thing
    from numba import cuda

    return cuda.jit(**{name: value for name, value in options.items() if name not in _WITHOUT_MEANING})(thing)


def simulate(kernel: Any, shape: LaunchShape, arguments: Sequence[Any]) -> None:
    """Run a kernel of the simulator; it has one stream."""
    kernel[shape.grid, shape.block, 0, shape.shared_bytes](*arguments)
