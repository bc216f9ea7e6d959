"""What one parameter contributes to a launch: how its argument becomes values that `struct` packs.

Promise     `Slot.settle` is the whole check of one argument; the lines of `Slot.inline` accept only what
            `settle` accepts and give the same values, faster. They are put together from fixed text alone.
Method      A line template knows its parameter as {k}: the argument is a{k}, the value v{k}, {slow} hands over; what
            else it needs stands under names in {k} in the namespace of the generated function (`names`).
Not here    How slots become a function (`generated`).
Ground      Numba's DeviceNDArray keeps dtype and contiguity as plain attributes; its gpu_data knows the
            address as a ctypes value. torch.dtype and NumPy's own dtypes are singletons, so `is` decides the
            common case and any other goes the general way.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from ..errors import ArgumentError
from ..model.parameter import Parameter
from .elements import (
    CARRIERS,
    NUMPY_NAMES,
    TAKE_ANY,
    alignment_of,
)
from .places import Place
from .pointers import Call, PointerReader, Surroundings
from .scalars import STRUCT_LETTERS, bytes_converter, scalar_converter

_NUMBER_LINES = """\
            v{k} = a{k} if {usual} else number{k}(a{k})
"""
_CONVERTED_LINES = """\
            v{k} = number{k}(a{k})
"""
_POINTER_LINES = """\
            t = type(a{k})
            if (t is NumbaArray and {numba_dtype}a{k}._dummy.flags["C_CONTIGUOUS"]
                    and (not (s := a{k}.stream) or s is given){numba_device}):
                v{k} = a{k}.gpu_data.device_ctypes_pointer.value
            elif t is CupyArray and {numba_dtype}a{k}._c_contiguous{cupy_device}:
                v{k} = a{k}.data.ptr
                cupy = True
            elif (t is Tensor and {torch_dtype}a{k}.is_contiguous() and a{k}.get_device() == device
                    and not a{k}.is_neg(){torch_conj}):
                v{k} = a{k}.data_ptr()
                torch = True
            elif (v{k} := pointer{k}(a{k}, order)) is None:
                {slow}
"""
_ALIGNED_LINES = """\
            if v{k} & {mask}:
                {slow}
"""
_ADDRESS_LINES = """\
            if (v{k} := pointer{k}(a{k}, order)) is None:
                {slow}
