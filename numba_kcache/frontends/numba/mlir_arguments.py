"""Arguments that numba-cuda-mlir passes by rules of its own: arrays, tuples, dates, None.

Promise     Arrays of numba-cuda-mlir, CuPy and PyTorch, and objects with an array interface or DLPack, are treated
            alike, by their memory.
Not here    Numbers, and launchers (arguments). Host arrays and records, which numba-cuda-mlir's dispatcher launches.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from ...launch import Call, Memory, Settle, Slot, Unfit, is_exported
from ...launch.launcher import memory_of
from . import Flavour, surface
from .arguments import TYPE_NAMES, ArraySlot, OtherTypes, Values, array_type, codes_of, packed, slot_of


def array_type_of(flavour: Flavour, value: Any) -> Any:
    """The type of an array of another library, by its memory; None if numba-cuda-mlir has to type it."""
    found = _memory_of(value, None)
    if found is None:
        return None
    memory = found[0]
    return array_type(flavour, memory.element or "", len(memory.shape), layout_of(memory), memory.readonly)


def _memory_of(value: Any, call: Call | None) -> tuple[Memory, object] | None:
    """The memory of an array of another library, and the object that keeps it alive; None for other arguments."""
    kind = type(value)
    if kind is int or kind is float or kind is tuple or value is None or kind.__module__ == "numpy":
        return None
    torch = sys.modules.get("torch")
    has_interface = hasattr(value, "__cuda_array_interface__") or (
        torch is not None and isinstance(value, torch.Tensor)
    )
    if not has_interface or is_exported(value):
        return _borrowed(value, call)
    try:
        memory = memory_of(value)
    except Unfit as unfit:
        raise ValueError(f"cannot type a {kind.__module__}.{kind.__qualname__}: {unfit.why}") from unfit
    return None if memory is None or memory.element not in TYPE_NAMES else (memory, None)


def _borrowed(value: Any, call: Call | None) -> tuple[Memory, object] | None:
    if not (hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__")):
        return None
    from ...launch.dlpack import borrow

    found = borrow(value, 0 if call is None else call.handle)
    return None if found is None or found[0].element not in TYPE_NAMES else found


def layout_of(memory: Memory) -> str:
    """The layout of an array of another library: numba-cuda-mlir knows `"F"` too."""
    shape, strides, item_bytes = memory.shape, memory.strides, memory.item_bytes
    if strides is None or not shape or tuple(strides) == packed(shape, item_bytes):
        return "C"
    return "F" if tuple(strides) == packed(shape[::-1], item_bytes)[::-1] else "A"


# -- slots -----------------------------------------------------------------------------------------------------------


class MlirArraySlot(ArraySlot):
    """The slot of an array of any library, by its memory."""

    others = "C"  # in "F" or "A" order, an array of another library has another type

    def memory_of_other(self, value: Any, call: Call) -> Memory | None:
        """The memory of an array of another library; None for one of the host, which only numba-cuda-mlir copies."""
        memory, keeper = _memory_of(value, call) or (None, None)
        if keeper is not None:
            call.borrowed.append(keeper)
        return memory


# -- other arguments ---------------------------------------------------------------------------------------------


def other_codes(flavour: Flavour, kind: Any) -> tuple[str, ...]:
    """The type code of each parameter of a tuple, a date or None, as `codes_of`."""
    parts, cls = surface(flavour), type(kind)
    if cls is parts.NoneType:
        return ()
    if parts.BaseTuple in cls.__mro__:  # not isinstance: see flavour.is_a
        return tuple(code for each in kind for code in codes_of(flavour, each))
    if cls in (parts.types.NPDatetime, parts.types.NPTimedelta):
        return ("i8",)
    raise KeyError(kind)


def other_slot(flavour: Flavour, kind: Any, launcher: Any) -> Slot:
    """Make the slot of a tuple, a date or None, as `slot_of`."""
    parts, cls = surface(flavour), type(kind)
    if cls is parts.NoneType:
        return SettledSlot(lambda value, _call: () if value is None else _refuse())
    if parts.BaseTuple in cls.__mro__:
        return _tuple_slot(kind, [slot_of(flavour, each, launcher) for each in kind])
    return SettledSlot(lambda value, _call: (int(value.view("int64")),) if parts.typeof(value) == kind else _refuse())


class SettledSlot(Slot):
    """A slot whose `settle` is a given function."""

    def __init__(self, settle: Settle) -> None:
        self.settle = settle


def _refuse() -> Any:
    raise OtherTypes


def _tuple_slot(kind: Any, slots: Sequence[Slot]) -> Slot:
    def settle(value: Any, call: Call) -> Values:
        if not isinstance(value, tuple) or len(value) != len(slots):
            raise OtherTypes
        if getattr(kind, "instance_class", type(value)) is not type(value):
            raise OtherTypes
        found: list[Any] = []
        for slot, each in zip(slots, value, strict=True):
            found += slot.settle(each, call)
        return tuple(found)

    return SettledSlot(settle)
