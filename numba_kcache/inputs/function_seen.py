"""What the reading of a function met, to tell quickly whether another reading would meet the same.

Promise     `holds` is true only if nothing that the reading depended on has changed since: code, defaults, closures and
            options of every function by identity; names by what they name; mutable data by its content. What cannot be
            compared so makes the whole incomplete, and `holds` false for good.
Method      Comparing takes a twentieth of a reading: a list for each kind of thing, and no walk.
Not here    Which things a reading meets (python_function).
"""

from __future__ import annotations

import sys
from itertools import repeat
from operator import is_
from types import FunctionType, ModuleType
from typing import Any

from ..keys.encoding import Plain, encode
from .numba_objects import is_numba_type
from .python_value import value_form

_CONSTANT = frozenset((bool, int, float, complex, str, bytes, type(None), type(...)))
_CONTAINERS = frozenset((tuple, list, dict, set, frozenset))

LARGE_ARRAY_BYTES = 1 << 16
"""Arrays of more are not compared, hence not read ahead of their use: their content is what takes the time."""

_ABSENT = object()


class Seen:
    """What one reading met.

    Args:
        registrations: Gives the user's registrations; the same object while nothing was registered.

    Attributes:
        is_complete: Whether everything that was met can be compared.
    """

    __slots__ = (
        "_arrays", "_cells", "_dispatchers", "_functions", "_lists", "_modules", "_names", "_registered", "_values",
        "is_complete",
    )  # fmt: skip

    def __init__(self, registrations: Any) -> None:
        self.is_complete = True
        self._registered = registrations, registrations()
        self._functions: list[tuple[FunctionType, Any, Any]] = []
        self._dispatchers: list[tuple[Any, Any, dict[str, Any], tuple[Any, ...]]] = []
        self._lists: list[list[Any]] = []
        self._modules: dict[int, ModuleType] = {}
        self._names: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}
        self._cells: list[tuple[Any, Any]] = []
        self._arrays: list[tuple[Any, tuple[Any, ...]]] = []
        self._values: list[tuple[Any, bytes]] = []

    # -- while reading: each says whether it can be compared ----------------------------------------

    def function(self, function: FunctionType) -> bool:
        """A function is read."""
        self._functions.append((function, function.__code__, function.__defaults__))
        return not function.__kwdefaults__

    def dispatcher(self, dispatcher: Any) -> bool:
        """A dispatcher's options are read: constants, and lists with nothing in them."""
        options = dispatcher.targetoptions
        self._dispatchers.append((dispatcher, dispatcher.py_func, options, (*options, *options.values())))
        for each in options.values():
            if type(each) is list:
                self._lists.append(each)
                if each:
                    return False
            elif type(each) not in _CONSTANT and not _is_constant(each):
                return False
        return type(options) is dict and not options.get("link") and _is_open(dispatcher)

    def name(self, namespace: dict[str, Any], name: str) -> bool:
        """A name is looked up in a namespace, and is there or not."""
        known = self._names.get(id(namespace))
        if known is None:
            known = self._names[id(namespace)] = namespace, {}
        known[1].setdefault(name, namespace.get(name, _ABSENT))
        return type(namespace) is dict

    def attribute(self, module: ModuleType, name: str) -> bool:
        """An attribute is taken from a module, which has it of its own."""
        self._modules[id(module)] = module
        return type(module) is ModuleType and name in module.__dict__ and self.name(module.__dict__, name)

    def trusted(self, module: str) -> bool:
        """A module was found to be of a trusted package, which hangs on what its name means."""
        return self.name(sys.modules, module.partition(".")[0])

    def pinned(self, value: Any, name: str) -> bool:
        """A value was found under its own name in a trusted package."""
        if type(value) is ModuleType:
            return self.trusted(name)
        home, _, last = name.rpartition(".")
        module = sys.modules.get(home)  # None where the value is an attribute of a class
        return module is not None and self.trusted(home) and self.attribute(module, last)

    def cell(self, cell: Any, value: Any) -> bool:
        """A closure variable is read."""
        self._cells.append((cell, value))
        return True

    def value(self, value: Any, form: Plain) -> bool:
        """A value is read that is neither a function nor pinned."""
        if _is_constant(value) or is_numba_type(value):
            return True
        if not _is_data(value):
            return False
        dtype = getattr(value, "dtype", None)
        if dtype is not None and dtype.names is None:
            self._arrays.append((value, _content(value)))
        else:
            self._values.append((value, encode(form)))
        return True

    # -- afterwards ---------------------------------------------------------------------------------

    def holds(self) -> bool:
        """Whether another reading would meet the same."""
        registrations, registered = self._registered
        if not self.is_complete or registrations() is not registered or any(self._lists):
            return False
        for namespace, known in self._names.values():
            if not all(map(is_, map(namespace.get, known, repeat(_ABSENT)), known.values())):
                return False
        for function, code, defaults in self._functions:
            if function.__code__ is not code or function.__defaults__ is not defaults or function.__kwdefaults__:
                return False
        for dispatcher, function, options, known_options in self._dispatchers:
            if dispatcher.py_func is not function or dispatcher.targetoptions is not options:
                return False
            now = *options, *options.values()
            if len(now) != len(known_options) or not all(map(is_, now, known_options)) or not _is_open(dispatcher):
                return False
        try:
            return self._hold_values()
        except Exception:  # an empty cell, or data that another thread is changing
            return False

    def _hold_values(self) -> bool:
        for cell, value in self._cells:
            if cell.cell_contents is not value:
                return False
        for array, content in self._arrays:
            if array.dtype is not content[1] or _content(array) != content:
                return False
        for value, known in self._values:
            if not _is_data(value) or encode(value_form(value, _no_function)) != known:
                return False
        return all(type(module) is ModuleType for module in self._modules.values())


def looks_plain(value: Any) -> bool:
    """Whether a value can be looked at, and compared later, without running any code of the user's."""
    return _is_constant(value) or _is_data(value) or is_numba_type(value)


def _is_constant(value: Any) -> bool:
    """Whether its identity says all: it can never change."""
    return type(value) in _CONSTANT or (type(value) is tuple and all(map(_is_constant, value)))


def _is_data(value: Any) -> bool:
    """Whether it is plain data, looking at which runs no code of the user's."""
    kind = type(value)
    if kind in _CONTAINERS:
        return all(map(_is_inner_data, (*value, *value.values()) if kind is dict else value))
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return False
    return (kind is numpy.ndarray and value.nbytes <= LARGE_ARRAY_BYTES) or (
        kind.__module__ == "numpy" and issubclass(kind, (numpy.generic, numpy.dtype))
    )


def _is_inner_data(value: Any) -> bool:
    return type(value) in _CONSTANT or _is_data(value)


def _is_open(dispatcher: Any) -> bool:
    """Whether it takes any signature, and types its variables by itself."""
    return getattr(dispatcher, "_can_compile", True) and not getattr(dispatcher, "locals", None)


def _content(array: Any) -> tuple[Any, ...]:
    """All of a NumPy array or scalar without fields, whose dtype can be replaced but not changed."""
    dtype = array.dtype
    return id(dtype), dtype, array.shape, array.strides, array.flags.num, array.tobytes("A")


def _no_function(_value: Any) -> None:
    """Plain data holds none."""
