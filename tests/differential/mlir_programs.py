"""Random kernels of numba-cuda-mlir and edits: the programs of `python_programs`, with its own names."""

from __future__ import annotations

from .python_programs import HEAD, TERMS, PythonProgram, Term
from .world import Edit

_HEAD = """import enum
import functools
import math
import operator
import os
from collections import namedtuple
import numpy as np
from numba_cuda_mlir import cuda, extending
from numba_cuda_mlir._mlir.extras import types as T
from numba_cuda_mlir.cuda.experimental import intrin
from numba_cuda_mlir.mlir.dialect_exts import arith
from numba_cuda_mlir.numba_cuda import types
intrinsic = extending.intrinsic
overload = functools.partial(extending.overload, typing_registry=extending.typing_registry)
overload_attribute = functools.partial(
    extending.overload_attribute, typing_registry=extending.typing_registry,
    lowering_registry=extending.lowering_registry,
)
overload_method = functools.partial(extending.overload_method, typing_registry=extending.typing_registry)
"""

_NOT_HERE = ("array of another module", "records", "functions with signatures")
"""Terms that numba-cuda-mlir does not compile, or that `plain` would have to define again."""

_TERMS = {
    **{name: term for name, term in TERMS.items() if name not in _NOT_HERE},
    "intrinsic": Term(
        "intr{n}(t)", main="from {lib} import intr{n}\n",
        lib="C{n} = {v}.5\ndef codegen{n}(builder, target, args, kwargs):\n"
        "    product = arith.mulf(builder.load_var(args[0]), arith.constant(float(C{n}), T.f64()))\n"
        "    builder.store_var(target, product)\n"
        "@intrinsic\ndef intr{n}(typingctx, x):\n    return types.float64(types.float64), codegen{n}\n"
        "extending.refresh_registries()\n",
        patches=(("lib", "C{n}", "{w}.5", None),),
    ),
    "intrinsic in MLIR": Term(
        "F{n}(t)",
        main="def make{n}(c):\n"
        "    return intrin.define(\"func.func private @addc{n}(%x: f64) -> f64 attributes {{always_inline}} {{ "
        "%c = arith.constant \" + repr(float(c)) + \" : f64 %r = arith.addf %x, %c : f64 return %r : f64 }}\")\n"
        "F{n} = make{n}({v})\n",
        patches=(("main", "F{n}", "make{n}({w})", None),),
    ),
}  # fmt: skip
"""The terms of Numba's kernels, with intrinsics in words of MLIR."""


class MlirProgram(PythonProgram):
    """A program and a generator of edits to it."""

    terms = _TERMS

    def _texts(self, neutral: dict[str, object]) -> dict[str, str]:
        return {path: text.replace(HEAD, _HEAD) for path, text in super()._texts(neutral).items()}

    def _patch(self) -> list[Edit]:
        return [
            {**each, "module": each["module"].replace("numba.cuda", "numba_cuda_mlir.cuda")}
            if "module" in each
            else each
            for each in super()._patch()
        ]
