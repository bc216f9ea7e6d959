"""Check each argument of a launch against its parameter, and convert it to the values that `struct` packs.

Promise     `Slot.settle` is the complete check of one argument. It returns an address only if the memory is reachable
            from this launch's device, its elements fit the pointee, it is writable where the kernel may write, and it
            is contiguous (unless `strided`). A bare integer is never taken as an address. This module has only the
            code for the commonest types; the rest is imported with the first argument of another type.
Method      `memory_of` reads the device memory of an argument. Actions that an argument needs (wait for a stream, make
            a copy) are collected on the `Call`, and run after all arguments are checked.
Not here    Numbers that need a conversion (`scalars`); rarer kinds of memory (`memory`), rarer pairs of memory and
            pointer (`pointers`); Numba's arguments, which take several parameters (`typed`).
Source      CUDA Array Interface v3: stream 1 is the legacy default stream, 2 the per-thread one; None needs no wait.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import ArgumentError
from ..model import NamedTuple
from ..model.artifact import SCALAR_SIZES, Parameter
from . import Dim3
from .devices import check_interpreter, stream_handle, stream_identity

if TYPE_CHECKING:
    from .launcher import Launcher

STRUCT_LETTERS = {
    "b1": "?", "i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q",
    "f2": "e", "bf": "H", "f4": "f", "f8": "d", "c4": "ff", "c8": "dd", "e4": "B", "e5": "B",
}  # fmt: skip
"""The `struct` letter of each scalar code; bfloat16 and fp8 as the integer that has their bits."""

CARRIERS = {"bf": "u2", "e4": "u1", "e5": "u1"}
"""Type codes that NumPy lacks, with the unsigned integer of the same size whose arrays hold their bits."""

NUMPY_NAMES = {
    "b1": "bool", "i1": "int8", "i2": "int16", "i4": "int32", "i8": "int64",
    "u1": "uint8", "u2": "uint16", "u4": "uint32", "u8": "uint64",
    "f2": "float16", "f4": "float32", "f8": "float64", "c4": "complex64", "c8": "complex128",
    "bf": "bfloat16", "e4": "float8_e4m3fn", "e5": "float8_e5m2",
}  # fmt: skip
"""NumPy's name of each scalar code; for the last three the name in ml_dtypes and PyTorch."""

CODES = {name: code for code, name in NUMPY_NAMES.items()}

_TYPESTRS = {
    "|b1": "b1", "|i1": "i1", "|u1": "u1", "<i2": "i2", "<u2": "u2", "<i4": "i4", "<u4": "u4", "<i8": "i8",
    "<u8": "u8", "<f2": "f2", "<f4": "f4", "<f8": "f8", "<c8": "c4", "<c16": "c8",
}  # fmt: skip
"""The type code of each `typestr` of an array interface, so that NumPy need not be imported for them."""

_TOO_LARGE = {
    "f2": 2.0**15 * (2 - 2.0**-11),
    "bf": 2.0**127 * (2 - 2.0**-8),
    "f4": 2.0**127 * (2 - 2.0**-24),
    "f8": 2**1024 - 2**970,  # an integer: Python compares integers with floats exactly
    "e4": 464.00000000000006,  # above 464, which is halfway between 448 (even) and NaN
    "e5": 2.0**15 * (2 - 2.0**-3),
}
"""The smallest magnitude that would round beyond the largest finite value of each format."""

_EXACT = {"i": (int,), "u": (int,), "f": (float, int), "b": (bool,)}
"""Python types whose values `struct` packs as the converters would, within bounds; by the first letter of the code."""


class Call(NamedTuple):
    """One launch on its slow path.

    Args:
        shape: Grid, block and shared memory.
        handle: Handle of the launch stream.
        stream: The launch stream as the user gave it.
        arguments: Arguments of the launch.
        before: Functions to call before the launch, in order.
        after: Functions to call after it: copies back to the host.
        borrowed: Objects to keep alive until the launch is queued.
    """

    shape: tuple[Dim3, Dim3, int]
    handle: int
    stream: Any
    arguments: tuple[Any, ...]
    before: list[Callable[[], object]]
    after: list[Callable[[], object]]
    borrowed: list[object]


Settle: TypeAlias = Callable[[Any, int, Call | None], Any]
"""Checks one argument: called with the argument, the launch stream (`devices.stream_identity`) and the `Call`. Returns
the value that `struct` packs (`struct_format`), or a tuple of values; for an address that is known only after
`Call.before`, a function that returns it. Called with None for the `Call`, it returns None if it needs one."""


