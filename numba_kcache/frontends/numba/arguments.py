"""Key and pack the arguments of Numba kernels by their types.

Promise     A launch has the same parameter bytes as Numba's own. Numbers are packed by the types that the kernel was
            compiled for, never by those of another launch. Arguments whose types are not exactly those are passed on
            before anything is queued (`OtherTypes`). A cubin whose parameters have other sizes than the signature's is
            refused, never guessed.
Method      One slot per argument. An argument takes these parameters of the cubin:

                array of n axes     `Flavour.array_codes`, then shape and strides
                integer, boolean    the value, with its width
                float16             its bits
                float32, float64    the value
                complex64, 128      real and imaginary part; of numba-cuda-mlir one parameter of both

            With numba-cuda-mlir (mlir_arguments) also

                datetime, timedelta the count of its units
                tuple               the parameters of its members
                None                nothing

            A string lists the parameters of an array: a letter for each, and s, b and e for one parameter per axis:

                0  zero          n  number of items    i  bytes of an item    a  address
                s  extents       b  strides in bytes   e  strides in items

Not here    Arrays of numba-cuda-mlir (mlir_arguments). What a Numba launches by its own code (llvm_dispatcher,
            mlir_dispatcher): host arrays, records, tuples of numba-cuda, enums, pointers, texts, functions,
            extensions, debug kernels.
Source      Numba types a Python int as int64, a float as float64, a complex as complex128. Parameters in PTX are
            aligned to their size. numba-cuda 0.30.4: `_Kernel._prepare_args`. numba-cuda-mlir 0.6.0, cext/launcher of
            v0.5.0. tests/integration/test_mlir_on_fake_driver.py compares the bytes of launches with its own.
"""

from __future__ import annotations

import functools
import math
import operator
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ...errors import ArgumentError
from ...launch import (
    CODES,
    NUMPY_NAMES,
    Call,
    Dim3,
    Memory,
    Order,
    Slot,
    Unfit,
    bindings,
    device_elsewhere,
    done,
    is_exported,
    stream_identity,
)
from ...launch.launcher import Launcher, LoadedKernel, ValueSlot, memory_of
from ...model import SCALAR_SIZES, Parameter
from . import Flavour, surface

Values = tuple[Any, ...]
"""Arguments of a launch, or what is packed for one of them."""


class OtherTypes(Exception):
    """Raised if the arguments do not have the types of this kernel, or not the exact classes that its slots accept."""


