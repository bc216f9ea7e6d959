"""The device memory of rarer arguments: PyTorch's tensors, bare addresses, host arrays to copy to the device.

Promise     No library is imported: the library of an argument is imported already. A wrapped host array is checked
            on the host; it is copied, on the stream of the launch, once all arguments of the launch are checked, and
            copied back after the launch is queued.
Source      dlpack.h 1.3: DLPackExchangeAPI.
            numba-cuda 0.30.4, args.py: `to_device(retr, stream)` takes cuda.core's stream, and appends a function
            that copies back to the list `retr`.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

from ..model import SCALAR_SIZES
from . import CODES, NUMBA_CUDA_MODULE, NUMPY_NAMES, Call, Memory, Unfit, bindings, element_of_dtype

_MEMORY_TYPE, _IS_MANAGED, _DEVICE_ORDINAL = 2, 8, 9
"""Numbers of CU_POINTER_ATTRIBUTE names."""

_MEMORY_OF_DEVICE = 2  # CU_MEMORYTYPE_DEVICE

_DLPACK_CUDA = 2

_capsule = ctypes.PyDLL(None)  # handles of its own, so that the types of these functions change for no one else
_capsule.PyCapsule_GetName.restype, _capsule.PyCapsule_GetName.argtypes = ctypes.c_char_p, (ctypes.py_object,)
_capsule.PyCapsule_GetPointer.restype = ctypes.c_void_p
_capsule.PyCapsule_GetPointer.argtypes = ctypes.py_object, ctypes.c_char_p


def device_of(address: int, here: int | None = None) -> int | None:
    """The device that owns an address; None for memory that other devices or `here` can reach, or unknown addresses."""
    ask = bindings().cuPointerGetAttribute
    status, ordinal = ask(_DEVICE_ORDINAL, address)
    if status != 0 or ordinal == here or ask(_MEMORY_TYPE, address)[1] != _MEMORY_OF_DEVICE:
        return None
    status, managed = ask(_IS_MANAGED, address)
    return None if status == 0 and managed & 1 else ordinal


def rare_memory(value: Any) -> Memory | None:
    """The memory of an argument that is not a Numba array and has no array interface; None if it is not memory.

    Raises:
        Unfit: The memory cannot be passed as it is.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _tensor(value, torch)
    if getattr(value, "__cuda_memory__", False):  # a pointer of Numba
        return Memory(value.device_ctypes_pointer.value or 0)
    if isinstance(value, ctypes.c_void_p):
        return Memory(value.value or 0)
    kind = type(value)
    is_uintp = kind.__module__ == "numpy" and kind.__name__ in ("uint64", "ulonglong")
    if is_uintp or kind.__name__ == "CUdeviceptr":
        return Memory(int(value))
    if kind.__module__.startswith("cuda.core") and hasattr(value, "memory_resource"):
        return Memory(int(value.handle), device=value.device_id)
    return None


def mapped_memory(value: Any) -> Memory:
    """The memory of a mapped or managed array of Numba, which is one of NumPy too, or of a record on the device.

    Raises:
        Unfit: It is a part of such an array, or a result of NumPy's: Numba would pass the null pointer for it.
    """
    memory = getattr(value, "gpu_data", None)
    if memory is None:
        why = "NumPy made it, and its address on the device is not known"
        raise Unfit(why, "pass the whole mapped or managed array")
    dtype, strides = value.dtype, None if value.flags["C_CONTIGUOUS"] else value.strides
    address = memory.device_ctypes_pointer.value or 0
    return Memory(address, element_of_dtype(dtype), dtype.itemsize, value.shape, strides)


def _tensor(value: Any, torch: Any) -> Memory:
    if not value.is_cuda:
        raise Unfit(f"the tensor is on {value.device.type}", 'move it with .to("cuda"); a number goes with .item()')
    if value.layout is not torch.strided:
        raise Unfit(f"its layout is {value.layout}", "pass its parts, or .to_dense()")
    element = _element_of(value.dtype)
    if value.is_neg() or (element[:1] in ("c", "") and value.is_conj()):
        raise Unfit(
            "its conjugation or negation is still pending, so its memory has other values",
            "call .resolve_conj() or .resolve_neg() first",
        )
    try:
        address = int(value.data_ptr())
    except RuntimeError as error:  # fake, wrapped and functional tensors have no storage
        raise Unfit(f"the tensor has no memory: {str(error).splitlines()[0]}") from error
    if not address and 0 not in value.shape:  # true of wrappers as well, such as a DTensor
        raise Unfit(
            "the tensor has no memory: its storage was freed, or it wraps other tensors", "pass the wrapped tensor"
        )
    item_bytes = SCALAR_SIZES.get(element) or value.element_size()
    strides = None if value.is_contiguous() else tuple(step * item_bytes for step in value.stride())
    return tuple.__new__(Memory, (address, element, item_bytes, value.shape, strides, False, value.get_device()))


