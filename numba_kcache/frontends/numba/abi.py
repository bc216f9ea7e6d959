"""How the arguments of a Numba kernel become the parameters of its cubin.

Promise     `flatten` gives, for each argument type that Numba launches, the parameters it fills, in order, and
            a function from the argument to their values. `lay_out` holds them against the cubin: where Numba
            would lay them out otherwise, the launch is refused, never guessed.
Method      The table of numba-cuda's `_Kernel._prepare_args`:

                type of the argument        parameters (letters of `struct`)
                array of n axes             Q Q  q q  Q  n*q  n*q    meminfo and parent (both 0), items, item
                                            size, address, shape, strides in bytes
                record                      Q                        address of a copy on the device
                pointer                     Q                        an int
                integer, boolean            of its width             wraps around, as ctypes has it
                float16                     H                        its bits
                float32, float64            f, d
                complex64, complex128       ff, dd
                datetime64, timedelta64     q                        its count of units
                enum member                 those of its value
                tuple, named tuple          those of its members, one after another

Not here    Device memory itself: the caller finds address, shape and strides (launch.memory) and copies host
            arrays and records.
Ground      numba-cuda 0.30.4, dispatcher.py, `_Kernel._prepare_args`; parameters in PTX are aligned to their size.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from operator import attrgetter, index
from typing import Any, NamedTuple

from ...errors import ArgumentError
from ...model.artifact import Parameter

Values = tuple[Any, ...]

_CODES = {
    "b": "i1", "h": "i2", "i": "i4", "q": "i8", "B": "u1", "H": "u2", "I": "u4", "Q": "u8", "?": "b1",
    "f": "f4", "d": "f8",
}  # fmt: skip
_UNSIGNED = {8: "B", 16: "H", 32: "I", 64: "Q"}


class Argument(NamedTuple):
    """One argument of a kernel.

    Args:
        kind: `"array"`, `"record"`, `"value"` or `"tuple"`.
        letters: What `struct` packs for it, a letter per parameter.
        spread: From the argument to the values of `letters`; for arrays from a `Memory`-like object with
            `address`, `item_bytes`, `shape` and `strides`, for records from the address of their copy.
        members: Of a tuple, which are spread one by one.
    """

    kind: str
    letters: str
    spread: Callable[[Any], Values]
    members: tuple[Argument, ...] = ()


def flatten(types: Sequence[Any]) -> tuple[Argument, ...]:
    """The arguments of a signature.

    Raises:
        NotImplementedError: Numba launches no argument of such a type; as from Numba itself.
    """
    return tuple(_argument(each) for each in types)


def lay_out(kernel: str, arguments: Sequence[Argument], found: Sequence[Parameter]) -> tuple[Parameter, ...]:
    """The parameters with their types, at the places that the cubin has them.

    Args:
        kernel: Its name, for messages.
        arguments: As `flatten` made them.
        found: Offset and size of each parameter of the cubin.

    Raises:
        ArgumentError: The cubin lays them out in another way; it is not of this signature.
    """
    letters = "".join(each.letters for each in arguments)
    if [struct.calcsize(letter) for letter in letters] != [each.size for each in found]:
        raise ArgumentError(
            f"cannot launch {kernel}",
            f"its cubin takes {len(found)} parameters of other sizes than this signature's {len(letters)}",
            "clear the cache, and report this",
        )
    pairs = zip(letters, found, strict=True)
    return tuple(Parameter(each.offset, each.size, _CODES[letter]) for letter, each in pairs)


def _argument(kind: Any) -> Argument:
    from numba.cuda import types

    if isinstance(kind, types.Array):
        return Argument("array", "QQqqQ" + "q" * (2 * kind.ndim), _array_values)
    if isinstance(kind, types.Record):
        return Argument("record", "Q", lambda address: (address,))
    if isinstance(kind, types.CPointer):
        return Argument("value", "Q", _wrapped(64))
    if isinstance(kind, types.Boolean):
        return Argument("value", "?", lambda value: (bool(value),))
    if isinstance(kind, types.Integer):
        letter = _UNSIGNED[kind.bitwidth]
        return Argument("value", letter.lower() if kind.signed else letter, _wrapped(kind.bitwidth, kind.signed))
    if isinstance(kind, (types.NPDatetime, types.NPTimedelta)):
        return Argument("value", "q", lambda value: (int(value.view("int64")),))
    if isinstance(kind, types.EnumMember):
        return _enum(kind)
    if isinstance(kind, types.BaseTuple):
        return _tuple(tuple(map(_argument, kind)))
    floating = {types.float16: ("H", _half_bits), types.float32: ("f", _float), types.float64: ("d", _float),
                types.complex64: ("ff", _parts), types.complex128: ("dd", _parts)}  # fmt: skip
    if kind in floating:
        return Argument("value", *floating[kind])
    raise NotImplementedError(kind)


def _array_values(memory: Any) -> Values:
    """Nothing here is for the kernel's bounds: it reads shape and strides as they are."""
    shape, strides, items = memory.shape, memory.strides, 1
    for extent in shape:
        items *= extent
    return 0, 0, items, memory.item_bytes, memory.address, *shape, *(strides or _contiguous(shape, memory.item_bytes))


def _contiguous(shape: Sequence[int], item_bytes: int) -> tuple[int, ...]:
    strides, step = [], item_bytes
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def _wrapped(bits: int, signed: bool = False) -> Callable[[Any], Values]:
    mask, sign = (1 << bits) - 1, 1 << bits - 1 if signed else 0
    return lambda value: (((index(value) & mask) ^ sign) - sign,)


def _float(value: Any) -> Values:
    return (float(value),)


def _parts(value: Any) -> Values:
    return float(value.real), float(value.imag)


def _half_bits(value: Any) -> Values:
    import numpy

    return (int(numpy.float16(value).view(numpy.uint16)),)


def _enum(kind: Any) -> Argument:
    inner, value_of = _argument(kind.dtype), attrgetter("value")
    return Argument("value", inner.letters, lambda member: inner.spread(value_of(member)))


def _tuple(members: tuple[Argument, ...]) -> Argument:
    """Spread by itself only where no member stands for device memory."""

    def spread(values: Any) -> Values:
        return tuple(word for each, value in zip(members, values, strict=True) for word in each.spread(value))

    return Argument("tuple", "".join(each.letters for each in members), spread, members)
