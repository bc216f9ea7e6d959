"""Numba kernels, compiled by numba-cuda."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import OptionError
from .definition import NumbaDefinition


class NumbaFrontEnd:
    """The front end for Numba kernels: Python functions, and dispatchers of `cuda.jit`."""

    kinds = ("numba",)

    def define(self, thing: Any, options: Mapping[str, Any], depth: int) -> NumbaDefinition | None:
        """Define a kernel."""
        kind = options.get("kind")
        if kind in (None, "numba") and hasattr(getattr(thing, "py_func", thing), "__code__"):
            return NumbaDefinition(thing, dict(options))
        if kind == "numba":
            raise OptionError(
                f"cannot make a Numba kernel of {thing!r}", f"it is a {type(thing).__name__}", "give a function"
            )
        return None


FRONT_END = NumbaFrontEnd()