@lru_cache(maxsize=256)
def _element_of(dtype: Any) -> str:
    """The type code of a dtype of PyTorch; `""` where C++ has no such type."""
    return CODES.get(str(dtype).removeprefix("torch."), "")


def current_stream(value: Any, torch: Any, ordinal: int) -> int | None:
    """Handle of the current stream on a device of PyTorch, or of another library with DLPack's exchange API; None for
    memory of the host."""
    if torch is not None and isinstance(value, torch.Tensor):
        return int(torch.cuda.current_stream(ordinal).cuda_stream) if value.is_cuda else None
    return _exchanged_stream(type(value), ordinal)


@cache
def _exchange_function(kind: type) -> Any:
    """The function of DLPack's exchange API that gives the current stream of a device, as a ctypes function."""
    capsule: Any = getattr(kind, "__dlpack_c_exchange_api__", None)
    words = (ctypes.c_size_t * 7).from_address(
        _capsule.PyCapsule_GetPointer(capsule, _capsule.PyCapsule_GetName(capsule))
    )  # version, previous, functions
    return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))(words[6])


def _exchanged_stream(kind: type, ordinal: int) -> int | None:
    """Handle of the current stream of a device in the library of a type with DLPack's exchange API; None without one.

    Args:
        kind: The type of an array.
        ordinal: Ordinal of the device.
    """
    handle = ctypes.c_void_p()
    status = _exchange_function(kind)(_DLPACK_CUDA, ordinal, ctypes.byref(handle))
    return None if status else handle.value or 0


def read_typestr(value: Any, typestr: str) -> tuple[str, int]:
    """Type code and size in bytes of elements with a rarer `typestr`.

    Raises:
        Unfit: The typestr is not valid.
    """
    element, item_bytes = element_of_typestr(typestr)
    dtype, numpy = getattr(value, "dtype", None), sys.modules.get("numpy")
    if element == "o" and numpy is not None and isinstance(dtype, numpy.dtype):
        element = element_of_dtype(dtype)  # only the dtype identifies bfloat16, fp8 and records
    return element, item_bytes


@lru_cache(maxsize=256)
def element_of_typestr(typestr: str) -> tuple[str, int]:
    """Type code and size in bytes of elements; `"o"` for records, `""` where C++ has no such type.

    Raises:
        Unfit: The text is not a typestr.
    """
    order, kind, digits = typestr[:1], typestr[1:2], typestr[2:].partition("[")[0]  # as in "<M8[ns]"
    if order not in "<>|=" or not digits.isdecimal():
        raise Unfit(f"the typestr of its array interface is {typestr!r}", "a valid one is '<f4'")
    item_bytes = int(digits) * (4 if kind == "U" else 1)
    if kind == "V":
        return "o", item_bytes
    is_foreign = item_bytes > 1 and order == ("<" if sys.byteorder == "big" else ">")
    code = f"{kind}{item_bytes // 2 if kind == 'c' else item_bytes}"
    return "" if is_foreign or code not in NUMPY_NAMES else code, item_bytes


# -- host arrays ---------------------------------------------------------------------------------------


_MLIR = "numba_cuda_mlir.numba_cuda.args"
_WRAPPERS = ("numba.cuda.args", _MLIR)
"""The modules of the two Numbas that define `In`, `Out` and `InOut`."""


def is_wrapper(value: Any) -> bool:
    """True for Numba's `In`, `Out` and `InOut`, recognised by their module so that Numba is not imported."""
    return any(base.__module__ in _WRAPPERS for base in type(value).__mro__)


def copy_around(wrapper: Any, call: Call) -> Callable[[], int]:
    """Add to a call the copies of a wrapped array to the device and back. Returns a function for the address there."""
    copies: list[Any] = []

    def copy() -> None:
        handle = call.handle
        if NUMBA_CUDA_MODULE in sys.modules or type(wrapper).__module__ == _MLIR:
            from cuda.core import Stream

            stream = Stream.from_handle(handle)
        else:  # the wrapper belongs to the CUDA target built into Numba itself
            from numba.cuda import external_stream

            stream = external_stream(handle)
        copies.append(wrapper.to_device(call.after, stream))

    def address() -> int:
        pointer = getattr(copies[0], "device_ctypes_pointer", None)
        return int(copies[0].ptr if pointer is None else pointer.value or 0)

    call.before.append(copy)
    return address
