"""Launches of dispatchers in unedited programs: `kernel[grid, block](...)` through this package's launchers.

Promise     Such a launch has the values, order and effects of a correct launch of numba-cuda-mlir, and updates the
            dispatcher's overloads and counters as numba-cuda-mlir does. Launches with invalid configurations, fixed or
            annotated signatures, arguments without a type, or extensions are left to numba-cuda-mlir.
Method      The dispatcher's own `configure` is called first when a configuration is bound, for its checks and warnings.
Not here    Patching the dispatcher class (mlir_install).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...engine import RunsUncached
from ...errors import ArgumentError, LaunchConfigError
from ...launch import Launch, LaunchShape
from ...launch.launcher import LoadedKernel
from .. import Launches, Variant
from .arguments import TypedLauncher, codes_of
from .mlir import VARARGS, MlirDefinition, MlirResolutions
from .mlir_dispatcher import served
from .mlir_flavour import MLIR
from .parts import surface


class InstalledDefinition(MlirDefinition):
    """The definition for a dispatcher of an unedited program. Arguments without a variant are launched by the
    dispatcher."""

    def variant(self, arguments: Sequence[Any]) -> Variant:
        """Type the arguments; None if numba-cuda-mlir has to launch."""
        if self.is_bound or self.annotated or self.function.__code__.co_flags & VARARGS:
            return None
        try:
            types: Any = super().variant(arguments)
            for each in types:
                codes_of(MLIR, each)
            return types  # type: ignore[no-any-return]
        except (ArgumentError, ValueError, TypeError, KeyError):  # numba-cuda-mlir reports the error, or can launch
            return None

    def launcher(self, *arguments: Any, **more: Any) -> TypedLauncher | None:
        """Make the launcher, which has the host wait for streams as numba-cuda-mlir does: programs may rely on that."""
        made = super().launcher(*arguments, **more)
        if made is not None:
            made.waits_on_host = True
        return made


class InstalledResolutions(MlirResolutions):
    """The artifacts of one dispatcher of an unedited program."""

    def launch_by_front_end(self, shape: LaunchShape, stream: Any, arguments: tuple[Any, ...]) -> None:
        """Launch through the dispatcher itself."""
        self.dispatcher.configure(shape.grid, shape.block, stream, shape.shared_bytes or None)(*arguments)


InstalledDefinition.make_resolutions = InstalledResolutions


class InstalledLaunches(Launches):
    """The launches of one dispatcher of an unedited program.

    Args:
        definition: Its definition.
    """

    _resolutions: InstalledResolutions
    _zero = 0  # numba-cuda-mlir's default stream

    def __init__(self, definition: InstalledDefinition) -> None:
        super().__init__(definition)
        self._resolutions.dispatcher, self._planners = definition.thing, surface(MLIR)._planner_registry

    @property
    def resolutions(self) -> MlirResolutions:
        """The artifacts of the dispatcher."""
        return self._resolutions

    def takes(self, config: Any) -> bool:
        """Check whether this can launch a configuration: it has no cluster, and no extension changes arguments."""
        dispatcher = self._resolutions.dispatcher
        is_plain = dispatcher._can_compile and not dispatcher.extensions and not self._planners.has_planners
        return is_plain and type(config) is tuple and len(config) in (2, 3, 4)

    def _bind(self, config: Any) -> Launch:
        self._resolutions.dispatcher.configure(*config)
        return super()._bind(config)

    def _configure(self, config: Any, shape: LaunchShape, stream: Any, variant: Variant = None) -> Launch | None:
        try:
            return super()._configure(config, shape, stream, variant)
        except LaunchConfigError:  # numba-cuda-mlir launches, so that the program gets the driver's error
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
