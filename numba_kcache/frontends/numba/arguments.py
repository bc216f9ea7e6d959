"""Launch a Numba kernel of one signature straight from its arguments, where all are of the common exact types.

Promise     A launch made here has the parameter bytes of Numba's own. What is not of exactly the types that the
            kernel was compiled for is handed on: `OtherTypes`, before anything is queued.
Method      One slot per argument (`slots`), its words as `numba_abi` has them. An array is known by the type that it
            keeps, which Numba interns; a number by its class.
Not here    Host arrays, records, tuples, enums, dates, other libraries' arrays, `cuda.In` and its kin, extensions and
            debug kernels: Numba's own launch code does those (numba_overload).
Ground      numba-cuda 0.30.4: DeviceNDArray keeps its `_numba_type_`; `_Kernel._prepare_args` hands on its strides as
            they are. Numba types a Python int as int64, a float as float64, a complex as complex128.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...launch.arguments import Call, Slot
from ...launch.configurations import Dim3
from ...launch.launcher import MISSING, Launcher, Relaunch
from ...launch.loader import LoadedKernel
from .abi import Argument, flatten, lay_out

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
            (v{k},) = spread{k}(a{k})
"""
)

_PYTHON = {"int64": int, "float64": float, "complex128": complex, "bool": bool}
"""What Numba types as if it were NumPy's."""


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
    """What launches one signature on the kernel's device; None where an argument type is not for this path.

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
    arguments = flatten(types)
    layout, slots = lay_out(name, arguments, kernel.entry.parameters), slots_of(types, arguments)
    return NumbaLauncher(
        kernel,
        name,
        layout,
        attributes=attributes,
        relaunch=relaunch,
        slots=slots,
        otherwise=otherwise,
        debug_labels=labels,
    )


def are_straight(types: Sequence[Any]) -> bool:
    """Whether arguments of all these types can be packed here."""
    from numba.cuda import types as numba_types

    simple = (numba_types.Array, numba_types.Integer, numba_types.Float, numba_types.Complex, numba_types.Boolean)
    return all(type(each) in simple for each in types)


def slots_of(types: Sequence[Any], arguments: Sequence[Argument]) -> list[Slot]:
    """A slot for each argument of types that are straight; `arguments` is what `flatten` makes of them."""
    pairs = zip(types, arguments, strict=True)
    return [_array_slot(kind) if argument.kind == "array" else _number_slot(kind, argument) for kind, argument in pairs]


def _array_slot(kind: Any) -> Slot:
    from numba.cuda.cudadrv.devicearray import DeviceNDArray

    def settle(value: Any, _stream_id: int, _call: Call | None) -> tuple[Any, ...]:
        if type(value) is not DeviceNDArray or not (value._numba_type_ is kind or value._numba_type_ == kind):
            raise OtherTypes
        address = value.gpu_data.device_ctypes_pointer.value or 0
        return 0, 0, value.size, value.dtype.itemsize, address, *value.shape, *value.strides

    return Slot(settle, lambda: (_ARRAY_LINES, {"kind{k}": kind}, _ARRAY_VALUES))


def _number_slot(kind: Any, argument: Argument) -> Slot:
    import numpy

    name = str(kind)
    python, own = _PYTHON.get(name), numpy.dtype(name).type
    classes = frozenset((own, python or own))

    def settle(value: Any, _stream_id: int, _call: Call | None) -> tuple[Any, ...]:
        if type(value) not in classes or (type(value) is int and not -(2**63) <= value < 2**63):
            raise OtherTypes  # Numba types a larger int as uint64, or refuses it
        return argument.spread(value)

    lines, values = _NUMBER_LINES, "a{k}"
    if name.startswith("complex"):
        values = "a{k}.real, a{k}.imag"
    elif name == "float16":
        lines, values = _HALF_LINES, "v{k}"
    names = {"first{k}": python or own, "second{k}": own, "spread{k}": argument.spread}
    return Slot(settle, lambda: (lines, names, values))
