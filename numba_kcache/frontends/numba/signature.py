"""The argument types of a Numba kernel as a component of the key.

Promise     Two signatures have one digest only if Numba compiles the same code for both. Numba's own text of a
            type does not say that: it leaves out the field names of a named tuple and the members of an enum.
            A type that an extension defines is code of its own: `Uncapturable`, unless the user's `depends=` vouches
            for that code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...keys.components import Component, component
from ...keys.encoding import Plain
from ..python.function import Uncapturable
from ..python.value import Refused, value_form
from .dialect import packages, type_form
from .objects import is_numba_type, loaded


def signature_component(types: Sequence[Any], *, is_vouched: bool = False) -> Component | Uncapturable:
    """The types in order; the component's value is their text, for explanations.

    Args:
        types: Of Numba.
        is_vouched: Whether the user says what the code of an extension's types depends on.
    """
    try:
        form = [_type_form(each, is_vouched) for each in types]
    except Refused as refusal:
        return Uncapturable(str(refusal), "argument types")
    return component("argument types", form)._replace(value=[str(each) for each in types])


def _type_form(kind: Any, is_vouched: bool) -> Plain:
    if not is_vouched and not is_numba_type(kind):
        where = type(kind).__module__
        raise Refused(f"{kind} is a type of {where}, not of Numba (depends= takes what stands for its code)")
    if _is(kind, "BaseNamedTuple"):
        return "named tuple", _class_form(kind.instance_class), [_type_form(each, is_vouched) for each in kind]
    if _is(kind, "BaseTuple"):
        return "tuple", [_type_form(each, is_vouched) for each in kind]
    if _is(kind, "EnumMember"):
        return "enum member", type(kind).__name__, _class_form(kind.instance_class), _type_form(kind.dtype, is_vouched)
    if _is(kind, "Array"):
        flags = (kind.ndim, kind.layout, bool(kind.mutable), bool(kind.aligned))
        return "array", type(kind).__qualname__, _type_form(kind.dtype, is_vouched), flags
    text = repr(kind)
    if "<" in text or " at 0x" in text:
        raise Refused(f"the type {text} stands for an object of this process")
    return f"{type(kind).__module__}.{type(kind).__qualname__}", text, str(kind)


def _is(kind: Any, name: str) -> bool:
    known = loaded("numba.core.types", name)
    return isinstance(known, type) and isinstance(kind, known)


def _class_form(kind: type) -> Plain:
    return value_form(kind, packages, type_form)
