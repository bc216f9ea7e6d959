"""The shape of a launch: parse and check grid, block and shared memory.

Promise     `launch_shape` accepts the same forms of grid and block as Numba; `check_launch` refuses every shape that
            the device would refuse, and names the first invalid extent.
Not here    The stream (devices), the launch itself (launcher), the function attribute for more than 48 KiB of dynamic
            shared memory (loader), the configurations that a kernel keeps (frontends.launches).
Source      CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; the limits that depend on the
            device or the kernel are queried from the driver (loader).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ..errors import LaunchConfigError
from ..model import NamedTuple

Dim3: TypeAlias = tuple[int, int, int]
"""Extents along x, y and z."""

AXES = "xyz"

GRID_LIMIT = (2**31 - 1, 65535, 65535)
BLOCK_LIMIT = (1024, 1024, 64)
"""Most blocks of a grid, and most threads of a block, along x, y and z. Every device that CUDA 12 and 13 support has
these limits, so a warm start need not query the driver for them."""


Launch = Callable[..., None]
"""The type of `kernel[grid, block]`: called with the kernel's arguments, returns when the launch is queued."""

BindGrid = Callable[[int, int, int], Launch]
"""Makes the launch for a grid (x, y, z), with fixed block, shared memory and stream."""


class LaunchShape(NamedTuple):
    """The extents of one launch.

    Args:
        grid: Blocks along (x, y, z).
        block: Threads of a block along (x, y, z).
        shared_bytes: Dynamic shared memory per block; static shared memory comes on top.
    """

    grid: Dim3
    block: Dim3
    shared_bytes: int = 0

    @property
    def threads_per_block(self) -> int:
        """Threads of one block: the product of its extents."""
        x, y, z = self.block
        return x * y * z


class DeviceLimits(NamedTuple):
    """The limits of one device, and of one kernel on it.

    Args:
        grid: Most blocks along (x, y, z).
        block: Most threads of a block along (x, y, z).
        threads_per_block: Most threads of a block of this kernel: the device's limit, or less where the
            kernel's registers or launch bounds allow less.
        shared_bytes: Most static and dynamic shared memory of a block together, opted in.
        static_shared_bytes: Static shared memory of the kernel.
    """

    grid: Dim3
    block: Dim3
    threads_per_block: int
    shared_bytes: int
    static_shared_bytes: int = 0


@functools.cache
def limits_of(threads: int) -> DeviceLimits:
    """Limits that hold on every device, for launches with at most `threads` per block and no dynamic shared memory."""
    return DeviceLimits(GRID_LIMIT, BLOCK_LIMIT, threads, 0)


# -- shapes -------------------------------------------------------------------------------------------


def launch_shape(grid: object, block: object, shared_bytes: object = 0) -> LaunchShape:
    """Read the extents of a launch as users write them.

    Args:
        grid: Blocks: an integer, or one to three of them in a tuple or list. NumPy's count as integers.
        block: Threads of a block, in the same forms.
        shared_bytes: Dynamic shared memory per block, in bytes.

    Raises:
        LaunchConfigError: A value is not an integer (a bool is not), or an extent has none or more than three.
    """
    return LaunchShape(
        (grid, 1, 1) if type(grid) is int else read_extents(grid, "grid"),
        (block, 1, 1) if type(block) is int else read_extents(block, "block"),
        shared_bytes if type(shared_bytes) is int else _integer(shared_bytes, "sharedmem"),
    )


_STREAM_LIBRARIES = ("builtins", "cuda", "cupy", "cupy_backends", "numba", "numba_cuda_mlir", "numpy", "torch")


def is_one_stream(stream: Any) -> bool:
    """Check whether an object always names the same stream: a handle, or a stream of a known library.

    A user's class may, for example, return the current stream from `__cuda_stream__`.
    """
    return type(stream).__module__.partition(".")[0] in _STREAM_LIBRARIES


def read_extents(extents: object, name: str) -> Dim3:
    """Read a grid or a block; `name` is for the message. See `launch_shape`."""
    if not isinstance(extents, (tuple, list)):
        return _integer(extents, name), 1, 1
    if not 1 <= len(extents) <= 3:
        raise LaunchConfigError(
            f"cannot launch with {name} = {_shown(extents)}",
            f"it has {len(extents)} extents",
            "give one to three integers",
        )
    x, y, z = (*extents, 1, 1)[:3]
    if not type(x) is type(y) is type(z) is int:
        x, y, z = _integer(x, name, extents), _integer(y, name, extents), _integer(z, name, extents)
    return x, y, z


def _integer(value: Any, name: str, whole: object = None) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise LaunchConfigError(
            f"cannot launch with {name} = {_shown(value if whole is None else whole)}",
            f"{_shown(value)} is {type(value).__name__}, not an integer",
            "divide with // (rounding up: (n + threads - 1) // threads)"
            if isinstance(value, float)
            else "give integers",
        ) from None


def _shown(value: object) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "(" + ", ".join(map(_shown, value)) + ")"
    text = repr(value) if isinstance(value, (int, float, str, type(None))) else f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


def check_launch(shape: LaunchShape, limits: DeviceLimits, *, kernel: str = "the kernel") -> None:
    """Check one launch against the device and the kernel; nothing is queued.

    Args:
        shape: The launch.
        limits: Limits of the device and of the kernel on it.
        kernel: The kernel's name, for the message.

    Raises:
        LaunchConfigError: An extent is below 1 or above its limit. The first offender in the order grid,
            block, threads, shared memory is named.
    """
    (x, y, z), (most_x, most_y, most_z), shared_bytes = shape.grid, limits.grid, shape.shared_bytes
    room = limits.shared_bytes - limits.static_shared_bytes
    if 0 < x <= most_x and 0 < y <= most_y and 0 < z <= most_z and (not shared_bytes or 0 < shared_bytes <= room):
        (x, y, z), (most_x, most_y, most_z) = shape.block, limits.block
        if 0 < x <= most_x and 0 < y <= most_y and 0 < z <= most_z and x * y * z <= limits.threads_per_block:
            return  # as most launches do
    for name, extents, most in (("grid", shape.grid, limits.grid), ("block", shape.block, limits.block)):
        for axis, extent, limit in zip(AXES, extents, most):  # noqa: B905
            if not 1 <= extent <= limit:
                hint = "fold the excess into another axis or loop inside the kernel"
                if extent < 1:
                    hint = "skip the launch where there is nothing to do" if extent == 0 else "a count is not negative"
                    hint += "; blocks are (n + threads - 1) // threads" if name == "grid" and extent else ""
                elif name == "block" and extent > limits.threads_per_block:
                    hint = "use smaller blocks, and more of them"
                elif name == "grid":
                    hint = "let each thread take several elements in a loop"
                raise LaunchConfigError(
                    f"cannot launch {kernel} with {name}.{axis} = {extent}", f"this device takes 1 to {limit}", hint
                )
    x, y, z = shape.block
    if x * y * z > limits.threads_per_block:
        raise LaunchConfigError(
            f"cannot launch {kernel} with {x * y * z} threads per block",
            f"it takes at most {limits.threads_per_block} on this device",
            "use a smaller block; registers and __launch_bounds__ can lower the limit of a kernel",
        )
    if not 0 <= shape.shared_bytes <= room:
        raise LaunchConfigError(
            f"cannot launch {kernel} with sharedmem = {shape.shared_bytes}",
            f"a block takes 0 to {room} bytes beside the {limits.static_shared_bytes} of its static arrays",
            "use smaller tiles" if shape.shared_bytes > 0 else "sharedmem is a number of bytes",
        )
