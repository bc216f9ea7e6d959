"""Launches of a dispatcher of a program that is not edited: `kernel[grid, block](...)` by this package's own path.

Promise     What goes this way has the values, order and effects of a launch that numba-cuda-mlir makes right, and
            leaves the dispatcher as that would: with its overload and counters. All else it launches itself, in its own
            words: wrong configurations, signatures that are fixed or annotated, arguments without a type, extensions.
Method      Its own `configure` comes first wherever a configuration is bound, for what it checks and warns of.
Not here    When programs that are not edited get this (install).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import ArgumentError, LaunchConfigError
from ...launch import Launch, LaunchShape
from ...launch.loader import LoadedKernel
from ..base import RunsUncached, Variant
from ..launches import Launches
from .arguments import codes_of
from .definition import VARARGS, MlirDefinition, MlirResolutions
from .dispatcher import served
from .internals import surface


class InstalledDefinition(MlirDefinition):
    """A dispatcher whose own launches take what has no variant here."""

    def variant(self, arguments: Sequence[Any]) -> Variant:
        """Type the arguments; None for what numba-cuda-mlir is to launch."""
        if self.is_bound or self.annotated or self.function.__code__.co_flags & VARARGS:
            return None
        try:
            types: Any = super().variant(arguments)
            for each in types:
                codes_of(each)
            return types  # type: ignore[no-any-return]
        except (ArgumentError, ValueError, TypeError, KeyError):  # it has words for that, or launches more
            return None


class InstalledResolutions(MlirResolutions):
    """The artifacts of one such dispatcher."""

    def launch_otherwise(self, shape: LaunchShape, stream: Any, arguments: tuple[Any, ...]) -> None:
        """Launch through the dispatcher itself."""
        self.dispatcher.configure(shape.grid, shape.block, stream, shape.shared_bytes or None)(*arguments)


InstalledDefinition.make_resolutions = InstalledResolutions


class InstalledLaunches(Launches):
    """The launches of one such dispatcher.

    Args:
        definition: Of it.
    """

    _resolutions: InstalledResolutions

    def __init__(self, definition: InstalledDefinition) -> None:
        super().__init__(definition)
        self._resolutions.dispatcher, self._planners = definition.thing, surface()._planner_registry

    @property
    def resolutions(self) -> MlirResolutions:
        """The artifacts."""
        return self._resolutions

    def takes(self, config: Any) -> bool:
        """Tell if launches of a configuration may come here: it has no cluster, and nothing changes arguments."""
        dispatcher = self._resolutions.dispatcher
        is_plain = dispatcher._can_compile and not dispatcher.extensions and not self._planners.has_planners
        return is_plain and type(config) is tuple and len(config) in (2, 3, 4)

    def _bind(self, config: Any) -> Launch:
        self._resolutions.dispatcher.configure(*config)
        return super()._bind(config)

    def _configure(self, config: Any, shape: LaunchShape, stream: Any, variant: Variant = None) -> Launch | None:
        try:
            return super()._configure(config, shape, stream, variant)
        except LaunchConfigError:  # the driver says so, in the words that the program knows
            return None

    def _loaded(self, variant: Variant = None) -> Any:
        types: Any = variant
        dispatcher = self._resolutions.dispatcher
        if types not in dispatcher.overloads and served(dispatcher, self._resolutions, types, is_quiet=True) is None:
            raise RunsUncached(f"cannot serve {self.__name__}", "numba-cuda-mlir compiles it")
        return super()._loaded(variant)

    def _relaunch(
        self, loaded: LoadedKernel, variant: Variant, config: tuple[Any, ...], args: tuple[Any, ...], status: int
    ) -> bool:
        if not super()._relaunch(loaded, variant, config, args, status):
            grid, block, stream, shared = config
            self._resolutions.dispatcher.configure(grid, block, stream, shared or None)(*args)
        return True
