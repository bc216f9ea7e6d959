"""Recognise Numba's objects among the values a function reads, without importing Numba.

Promise     A module of Numba that is not loaded stays so: whoever holds a dispatcher has loaded it. Nothing
            here builds a target context or refreshes a registry.
Not here    The compiler's private names (toolchain.numba_internals). The names here are only read, and an
            object that does not look as expected is not recognised, hence not cached.
"""

from __future__ import annotations

import sys
from types import FunctionType
from typing import Any, NamedTuple


class Declared(NamedTuple):
    """A kernel and its options of `cuda.jit`, under the names of a dispatcher, while none has to be made of them."""

    py_func: Any
    targetoptions: dict[str, Any]


def loaded(module: str, name: str) -> Any:
    """An attribute of a module if that is loaded; None otherwise."""
    return getattr(sys.modules.get(module), name, None)


def is_a(value: Any, *places: tuple[str, str]) -> bool:
    """Whether its class is one of these or inherits from one. Not `isinstance`: Numba's have abstract bases, which
    ask every class of Numba at the first meeting of any other (200 us)."""
    bases = type(value).__mro__
    for module, name in places:  # noqa: SIM110  (a generator more costs as much as the rest)
        if loaded(module, name) in bases:
            return True
    return False


def is_dispatcher(value: Any) -> bool:
    """Whether it is a function under `cuda.jit`, or under `njit`, which device code may call as well."""
    kind = type(value)
    if kind is FunctionType or kind is Declared:
        return kind is Declared
    return is_a(value, ("numba.cuda.dispatcher", "CUDADispatcher"), ("numba.core.dispatcher", "Dispatcher"))


def is_numba_type(value: Any) -> bool:
    """Whether it is an instance of one of Numba's own types (an extension's types are code of their own)."""
    return is_a(value, ("numba.core.types", "Type"), ("numba.cuda.types", "Type")) and (
        type(value).__module__.partition(".")[0] == "numba"
    )
