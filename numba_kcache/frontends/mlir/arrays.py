"""Arrays as arguments of a numba-cuda-mlir kernel: their types, and the parameters that they fill.

Promise     Arrays of numba-cuda-mlir, CuPy and PyTorch, with an array interface or DLPack go one way: by the memory
            that they stand for. What is produced on another stream is waited for on the device; a host array is copied
            around the launch, as numba-cuda-mlir copies it.
Not here    What else is passed, and launchers (arguments).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ...launch.arguments import CARRIERS, NUMPY_NAMES, Call, Memory, Slot, Unfit, memory_of
from ...launch.devices import stream_handle, stream_identity
from ...launch.launcher import Launcher
from ...model.artifact import SCALAR_SIZES
from ..python.arguments import OtherTypes
from .internals import surface

_NAMES = {
    "b1": "boolean", "i1": "int8", "i2": "int16", "i4": "int32", "i8": "int64", "u1": "uint8", "u2": "uint16",
    "u4": "uint32", "u8": "uint64", "f2": "float16", "f4": "float32", "f8": "float64", "c4": "complex64",
    "c8": "complex128", "bf": "bfloat16", "e4": "fp8_e4m3", "e5": "fp8_e5m2",
}  # fmt: skip
"""The type of each element's code (`model.artifact`)."""

_ARRAY_LINES = """\
            t = type(a{k})
            if t is NumbaArray{k} and a{k}._numba_type_ is kind{k}:
                v{k} = a{k}.gpu_data.device_ctypes_pointer.value or 0
                s{k} = a{k}.strides
                d{k} = a{k}.shape
            elif t is CupyArray and a{k}.dtype == dtype{k} and a{k}.ndim == {ndim} and {cupy_layout}{cupy_device}:
                v{k} = a{k}.data.ptr
                s{k} = a{k}.strides
                d{k} = a{k}.shape
                cupy = True
            elif (t is Tensor and a{k}.dtype is torch_dtype{k} and a{k}.dim() == {ndim} and {torch_layout}
                    and a{k}.get_device() == device and not a{k}.is_neg() and not a{k}.is_conj()):
                v{k} = a{k}.data_ptr()
                s{k} = [each * {item} for each in a{k}.stride()]
                d{k} = a{k}.shape
                torch = True
            elif (r{k} := pointer{k}(a{k}, stream_id)) is not None:
                v{k} = r{k}[0]
                d{k} = r{k}[3:{end}]
                s{k} = [each * {unit} for each in r{k}[{end}:]]
            else:
                {slow}
"""


def array_type_of(value: Any) -> Any:
    """The type of an array of another library, by its memory; None where numba-cuda-mlir has to say."""
    found = _memory_of(value, None)
    return None if found is None else _type_of_memory(found[0])


def _memory_of(value: Any, call: Call | None) -> tuple[Memory, object] | None:
    """The memory of an array of another library, and what keeps it; None for what is none, or is not typed by it."""
    kind = type(value)
    if kind is int or kind is float or kind is tuple or value is None or kind.__module__ == "numpy":
        return None
    torch = sys.modules.get("torch")
    if not (hasattr(value, "__cuda_array_interface__") or (torch is not None and isinstance(value, torch.Tensor))):
        return _borrowed(value, call)
    try:
        memory = memory_of(value)
    except Unfit as unfit:
        raise ValueError(f"cannot type a {kind.__module__}.{kind.__qualname__}: {unfit.why}") from unfit
    return None if memory is None or memory.element not in _NAMES else (memory, None)


