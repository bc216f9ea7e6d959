"""Numba kernels, compiled by numba-cuda-mlir."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import OptionError
from .definition import MlirDefinition


class MlirFrontEnd:
    """The front end for Python functions that use numba-cuda-mlir's `cuda`, and for its dispatchers."""

    kinds = ("mlir",)

    def define(self, thing: Any, options: Mapping[str, Any], depth: int) -> MlirDefinition | None:
        """Define a kernel; called for things that `frontends.front_ends_for` recognised as this kind."""
        if hasattr(getattr(thing, "py_func", thing), "__code__"):
            return MlirDefinition(thing, dict(options))
        if options.get("kind") == "mlir":
            raise OptionError(
                f"cannot make a Numba kernel of {thing!r}", f"it is a {type(thing).__name__}", "give a function"
            )
        return None


FRONT_END = MlirFrontEnd()
