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

    def define(self, thing: Any, options: Mapping[str, Any], depth: int) -> NumbaDefinition | None:
        """Define a kernel."""
        kind = options.get("kind")
        function = thing.py_func if is_dispatcher(thing) else thing
        if kind not in (None, "numba") or (kind is None and not hasattr(function, "__code__")):
            return None
        if not hasattr(function, "__code__"):
            raise OptionError(f"cannot make a Numba kernel of {thing!r}", f"it is a {type(thing).__name__}")
        return NumbaDefinition(thing, dict(options))


FRONT_END = NumbaFrontEnd()
