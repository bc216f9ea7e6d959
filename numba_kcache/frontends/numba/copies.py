"""Copies of a program's functions with Numba's objects in place of stand-ins, which Numba compiles.

Promise     The program's functions and globals are not changed. `copied` returns the same copy for the same function,
            with the globals, defaults and closure variables that the function has now. A function that reaches no
            stand-in is its own copy, so that registrations for it are found.
Method      A copy has a namespace of its own, in which the names that it reads are replaced; the other functions of the
            module share it. Of an attribute of a module that is replaced, the copy has a copy of the module.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from types import CellType, FunctionType, ModuleType
from typing import Any

from .code import all_names
from .value import ORIGINAL


class _Namespace(dict[Any, Any]):
    """The globals of copies; a class, so that it can be referred to weakly."""


_namespaces: weakref.WeakValueDictionary[int, _Namespace] = weakref.WeakValueDictionary()
_copies: weakref.WeakKeyDictionary[FunctionType, FunctionType] = weakref.WeakKeyDictionary()


def copied(function: FunctionType) -> FunctionType:
    """The copy of a function, brought up to date with everything that it reaches."""
    return _Update().function(function)


class _Update:
    """One update of copies."""

    def __init__(self) -> None:
        self._done: dict[int, Any] = {}

    def function(self, function: FunctionType) -> FunctionType:
        """Copy or update one function."""
        known: FunctionType | None = self._done.get(id(function))
        if known is not None:
            return known
        if not reaches(function):
            return function
        space, cells = self._namespace(function.__globals__), function.__closure__ or ()
        made = _copies.get(function)
        if made is None or len(made.__closure__ or ()) != len(cells):
            made = FunctionType(function.__code__, space, function.__name__, None, tuple(CellType() for _ in cells))
            _copies[function] = made
        self._done[id(function)] = made
        for name in ("__code__", "__doc__", "__module__", "__qualname__", "__annotations__"):
            setattr(made, name, getattr(function, name))
        vars(made).update(vars(function))
        made.__defaults__ = function.__defaults__ and tuple(map(self.value, function.__defaults__))
        made.__kwdefaults__ = function.__kwdefaults__
        for cell, own in zip(cells, made.__closure__ or (), strict=True):
            if cell != CellType():
                own.cell_contents = self.value(cell.cell_contents, function)
        self._replace(space, function.__globals__, function)
        return made

    def value(self, value: Any, reader: FunctionType | None = None) -> Any:
        """The value of a name in a copy."""
        if stands_in(value):
            return value._numba_object()
        if type(value) is FunctionType:
            return self.function(value)
        if type(value) is tuple:
            return tuple([self.value(each, reader) for each in value])
        if isinstance(value, ModuleType) and reader is not None and _in_module(value, reader):
            if id(value) not in self._done:
                made = self._done[id(value)] = ModuleType(value.__name__)
                space: dict[Any, Any] = vars(made)
                space |= vars(value)
                space[ORIGINAL] = vars(value)
                self._replace(space, vars(value), reader)
            return self._done[id(value)]
        return value

    def _namespace(self, original: dict[str, Any]) -> _Namespace:
        found = _namespaces.get(id(original))
        if found is None:
            found = _namespaces[id(original)] = _Namespace(original)
            found[ORIGINAL] = original
        return found

    def _replace(self, space: dict[Any, Any], original: dict[str, Any], reader: FunctionType) -> None:
        """Put the present values of a namespace into that of copies, those that the reader names replaced."""
        for name in [each for each in space if each not in original and each is not ORIGINAL]:
            del space[name]
        read = {*all_names(reader.__code__)}
        for name, value in list(original.items()):
            space[name] = self.value(value, reader) if name in read else _kept(space.get(name), value)


def _kept(before: Any, value: Any) -> Any:
    """The value of a name that this function does not read: what another function's copy reads stays."""
    return before if before is not None and _may_differ(value) else value


def _may_differ(value: Any) -> bool:
    return stands_in(value) or isinstance(value, (FunctionType, ModuleType, tuple))


def stands_in(value: Any) -> bool:
    """Check for a stand-in."""
    return hasattr(type(value), "_numba_object")


def reaches(function: FunctionType) -> bool:
    """Check whether a stand-in is read by a function, or by a function that it reaches."""
    waiting, seen = [function], {id(function)}
    for each in waiting:  # grows while it is walked
        for value in _read(each):
            if stands_in(value):
                return True
            if type(value) is FunctionType and id(value) not in seen:
                seen.add(id(value))
                waiting.append(value)
    return False


def _read(function: FunctionType) -> Iterator[Any]:
    """Yield the values that a function may read: globals, closure variables, and the attributes of modules."""
    names = {*all_names(function.__code__)}
    cells = [each.cell_contents for each in function.__closure__ or () if each != CellType()]
    found = [function.__globals__[name] for name in names & function.__globals__.keys()]
    yield from _flat([*found, *cells, *(function.__defaults__ or ())], names)


def _flat(values: Iterable[Any], names: set[str]) -> Iterator[Any]:
    for value in values:
        if type(value) is tuple:
            yield from _flat(value, names)
        elif isinstance(value, ModuleType) and not stands_in(value):
            for name in names & vars(value).keys():
                inner = vars(value)[name]
                if not isinstance(inner, ModuleType) or stands_in(inner):
                    yield inner
        else:
            yield value


def _in_module(module: ModuleType, reader: FunctionType) -> bool:
    """Check whether a name that the reader may read in a module has to be replaced."""
    for value in _flat([module], {*all_names(reader.__code__)}):
        if stands_in(value) or (type(value) is FunctionType and reaches(value)):
            return True
    return False
