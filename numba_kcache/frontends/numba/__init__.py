"""Numba kernels, compiled by numba-cuda."""

from __future__ import annotations

from ..python import PythonFrontEnd
from .definition import NumbaDefinition

FRONT_END = PythonFrontEnd("numba", NumbaDefinition)
