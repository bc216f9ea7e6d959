"""Describe the slots of a kernel to the C module (native.c), and register the types of arguments that it may accept.

Promise     The C module accepts only types that the interpreted path has accepted: a type is registered from a value
            that it has checked. No library is imported; types are kept until the program ends.
Not here    Checking and converting arguments, in Python (launch) and in C (`native.c`).
"""

from __future__ import annotations

import atexit
import ctypes
import os
import struct
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from . import NUMPY_NAMES, element_of_dtype, is_exported, is_immutable, native
from .pointers import TAKE_ANY, alignment_of, elements_of

if TYPE_CHECKING:
    from .launcher import Launcher

ELEMENTS = tuple(code for code in NUMPY_NAMES)
"""Type codes; the index of each is its number in native.c."""

_ANYTHING = 2**32 - 1  # the mask of elements for a pointer to any type

# flags of a `Row` in native.c
_CONST = 1  # a pointer takes read-only memory too; an array of a Numba type must be read-only
_STRIDED = 2  # a pointer takes memory with any strides, an array any layout
_EXACT = 4  # an array of a Numba type: elements, number of axes and layout must be those of the type
_PLAIN = 8  # an array whose array interface states strides is refused
_COUNTS_ITEMS = 16  # the array's strides in items are among its parameters
_WAITS_ON_HOST = 32  # an array whose array interface states a stream is refused

_MOST_BYTES, _MOST_FIELDS = 4096, 40  # the limits of native.c
_ROW_FORMAT = f"=ccBBBBHH2xII{4 * _MOST_FIELDS}s"
_VIEW_WORDS = {"0": 0, "n": 1, "i": 2, "a": 3, "s": 4, "b": 20, "e": 36}
"""Offsets of an array's fields in the C struct `View`, by the letters of Numba's slots, in words of 8 bytes."""

_NUMBA_ARRAYS = tuple(f"{package}.cudadrv.devicearray" for package in ("numba.cuda", "numba_cuda_mlir.numba_cuda"))
"""The modules of the two Numbas that define `DeviceNDArray`."""

_VALUE = vars(ctypes._SimpleCData)["value"]
"""The descriptor of the attribute `value` of ctypes integers and pointers."""

# letters of `Known` in native.c
_PYTHON_TYPES = {bool: "b", int: "i", float: "f", complex: "c", bytes: "s", bytearray: "s", memoryview: "s"}

_seen: set[Any] = set()
"""Types and dtypes seen so far, registered or not; `"numpy"`, once NumPy's scalars are registered."""

_held: dict[int, Any] = {}
"""All objects to which the C module has pointers, by id. The C module itself holds no references: the garbage collector
could not see them, and whole libraries would stay alive at exit."""


def recognise(plan: Any, launcher: Launcher, arguments: Sequence[Any], *, is_first: bool) -> None:
    """Make the C module recognise launches like this one, as far as its arguments can be described.

    Args:
        plan: The kernel's `Plan` in the C module.
        launcher: The launcher of the kernel.
        arguments: Arguments of this launch, which the slots have accepted.
        is_first: Whether the kernel's slots are not in the plan yet.
    """
    try:
        _register(plan, launcher, arguments, is_first)
    except Exception:  # a user's class may raise any exception, and registration only speeds up later launches
        pass


def _register(plan: Any, launcher: Launcher, arguments: Sequence[Any], is_first: bool) -> None:
    slots = launcher.slots or launcher.make_slots()
    if not _seen:
        for kind, letter in _PYTHON_TYPES.items():
            _add_known(kind, ord(letter))
        _seen.update(_PYTHON_TYPES)
        atexit.register(native.end)
    if "numpy" in sys.modules and "numpy" not in _seen:
        _seen.add("numpy")
        _register_numpy()
    for position, (slot, value) in enumerate(zip(slots, arguments, strict=False)):
        kind = type(value)
        if kind not in _seen and len(_seen) < 10_000:
            _seen.add(kind)
            _register_type(kind, value)
        if kind.__name__ == "DeviceNDArray":
            _register_numba_type(plan, launcher, position, slot, value)
        elif hasattr(kind, "_c_contiguous"):
            _register_dtype(value.dtype)
    if is_first:
        rows = list(_rows(launcher, slots))
        size_bytes = max((each.offset + each.size for each in launcher.parameters), default=0)
        if len(rows) == len(slots) and size_bytes <= _MOST_BYTES:
            types = tuple([each for _, *pair in rows for each in pair])
            _held.update((id(each), each) for each in types)
            native.fill(plan, b"".join([row for row, *_ in rows]), types, size_bytes)


