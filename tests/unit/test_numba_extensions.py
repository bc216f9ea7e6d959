"""A program with Numba's extension tutorial is cached: an interval and a quaternion, with registered operators."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.compiling import in_python

pytestmark = pytest.mark.slow

PROGRAM = """
import json, operator, sys, warnings
warnings.simplefilter("ignore")
from numba.cuda import cgutils, types
from numba.cuda.cudadecl import registry
from numba.cuda.cudaimpl import lower, lower_attr
from numba.cuda.extending import (
    core_models as models, lower_builtin, make_attribute_wrapper, overload, overload_attribute, overload_method,
    register_model, type_callable, typeof_impl)
from numba.cuda.typing.templates import AttributeTemplate, ConcreteTemplate, signature
from numba_kcache import KernelCache, cached_kernel

class Interval:
    def __init__(self, lo, hi): self.lo, self.hi = lo, hi
class IntervalType(types.Type):
    def __init__(self): super().__init__(name="Interval")
interval_type = IntervalType()
@typeof_impl.register(Interval)
def typeof_interval(value, context): return interval_type
@type_callable(Interval)
def type_interval(context):
    def typer(lo, hi):
        if isinstance(lo, types.Float) and isinstance(hi, types.Float): return interval_type
    return typer
@register_model(IntervalType)
class IntervalModel(models.StructModel):
    def __init__(self, manager, kind):
        models.StructModel.__init__(self, manager, kind, [("lo", types.float64), ("hi", types.float64)])
make_attribute_wrapper(IntervalType, "lo", "lo")
make_attribute_wrapper(IntervalType, "hi", "hi")
@lower_builtin(Interval, types.Float, types.Float)
def make_interval(context, builder, sig, args):
    made = cgutils.create_struct_proxy(sig.return_type)(context, builder)
    made.lo, made.hi = args
    return made._getvalue()
@registry.register_attr
class IntervalAttributes(AttributeTemplate):
    key = IntervalType
    def resolve_width(self, interval): return types.float64
@lower_attr(IntervalType, "width")
def interval_width(context, builder, sig, value):
    return builder.fsub(builder.extract_value(value, 1), builder.extract_value(value, 0))
@overload(operator.add)
def add_intervals(a, b):
    if isinstance(a, IntervalType) and isinstance(b, IntervalType):
        return lambda a, b: Interval(a.lo + b.lo, a.hi + b.hi)

class Quaternion:
    def __init__(self, w, x): self.w, self.x = w, x
class QuaternionType(types.Type):
    def __init__(self): super().__init__(name="Quaternion")
quaternion_type = QuaternionType()
@register_model(QuaternionType)
class QuaternionModel(models.StructModel):
    def __init__(self, manager, kind):
        models.StructModel.__init__(self, manager, kind, [("w", types.float64), ("x", types.float64)])
make_attribute_wrapper(QuaternionType, "w", "w")
make_attribute_wrapper(QuaternionType, "x", "x")
@type_callable(Quaternion)
def type_quaternion(context):
    def typer(w, x):
        if all(isinstance(each, types.Number) for each in (w, x)): return quaternion_type
    return typer
@lower_builtin(Quaternion, types.Number, types.Number)
def make_quaternion(context, builder, sig, args):
    made = cgutils.create_struct_proxy(sig.return_type)(context, builder)
    made.w, made.x = args
    return made._getvalue()
@registry.register_global(operator.add)
class QuaternionAdd(ConcreteTemplate):
    cases = [signature(quaternion_type, quaternion_type, quaternion_type)]
@lower(operator.add, quaternion_type, quaternion_type)
def add_quaternions(context, builder, sig, args):
    one, other = [cgutils.create_struct_proxy(quaternion_type)(context, builder, value=each) for each in args]
    made = cgutils.create_struct_proxy(quaternion_type)(context, builder)
    made.w, made.x = builder.fadd(one.w, other.w), builder.fadd(one.x, other.x)
    return made._getvalue()
