"""Key and pack the arguments of Numba kernels by their types: the code shared by both Numbas.

Promise     A launch has the same parameter bytes as Numba's own. Arguments whose types are not exactly those that the
            kernel was compiled for are passed on before anything is queued (`OtherTypes`). A cubin whose parameters
            have other sizes than the signature's is refused, never guessed.
Not here    Arrays, and the number of parameters that a complex number takes (llvm_arguments, mlir_arguments).
Source      Numba types a Python int as int64, a float as float64, a complex as complex128. Parameters in PTX are
            aligned to their size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ...errors import ArgumentError
from ...keys import Component, Plain, component
from ...launch import Dim3
from ...launch.arguments import CODES, Call
from ...launch.launcher import Launcher
from ...launch.typed import NumberSlot, OtherTypes
from ...model.artifact import Parameter
from .function import Depends, Uncapturable, type_digest
from .value import Refused

_PYTHON = {"int64": int, "float64": float, "complex128": complex, "bool": bool}
"""Python's classes that Numba types like NumPy's."""


class Signature(tuple[Any, ...]):
    """Argument types with a cached hash, since a Numba type computes its hash in Python, in ten calls."""

    def __hash__(self) -> int:
        found: int | None = self.__dict__.get("_hash")
        if found is None:
            found = self.__dict__["_hash"] = tuple.__hash__(self)
        return found


Otherwise = Callable[[tuple[Any, ...], tuple[Any, ...]], None]
"""Called with configuration and arguments that the launcher does not take. Nothing has been queued."""


class TypedLauncher(Launcher):
    """A launcher with Numba's calling convention: an array takes several parameters.

    Args:
        otherwise: Takes arguments of other types.
        more: As for `Launcher`.
    """

    shares_layout = False

    def __init__(self, *arguments: Any, otherwise: Otherwise, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._otherwise = otherwise

    def _slow(
        self, arguments: tuple[Any, ...], code: int, shape: tuple[Dim3, Dim3, int], handle: int, stream: Any
    ) -> None:
        try:
            super()._slow(arguments, code, shape, handle, stream)
            return
        except OtherTypes:
            pass  # continue outside this block, so that an error there does not have this one as its context
        grid, block, shared = shape
        self._otherwise((grid, block, stream, shared), arguments)

    def _wrong_count(self, call: Call) -> Exception:
        """Make `OtherTypes`, so that Numba itself reports a wrong number of arguments."""
        return OtherTypes()


def lay_out(kernel: str, codes: Sequence[str], found: Sequence[Parameter]) -> tuple[Parameter, ...]:
    """Combine type codes with the offsets of a cubin's parameters.

    Args:
        kernel: Its name, for messages.
        codes: The type code (`model.artifact`) of each parameter that the arguments take.
        found: Offset and size of each parameter of the cubin.

    Raises:
        ArgumentError: Number or sizes differ; the cubin is not of this signature.
    """
    if [_size(code) for code in codes] != [each.size for each in found]:
        raise ArgumentError(
            f"cannot launch {kernel}",
            f"its cubin takes {len(found)} parameters of other sizes than this signature's {len(codes)}",
            "clear the cache, and report this",
        )
    return tuple([Parameter(each.offset, each.size, code) for code, each in zip(codes, found, strict=True)])


def _size(code: str) -> int:
    return int(code[1:]) * (2 if code[0] == "c" else 1)


def number_code(dtype: Any) -> str:
    """The type code of a number's parameter; not for complex numbers."""
    return "u2" if dtype.name == "float16" else f"{dtype.kind}{dtype.itemsize}"


def number_slot(dtype: Any) -> NumberSlot:
    """Make the slot of a number, which recognises it by its class."""
    values = _parts if dtype.kind == "c" else _half_bits if dtype.name == "float16" else None
    return NumberSlot(CODES[dtype.name], dtype.type, _PYTHON.get(dtype.name) or dtype.type, values)


def _parts(value: Any) -> tuple[Any, ...]:
    return value.real, value.imag


def _half_bits(value: Any) -> tuple[Any, ...]:
    return (int(value.view("uint16")),)


def signature_component(
    dialect: Any, types: Iterable[Any], *, with_lines: bool = False, depends: Depends = ()
) -> Component | Uncapturable:
    """Make the component of the argument types, in order; its recorded value is their text. The code of a type that a
    program added is read as a kernel is, with these arguments of `fingerprint`.
    """

    def extension(kind: Any) -> Plain:
        return "type of an extension", type_digest(kind, dialect, with_lines=with_lines, depends=depends)

    types = tuple(types)
    try:
        form = [dialect.form_of_type(each, extension) for each in types]
    except Refused as refusal:
        return Uncapturable(str(refusal), "argument types")
    return component("argument types", form)._replace(value=[str(each) for each in types])
