"""Make the launcher of a numba-cuda-mlir kernel, for arrays of any library.

Promise     Numbers are packed by the types that the kernel was compiled for, never by those of another launch. Other
            arguments raise `OtherTypes`.
Method      One slot per argument. An argument takes these parameters of the cubin:

                array of n axes     address twice, offset 0, shape, strides in elements (of records: in bytes)
                integer, boolean    the value, with its width
                float16             its bits
                float32, float64    the value
                complex64, 128      one parameter of both parts
                datetime, timedelta the count of its units
                record              the address of a copy on the device
                tuple               the parameters of its members
                None                nothing

Not here    Arrays (mlir_arrays); enums, pointers, texts, functions, extensions and debug kernels: the dispatcher's
            launch (mlir_dispatcher).
Source      numba-cuda-mlir 0.6.0, cext/launcher of v0.5.0. tests/integration/test_mlir_on_fake_driver.py compares the
            bytes of launches with those of numba-cuda-mlir.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import ArgumentError
from ...launch import Dim3
from ...launch.arguments import Call, Order, Settle, Slot
from ...launch.devices import stream_identity
from ...launch.launcher import Relaunch
from ...launch.loader import LoadedKernel
from ...launch.typed import OtherTypes
from .arguments import Otherwise, TypedLauncher, lay_out, number_code, number_slot
from .mlir_arrays import MlirArraySlot, copied
from .mlir_internals import CONFIG, surface
from .numbas import loaded


class _Sentinel:
    """Stored with the modules of numba-cuda-mlir's context, and finalised when the context is destroyed."""


def watch_context(loaded: LoadedKernel) -> None:
    """Clear a module's `live` when `cuda.close()` destroys numba-cuda-mlir's context, so that it is loaded again."""
    module, live = loaded.module, loaded.live
    if getattr(module, "mlir_context", None) is None:
        sentinel, modules = _Sentinel(), surface().get_context().modules
        modules[sentinel] = sentinel
        module.mlir_context = weakref.ref(sentinel, lambda _gone: live.__setitem__(0, False))


class MlirLauncher(TypedLauncher):
    """A launcher that fills in defaults.

    Args:
        kinds: Types of the arguments.
        complete: Adds the defaults of omitted arguments.
        is_cast: Whether numbers are converted to the types of a signature that the user wrote.
        more: As for `TypedLauncher`.

    """

    def __init__(
        self,
        *arguments: Any,
        kinds: Sequence[Any],
        complete: Callable[[tuple[Any, ...]], tuple[Any, ...]],
        is_cast: bool,
        **more: Any,
    ) -> None:
        super().__init__(*arguments, **more)
        self._kinds, self._complete, self._is_cast = kinds, complete, is_cast

    def make_slots(self) -> list[Slot]:
        """Make a slot for each argument, at the first launch."""
        self.slots = slots = [slot_of(each, self, self._is_cast) for each in self._kinds]
        return slots

    def _slow(
        self, arguments: tuple[Any, ...], code: int, shape: tuple[Dim3, Dim3, int], handle: int, stream: Any
    ) -> None:
        super()._slow(self._complete(arguments), code, shape, handle, stream)

    def left_after_waits(self, orders: list[Order], handle: int) -> list[Order]:
        """Wait on the host for the streams of array interfaces, unless something is captured or the setting of
        numba-cuda-mlir forbids it. Its own arrays' streams do not count."""
        orders = [each for each in orders if not each.is_numba]
        is_captured = any(self.module.is_capturing(each.handle) for each in orders)
        if is_captured or not loaded(CONFIG, "CUDA_ARRAY_INTERFACE_SYNC"):
            return orders
        for each in orders:
            if not each.is_current and stream_identity(each.handle) != stream_identity(handle):
                surface().get_context().create_external_stream(each.handle).synchronize()
        return [each for each in orders if each.is_current]


def make_launcher(
    kernel: LoadedKernel,
    name: str,
    types: Sequence[Any],
    *,
    relaunch: Relaunch,
    otherwise: Otherwise,
    complete: Callable[[tuple[Any, ...]], tuple[Any, ...]],
    attributes: bytes = b"",
    labels: Sequence[str] | None = None,
    is_cast: bool = False,
) -> MlirLauncher | None:
    """Make the launcher of one signature; None if it does not support one of the argument types.

    Args:
        kernel: The kernel, loaded on a device.
        name: Its name in messages.
        types: Types of the arguments.
        relaunch: As in `Launcher`.
        otherwise: As in `TypedLauncher`.
        complete: As in `MlirLauncher`.
        attributes: Launch attributes, as `Launcher` takes them.
        labels: Name and type of each argument, if each launch is waited for (`debugging`); else None.
        is_cast: Whether numbers are converted to the types of a signature that the user wrote.

    Raises:
        ArgumentError: The cubin's parameters are not those of this signature.
    """
    try:
        flat = [inner for each in types for inner in (each.types if _is_varargs(each) else (each,))]
        codes = [code for each in flat for code in codes_of(each)]
    except KeyError:
        return None
    return MlirLauncher(
        kernel,
        name,
        lay_out(name, codes, kernel.entry.parameters),
        attributes=attributes,
        relaunch=relaunch,
        kinds=flat,
        otherwise=otherwise,
        complete=complete,
        is_cast=is_cast,
        debug_labels=labels,
    )


