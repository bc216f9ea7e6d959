"""Arguments of a Numba kernel: their types, and a launch straight from them where all are of the common exact types.

Promise     A launch made here has the parameter bytes of Numba's own. What is not of exactly the types that the
            kernel was compiled for is handed on before anything is queued (`OtherTypes`). A cubin whose parameters have
            other sizes than the signature's is refused, never guessed.
Method      One slot per argument (`slots`). An array is known by the type that it keeps, which Numba interns; a number
            by its class. Parameters of each argument, as in numba-cuda's `_Kernel._prepare_args`:

                array of n axes     meminfo and parent (both 0), items, item size, address, shape, strides in bytes
                integer, boolean    of its width
                float16             its bits
                float32, float64    itself
                complex64, 128      real and imaginary part

Not here    Host arrays, records, tuples, enums, dates, pointers, other libraries' arrays, `cuda.In` and its kin,
            extensions and debug kernels: Numba's own launch code does those (dispatcher).
Ground      numba-cuda 0.30.4: DeviceNDArray keeps its `_numba_type_`; `_Kernel._prepare_args` hands on its strides as
            they are. Numba types a Python int as int64, a float as float64, a complex as complex128. Parameters in PTX
            are aligned to their size.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import ArgumentError
from ...launch import Dim3
from ...launch.arguments import Call, Slot
from ...launch.launcher import MISSING, Launcher, Relaunch
from ...launch.loader import LoadedKernel
from ...model.artifact import Parameter

_ARRAY_LINES = """\
            if type(a{k}) is not NumbaArray or a{k}._numba_type_ is not kind{k}:
                {slow}
            v{k} = a{k}.gpu_data.device_ctypes_pointer.value or 0
"""
_ARRAY_VALUES = "0, 0, a{k}.size, a{k}.dtype.itemsize, v{k}, *a{k}.shape, *a{k}.strides"
_NUMBER_LINES = """\
            if (t := type(a{k})) is not first{k} and t is not second{k}:
                {slow}
"""
_HALF_LINES = (
    _NUMBER_LINES
    + """\
            v{k} = bits{k}(a{k})
"""
)

_PYTHON = {"int64": int, "float64": float, "complex128": complex, "bool": bool}
"""What Numba types as if it were NumPy's."""


class Signature(tuple[Any, ...]):
    """Argument types whose hash is taken once: Numba's types take theirs in Python, ten calls each time."""

    def __hash__(self) -> int:
        found: int | None = self.__dict__.get("_taken")
        if found is None:
            found = self.__dict__["_taken"] = tuple.__hash__(self)
        return found


def types_of(arguments: Sequence[Any]) -> Signature:
    """Type the arguments of a launch as Numba does; those whose type is known, or have but one, without asking it.

    Raises:
        ValueError: Numba has no type for one; its own message.
    """
    typeof, array, plain = _typing()
    return Signature([
        each._numba_type_ if type(each) is array else plain.get(type(each)) or typeof(each) for each in arguments
    ])  # fmt: skip


@functools.cache
def _typing() -> tuple[Callable[[Any], Any], Any, dict[type, Any]]:
    from numba.cuda import types
    from numba.cuda.cudadrv.devicearray import DeviceNDArray
    from numba.cuda.typing.typeof import typeof

    return typeof, DeviceNDArray, {float: types.float64, bool: types.boolean, complex: types.complex128}


class OtherTypes(Exception):
    """These arguments are not of the types of this kernel, or not of the exact classes that are taken here."""


Otherwise = Callable[[tuple[Any, ...], tuple[Any, ...]], None]
"""Called with configuration and arguments where `OtherTypes` was met. Nothing has been queued."""


