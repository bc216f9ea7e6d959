"""Slots for arguments of Numba kernels: arrays that take several parameters, numbers of exact classes.

Promise     Only an array or a number of exactly the type that the kernel was compiled for is accepted; for any other,
            `OtherTypes` is raised before anything is queued. Numba then launches, `around` which its arguments are
            ordered as in a launch by `launcher`.
Method      A string lists the parameters of an array: a letter for each, and s, b and e for one parameter per axis:

                0  zero          n  number of items    i  bytes of an item    a  address
                s  extents       b  strides in bytes   e  strides in items

Not here    Numba's types, and typing values (the front ends).
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import NoDeviceError
from . import (
    Call,
    Memory,
    Slot,
    Unfit,
    bindings,
    context_id,
    current_device,
    device_elsewhere,
    is_c_contiguous,
    is_capturing,
    is_exported,
    others,
    stream_handle,
)
from .launcher import memory_of, orders_of


class OtherTypes(Exception):
    """Raised if the arguments do not have the types of this kernel, or not the exact classes that its slots accept."""


class ArraySlot(Slot):
    """The slot of an array.

    Attributes:
        others: Layouts of other libraries' arrays that are accepted for this type.

    Args:
        kind: The Numba type, as a device array of Numba has it in `_numba_type_`. Its layout is `"C"`, `"F"`, or `"A"`
            for other strides; arrays of other libraries count as `"C"` or `"A"`.
        own: The class of Numba's device arrays.
        element: Type code of its elements.
        item_bytes: Size of an element.
        passed_as: The letters of its parameters, in order (see the Method of this module).
    """

    form, others = "array", "CA"

    def __init__(self, kind: Any, own: Any, *, element: str, item_bytes: int, passed_as: str) -> None:
        self.kind, self.own, self.element, self.item_bytes = kind, own, element, item_bytes
        axes = self.axes = kind.ndim
        self.layout, self.is_readonly = kind.layout, not kind.mutable
        self.fields = [(letter, axis) for letter in passed_as for axis in range(axes if letter in "sbe" else 1)]
        starts = {"0": 0, "n": 1, "i": 2, "a": 3, "s": 4, "b": 4 + axes, "e": 4 + 2 * axes}
        pick: Callable[[Any], tuple[int, ...]] = operator.itemgetter(
            *[starts[letter] + axis for letter, axis in self.fields]
        )
        self._pick, self._counts_items = pick, "e" in passed_as
        self.launcher: Any = None

    def settle(self, value: Any, call: Call) -> tuple[int, ...]:
        """Check one argument; see `Settle`.

        Raises:
            OtherTypes: The argument is not of this type.
        """
        return self.values_of(self.read_own(value) or self._of_others(value, call))

    def read_own(self, value: Any) -> Memory | None:
        """The memory of a device array of Numba; None for other objects.

        Raises:
            OtherTypes: It is an array of another type.
        """
        if type(value) is not self.own:
            return None
        if not (value._numba_type_ is self.kind or value._numba_type_ == self.kind):
            raise OtherTypes
        address = value.gpu_data.device_ctypes_pointer.value or 0
        return tuple.__new__(Memory, (address, None, 1, value.shape, value.strides, False, None))

    def values_of(self, memory: Memory) -> tuple[int, ...]:
        """The parameters of an array of this type; its strides may be None if they are not among the parameters."""
        shape, strides, size = memory.shape, memory.strides or (), self.item_bytes
        steps = [step // size for step in strides] if self._counts_items else ()
        return self._pick((0, math.prod(shape), size, memory.address, *shape, *strides, *steps))

    def _of_others(self, value: Any, call: Call) -> Memory:
        """The memory of an array of another library."""
        try:
            memory = None if getattr(value, "__cuda_ndarray__", False) else memory_of(value)
        except Unfit:
            memory = None
        if memory is None and is_exported(value) and (borrowed := _borrowed(value, call.handle)):
            memory = borrowed[0]
            call.borrowed.append(borrowed[1])
        if memory is None or (memory.element or None, len(memory.shape)) != (self.element, self.axes):
            raise OtherTypes
        module, is_packed, elsewhere = self.launcher.module, True, None
        if memory.strides is not None or module.device_of is not None:
            is_packed, elsewhere = is_c_contiguous(memory), device_elsewhere(module, memory)
        is_of_type = memory.readonly == self.is_readonly and is_packed == (self.layout == "C") and self.layout != "F"
        if not is_of_type or elsewhere is not None:
            raise OtherTypes
        if self.layout != "C":
            return memory
        strides: tuple[int, ...] = ()
        step = self.item_bytes
        for extent in reversed(memory.shape):
            strides, step = (step, *strides), step * extent
        return tuple.__new__(Memory, (*memory[:4], strides, *memory[5:]))


class NumberSlot(Slot):
    """The slot of a number.

    Args:
        element: Its type code.
        numpy_class: The NumPy class with this type.
        python_class: The class of Python with this type; `numpy_class` where there is none.
        values: Converts a number to the values that are packed; None if the number itself is packed.
    """

    form = "number"

    def __init__(
        self, element: str, numpy_class: type, python_class: type, values: Callable[[Any], tuple[Any, ...]] | None
    ) -> None:
        self.element, self._values = element, values
        self.numpy_class, self.python_class = numpy_class, python_class

    def settle(self, value: Any, _call: Call) -> tuple[Any, ...]:
        """Check one argument; see `Settle`.

        Raises:
            OtherTypes: The argument has another class, or is a Python integer beyond 64 bits.
        """
        kind = type(value)
        if (kind is not self.numpy_class and kind is not self.python_class) or (
            kind is int and not -(2**63) <= value < 2**63
        ):
            raise OtherTypes
        return (value,) if self._values is None else self._values(value)


def _borrowed(value: Any, handle: int) -> tuple[Memory, object] | None:
    """The memory of an array over DLPack, ordered before a stream, with what keeps it alive; None if DLPack refuses."""
    from .dlpack import borrow

    try:
        return borrow(value, handle)
    except (BufferError, TypeError, RuntimeError, ValueError):  # Numba's own launch gives its own error
        return None


def around(launch: Callable[[Any], object], stream: Any, arguments: Sequence[Any]) -> None:
    """Launch by Numba's own code, which passes over the streams of arguments.

    A launch without a stream goes to the default stream, ordered with all others on both sides: on another one Numba
    takes no host arrays. If one of them is being captured, it goes there.

    Args:
        launch: Queues the launch on the stream that it is called with.
        stream: As `Call.stream`.
        arguments: Arguments of the launch.

    Raises:
        LaunchError: The driver refused.
    """
    from .streams import waits_in

    exporters = [each for each in arguments if is_exported(each)]
    try:
        ordinal = current_device().ordinal if exporters or orders_of(arguments, 0) else -1
    except NoDeviceError:  # arrays of Numba's simulator; without a device the launch itself raises
        ordinal = -1
    if ordinal < 0:
        launch(0 if stream is None else stream)
        return
    driver, waits, orders = bindings(), waits_in(context_id()), orders_of(arguments, ordinal)
    is_captured, handle = functools.partial(is_capturing, driver), stream_handle(stream)
    if stream is None:
        handle = next((each.handle for each in orders if is_captured(each.handle)), 0)
    further = others(orders, handle, stream, is_captured)
    for each in further:
        waits.enqueue_wait(each, handle)
    borrowed = [found[1] for each in exporters if (found := _borrowed(each, handle))]
    launch(handle if stream is None else stream)
    if stream is None or (type(stream) is int and not stream):
        waits.follow(handle, further)
    if borrowed:
        waits.hold(handle, borrowed)
