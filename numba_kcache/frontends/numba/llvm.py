"""numba-cuda's kernels: the definition (a function or dispatcher with its options), and its artifacts.

Promise     A kernel's options are those of `cuda.jit`, and mean the same. Uncacheable kernels are compiled by Numba
            itself. Under `NUMBA_ENABLE_CUDASIM` a kernel runs in Numba's simulator, as it does without this package.
Not here    Names and settings (llvm_flavour), and the work of Numba's own dispatcher: launches that no launcher
            supports, and attributes (llvm_dispatcher). The error for CUDA C++, which cannot be simulated
            (launch).
Source      numba-cuda 0.30.4: DeviceNDArray keeps its `_numba_type_`. simulator/: its `jit` returns a kernel for each
            function, and takes few options.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import OptionError, ToolchainMissingError
from ...launch import (
    NUMPY_NAMES,
    LaunchShape,
    Unfit,
    element_of_dtype,
    is_c_contiguous,
    is_exported,
    is_immutable,
    memory_of,
)
from .. import Variant
from .arguments import Signature
from .definition import PythonDefinition, PythonFrontEnd, PythonResolutions
from .flavour import Declared, loaded
from .llvm_flavour import NUMBA
from .parts import surface

DECORATOR_OPTIONS = (
    "debug", "opt", "lineinfo", "fastmath", "inline", "forceinline", "link", "lto", "max_registers", "launch_bounds",
    "shared_memory_carveout", "extensions",
)  # fmt: skip
"""Options of `cuda.jit` for a kernel."""

_TYPED = frozenset(NUMPY_NAMES) - {"bf", "e4", "e5"}

_NOT_SIMULATED = {"lineinfo", "inline", "forceinline", "lto", "max_registers", "launch_bounds"}
"""Options for generated code, which are ignored: the simulator generates none."""


class NumbaDefinition(PythonDefinition):
    """A Python function or a dispatcher of `cuda.jit` as a kernel."""

    kind = "numba"
    room = "llvm"
    flavour = NUMBA
    decorator_options = DECORATOR_OPTIONS
    _simulated: Any = None

    @property
    def simulated(self) -> Any:
        """The kernel of Numba's simulator for this function; one made by its own `cuda.jit` is returned unchanged."""
        if hasattr(self.thing, "py_func"):
            return self.thing
        if self._simulated is None:
            from numba import cuda

            options = {name: value for name, value in self.given.items() if name not in _NOT_SIMULATED}
            self._simulated = cuda.jit(**options)(self.subject)
        return self._simulated

    def declare(self) -> Declared:
        """Fill in the options as `cuda.jit` does."""
        parts = _surface()
        if parts is None:
            raise ToolchainMissingError(
                "cannot compile a Numba kernel",
                "NUMBA_ENABLE_CUDASIM is set, and Numba's simulator compiles nothing",
                "unset it to compile; a launch is simulated",
            )
        function, config = self.subject, parts.config
        if isinstance(function, parts.CUDADispatcher):
            function, options = function.py_func, dict(function.targetoptions)
        else:
            options = NUMBA.default_options(self.given, debug=config.CUDA_DEBUGINFO_DEFAULT, opt=config.OPT != 0)
        if options.get("device"):
            raise OptionError(
                "cannot launch a device function", "it was decorated with device=True", "call it in a kernel"
            )
        options |= self.given
        if options["shared_memory_carveout"] is not None:
            parts._validate_shared_memory_carveout(options["shared_memory_carveout"])
        return Declared(function, options)

    def types_of(self, arguments: Sequence[Any]) -> Variant:
        """Type the arguments of a launch as Numba does, common ones without calling Numba; None under its simulator,
        which needs no types.

        Raises:
            ToolchainMissingError: numba-cuda is not installed.
            ValueError: Numba has no type for one of them; the message is Numba's.
        """
        parts = _surface()
        if parts is None:
            return None
        array, typeof, plain = parts.DeviceNDArray, parts.typeof, _plain_types()
        return Signature([
            each._numba_type_ if type(each) is array else
            plain.get(type(each)) or _type_of_others(each) or typeof(each)
            for each in arguments
        ])  # fmt: skip

    def is_launched_by_dispatcher(self, known: Mapping[str, Any]) -> bool:
        """Check whether Numba's own launch is needed: it casts arguments to fixed signatures."""
        return super().is_launched_by_dispatcher(known) or not getattr(self.thing, "_can_compile", True)


