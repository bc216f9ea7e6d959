"""The commonest arguments, recognised by their exact type alone: all that a first launch usually meets.

Promise     `usual_values` gives what `struct` packs only where the slots (`slots`) would give the same; whatever it
            does not know, or is not sure of, it leaves to them.
Method      Nothing is prepared: a kernel takes this way a few times only, before its code is generated, and in a fresh
            process each function that is not called is time saved.
Ground      The conditions are those of the lines in `slots`, and of `pointers`: streams 0 and 1 are the same, an array
            of the pointee's own type is aligned. `dtype.str` says byte order, kind and size of elements.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from ..model.parameter import Parameter
from .elements import (
    CARRIERS,
    TAKE_ANY,
    TYPESTRS,
    alignment_of,
)
from .memory import Unfit, memory_of

_TYPES = {
    "b1": (bool,), "i1": (int,), "u1": (int,), "i2": (int,), "u2": (int,), "i4": (int,), "u4": (int,), "i8": (int,),
    "u8": (int,), "f2": (float, int), "f4": (float, int), "f8": (float, int),
}  # fmt: skip
"""The Python types that `struct` packs, or refuses, just as the converters of each code do."""


def usual_values(parameters: Sequence[Parameter], arguments: tuple[Any, ...], stream: Any) -> list[Any] | None:
    """What `struct` packs for these arguments; None where one of them is unusual.

    Args:
        parameters: Of the kernel.
        arguments: Of the launch.
        stream: Of the launch, as the user gave it.
    """
    if len(arguments) != len(parameters):
        return None
    numba = sys.modules.get("numba.cuda.cudadrv.devicearray")
    array_type = numba and numba.DeviceNDArray
    values = []
    for (_offset, _size, code, _c_type, _name), value in zip(parameters, arguments):  # noqa: B905
        kind = type(value)
        if kind in _TYPES.get(code, ()):
            values.append(value)
        elif value is None and code[0] == "*":
            values.append(0)
        elif code[0] == "*":
            address_of = _numba_address if kind is array_type else _lent_address
            address = address_of(code[1:], value, stream)
            if address is None:
                return None
            values.append(address)
        else:
            return None
    return values


def _lent_address(pointee: str, value: Any, stream: Any) -> int | None:
    """The address of another library's array that lies in one piece and needs nothing before the launch."""
    try:
        memory = memory_of(value)
    except Unfit:
        return None
    if memory is None or memory.strides is not None or (memory.stream is not None and (stream or memory.stream > 1)):
        return None
    constant = pointee[0] == "k"
    element = pointee[1:] if constant else pointee
    if memory.element != element or (memory.readonly and not constant):
        return None
    return memory.address


def _numba_address(pointee: str, array: Any, stream: Any) -> int | None:
    """The same of an array of Numba's."""
    pointee = pointee.removeprefix("k")
    element = pointee[2:] if pointee[0] == "v" else pointee
    if pointee not in TAKE_ANY and array.dtype.str != TYPESTRS[CARRIERS.get(element, element)]:
        return None
    own = array.stream
    if (own and own is not stream) or not array._dummy.flags["C_CONTIGUOUS"]:
        return None
    address: int | None = array.gpu_data.device_ctypes_pointer.value
    return address if address is not None and not address & alignment_of(pointee) - 1 else None
