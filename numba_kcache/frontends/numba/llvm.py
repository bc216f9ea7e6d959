"""The definition of a Numba kernel (a function or dispatcher with its options), and its artifacts.

Promise     A kernel's options are those of `cuda.jit`, and mean the same. Uncacheable kernels are compiled by Numba
            itself.
Not here    The code shared with kernels of numba-cuda-mlir (definition), settings and libraries (llvm_dialect),
            packing (llvm_arguments), and the work of Numba's own dispatcher: launches that no launcher supports, and
            attributes (llvm_dispatcher).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import OptionError, ToolchainMissingError
from ...launch import LaunchShape
from ...launch.launcher import Launcher, Relaunch
from ...launch.loader import LoadedKernel
from ..base import Variant
from . import llvm_dialect as dialect
from .definition import OWN_OPTIONS, PythonDefinition, PythonFrontEnd, PythonResolutions
from .llvm_arguments import make_numba_launcher, types_of
from .llvm_dialect import Declared

__all__ = ["DECORATOR_OPTIONS", "OWN_OPTIONS", "CompilerLock", "NumbaDefinition", "NumbaResolutions", "is_simulated"]

DECORATOR_OPTIONS = (
    "debug", "opt", "lineinfo", "fastmath", "inline", "forceinline", "link", "lto", "max_registers", "launch_bounds",
    "shared_memory_carveout", "extensions",
)  # fmt: skip
"""Options of `cuda.jit` for a kernel."""


class CompilerLock:
    """The lock that Numba itself holds while it compiles."""

    def __enter__(self) -> None:
        from numba.cuda.core.compiler_lock import global_compiler_lock

        global_compiler_lock.acquire()

    def __exit__(self, *_error: object) -> None:
        from numba.cuda.core.compiler_lock import global_compiler_lock

        global_compiler_lock.release()


class NumbaDefinition(PythonDefinition):
    """A Python function or a dispatcher of `cuda.jit` as a kernel."""

    kind = "numba"
    room = "llvm"
    dialect = dialect
    device_runtime = "numba.cuda:cudadevrt"
    errors = "numba.cuda.core.errors"
    decorator_options = DECORATOR_OPTIONS
    compiler_lock = CompilerLock

    def __init__(self, thing: Any, options: Mapping[str, Any]) -> None:
        super().__init__(thing, options)
        self._simulated: Any = None

    @property
    def simulated(self) -> Any:
        """The kernel of Numba's simulator for this function."""
        if self._simulated is None:
            from .simulator import simulated

            self._simulated = simulated(self.thing, self.given)
        return self._simulated

    def declare(self) -> Declared:
        """Fill in the options as `cuda.jit` does."""
        return _declare(self.thing, self.given)

    def types_of(self, arguments: Sequence[Any]) -> Variant:
        """Type the arguments of a launch as Numba does; None under its simulator, which needs no types.

        Raises:
            ToolchainMissingError: numba-cuda is not installed.
        """
        try:
            return types_of(arguments)
        except ImportError as problem:
            if is_simulated():
                return None
            raise _without_numba(problem) from problem

    def launcher(
        self, loaded: LoadedKernel, variant: Variant, *, relaunch: Relaunch, attributes: bytes, **more: Any
    ) -> Launcher | None:
        """Make the launcher for arguments of exactly these types; None if Numba's own launch is needed."""
        needs_numba = more["artifact"].attributes.get("debug") or self.declared.targetoptions.get("extensions")
        if needs_numba or not getattr(self.thing, "_can_compile", True):  # Numba casts arguments to fixed signatures
            return None
        types: Any = variant
        return make_numba_launcher(
            loaded, self.name, types, relaunch=relaunch, otherwise=more["otherwise"], attributes=attributes,
            labels=self.labels(types, debug=more["debug"]),
        )  # fmt: skip


class NumbaResolutions(PythonResolutions):
    """The artifacts of one Numba kernel."""

    definition: NumbaDefinition

    def forget(self) -> None:
        """Resolve again at the next launch. Running launches go on."""
        super().forget()
        if self.dispatcher is not None and self.dispatcher._can_compile:
            self.dispatcher._reset_overloads()

    def launch_by_front_end(self, shape: LaunchShape, stream: Any, arguments: tuple[Any, ...]) -> None:
        """Launch through Numba's own dispatcher."""
        if is_simulated():
            from .simulator import simulate

            simulate(self.definition.simulated, shape, arguments)
            return
        from .llvm_dispatcher import launch

        launch(self, shape, stream, arguments)

    def block_size_by_front_end(self, arguments: tuple[Any, ...], shared_bytes: int) -> int:
        """Ask Numba's own code for the block size."""
        if is_simulated():
            return 1  # like the simulator's own forall
        from .llvm_dispatcher import block_size

        return block_size(self, arguments, shared_bytes)

    def attribute(self, name: str) -> Any:
        """Read an attribute of Numba's dispatcher."""
        from .llvm_dispatcher import NUMBAS_NAMES, attribute

        if is_simulated() and name in NUMBAS_NAMES:
            return getattr(self.definition.simulated, name)
        return attribute(self, name) if name in NUMBAS_NAMES else super().attribute(name)


NumbaDefinition.make_resolutions = NumbaResolutions


def _declare(function: Any, given: Mapping[str, Any]) -> Declared:
    try:
        from numba.cuda.core import config
        from numba.cuda.decorators import _validate_shared_memory_carveout
        from numba.cuda.dispatcher import CUDADispatcher
    except ImportError as problem:
        raise _without_numba(problem) from problem
    if is_simulated():
        raise _without_numba()
    if isinstance(function, CUDADispatcher):
        function, options = function.py_func, dict(function.targetoptions)
    else:
        debug = given["debug"] if "debug" in given else bool(config.CUDA_DEBUGINFO_DEFAULT)
        options = {
            "debug": debug, "lineinfo": False, "opt": config.OPT != 0, "link": (), "fastmath": False, "device": False,
            "inline": "never", "forceinline": False, "extensions": [], "launch_bounds": None, "lto": not debug,
            "shared_memory_carveout": None,
        }  # fmt: skip
    if options.get("device"):
        raise OptionError("cannot launch a device function", "it was decorated with device=True", "call it in a kernel")
    options |= given
    if options["shared_memory_carveout"] is not None:
        _validate_shared_memory_carveout(options["shared_memory_carveout"])
    return Declared(function, options)


def is_simulated() -> bool:
    """Check whether the program's Numba is its simulator."""
    return bool(getattr(sys.modules.get("numba.cuda.core.config"), "ENABLE_CUDASIM", False))


def _without_numba(problem: ImportError | None = None) -> ToolchainMissingError:
    """Make the error for a Numba kernel if Numba cannot be imported or only simulates."""
    if is_simulated():
        why = "NUMBA_ENABLE_CUDASIM is set, and Numba's simulator compiles nothing"
        return ToolchainMissingError("cannot compile a Numba kernel", why, "unset it to compile; a launch is simulated")
    why = f"numba-cuda cannot be imported: {problem}"
    return ToolchainMissingError("cannot use a Numba kernel", why, "pip install 'numba-kcache[numba]'")


FRONT_END = PythonFrontEnd("numba", NumbaDefinition)
