"""The `Flavour` of cuda.compute's operators: numba-cuda-mlir's objects, structs, and device arrays as state.

Promise     Functions registered with numba-cuda-mlir, or decorated by it, are keyed as for one of its kernels. No
            compiler is imported for that. The functions that an operator calls are compiled in their present state,
            even if they were compiled in another state earlier in this process.
Source      cuda.compute 1.2.1, _mlir.py: an operator is compiled as a device function; each struct that it uses is
            registered with numba-cuda-mlir, with code of cuda.compute.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from ..frontends.numba import Extension, Registration, Registrations, code_variables, refuse
from ..frontends.numba.fingerprint import Fingerprint, Refused, Uncapturable, fingerprint
from ..frontends.numba.mlir import MlirFlavour
from ..keys import Plain
from ..settings import variables
from .compute_arguments import HOME, Unkeyed, dtype_form, type_form


def struct_class() -> None:
    """Stand in a fingerprint for the code that cuda.compute generates for a struct class; its layout is added."""


class Operators(MlirFlavour):
    """numba-cuda-mlir, with the objects that cuda.compute's operators may use beside plain Python and NumPy."""

    packages = MlirFlavour.packages | {HOME}

    def intrinsic(self, value: Any) -> Registration | None:
        """The registration of a class of `gpu_struct`, with its layout, or else of an intrinsic."""
        struct = sys.modules.get(f"{HOME}.struct")
        if struct is None or not (isinstance(value, type) and issubclass(value, struct._Struct)):
            return super().intrinsic(value)
        try:
            layout = repr(type_form(value._type_descriptor))  # type: ignore[attr-defined]
        except Unkeyed as refusal:
            raise Refused(str(refusal)) from None
        return Registration("gpu_struct", None, {"name": value.__name__, "layout": layout}, (struct_class,))

    def type_form(self, value: Any, extension: Extension = refuse) -> Plain | None:
        """The form of a type, or of a device array in an operator's state, whose address is passed at each call."""
        from cuda.compute._utils.protocols import get_dtype, get_shape, is_device_array

        if isinstance(value, type) or not is_device_array(value):
            return super().type_form(value, extension)
        try:
            return "state", repr(dtype_form(get_dtype(value))), list(get_shape(value))
        except Unkeyed as refusal:
            raise Refused(str(refusal)) from None

    def registrations(self) -> Registrations:
        """The program's registrations, without cuda.compute's own for structs: `intrinsic` covers the classes."""
        of_value, of_attribute, of_all = super().registrations()
        attributes = {name: _of_program(found) for name, found in of_attribute.items()}
        return Registrations(
            lambda value: _of_program(of_value(value)),
            {name: found for name, found in attributes.items() if found},
            _of_program(of_all),
        )


def _of_program(found: Iterable[Registration]) -> list[Registration]:
    return [each for each in found if not any(code.__module__.startswith(HOME) for code in each.code)]


OPERATORS = Operators()


def operator_form(function: Any, operators: list[Fingerprint]) -> Plain:
    """The form of a Python operator: its fingerprint, which is added to a list.

    Raises:
        Unkeyed: It cannot be captured.
    """
    found = fingerprint(function, OPERATORS, with_lines=False)
    if isinstance(found, Uncapturable):
        raise Unkeyed(f"its operator cannot be keyed: {found.name}: {found.reason}")
    if found.links:
        raise Unkeyed("its operator links files")
    operators.append(found)
    return ["python", found.digest]


def settings() -> Plain:
    """The compiler's settings, read from the environment, since the compiler usually is not loaded yet."""
    return {**code_variables({}), **variables(("LIBLLVM7", "NUMBA_OPT", "NUMBA_CUDA_DEBUGINFO"))}


@contextlib.contextmanager
def fresh(functions: Iterable[tuple[Any, str]], chip: str) -> Iterator[None]:
    """Remove earlier versions of these functions from the caches of cuda.compute and its compiler.

    Args:
        functions: As `Fingerprint.device_functions` returns them.
        chip: The target.
    """
    others = [each for each in functions if each[0] is not struct_class]
    if not others:
        yield
        return
    from cuda import compute

    from ..frontends.numba import compiled_code, mlir

    compute.clear_all_caches()  # the keys in these caches do not cover all registrations
    with compiled_code.fresh_functions(mlir.MLIR, mlir.MLIR.registrations(), others, chip):
        yield
