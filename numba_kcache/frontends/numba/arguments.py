"""Arguments of a Numba kernel: their types, and a launch straight from them where all are of the common exact types.

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
            they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ...launch.arguments import Call, Slot
from ...launch.launcher import Relaunch
from ...launch.loader import LoadedKernel
from ...model.artifact import Parameter
from ..python.arguments import OtherTypes, Otherwise, Signature, TypedLauncher, number_code, number_slot
from ..python.arguments import lay_out as lay_out_codes

_ARRAY_LINES = """\
            if type(a{k}) is not NumbaArray or a{k}._numba_type_ is not kind{k}:
                {slow}
            v{k} = a{k}.gpu_data.device_ctypes_pointer.value or 0
"""
_ARRAY_VALUES = "0, 0, a{k}.size, a{k}.dtype.itemsize, v{k}, *a{k}.shape, *a{k}.strides"


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


def make_numba_launcher(
    kernel: LoadedKernel,
    name: str,
    types: Sequence[Any],
    *,
    relaunch: Relaunch,
    otherwise: Otherwise,
    attributes: Sequence[Any] = (),
    labels: Sequence[str] | None = None,
) -> TypedLauncher | None:
    """Make what launches one signature on the kernel's device; None where an argument type is not for this path.

    Args:
        kernel: On its device.
        name: For messages.
        types: Numba types of the arguments.
        relaunch: As in `Launcher`.
        otherwise: As in `TypedLauncher`.
        attributes: Launch attributes of the driver's kind.
        labels: Name and type of each argument where each launch is to be waited for (`debugging`), else None.

    Raises:
        ArgumentError: The cubin is not of this signature.
    """
    if not are_straight(types):
        return None
    return TypedLauncher(
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
    """Name the types of a cubin's parameters, at the places that it has them; see `python.arguments`."""
    return lay_out_codes(kernel, [code for each in types for code in _codes(each)], found)


def _codes(kind: Any) -> Sequence[str]:
    """The code (`model.artifact`) of each parameter that an argument fills."""
    if _is_array(kind):
        return "u8", "u8", "i8", "i8", "u8", *("i8",) * (2 * kind.ndim)
    dtype = dtype_of(kind)
    return (f"f{dtype.itemsize // 2}",) * 2 if dtype.kind == "c" else (number_code(dtype),)


def _is_array(kind: Any) -> bool:
    return hasattr(kind, "ndim")


def dtype_of(kind: Any) -> Any:
    """The NumPy dtype of a number's type."""
    import numpy

    return numpy.dtype(str(kind))


def slot_of(kind: Any) -> Slot:
    """Make the slot of an argument of one type."""
    return _array_slot(kind) if _is_array(kind) else number_slot(dtype_of(kind))


def _array_slot(kind: Any) -> Slot:
    from numba.cuda.cudadrv.devicearray import DeviceNDArray

    def settle(value: Any, _stream_id: int, _call: Call | None) -> tuple[Any, ...]:
        if type(value) is not DeviceNDArray or not (value._numba_type_ is kind or value._numba_type_ == kind):
            raise OtherTypes
        address = value.gpu_data.device_ctypes_pointer.value or 0
        return 0, 0, value.size, value.dtype.itemsize, address, *value.shape, *value.strides

    return Slot(settle, lambda: (_ARRAY_LINES, {"kind{k}": kind}, _ARRAY_VALUES))
