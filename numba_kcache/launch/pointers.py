"""The address for a pointer parameter, checked against what the kernel will do with it.

Promise     An address comes out only if the memory is reachable from this launch's device, its elements fit
            the pointee, it may be written where the kernel may write, and it lies in one piece (unless
            `strided`). A bare integer is never an address.
Method      `memory` reads the argument, one function here checks it. What cannot be settled by looking (a
            stream to wait for, a copy to make) is put on the `Call`, to be done once all arguments are
            checked; without a `Call` the answer is None, and the launcher comes again on its slow path.
Not here    The inline checks of the generated launcher: they are a subset of these and fall back to them.
Ground      C++ forbids reading an object through another type except char, unsigned char and std::byte;
            the vector types are structs of their component (CUDA C++ Programming Guide, "Built-in Vector
            Types"), and cuFloatComplex is float2.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ..errors import ArgumentError
from ..model.artifact import CODE_SIZES, SCALAR_SIZES, Parameter
from .memory import CARRIERS, NUMPY_NAMES, Memory, Unfit, memory_of
from .slots import Call, Inline, LaunchDevice, ParameterSlot
from .streams import stream_identity

TAKE_ANY = ("?", "o", "i1", "u1")
"""Pointees through which C++ may read memory of any type."""


class PointerSlot(ParameterSlot):
    """The slot of a parameter that takes a pointer.

    Args:
        kernel, position, declared, typed: As for `ParameterSlot`.
        device: That launches go to.
        strided: Whether arrays that do not lie in one piece are taken.
    """

    def __init__(
        self, kernel: str, position: int, declared: Parameter, typed: bool, device: LaunchDevice, strided: bool
    ) -> None:
        super().__init__(kernel, position, declared, typed)
        self.device, self._strided = device, strided
        self.pointee, self._may_write, self.alignment = _pointee_of(self.code)

    def address(self, value: Any, stream_id: int) -> int | None:
        """The address, or None where something has to be done before the launch.

        Args:
            value: The argument.
            stream_id: Of the launch stream (`streams.stream_identity`).

        Raises:
            ArgumentError: The argument does not fit.
        """
        memory = self._read(value)
        if memory is None or (memory.stream is not None and stream_identity(memory.stream) != stream_id):
            return None
        return memory.address

    def settle(self, value: Any, call: Call) -> tuple[int | Callable[[], int]]:
        """The address, or what gives it once `call.before` is done; all checks are made now.

        Raises:
            ArgumentError: The argument does not fit.
        """
        memory = self._read(value)
        if memory is None:
            if not _is_dlpack(value):
                return (self._copied(value, call),)
            memory = self._borrow(value, call)
        producer = memory.stream
        if producer is not None and stream_identity(producer) != stream_identity(call.handle):
            call.before.append(functools.partial(self.device.enqueue_wait, producer, call.handle))
        return (memory.address,)

    def inline(self) -> Inline:
        """The generated code; see `Slot`."""
        from .generated import pointer_inline

        return pointer_inline(self)

    def _read(self, value: Any) -> Memory | None:
        """The memory, checked; None where something has to be done before it can be."""
        memory = self._memory(value)
        if memory is not None:
            self._check(value, memory)
        elif not _is_dlpack(value):
            from .host_arrays import is_wrapper

            if not is_wrapper(value):
                raise self._misfit(value)
        return memory

    def _memory(self, value: Any) -> Memory | None:
        try:
            return memory_of(value)
        except Unfit as unfit:
            raise self.refuse(value, unfit.why, unfit.hint) from unfit.__cause__

    def _borrow(self, value: Any, call: Call) -> Memory:
        from .dlpack import borrow

        try:
            memory = borrow(value, call.handle)
        except (BufferError, TypeError, RuntimeError, ValueError) as error:
            why = f"its __dlpack__ says: {str(error).partition(chr(10))[0]}"
            raise self.refuse(value, why) from error
        if memory is None:
            raise self._misfit(value)
        call.borrowed.append(memory)
        self._check(value, memory)
        return memory

    def _copied(self, wrapper: Any, call: Call) -> int | Callable[[], int]:
        from .host_arrays import copy_around, host_array_of

        memory = self._memory(wrapper.value) or host_array_of(wrapper.value)
        if memory is None:
            raise self._misfit(wrapper)
        self._check(wrapper.value, memory)
        return copy_around(wrapper, call)

    def _check(self, value: Any, memory: Memory) -> None:
        """Raise unless the kernel may do with this memory what it does with the parameter."""
        if self.device.device_of is not None:
            self._check_device(value, memory, self.device.device_of)
        if memory.element is None:
            return
        pointee, refuse = self.pointee, self.refuse
        if memory.element != pointee and not fits(pointee, memory.element, memory.item_bytes):
            raise refuse(value, f"the kernel takes {_elements(pointee)} there", _retype_hint(pointee))
        if memory.readonly and self._may_write:
            raise refuse(value, "it is read-only, the parameter is not const", "declare it const, or pass a copy")
        if memory.strides is not None and not self._strided and not lies_flat(memory, memory.strides):
            raise refuse(
                value,
                f"it does not lie in one piece, its strides are {memory.strides} bytes",
                "pass a contiguous copy, or decorate with strided=True and pass the strides too",
            )
        if memory.address % self.alignment:
            why = f"its address is no multiple of the {self.alignment} bytes that {_elements(pointee)} need"
            raise refuse(value, why)

    def _check_device(self, value: Any, memory: Memory, device_of: Callable[[int], int | None]) -> None:
        here = self.device.ordinal
        if memory.device == here or not memory.address:
            return
        device = device_of(memory.address)
        if device is not None and device != here:
            raise self.refuse(
                value,
                f"it is on device {device}, the launch on device {here}",
                "copy it there, or make its device the current one",
            )

    def _misfit(self, value: Any) -> ArgumentError:
        """The error for what is no device memory at all."""
        from .host_arrays import host_array_of

        why, hint = "a pointer takes a device array, None or ctypes.c_void_p", "check the order of the arguments"
        if host_array_of(value) is not None or _is_dlpack(value):
            why = "its memory is on the host"
            hint = "copy it with cuda.to_device(), or wrap it in cuda.In(), cuda.Out() or cuda.InOut()"
        elif isinstance(value, int):
            why = "a pointer takes a device array or None, not a bare integer"
            hint += "; an address goes as ctypes.c_void_p(address)"
        return self.refuse(value, why, hint)


class WordSlot(PointerSlot):
    """The slot of eight bytes of unknown type: a pointer, or a scalar whose bytes are certain."""

    def address(self, value: Any, stream_id: int) -> int | None:
        """See `PointerSlot`."""
        word = self._word(value)
        return super().address(value, stream_id) if word is None else word

    def settle(self, value: Any, call: Call) -> tuple[Any, ...]:
        """See `Slot`."""
        word = self._word(value)
        return super().settle(value, call) if word is None else (word,)

    def inline(self) -> Inline:
        """See `Slot`."""
        from .generated import address_inline

        return address_inline(self.address)

    def _word(self, value: Any) -> int | None:
        try:
            return int.from_bytes(self.convert(value), "little")
        except ArgumentError:
            if isinstance(value, (int, float, complex)):
                raise
            return None


@functools.cache
def _pointee_of(code: str) -> tuple[str, bool, int]:
    """The code behind the pointer, whether the kernel may write there, and the alignment of addresses."""
    pointee = code.lstrip("*").removeprefix("k")
    return pointee, code[0] == "*" and code[1] != "k", alignment_of(pointee)


def fits(pointee: str, element: str, item_bytes: int) -> bool:
    """Decide if an array whose elements have this code and size may stand behind a pointer to `pointee`.

    Args:
        pointee: The code of the pointer without `*` and `k`.
        element: The code of the array's elements.
        item_bytes: The size of one, which distinguishes two records.
    """
    if pointee in TAKE_ANY or pointee == element:
        return True
    if pointee[0] == "v":
        component = pointee[2:]
        if CARRIERS.get(component) == element:
            return True
        if element == "o":
            return item_bytes == CODE_SIZES[pointee]
        return element in (component, _complex_of(pointee))
    if pointee in ("c4", "c8"):
        return element == "o" and item_bytes == SCALAR_SIZES[pointee]
    return CARRIERS.get(pointee) == element


def alignment_of(pointee: str) -> int:
    """Bytes to which an address must be aligned for elements of this code to be loaded whole; a power of two.

    What holds elements of the pointee's own type is aligned for them; vectors of them ask for more.
    """
    if pointee[0] != "v":
        return 1
    count, component_bytes = int(pointee[1]), SCALAR_SIZES[pointee[2:]]
    return component_bytes if count in (1, 3) else min(count * component_bytes, 16)


def _complex_of(vector: str) -> str:
    return {"v2f4": "c4", "v2f8": "c8"}.get(vector, "")


def lies_flat(memory: Memory, strides: tuple[int, ...]) -> bool:
    """True where the elements fill one piece of memory, in C or in Fortran order; empty arrays do."""
    if 0 in memory.shape:
        return True
    axes = [axis for axis in zip(memory.shape, strides, strict=True) if axis[0] != 1]
    return _is_packed(axes, memory.item_bytes) or _is_packed(axes[::-1], memory.item_bytes)


def _is_packed(axes: list[tuple[int, int]], item_bytes: int) -> bool:
    expected = item_bytes
    for extent, stride in axes:
        if stride != expected:
            return False
        expected *= extent
    return True


def _is_dlpack(value: Any) -> bool:
    return hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__")


def _elements(pointee: str) -> str:
    if pointee[0] == "v":
        return f"vectors of {pointee[1]} x {NUMPY_NAMES[pointee[2:]]}"
    return NUMPY_NAMES[pointee]


def _retype_hint(pointee: str) -> str:
    element = pointee[2:] if pointee[0] == "v" else pointee
    if element in CARRIERS:
        return f"NumPy has no such type: pass an array of {NUMPY_NAMES[CARRIERS[element]]} that holds its bits"
    return f"convert it with .astype({NUMPY_NAMES[element]!r}), or change the parameter"
