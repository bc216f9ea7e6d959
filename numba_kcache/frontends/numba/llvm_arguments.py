"""Arguments of a Numba kernel: find their types, and make the launcher for common types.

Method      One slot per argument. An array is recognised by the Numba type that it keeps, which Numba interns; a number
            by its class. An argument takes these parameters of the cubin, as in numba-cuda's `_Kernel._prepare_args`:

                array of n axes     meminfo and parent (both 0), items, item size, address, shape, strides in bytes
                integer, boolean    the value, with its width
                float16             its bits
                float32, float64    the value
                complex64, 128      real and imaginary part

            Arrays of CuPy and PyTorch, and objects with an array interface, are passed like Numba's; the launch waits
            on the device for their streams.
Not here    Host arrays, records, tuples, enums, dates, pointers, `cuda.In`, `Out` and `InOut`, extensions and debug
            kernels: Numba's own launch code handles those (llvm_dispatcher).
Source      numba-cuda 0.30.4: DeviceNDArray keeps its `_numba_type_`; `_Kernel._prepare_args` passes its strides
            unchanged.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ...launch.arguments import CODES, NUMPY_NAMES, Memory, Slot, Unfit, is_c_contiguous, memory_of
from ...launch.launcher import Relaunch
from ...launch.loader import LoadedKernel
from ...launch.typed import ArraySlot
from ...model.artifact import Parameter
from .arguments import Otherwise, Signature, TypedLauncher, number_code, number_slot
from .arguments import lay_out as lay_out_codes

_PASSED_AS = "00niasb"
"""The parameters of an array in numba-cuda's order (`typed`): meminfo, parent, items, item size, address, extents,
strides."""

_TYPED = frozenset(NUMPY_NAMES) - {"bf", "e4", "e5"}


def types_of(arguments: Sequence[Any]) -> Signature:
    """Type the arguments of a launch as Numba does; common ones without calling Numba.

    Raises:
        ValueError: Numba has no type for one of them; the message is Numba's.
    """
    typeof, array, plain = _typing()
    return Signature([
        each._numba_type_ if type(each) is array else
        plain.get(type(each)) or _type_of_others(each) or typeof(each)
        for each in arguments
    ])  # fmt: skip


def _type_of_others(value: Any) -> Any:
    """The type of an array of CuPy or PyTorch, for which Numba takes 100 us; None for all others.

    As in Numba, the layout of their arrays is `"C"` or `"A"`, never `"F"`.
    """
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    is_known = (torch is not None and type(value) is torch.Tensor) or (cupy is not None and type(value) is cupy.ndarray)
    try:
        memory = memory_of(value) if is_known else None
    except Unfit:
        return None
    if memory is None or memory.element not in _TYPED:
        return None
    return _array_type(memory.element, len(memory.shape), "C" if is_c_contiguous(memory) else "A", memory.readonly)


@functools.lru_cache(maxsize=256)
def _array_type(element: str, axes: int, layout: str, readonly: bool) -> Any:
    import numpy
    from numba.cuda import types
    from numba.cuda.np.numpy_support import from_dtype

    return types.Array(from_dtype(numpy.dtype(NUMPY_NAMES[element])), axes, layout, readonly=readonly)


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
    attributes: bytes = b"",
    labels: Sequence[str] | None = None,
) -> TypedLauncher | None:
    """Make the launcher of one signature; None if it does not support one of the argument types.

    Args:
        kernel: The kernel, loaded on a device.
        name: Its name in messages.
        types: Numba types of the arguments.
        relaunch: As in `Launcher`.
        otherwise: As in `TypedLauncher`.
        attributes: Launch attributes, as `Launcher` takes them.
        labels: Name and type of each argument, if each launch is waited for (`debugging`); else None.

    Raises:
        ArgumentError: The cubin's parameters are not those of this signature.
    """
    if not are_packable(types):
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


def are_packable(types: Sequence[Any]) -> bool:
    """Check whether the launcher can pack arguments of all these types."""
    from numba.cuda import types as numba_types

    simple = (numba_types.Array, numba_types.Integer, numba_types.Float, numba_types.Complex, numba_types.Boolean)
    return all(type(each) in simple for each in types)


def lay_out(kernel: str, types: Sequence[Any], found: Sequence[Parameter]) -> tuple[Parameter, ...]:
    """Combine the type codes of arguments with a cubin's parameters; see `arguments`."""
    return lay_out_codes(kernel, [code for each in types for code in codes_of(each)], found)


def codes_of(kind: Any) -> Sequence[str]:
    """The type code (`model.artifact`) of each parameter that an argument takes."""
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
    from numba.cuda.np.numpy_support import as_dtype

    dtype = as_dtype(kind.dtype)

    def read_own(value: Any) -> Memory | None:
        if type(value) is not DeviceNDArray or not (value._numba_type_ is kind or value._numba_type_ == kind):
            return None
        address = value.gpu_data.device_ctypes_pointer.value or 0
        return tuple.__new__(Memory, (address, None, 1, value.shape, value.strides, False, None))

    return ArraySlot(
        kind, element=CODES.get(dtype.name, ""),
        item_bytes=dtype.itemsize, axes=kind.ndim, layout=kind.layout, read_own=read_own, passed_as=_PASSED_AS,
        is_readonly=not kind.mutable,
    )  # fmt: skip
