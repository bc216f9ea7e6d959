"""The parameters of functions that return source (templates), and their values.

Not here    The source of an instance (source.define_function).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...errors import OptionError
from .source import HAS_ARGS, HAS_KEYWORDS


def template_defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """The parameters of a function that returns source, each with its default.

    Raises:
        OptionError: A parameter has no default, or cannot be given by name.
    """
    code = function.__code__
    count = code.co_argcount
    defaults = dict(zip(code.co_varnames[:count][::-1], (function.__defaults__ or ())[::-1], strict=False))
    defaults |= function.__kwdefaults__ or {}
    names = code.co_varnames[: count + code.co_kwonlyargcount]
    for name in names:
        if name not in defaults:
            raise OptionError(
                f"cannot call {function.__qualname__} for its source",
                f"its parameter {name} has no default",
                f"give {name} a default; instantiate() replaces it with other values",
            )
    if code.co_posonlyargcount or code.co_flags & (HAS_ARGS | HAS_KEYWORDS):
        raise OptionError(
            f"cannot call {function.__qualname__} for its source",
            "values are given to a template by their names alone",
            "give it plain parameters, each with a default",
        )
    return {name: defaults[name] for name in names}


def completed(function: Callable[..., Any], name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Add to the values given for a template its defaults for the other parameters; `name` is the kernel's.

    Raises:
        OptionError: A value is for no parameter, or a parameter has no default.
    """
    defaults = template_defaults(function)
    unknown = [each for each in values if each not in defaults]
    if unknown:
        raise OptionError(
            f"cannot instantiate {name} with {unknown[0]}={values[unknown[0]]!r}",
            f"its parameters are {', '.join(defaults) or 'none'}",
            "use their names",
        )
    return {**defaults, **values}