def _add_known(type_or_dtype: Any, code: int, capsule: Any = None, parts: tuple[Any, ...] = ()) -> None:
    """Add a type or a dtype to those that the C module recognises (`Known` in native.c)."""
    _held.setdefault(id(type_or_dtype), (type_or_dtype, capsule, parts))
    native.know(type_or_dtype, code, capsule, parts)


def _rows(launcher: Launcher, slots: Sequence[Any]) -> Iterable[tuple[bytes, Any, Any]]:
    """Yield a `Row` of native.c for each slot that one can describe, with the NumPy and the Python class for a number.

    None in place of a class means any type that is registered.
    """
    parameters = iter(launcher.parameters)
    for slot in slots:
        if slot.form == "pointer":
            offset, pointee = next(parameters).offset, slot.pointee
            is_writable = slot.code[0] == "*" and slot.code[:2] != "*k"
            flags = (_STRIDED if launcher.strided else 0) | (0 if is_writable else _CONST)
            mask = alignment_of(pointee) - 1 if slot.code[0] == "*" else 0
            yield _row("a", 0, offset, flags=flags, mask=mask, accepts=_fitting(pointee)), None, None
        elif slot.form == "value":
            declared = next(parameters)
            kind, element = ("n", ELEMENTS.index(slot.code)) if slot.code in ELEMENTS else ("b", 0)
            yield _row(kind, element, declared.offset, declared.size), None, None
        elif slot.form == "array":
            fields = [(next(parameters).offset, 8 * (_VIEW_WORDS[letter] + axis)) for letter, axis in slot.fields]
            flags = _EXACT | (_CONST if slot.is_readonly else 0) | (0 if "A" in slot.others else _PLAIN)
            flags |= (_COUNTS_ITEMS if ("e", 0) in slot.fields else 0) | (
                _WAITS_ON_HOST if launcher.waits_on_host else 0
            )
            flags |= _STRIDED if "F" in slot.others else 0
            element = ELEMENTS.index(slot.element) if slot.element else 0
            accepts = 1 << element if slot.element and slot.layout in slot.others else 0
            if len(fields) > _MOST_FIELDS:
                return
            yield (
                _row("a", element, size=slot.item_bytes, flags=flags, axes=slot.axes, layout=slot.layout,
                     accepts=accepts, fields=fields), None, None,
            )  # fmt: skip
        elif slot.form == "number":
            first = next(parameters)
            if slot.element[0] == "c" and first.code[0] != "c":
                next(parameters)
            yield _row("n", ELEMENTS.index(slot.element), first.offset), slot.numpy_class, slot.python_class


def _row(
    kind: str, element: int = 0, offset: int = 0, size: int = 1, *, flags: int = 0, axes: int = 0, layout: str = "C",
    mask: int = 0, accepts: int = 0, fields: Sequence[tuple[int, int]] = (),
) -> bytes:  # fmt: skip
    """Pack a `Row` of native.c."""
    head = kind.encode(), layout.encode(), element, flags, axes, mask, offset, len(fields), size, accepts
    return struct.pack(_ROW_FORMAT, *head, b"".join([struct.pack("=HH", *each) for each in fields]))


def _fitting(pointee: str) -> int:
    """The type codes of elements that fit a pointee (`pointers.fits`), as a bit mask."""
    if pointee in TAKE_ANY:
        return _ANYTHING
    return sum(1 << ELEMENTS.index(each) for each in elements_of(pointee) if each in ELEMENTS)


