"""Implementations that a program registered with Numba, which no name in a kernel leads to.

Promise     `@overload`, `@overload_method` and `@overload_attribute` of anybody but Numba itself are found by
            what they implement. The registries are read as they are; nothing is refreshed or imported.
Not here    Lowering written by hand (`lower_builtin` and the like) for types of Numba's own: `depends=` is for it.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from ..python.value import is_trusted
from .objects import loaded

_HOLDERS = ("numba.cuda.typing.templates", "numba.core.typing.templates")


class Registrations(NamedTuple):
    """Registered Python functions: by id of the value they implement, by attribute name, and for operators."""

    of_value: dict[int, list[Any]]
    of_attribute: dict[str, list[Any]]
    of_operators: list[Any]


_EMPTY = Registrations({}, {}, [])
_read: tuple[list[Any], Registrations] = ([], _EMPTY)


def user_registrations() -> Registrations:
    """What has been registered up to now. Registries only grow: their lengths say whether a reading still holds."""
    global _read
    state: list[Any] = []  # flat, and made by a plain loop: each launch of a new signature asks
    for holder in _HOLDERS:
        registry = loaded(holder, "builtin_registry")
        if registry:
            state += registry, len(registry.globals), len(registry.attributes)
    if _read[0] != state:
        _read = state, _gathered(state[::3])
    return _read[1]


def _gathered(registries: list[Any]) -> Registrations:
    found = Registrations({}, {}, [])
    for registry in registries:
        for value, kind in registry.globals:
            for template in getattr(kind, "templates", ()):
                function = _definition(template)
                if function is None:
                    continue
                found.of_value.setdefault(id(value), []).append(function)
                if getattr(value, "__module__", None) in ("_operator", "operator"):
                    found.of_operators.append(function)
        for template in registry.attributes:
            function, name = _definition(template), getattr(template, "_attr", None)
            if function is not None and isinstance(name, str):
                found.of_attribute.setdefault(name, []).append(function)
    return found


def _definition(template: Any) -> Any:
    """The function under `@overload...`, if it is not one of a package that its version pins."""
    function = getattr(template, "__dict__", {}).get("_overload_func")  # as a static method: cheaper than getattr
    function = getattr(function, "__func__", function)
    return None if function is None or _is_numbas(function) else function


def _is_numbas(function: Any) -> bool:
    """By its module, or by its file: functions that Numba generates have no module, and come with its first
    compilation, which must change no key."""
    if is_trusted(getattr(function, "__module__", None)):
        return True
    folders = (*(loaded("numba", "__path__") or ()), *(loaded("numba.cuda", "__path__") or ()))
    file = getattr(getattr(function, "__code__", None), "co_filename", "")
    return file.startswith(tuple(f"{folder}{os.sep}" for folder in folders))