class ArraySlot(Slot):
    """The slot of an array.

    Attributes:
        others: Layouts of other libraries' arrays that are accepted for this type. With "F" among them, an array of
            any layout is accepted.

    Args:
        kind: The Numba type, as a device array of Numba has it in `_numba_type_`. Its layout is `"C"`, `"F"`, or `"A"`
            for other strides; arrays of other libraries count as `"C"` or `"A"`.
        own: The class of Numba's device arrays.
        element: Type code of its elements.
        item_bytes: Size of an element.
        flavour: The Numba, with the letters of its parameters, in order (see the Method of this module).
        launcher: The launcher of the kernel.
    """

    form, others = "array", "CA"

    def __init__(self, kind: Any, own: Any, *, element: str, item_bytes: int, flavour: Flavour, launcher: Any) -> None:
        self.kind, self.own, self.element, self.item_bytes = kind, own, element, item_bytes
        self.flavour, self.launcher, passed_as = flavour, launcher, flavour.array_letters
        axes = self.axes = kind.ndim
        self.layout, self.is_readonly = kind.layout, not kind.mutable
        self.fields = [(letter, axis) for letter in passed_as for axis in range(axes if letter in "sbe" else 1)]
        starts = {"0": 0, "n": 1, "i": 2, "a": 3, "s": 4, "b": 4 + axes, "e": 4 + 2 * axes}
        pick: Callable[[Any], tuple[int, ...]] = operator.itemgetter(
            *[starts[letter] + axis for letter, axis in self.fields]
        )
        self._pick, self._counts_items = pick, "e" in passed_as

    def settle(self, value: Any, call: Call) -> tuple[int, ...]:
        """Check one argument; see `Settle`.

        Raises:
            OtherTypes: The argument is not of this type.
        """
        return self.values_of(self.read_own(value) or self._of_others(value, call))

    def read_own(self, value: Any) -> Memory | None:
        """The memory of a device array of Numba; None for other objects.

        Raises:
            OtherTypes: It is an array of another type.
        """
        if type(value) is not self.own:
            return None
        if value._numba_type_ is not self.kind and not self.takes(value._numba_type_):
            raise OtherTypes
        address = value.gpu_data.device_ctypes_pointer.value or 0
        return tuple.__new__(Memory, (address, None, 1, value.shape, value.strides, False, None))

    def takes(self, kind: Any) -> bool:
        """Check whether arrays of a Numba type are of this slot's."""
        return bool(kind == self.kind or ("F" in self.others and is_array_of(kind, self.kind)))

    def values_of(self, memory: Memory) -> tuple[int, ...]:
        """The parameters of an array of this type; its strides may be None if they are not among the parameters."""
        shape, strides, size = memory.shape, memory.strides or (), self.item_bytes
        steps = [step // size for step in strides] if self._counts_items else ()
        return self._pick((0, math.prod(shape), size, memory.address, *shape, *strides, *steps))

    def memory_of_other(self, value: Any, call: Call) -> Memory | None:
        """The memory of an array of another library; None if only the Numba can pass it."""
        try:
            memory = None if getattr(value, "__cuda_ndarray__", False) else memory_of(value)
        except Unfit:
            memory = None
        if memory is None and is_exported(value):
            from ...launch.dlpack import borrowed_of

            if borrowed := borrowed_of(value, call.handle):
                memory = borrowed[0]
                call.borrowed.append(borrowed[1])
        return memory

    def _of_others(self, value: Any, call: Call) -> Memory:
        memory = self.memory_of_other(value, call)
        if memory is None or (memory.element or None, len(memory.shape)) != (self.element, self.axes):
            raise OtherTypes
        layout = self.flavour.layout_of(memory)
        fits = (layout == self.layout or "F" in self.others) and memory.readonly == self.is_readonly
        if not fits or device_elsewhere(self.launcher.module, memory) is not None:
            raise OtherTypes
        strides = packed(memory.shape, self.item_bytes) if layout == "C" else memory.strides
        return tuple.__new__(Memory, (*memory[:4], strides, *memory[5:]))


def packed(shape: Sequence[int], item_bytes: int) -> tuple[int, ...]:
    """Strides of an array in C order."""
    strides: tuple[int, ...] = ()
    for extent in reversed(shape):
        strides, item_bytes = (item_bytes, *strides), item_bytes * extent
    return strides


def is_array_of(kind: Any, wanted: Any) -> bool:
    """Check whether an array of one Numba type can be passed to code for another: for layout "A" in any layout."""
    names = "dtype", "ndim", "mutable", "aligned"
    is_like = all(getattr(kind, name) == getattr(wanted, name) for name in names)
    return is_like and wanted.layout in (kind.layout, "A")


class NumberSlot(Slot):
    """The slot of a number.

    Args:
        element: Its type code.
        numpy_class: The NumPy class with this type.
        python_class: The class of Python with this type; `numpy_class` where there is none.
        values: Converts a number to the values that are packed; None if the number itself is packed.
    """

    form = "number"

    def __init__(
        self, element: str, numpy_class: type, python_class: type, values: Callable[[Any], Values] | None
    ) -> None:
        self.element, self._values = element, values
        self.numpy_class, self.python_class = numpy_class, python_class

    def settle(self, value: Any, _call: Call) -> Values:
        """Check one argument; see `Settle`.

        Raises:
            OtherTypes: The argument has another class, or is a Python integer beyond 64 bits.
        """
        kind = type(value)
        if (kind is not self.numpy_class and kind is not self.python_class) or (
            kind is int and not -(2**63) <= value < 2**63
        ):
            raise OtherTypes
        return (value,) if self._values is None else self._values(value)


_PYTHON = {"int64": int, "float64": float, "complex128": complex, "bool": bool}
"""Python's classes that Numba types like NumPy's."""


TYPE_NAMES = {
    "b1": "boolean", "i1": "int8", "i2": "int16", "i4": "int32", "i8": "int64", "u1": "uint8", "u2": "uint16",
    "u4": "uint32", "u8": "uint64", "f2": "float16", "f4": "float32", "f8": "float64", "c4": "complex64",
    "c8": "complex128", "bf": "bfloat16", "e4": "fp8_e4m3", "e5": "fp8_e5m2",
}  # fmt: skip
"""The name of a Numba's type for each type code of an element (`model`)."""


@functools.lru_cache(maxsize=256)
def array_type(flavour: Flavour, element: str, axes: int, layout: str, readonly: bool) -> Any:
    """The type of an array by the type code of its elements; None if the Numba has none."""
    types = surface(flavour).types
    dtype = getattr(types, TYPE_NAMES[element], None)
    return None if dtype is None else types.Array(dtype, axes, layout, readonly=readonly)


class Signature(tuple[Any, ...]):
    """Argument types with a cached hash, since a Numba type computes its hash in Python, in ten calls."""

    def __hash__(self) -> int:
        found: int | None = self.__dict__.get("_hash")
        if found is None:
            found = self.__dict__["_hash"] = tuple.__hash__(self)
        return found


class LightType:
    """A type of an argument by its form in the key: a number, or an array of numbers.

    Args:
        form: Its form.
        code: Type code of the number, or of the elements.
        ndim, layout, mutable: As in Numba's type of an array; no axes and no layout for a number.
    """

    __slots__ = ("code", "described", "form", "layout", "mutable", "ndim")

    def __init__(self, form: Any, code: str, ndim: int = -1, layout: str = "", *, mutable: bool = True) -> None:
        self.described = self.code, self.ndim, self.layout, self.mutable = code, ndim, layout, mutable
        self.form = (
            ("array", "Array", form, (ndim, layout, mutable, True)) if layout else form
        )  # as Flavour.form_of_type

    def __eq__(self, other: object) -> bool:
        return type(other) is LightType and self.form == other.form

    def __hash__(self) -> int:
        return hash(self.described)

    def __str__(self) -> str:
        name = NUMPY_NAMES[self.code]
        return (
            f"{'' if self.mutable else 'readonly '}array({name}, {self.ndim}d, {self.layout})" if self.layout else name
        )

    __repr__ = __str__

    def real(self, parts: Any) -> Any:
        """Numba's type."""
        import numpy

        element = parts.from_dtype(numpy.dtype(NUMPY_NAMES[self.code]))
        return parts.Array(element, self.ndim, self.layout, readonly=not self.mutable) if self.layout else element


Otherwise = Callable[[Values, Values], None]
"""Called with configuration and arguments that the launcher does not take. Nothing has been queued."""


class TypedLauncher(Launcher):
    """A launcher with Numba's calling convention: an array takes several parameters.

    Args:
        flavour: The Numba.
        kinds: Types of the arguments.
        otherwise: Takes arguments of other types.
        complete: Adds the defaults of omitted arguments.
        casts: For each argument, whether it is converted to its type, which the user wrote.
        more: As for `Launcher`.
    """

    shares_layout = False

    def __init__(
        self,
        *arguments: Any,
        flavour: Flavour,
        kinds: Sequence[Any],
        otherwise: Otherwise,
        complete: Callable[[Values], Values] | None = None,
        casts: Sequence[bool] = (),
        **more: Any,
    ) -> None:
        super().__init__(*arguments, **more)
        self.flavour, self._kinds, self._otherwise = flavour, kinds, otherwise
        self._complete, self._casts = complete, casts

    def make_slots(self) -> list[Slot]:
        """Make a slot for each argument, at the first launch."""
        slots: list[Any] = [slot_of(self.flavour, each, self) for each in self._kinds]
        for position, (slot, is_cast) in enumerate(zip(slots, self._casts, strict=False), 1):
            if is_cast and slot.form == "array" and slot.layout == "A":
                slot.others = "CFA"
            element = slot.element if is_cast and slot.form == "number" else ""
            if element[:1] in ("i", "u", "f") and (self.flavour.is_misreading or element != "f2"):
                slots[position - 1] = CastSlot(
                    self, position, Parameter(0, SCALAR_SIZES[element], element, NUMPY_NAMES[element])
                )
        self.slots = slots
        return slots

    def _slow(self, arguments: Values, code: int, shape: tuple[Dim3, Dim3, int], handle: int, stream: Any) -> None:
        if self._complete is not None:
            arguments = self._complete(arguments)
        try:
            super()._slow(arguments, code, shape, handle, stream)
            return
        except OtherTypes:
            pass  # continue outside this block, so that an error there does not have this one as its context
        grid, block, shared = shape
        self._otherwise((grid, block, stream, shared), arguments)

    def _wrong_count(self, call: Call) -> Exception:
        """Make `OtherTypes`, so that Numba itself reports a wrong number of arguments."""
        return OtherTypes()

    def left_after_waits(self, orders: list[Order], handle: int) -> list[Order]:
        """Wait on the host for the streams of array interfaces, unless something is captured or the setting of
        numba-cuda-mlir forbids it. Its own arrays' streams do not count."""
        orders = [each for each in orders if not each.is_numba]
        is_captured = any(self.module.is_capturing(each.handle) for each in orders)
        if is_captured or not self.flavour.setting("CUDA_ARRAY_INTERFACE_SYNC"):
            return orders
        for each in orders:
            if not each.is_current and stream_identity(each.handle) != stream_identity(handle):
                done(bindings().cuStreamSynchronize(each.handle), "wait for a stream")
        return [each for each in orders if each.is_current]


def make_launcher(
    flavour: Flavour, kernel: LoadedKernel, name: str, types: Sequence[Any], **more: Any
) -> TypedLauncher | None:
    """Make the launcher of one signature; None if it does not support one of the argument types.

    Args:
        flavour: The Numba.
        kernel: The kernel, loaded on a device.
        name: Its name in messages.
        types: Types of the arguments.
        more: As for `TypedLauncher`.

    Raises:
        ArgumentError: The cubin's parameters are not those of this signature.
    """
    flat = [inner for each in types for inner in (each.types if type(each).__name__.startswith("StarArg") else (each,))]
    try:
        codes = [code for each in flat for code in codes_of(flavour, each)]
    except KeyError:
        return None
    return TypedLauncher(
        kernel, name, lay_out(name, codes, kernel.compiled.parameters), flavour=flavour, kinds=flat, **more
    )


def lay_out(kernel: str, codes: Sequence[str], found: Sequence[Parameter]) -> tuple[Parameter, ...]:
    """Combine type codes with the offsets of a cubin's parameters.

    Args:
        kernel: Its name, for messages.
        codes: The type code (`model`) of each parameter that the arguments take.
        found: Offset and size of each parameter of the cubin.

    Raises:
        ArgumentError: Number or sizes differ; the cubin is not of this signature.
    """
    if [int(code[1:]) * (1 + (code[0] == "c")) for code in codes] != [each.size for each in found]:
        raise ArgumentError(
            f"cannot launch {kernel}",
            f"its cubin takes {len(found)} parameters of other sizes than this signature's {len(codes)}",
            "clear the cache, and report this",
        )
    return tuple([Parameter(each.offset, each.size, code) for code, each in zip(codes, found, strict=True)])


def number_slot(code: str) -> NumberSlot:
    """Make the slot of a number, which recognises it by its class."""
    numpy, name = sys.modules.get("numpy"), NUMPY_NAMES[code]
    python = _PYTHON.get(name)
    numpy_class = python if numpy is None else numpy.dtype(name).type
    values = _parts if code[0] == "c" else _half_bits if code == "f2" else None
    return NumberSlot(code, numpy_class or _Unmade, python or numpy_class or _Unmade, values)


class _Unmade:
    """The class of objects that cannot exist while NumPy or Numba is not loaded."""


def _parts(value: Any) -> Values:
    return value.real, value.imag


def _half_bits(value: Any) -> Values:
    return (int(value.view("uint16")),)


def codes_of(flavour: Flavour, kind: Any) -> tuple[str, ...]:
    """The type code (`model`) of each parameter that an argument of a type takes.

    Raises:
        KeyError: The launcher cannot pack arguments of this type.
    """
    cls = type(kind)
    parts = None if cls is LightType else surface(flavour)
    if kind.layout if parts is None else cls is parts.Array:
        return (*flavour.array_codes, *("i8",) * (2 * kind.ndim))
    if parts is None or cls in (parts.Integer, parts.Float, parts.Boolean, parts.Complex):
        code: str = CODES[dtype_of(kind).name] if parts else kind.code
        if code[0] == "c" and not flavour.is_complex_whole:
            return (f"f{code[1:]}",) * 2
        return ("u2",) if code == "f2" else (code,)
    return flavour.other_codes(kind)


def dtype_of(kind: Any) -> Any:
    """The NumPy dtype of a number's type."""
    import numpy

    return numpy.dtype(str(kind))


def slot_of(flavour: Flavour, kind: Any, launcher: Any = None) -> Slot:
    """Make the slot of an argument of one type, which `codes_of` takes."""
    if type(kind) is LightType:
        return _array_slot(flavour, kind, _Unmade, kind.code, launcher) if kind.layout else number_slot(kind.code)
    parts, cls = surface(flavour), type(kind)
    if cls is parts.Array:
        types = ((code, getattr(parts.types, name, None)) for code, name in TYPE_NAMES.items())
        element = next((code for code, each in types if each is kind.dtype), "")  # types are interned
        return _array_slot(flavour, kind, parts.DeviceNDArray, element, launcher)
    if cls in (parts.Integer, parts.Float, parts.Boolean, parts.Complex):
        return number_slot(CODES[dtype_of(kind).name])
    other: Slot = flavour.other_slot(kind, launcher)
    return other


def _array_slot(flavour: Flavour, kind: Any, own: type, element: str, launcher: Any) -> Slot:
    letters, size = flavour.array_letters, SCALAR_SIZES.get(element)
    if size is None:  # of records and texts that are not contiguous, strides in items are bytes
        parts = surface(flavour)
        is_date = type(kind.dtype) in (parts.types.NPDatetime, parts.types.NPTimedelta)
        size = 1 if "e" in letters and kind.layout != "C" and not is_date else int(parts.as_dtype(kind.dtype).itemsize)
    make = flavour.array_slot or ArraySlot
    slot: Slot = make(kind, own, element=element, item_bytes=size, flavour=flavour, launcher=launcher)
    return slot


class CastSlot(ValueSlot):
    """The slot of a number that is converted to the type in a signature, if that preserves its value."""

    def settle(self, value: Any, call: Call) -> Any:
        """Check one argument; see `Settle`.

        Raises:
            OtherTypes: Numba converts it otherwise, or refuses it.
            ArgumentError: The type cannot represent it, and the Numba's own launch would pass other bits.
        """
        import numpy

        try:
            if isinstance(value, (int, float, numpy.integer, numpy.floating)):
                number = super().settle(value, call)
                return _half_bits(numpy.float16(number)) if self.code == "f2" else number
        except ArgumentError:
            if self.launcher.flavour.is_misreading:
                raise
        raise OtherTypes


def converts(flavour: Flavour, given: Sequence[Any], wanted: Sequence[Any]) -> bool:
    """Check whether a launcher converts arguments of these types to others as Numba does."""
    parts = surface(flavour)
    numbers = {parts.Integer: (parts.Integer, parts.Boolean), parts.Float: (parts.Integer, parts.Float, parts.Boolean)}

    def fits(kind: Any, other: Any) -> bool:
        are_arrays = type(kind) is type(other) is parts.Array
        return is_array_of(kind, other) if are_arrays else kind == other or type(kind) in numbers.get(type(other), ())

    return len(given) == len(wanted) and all(map(fits, given, wanted))


def is_alone(flavour: Flavour, variant: Sequence[Any], others: Iterable[Sequence[Any]]) -> bool:
    """Check whether arguments that can be converted to these types fit no other signature: of arrays by their elements
    or axes, which nothing converts."""

    def shape(kind: Any) -> Any:
        return (kind.dtype, kind.ndim) if type(kind) is surface(flavour).Array else None

    own = [*map(shape, variant)]
    return all(each == variant or [*map(shape, each)] != own for each in others)
