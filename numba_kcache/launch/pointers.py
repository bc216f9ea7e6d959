"""Check memory against a pointer parameter; get the memory of DLPack exporters and of wrapped host arrays.

Not here    Reading the memory of an argument (`memory_of` in launcher, memory).
Source      C++ forbids reading an object through another type except char, unsigned char and std::byte, and the signed
            or unsigned counterpart of its own type; the vector types are structs of their component (CUDA C++
            Programming Guide, "Built-in Vector Types"), and cuFloatComplex is float2. PyTorch supports few operations
            on unsigned integers of more than a byte, so programs keep such data in signed tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError
from ..model import CODE_SIZES, SCALAR_SIZES
from . import CARRIERS, NUMPY_NAMES, Call, Memory, device_elsewhere, is_immutable, is_packed

if TYPE_CHECKING:
    from .launcher import PointerSlot

TAKE_ANY = ("?", "o", "i1", "u1")
"""Type codes of pointees through which C++ may read memory of any type."""


def check_memory(slot: PointerSlot, value: Any, memory: Memory) -> None:
    """Check that memory can be passed for a pointer parameter: device, element type, writability, strides, alignment.

    Raises:
        ArgumentError: The memory cannot be passed.
    """
    module = slot.launcher.module
    device = device_elsewhere(module, memory)
    if device is not None:
        raise slot.refuse(
            value,
            f"it is on device {device}, the launch on device {module.device.ordinal}",
            "copy it there, or make its device the current one",
        )
    if memory.element is None:
        return
    pointee, strides = slot.pointee, memory.strides
    if not fits(pointee, memory.element, memory.item_bytes):
        raise slot.refuse(value, f"the kernel takes {_elements(pointee)} there", _retype_hint(pointee, value))
    if memory.readonly and slot.code[:2] != "*k" and slot.code[0] == "*":
        if is_immutable(type(value)):
            why = "JAX's arrays are inputs, since XLA may share or reuse their memory; the parameter is not const"
            raise slot.refuse(value, why, "declare it const, and write to an array of CuPy or PyTorch")
        raise slot.refuse(value, "it is read-only, the parameter is not const", "declare it const, or pass a copy")
    if strides is not None and not slot.launcher.strided and not is_dense(memory, strides):
        raise slot.refuse(
            value,
            f"it is not contiguous, its strides are {strides} bytes",
            "pass a contiguous copy, or decorate with strided=True and pass the strides too",
        )
    if memory.address % alignment_of(pointee):
        why = f"its address is not a multiple of the {alignment_of(pointee)} bytes that {_elements(pointee)} need"
        hint = "pass a copy, or a part that begins at a whole vector"
        raise slot.refuse(value, why, hint)


def settle_rare(
    slot: PointerSlot, value: Any, call: Call, memory_of: Callable[..., Memory | None]
) -> int | Callable[[], int]:
    """The address of memory borrowed through DLPack, or of the device copy of a wrapped host array.

    Args:
        slot, value, call: As in `Slot.settle`.
        memory_of: That of `launcher`, which imports this module.

    Raises:
        ArgumentError: The argument is neither, or its memory does not fit.
        Unfit: The wrapped array cannot be passed as it is.
    """
    from .memory import copy_around, is_wrapper  # here: most programs need neither

    if is_wrapper(value):
        memory = memory_of(value.value)
        if memory is None and (memory := memory_of(value.value, "__array_interface__")) is not None:
            memory = memory._replace(address=0)  # the copy on the device has another
        if memory is None:
            raise misfit(slot, value)
        check_memory(slot, value.value, memory)
        if slot.code[:2] == "*k" and not getattr(value, "copy_input", True):
            why = "cuda.Out copies nothing to the device, and the parameter is const"
            raise slot.refuse(value, why, "wrap it in cuda.In()")
        return copy_around(value, call)
    borrowed = None
    if _is_dlpack(value):
        from .dlpack import borrow

        try:
            borrowed = borrow(value, call.handle)
        except (BufferError, TypeError, RuntimeError, ValueError) as error:
            why = f"its __dlpack__ raised: {str(error).partition(chr(10))[0]}"
            raise slot.refuse(value, why, "pass an array on this device that DLPack can export") from error
    if borrowed is None:
        raise misfit(slot, value)
    memory, capsule = borrowed
    call.borrowed.append(capsule)
    check_memory(slot, value, memory)
    return memory.address


def misfit(slot: PointerSlot, value: Any) -> ArgumentError:
    """Make the error for an argument that is not device memory."""
    why, hint = "a pointer takes a device array, None or ctypes.c_void_p", "check the order of the arguments"
    if hasattr(value, "__array_interface__") or _is_dlpack(value):
        why = "its memory is on the host"
        hint = "copy it with cuda.to_device(), or wrap it in cuda.In(), cuda.Out() or cuda.InOut()"
    elif isinstance(value, (list, tuple)):
        why = "it is not an array"
        hint = "pass arrays one by one; make one of numbers: cupy.array(...), torch.tensor(..., device='cuda')"
    elif isinstance(value, int):
        why = "a pointer takes a device array or None, not a bare integer"
        hint += "; an address goes as ctypes.c_void_p(address)"
    return slot.refuse(value, why, hint)


def fits(pointee: str, element: str, item_bytes: int) -> bool:
    """Check whether an array with such elements may be passed for a pointer to `pointee`.

    Args:
        pointee: Type code of the pointer without `*` and `k`.
        element: Type code of the array's elements.
        item_bytes: Size of one element; a record fits vectors and complex numbers of its size.
    """
    if element == "o" and pointee not in TAKE_ANY:
        return item_bytes == CODE_SIZES[pointee] and pointee[0] in "vc"
    return pointee in TAKE_ANY or element in elements_of(pointee)


def elements_of(pointee: str) -> set[str]:
    """The type codes of elements that fit a pointer to `pointee`, for a pointee that does not accept all types."""
    own = pointee[-2:]
    found = {pointee, own, CARRIERS.get(own, own), {"v2f4": "c4", "v2f8": "c8"}.get(pointee, own)}
    return found | {f"i{own[1]}"} if own[0] == "u" else found


def alignment_of(pointee: str) -> int:
    """The alignment in bytes to require of memory for a pointer to `pointee`; a power of two.

    An array is always aligned for its own elements; only a pointer to vectors of them needs more.
    """
    if pointee[0] != "v":
        return 1
    count, component_bytes = int(pointee[1]), SCALAR_SIZES[pointee[2:]]
    return component_bytes if count in (1, 3) else min(count * component_bytes, 16)


def is_dense(memory: Memory, strides: tuple[int, ...]) -> bool:
    """Check whether the elements are contiguous in C or Fortran order; True for empty arrays."""
    if 0 in memory.shape:
        return True
    axes = [axis for axis in zip(memory.shape, strides, strict=True) if axis[0] != 1]
    return is_packed(axes, memory.item_bytes) or is_packed(axes[::-1], memory.item_bytes)


def _is_dlpack(value: Any) -> bool:
    return hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__")


def _elements(pointee: str) -> str:
    if pointee[0] == "v":
        return f"vectors of {pointee[1]} x {NUMPY_NAMES[pointee[2:]]}"
    return NUMPY_NAMES[pointee]


def _retype_hint(pointee: str, value: object) -> str:
    element = pointee[2:] if pointee[0] == "v" else pointee
    if element in CARRIERS:
        return f"NumPy has no such type: pass an array of {NUMPY_NAMES[CARRIERS[element]]} that holds its bits"
    if hasattr(value, "astype"):
        return f"convert it with .astype({NUMPY_NAMES[element]!r}), or change the parameter"
    if hasattr(value, "to"):
        name = NUMPY_NAMES[element]
        return f"convert it with .to(torch.{name if element == 'u1' else name.lstrip('u')}), or change the parameter"
    return f"make it from a host array of {NUMPY_NAMES[element]}, or change the parameter"