class Slot:
    """Checks and converts one argument.

    Attributes:
        settle: Checks one argument.
        launcher: The launcher of the kernel.
    """

    settle: Settle
    launcher: Launcher


class ParameterSlot(Slot):
    """The slot of one parameter of a kernel.

    Args:
        launcher: The launcher of the kernel.
        position: Position of the parameter, counted from 1.
        declared: The parameter as the compiler reported it.
    """

    def __init__(self, launcher: Launcher, position: int, declared: Parameter) -> None:
        self.launcher, self.position, self.declared = launcher, position, declared
        self.code = declared.code
        self.pointee = self.code.lstrip("*k")  # what a pointer points to
        self._convert: Callable[[Any], Any] | None = None

    @property
    def convert(self) -> Callable[[Any], Any]:
        """The converter of values, which checks one and returns a number or bytes."""
        if self._convert is None:
            check_interpreter()
            from .scalars import converter_for

            self._convert = converter_for(self)
        return self._convert

    def refuse(self, value: object, why: str, hint: str = "") -> ArgumentError:
        """Make the error for `value`."""
        check_interpreter()
        from .failures import argument_error

        return argument_error(self, value, why, hint)


class ValueSlot(ParameterSlot):
    """The slot of a parameter passed by value."""

    _exact: Any = None  # set at the first launch

    def settle(self, value: Any, _stream_id: int, _call: Call | None) -> Any:
        """Check one argument; see `Settle`."""
        if self._exact is None:
            self._exact = _exact_of(self.code)
        types, below, above = self._exact
        if type(value) in types and below < value < above:
            return value
        number = self.convert(value)
        return (number.real, number.imag) if self.code[0] == "c" else number


@functools.cache
def _exact_of(code: str) -> tuple[tuple[type, ...], float, float]:
    """The Python types that `struct` packs for this code without conversion, and exclusive bounds of their values."""
    types = () if code in CARRIERS else _EXACT.get(code[0], ())
    return types, *(bounds_of(code) if types else (0, 0))


def bounds_of(code: str) -> tuple[float, float]:
    """The exclusive bounds of the numbers that a scalar of this code can hold."""
    if code[0] not in "iu":
        above = 2 if code == "b1" else _TOO_LARGE[code]
        return -above, above
    above = 1 << 8 * SCALAR_SIZES[code] - (code[0] == "i")
    return (-above if code[0] == "i" else 0) - 1, above


@functools.lru_cache(maxsize=256)
def struct_format(parameters: tuple[Parameter, ...]) -> str:
    """The `struct` format of a parameter buffer: native byte order, padding only as the offsets require."""
    text, end = "=", 0
    for offset, size, code, _c_type, _name in parameters:
        letters = "Q" if code[0] == "*" or (code == "?" and size == 8) else STRUCT_LETTERS.get(code) or f"{size}s"
        text += "x" * (offset - end) + letters
        end = offset + size
    return text


# -- pointers ------------------------------------------------------------------------------------------


_WORDS = 1 << 64


class Unfit(Exception):
    """Raised for memory that cannot be passed, with the reason and a hint."""

    def __init__(self, why: str, hint: str = "") -> None:
        super().__init__(why, hint)
        self.why, self.hint = why, hint


class Memory(NamedTuple):
    """The device memory of an argument. A tuple for speed, since each launch makes some.

    Args:
        address: Address of its first element.
        element: Type code of its elements; None for raw memory, which fits every pointee.
        item_bytes: Size of one element.
        shape: Extents.
        strides: Bytes between neighbours along each axis; None if it is C-contiguous.
        readonly: Whether the memory must not be written.
        device: Ordinal of its device; None if the argument does not state it.
        stream: Handle of the stream that writes it; None if the launch need not wait.
    """

    address: int
    element: str | None = None
    item_bytes: int = 1
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] | None = None
    readonly: bool = False
    device: int | None = None
    stream: int | None = None


_new = tuple.__new__  # the constructor of a named tuple takes three times as long


class PointerSlot(ParameterSlot):
    """The slot of a parameter that takes a pointer."""

    def settle(self, value: Any, stream_id: int, call: Call | None = None) -> Any:
        """Check one argument; see `Settle`.

        Raises:
            ArgumentError: The argument does not fit.
        """
        try:
            memory = memory_of(value)
            if memory is None:
                if call is None:
                    return None
                check_interpreter()
                from .pointers import settle_rare

                return settle_rare(self, value, call)
        except Unfit as unfit:
            raise self.refuse(value, unfit.why, unfit.hint) from unfit.__cause__
        address, element, _item_bytes, _shape, strides, readonly, device, stream = memory
        module = self.launcher.module
        if (element is not None and (element != self.pointee or strides is not None or readonly)) or (
            module.device_of is not None and device != module.device.ordinal
        ):
            check_interpreter()
            from .pointers import check_memory

            check_memory(self, value, memory)
        if stream is not None and stream_identity(stream) != stream_id:
            if call is None:
                return None
            call.before.append(functools.partial(module.waits.enqueue_wait, stream, call.handle))
        return address


