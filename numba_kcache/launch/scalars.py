"""Convert arguments passed by value (numbers, vectors, structs) to the values that `struct` packs.

Promise     A number is accepted only if the parameter's type can hold it: integers exactly, floats rounded to
            nearest but never to infinity; a float is not accepted for an integer, nor a complex for a real number.
            Values whose bytes are not certain (a bare int where only a size is known) are refused.
Method      The components of a vector are converted one by one; for a struct, a small float and a complex number, bytes
            of the size are accepted. The compiler's types do not distinguish an enum from a struct, so for a struct
            NumPy scalars are accepted too.
Not here    Python numbers that need no conversion, which `ValueSlot` (launch) passes on directly.
Source      IEEE 754 round to nearest even; OCP 8-bit floating point: e4m3 ends at 448, e5m2 at 57344.
"""

from __future__ import annotations

import ctypes
import functools
import math
import numbers
import operator
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from . import NUMPY_NAMES, STRUCT_LETTERS, bounds_of

if TYPE_CHECKING:
    from .launcher import ParameterSlot

_SMALL_FLOATS = {"bf": (8, 7), "e4": (4, 3), "e5": (5, 2)}
"""Bits of exponent and mantissa of the formats that `struct` does not support."""

_CTYPES_NUMBERS = "?bBhHiIlLqQfdg"
"""The `_type_` codes of ctypes' numbers, without characters and pointers."""

_NO_NUMBER = object()


def converter_for(slot: ParameterSlot) -> Callable[[Any], Any]:
    """The converter for one parameter that is not a pointer: checks a value and returns a number or bytes."""
    if slot.code in STRUCT_LETTERS:
        return functools.partial(_scalar, slot, slot.code)
    return functools.partial(_bytes, slot)


def _scalar(slot: ParameterSlot, code: str, value: Any) -> Any:
    """The number to pack for a scalar code: that of the parameter, or of the components of a vector."""
    number = _texture_of(value) if code == "u8" and _is_texture(value) else _number(value)
    if number is _NO_NUMBER and code in "f2 bf e4 e5 c4 c8":
        with suppress(struct.error):  # no bytes, or of another size
            parts = struct.unpack("=" + STRUCT_LETTERS[code], _raw_bytes(value, scalars=False) or b"")
            return complex(*parts) if code[0] == "c" else parts[0]
    if code == "b1":
        if number is _NO_NUMBER or number not in (0, 1) or isinstance(number, (float, complex)):
            raise slot.refuse(value, "the parameter is a bool", "pass True or False")
        return bool(number)
    if code[0] == "c":
        part = "f4" if code == "c4" else "f8"
        if not isinstance(number, complex):
            return complex(_scalar(slot, part, value))
        return complex(_scalar(slot, part, number.real), _scalar(slot, part, number.imag))
    is_integer = code[0] in "iu"
    if number is _NO_NUMBER:
        raise slot.refuse(value, *_why_no_number(value, "an integer" if is_integer else "a number"))
    below, above = bounds_of(code)
    if is_integer:
        if isinstance(number, (float, complex)):
            raise slot.refuse(value, "the parameter is an integer", "convert it with int()")
        if not below < number < above:
            wider = "long long" if code[0] == "i" or number < 0 else "unsigned long long"
            hint = (
                "use a number in its range"
                if code[1] == "8"
                else f"declare it {wider} in the source, or pass another number"
            )
            raise slot.refuse(value, f"the parameter takes {below + 1} to {above - 1}", hint)
        return int(number)
    if isinstance(number, complex):
        raise slot.refuse(value, "the parameter is real", "pass .real or abs() of it")
    try:
        real = float(number)
    except OverflowError:
        raise slot.refuse(
            value, "it is too large for the parameter", "declare it double, or pass a smaller number"
        ) from None
    if abs(real) >= above and (math.isfinite(real) or code == "e4"):
        raise slot.refuse(value, "it is too large for the parameter", "declare it double, or pass a smaller number")
    return small_float_bits(real, *_SMALL_FLOATS[code]) if code in _SMALL_FLOATS else real


def _bytes(slot: ParameterSlot, value: Any) -> bytes:
    """The bytes to pack for vectors, structs and parameters of unknown type."""
    size, code = slot.declared.size, slot.code
    if code in ("v2f4", "v2f8") and isinstance(value, numbers.Complex) and not isinstance(value, numbers.Real):
        value = value.real, value.imag
    if code[0] == "v" and (isinstance(value, (tuple, list)) or (_is_numpy(value) and len(value.shape) == 1)):
        count, component = int(code[1]), code[2:]
        if len(value) != count:
            raise slot.refuse(
                value, f"the vector has {count} components, not {len(value)}", f"pass a tuple of {count} numbers"
            )
        values = [_scalar(slot, component, each) for each in value]
        if component[0] == "c":
            values = [part for each in values for part in (each.real, each.imag)]
        return struct.pack("=" + STRUCT_LETTERS[component] * count, *values)
    raw = _raw_bytes(value, scalars=code[0] != "v")
    if raw is None:
        raise slot.refuse(value, *_why_no_bytes(value, slot))
    if len(raw) != size:
        raise slot.refuse(
            value,
            f"it has {len(raw)} bytes, the parameter {size}",
            f"pass a NumPy record, a ctypes struct or {size} bytes",
        )
    return raw


