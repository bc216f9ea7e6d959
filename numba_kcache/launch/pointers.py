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
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError
from ..model.parameter import CODE_SIZES, SCALAR_SIZES
from .memory import CARRIERS, NUMPY_NAMES, Memory, Unfit, memory_of
from .streams import stream_identity

if TYPE_CHECKING:
    from .config import LaunchShape
    from .slots import KernelParameter

TAKE_ANY = ("?", "o", "i1", "u1")
"""Pointees through which C++ may read memory of any type."""


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


class PointerReader:
    """Turns an argument into the address for one parameter.

    Args:
        parameter: Takes a pointer, or eight bytes of unknown type.
        device: That launches go to.
        strided: Whether arrays that do not lie in one piece are taken.
    """

    def __init__(self, parameter: KernelParameter, device: LaunchDevice, *, strided: bool) -> None:
        self._parameter, self._device, self._strided = parameter, device, strided
        is_pointer, code = parameter.declared.is_pointer, parameter.code
        self._may_write = is_pointer and not code.startswith("*k")
        self.pointee = code.lstrip("*").removeprefix("k") if is_pointer else "?"
        self.alignment = alignment_of(self.pointee)

    def __call__(self, value: Any, stream_id: int) -> int | None:
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
            call.before.append(functools.partial(self._device.enqueue_wait, producer, call.handle))
        return (memory.address,)

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
            raise self._parameter.refuse(value, unfit.why, unfit.hint) from unfit.__cause__

    def _borrow(self, value: Any, call: Call) -> Memory:
        from .dlpack import borrow

        try:
            memory = borrow(value, call.handle)
        except (BufferError, TypeError, RuntimeError, ValueError) as error:
            why = f"its __dlpack__ says: {str(error).partition(chr(10))[0]}"
            raise self._parameter.refuse(value, why) from error
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
        if self._device.device_of is not None:
            self._check_device(value, memory, self._device.device_of)
        if memory.element is None:
            return
        pointee, refuse = self.pointee, self._parameter.refuse
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
        here = self._device.ordinal
        if memory.device == here or not memory.address:
            return
        device = device_of(memory.address)
        if device is not None and device != here:
            raise self._parameter.refuse(
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
        return self._parameter.refuse(value, why, hint)


def fits(pointee: str, element: str, item_bytes: int) -> bool:
    """Whether an array whose elements have this code and size may stand behind a pointer to `pointee`.

    Args:
        pointee: The code of the pointer without `*` and `k`.
        element: The code of the array's elements.
        item_bytes: The size of one, which is what tells two records apart.
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
    """Whether the elements fill one piece of memory, in C or in Fortran order; empty arrays do."""
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
