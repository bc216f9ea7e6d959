"""Write a Python value that a kernel reads as plain values, or say why that cannot be done.

Promise     Two values have one form only if a compiler makes the same code of them: types count (1, True and 1.0
            differ), so do signed zeros, NaN payloads, the order of a dict, strides and dtype of an array.
            Nothing is captured in part: what is not known is `Refused`.
Not here    Functions and the compiler's own objects: the caller gives `other_form` for them.
"""

from __future__ import annotations

import enum
import os
import sys
import sysconfig
from collections.abc import Callable
from types import BuiltinFunctionType, ModuleType
from typing import Any

from ...keys import Plain, sha256
from .code import scalar_form

OtherForm = Callable[[Any], "Plain | None"]
"""Gives the form of what has code of its own or is the compiler's; None for anything else."""

_STANDARD = tuple(sysconfig.get_path(each) + os.sep for each in ("stdlib", "platstdlib"))

VOUCHED = "vouched for by depends="

REPR_SAYS_ALL = frozenset({bool, int, str, type(None)})
"""Types whose `repr` tells every two of their values apart, and from those of another."""


class Refused(Exception):
    """This value cannot be captured; the text says why."""


class Unvouchable(Refused):
    """Nor can `depends=` stand for it: the code would hold an address of this process, or it is known by one alone."""


def is_trusted(module: object, packages: frozenset[str]) -> bool:
    """Whether a module is of a package that is pinned by its version: the standard library, and `packages`.

    A user's own `random.py` or `types.py` that hides the standard library's is not.
    """
    top = module.partition(".")[0] if isinstance(module, str) else ""
    if top in packages:
        return True
    if top not in sys.stdlib_module_names or top not in sys.modules:
        return False
    path = getattr(sys.modules[top], "__file__", None)
    if path is None:
        return True  # built in or frozen
    return path.startswith(_STANDARD) and not path.startswith(tuple(each + "site-packages" for each in _STANDARD))


def trusted_name(value: Any, packages: frozenset[str]) -> str | None:
    """`module.qualname` where that names this very object in a trusted package; None otherwise."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if isinstance(value, ModuleType):
        return value.__name__ if is_trusted(value.__name__, packages) else None
    name = name if isinstance(name, str) else getattr(value, "__name__", None)
    if not (is_trusted(module, packages) and isinstance(name, str)):
        return None
    found: Any = sys.modules.get(str(module))
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}.{name}" if found is value else None


def value_form(value: Any, packages: frozenset[str], other_form: OtherForm, inside: tuple[int, ...] = ()) -> Plain:
    """The value as plain values.

    Args:
        value: Of a program.
        packages: Pinned by their versions, like the standard library: what they define counts by its name.
        other_form: For what only the caller knows.
        inside: Ids of the containers around the value.

    Raises:
        Refused: It, or something in it, cannot be captured.
    """
    try:
        return scalar_form(value)
    except TypeError:
        pass
    if len(inside) > 32 or id(value) in inside:
        raise Refused("it contains itself or is nested too deeply")
    within = (*inside, id(value))

    def forms(values: Any) -> list[Plain]:
        return [value_form(each, packages, other_form, within) for each in values]

    kind = type(value)
    if kind is dict and REPR_SAYS_ALL.issuperset(map(type, (*value, *value.values()))):
        return "repr", repr(value)  # decorator options: a third of the time of a fingerprint otherwise
    if kind in (tuple, list):
        return kind.__name__, forms(value)
    if kind is dict:
        return "dict", forms(value.keys()), forms(value.values())
    if kind in (set, frozenset):
        return kind.__name__, tuple(sorted(repr(each) for each in forms(value)))
    if kind in (range, slice):
        return kind.__name__, forms((value.start, value.stop, value.step))
    if isinstance(value, enum.Enum):
        enumeration, content = forms((kind, value.value))
        return "enum member", enumeration, value.name, content
    if isinstance(value, tuple) and isinstance(getattr(value, "_fields", None), tuple):
        return "namedtuple", *forms((kind,)), forms(value)
    known = _numpy_form(value) or _class_form(value, packages, forms) or other_form(value)
    if known is None:
        raise _refusal(value)
    return known


def _numpy_form(value: Any) -> Plain | None:
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, (numpy.ndarray, numpy.generic, numpy.dtype)):
        return None
    dtype = value if isinstance(value, numpy.dtype) else value.dtype
    if dtype.hasobject:
        raise Refused("it holds Python objects")
    form = repr(dtype), dtype.str, dtype.itemsize, dtype.alignment
    if isinstance(value, numpy.dtype):
        return "numpy dtype", form
    if isinstance(value, numpy.generic):
        return "numpy scalar", type(value).__name__, form, value.tobytes()
    if type(value) not in (numpy.ndarray, numpy.recarray):
        raise Refused(f"it is a {type(value).__name__}, a subclass of numpy.ndarray")
    content = sha256(value.tobytes("A")).digest()
    flags = (value.flags.c_contiguous, value.flags.f_contiguous, value.flags.aligned, value.flags.writeable)
    return "numpy array", form, value.shape, value.strides, flags, content


def _class_form(value: Any, packages: frozenset[str], forms: Callable[[Any], list[Plain]]) -> Plain | None:
    if not isinstance(value, type):
        return None
    name = trusted_name(value, packages)
    if name:
        return "class", name
    if issubclass(value, enum.Enum):
        pinned = [base for base in value.__mro__ if is_trusted(base.__module__, packages)]
        bases = tuple(f"{base.__module__}.{base.__qualname__}" for base in pinned)
        members = value.__members__
        return "enum", value.__name__, bases, tuple(members), forms(each.value for each in members.values())
    fields = getattr(value, "_fields", None)
    if issubclass(value, tuple) and isinstance(fields, tuple):
        return "namedtuple class", value.__name__, fields
    raise Refused("it is a class")


def vouched_form(value: Any) -> Plain:
    """The form of a value that cannot be captured where `depends=` stands for its content: its type's name alone."""
    return VOUCHED, f"{type(value).__module__}.{type(value).__qualname__}"


def _refusal(value: Any) -> Refused:
    kind = type(value)
    if getattr(value, "__cuda_array_interface__", None) is not None:
        why = "whose address would be in the code: pass it as an argument (depends= cannot stand for it)"
        return Unvouchable(f"it is a device array, {why}")
    if any(base.__module__ in ("_ctypes", "ctypes") for base in kind.__mro__):
        why = "whose address would be in the code (depends= cannot stand for it)"
        return Unvouchable(f"it is a {kind.__qualname__} of ctypes, {why}")
    if isinstance(value, ModuleType):
        return Refused("it is a module that is used as a value, not by its attributes alone")
    if isinstance(value, BuiltinFunctionType):
        return Refused("it is compiled code of an extension module")
    return Refused(f"a {kind.__module__}.{kind.__qualname__} cannot be told from another one by its content")


def shown(value: Any) -> Plain:
    """A value as a reader of a difference wants to see it."""
    if value is None or type(value) in (bool, int, float, str):
        return value if type(value) is not str or len(value) <= 200 else value[:200] + "..."
    numpy = sys.modules.get("numpy")
    if numpy is not None and type(value) is numpy.ndarray:
        return f"{value.dtype.str} array of shape {value.shape}"  # str(dtype) imports a module
    if type(value) is dict:
        return {str(key): shown(each) for key, each in value.items()}
    text = repr(value)
    return text if len(text) <= 200 and " at 0x" not in text else type(value).__qualname__