@overload_attribute(QuaternionType, "norm")
def quaternion_norm(q): return lambda q: q.w * q.w + q.x * q.x
@overload_method(QuaternionType, "conjugate")
def quaternion_conjugate(q): return lambda q: Quaternion(q.w, -q.x)

def plain(x): x[0] = x[0] + x[1]
def of_intervals(x):
    found = Interval(x[0], x[1]) + Interval(x[1], x[2])
    x[3] = found.width
def of_quaternions(x):
    found = Quaternion(x[0], x[1]) + Quaternion(x[1], x[2])
    x[3] = found.norm + found.conjugate().x
"""

REGISTRIES = """
import sys, numba_cuda
from numba.cuda.descriptor import cuda_target
from numba_kcache.frontends.numba.llvm_flavour import NUMBA
cuda_target.typing_context.refresh()
cuda_target.target_context.refresh()
known = {id(getattr(sys.modules[module], name)) for module, name in NUMBA.holders() if module in sys.modules}
numba_cuda.__version__ = "0.31.0"
found = {id(getattr(sys.modules[module], name)) for module, name in NUMBA.holders() if module in sys.modules}
print(len(found) > 40, found - known, known - found)
"""

COMPILE = """
cache = KernelCache(sys.argv[1])
for function in (plain, of_intervals, of_quaternions):
    cached_kernel(function, cache=cache).compile("sm_90", "void(float64[::1])")
info = cache.info("process")
print(json.dumps([info.hits, info.misses]))
"""

KEYS = """
def key(function):
    return cached_kernel(function).key("sm_90", "void(float64[::1])")
print(json.dumps([key(of_intervals), key(of_quaternions)]))
"""

OF_INTERVALS = {
    "lowering of an attribute": ("builder.fsub", "builder.fadd"),
    "an implementation of an operator": ("a.lo + b.lo", "a.lo - b.lo"),
    "members of a model": ('("hi", types.float64)', '("hi", types.float32)'),
    "the type of an attribute": ("interval): return types.float64", "interval): return types.float32"),
    "lowering of a constructor": ("made.lo, made.hi = args", "made.hi, made.lo = args"),
    "the typing of a constructor": ("if isinstance(lo, types.Float) and", "if isinstance(lo, types.Number) and"),
    "the name of a type": ('__init__(name="Interval")', '__init__(name="Other")'),
}
OF_QUATERNIONS = {
    "lowering of an operator": ("builder.fadd(one.w, other.w)", "builder.fsub(one.w, other.w)"),
    "an attribute": ("q.w * q.w + q.x", "q.w * q.w - q.x"),
    "a method": ("q.w, -q.x", "q.w, q.x"),
    "cases of an operator": ("cases = [signature(quaternion_type,", "cases = [signature(interval_type,"),
    "members of a model": ('("x", types.float64)', '("x", types.float32)'),
}


def test_extension_tutorial_is_cached(tmp_path: Path) -> None:
    """Kernels with an interval, with a quaternion, and with neither: compiled once, found in the next process."""
    found = [json.loads(in_python(PROGRAM + COMPILE, str(tmp_path))) for _ in range(2)]

    assert found == [[0, 3], [3, 0]]


@pytest.mark.parametrize("edit", [*OF_INTERVALS.values(), *OF_QUATERNIONS.values()], ids=lambda edit: edit[1])
def test_edit_of_an_extension_invalidates_key(edit: tuple[str, str]) -> None:
    """Of the kernels that use it."""
    assert PROGRAM.count(edit[0]) == 1

    before, after = (json.loads(in_python(each + KEYS)) for each in (PROGRAM, PROGRAM.replace(*edit)))

    assert before[0] != after[0] or edit in OF_QUATERNIONS.values()
    assert before[1] != after[1] or edit in OF_INTERVALS.values()


def test_every_registry_is_known_and_found_in_later_versions() -> None:
    """In this version by a list, in others by a search through Numba's modules: both give the same."""
    assert in_python(REGISTRIES).strip() == "True set() set()"
