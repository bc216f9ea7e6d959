"""One slot for each argument of a kernel: from the argument to the values that `struct` packs.

Promise     `Slot.settle` is the whole check of one argument. Importing this takes what arguments of the commonest exact
            types need; the converters of all others (`scalars`) are imported with the first such argument.
Not here    Pointers (`pointers`); the lines of generated code for a slot (`generated`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ..errors import ArgumentError
from ..model.artifact import SCALAR_SIZES, Parameter
from .config import LaunchShape
from .devices import check_interpreter
from .memory import CARRIERS

STRUCT_LETTERS = {
    "b1": "?", "i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q",
    "f2": "e", "bf": "H", "f4": "f", "f8": "d", "c4": "ff", "c8": "dd", "e4": "B", "e5": "B",
}  # fmt: skip
"""The `struct` letter of each scalar code; bfloat16 and fp8 as the integer that has their bits."""

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


class LaunchDevice:
    """The device that a kernel is loaded on, as its launches see it.

    Args:
        ordinal: Its number.
        enqueue_wait: Makes the second stream wait for what is queued in the first, on the device.
        device_of: The device that alone can reach an address, or None for memory that others reach too
            (managed, host-mapped) and for addresses the driver does not know. None instead of a function
            where the process sees one device only.
        numba_context: The context that Numba's arrays of this device have their memory in, to know them by.
        awaits_numba: One element, true while the module was loaded without Numba, and Numba's context is not watched.
        watch_numba_context: Called when such a program has imported Numba.
    """

    def __init__(
        self,
        ordinal: int,
        enqueue_wait: Callable[[int, int], None],
        device_of: Callable[[int], int | None] | None = None,
        numba_context: Any = None,
        awaits_numba: Sequence[bool] = (False,),
        watch_numba_context: Callable[[], None] = lambda: None,
    ) -> None:
        self.ordinal, self.enqueue_wait, self.device_of = ordinal, enqueue_wait, device_of
        self.numba_context, self.awaits_numba = numba_context, awaits_numba
        self.watch_numba_context = watch_numba_context


class Call:
    """One launch on its slow path.

    Args:
        shape: Its extents.
        config: Taken by the driver: a stream, or the whole configuration.
        stream: The launch stream as the user gave it.
        handle: Its handle.
        arguments: Of the launch.

    Attributes:
        before: To be done before the launch, in order.
        after: To be done after it: copies back to the host.
        borrowed: To be kept until the launch is queued.
    """

    def __init__(self, shape: LaunchShape, config: Any, stream: Any, handle: int, arguments: tuple[Any, ...]) -> None:
        self.shape, self.config, self.stream, self.handle, self.arguments = shape, config, stream, handle, arguments
        self.before: list[Callable[[], object]] = []
        self.after: list[Callable[[], object]] = []
        self.borrowed: list[object] = []


class Slot:
    """One argument's part in a launch.

    Args:
        settle: Checks one argument, and returns the values that `struct` packs for it (`struct_format`); instead of
            an address a function that gives it once `Call.before` is done.
        inline: Makes the slot's part of the generated code; most kernels of a process are never asked.
    """

    settle: Callable[[Any, Call], tuple[Any, ...]]
    inline: Callable[[], Inline]

    def __init__(self, settle: Callable[[Any, Call], tuple[Any, ...]], inline: Callable[[], Inline]) -> None:
        self.settle, self.inline = settle, inline


class ParameterSlot(Slot):
    """The slot of one parameter of a kernel.

    Args:
        kernel: The kernel's name.
        position: From 1.
        declared: By the compiler.
        typed: Whether its type is known, or only its size.
    """

    def __init__(self, kernel: str, position: int, declared: Parameter, typed: bool) -> None:
        self.kernel, self.position, self.declared, self.typed = kernel, position, declared, typed
        self.code = declared.code

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


class ValueSlot(ParameterSlot):
    """The slot of a parameter passed by value."""

    def __init__(self, kernel: str, position: int, declared: Parameter, typed: bool) -> None:
        super().__init__(kernel, position, declared, typed)
        self._exact, self._below, self._above = _exact_of(self.code)

    def settle(self, value: Any, _call: Call) -> tuple[Any, ...]:
        """Check one argument; see `Slot`."""
        if type(value) in self._exact and self._below < value < self._above:
            return (value,)
        number = self.convert(value)
        return (number.real, number.imag) if self.code[0] == "c" else (number,)

    def inline(self) -> Inline:
        """The generated code; see `Slot`."""
        from .generated import value_inline

        return value_inline(self)


@functools.cache
def _exact_of(code: str) -> tuple[tuple[type, ...], float, float]:
    """The Python types that `struct` packs for this code as they are, and the bounds within which it does."""
    types = () if code in CARRIERS else _EXACT.get(code[0], ())
    return types, *(bounds_of(code) if types else (0, 0))


def bounds_of(code: str) -> tuple[float, float]:
    """The numbers that a scalar of this code holds lie between these two, which it does not hold."""
    if code[0] not in "iu":
        above = 2 if code == "b1" else _TOO_LARGE[code]
        return -above, above
    above = 1 << 8 * SCALAR_SIZES[code] - (code[0] == "i")
    return (-above if code[0] == "i" else 0) - 1, above


@functools.lru_cache(maxsize=256)
def struct_format(parameters: tuple[Parameter, ...]) -> str:
    """The `struct` format of a parameter buffer: native order, no padding but what the offsets ask for."""
    text, end = "=", 0
    for offset, size, code, _c_type, _name in parameters:
        letters = "Q" if code[0] == "*" or (code == "?" and size == 8) else STRUCT_LETTERS.get(code) or f"{size}s"
        text += "x" * (offset - end) + letters
        end = offset + size
    return text
