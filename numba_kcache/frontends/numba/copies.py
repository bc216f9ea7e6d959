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

from .code import all_names
from .value import ORIGINAL, real_of, standing


class _Namespace(dict[Any, Any]):
    """The globals of copies; a class, so that it can be referred to weakly."""


_namespaces: weakref.WeakValueDictionary[int, _Namespace] = weakref.WeakValueDictionary()
_copies: weakref.WeakKeyDictionary[FunctionType, FunctionType] = weakref.WeakKeyDictionary()


_lock = threading.RLock()
_updated: set[int] = set()
"""Ids of the functions whose copies the present call has brought up to date: they may call each other."""


def copied(function: FunctionType) -> FunctionType:
    """The copy of a function, brought up to date with the copies of the device functions that it reads."""
    with _lock:
        is_first, made = not _updated, _copy_of(function)
        if id(function) not in _updated:
            _updated.add(id(function))
            try:
                _update(function, made)
            finally:
                if is_first:
                    _updated.clear()
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
    original, read = function.__globals__, {*all_names(function.__code__)}
    for name in [each for each in space if each not in original and each is not ORIGINAL]:
        del space[name]
    for name, value in list(original.items()):
        if name in read or name not in space or type(value) not in standing:  # else another copy's, which updates it
            space[name] = real_of(value) if name in read else value


def _copy_of(function: FunctionType) -> FunctionType:
    made, cells, original = _copies.get(function), function.__closure__ or (), function.__globals__
    if made is None or len(made.__closure__ or ()) != len(cells):
        space = _namespaces.get(id(original))
        if space is None:
            space = _namespaces[id(original)] = _Namespace(original)
            space[ORIGINAL] = original
        closure = tuple([CellType() for _ in cells])
        made = _copies[function] = FunctionType(function.__code__, space, function.__name__, None, closure)
    return made
