"""Device arrays over DLPack, for objects that speak nothing else.

Promise     `borrow` gives the exporter the stream that will use the tensor, and the exporter orders its own work before
            that, on the device. The capsule is kept, not consumed: when the `Memory` goes, the exporter's deleter runs.
Ground      dlpack.h 1.x: DLTensor, DLManagedTensor ("dltensor"), DLManagedTensorVersioned
            ("dltensor_versioned"); stream 1 is the legacy default stream, 2 the per-thread one.
"""

from __future__ import annotations

import ctypes
from typing import Any

from .memory import Memory

_CUDA, _CUDA_HOST, _CUDA_MANAGED = 2, 3, 13  # kinds of device whose memory a kernel can reach
_READ_ONLY = 1
_KINDS = {0: "i", 1: "u", 2: "f", 4: "bf", 5: "c", 6: "b"}
_FP8 = {10: "e4", 12: "e5"}  # kDLFloat8_e4m3fn, kDLFloat8_e5m2


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


_python = ctypes.PyDLL(None)
_pointer_of = _python.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_is_valid = _python.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)


def borrow(value: Any, stream: int) -> Memory | None:
    """Ask an exporter for its tensor, to be used on `stream`; None where that is in memory that no kernel reaches.

    Args:
        value: Has `__dlpack__` and `__dlpack_device__`.
        stream: The launch stream's handle.

    Raises:
        Whatever the exporter raises, BufferError mostly; ValueError where it speaks another major version.
    """
    kind, device = value.__dlpack_device__()
    if int(kind) not in (_CUDA, _CUDA_HOST, _CUDA_MANAGED):
        return None
    try:
        capsule = value.__dlpack__(stream=stream or 1, max_version=(1, 0))
    except TypeError:  # before DLPack 1.0 there was no max_version
        capsule = value.__dlpack__(stream=stream or 1)
    readonly = False
    if _is_valid(capsule, b"dltensor_versioned"):
        managed = _Versioned.from_address(_pointer_of(capsule, b"dltensor_versioned"))
        if managed.major != 1:
            raise ValueError(f"it speaks DLPack {managed.major}")
        tensor, readonly = managed.tensor, bool(managed.flags & _READ_ONLY)
    else:
        tensor = _DLTensor.from_address(_pointer_of(capsule, b"dltensor"))
    item_bytes = tensor.bits * tensor.lanes // 8
    return Memory(
        (tensor.data or 0) + tensor.byte_offset,
        _element(tensor),
        item_bytes,
        tuple(tensor.shape[: tensor.ndim]),
        tuple(step * item_bytes for step in tensor.strides[: tensor.ndim]) if tensor.strides else None,
        readonly,
        int(device) if int(kind) == _CUDA else None,
        owner=capsule,
    )


def _element(tensor: _DLTensor) -> str:
    scalar = _KINDS.get(tensor.code, "")
    if scalar in ("i", "u", "f", "b"):
        scalar += str(tensor.bits // 8)
    elif scalar == "c":
        scalar += str(tensor.bits // 16)
    elif tensor.bits == 8:
        scalar = _FP8.get(tensor.code, "")
    return scalar if tensor.lanes == 1 or not scalar else f"v{tensor.lanes}{scalar}"