def _register_type(kind: type, value: Any) -> None:
    """Register the type of an argument, if the C module can read such arguments."""
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    array_modules = [sys.modules.get(each) for each in _NUMBA_ARRAYS]
    letter, capsule, parts = "", getattr(kind, "__dlpack_c_exchange_api__", None), tuple[Any, ...]()
    if any(each is not None and kind is each.DeviceNDArray for each in array_modules):
        letter, parts = "N", (_VALUE,)
    elif torch is not None and isinstance(value, torch.Tensor):
        if capsule is not None and (kind is torch.Tensor or kind.__module__ == "torch.nn.parameter"):
            letter, parts = "T", (_is_neg_function(torch, value), torch.Tensor.is_conj)
    elif cupy is not None and isinstance(value, cupy.ndarray):  # CuPy's array interface may lack the current stream
        letter = "C" if kind is cupy.ndarray and hasattr(kind, "_c_contiguous") else ""
        capsule, memory = _current_stream_of_cupy(), type(value.data)
        getters = [getattr(kind, name, None) for name in ("_c_contiguous", "dtype", "data", "ndim", "size")]
        parts = cupy.cuda.get_current_stream, *getters, getattr(memory, "ptr", None), getattr(memory, "device_id", None)
    elif getattr(value, "__cuda_ndarray__", False) or getattr(value, "__cuda_memory__", False):
        pass
    elif capsule is not None:
        letter = "T"
    elif is_exported(value):
        letter, parts = "D", (1,) if is_immutable(kind) else ()
    elif hasattr(value, "__cuda_array_interface__"):
        letter, parts = "I", (1,) if hasattr(value, "__dlpack_device__") else ()
    elif kind is ctypes.c_void_p:
        letter, parts = "P", (_VALUE,)
    elif kind.__name__ == "CUdeviceptr":
        letter = "w"
    elif kind.__module__.startswith("cuda.core") and hasattr(value, "memory_resource"):
        letter = "H"
    elif hasattr(value, "__dlpack__"):
        letter, parts = "D", (1,) if is_immutable(kind) else ()
    elif isinstance(value, (ctypes.Structure, ctypes.Union, ctypes.Array)):
        letter = "s"
    if letter:
        _add_known(kind, ord(letter), capsule, parts)


def _is_neg_function(torch: Any, tensor: Any) -> Any:
    """Find PyTorch's test for a lazily negated tensor: the address of the C++ function `is_neg`, if the pointer to the
    C++ tensor follows the PyObject header directly; else the method `Tensor.is_neg`, which takes 60 ns more."""
    try:
        function = ctypes.CDLL("libtorch_cpu.so", os.RTLD_NOLOAD)._ZN2at6native6is_negERKNS_6TensorE
    except (OSError, AttributeError):
        return torch.Tensor.is_neg
    follows_header = ctypes.c_size_t.from_address(id(tensor) + object.__basicsize__)
    is_tensor = follows_header.value == tensor._cdata
    return ctypes.cast(function, ctypes.c_void_p).value if is_tensor else torch.Tensor.is_neg


def _register_numba_type(plan: Any, launcher: Launcher, position: int, slot: Any, value: Any) -> None:
    """Register that arrays of this Numba type fit a slot, if all such arrays do."""
    try:
        numba_type = value._numba_type_
    except Exception:  # Numba raises its own errors for elements without a Numba type
        return
    fits = launcher.strided or numba_type.layout in "CF"
    if slot.form == "array":
        fits = slot.takes(numba_type)
    if fits and len(_held) < 20_000:
        _held[id(numba_type)] = numba_type
        native.fits(plan, position, numba_type)


def _register_numpy() -> None:
    """Register NumPy's scalars; unsigned ones of 64 bits are accepted as addresses too."""
    import numpy as np

    for characters, letter in (("?", "b"), ("bhilqBHI", "i"), ("LQ", "w"), ("efdg", "f"), ("FDG", "c"), ("V", "s")):
        for each in characters:
            kind = np.dtype(each).type
            _add_known(kind, ord("i" if letter == "w" and np.dtype(each).itemsize < 8 else letter))
            _seen.add(kind)


def _register_dtype(dtype: Any) -> None:
    if dtype not in _seen and len(_seen) < 10_000:
        _seen.add(dtype)
        code = element_of_dtype(dtype)
        if code in ELEMENTS:
            _add_known(dtype, 256 + ELEMENTS.index(code))


def _current_stream_of_cupy() -> Any:
    """CuPy's C function for the current stream, of a given device or the current one; None if its type is neither."""
    functions = getattr(sys.modules.get("cupy_backends.cuda.stream"), "__pyx_capi__", {})
    for name, signature in (("get_stream_ptr", '"intptr_t (int)"'), ("get_current_stream_ptr", '"intptr_t (void)"')):
        if signature in repr(functions.get(name)):
            return functions[name]
    return None