def _is_varargs(kind: Any) -> bool:
    return bool(type(kind).__name__.startswith("StarArg"))


def codes_of(kind: Any) -> tuple[str, ...]:
    """The type code (`model.artifact`) of each parameter that an argument of a type takes.

    Raises:
        KeyError: The launcher cannot pack arguments of this type.
    """
    parts, cls = surface(), type(kind)
    if cls is parts.Array:
        return "u8", "u8", *("i8",) * (1 + 2 * kind.ndim)
    if cls is parts.NoneType:
        return ()
    if parts.BaseTuple in cls.__mro__:  # not isinstance: see numbas.is_a
        return tuple(code for each in kind for code in codes_of(each))
    if cls is parts.Complex:
        return (f"c{kind.bitwidth // 16}",)
    if cls is parts.Record or cls in (parts.types.NPDatetime, parts.types.NPTimedelta):
        return ("u8",) if cls is parts.Record else ("i8",)
    if cls not in (parts.Integer, parts.Float, parts.Boolean):
        raise KeyError(kind)
    return (number_code(dtype_of(kind)),)


def dtype_of(kind: Any) -> Any:
    """The NumPy dtype of a number's type."""
    import numpy

    return numpy.dtype(str(kind))


def slot_of(kind: Any, launcher: MlirLauncher, is_cast: bool = False) -> Slot:
    """Make the slot of an argument of one type.

    Raises:
        KeyError: As for `codes_of`.
    """
    parts, cls = surface(), type(kind)
    if cls is parts.Array:
        return MlirArraySlot(kind, launcher)
    if cls is parts.NoneType:
        return _values_slot(lambda value: () if value is None else _refuse())
    if cls is parts.Record:
        return _record_slot(kind)
    if parts.BaseTuple in cls.__mro__:
        return _tuple_slot(kind, [slot_of(each, launcher) for each in kind])
    if cls in (parts.types.NPDatetime, parts.types.NPTimedelta):
        return _values_slot(lambda value: (int(value.view("int64")),) if parts.typeof(value) == kind else _refuse())
    codes_of(kind)
    slot = number_slot(dtype_of(kind))
    return _cast_slot(slot, dtype_of(kind)) if is_cast else slot


def _refuse() -> Any:
    raise OtherTypes


class _SettledSlot(Slot):
    """A slot whose `settle` is a given function."""

    def __init__(self, settle: Settle) -> None:
        self.settle = settle


def _values_slot(values_of: Callable[[Any], tuple[Any, ...]]) -> Slot:
    return _SettledSlot(lambda value, _stream_id, _call: values_of(value))


def _cast_slot(exact: Slot, dtype: Any) -> Slot:
    """The slot of a number that is converted to the type in the user's signature, if that preserves its value."""
    numpy_class, letter, bits = dtype.type, dtype.kind, 8 * dtype.itemsize
    least, beyond = (-(1 << bits - 1), 1 << bits - 1) if letter == "i" else (0, 1 << bits)

    def settle(value: Any, stream_id: int, call: Call | None) -> tuple[Any, ...]:
        try:
            number = operator.index(value) if letter in "iu" else {"f": float, "c": complex, "b": bool}[letter](value)
            fits = letter not in "iu" or least <= number < beyond
        except TypeError:
            fits = False
        if not fits:
            raise ArgumentError(
                f"cannot pass {value!r}", f"the parameter is of {dtype.name}, which cannot represent it",
                "convert it, or change the signature",
            )  # fmt: skip
        found: tuple[Any, ...] = exact.settle(numpy_class(number), stream_id, call)
        return found

    return _SettledSlot(settle)


def _tuple_slot(kind: Any, slots: Sequence[Slot]) -> Slot:
    def settle(value: Any, stream_id: int, call: Call | None) -> tuple[Any, ...]:
        if not isinstance(value, tuple) or len(value) != len(slots):
            raise OtherTypes
        if getattr(kind, "instance_class", type(value)) is not type(value):
            raise OtherTypes
        found: list[Any] = []
        for slot, each in zip(slots, value, strict=True):
            found += slot.settle(each, stream_id, call)
        return tuple(found)

    return _SettledSlot(settle)


def _record_slot(kind: Any) -> Slot:
    parts = surface()

    def settle(value: Any, _stream_id: int, call: Call | None) -> tuple[Any, ...]:
        if isinstance(value, parts.DeviceRecord):
            if parts.typeof(value) != kind:
                raise OtherTypes
            return (value.gpu_data.device_ctypes_pointer.value,)
        if isinstance(value, parts.DeviceNDArray) or parts.typeof(value) != kind or call is None:
            raise OtherTypes
        return (copied(value, call)[0],)

    return _SettledSlot(settle)
