"""One slot for each argument of a kernel: from the argument to the values that `struct` packs.

Promise     `Slot.settle` is the whole check of one argument. Importing this takes what arguments of the commonest exact
            types need; the converters of all others (`scalars`) are imported with the first such argument.
Not here    The check of pointers (`pointers`); the lines of generated code for a slot (`generated`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

from ..errors import ArgumentError
from ..model.parameter import SCALAR_SIZES, Parameter
from .devices import check_interpreter
from .memory import CARRIERS
from .pointers import Call, LaunchDevice, PointerReader

STRUCT_LETTERS = {
    "b1": "?", "i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q",
    "f2": "e", "bf": "H", "f4": "f", "f8": "d", "c4": "ff", "c8": "dd", "e4": "B", "e5": "B",
}  # fmt: skip
"""How `struct` packs each scalar code; bfloat16 and fp8 as the integer that has their bits."""

_TOO_LARGE = {
    "f2": 2.0**15 * (2 - 2.0**-11),
    "bf": 2.0**127 * (2 - 2.0**-8),
    "f4": 2.0**127 * (2 - 2.0**-24),
    "f8": 2**1024 - 2**970,  # an integer: Python compares it with floats exactly
    "e4": 464.00000000000006,  # 464 lies between 448, which is even, and what would be NaN
    "e5": 2.0**15 * (2 - 2.0**-3),
}
"""The smallest magnitude that would round beyond the largest finite value of each format."""

_EXACT = {"i": (int,), "u": (int,), "f": (float, int), "b": (bool,)}
"""The Python types that `struct` packs just as the converters of each kind of code do, within its bounds."""

Inline: TypeAlias = tuple[str, dict[str, Any], str]
"""A slot's part of the generated code: its lines, the names that they need, the expressions of the values to pack."""


class KernelParameter:
    """One parameter of one kernel.

    Args:
        kernel: The kernel's name.
        position: From 1.
        declared: By the compiler.
        typed: Whether its type is known, or only its size.
    """

    def __init__(self, kernel: str, position: int, declared: Parameter, *, typed: bool) -> None:
        self.kernel, self.position, self.declared, self.typed = kernel, position, declared, typed
        self.code, self.size = declared.code, declared.size

    @functools.cached_property
    def convert(self) -> Callable[[Any], Any]:
        """The full check of a value, which returns a number or bytes."""
        check_interpreter()
        from .scalars import converter_for

        return converter_for(self)

    def refuse(self, value: object, why: str, hint: str = "") -> ArgumentError:
        """The error to raise for `value`."""
        check_interpreter()
        from .argument_errors import argument_error

        return argument_error(self, value, why, hint)


class Slot:
    """One argument's part in a launch.

    Args:
        settle: Checks one argument, and returns the values that `struct` packs for it (`struct_format`); instead of
            an address a function that gives it once `Call.before` is done.
        inline: Makes the slot's part of the generated code; most kernels of a process are never asked.
    """

    __slots__ = ("inline", "settle")

    def __init__(self, settle: Callable[[Any, Call], tuple[Any, ...]], inline: Callable[[], Inline]) -> None:
        self.settle, self.inline = settle, inline


def slot_of(parameter: KernelParameter, device: LaunchDevice, *, strided: bool) -> Slot:
    """The slot for one parameter.

    Args:
        parameter: Of the kernel.
        device: That launches go to.
        strided: Whether arrays that do not lie in one piece are taken.
    """
    code = parameter.code
    if code[0] == "*" or (code == "?" and parameter.size == 8):
        reader = PointerReader(parameter, device, strided=strided)
        if code == "?":
            return _word_slot(parameter, reader)
        return Slot(reader.settle, lambda: _generated().pointer_inline(reader, device.device_of is not None))
    return _value_slot(parameter)


def bounds_of(code: str) -> tuple[float, float]:
    """The numbers that a scalar of this code holds lie between these two, which it does not hold."""
    if code[0] not in "iu":
        above = 2 if code == "b1" else _TOO_LARGE[code]
        return -above, above
    above = 1 << 8 * SCALAR_SIZES[code] - (code[0] == "i")
    return (-above if code[0] == "i" else 0) - 1, above


def _value_slot(parameter: KernelParameter) -> Slot:
    code = parameter.code
    exact = () if code in CARRIERS else _EXACT.get(code[0], ())
    below, above = bounds_of(code) if exact else (0, 0)

    def settle(value: Any, _call: Call) -> tuple[Any, ...]:
        if type(value) in exact and below < value < above:
            return (value,)
        number = parameter.convert(value)
        return (number.real, number.imag) if code[0] == "c" else (number,)

    return Slot(settle, lambda: _generated().value_inline(parameter))


def _word_slot(parameter: KernelParameter, reader: PointerReader) -> Slot:
    """Eight bytes of unknown type: a pointer, or a scalar whose bytes are certain."""

    def number(value: Any) -> int | None:
        try:
            return int.from_bytes(parameter.convert(value), "little")
        except ArgumentError:
            if isinstance(value, (int, float, complex)):
                raise
            return None

    def address(value: Any, stream_id: int) -> int | None:
        word = number(value)
        return reader(value, stream_id) if word is None else word

    def settle(value: Any, call: Call) -> tuple[Any, ...]:
        word = number(value)
        return reader.settle(value, call) if word is None else (word,)

    return Slot(settle, lambda: _generated().address_inline(address))


def _generated() -> Any:
    """The module of generated code, which most processes never need."""
    from . import generated

    return generated


@functools.lru_cache(maxsize=256)
def struct_format(parameters: tuple[Parameter, ...]) -> str:
    """The `struct` format of a parameter buffer: native order, no padding but what the offsets ask for."""
    text, end = "=", 0
    for offset, size, code, _c_type, _name in parameters:
        letters = "Q" if code[0] == "*" or (code == "?" and size == 8) else STRUCT_LETTERS.get(code) or f"{size}s"
        text += "x" * (offset - end) + letters
        end = offset + size
    return text
