"""Check each argument of a launch against its parameter, and convert it to the values that `struct` packs.

Promise     `Slot.settle` is the complete check of one argument. It returns an address only if the memory is reachable
            from this launch's device, its elements fit the pointee, it is writable where the kernel may write, and it
            is contiguous (unless `strided`). A bare integer is never taken as an address. This module has only the
            code for the commonest types; the rest is imported with the first argument of another type.
            A launch without a stream is ordered like an operation of the library whose arrays it takes (`choose`).
Method      `memory_of` reads the device memory of an argument, `orders_of` the streams of all arguments. Copies that an
            argument needs are collected on the `Call`, and made after all arguments are checked.
Not here    Numbers that need a conversion (`scalars`); rarer kinds of memory (`memory`), rarer pairs of memory and
            pointer (`pointers`); Numba's arguments, which take several parameters (`typed`).
Source      CUDA Array Interface v3: stream 1 is the legacy default stream, 2 the per-thread one; None needs no wait.
            It names the stream of the last write, not the library's current stream. The per-thread default stream
            and the legacy one wait for each other (CUDA Driver API, "Stream synchronization behavior").
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import ArgumentError
from ..model import SCALAR_SIZES, NamedTuple, Parameter
from . import LEGACY_DEFAULT, Dim3, check_interpreter, stream_handle, stream_identity

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
        stream: The launch stream as the user gave it; None: the arguments decide; 0: Numba's default stream, whose
            launches are ordered with other libraries' streams.
        arguments: Arguments of the launch.
        before: Functions to call before the launch, in order.
        after: Functions to call after it: copies back to the host.
        borrowed: Objects to keep alive until the kernel has run.
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
    """

    address: int
    element: str | None = None
    item_bytes: int = 1
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] | None = None
    readonly: bool = False
    device: int | None = None


_new = tuple.__new__  # the constructor of a named tuple takes three times as long


class PointerSlot(ParameterSlot):
    """The slot of a parameter that takes a pointer."""

    def settle(self, value: Any, _stream_id: int, call: Call | None = None) -> Any:
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
        address, element, _item_bytes, _shape, strides, readonly, device = memory
        module = self.launcher.module
        if (element is not None and (element != self.pointee or strides is not None or readonly)) or (
            module.device_of is not None and device != module.device.ordinal
        ):
            check_interpreter()
            from .pointers import check_memory

            check_memory(self, value, memory)
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


_rare: Any = None
"""The module `memory`, once it is imported: repeating an import statement takes time."""


def _rarer() -> Any:
    global _rare
    check_interpreter()
    from . import memory as _rare

    return _rare


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
        dtype, strides = value.dtype, None if value.is_c_contiguous() else value.strides
        address = value.gpu_data.device_ctypes_pointer.value or 0
        return _new(Memory, (address, element_of_dtype(dtype), dtype.itemsize, value.shape, strides, False, None))
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if cupy is not None and type(value) is cupy.ndarray and hasattr(value, "_c_contiguous"):
        data, dtype, strides = value.data, value.dtype, None if value._c_contiguous else value.strides
        code = element_of_dtype(dtype)
        return _new(Memory, (data.ptr, code, dtype.itemsize, value.shape, strides, False, data.device_id))
    is_tensor = torch is not None and isinstance(value, torch.Tensor)
    interface = None if is_tensor else getattr(value, protocol, None)
    is_unordered = type(interface) is dict and "stream" not in interface and protocol == "__cuda_array_interface__"
    if interface is None or (is_unordered and hasattr(value, "__dlpack_device__")):
        rare: Memory | None = (_rare or _rarer()).rare_memory(value)
        return rare
    try:
        if interface.get("mask") is not None:
            raise Unfit("it is a masked array", "pass its data and its mask as two arguments")
        element, data = _TYPESTRS.get(interface["typestr"]), interface.get("data")
        if element is None:
            element, item_bytes = (_rare or _rarer()).read_typestr(value, interface["typestr"])
        else:
            item_bytes = SCALAR_SIZES[element]
        address, is_readonly = data if data is not None else (0, False)
        if type(address) is not int or not 0 <= address < _WORDS:
            address = _word(address, "address")
        shape, strides = interface["shape"], interface.get("strides")
        if strides is not None and len(strides) != len(shape):
            raise ValueError(f"{len(strides)} strides for {len(shape)} axes")
        if type(producer := interface.get("stream")) is not int and producer is not None:
            _word(producer, "stream")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        why = f"its {protocol} is not valid: {type(error).__name__}: {error}"
        raise Unfit(why, "it has shape, typestr, data = (address, is read-only), and perhaps strides") from error
    return _new(Memory, (address, element, item_bytes, shape, strides, bool(is_readonly), None))


