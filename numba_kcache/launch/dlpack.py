"""Read the device arrays of other libraries over DLPack.

Promise     `borrow` passes the consuming stream to the exporter, which orders its own work before it on the device. The
            capsule is not consumed: when it is freed, the exporter's deleter runs, and the exporter may use the memory
            for something else.
Source      dlpack.h 1.x: DLTensor, DLManagedTensor ("dltensor"), DLManagedTensorVersioned
            ("dltensor_versioned"); stream 1 is the legacy default stream, 2 the per-thread one.
            JAX 0.10 exports no versioned capsule, and so no flag for memory that must not be written.
"""

from __future__ import annotations

import ctypes
from typing import Any

from . import Memory, is_immutable

_CUDA, _CUDA_HOST, _CUDA_MANAGED = 2, 3, 13  # the kinds of devices whose memory a kernel can access
_READ_ONLY = 1
_SCALARS = {0: ("i", 8), 1: ("u", 8), 2: ("f", 8), 5: ("c", 16), 6: ("b", 8)}
"""For each DLPack type code the letter of our type code, and the divisor of the number of bits that gives its digit."""

_SMALL_FLOATS = {4: "bf", 10: "e4", 12: "e5"}  # kDLBfloat, kDLFloat8_e4m3fn, kDLFloat8_e5m2


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    )


_pointer_of = ctypes.PyDLL(None).PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


def borrow(value: Any, stream: int) -> tuple[Memory, object] | None:
    """Get an exporter's tensor for use on `stream`; None if its memory cannot be reached by kernels.

    The capsule, returned with the memory, keeps the tensor alive.

    Args:
        value: An object with `__dlpack__` and `__dlpack_device__`.
        stream: The launch stream's handle.

    Raises:
        Exception: Of any type, from the exporter, mostly BufferError; ValueError for another major version of DLPack.
    """
    kind, device = value.__dlpack_device__()
    if int(kind) not in (_CUDA, _CUDA_HOST, _CUDA_MANAGED):
        return None
    try:
        capsule = value.__dlpack__(stream=stream or 1, max_version=(1, 0))
    except TypeError:  # before DLPack 1.0 there was no max_version
        capsule = value.__dlpack__(stream=stream or 1)
    try:
        managed = _Versioned.from_address(_pointer_of(capsule, b"dltensor_versioned"))
    except ValueError:  # the name of an unversioned capsule is different
        tensor, readonly = _DLTensor.from_address(_pointer_of(capsule, b"dltensor")), False
    else:
        if managed.major != 1:
            raise ValueError(f"it uses DLPack version {managed.major}")
        tensor, readonly = managed.tensor, bool(managed.flags & _READ_ONLY)
    item_bytes = tensor.bits * tensor.lanes // 8
    memory = Memory(
        (tensor.data or 0) + tensor.byte_offset,
        _element(tensor),
        item_bytes,
        tuple(tensor.shape[: tensor.ndim]),
        tuple(step * item_bytes for step in tensor.strides[: tensor.ndim]) if tensor.strides else None,
        readonly or is_immutable(type(value)),
        int(device) if int(kind) == _CUDA else None,
    )
    return memory, capsule


def _element(tensor: _DLTensor) -> str:
    """The type code of the elements; `""` for types that no kernel parameter can have."""
    letter, divisor = _SCALARS.get(tensor.code, ("", 1))
    scalar = f"{letter}{tensor.bits // divisor}" if letter else _SMALL_FLOATS.get(tensor.code, "")
    return scalar if tensor.lanes == 1 or not scalar else f"v{tensor.lanes}{scalar}"


def borrowed_of(value: Any, handle: int) -> tuple[Memory, object] | None:
    """The memory of an array over DLPack, ordered before a stream, with what keeps it alive; None if DLPack refuses."""
    try:
        return borrow(value, handle)
    except (BufferError, TypeError, RuntimeError, ValueError):  # Numba's own launch gives its own error
        return None
