"""Arguments that are launched by their types: what the launchers of both Numbas share.

Promise     A launch made here has the parameter bytes of Numba's own. What is not of exactly the types that the
            kernel was compiled for is handed on before anything is queued (`OtherTypes`). A cubin whose parameters have
            other sizes than the signature's is refused, never guessed.
Not here    Arrays and complex numbers, whose parameters differ (numba.arguments, mlir.arguments).
Ground      Numba types a Python int as int64, a float as float64, a complex as complex128. Parameters in PTX are
            aligned to their size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...errors import ArgumentError
from ...launch import Dim3
from ...launch.arguments import Call, Slot
from ...launch.launcher import MISSING, Launcher
from ...model.artifact import Parameter

NUMBER_LINES = """\
            if (t := type(a{k})) is not first{k} and t is not second{k}:
                {slow}
"""
_HALF_LINES = (
    NUMBER_LINES
    + """\
            v{k} = bits{k}(a{k})
"""
)

_PYTHON = {"int64": int, "float64": float, "complex128": complex, "bool": bool}
"""Python's classes that Numba types as if they were NumPy's."""


class Signature(tuple[Any, ...]):
    """Argument types whose hash is taken once: Numba's types take theirs in Python, ten calls each time."""

    def __hash__(self) -> int:
        found: int | None = self.__dict__.get("_taken")
        if found is None:
            found = self.__dict__["_taken"] = tuple.__hash__(self)
        return found


class OtherTypes(Exception):
    """These arguments are not of the types of this kernel, or not of the exact classes that are taken here."""


Otherwise = Callable[[tuple[Any, ...], tuple[Any, ...]], None]
"""Called with configuration and arguments where `OtherTypes` was met. Nothing has been queued."""


class TypedLauncher(Launcher):
    """A launcher whose arguments are Numba's: an array fills several parameters.

    Args:
        otherwise: Takes what is not for this launcher.
        more: As for `Launcher`.
    """

    def __init__(self, *arguments: Any, otherwise: Otherwise, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._otherwise = otherwise

    def _slow(
        self, arguments: tuple[Any, ...], reason: int, shape: tuple[Dim3, Dim3, int], config: Any, stream_id: int,
        stream: Any,
    ) -> None:  # fmt: skip
        try:
            super()._slow(arguments, reason, shape, config, stream_id, stream)
            return
        except OtherTypes:
            pass  # left behind before going on: it is no part of what may be raised there
        grid, block, shared = shape
        self._otherwise((grid, block, stream, shared), tuple(each for each in arguments if each is not MISSING))

    def _wrong_count(self, call: Call) -> Exception:
        """Numba says itself how many arguments it takes."""
        return OtherTypes()


def lay_out(kernel: str, codes: Sequence[str], found: Sequence[Parameter]) -> tuple[Parameter, ...]:
    """Name the types of a cubin's parameters, at the places that it has them.

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
    """The code of the parameter that a number fills, which is not complex."""
    return "u2" if dtype.name == "float16" else f"{dtype.kind}{dtype.itemsize}"


def number_slot(dtype: Any) -> Slot:
    """Make the slot of a number, known by its class."""
    own, python = dtype.type, _PYTHON.get(dtype.name)
    classes = frozenset((own, python or own))
    is_complex, is_half = dtype.kind == "c", dtype.name == "float16"

    def settle(value: Any, _stream_id: int, _call: Call | None) -> tuple[Any, ...]:
        if type(value) not in classes or (type(value) is int and not -(2**63) <= value < 2**63):
            raise OtherTypes  # Numba types a larger int as uint64, or refuses it
        if is_complex:
            return value.real, value.imag
        return (_half_bits(value) if is_half else value,)

    lines, values = NUMBER_LINES, "a{k}"
    if is_complex:
        values = "a{k}.real, a{k}.imag"
    elif is_half:
        lines, values = _HALF_LINES, "v{k}"
    names = {"first{k}": python or own, "second{k}": own, "bits{k}": _half_bits}
    return Slot(settle, lambda: (lines, names, values))


def _half_bits(value: Any) -> int:
    return int(value.view("uint16"))
