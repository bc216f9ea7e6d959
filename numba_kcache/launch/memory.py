"""Device memory that an argument stands for, read from the objects of each library.

Promise     `memory_of` returns a `Memory` for whatever is device memory, None for what is not, and raises
            `Unfit` for device memory that no kernel can use as it lies (masked, lazily conjugated). No
            library is imported: whose object is passed is already there. The element types of all libraries become
            the codes of the parameter vocabulary (model.artifact).
Method      Numba and PyTorch are read directly: PyTorch's array interface is slow, refuses `requires_grad`
            and has no bfloat16. All others are asked for `__cuda_array_interface__`.
Ground      CUDA Array Interface v3: streams 1 and 2 are the default ones; None asks for no wait.
"""

from __future__ import annotations

import ctypes
import sys
from functools import lru_cache
from typing import Any, NamedTuple

from ..model.artifact import SCALAR_SIZES
from .streams import stream_handle

NUMPY_NAMES = {
    "b1": "bool", "i1": "int8", "i2": "int16", "i4": "int32", "i8": "int64",
    "u1": "uint8", "u2": "uint16", "u4": "uint32", "u8": "uint64",
    "f2": "float16", "f4": "float32", "f8": "float64", "c4": "complex64", "c8": "complex128",
    "bf": "bfloat16", "e4": "float8_e4m3fn", "e5": "float8_e5m2",
}  # fmt: skip
"""Each scalar code's name in NumPy; that of the last three in ml_dtypes and PyTorch."""

TYPESTRS = {
    "b1": "|b1", "i1": "|i1", "u1": "|u1", "i2": "<i2", "u2": "<u2", "i4": "<i4", "u4": "<u4", "i8": "<i8",
    "u8": "<u8", "f2": "<f2", "f4": "<f4", "f8": "<f8", "c4": "<c8", "c8": "<c16",
}  # fmt: skip
"""The `typestr` of each code in an array interface."""

CARRIERS = {"bf": "u2", "e4": "u1", "e5": "u1"}
"""NumPy has no such types: arrays of the unsigned integer of the same size carry them."""

_BY_NAME = {name: code for code, name in NUMPY_NAMES.items()}


class Unfit(Exception):
    """Device memory that cannot be passed; says why and what to do."""

    def __init__(self, why: str, hint: str = "") -> None:
        super().__init__(why, hint)
        self.why, self.hint = why, hint


class Memory(NamedTuple):
    """Device memory that an argument stands for. A tuple, because each launch makes some.

    Args:
        address: Of its first element.
        element: Code of its elements (`elements`); None for raw memory, which fits every pointee.
        item_bytes: Size of one element.
        shape: Extents.
        strides: Bytes between neighbours along each axis; None where it is C-contiguous.
        readonly: Whether writing to it is forbidden.
        device: Its device's ordinal; None where the argument does not say.
        stream: Handle of the stream that produces it; None where there is nothing to wait for.
        owner: To be kept until the launch is queued.
    """

    address: int
    element: str | None = None
    item_bytes: int = 1
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] | None = None
    readonly: bool = False
    device: int | None = None
    stream: int | None = None
    owner: Any = None


def memory_of(value: Any) -> Memory | None:
    """The device memory that `value` stands for, or None where it says of itself that it is none.

    Raises:
        Unfit: It is, but cannot be passed as it is.
    """
    if value is None:
        return Memory(0)
    for read in (_numba, _torch, _array_interface, _address):
        memory = read(value)
        if memory is not None:
            return memory
    return None


def _address(value: Any) -> Memory | None:
    """Addresses that have a type of their own; nothing is known of what lies there."""
    if isinstance(value, ctypes.c_void_p):
        return Memory(value.value or 0)
    kind = type(value)
    if kind.__module__ == "numpy" and kind.__name__ in ("uint64", "ulonglong"):  # np.uintp
        return Memory(int(value))
    if kind.__name__ == "CUdeviceptr":
        return Memory(int(value))
    if kind.__module__.startswith("cuda.core") and hasattr(value, "memory_resource"):
        return Memory(int(value.handle), device=value.device_id, owner=value)
    return None


