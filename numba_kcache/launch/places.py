"""Where an argument goes, and how its refusal reads.

Promise     A refusal names position, C type and name of the parameter, the type and value given, why it does
            not fit and what to do. Making one never runs code of the value that could wait for the device.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from ..errors import ArgumentError
from ..model.parameter import Parameter

_SHOWN_LENGTH = 60


class Place(NamedTuple):
    """One parameter of one kernel.

    Args:
        kernel: The kernel's name.
        position: From 1.
        parameter: What the compiler says of it.
        typed: Whether its type is known, or only its size.
    """

    kernel: str
    position: int
    parameter: Parameter
    typed: bool = True

    def refuse(self, value: object, why: str, hint: str = "") -> ArgumentError:
        """The error to raise for `value`."""
        return ArgumentError(
            f"cannot pass {describe(value)} as argument {self.position} of {self.kernel} ({self.parameter})",
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
