"""Configurations of a kernel: grid, block and shared memory read, checked, bound to a launch, and kept.

Promise     `kernel[config]` of a configuration that came before is one look-up, and what is kept is bounded: in a loop
            over ever new grids memory stays as it is. `launch_shape` reads what Numba reads between the brackets;
            `check_launch` lets nothing through that the device would refuse, and names the first offender.
Method      The launch of a configuration is kept from its second coming on. For a block, stream and shared memory that
            were bound once, a row binds any grid within the device's limits without looking at them again.
Not here    The stream (devices), the launch itself (launcher), the attribute of shapes above 48 KiB (loader).
Ground      CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; the limits themselves come
            from the device, not from a table here.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeAlias

from ..errors import LaunchConfigError
from .devices import check_interpreter

Dim3: TypeAlias = tuple[int, int, int]
"""Extents along x, y and z."""

AXES = "xyz"

Launch = Callable[..., None]
"""`kernel[grid, block]`: called with the kernel's arguments, returns when the launch is queued."""

BindGrid = Callable[[int, int, int], Launch]
"""Makes the launch of each grid, where block, shared memory and stream are fixed."""

BOUND_LIMIT = 256
"""Launch configurations that one kernel keeps ready; when there are more, all are bound anew as they come."""

_Row = tuple[list[bool], Dim3, BindGrid]
"""What binds any grid for one block, stream and shared memory: whether it still may, up to which grid, and how."""


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


class Configurations:
    """The base of kernels: indexed with a configuration, they give a function to call."""

    __name__: str

    def __init__(self) -> None:
        self._bound: dict[Any, Launch | None] = {}
        self._rows: dict[Any, _Row] = {}

    def __getitem__(self, config: Any) -> Launch:
        try:
            bound = self._bound.get(config)
        except TypeError:  # a list in it, which Numba takes too
            bound = None
        return bound or self._bind(config)

    def __call__(self, *args: Any) -> None:
        """Refuse a launch without a configuration, as Numba does."""
        raise LaunchConfigError(
            f"cannot launch {self.__name__}", "it has no grid and block", f"write {self.__name__}[grid, block](...)"
        )

    def _configure(self, config: Any, shape: LaunchShape, stream: Any) -> Launch:
        """Make the launch of a configuration, as it was written and as it was read."""
        raise NotImplementedError

    def _bind(self, config: Any) -> Launch:
        """Make the launch of a configuration; keep it where that comes again."""
        if not isinstance(config, tuple) or not 2 <= len(config) <= 4:
            raise LaunchConfigError(
                f"cannot launch {self.__name__}[{config!r}]",
                "a launch takes [grid, block], then stream and sharedmem if need be",
            )
        try:
            row, seen = self._rows.get(config[1:]), config in self._bound
        except TypeError:  # a list in it
            row, seen = None, False
        if row is not None and row[0][0]:
            grid = config[0]
            x, y, z = (grid, 1, 1) if type(grid) is int else read_extents(grid, "grid")
            _, (most_x, most_y, most_z), bind = row
            if 1 <= x <= most_x and 1 <= y <= most_y and 1 <= z <= most_z:
                launch = bind(x, y, z)
                _put(self._bound, config, launch if seen else None)
                return launch
        grid, block, stream, sharedmem = (*config, 0, 0)[:4]
        launch = self._configure(config, launch_shape(grid, block, sharedmem), stream)
        _put(self._bound, config, launch if seen else None)  # None notes that it came once
        return launch

    def keep(self, config: Any, launch: Launch) -> None:
        """Set what `kernel[config]` gives from now on."""
        _put(self._bound, config, launch)

    def keep_row(self, config: Any, live: list[bool], most: Dim3, bind: BindGrid) -> None:
        """Bind further grids of this block, stream and shared memory by `bind`, while `live[0]`."""
        _put(self._rows, config[1:], (live, most, bind))

    def unbind(self) -> None:
        """Bind every configuration anew."""
        self._bound.clear()
        self._rows.clear()


def _put(kept: dict[Any, Any], config: Any, value: Any) -> None:
    if len(kept) >= BOUND_LIMIT:
        kept.clear()
    try:
        kept[config] = value
    except TypeError:  # a list in it: bound anew each time
        pass


# -- variants ------------------------------------------------------------------------------------------


class VariantLaunch:
    """One configuration of a kernel whose code depends on the types of its arguments: one launcher for each variant.

    Arguments of the variant that was launched last cost nothing more: its launch function is the front. What that does
    not take comes back here, and its own variant becomes the front; what no launcher takes goes to the front end.

    Args:
        kernel: That keeps the front.
        config: Between the brackets, as it was written.
        prepare: Makes the launch function of a variant; None where only `otherwise` can launch it.
        variant_of: Finds the variant of arguments; None where the front end has to refuse them.
        otherwise: Launches by the front end's own means.
    """

    def __init__(
        self,
        kernel: Configurations,
        config: Any,
        prepare: Callable[[Hashable], Launch | None],
        variant_of: Callable[[tuple[Any, ...]], Hashable],
        otherwise: Launch,
    ) -> None:
        self._kernel, self._config = kernel, config
        self._prepare, self._variant_of, self._otherwise = prepare, variant_of, otherwise
        self._by_variant: dict[Hashable, Launch] = {}
        self._front: Launch = self.launch

    def __call__(self, *args: Any) -> None:
        self._front(*args)

    def launch(self, *args: Any) -> None:
        """Launch arguments of whatever variant, and be ready for the next ones of the same."""
        check_interpreter()
        variant = self._variant_of(args)
        if variant is None:
            self._otherwise(*args)
            return
        found = self._by_variant.get(variant) or self._prepare(variant)
        if found is None:
            found = self._otherwise  # which takes all variants: the next launch looks at none
        else:
            self._by_variant[variant] = found
        self._front = found
        self._kernel.keep(self._config, found)
        found(*args)

    def refused(self, variant: Hashable, args: tuple[Any, ...]) -> None:
        """Launch what the launcher of a variant did not take: by other means if it is of that very variant."""
        if self._variant_of(args) == variant:
            self._otherwise(*args)  # a host array, say: the same types, but not for the straight way
        else:
            self.launch(*args)


# -- shapes -------------------------------------------------------------------------------------------


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
        (grid, 1, 1) if type(grid) is int else read_extents(grid, "grid"),
        (block, 1, 1) if type(block) is int else read_extents(block, "block"),
        shared_bytes if type(shared_bytes) is int else _integer(shared_bytes, "sharedmem"),
    )


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
        limits: Of the device and the kernel that will run there.
        kernel: The kernel's name, for the message.

    Raises:
        LaunchConfigError: An extent is below 1 or above its limit. The first offender in the order grid,
            block, threads, shared memory is named.
    """
    for name, extents, most in (("grid", shape.grid, limits.grid), ("block", shape.block, limits.block)):
        for axis, extent, limit in zip(AXES, extents, most):  # noqa: B905
            if not 1 <= extent <= limit:
                hint = "fold the excess into another axis or loop inside the kernel"
                if extent < 1:
                    hint = "skip the launch where there is nothing to do"
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
    room = limits.shared_bytes - limits.static_shared_bytes
    if not 0 <= shape.shared_bytes <= room:
        raise LaunchConfigError(
            f"cannot launch {kernel} with sharedmem = {shape.shared_bytes}",
            f"a block takes 0 to {room} bytes beside the {limits.static_shared_bytes} of its static arrays",
            "use smaller tiles" if shape.shared_bytes > 0 else "sharedmem is a number of bytes",
        )
