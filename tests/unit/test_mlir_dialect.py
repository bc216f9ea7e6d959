"""Objects of numba-cuda-mlir in the key of a kernel: types of the program, and what is registered for them."""

from __future__ import annotations

from typing import Any

import pytest

numba_cuda_mlir = pytest.importorskip("numba_cuda_mlir")
pytest.importorskip("numba_cuda_mlir.cuda")

from numba_kcache.frontends.numba.fingerprint import Fingerprint, fingerprint  # noqa: E402
from numba_kcache.frontends.numba.mlir import MLIR as dialect  # noqa: E402

pytestmark = pytest.mark.lane

PROGRAM = """
from numba_cuda_mlir import cuda, extending
from numba_cuda_mlir.models import StructModel, register_model
from numba_cuda_mlir.numba_cuda import types
class PairType(types.Type):
    def __init__(self): super().__init__("Pair")
@register_model(PairType)
class PairModel(StructModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, [("low", types.float64), ("high", types.float64)])
extending.make_attribute_wrapper(PairType, "{first}", "first")
extending.make_attribute_wrapper(PairType, "{second}", "second")
def code(builder, target, args, kwargs): pass
@extending.intrinsic
def pair(context, low, high): return PairType()(types.float64, types.float64), code
def kernel(x): x[0] = pair(x[0], x[1]).first
"""


def test_member_behind_an_attribute_counts() -> None:
    """`make_attribute_wrapper` registers functions of numba-cuda-mlir that hold the member's name, which is in the
    key."""
    found = []
    for first, second in (("low", "high"), ("high", "low"), ("high", "low")):
        space: dict[str, Any] = {"__name__": "app"}
        exec(PROGRAM.format(first=first, second=second), space)
        found.append(fingerprint(space["kernel"], dialect, with_lines=False))

    assert all(isinstance(each, Fingerprint) for each in found), found
    assert found[0].digest != found[1].digest == found[2].digest
