"""Arguments of kernels whose code depends on their types: arrays that fill several parameters, numbers of one class.

Promise     An array or a number is taken that is exactly of the type that the kernel was compiled for; any other is
            `OtherTypes`, before anything is queued.
Method      How an array is passed is data, a letter for each parameter or, for s, b and e, for each axis of it:

                0  zero          n  number of items    i  bytes of an item    a  address
                s  extents       b  strides in bytes   e  strides in items

Not here    Which types there are, and what is typed how (the front ends).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from .arguments import Call, Memory, Slot, Unfit, memory_of
from .devices import stream_identity


class OtherTypes(Exception):
    """These arguments are not of the types of this kernel, or not of the exact classes that are taken here."""


class ArraySlot(Slot):
    """The slot of an array.

    Attributes:
        others: Layouts in which arrays of other libraries may be of this type.

    Args:
        kind: The type that arrays of the front end's own library keep.
        element: The code of its elements.
        item_bytes: Size of one.
        axes: How many.
        layout: `"C"`, or `"F"` and `"A"` for other strides; arrays of other libraries count as `"C"` or `"A"`.
        own: Reads an array of the front end's own library, if it is one and of this type.
        passed_as: How it is passed; see above.
        is_readonly: Whether exactly arrays that forbid writing are of this type.
    """

    others = "CA"

    def __init__(
        self, kind: Any, *, element: str, item_bytes: int, axes: int, layout: str, own: Callable[[Any], Memory | None],
        passed_as: str, is_readonly: bool = False,
    ) -> None:  # fmt: skip
        self.kind, self.element, self.item_bytes, self.axes, self.layout = kind, element, item_bytes, axes, layout
        self.own, self.is_readonly = own, is_readonly
        self.fields = [(letter, axis) for letter in passed_as for axis in range(axes if letter in "sbe" else 1)]
        self.launcher: Any = None

    def settle(self, value: Any, stream_id: int, call: Call | None) -> tuple[int, ...]:
        """Check one argument; see `Settle`.

        Raises:
            OtherTypes: It is not of this type.
        """
        return self.values_of(self.own(value) or self._of_others(value, stream_id, call))

    def values_of(self, memory: Memory) -> tuple[int, ...]:
        """The parameters that an array of this type fills; one whose strides are None has none to pass."""
        shape, strides = memory.shape, memory.strides or ()
        values = {"0": 0, "n": math.prod(shape), "i": self.item_bytes, "a": memory.address}
        return tuple([
            shape[axis] if letter == "s" else
            strides[axis] if letter == "b" else
            strides[axis] // self.item_bytes if letter == "e" else
            values[letter]
            for letter, axis in self.fields
        ])  # fmt: skip

    def _of_others(self, value: Any, stream_id: int, call: Call | None) -> Memory:
        """The memory of an array of another library; it is ordered before the launch."""
        from .pointers import device_elsewhere, is_c_contiguous

        try:
            memory = None if getattr(value, "__cuda_ndarray__", False) else memory_of(value)
        except Unfit:
            memory = None
        if (
            not self.element
            or memory is None
            or call is None
            or (memory.element, len(memory.shape)) != (self.element, self.axes)
        ):
            raise OtherTypes
        module = self.launcher.module
        is_of_type = memory.readonly == self.is_readonly and is_c_contiguous(memory) == (self.layout == "C")
        if not is_of_type or self.layout == "F" or device_elsewhere(module, memory) is not None:
            raise OtherTypes
        if memory.stream is not None and stream_identity(memory.stream) != stream_id:
            call.before.append(functools.partial(module.waits.enqueue_wait, memory.stream, call.handle))
        if self.layout != "C":
            return memory
        strides, step = list[int](), self.item_bytes
        for extent in reversed(memory.shape):
            strides.insert(0, step)
            step *= extent
        return memory._replace(strides=tuple(strides))


class NumberSlot(Slot):
    """The slot of a number.

    Args:
        element: Its code.
        own: The class that is of this type.
        python: Python's own class that is, too; `own` where there is none.
        values: From a number to what is packed.
    """

    def __init__(self, element: str, own: type, python: type, values: Callable[[Any], tuple[Any, ...]]) -> None:
        self.element, self.own, self.python, self._values = element, own, python, values

    def settle(self, value: Any, _stream_id: int, _call: Call | None) -> tuple[Any, ...]:
        """Check one argument; see `Settle`.

        Raises:
            OtherTypes: It is of another class, or a Python integer that is beyond 64 bits.
        """
        kind = type(value)
        if (kind is not self.own and kind is not self.python) or (kind is int and not -(2**63) <= value < 2**63):
            raise OtherTypes
        return self._values(value)