def _borrowed(value: Any, call: Call | None) -> tuple[Memory, object] | None:
    if not (hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__")):
        return None
    from ...launch.dlpack import borrow

    found = borrow(value, 0 if call is None else stream_handle(call.stream))
    return None if found is None or found[0].element not in _NAMES else found


def _type_of_memory(memory: Memory) -> Any:
    layout = _layout_of(memory.shape, memory.strides, memory.item_bytes)
    return _array_type(memory.element or "", len(memory.shape), layout, memory.readonly)


@functools.cache
def _array_type(element: str, ndim: int, layout: str, readonly: bool) -> Any:
    types = surface().types
    dtype = getattr(types, _NAMES[element], None)
    return None if dtype is None else types.Array(dtype, ndim, layout, readonly=readonly)


def _layout_of(shape: Sequence[int], strides: Sequence[int] | None, item_bytes: int) -> str:
    if strides is None or not shape or tuple(strides) == _packed(shape, item_bytes):
        return "C"
    return "F" if tuple(strides) == _packed(shape[::-1], item_bytes)[::-1] else "A"


def _packed(shape: Sequence[int], item_bytes: int) -> tuple[int, ...]:
    """Strides of a C-contiguous array."""
    found, step = [], item_bytes
    for extent in reversed(shape):
        found.append(step)
        step *= extent
    return tuple(reversed(found))


# -- slots -----------------------------------------------------------------------------------------------------------


def array_slot(kind: Any, launcher: Launcher) -> Slot:
    parts = surface()
    element = next((code for code, name in _NAMES.items() if getattr(parts.types, name, None) == kind.dtype), "")
    unit = SCALAR_SIZES[element] if element else _unit_of(kind)
    array, ndim, module = parts.DeviceNDArray, kind.ndim, launcher.module

    def settle(value: Any, stream_id: int, call: Call | None) -> tuple[Any, ...] | None:
        if type(value) is array:
            if not (value._numba_type_ is kind or value._numba_type_ == kind):
                raise OtherTypes
            address = value.gpu_data.device_ctypes_pointer.value or 0
            return address, address, 0, *value.shape, *[each // unit for each in value.strides]
        found = _memory_of(value, call)
        if found is None:
            return _host_values(value, kind, unit, call)
        memory, keeper = found
        if _type_of_memory(memory) != kind:
            raise OtherTypes
        if module.device_of is not None and memory.address:
            device = module.device_of(memory.address) if memory.device is None else memory.device
            if device not in (None, module.device.ordinal):
                raise OtherTypes
        if call is not None and keeper is not None:
            call.borrowed.append(keeper)
        if call is None and keeper is not None:
            return None
        if memory.stream is not None and stream_identity(memory.stream) != stream_id:
            if call is None:
                return None
            call.before.append(functools.partial(module.waits.enqueue_wait, memory.stream, stream_handle(call.stream)))
        strides = memory.strides if memory.strides is not None else _packed(memory.shape, memory.item_bytes)
        return memory.address, memory.address, 0, *memory.shape, *[each // unit for each in strides]

    def inline() -> tuple[str, dict[str, Any], str]:
        layout = kind.layout
        lines = _ARRAY_LINES
        for part, text in {
            "{ndim}": str(ndim),
            "{cupy_layout}": {"C": "a{k}._c_contiguous", "F": "a{k}._f_contiguous and not a{k}._c_contiguous"}.get(
                layout, "not (a{k}._c_contiguous or a{k}._f_contiguous)"
            ),
            "{cupy_device}": " and a{k}.data.device_id == device",
            "{torch_layout}": "a{k}.is_contiguous()" if layout == "C" else "False",
            "{item}": str(unit),
            "{unit}": str(unit),
            "{end}": str(3 + ndim),
        }.items():
            lines = lines.replace(part, text)
        strides = "".join(f", s{{k}}[{axis}] // {unit}" for axis in range(ndim))
        values = f"v{{k}}, v{{k}}, 0, *d{{k}}{strides}"
        never = object()
        names: dict[str, Any] = {"kind{k}": kind, "NumbaArray{k}": array, "pointer{k}": _quick(settle)}
        is_known = element and kind.mutable
        names["dtype{k}"] = NUMPY_NAMES[element] if is_known and element not in CARRIERS else never
        names["torch_dtype{k}"] = NUMPY_NAMES[element] if is_known else never
        return lines, names, values

    return Slot(settle, inline)


def _quick(settle: Callable[[Any, int, Call | None], Any]) -> Callable[..., Any]:
    def quick(value: Any, stream_id: int, _call: Call | None = None) -> Any:
        try:
            return settle(value, stream_id, None)
        except OtherTypes:
            return None

    return quick


def _unit_of(kind: Any) -> int:
    """Bytes that a stride of 1 stands for in arrays of a rarer element: records and texts that are not contiguous have
    their strides in bytes."""
    parts = surface()
    is_counted = kind.layout == "C" or type(kind.dtype) in (parts.types.NPDatetime, parts.types.NPTimedelta)
    return int(parts.as_dtype(kind.dtype).itemsize) if is_counted else 1


def _host_values(value: Any, kind: Any, unit: int, call: Call | None) -> tuple[Any, ...] | None:
    """The values of a host array, which is copied around the launch; None where there is no launch yet."""
    parts = surface()
    inner = value.value if isinstance(value, parts.ArgHint) else value
    if isinstance(inner, parts.DeviceNDArray) or parts.typeof(value) != kind:
        raise OtherTypes
    if call is None:
        return None
    address, copies = copied(value, call)

    def strides(axis: int) -> Callable[[], int]:
        def found() -> int:
            view, item_bytes = copies[0], inner.itemsize
            if view.strides is None:
                return _packed(inner.shape, item_bytes)[axis] // unit
            of_view = 1 if hasattr(view, "gpu_data") else item_bytes  # cuda.core counts items, Numba's arrays bytes
            return int(view.strides[axis]) * of_view // unit

        return found

    return address, address, 0, *inner.shape, *[strides(axis) for axis in range(kind.ndim)]


def copied(value: Any, call: Call) -> tuple[Callable[[], int], list[Any]]:
    """Have a host array or record copied around the launch; its address, and its copy, by then."""
    parts = surface()
    wrapper = value if isinstance(value, parts.ArgHint) else parts.InOut(value)
    copies: list[Any] = []

    def copy() -> None:
        from cuda.core import Stream

        copies.append(wrapper.to_device(call.after, Stream.from_handle(stream_handle(call.stream))))

    def address() -> int:
        pointer = getattr(copies[0], "device_ctypes_pointer", None)
        return int(copies[0].ptr if pointer is None else pointer.value or 0)

    call.before.append(copy)
    return address, copies
