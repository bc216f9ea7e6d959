"""Host arrays around a launch: `cuda.In`, `cuda.Out` and `cuda.InOut`, copied to the device and back.

Promise     A wrapped array is checked where it lies; it is copied, on the stream of the launch, once all arguments of
            the launch are checked, and copied back when the launch is queued.
Ground      numba-cuda 0.30.4, args.py: `to_device(retr, stream)` takes cuda.core's stream, and puts the copy back on
            the list `retr`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .memory import Memory, from_interface

if TYPE_CHECKING:
    from .slots import Call


def is_wrapper(value: Any) -> bool:
    """True for Numba's `In`, `Out` and `InOut`, known by their module so that Numba is not imported."""
    return any(base.__module__ == "numba.cuda.args" for base in type(value).__mro__)


def host_array_of(value: Any) -> Memory | None:
    """A host array as a `Memory` without an address, to check what a copy of it would be; None for others."""
    interface = getattr(value, "__array_interface__", None)
    return None if interface is None else from_interface(value, interface, address=0)


def copy_around(wrapper: Any, call: Call) -> Callable[[], int]:
    """Have a wrapped array copied around the launch; returns the function that gives the copy's address by then."""
    copies: list[Any] = []

    def copy() -> None:
        from cuda.core import Stream

        copies.append(wrapper.to_device(call.after, Stream.from_handle(call.handle)))

    def address() -> int:
        pointer = getattr(copies[0], "device_ctypes_pointer", None)
        return int(copies[0].ptr if pointer is None else pointer.value or 0)

    call.before.append(copy)
    return address
