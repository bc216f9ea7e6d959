"""Numba kernels, compiled by numba-cuda."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import OptionError
from .definition import NumbaDefinition
from .objects import is_dispatcher


class NumbaFrontEnd:
    """Defines Python functions that are no sources, and dispatchers of `cuda.jit`."""

    kinds = ("numba",)

    def claims(self, thing: Any, kind: str | None) -> bool:
        """Tell if it is a function or a dispatcher."""
        return kind in (None, "numba") and (is_dispatcher(thing) or hasattr(thing, "__code__") or kind == "numba")

    def define(self, thing: Any, options: Mapping[str, Any], depth: int) -> NumbaDefinition:
        """Define a kernel."""
        function = thing.py_func if is_dispatcher(thing) else thing
        if not hasattr(function, "__code__"):
            raise OptionError(f"cannot make a Numba kernel of {thing!r}", f"it is a {type(thing).__name__}")
        return NumbaDefinition(thing, dict(options))


FRONT_END = NumbaFrontEnd()
