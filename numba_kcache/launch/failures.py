"""Errors for launches that the driver refuses.

Promise     `launch_error` names kernel, shape and the driver's own error name, and a step where one is known.
Ground      CUDA driver API, `CUresult`.
"""

from __future__ import annotations

from typing import Any

from ..errors import LaunchError
from .config import LaunchShape

_EARLIER = "an earlier kernel failed and took the context with it; NUMBA_KCACHE_DEBUG=1 names the kernel"
_HINTS = {
    1: "check grid, block and shared memory against the kernel's launch bounds",
    3: "CUDA does not survive fork(): start workers with spawn, or fork before the first CUDA call",
    4: "the process is shutting down",
    98: "the kernel is not loaded on this device",
    201: "make a device current first, for example with cuda.select_device()",
    209: "compile for this device: arch='auto'",
    218: "the driver is older than the compiler that made the PTX",
    400: "the stream or the context it belongs to is gone",
    700: _EARLIER,
    701: "use a smaller block, fewer registers (max_registers, launch_bounds) or less shared memory",
    709: "the context is gone; a new launch makes the kernel anew",
    714: _EARLIER,
    715: _EARLIER,
    716: _EARLIER,
    717: _EARLIER,
    718: _EARLIER,
    719: _EARLIER,
    720: "its blocks must all fit on the device at once: see .max_cooperative_grid_blocks()",
    900: "a stream that is being captured cannot do this",
    906: "the legacy default stream cannot be used while another is being captured: name the stream",
}

RECOVERABLE = frozenset((3, 4, 98, 201, 400, 709))
"""Codes after which the kernel may run if it is loaded anew or its context made current."""


def launch_error(kernel: str, shape: LaunchShape, code: Any) -> LaunchError:
    """The error for a launch that the driver answered with `code` (a `CUresult`, or its number)."""
    return LaunchError(
        f"cannot launch {kernel} with grid {shape.grid}, block {shape.block}, sharedmem {shape.shared_bytes}",
        f"the driver answered {getattr(code, 'name', code)}",
        _HINTS.get(int(code), ""),
    )