def small_float_bits(value: float, exponent_bits: int, mantissa_bits: int) -> int:
    """The bits of a small float nearest to `value`, ties to even; `value` is within its range or not finite.

    Args:
        value: The number to round.
        exponent_bits: 8 for bfloat16, 4 for e4m3, 5 for e5m2. e4m3 has no infinity: it becomes NaN.
        mantissa_bits: 7, 3, 2.
    """
    sign = (math.copysign(1.0, value) < 0) << (exponent_bits + mantissa_bits)
    all_ones = (1 << exponent_bits) - 1 << mantissa_bits
    if not math.isfinite(value):
        if exponent_bits == 4:
            return sign | 0x7F
        return sign | all_ones | (0 if math.isinf(value) else 1 << (mantissa_bits - 1))
    magnitude = abs(value)
    bias = (1 << (exponent_bits - 1)) - 1
    exponent = max(math.frexp(magnitude)[1] - 1, 1 - bias)
    steps = round(math.ldexp(magnitude, mantissa_bits - exponent))  # units of the last mantissa bit; ties to even
    normal = steps >> mantissa_bits  # 0 for subnormals; a carry from rounding raises the exponent
    return sign | ((exponent + bias - 1) << mantissa_bits) + steps if normal else sign | steps


def _number(value: Any) -> Any:
    """Convert `value` to a Python number, if it is a number on the host; device arrays are not read."""
    if isinstance(value, numbers.Integral):  # int, bool, NumPy's integers
        return operator.index(value) if hasattr(value, "__index__") else _NO_NUMBER  # numpy.timedelta64 has none
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, numbers.Complex):
        return complex(value)
    if isinstance(value, ctypes._SimpleCData):
        letter = value._type_  # type: ignore[attr-defined]
        return _number(value.value) if letter in _CTYPES_NUMBERS else _NO_NUMBER
    if _is_numpy(value) and value.shape == ():
        if value.dtype.kind in "biufc":  # bool_, 0-d arrays
            return _number(value.item())
        if value.dtype.name in NUMPY_NAMES.values():  # bfloat16 and fp8 of ml_dtypes
            return float(value)
    return _NO_NUMBER


_TEXTURES = (
    "TextureObject",
    "SurfaceObject",
    "CUtexObject",
    "CUsurfObject",
    "cudaTextureObject_t",
    "cudaSurfaceObject_t",
)
"""CuPy's textures and surfaces, and the handles of cuda.bindings: in C++ each is an `unsigned long long`."""


def _is_texture(value: Any) -> bool:
    kind = type(value)
    return kind.__name__ in _TEXTURES and kind.__module__.startswith(("cupy.", "cuda."))


def _texture_of(value: Any) -> int:
    return int(getattr(value, "ptr", value))


def _is_numpy(value: Any) -> bool:
    return any(base.__module__ == "numpy" for base in type(value).__mro__)


def _raw_bytes(value: Any, *, scalars: bool) -> bytes | None:
    """The bytes of `value`, or None if its size or content is not certain."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, (ctypes.Structure, ctypes.Union, ctypes.Array)):
        return ctypes.string_at(ctypes.addressof(value), ctypes.sizeof(value))
    if scalars and isinstance(value, ctypes._SimpleCData):
        return bytes(value)
    if _is_numpy(value) and value.shape == () and value.dtype.kind not in "OSU":
        return value.tobytes() if scalars or value.dtype.kind in "Vc" else None
    if scalars and isinstance(value, bool):
        return bytes([value])
    if scalars and _is_texture(value):
        return _texture_of(value).to_bytes(8, "little")
    if type(value).__name__ == "CUtensorMap":
        return ctypes.string_at(int(value.getPtr()), 128)
    return None


def _why_no_number(value: Any, wanted: str) -> tuple[str, str]:
    names = {*dir(type(value)), *getattr(value, "__dict__", ())}  # no getattr: PyTorch's raises for some tensors
    if names & {"__cuda_array_interface__", "__dlpack__"}:
        return f"the parameter is {wanted}, not an array", "check the order of the arguments"
    if value is None:
        return f"the parameter is {wanted}", "pass a number; None means a null pointer only"
    if isinstance(value, (str, bytes)):
        return f"the parameter is {wanted}, not text", f"convert it with {'int' if 'integer' in wanted else 'float'}()"
    return f"the parameter is {wanted}", "pass a number of Python or NumPy"


def _why_no_bytes(value: Any, parameter: ParameterSlot) -> tuple[str, str]:
    code, size = parameter.code, parameter.declared.size
    if code == "?" and isinstance(value, (int, float, complex)):
        more = "" if parameter.launcher.typed else ", or give the kernel a signature"
        return (
            f"of this parameter only the size is known, {size} bytes, not whether it is an integer",
            "pass a NumPy or ctypes scalar of that size" + more,
        )
    if code[0] == "v":
        count, component = code[1], NUMPY_NAMES[code[2:]]
        return f"the parameter is a vector of {count} x {component}", f"pass a tuple of {count} numbers"
    return (
        f"the parameter is {size} bytes passed by value",
        "pass bytes, a NumPy record or scalar, or a ctypes struct of that size",
    )
