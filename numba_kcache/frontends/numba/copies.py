"""Copies of a program's functions with Numba's objects in place of stand-ins, which Numba compiles.

Promise     The program's functions and globals are not changed. `copied` returns the same copy for the same function,
            with the globals, defaults and closure variables that the function has now.
Method      The copies of a module's functions share globals of their own. Each brings those that it reads up to date,
            with stand-ins replaced, also in tuples. In what is not copied (a module, the code of an `@overload`), Numba
            gets the type of a stand-in from its `_numba_type_`.
"""

from __future__ import annotations

import threading
import weakref
from operator import is_
from types import CellType, FunctionType
from typing import Any

from .fingerprint import ORIGINAL, read_code, real_of


class _Namespace(dict[Any, Any]):
    """The globals of copies; a class, so that it can be referred to weakly."""


_namespaces: weakref.WeakValueDictionary[int, _Namespace] = weakref.WeakValueDictionary()
_copies: weakref.WeakKeyDictionary[FunctionType, FunctionType] = weakref.WeakKeyDictionary()
_call = threading.local()
"""By id, the functions whose copies the present call has brought up to date: they may call each other."""


def copied(function: FunctionType) -> FunctionType:
    """The copy of a function, brought up to date with the copies of the device functions that it reads.

    Holds no lock: threads that update one copy at a time write the same values.
    """
    updated: Any = vars(_call)
    is_first, made = not updated, _copy_of(function)
    if id(function) not in updated:
        updated[id(function)] = True
        try:
            _update(function, made)
        finally:
            if is_first:
                updated.clear()
    return made


def _update(function: FunctionType, made: FunctionType) -> None:
    for name in ("__code__", "__doc__", "__module__", "__qualname__", "__annotations__", "__kwdefaults__"):
        setattr(made, name, getattr(function, name))
    vars(made).update(vars(function))
    made.__defaults__ = _real(function.__defaults__)
    for cell, own in zip(function.__closure__ or (), made.__closure__ or (), strict=True):
        if cell != CellType():
            own.cell_contents = _real(cell.cell_contents)
    space: Any = made.__globals__
    for name in read_code(function.__code__, with_lines=False).words:
        if name in function.__globals__:
            space[name] = _real(function.__globals__[name])
        else:
            space.pop(name, None)


def _real(value: Any) -> Any:
    """The compiler's objects in place of stand-ins, also in tuples; other objects unchanged."""
    if tuple not in type(value).__mro__:  # a proxy's `__class__` may raise
        return real_of(value)
    items = [*map(_real, value)]
    return value if all(map(is_, items, value)) else tuple.__new__(type(value), items)


def _copy_of(function: FunctionType) -> FunctionType:
    made = _copies.get(function)
    if made is None:
        original = function.__globals__
        space = _namespaces.get(id(original))
        if space is None:
            own = original.keys() & {"__name__", "__builtins__"}  # and no global that is not read: it may be large
            space = _namespaces[id(original)] = _Namespace((each, original[each]) for each in own)
            space[ORIGINAL] = original
        closure = tuple([CellType() for _ in function.__closure__ or ()])
        made = _copies.setdefault(function, FunctionType(function.__code__, space, function.__name__, None, closure))
    return made
