"""Numba kernels, compiled by numba-cuda-mlir. `frontends.front_ends_for` tells which functions are of this kind."""

from __future__ import annotations

from ..python import PythonFrontEnd
from .definition import MlirDefinition

FRONT_END = PythonFrontEnd("mlir", MlirDefinition)
