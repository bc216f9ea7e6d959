"""Random kernels of numba-cuda-mlir and edits: the programs of `python_programs`, with its own names."""

from __future__ import annotations

import random

from .python_programs import HEAD, TERMS, PythonProgram
from .world import Edit

_HEAD = """import enum
import functools
import math
import operator
import os
from collections import namedtuple
import numpy as np
from numba_cuda_mlir import cuda, extending
from numba_cuda_mlir.numba_cuda import types
overload = functools.partial(extending.overload, typing_registry=extending.typing_registry)
overload_attribute = functools.partial(
    extending.overload_attribute, typing_registry=extending.typing_registry,
    lowering_registry=extending.lowering_registry,
)
overload_method = functools.partial(extending.overload_method, typing_registry=extending.typing_registry)
"""

_NOT_HERE = ("intrinsic",)
"""Terms in words of llvmlite, or that numba-cuda-mlir does not compile."""


class MlirProgram(PythonProgram):
    """A program and a generator of edits to it."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(chance)
        known = sorted(TERMS.keys() - set(_NOT_HERE))
        self.names = chance.sample(known, len(self.names))
        self.values = [self._values() for _ in self.names]

    def _texts(self, neutral: dict[str, object]) -> dict[str, str]:
        return {path: text.replace(HEAD, _HEAD) for path, text in super()._texts(neutral).items()}

    def _patch(self) -> list[Edit]:
        return [
            {**each, "module": each["module"].replace("numba.cuda", "numba_cuda_mlir.cuda")}
            if "module" in each
            else each
            for each in super()._patch()
        ]
