"""Kinds of kernels: a folder for each front end, behind the interface in base.py; this module chooses among them.

Promise     `front_ends_for` and `numba_of` import nothing and call no user code. A dispatcher is recognised by its
            class; a function by the `cuda` that its code names: the module, or any object defined by it.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any

from ..errors import OptionError

BUILT_IN = {"source": ("cuda", "ptx", "cubin", "fatbin", "ltoir"), "numba": ("numba",), "mlir": ("mlir",)}
"""Front ends of this package, and their kinds."""

_HOMES = {"source": "source", "numba": "numba.llvm", "mlir": "numba.mlir"}


@functools.cache
def front_end(name: str) -> Any:
    """Import a front end of this package."""
    return import_module(f".{_HOMES[name]}", __package__).FRONT_END


def front_ends_for(thing: Any, kind: str | None) -> tuple[str, ...]:
    """List the front ends of this package that may recognise a thing, in the order in which they are tried.

    Args:
        thing: The object that the user wraps.
        kind: The user's `kind=`; None to recognise it by the thing.
    """
    if kind is not None:
        return tuple(name for name, kinds in BUILT_IN.items() if kind in kinds)
    built_in = numba_of(thing)
    if built_in:
        return (built_in,)
    has_mlir_alone = "numba_cuda_mlir" in sys.modules and "numba.cuda" not in sys.modules
    numba = "mlir" if has_mlir_alone else "numba"
    is_textless = type(thing) is FunctionType and not _has_text(thing)
    return (numba,) if is_textless else ("source", numba)


def numba_of(thing: Any) -> str:
    """The kind of a dispatcher or function, "numba" or "mlir"; "" if it is not recognised.

    A function annotated to return `str` is of neither, whatever names its code uses.
    """
    if type(thing) is not FunctionType:
        return _kind_of(type(thing).__module__) if hasattr(thing, "py_func") else ""
    if thing.__annotations__.get("return") in (str, "str", "'str'") or not thing.__code__.co_argcount:
        return ""
    return next((kind for value in _named(thing) if (kind := _kind_of_value(value))), "")


def _has_text(function: FunctionType) -> bool:
    """Check whether a function may return source: by its annotation, or by a string constant beside its docstring."""
    texts = [each for each in function.__code__.co_consts if type(each) is str and each != function.__doc__]
    return bool(texts) or "return" in function.__annotations__ or not function.__code__.co_argcount


def _named(function: FunctionType) -> Iterator[Any]:
    """Yield the values of the global and closure names that a function's code uses."""
    namespace = function.__globals__
    for name in function.__code__.co_names:
        if name in namespace:
            yield namespace[name]
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # an empty closure cell
            pass


def _kind_of_value(value: Any) -> str:
    if isinstance(value, ModuleType):
        return _kind_of(value.__name__)
    module = getattr(value, "__module__", None)
    return _kind_of(module if type(module) is str and module in sys.modules else type(value).__module__)


def _kind_of(module: str) -> str:
    top, _, rest = module.partition(".")
    if top == "numba_cuda_mlir":
        return "mlir"
    return "numba" if top == "numba_cuda" or (top == "numba" and rest.partition(".")[0] in ("cuda", "core")) else ""


def not_source(thing: object) -> OptionError:
    """Make the error for an object that no front end recognises."""
    return OptionError(
        f"cannot make a kernel of {thing!r}",
        f"it is of type {type(thing).__name__}, which is not a source",
        "wrap a function that returns CUDA C++, a str or a pathlib.Path",
    )
