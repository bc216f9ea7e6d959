"""Argument types of a Numba kernel as plain values that say all of them, or a refusal.

Promise     Two signatures have the same form only if Numba makes the same code of both. A type that stands for an
            object of this process, or that is not Numba's own, is `Refused`: its text does not say what it means.
Ground      Numba's `repr` of a type names dtype, axes, layout, alignment, and the fields of a record with their
            offsets; of a named tuple or an enum it names only the class.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..keys.encoding import Plain
from .numba_objects import is_numba_type
from .python_value import Refused, value_form


def signature_form(types: Sequence[Any]) -> Plain:
    """The types, in order.

    Raises:
        Refused: One cannot be told from another by what it says of itself.
    """
    return [_type_form(each) for each in types]


def _type_form(kind: Any) -> Plain:
    if not is_numba_type(kind):
        raise Refused(f"the argument type {kind} is not Numba's own: what it lowers to is not known here")
    name, python_class = type(kind).__name__, getattr(kind, "instance_class", None)
    if isinstance(python_class, type):  # a named tuple or an enum
        known = value_form(python_class, lambda _value: None)
        members = list(kind) if hasattr(kind, "__iter__") else [kind.dtype]
        return name, known, [_type_form(each) for each in members]
    if hasattr(kind, "__iter__"):  # a tuple
        return name, [_type_form(each) for each in kind]
    text = repr(kind)
    if " at 0x" in text or "<" in text:
        raise Refused(f"the argument type {text} stands for an object of this process")
    return name, text
