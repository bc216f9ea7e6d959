"""The `Dialect` of cuda.compute's operators: what numba-cuda-mlir compiles, structs, and device arrays as state.

Promise     What a program registered with numba-cuda-mlir, and decorated by it, counts as it does for a kernel of it.
            Asking imports no compiler. What an operator calls is compiled as it is now, whatever was compiled of it
            before in this process.
Ground      cuda.compute 1.2.1, _mlir.py: an operator is compiled as a device function; each struct that it meets is
            registered with numba-cuda-mlir, under code of cuda.compute's own.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from ..frontends.mlir import dialect as mlir
from ..frontends.mlir.request import VARIABLES
from ..frontends.python import Registration, Registrations
from ..frontends.python.value import Refused
from ..keys import Plain
from ..settings import variables
from .compute_arguments import HOME, Unkeyed, dtype_form, type_form


def struct_class() -> None:
    """Stand for the code that cuda.compute makes of a struct's class; its layout is beside it."""


class Operators:
    """Names that cuda.compute's operators may use beside plain Python and NumPy."""

    packages = mlir.packages | {HOME}
    stateful = mlir.stateful
    python_function = staticmethod(mlir.python_function)
    jitted = staticmethod(mlir.jitted)
    external = staticmethod(mlir.external)

    def intrinsic(self, value: Any) -> Registration | None:
        """A class of `gpu_struct`, by its layout; else an intrinsic."""
        struct = sys.modules.get(f"{HOME}.struct")
        if struct is None or not (isinstance(value, type) and issubclass(value, struct._Struct)):
            return mlir.intrinsic(value)
        try:
            layout = repr(type_form(value._type_descriptor))  # type: ignore[attr-defined]
        except Unkeyed as refusal:
            raise Refused(str(refusal)) from None
        return Registration("gpu_struct", None, {"name": value.__name__, "layout": layout}, (struct_class,))

    def type_form(self, value: Any) -> Plain | None:
        """A device array that an operator keeps as its state, whose address is handed to each call; else a type."""
        from cuda.compute._utils.protocols import get_dtype, get_shape, is_device_array

        if isinstance(value, type) or not is_device_array(value):
            return mlir.type_form(value)
        try:
            return "state", repr(dtype_form(get_dtype(value))), list(get_shape(value))
        except Unkeyed as refusal:
            raise Refused(str(refusal)) from None

    def registrations(self) -> Registrations:
        """Those of the program, without cuda.compute's own: a struct that was compiled says the same by its class."""
        of_value, of_attribute, of_all = mlir.registrations()
        attributes = {name: _of_program(found) for name, found in of_attribute.items()}
        return Registrations(
            lambda value: _of_program(of_value(value)),
            {name: found for name, found in attributes.items() if found},
            _of_program(of_all),
        )


def _of_program(found: Iterable[Registration]) -> list[Registration]:
    return [each for each in found if not any(code.__module__.startswith(HOME) for code in each.code)]


OPERATORS = Operators()


def settings() -> Plain:
    """The environment's settings for the compiler, which mostly is not loaded yet."""
    return dict(variables(VARIABLES))


@contextlib.contextmanager
def fresh(functions: Iterable[tuple[Any, str]], chip: str) -> Iterator[None]:
    """Let cuda.compute and its compiler have nothing left of these functions but what they are now.

    Args:
        functions: As of `Fingerprint.device_functions`.
        chip: The target.
    """
    others = [each for each in functions if each[0] is not struct_class]
    if not others:
        yield
        return
    from cuda import compute

    from ..frontends.mlir.compile import fresh_functions

    compute.clear_all_caches()  # which tell operators apart by less than is registered
    with fresh_functions(others, chip):
        yield
