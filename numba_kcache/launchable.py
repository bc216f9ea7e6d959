"""What both kinds of kernel are to a launch: indexed with a configuration, they give a function to call.

Promise     `kernel[config]` of a configuration that came before is one look-up, and what is kept is bounded: a loop
            over ever new grids leaves nothing behind that counts.
Method      The launch of a configuration is kept from its second coming on. For a block, stream and shared memory that
            were bound once, a row binds any grid within the device's limits without looking at them again.
Not here    What a launch does (kernel, numba_kernel), and how grids and blocks are read (launch.config).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .engine.session import Resolver
from .errors import LaunchConfigError
from .keys.components import Component
from .launch.arguments import BindGrid, Launch
from .launch.config import (
    Dim3,
    LaunchShape,
    launch_shape,
    usual_grid,
)
from .launch.devices import current_device
from .model.target import Target, read_arch

if TYPE_CHECKING:
    from .launch.attributes import LaunchOptions

BOUND_LIMIT = 256
"""Launch configurations that one kernel keeps ready; when there are more, all are bound anew as they come."""

_Row = tuple[list[bool], Dim3, BindGrid]
"""What binds any grid for one block, stream and shared memory: whether it still may, up to which grid, and how."""

_NO_ROW: _Row = [False], (0, 0, 0), lambda x, y, z: lambda: None


Request = tuple[Target, Any]
"""A target, and the argument types of a Numba kernel; None for others."""


class Sent:
    """What arrives in another process as `make(*args)`."""

    def __init__(self, make: Callable[..., Any], *args: Any) -> None:
        self._made = make, args

    def __reduce__(self) -> Any:
        return self._made


class Launchable:
    """The base of `CachedKernel` and `NumbaKernel`.

    Args:
        arch: What the kernel is built for; empty for whatever device there is.
    """

    __name__: str
    _launch_options: LaunchOptions | None

    def __init__(self, arch: tuple[Target, ...]) -> None:
        self._arch = arch
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
        """The launch of a configuration; kept where that comes again, so that a loop over grids leaves nothing."""
        try:
            live, most, bind = self._rows.get(config[1:], _NO_ROW)
            seen = config in self._bound
        except TypeError:  # a list in it, or no tuple at all: bound anew each time
            return self._bind_anew(config)
        grid = usual_grid(config[0], most) if live[0] else None
        launch = self._bind_anew(config) if grid is None else bind(*grid)
        self._keep(config, launch if seen else None)
        return launch

    def _bind_anew(self, config: Any) -> Launch:
        if not isinstance(config, tuple) or not 2 <= len(config) <= 4:
            raise LaunchConfigError(
                f"cannot launch {self.__name__}[{config!r}]",
                "a launch takes [grid, block], then stream and sharedmem if need be",
            )
        grid, block, stream, sharedmem = (*config, 0, 0)[:4] if len(config) < 4 else config
        return self._configure(config, launch_shape(grid, block, sharedmem), stream)

    def _keep(self, config: Any, launch: Launch | None) -> None:
        """What `kernel[config]` gives from now on; None for no more than that it came once."""
        if len(self._bound) >= BOUND_LIMIT:
            self._bound.clear()
        try:
            self._bound[config] = launch
        except TypeError:  # a list in it: bound anew each time
            pass

    def _keep_row(self, config: Any, live: list[bool], most: Dim3, bind: BindGrid) -> None:
        """Bind further grids of this block, stream and shared memory by `bind`, while `live[0]`."""
        if len(self._rows) >= BOUND_LIMIT:
            self._rows.clear()
        try:
            self._rows[config[1:]] = live, most, bind
        except TypeError:  # a list in it
            pass

    def _unbind(self) -> None:
        """Bind every configuration anew."""
        self._bound.clear()
        self._rows.clear()

    def _check_tasks(self, ntasks: int) -> None:
        """Refuse `forall` of fewer than none."""
        if ntasks < 0:
            raise LaunchConfigError(f"cannot launch {self.__name__} for {ntasks} tasks", "a count is not negative")

    def _blocks_for(self, ntasks: int, block: int) -> int:
        """Blocks that hold so many tasks, in whole clusters."""
        grid = -(-ntasks // block)
        if self._launch_options and self._launch_options.cluster:
            grid += -grid % self._launch_options.cluster[0]
        return grid

    # -- for those that warm up and ship many

    _label: str
    """What people call it."""

    def _resolver(self) -> Resolver:
        """The machinery behind the cache that is in force."""
        raise NotImplementedError

    def _requests(self, arch: Any) -> list[Request]:
        """What there is to compile: each target, and each signature where the code depends on it."""
        return [(target, None) for target in self._targets(arch)]

    def _is_stored(self, target: Target, types: Any) -> bool:
        """Whether a request is a hit, which it then counts as.

        Raises:
            UncacheableError: It cannot be keyed.
        """
        raise NotImplementedError

    def _identity(self) -> tuple[Component, ...]:
        """The components that all requests of this kernel share, whatever they are for."""
        raise NotImplementedError

    def _to_send(self) -> Any:
        """What pickles, and is this kernel in another process, which need not import what defines it."""
        return self

    def _targets(self, arch: Any) -> tuple[Target, ...]:
        """The targets that `arch` names; where it names none, the kernel's own, or the device's."""
        if arch is not None:
            return read_arch(arch) or (current_device().target,)
        return self._arch or (current_device().target,)

    def _real(self, cc: tuple[int, int]) -> Target | None:
        """The best of the targets that `arch` names whose cubins a device of this compute capability loads."""
        real = [each for each in self._arch if each.runs_on(cc)]
        return max(real, key=lambda each: (each.cc, each.suffix)) if real else None

    def _through(self, target: Target) -> Target | None:
        """The virtual target by way of which `arch` has code for a real one made; None where it is made directly."""
        if target.virtual or self._real(target.cc) is not None:
            return None
        virtual = [each for each in self._arch if each.virtual and each.cc <= target.cc]
        fitting = [each for each in virtual if not each.suffix or each._replace(virtual=False).runs_on(target.cc)]
        return max(fitting, default=None)