class NumbaLauncher(Launcher):
    """A launcher whose arguments are Numba's: an array fills several parameters.

    Args:
        otherwise: Takes what is not for this launcher.
        more: As for `Launcher`.
    """

    def __init__(self, *arguments: Any, otherwise: Otherwise, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._otherwise = otherwise

    def _slow(
        self, arguments: tuple[Any, ...], reason: int, shape: tuple[Dim3, Dim3, int], config: Any, stream_id: int,
        stream: Any,
    ) -> None:  # fmt: skip
        try:
            super()._slow(arguments, reason, shape, config, stream_id, stream)
            return
        except OtherTypes:
            pass  # left behind before going on: it is no part of what may be raised there
        grid, block, shared = shape
        self._otherwise((grid, block, stream, shared), tuple(each for each in arguments if each is not MISSING))

    def _wrong_count(self, call: Call) -> Exception:
        """Numba says itself how many arguments it takes."""
        return OtherTypes()


def make_numba_launcher(
    kernel: LoadedKernel,
    name: str,
    types: Sequence[Any],
    *,
    relaunch: Relaunch,
    otherwise: Otherwise,
    attributes: Sequence[Any] = (),
    labels: Sequence[str] | None = None,
) -> NumbaLauncher | None:
    """Make what launches one signature on the kernel's device; None where an argument type is not for this path.

    Args:
        kernel: On its device.
        name: For messages.
        types: Numba types of the arguments.
        relaunch: As in `Launcher`.
        otherwise: As in `NumbaLauncher`.
        attributes: Launch attributes of the driver's kind.
        labels: Name and type of each argument where each launch is to be waited for (`debugging`), else None.

    Raises:
        ArgumentError: The cubin is not of this signature.
    """
    if not are_straight(types):
        return None
    return NumbaLauncher(
        kernel,
        name,
        lay_out(name, types, kernel.entry.parameters),
        attributes=attributes,
        relaunch=relaunch,
        slots=[slot_of(each) for each in types],
        otherwise=otherwise,
        debug_labels=labels,
    )


def are_straight(types: Sequence[Any]) -> bool:
    """Tell if arguments of all these types can be packed here."""
    from numba.cuda import types as numba_types

    simple = (numba_types.Array, numba_types.Integer, numba_types.Float, numba_types.Complex, numba_types.Boolean)
    return all(type(each) in simple for each in types)


def lay_out(kernel: str, types: Sequence[Any], found: Sequence[Parameter]) -> tuple[Parameter, ...]:
    """Name the types of a cubin's parameters, at the places that it has them.

    Args:
        kernel: Its name, for messages.
        types: Numba types of the arguments.
        found: Offset and size of each parameter of the cubin.

    Raises:
        ArgumentError: The cubin lays them out in another way; it is not of this signature.
    """
    codes = [code for each in types for code in _codes(each)]
    if [int(code[1:]) for code in codes] != [each.size for each in found]:
        raise ArgumentError(
            f"cannot launch {kernel}",
            f"its cubin takes {len(found)} parameters of other sizes than this signature's {len(codes)}",
            "clear the cache, and report this",
        )
    return tuple([Parameter(each.offset, each.size, code) for code, each in zip(codes, found, strict=True)])


def _codes(kind: Any) -> Sequence[str]:
    """The code (`model.artifact`) of each parameter that an argument fills."""
    if _is_array(kind):
        return "u8", "u8", "i8", "i8", "u8", *("i8",) * (2 * kind.ndim)
    dtype = _dtype(kind)
    if dtype.kind == "c":
        return (f"f{dtype.itemsize // 2}",) * 2
    return ("u2" if dtype.name == "float16" else f"{dtype.kind}{dtype.itemsize}",)


def _is_array(kind: Any) -> bool:
    return hasattr(kind, "ndim")


def _dtype(kind: Any) -> Any:
    import numpy

    return numpy.dtype(str(kind))


def slot_of(kind: Any) -> Slot:
    """Make the slot of an argument of one type."""
    return _array_slot(kind) if _is_array(kind) else _number_slot(_dtype(kind))


def _array_slot(kind: Any) -> Slot:
    from numba.cuda.cudadrv.devicearray import DeviceNDArray

    def settle(value: Any, _stream_id: int, _call: Call | None) -> tuple[Any, ...]:
        if type(value) is not DeviceNDArray or not (value._numba_type_ is kind or value._numba_type_ == kind):
            raise OtherTypes
        address = value.gpu_data.device_ctypes_pointer.value or 0
        return 0, 0, value.size, value.dtype.itemsize, address, *value.shape, *value.strides

    return Slot(settle, lambda: (_ARRAY_LINES, {"kind{k}": kind}, _ARRAY_VALUES))


def _number_slot(dtype: Any) -> Slot:
    own, python = dtype.type, _PYTHON.get(dtype.name)
    classes = frozenset((own, python or own))
    is_complex, is_half = dtype.kind == "c", dtype.name == "float16"

    def settle(value: Any, _stream_id: int, _call: Call | None) -> tuple[Any, ...]:
        if type(value) not in classes or (type(value) is int and not -(2**63) <= value < 2**63):
            raise OtherTypes  # Numba types a larger int as uint64, or refuses it
        if is_complex:
            return value.real, value.imag
        return (_half_bits(value) if is_half else value,)

    lines, values = _NUMBER_LINES, "a{k}"
    if is_complex:
        values = "a{k}.real, a{k}.imag"
    elif is_half:
        lines, values = _HALF_LINES, "v{k}"
    names = {"first{k}": python or own, "second{k}": own, "bits{k}": _half_bits}
    return Slot(settle, lambda: (lines, names, values))


def _half_bits(value: Any) -> int:
    return int(value.view("uint16"))
