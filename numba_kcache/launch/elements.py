"""Element types of arrays as words of the parameter vocabulary, and which of them fit a pointee.

Promise     `fits` is the whole rule by which an array may stand behind a pointer. It holds for every library,
            since each library's type is first read as one word (`element_of_dtype`, `element_of_torch`).
Ground      C++ forbids reading an object through another type except char, unsigned char and std::byte;
            the vector types are structs of their component (CUDA C++ Programming Guide, "Built-in Vector
            Types"), and cuFloatComplex is float2.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ..model.parameter import CODE_SIZES, SCALAR_SIZES

NUMPY_NAMES = {
    "b1": "bool", "i1": "int8", "i2": "int16", "i4": "int32", "i8": "int64",
    "u1": "uint8", "u2": "uint16", "u4": "uint32", "u8": "uint64",
    "f2": "float16", "f4": "float32", "f8": "float64", "c4": "complex64", "c8": "complex128",
    "bf": "bfloat16", "e4": "float8_e4m3fn", "e5": "float8_e5m2",
}  # fmt: skip
"""What NumPy, and ml_dtypes and PyTorch for the last three, call each scalar code."""

TYPESTRS = {
    "b1": "|b1", "i1": "|i1", "u1": "|u1", "i2": "<i2", "u2": "<u2", "i4": "<i4", "u4": "<u4", "i8": "<i8",
    "u8": "<u8", "f2": "<f2", "f4": "<f4", "f8": "<f8", "c4": "<c8", "c8": "<c16",
}  # fmt: skip
"""How a dtype of elements of each code spells itself, and an array interface its elements."""

_BY_NAME = {name: code for code, name in NUMPY_NAMES.items()}

TAKE_ANY = ("?", "o", "i1", "u1")
"""Pointees through which C++ may read memory of any type."""

CARRIERS = {"bf": "u2", "e4": "u1", "e5": "u1"}
"""NumPy has no such types: arrays of the unsigned integer of the same size carry them."""


@lru_cache(maxsize=256)
def element_of_dtype(dtype: Any) -> str:
    """The code of a NumPy dtype, `"o"` for records; `""` where C++ has no word for it (big-endian, dates)."""
    if not dtype.isnative:
        return ""
    return _BY_NAME.get(dtype.name) or ("o" if dtype.kind == "V" else "")


def element_of_torch(dtype: Any) -> str:
    """The code of a `torch.dtype`, read from its text (`torch.float32`)."""
    return _BY_NAME.get(str(dtype).removeprefix("torch."), "")


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
