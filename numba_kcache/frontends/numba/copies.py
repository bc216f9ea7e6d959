"""Copies of a program's functions with Numba's objects in place of stand-ins, which Numba compiles.

Promise     The program's functions and globals are not changed. `copied` returns the same copy for the same function,
            with the globals, defaults and closure variables that the function has now.
Method      A copy has globals of its own, in which the stand-ins that it reads are replaced; the other functions of the
            module share them. In what is not copied (a module, a tuple, the code of an `@overload`), Numba gets the
            type of a stand-in from its `_numba_type_`.
"""

from __future__ import annotations

import threading
import weakref
from types import CellType, FunctionType
from typing import Any

from .fingerprint import ORIGINAL, read_code, real_of, standing


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
    made.__defaults__ = function.__defaults__ and tuple(map(real_of, function.__defaults__))
    for cell, own in zip(function.__closure__ or (), made.__closure__ or (), strict=True):
        if cell != CellType():
            own.cell_contents = real_of(cell.cell_contents)
    space: Any = made.__globals__
    original, read = function.__globals__, read_code(function.__code__, with_lines=False).words
    for name in {*space} - {*original} - {ORIGINAL}:
        space.pop(name, None)
    for name, value in list(original.items()):
        if name in read or type(value) not in standing:
            space[name] = real_of(value) if name in read else value
        else:
            space.setdefault(name, value)  # another copy may have put the real object there


def _copy_of(function: FunctionType) -> FunctionType:
    made = _copies.get(function)
    if made is None:
        original = function.__globals__
        space = _namespaces.get(id(original))
        if space is None:
            space = _namespaces[id(original)] = _Namespace(original)
            space[ORIGINAL] = original
        closure = tuple([CellType() for _ in function.__closure__ or ()])
        made = _copies.setdefault(function, FunctionType(function.__code__, space, function.__name__, None, closure))
    return made
