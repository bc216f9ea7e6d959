"""Errors for arguments that do not fit their parameter.

Promise     An error names position, C type and name of the parameter, the type and value given, the reason and a
            step. Making one never runs code of the value that could wait for the device.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError

if TYPE_CHECKING:
    from .slots import ParameterSlot

_SHOWN_LENGTH = 60


def argument_error(parameter: ParameterSlot, value: object, why: str, hint: str = "") -> ArgumentError:
    """The error to raise for `value` as the argument of `parameter`."""
    return ArgumentError(
        f"cannot pass {describe(value)} as argument {parameter.position} of {parameter.kernel} ({parameter.declared})",
        why,
        hint,
    )


def describe(value: Any) -> str:
    """A value as a message shows it: numbers in full, arrays by library, element type and shape."""
    kind = type(value)
    if value is None:
        return "None"
    if kind in (int, float, complex, bool, str, bytes, tuple, list):
        text = repr(value) if kind not in (tuple, list) else f"{kind.__name__} of {len(value)}"
        return _short(text) if kind in (tuple, list, bool) else f"{_short(text)} ({kind.__name__})"
    if isinstance(value, ctypes._SimpleCData):
        return f"{_short(repr(value.value))} (ctypes.{kind.__name__})"
    module = kind.__module__.partition(".")[0]
    full = f"{module}.{kind.__name__}" if module not in ("builtins", "__main__") else kind.__name__
    if module == "numpy" and getattr(value, "shape", None) == () and kind.__name__ != "ndarray":
        return f"{_short(str(value))} ({full})"
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None:
        return full
    element = getattr(dtype, "name", None) or str(dtype).removeprefix("torch.")
    return f"{full} of {element} {tuple(shape)}"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_LENGTH else text[: _SHOWN_LENGTH - 3] + "..."