def device_elsewhere(module: Any, memory: Memory) -> int | None:
    """The device of memory that the device of a module cannot reach; None for reachable memory."""
    device_of, here = module.device_of, module.device.ordinal
    if device_of is None or memory.device == here or not memory.address:
        return None
    device: int | None = device_of(memory.address) if memory.device is None else memory.device
    return None if device == here else device


def is_c_contiguous(memory: Memory) -> bool:
    """Check whether the elements are contiguous in C order; True for empty arrays."""
    if memory.strides is None or 0 in memory.shape:
        return True
    axes = [axis for axis in zip(memory.shape, memory.strides, strict=True) if axis[0] != 1]
    return is_packed(axes[::-1], memory.item_bytes)


def is_packed(axes: list[tuple[int, int]], item_bytes: int) -> bool:
    """Check whether the elements are contiguous along axes of (extent, stride), the innermost first."""
    expected = item_bytes
    for extent, stride in axes:
        if stride != expected:
            return False
        expected *= extent
    return True


def is_exported(value: Any) -> bool:
    """Check whether an array has an interface that says nothing about the order of writes to its memory, and DLPack,
    which is told the launch stream (JAX: its interface has version 2)."""
    interface = getattr(value, "__cuda_array_interface__", None) if hasattr(value, "__dlpack_device__") else None
    return type(interface) is dict and "stream" not in interface


def is_immutable(kind: type) -> bool:
    """Check whether arrays of a type must not be written: JAX's, whose memory XLA may share between arrays."""
    return kind.__module__.partition(".")[0] in ("jax", "jaxlib")


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


# -- streams -------------------------------------------------------------------------------------------


class Order(NamedTuple):
    """The stream by which an argument's library orders its work.

    Args:
        handle: Its handle; 0 for the legacy default stream.
        is_current: Whether later operations of the library go to it: its current stream, or that of a Numba array.
            False for the stream of an array interface, on which the memory was written.
        is_numba: Whether it is that of a Numba array.
    """

    handle: int
    is_current: bool
    is_numba: bool


def orders_of(arguments: Iterable[Any], ordinal: int) -> list[Order]:
    """The streams of the arguments that have one, in their order. No library is imported for it.

    Args:
        arguments: Arguments of a launch; tuples may contain further ones.
        ordinal: Ordinal of the launch's device.
    """
    found: list[Order] = []
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    for value in arguments:
        kind, is_current, is_numba = type(value), True, False
        if kind is int or kind is float or value is None:
            continue
        if isinstance(value, tuple):
            found += orders_of(value, ordinal)
            continue
        if getattr(value, "__cuda_ndarray__", False):  # an array of Numba
            handle, is_numba = value.stream, True
            handle = handle if type(handle) is int else stream_handle(handle)
        elif cupy is not None and isinstance(value, cupy.ndarray):
            handle = cupy.cuda.get_current_stream().ptr
        elif (torch is not None and isinstance(value, torch.Tensor)) or hasattr(kind, "__dlpack_c_exchange_api__"):
            handle = (_rare or _rarer()).current_stream(value, torch, ordinal)
        else:
            interface, is_current = getattr(value, "__cuda_array_interface__", None), False
            handle = interface.get("stream") if type(interface) is dict else None
            try:
                handle = handle if handle is None or type(handle) is int else _word(handle, "stream")
            except (TypeError, ValueError):  # `memory_of` refuses it
                continue
        if handle is not None:
            found.append(_new(Order, (0 if handle == LEGACY_DEFAULT else handle, is_current, is_numba)))
    return found


def choose(orders: list[Order], is_capturing: Callable[[int], bool]) -> int:
    """The stream of a launch that was given none: the first current one, else the first that wrote an argument, else
    the default stream. Of different streams, one that is being captured comes first."""
    if not orders:
        return 0
    own = next((each for each in orders if each.is_current), orders[0]).handle
    if len(orders) > 1 and len({each.handle for each in orders}) > 1:
        return next((each.handle for each in orders if is_capturing(each.handle)), own)
    return own


def others(orders: list[Order], handle: int, stream: Any, is_captured: Callable[[int], bool]) -> list[int]:
    """The further streams that a launch is ordered with, each once.

    Args:
        orders: Those of its arguments.
        handle: Handle of its stream.
        stream: As `Call.stream`. A Numba array on the default stream asks no launch on a given stream to wait; with
            Numba's default stream, as in Numba, arrays of Numba ask for nothing.
        is_captured: Tells whether a stream is being captured: a graph does not wait for the default stream of arrays.
    """
    own, is_numbas = stream_identity(handle), type(stream) is int and stream == 0
    found = [
        other for other, _is_current, is_numba in orders
        if other != own and not (is_numba and (is_numbas if other else stream is not None or is_captured(handle)))
    ]  # fmt: skip
    return list(dict.fromkeys(found))