def _numba(value: Any) -> Memory | None:
    if not getattr(value, "__cuda_memory__", False):
        return None
    address = value.device_ctypes_pointer.value or 0
    if not getattr(value, "__cuda_ndarray__", False):
        return Memory(address, owner=value)
    dtype, stream = value.dtype, value.stream
    return Memory(
        address,
        element_of_dtype(dtype),
        dtype.itemsize,
        value.shape,
        None if value.flags["C_CONTIGUOUS"] else value.strides,
        stream=None if type(stream) is int and stream == 0 else stream_handle(stream),
        owner=value,
    )


def _torch(value: Any) -> Memory | None:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return None
    if not value.is_cuda:
        raise Unfit(
            f"the tensor is on {value.device.type}",
            'move it with .to("cuda"); a number goes with .item()',
        )
    if value.layout is not torch.strided:
        raise Unfit(f"its layout is {value.layout}", "pass its parts, or .to_dense()")
    if value.is_conj() or value.is_neg():
        raise Unfit("it is conjugated or negated only on paper", "call .resolve_conj() or .resolve_neg() first")
    index = value.get_device()
    item_bytes = value.element_size()
    return Memory(
        _torch_address(value),
        element_of_torch(value.dtype),
        item_bytes,
        tuple(value.shape),
        None if value.is_contiguous() else tuple(step * item_bytes for step in value.stride()),
        device=index,
        stream=torch_stream(torch)(index),
        owner=value,
    )


@lru_cache(maxsize=256)
def element_of_dtype(dtype: Any) -> str:
    """The code of a NumPy dtype, `"o"` for records; `""` where C++ has no word for it (big-endian, dates)."""
    if not dtype.isnative:
        return ""
    return _BY_NAME.get(dtype.name) or ("o" if dtype.kind == "V" else "")


def element_of_torch(dtype: Any) -> str:
    """The code of a `torch.dtype`, read from its text (`torch.float32`)."""
    return _BY_NAME.get(str(dtype).removeprefix("torch."), "")


def torch_stream(torch: Any) -> Any:
    """PyTorch's way from a device's ordinal to the handle of its current stream; the quick one if it can."""
    quick = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return quick or (lambda index: torch.cuda.current_stream(index).cuda_stream)


def _torch_address(value: Any) -> int:
    try:
        return int(value.data_ptr())
    except RuntimeError as error:  # fake, wrapped and functional tensors have no storage
        raise Unfit(f"the tensor has no memory: {str(error).splitlines()[0]}") from error


def _array_interface(value: Any) -> Memory | None:
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is None:
        return None
    if interface.get("mask") is not None:
        raise Unfit("it is a masked array", "pass its data and its mask as two arguments")
    return from_interface(value, interface, address=interface["data"][0] or 0)


def from_interface(value: Any, interface: dict[str, Any], *, address: int) -> Memory:
    """The memory that an array interface describes, on the device or on the host."""
    element, item_bytes = _element_of_typestr(interface["typestr"])
    if element == "o":  # bfloat16, fp8 and records say what they are only in their own dtype
        element = _element_of_own(getattr(value, "dtype", None))
    data = interface.get("data")
    return Memory(
        address,
        element,
        item_bytes,
        interface["shape"],
        interface.get("strides"),
        data is not None and bool(data[1]),
        stream=interface.get("stream"),
        owner=value,
    )


_BY_TYPESTR = {typestr: (code, SCALAR_SIZES[code]) for code, typestr in TYPESTRS.items()}


@lru_cache(maxsize=256)
def _element_of_typestr(typestr: str) -> tuple[str, int]:
    known = _BY_TYPESTR.get(typestr)
    if known is not None:  # a program whose arrays need no NumPy does not import it for this
        return known
    import numpy

    dtype = numpy.dtype(typestr)
    return element_of_dtype(dtype), dtype.itemsize


def _element_of_own(dtype: Any) -> str:
    import numpy

    return element_of_dtype(dtype) if isinstance(dtype, numpy.dtype) else "o"
