"""Grid, block and dynamic shared memory of a launch, read and checked.

Promise     `launch_shape` reads what Numba reads between the brackets; `check_launch` lets nothing through
            that the device would refuse, and names the first offender with its limit.
Not here    The stream (launch.streams), and the attributes that a shape above 48 KB needs (launch.loader).
Ground      CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; the limits
            themselves come from the device, not from a table here.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from ..errors import LaunchConfigError

Dim3: TypeAlias = tuple[int, int, int]
"""Extents along x, y and z."""

AXES = "xyz"


class LaunchShape(NamedTuple):
    """The extents of one launch. A tuple, because a loop over grids makes one per launch.

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


def launch_shape(grid: object, block: object, shared_bytes: object = 0) -> LaunchShape:
    """Read the extents of a launch as users write them.

    Args:
        grid: Blocks: an integer, or one to three of them in a tuple or list. NumPy's count as integers.
        block: Threads of a block, likewise.
        shared_bytes: Dynamic shared memory per block, in bytes.

    Raises:
        LaunchConfigError: One is not an integer (a bool is not), or there are none or more than three.
    """
    return LaunchShape(
        (grid, 1, 1) if type(grid) is int else _dim3(grid, "grid"),
        (block, 1, 1) if type(block) is int else _dim3(block, "block"),
        shared_bytes if type(shared_bytes) is int else _integer(shared_bytes, "sharedmem"),
    )


def usual_grid(grid: object, most: Dim3) -> Dim3 | None:
    """The extents of a grid of plain integers within the limits; None for any other, which `launch_shape` reads."""
    if type(grid) is int:
        return (grid, 1, 1) if 1 <= grid <= most[0] else None
    if type(grid) is tuple and 1 <= len(grid) <= 3:
        x, y, z = extents = (*grid, 1, 1)[:3]
        if type(x) is type(y) is type(z) is int and 1 <= x <= most[0] and 1 <= y <= most[1] and 1 <= z <= most[2]:
            return extents
    return None


def check_launch(shape: LaunchShape, limits: DeviceLimits, *, kernel: str = "the kernel") -> None:
    """Check one launch against the device and the kernel; nothing is queued.

    Args:
        shape: The launch.
        limits: Of the device and the kernel that will run there.
        kernel: The kernel's name, for the message.

    Raises:
        LaunchConfigError: An extent is below 1 or above its limit. The first offender in the order grid,
            block, threads, shared memory is named.
    """
    (gx, gy, gz), (bx, by, bz), shared = shape
    (most_gx, most_gy, most_gz), (most_bx, most_by, most_bz), most_threads, most_shared, static = limits
    if (
        1 <= gx <= most_gx and 1 <= gy <= most_gy and 1 <= gz <= most_gz
        and 1 <= bx <= most_bx and 1 <= by <= most_by and 1 <= bz <= most_bz
        and bx * by * bz <= most_threads and 0 <= shared <= most_shared - static
    ):  # fmt: skip
        return
    raise _refusal(shape, limits, kernel)


def _refusal(shape: LaunchShape, limits: DeviceLimits, kernel: str) -> LaunchConfigError:
    for name, extents, most in (("grid", shape.grid, limits.grid), ("block", shape.block, limits.block)):
        for axis, extent, limit in zip(AXES, extents, most, strict=True):
            if not 1 <= extent <= limit:
                return LaunchConfigError(
                    f"cannot launch {kernel} with {name}.{axis} = {extent}",
                    f"this device takes 1 to {limit}",
                    _extent_hint(name, extent),
                )
    if shape.threads_per_block > limits.threads_per_block:
        return LaunchConfigError(
            f"cannot launch {kernel} with {shape.threads_per_block} threads per block",
            f"it takes at most {limits.threads_per_block} on this device",
            "use a smaller block; registers and __launch_bounds__ can lower the limit of a kernel",
        )
    room = limits.shared_bytes - limits.static_shared_bytes
    return LaunchConfigError(
        f"cannot launch {kernel} with sharedmem = {shape.shared_bytes}",
        f"a block takes 0 to {room} bytes beside the {limits.static_shared_bytes} of its static arrays",
        "use smaller tiles" if shape.shared_bytes > 0 else "sharedmem is a number of bytes",
    )


def _dim3(extents: object, name: str) -> Dim3:
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
    if type(value) is int:
        return value
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


def _extent_hint(name: str, extent: int) -> str:
    if extent < 1:
        return "skip the launch where there is nothing to do"
    if name == "grid":
        return "let each thread take several elements in a loop"
    return "fold the excess into another axis or loop inside the kernel"


def _shown(value: object) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "(" + ", ".join(map(_shown, value)) + ")"
    text = repr(value) if isinstance(value, (int, float, str, type(None))) else f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."
