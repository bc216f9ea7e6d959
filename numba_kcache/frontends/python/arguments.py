"""Arguments that are launched by their types: what the launchers of both Numbas share.

Promise     A launch made here has the parameter bytes of Numba's own. What is not of exactly the types that the
            kernel was compiled for is handed on before anything is queued (`OtherTypes`). A cubin whose parameters have
            other sizes than the signature's is refused, never guessed.
Not here    Arrays, and how many parameters a complex number fills (numba.arguments, mlir.arguments).
Ground      Numba types a Python int as int64, a float as float64, a complex as complex128. Parameters in PTX are
            aligned to their size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...errors import ArgumentError
from ...launch import Dim3
from ...launch.arguments import CODES, Call
from ...launch.launcher import Launcher
from ...launch.typed import NumberSlot, OtherTypes
from ...model.artifact import Parameter

_PYTHON = {"int64": int, "float64": float, "complex128": complex, "bool": bool}
"""Python's classes that Numba types as if they were NumPy's."""


class Signature(tuple[Any, ...]):
    """Argument types whose hash is taken once: Numba's types take theirs in Python, ten calls each time."""

    def __hash__(self) -> int:
        found: int | None = self.__dict__.get("_taken")
        if found is None:
            found = self.__dict__["_taken"] = tuple.__hash__(self)
        return found


Otherwise = Callable[[tuple[Any, ...], tuple[Any, ...]], None]
"""Called with configuration and arguments where `OtherTypes` was met. Nothing has been queued."""


class TypedLauncher(Launcher):
    """A launcher whose arguments are Numba's: an array fills several parameters.

    Args:
        otherwise: Takes what is not for this launcher.
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
            pass  # go on outside this block: an error there must not name this one as its context
        grid, block, shared = shape
        self._otherwise((grid, block, stream, shared), arguments)

    def _wrong_count(self, call: Call) -> Exception:
        """Numba says itself how many arguments it takes."""
        return OtherTypes()


def lay_out(kernel: str, codes: Sequence[str], found: Sequence[Parameter]) -> tuple[Parameter, ...]:
    """Give a cubin's parameters their types, at the offsets that they have in it.

    Args:
        kernel: Its name, for messages.
        codes: The code (`model.artifact`) of each parameter that the arguments fill.
        found: Offset and size of each parameter of the cubin.

    Raises:
        ArgumentError: The cubin lays them out in another way; it is not of this signature.
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
    """The code of the parameter that a number fills; not for complex numbers."""
    return "u2" if dtype.name == "float16" else f"{dtype.kind}{dtype.itemsize}"


def number_slot(dtype: Any) -> NumberSlot:
    """Make the slot of a number, known by its class."""
    values: Callable[[Any], tuple[Any, ...]] = _itself
    if dtype.kind == "c":
        values = _parts
    elif dtype.name == "float16":
        values = _half_bits
    return NumberSlot(CODES[dtype.name], dtype.type, _PYTHON.get(dtype.name) or dtype.type, values)


def _itself(value: Any) -> tuple[Any, ...]:
    return (value,)


def _parts(value: Any) -> tuple[Any, ...]:
    return value.real, value.imag


def _half_bits(value: Any) -> tuple[Any, ...]:
    return (int(value.view("uint16")),)