"""
_USUAL = {
    "i": "(t := type(a{k})) is int or t in integers",
    "u": "(t := type(a{k})) is int or t in integers",
    "f": "(t := type(a{k})) is float or t is int or t in reals",
    "b": "a{k} is True or a{k} is False",
    "c": "type(a{k}) is complex",
}


class Inline(NamedTuple):
    """What the generated function does for one parameter.

    Args:
        lines: Source that leaves v{k}, indented for the body of the function.
        names: What the lines need, by name with {k}.
        values: The expressions that `struct` packs, in v{k}.
    """

    lines: str
    names: dict[str, Any]
    values: str = "v{k}"


class Slot(NamedTuple):
    """One parameter's part in a launch.

    Args:
        settle: Checks one argument. What it returns is a value, or for pointers a function that gives the
            address once the things to do on the `Call` are done.
        spread: From the settled value to what `struct` packs (`struct_format`).
        inline: Makes what the generated function does; most kernels of a process are never asked.
    """

    settle: Callable[[Any, Call], Any]
    spread: Callable[[Any], tuple[Any, ...]]
    inline: Callable[[], Inline]


def slot_of(place: Place, around: Surroundings, *, strided: bool) -> Slot:
    """The slot for one parameter.

    Args:
        place: The parameter.
        around: The process as the launch sees it.
        strided: Whether arrays that do not lie in one piece are taken.
    """
    parameter = place.parameter
    if parameter.is_pointer:
        return _pointer_slot(place, around, strided=strided)
    if parameter.code == "?" and parameter.size == 8:
        return _word_slot(place, around, strided=strided)
    if parameter.code in STRUCT_LETTERS:
        return _number_slot(place, parameter.code)
    return _converted_slot(bytes_converter(place), _CONVERTED_LINES)


def _number_slot(place: Place, code: str) -> Slot:
    convert = scalar_converter(code, place)
    if code in CARRIERS:
        return _converted_slot(convert, _CONVERTED_LINES)
    lines = _NUMBER_LINES.replace("{usual}", _USUAL[code[0]])
    if code[0] != "c":
        return _converted_slot(convert, lines)
    return Slot(
        lambda value, call: convert(value),
        lambda value: (value.real, value.imag),
        lambda: Inline(lines, {"number{k}": convert}, "v{k}.real, v{k}.imag"),
    )


def _converted_slot(convert: Callable[[Any], Any], lines: str) -> Slot:
    return Slot(
        lambda value, call: convert(value),
        lambda value: (value,),
        lambda: Inline(lines, {"number{k}": convert}),
    )


def _pointer_slot(place: Place, around: Surroundings, *, strided: bool) -> Slot:
    reader = PointerReader(place, around, strided=strided)
    return Slot(reader.resolve, _address, lambda: _inline_pointer(reader, around))


def _inline_pointer(reader: PointerReader, around: Surroundings) -> Inline:
    lines, names = _array_lines(reader.pointee, around)
    alignment = alignment_of(reader.pointee)
    if alignment > 1:
        lines += _ALIGNED_LINES.replace("{mask}", str(alignment - 1))
    return Inline(lines, {**names, "pointer{k}": reader})


def _array_lines(pointee: str, around: Surroundings) -> tuple[str, dict[str, Any]]:
    takes_any = pointee in TAKE_ANY
    element = pointee[2:] if pointee[0] == "v" else pointee
    many = around.device_of is not None
    parts = {
        "{numba_dtype}": "" if takes_any else "a{k}.dtype is dtype{k} and ",
        "{torch_dtype}": "" if takes_any else "a{k}.dtype is torch_dtype{k} and ",
        "{torch_conj}": " and not a{k}.is_conj()" if takes_any or element[0] == "c" else "",
        "{numba_device}": " and type(g := a{k}.gpu_data) is OwnedPointer and g._view.context is context"
        if many
        else "",
        "{cupy_device}": " and a{k}.data.device_id == device" if many else "",
    }
    lines = _POINTER_LINES
    for part, text in parts.items():
        lines = lines.replace(part, text)
    if takes_any:
        return lines, {}
    return lines, {
        "dtype{k}": NUMPY_NAMES[CARRIERS.get(element, element)],
        "torch_dtype{k}": NUMPY_NAMES[element],
    }


def _word_slot(place: Place, around: Surroundings, *, strided: bool) -> Slot:
    """Eight bytes of unknown type: a pointer, or a scalar whose bytes are certain."""
    reader, convert = PointerReader(place, around, strided=strided), bytes_converter(place)

    def number(value: Any) -> int | None:
        try:
            return int.from_bytes(convert(value), "little")
        except ArgumentError:
            if isinstance(value, (int, float, complex)):
                raise
            return None

    def address(value: Any, order: int) -> int | None:
        word = number(value)
        return reader(value, order) if word is None else word

    def settle(value: Any, call: Call) -> Callable[[], int]:
        word = number(value)
        return reader.resolve(value, call) if word is None else lambda: word

    return Slot(settle, _address, lambda: Inline(_ADDRESS_LINES, {"pointer{k}": address}))


def _address(settled: Callable[[], int]) -> tuple[int]:
    return (settled(),)


@lru_cache(maxsize=256)
def struct_format(parameters: tuple[Parameter, ...]) -> str:
    """The `struct` format of a parameter buffer: native order, no padding but what the offsets ask for."""
    text, end = "=", 0
    for parameter in parameters:
        offset, size, code, _c_type, _name = parameter
        letters = "Q" if code[0] == "*" or (code == "?" and size == 8) else STRUCT_LETTERS.get(code) or f"{size}s"
        text += "x" * (offset - end) + letters
        end = offset + size
    return text