class WordSlot(PointerSlot):
    """The slot of eight bytes of unknown type: a pointer, or a scalar whose bytes are certain."""

    def settle(self, value: Any, stream_id: int, call: Call | None = None) -> Any:
        """Check one argument; see `Settle`."""
        try:
            return int.from_bytes(self.convert(value), "little")
        except ArgumentError:
            if isinstance(value, (int, float, complex)):
                raise
        return super().settle(value, stream_id, call)


_rare_memory: Any = None


def memory_of(value: Any, protocol: str = "__cuda_array_interface__") -> Memory | None:
    """Read the device memory of an argument; None if it has no interface for device memory.

    Arrays of Numba, CuPy and PyTorch are read directly: CuPy's array interface is slow, PyTorch's refuses
    `requires_grad` and has no bfloat16. For all others their array interface is read. No library is imported for it.

    Args:
        value: The argument.
        protocol: Name of the interface attribute, for arrays on the device or on the host.

    Raises:
        Unfit: The argument is memory, but cannot be passed as it is.
    """
    if value is None:
        return Memory(0)
    if getattr(value, "__cuda_ndarray__", False):  # an array of Numba
        dtype, stream = value.dtype, value.stream
        producer = None if type(stream) is int and stream == 0 else stream_handle(stream)
        strides = None if value.is_c_contiguous() else value.strides
        address = value.gpu_data.device_ctypes_pointer.value or 0
        code = element_of_dtype(dtype)
        return _new(Memory, (address, code, dtype.itemsize, value.shape, strides, False, None, producer))
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if cupy is not None and type(value) is cupy.ndarray and hasattr(value, "_c_contiguous"):
        data, dtype, strides = value.data, value.dtype, None if value._c_contiguous else value.strides
        stream, code = cupy.cuda.get_current_stream().ptr, element_of_dtype(dtype)
        return _new(Memory, (data.ptr, code, dtype.itemsize, value.shape, strides, False, data.device_id, stream))
    is_tensor = torch is not None and isinstance(value, torch.Tensor)
    interface = None if is_tensor else getattr(value, protocol, None)
    if interface is None:
        global _rare_memory
        if _rare_memory is None:
            check_interpreter()
            from .memory import rare_memory as _rare_memory  # kept: repeating an import statement takes time
        rare: Memory | None = _rare_memory(value)
        return rare
    try:
        if interface.get("mask") is not None:
            raise Unfit("it is a masked array", "pass its data and its mask as two arguments")
        element, data = _TYPESTRS.get(interface["typestr"]), interface.get("data")
        if element is None:
            check_interpreter()
            from .memory import read_typestr

            element, item_bytes = read_typestr(value, interface["typestr"])
        else:
            item_bytes = SCALAR_SIZES[element]
        address, is_readonly = data if data is not None else (0, False)
        if type(address) is not int or not 0 <= address < _WORDS:
            address = _word(address, "address")
        shape, strides, producer = interface["shape"], interface.get("strides"), interface.get("stream")
        if strides is not None and len(strides) != len(shape):
            raise ValueError(f"{len(strides)} strides for {len(shape)} axes")
        if producer is not None and (type(producer) is not int or producer < 0):
            producer = _word(producer, "stream")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        why = f"its {protocol} is not valid: {type(error).__name__}: {error}"
        raise Unfit(why, "it has shape, typestr, data = (address, is read-only), and perhaps strides") from error
    return _new(Memory, (address, element, item_bytes, shape, strides, bool(is_readonly), None, producer))


def _word(number: Any, what: str) -> int:
    """Read an unsigned number of 64 bits; None means 0."""
    found = 0 if number is None else operator.index(number)
    if not 0 <= found < _WORDS:
        raise ValueError(f"{found} is not a valid {what}")
    return found


@functools.lru_cache(maxsize=256)
def element_of_dtype(dtype: Any) -> str:
    """The type code of a NumPy dtype, `"o"` for records; `""` where C++ has no such type (big-endian, dates)."""
    if not dtype.isnative:
        return ""
    return CODES.get(dtype.name) or ("o" if dtype.kind == "V" else "")
