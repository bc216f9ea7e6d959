"""Configurations of a kernel: `kernel[grid, block]` bound to the function that launches it, and kept.

Promise     `kernel[config]` of a configuration that came before is one look-up, and what is kept is bounded: in a loop
            over ever new grids memory stays as it is.
Method      The launch of a configuration is kept from its second coming on. For a block, stream and shared memory that
            were bound once, a row binds any grid within the device's limits without looking at them again.
Not here    What a launch does (arguments), and how grids and blocks are read (config).
"""

from __future__ import annotations

from typing import Any

from ..errors import LaunchConfigError
from .arguments import BindGrid, Launch
from .config import Dim3, LaunchShape, launch_shape, usual_grid

BOUND_LIMIT = 256
"""Launch configurations that one kernel keeps ready; when there are more, all are bound anew as they come."""

_Row = tuple[list[bool], Dim3, BindGrid]
"""What binds any grid for one block, stream and shared memory: whether it still may, up to which grid, and how."""

_NO_ROW: _Row = [False], (0, 0, 0), lambda x, y, z: lambda: None


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
        try:
            live, most, bind = self._rows.get(config[1:], _NO_ROW)
            seen = config in self._bound
        except TypeError:  # a list in it, or no tuple at all: bound anew each time
            return self._bind_anew(config)
        grid = usual_grid(config[0], most) if live[0] else None
        launch = self._bind_anew(config) if grid is None else bind(*grid)
        self.keep(config, launch if seen else None)
        return launch

    def _bind_anew(self, config: Any) -> Launch:
        if not isinstance(config, tuple) or not 2 <= len(config) <= 4:
            raise LaunchConfigError(
                f"cannot launch {self.__name__}[{config!r}]",
                "a launch takes [grid, block], then stream and sharedmem if need be",
            )
        grid, block, stream, sharedmem = (*config, 0, 0)[:4] if len(config) < 4 else config
        return self._configure(config, launch_shape(grid, block, sharedmem), stream)

    def keep(self, config: Any, launch: Launch | None) -> None:
        """Set what `kernel[config]` gives from now on; None notes that it came once."""
        if len(self._bound) >= BOUND_LIMIT:
            self._bound.clear()
        try:
            self._bound[config] = launch
        except TypeError:  # a list in it: bound anew each time
            pass

    def keep_row(self, config: Any, live: list[bool], most: Dim3, bind: BindGrid) -> None:
        """Bind further grids of this block, stream and shared memory by `bind`, while `live[0]`."""
        if len(self._rows) >= BOUND_LIMIT:
            self._rows.clear()
        try:
            self._rows[config[1:]] = live, most, bind
        except TypeError:  # a list in it
            pass

    def unbind(self) -> None:
        """Bind every configuration anew."""
        self._bound.clear()
        self._rows.clear()
