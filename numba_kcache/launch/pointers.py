"""The address for a pointer parameter, checked against what the kernel will do with it.

Promise     An address comes out only if the memory is reachable from this launch's device, its elements fit
            the pointee, it may be written where the kernel may write, and it lies in one piece (unless
            `strided`). A bare integer is never an address.
Method      `memory` reads the argument, one function here checks it. What cannot be settled by looking (a
            stream to wait for, a copy to make) is put on the `Call`, to be done once all arguments are
            checked; without a `Call` the answer is None, and the launcher comes again on its slow path.
Not here    The inline checks of the generated launcher: they are a subset of these and fall back to them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..errors import ArgumentError
from .dlpack import (
    DLPACK_CUDA,
    DLPACK_CUDA_HOST,
    DLPACK_CUDA_MANAGED,
    borrow,
)
from .elements import (
    CARRIERS,
    NUMPY_NAMES,
    alignment_of,
    fits,
)
from .memory import (
    Memory,
    Unfit,
    host_array_of,
    memory_of,
)
from .places import Place
from .streams import same_order


class Surroundings(NamedTuple):
    """What checking an address needs to know of the process.

    Args:
        device: Ordinal of the device that the kernel is loaded on.
        order_after: Makes the second stream wait for what is queued in the first, on the device.
        device_of: The device that alone can reach an address, or None for memory that others reach too
            (managed, host-mapped) and for addresses the driver does not know. None instead of a function
            where the process sees one device only.
        numba_stream: From a handle to the stream that Numba's copying wrappers take.
        context: What Numba's arrays of this device have as the context of their memory, to know them by.
        alone: One element, true while the kernel has not met Numba, in a program that did not use it.
        meet_numba: What to call when such a program has imported Numba.
    """

    device: int
    order_after: Callable[[int, int], None]
    device_of: Callable[[int], int | None] | None = None
    context: Any = None
    numba_stream: Callable[[int], Any] = int
    alone: Sequence[bool] = (False,)
    meet_numba: Callable[[], None] = lambda: None


class Call:
    """One launch on its slow path.

    Args:
        stream: The launch stream as the user gave it.
        handle: Its handle.

    Attributes:
        before: To be done before the launch, in order.
        after: To be done after it: copies back to the host.
    """

    __slots__ = ("after", "before", "handle", "stream")

    def __init__(self, stream: Any, handle: int) -> None:
        self.stream, self.handle = stream, handle
        self.before: list[Callable[[], object]] = []
        self.after: list[Callable[[], object]] = []


class PointerReader:
    """Turns an argument into the address for one parameter.

    Args:
        place: The parameter.
        around: The process as the launch sees it.
        strided: Whether arrays that do not lie in one piece are taken.
    """

    def __init__(self, place: Place, around: Surroundings, *, strided: bool) -> None:
        self._place, self._around, self._strided = place, around, strided
        code = place.parameter.code
        self._may_write = place.parameter.is_pointer and not code.startswith("*k")
        self.pointee = code.lstrip("*").removeprefix("k") if place.parameter.is_pointer else "?"

    def __call__(self, value: Any, order: int) -> int | None:
        """The address, or None where something has to be done before the launch.

        Args:
            value: The argument.
            order: Of the launch stream (`streams.same_order`).

        Raises:
            ArgumentError: The argument does not fit.
        """
        memory = self._memory(value)
        if memory is None:
            if _is_dlpack(value) or _is_wrapped(value):
                return None
            raise self._refusal(value)
        self._check(value, memory)
        return memory.address if self._producer(memory, order) is None else None

    def resolve(self, value: Any, call: Call) -> Callable[[], int]:
        """What gives the address once `call.before` is done, and keeps what it points to; all checks are made now.

        Raises:
            ArgumentError: The argument does not fit.
        """
        memory = self._memory(value)
        if memory is None:
            if _is_wrapped(value):
                return self._unwrap(value, call)
            if not _is_dlpack(value):
                raise self._refusal(value)
            memory = self._borrow(value, call)
        self._check(value, memory)
        producer = self._producer(memory, same_order(call.handle))
        if producer is not None:
            call.before.append(lambda: self._around.order_after(producer, call.handle))
        return lambda: memory.address

    def _memory(self, value: Any) -> Memory | None:
        try:
            return memory_of(value)
        except Unfit as unfit:
            raise self._place.refuse(value, unfit.why, unfit.hint) from unfit.__cause__

    @staticmethod
    def _producer(memory: Memory, order: int) -> int | None:
        if memory.stream is None or same_order(memory.stream) == order:
            return None
        return memory.stream

    def _borrow(self, value: Any, call: Call) -> Memory:
        kind, device = value.__dlpack_device__()
        if int(kind) not in (DLPACK_CUDA, DLPACK_CUDA_HOST, DLPACK_CUDA_MANAGED):
            raise self._refusal(value)
        try:
            tensor = borrow(value, call.handle)
        except (BufferError, TypeError, RuntimeError, ValueError) as error:
            raise self._place.refuse(value, f"its __dlpack__ says: {str(error).partition(chr(10))[0]}") from error
        return Memory(
            tensor.address,
            tensor.element,
            tensor.item_bytes,
            tensor.shape,
            tensor.strides,
            tensor.readonly,
            int(device) if int(kind) == DLPACK_CUDA else None,
            owner=tensor,
        )

    def _unwrap(self, value: Any, call: Call) -> Callable[[], int]:
        """`cuda.In`, `Out`, `InOut`: checked where they are, copied once all arguments are checked."""
        held = value.value
        memory = self._memory(held) or host_array_of(held)
        if memory is None:
            raise self._refusal(value)
        self._check(held, memory)

        def copy() -> None:
            array = value.to_device(call.after, self._around.numba_stream(call.handle))
            copied.append(array)

        def address() -> int:
            pointer = getattr(copied[0], "device_ctypes_pointer", None)
            return int(pointer.value or 0 if pointer is not None else copied[0].ptr)

        copied: list[Any] = []
        call.before.append(copy)
        return address

    def _check(self, value: Any, memory: Memory) -> None:
        self._check_device(value, memory)
        if memory.element is None:
            return
        pointee, refuse = self.pointee, self._place.refuse
        if not fits(pointee, memory.element, memory.item_bytes):
            raise refuse(value, f"the kernel takes {_elements(pointee)} there", _retype_hint(pointee))
        if memory.readonly and self._may_write:
            raise refuse(value, "it is read-only, the parameter is not const", "declare it const, or pass a copy")
        if not self._strided and not lies_flat(memory):
            raise refuse(
                value,
                f"it does not lie in one piece, its strides are {memory.strides} bytes",
                "pass a contiguous copy, or decorate with strided=True and pass the strides too",
            )
        alignment = alignment_of(pointee)
        if memory.address % alignment:
            raise refuse(value, f"its address is no multiple of the {alignment} bytes that {_elements(pointee)} need")

    def _check_device(self, value: Any, memory: Memory) -> None:
        around = self._around
        if memory.device == around.device or not memory.address or around.device_of is None:
            return
        device = around.device_of(memory.address)
        if device is not None and device != around.device:
            raise self._place.refuse(
                value,
                f"it is on device {device}, the launch on device {around.device}",
                "copy it there, or make its device the current one",
            )

    def _refusal(self, value: Any) -> ArgumentError:
        refuse = self._place.refuse
        if host_array_of(value) is not None or _is_dlpack(value):
            return refuse(
                value,
                "its memory is on the host",
                "copy it with cuda.to_device(), or wrap it in cuda.In(), cuda.Out() or cuda.InOut()",
            )
        if isinstance(value, int):
            return refuse(
                value,
                "a pointer takes a device array or None, not a bare integer",
                "check the order of the arguments; an address goes as ctypes.c_void_p(address)",
            )
        return refuse(
            value,
            "a pointer takes a device array, None or ctypes.c_void_p",
            "check the order of the arguments",
        )


def lies_flat(memory: Memory) -> bool:
    """Whether the elements fill one piece of memory, in C or in Fortran order; empty arrays do."""
    if memory.strides is None or 0 in memory.shape:
        return True
    axes = [axis for axis in zip(memory.shape, memory.strides, strict=True) if axis[0] != 1]
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


def _is_wrapped(value: Any) -> bool:
    """Whether it is one of Numba's `In`, `Out`, `InOut`, told by its module so that Numba is not imported."""
    return any(base.__module__ == "numba.cuda.args" for base in type(value).__mro__)


def _elements(pointee: str) -> str:
    if pointee[0] == "v":
        return f"vectors of {pointee[1]} x {NUMPY_NAMES[pointee[2:]]}"
    return NUMPY_NAMES[pointee]


def _retype_hint(pointee: str) -> str:
    element = pointee[2:] if pointee[0] == "v" else pointee
    if element in CARRIERS:
        return f"NumPy has no such type: pass an array of {NUMPY_NAMES[CARRIERS[element]]} that holds its bits"
    return f"convert it with .astype({NUMPY_NAMES[element]!r}), or change the parameter"