class NumbaResolutions(PythonResolutions):
    """The artifacts of one Numba kernel."""

    definition: NumbaDefinition

    def forget(self) -> None:
        """Resolve again at the next launch. Running launches go on."""
        super().forget()
        if self.dispatcher is not None and self.dispatcher._can_compile:
            self.dispatcher._reset_overloads()

    def launch_by_front_end(self, shape: LaunchShape, stream: Any, arguments: tuple[Any, ...]) -> None:
        """Launch through Numba's own dispatcher, or its simulator, which has one stream."""
        if is_simulated():
            self.definition.simulated[shape.grid, shape.block, 0, shape.shared_bytes](*arguments)
        else:
            super().launch_by_front_end(shape, stream, arguments)

    def block_size_by_front_end(self, arguments: tuple[Any, ...], shared_bytes: int) -> int:
        """Ask Numba's own code for the block size."""
        if is_simulated():
            return 1  # like the simulator's own forall
        found: int = self.definition.part("dispatcher").block_size(self, arguments, shared_bytes)
        return found

    def attribute(self, name: str) -> Any:
        """Read an attribute of Numba's dispatcher, or of the simulator's."""
        if is_simulated() and name in self.definition.part("dispatcher").NAMES:
            return getattr(self.definition.simulated, name)
        return super().attribute(name)


NumbaDefinition.make_resolutions = NumbaResolutions
FRONT_END = PythonFrontEnd(NumbaDefinition)


def _type_of_others(value: Any) -> Any:
    """The type of an array of CuPy or PyTorch, for which Numba takes 100 us, or of JAX, for which numba-cuda 0.30.4
    exports the array to the stream -1, which JAX 0.11 takes for a handle: it raises, or ends the process. None for all
    others.

    As in Numba, the layout of their arrays is `"C"` or `"A"`, never `"F"`. JAX's must not be written.
    """
    if is_immutable(type(value)) and is_exported(value) and (element := element_of_dtype(value.dtype)) in _TYPED:
        return _array_type(element, value.ndim, "C", True)
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    is_known = (torch is not None and type(value) is torch.Tensor) or (cupy is not None and type(value) is cupy.ndarray)
    try:
        memory = memory_of(value) if is_known else None
    except Unfit:
        return None
    if memory is None or memory.element not in _TYPED:
        return None
    return _array_type(memory.element, len(memory.shape), "C" if is_c_contiguous(memory) else "A", memory.readonly)


@functools.lru_cache(maxsize=256)
def _array_type(element: str, axes: int, layout: str, readonly: bool) -> Any:
    import numpy

    parts = surface(NUMBA)
    return parts.Array(parts.from_dtype(numpy.dtype(NUMPY_NAMES[element])), axes, layout, readonly=readonly)


@functools.cache
def _plain_types() -> dict[type, Any]:
    types = surface(NUMBA).types
    return {float: types.float64, bool: types.boolean, complex: types.complex128}


def is_simulated() -> bool:
    """Check whether the program's Numba is its simulator."""
    return bool(loaded(NUMBA.config, "ENABLE_CUDASIM"))


@functools.cache
def _surface() -> Any:
    """Numba's parts; None under its simulator."""
    try:
        found = surface(NUMBA)
    except ToolchainMissingError:
        if not is_simulated():
            raise
    return None if is_simulated() else found
