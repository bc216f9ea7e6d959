"""A program with Numba's extension tutorial is cached: an interval and a quaternion, with registered operators."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import numba_server
from tests.support.compiling import edited
from tests.support.fake_driver import build, environment, needs_fake_driver

pytestmark = [needs_fake_driver, pytest.mark.slow]


def said(program: str, *arguments: str, of: str = "numba", way: str = "early") -> Any:
    """What a program says, from JSON, where nothing was compiled before it registers: Numba asks its own classes first
    where a program registers one after a compile."""
    return json.loads(numba_server.output(["-c", program, *arguments], environment(build()), of, way=way))


def said_in_turn(program: str, cache: Path, of: str = "numba") -> list[Any]:
    """What a program says in a process that compiles, and in a later one."""
    return [said(program, str(cache), of=of, way=way) for way in ("early", "later")]


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
import json, sys, types
from numba.cuda.descriptor import cuda_target
from numba.cuda.typing.templates import Registry
from numba_kcache.frontends.numba.llvm import NUMBA
cuda_target.typing_context.refresh()
cuda_target.target_context.refresh()
before = NUMBA.holders()
later = sys.modules["numba.cuda.later"] = types.ModuleType("numba.cuda.later")
later.registry = Registry()
print(json.dumps([len(before) > 40, [*{*NUMBA.holders()} - {*before}]]))
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
    assert said_in_turn(PROGRAM + COMPILE, tmp_path / "cache") == [[0, 3], [3, 0]]


def test_edit_of_an_extension_invalidates_key() -> None:
    """Of the kernels that use it."""
    edits = [(0, name, edit) for name, edit in OF_INTERVALS.items()]
    edits += [(1, name, edit) for name, edit in OF_QUATERNIONS.items()]
    before, *after = map(said, [PROGRAM + KEYS, *(edited(PROGRAM, *edit) + KEYS for *_, edit in edits)])

    changed = [name for (kernel, name, _), keys in zip(edits, after, strict=True) if keys[kernel] != before[kernel]]
    assert changed == [*OF_INTERVALS, *OF_QUATERNIONS]


OF_MLIR = """
import json, sys, warnings
warnings.simplefilter("ignore")
from numba_cuda_mlir import cuda
from numba_cuda_mlir.numba_cuda import types
from numba_cuda_mlir._mlir.dialects import arith
from numba_cuda_mlir._mlir.extras import types as T
from numba_cuda_mlir.extending import (
    lower_builtin, lowering_registry, overload_attribute, overload_method, register_model, type_callable, typeof_impl,
    typing_registry)
from numba_cuda_mlir.mlir.dialect_exts import llvm
from numba_cuda_mlir.models import StructModel
from numba_cuda_mlir.numba_cuda.typing.templates import AttributeTemplate
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
class IntervalModel(StructModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, [("lo", types.float64), ("hi", types.float64)])
@lower_builtin(Interval, types.Float, types.Float)
def make_interval(builder, target, args, kwargs):
    lo, hi = (builder.load_var(each) for each in args)
    made = llvm.UndefOp(llvm.StructType.get_literal([T.f64(), T.f64()])).result
    made = llvm.insertvalue(llvm.insertvalue(made, lo, [0]), hi, [1])
    builder.store_var(target, made)
@typing_registry.register_attr
class IntervalAttributes(AttributeTemplate):
    key = IntervalType
    def resolve_lo(self, interval): return types.float64
    def resolve_hi(self, interval): return types.float64
    def resolve_width(self, interval): return types.float64
def member(name, position):
    @lowering_registry.lower_getattr(IntervalType, name)
    def lower_member(context, builder, target, value):
        builder.store_var(target, llvm.extractvalue(T.f64(), builder.load_var(value), [position]))
member("lo", 0)
member("hi", 1)
@lowering_registry.lower_getattr(IntervalType, "width")
def interval_width(context, builder, target, value):
    whole = builder.load_var(value)
    lo, hi = (llvm.extractvalue(T.f64(), whole, [each]) for each in (0, 1))
    builder.store_var(target, arith.subf(hi, lo))
@overload_method(IntervalType, "scaled", typing_registry=typing_registry)
def scaled(i, by): return lambda i, by: Interval(i.lo * by, i.hi * by)
@overload_attribute(
    IntervalType, "middle", typing_registry=typing_registry, lowering_registry=lowering_registry)
def middle(i): return lambda i: (i.lo + i.hi) / 2.0
def plain(x): x[0] = x[0] + x[1]
def of_intervals(x):
    x[3] = Interval(x[0], x[1]).width
def of_methods(x):
    x[3] = Interval(x[0], x[1]).scaled(x[2]).middle
"""
"""The interval of the tutorial for numba-cuda-mlir, without its operator: 0.6.0 lowers no operator of a program's."""

MLIR_EDITS = {
    "members of a model": ('("hi", types.float64)', '("hi", types.float32)'),
    "lowering of an attribute": ("arith.subf(hi, lo)", "arith.addf(hi, lo)"),
    "a method": ("i.lo * by", "i.lo / by"),
    "an attribute": ("/ 2.0", "/ 4.0"),
    "the typing of a constructor": ("if isinstance(lo, types.Float) and", "if isinstance(lo, types.Number) and"),
    "the position of a member": ('member("hi", 1)', 'member("hi", 0)'),
}


def test_extension_tutorial_is_cached_with_numba_cuda_mlir(tmp_path: Path) -> None:
    """Kernels with an interval and without: compiled once, found in the next process."""
    pytest.importorskip("numba_cuda_mlir")
    program = OF_MLIR + COMPILE.replace("of_intervals, of_quaternions", "of_intervals, of_methods")

    assert said_in_turn(program, tmp_path / "cache", "mlir") == [[0, 3], [3, 0]]


def test_edit_of_an_extension_of_numba_cuda_mlir_invalidates_key() -> None:
    """Of a kernel that uses the interval."""
    pytest.importorskip("numba_cuda_mlir")
    keys = KEYS.replace("key(of_intervals), key(of_quaternions)", "key(of_methods), key(of_intervals), key(plain)")
    programs = [OF_MLIR + keys, *(edited(OF_MLIR, *edit) + keys for edit in MLIR_EDITS.values())]

    before, *after = (said(each, of="mlir", way="first") for each in programs)

    changed = [name for name, keys in zip(MLIR_EDITS, after, strict=True) if keys[:2] != before[:2]]
    assert changed == [*MLIR_EDITS]


def test_registries_of_every_loaded_module_are_found() -> None:
    """Of the first compile's modules, and of one that a later version may have."""
    assert said(REGISTRIES) == [True, [["numba.cuda.later", "registry"]]]


UNREADABLE = """
import json, operator, sys, warnings
warnings.simplefilter("ignore")
from numba_kcache import KernelCache, UncacheableError, cached_kernel

HELD = object()
@overload(operator.mul)
def unreadable(a, b):
    if HELD is not None and isinstance(a, types.UniTuple):
        return lambda a, b: a[0]
class Primitive:
    def __call__(self, x): pass
@overload(Primitive())
def of_an_object_whose_text_has_an_address(x): return lambda x: x
@cuda.jit(device=True)
def scaled(x): return x * 2.0
@cuda.jit(device=True)
def moved(x): return x + 2.0

def free(x):
    i = cuda.grid(1)
    if i < x.shape[0]:
        x[i] = moved(x[i]) + 1
def direct(x): x[0] = x[1] * 2
def by_assignment(x): x[0] *= 2
def by_callee(x): x[0] = scaled(x[1])
def by_library(x): x[0] = x[1] ** 3
def of_tuple(x): x[0] = (x[1], x[2]) * 2

cache, said = KernelCache(sys.argv[1]), {}
for function in (free, direct, by_assignment, by_callee, by_library, of_tuple, free):
    if "numba" not in sys.modules and function is of_tuple:  # numba-cuda-mlir 0.6.0 fails to compile it
        continue
    try:
        cached_kernel(function, cache=cache).compile("sm_90", "void(float64[::1])")
        said[function.__name__] = "cached"
    except UncacheableError as error:
        said[function.__name__] = str(error).partition(": ")[2].partition(": ")[0]
info = cache.info("process")
print(json.dumps([said, info.hits]))
"""


NUMBA = "from numba import cuda\nfrom numba.cuda import types\nfrom numba.cuda.extending import overload\n"
MLIR = """
from numba_cuda_mlir import cuda, extending
from numba_cuda_mlir.numba_cuda import types
import functools
overload = functools.partial(extending.overload, typing_registry=extending.typing_registry)
"""


@pytest.mark.parametrize("imports", [NUMBA, MLIR], ids=["numba", "mlir"])
def test_unreadable_operator_refuses_the_kernels_that_reach_it_alone(tmp_path: Path, imports: str) -> None:
    """Others are cached. The functions that a compile calls show it: Numba asks for each product, also of a power;
    numba-cuda-mlir for none of numbers."""
    pytest.importorskip("numba_cuda_mlir" if imports is MLIR else "numba")
    reaching = {"direct", "by_assignment", "by_callee", "by_library", "of_tuple"} if imports is NUMBA else set[str]()

    found = said_in_turn(imports + UNREADABLE, tmp_path / "cache", "mlir" if imports is MLIR else "numba")

    for reasons, _hits in found:
        assert {name for name, why in reasons.items() if why == "global HELD of __main__"} == reaching
        assert {name for name, why in reasons.items() if why == "cached"} == reasons.keys() - reaching
    assert [hits for _reasons, hits in found] == [1, 1 + len(found[0][0]) - len(reaching)]


MANY = """
import json, operator, sys, warnings
warnings.simplefilter("ignore")
from numba_kcache import KernelCache, UncacheableError, cached_kernel

counts = {"read": 0, "asked": 0}
class Held:
    @property
    def __cuda_array_interface__(self): counts["read"] += 1
HELD = Held()
def shared(): return HELD
def register(value):
    @overload(value)
    def unreadable(a, b):
        counts["asked"] += 1
        if shared() is None: return lambda a, b: a
for name in NAMES.split():
    register(getattr(operator, name))

def free(x): x[0] = x[1]
def used(x, i, j): x[i * j] = x[i * 2] * 2 * x[j] * i * 2j.real
cache, said = KernelCache(sys.argv[1]), []
for function, types in ((free, "void(float64[::1])"), (used, "void(float64[::1], int32, int64)")):
    counts.update(read=0, asked=0)
    try:
        cached_kernel(function, cache=cache).compile("sm_90", types)
        said.append({"why": "", **counts})
    except UncacheableError as error:
        said.append({"why": str(error).partition(": ")[2].partition(": ")[0], **counts})
print(json.dumps(said))
"""


def test_unreadable_registrations_are_read_once_and_end_a_compile_at_the_first_use(tmp_path: Path) -> None:
    """As where a package registers hundreds: awkward does so for all operators, in each program that calls `njit`."""
    one = said("NAMES = 'mul'\n" + NUMBA + MANY, str(tmp_path))
    names = "add and_ floordiv lshift matmul mod mul or_ pow rshift sub xor"
    free, used = said(f"NAMES = {names!r}\n" + NUMBA + MANY, str(tmp_path))

    assert (free["why"], used["why"]) == ("", "global HELD of __main__")
    assert [free["read"], used["read"]] == [each["read"] for each in one]
    assert used["asked"] == 0


MEMORY = """
import json, operator
from numba_kcache.frontends.numba.fingerprint import fingerprint
from numba_kcache.frontends.numba.llvm import NUMBA

reads, SIZE = [], 1
class Held:
    @property
    def __cuda_array_interface__(self): reads.append(1)
HELD = Held()
@overload(operator.mul)
def unreadable(a, b):
    if HELD is None: return lambda a, b: a
def chosen(a): return SIZE
@overload(operator.add)
def readable(a, b):
    if chosen(a) == 2: return lambda a, b: a
@cuda.jit(debug=True, opt=False, device=True)
def with_lines(x): return x
@overload(operator.sub)
def other(a, b):
    if with_lines(a) and HELD: return lambda a, b: b

def first(x): x[0] = 1
def second(x): x[0] = 2
def key(function, **options): return fingerprint(function, NUMBA, with_lines=False, **options)
one, again = (key(first, is_observed=True) for _ in range(2))
count, other_kernel, represented = len(reads), key(second, is_observed=True), {HELD: 1}
later = len(reads)
SIZE = 2
changed = key(first, is_observed=True)
SIZE = 1
chosen.__defaults__ = (7,)
by_helper = key(first, is_observed=True)
readable.__code__ = (lambda a, b: None).__code__
by_body = key(first, is_observed=True)
print(json.dumps([
    one == again._replace(graph=one.graph), one.graph.has_lines == again.graph.has_lines, later == count,
    [len(each.unread) for each in (one, again, other_kernel)],
    len({each.digest for each in (one, changed, by_helper, by_body)}),
    len(key(first, is_observed=True, depends=represented).unread), "HELD" in key(first).name,
]))
"""


def test_unreadable_registration_is_read_once_for_all_kernels_and_a_readable_one_for_each() -> None:
    """A key without the former is right whatever it has become; of the latter, a changed global, default or body gives
    another key. What `depends` represents is read, and a key of a compile that is not observed reads all."""
    equal, is_equal, are_read_once, unread, digests, represented, is_refused = said(NUMBA + MEMORY)

    assert (equal, is_equal, are_read_once) == (True, True, True)
    assert unread == [2, 2, 2]
    assert digests == 4
    assert (represented, is_refused) == (0, True)


FUNCTIONS = """
import json, operator
from numba_kcache import cached_kernel
from numba_kcache.frontends.numba.fingerprint import Reader

def register(value):
    @overload(value)
    def readable(a, b): pass
for value in (operator.add, operator.sub, operator.mul):
    register(value)
begun, taken_back = [], Reader.taken_back
def counted(reader):
    begun.append(1)
    return taken_back(reader)
Reader.taken_back = counted
names = {f"f{at}": cuda.jit(device=True)(eval(f"lambda x: x + {at}")) for at in range(30)}
exec("def kernel(x): x[0] = " + " + ".join(f"{each}(x[1])" for each in names), globals() | names, names)
cached_kernel(names["kernel"]).key("sm_90", "void(float64[::1])")
print([len(begun)])
"""


def test_readable_registration_is_prepared_to_be_taken_back_once() -> None:
    """Not again for each function that may use it: a key of 200 functions and 40 operators took a second."""
    assert said(NUMBA + FUNCTIONS) == [3]


ATTRIBUTES = """
import json
from numba.cuda import types
from numba.cuda.extending import overload_attribute
from numba_kcache.frontends.numba.fingerprint import fingerprint
from numba_kcache.frontends.numba.llvm import NUMBA

HELD = object()
@overload_attribute(types.Array, "held")
def unreadable(array):
    if HELD is None: return lambda array: array
def digest_with(text):
    def last(): pass
    last.__doc__ = text
    def reads(array): return array.held
    def called(x): return x
    called.first, called.second = reads, last
    def kernel(x): x[0] = called.first, called.second, called.__doc__
    return fingerprint(kernel, NUMBA, with_lines=False, is_observed=True).digest
print(json.dumps([digest_with(text) for text in ("one", "one", "two")]))
"""


def test_attribute_counts_that_is_found_after_an_unreadable_registration() -> None:
    """A function that is an attribute of another has a docstring, too."""
    one, again, two = said(NUMBA + ATTRIBUTES)

    assert (one == again, one == two) == (True, False)


FREED = """
import gc, json, weakref
from numba.cuda import types
from numba.cuda.extending import overload_attribute
from numba_kcache.frontends.numba import fingerprint
from numba_kcache.frontends.numba.llvm import NUMBA

HELD = object()
def shared(): return HELD
@overload_attribute(types.Array, "held")
def unreadable(array):
    if shared() is None: return lambda array: array
readers = []
class Reader(fingerprint.Reader):
    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        readers.append(weakref.ref(self))
fingerprint.Reader = Reader
def kernel(x): x[0] = x.held
gc.disable()
fingerprint.fingerprint(kernel, NUMBA, with_lines=False, is_observed=True)
print(json.dumps([each() is None for each in readers]))
"""


def test_what_was_read_is_freed_with_its_fingerprint_after_a_refusal() -> None:
    """A refusal that is kept would hold the frames that it came through, and these hold what was read."""
    assert said(NUMBA + FREED) == [True]


MAP = """
import json, operator, sys, warnings
warnings.simplefilter("ignore")
from numba_kcache import KernelCache, UncacheableError, cached_kernel

ALL = []
def registered():
    def own(x): pass
    @overload(own)
    def of_own(x):
        if len(ALL): return lambda x: x
    return own
ALL += [registered() for _ in range(1_500)]
@overload(operator.mul)
def product(a, b):
    if not ALL: return lambda a, b: a

def free(x): x[0] = x[1]
def used(x): x[0] = x[1] * 2
cache, said = KernelCache(sys.argv[1]), {}
for function in (free, used, free):
    try:
        cached_kernel(function, cache=cache).compile("sm_90", "void(float64[::1])")
        said[function.__name__] = "cached"
    except UncacheableError as error:
        said[function.__name__] = str(error).partition(": ")[2].partition(": ")[2].partition("\\n")[0]
print(json.dumps([said, cache.info("process").hits]))
"""


def test_registrations_that_reach_each_other_by_the_thousand_are_not_read_to_the_end(tmp_path: Path) -> None:
    """As those of the package vector, whose maps of all its functions each of these reads: a launch never came back."""
    found, hits = said(NUMBA + MAP, str(tmp_path))

    assert found["free"] == "cached"
    assert hits == 1
    assert found["used"].startswith(("registrations reach too many functions", "maximum recursion depth exceeded"))


PROFILED = "import cProfile\nPROFILER = cProfile.Profile()\nPROFILER.enable()\nNAMES = 'mul'\n"


def test_program_under_a_profiler_runs_and_keeps_it(tmp_path: Path) -> None:
    """In Python 3.11 what a compile calls is seen by a profile function, of which a thread has one."""
    free, _used = said(PROFILED + NUMBA + MANY + "PROFILER.disable()\nassert PROFILER.getstats()\n", str(tmp_path))

    reason = "" if sys.version_info >= (3, 12) else "a profiler hides what its compile calls"
    assert free["why"].partition("\n")[0] == reason


USED_TWICE = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
from numba_kcache import KernelCache, UncacheableError, cached_kernel

HELD = object()
def own(x): pass
@overload(own)
def ol(x):
    if HELD is None:
        return lambda x: x * 7.0
    return lambda x: x + 7.0
@cuda.jit(device=True)
def helper(x): return own(x)

def first(x): x[0] = own(x[1])
def second(x): x[0] = own(x[1]) + 1
def third(x): x[0] = helper(x[1])
def fourth(x): x[0] = helper(x[1]) + 1

cache, said = KernelCache(sys.argv[1]), {}
for function in (first, second, third, fourth):
    try:
        cached_kernel(function, cache=cache).compile("sm_90", "void(float64[::1])")
        said[function.__name__] = "cached"
    except UncacheableError as error:
        said[function.__name__] = str(error).partition(": ")[2].partition(": ")[0]
print(json.dumps(said))
"""


@pytest.mark.parametrize("imports", [NUMBA, MLIR], ids=["numba", "mlir"])
def test_unreadable_overload_refuses_each_kernel_of_a_process(tmp_path: Path, imports: str) -> None:
    """Also those after the first, for which Numba itself would use again what the overload gave before."""
    pytest.importorskip("numba_cuda_mlir" if imports is MLIR else "numba")

    found = said(imports + USED_TWICE, str(tmp_path), of="mlir" if imports is MLIR else "numba")

    assert found == dict.fromkeys(("first", "second", "third", "fourth"), "global HELD of __main__")


CLASSES = """
import json, operator, sys, warnings
warnings.simplefilter("ignore")
from numba_kcache import KernelCache, UncacheableError, cached_kernel

HELD = object()
class Own(types.Type):
    def __init__(self):
        super().__init__("Own")
        self.held = HELD
@typing_registry.register_global(operator.mul)
class Product(templates.AbstractTemplate):
    def generic(self, args, kws):
        if HELD is not None and isinstance(args[0], types.UniTuple):
            return None
@typing_registry.register_global(operator.truediv)
class Quotient(templates.ConcreteTemplate):
    cases = [templates.signature(Own(), Own(), Own())]
    def never_called(self): pass
@typing_registry.register_attr
class OfArray(templates.AttributeTemplate):
    key = types.Array
    def __init__(self, context):
        super().__init__(context)
    def resolve_size(self, array): return None if HELD else types.int64
@typing_registry.register_attr
class OfOwn(templates.AttributeTemplate):
    key = Own
    def resolve_shape(self, own): return types.int64 if HELD else None

def free(x): x[0] = x[1] + 1
def product(x): x[0] = x[1] * 2
def quotient(x): x[0] = x[1] / x[2]
def size(x): x[0] = x.size
def shape(x): x[0] = x.shape[0]

cache, said = KernelCache(sys.argv[1]), {}
for function in (free, product, quotient, size, shape, free):
    try:
        cached_kernel(function, cache=cache).compile("sm_90", "void(float64[::1])")
        said[function.__name__] = "cached"
    except UncacheableError as error:
        said[function.__name__] = str(error).partition(": ")[2].partition(": ")[0]
info = cache.info("process")
print(json.dumps([said, info.hits]))
"""

TEMPLATES = {
    "numba": """
from numba import cuda
from numba.cuda import types
from numba.cuda.cudadecl import registry as typing_registry
from numba.cuda.typing import templates
""",
    "numba_cuda_mlir": """
from numba_cuda_mlir import cuda, extending
from numba_cuda_mlir.numba_cuda import types
from numba_cuda_mlir.numba_cuda.typing import templates
typing_registry = extending.typing_registry
""",
}


@pytest.mark.parametrize("package", TEMPLATES)
def test_unreadable_class_refuses_the_kernels_that_reach_it_alone(tmp_path: Path, package: str) -> None:
    """A class that types operators by its code or by its cases, or attributes. numba-cuda-mlir asks its own first, and
    nobody else about numbers and arrays; neither asks that of another type."""
    pytest.importorskip(package)
    reached = ("product", "quotient", "size") if package == "numba" else ()

    found = said_in_turn(TEMPLATES[package] + CLASSES, tmp_path / "cache", "numba" if package == "numba" else "mlir")

    wanted = dict.fromkeys(("free", "product", "quotient", "size", "shape"), "cached")
    for reasons, _hits in found:
        assert reasons == wanted | dict.fromkeys(reached, "global HELD of __main__")
    assert [hits for _reasons, hits in found] == [1, 1 + len(wanted) - len(reached)]


FRAME_LIBRARY = """
import operator, threading
from numba import cuda
from numba.cuda import cgutils, types
from numba.cuda.cudadecl import registry as decl_registry
from numba.cuda.cudaimpl import lower, registry as lowering_registry
from numba.cuda.extending import core_models as models, make_attribute_wrapper, register_model, typeof_impl
from numba.cuda.typing.templates import AbstractTemplate, AttributeTemplate

LOCK = threading.Lock()

class Masked:
    def __init__(self, value, valid): self.value, self.valid = value, valid
class MaskedType(types.Type):
    def __init__(self, value):
        self.value_type = value
        super().__init__(name=f"Masked({value})")
    def __hash__(self): return hash(repr(self))
@typeof_impl.register(Masked)
def typeof_masked(value, context): return MaskedType(context.resolve_value_type(value.value))
@register_model(MaskedType)
class MaskedModel(models.StructModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, [("value", kind.value_type), ("valid", types.bool_)])
make_attribute_wrapper(MaskedType, "value", "value")
make_attribute_wrapper(MaskedType, "valid", "valid")
class Arithmetic(AbstractTemplate):
    def generic(self, args, kws):
        if all(isinstance(each, MaskedType) for each in args):
            resolved = self.context.resolve_function_type(self.key, [each.value_type for each in args], kws)
            return resolved and resolved.replace(return_type=MaskedType(resolved.return_type), args=args)
class Truth(AbstractTemplate):
    def generic(self, args, kws):
        if isinstance(args[0], MaskedType):
            return LOCK and None
for operation in (operator.add, operator.sub, operator.mul, operator.truediv, operator.lt, operator.iadd):
    decl_registry.register_global(operation)(Arithmetic)
decl_registry.register_global(operator.truth)(Truth)
@decl_registry.register_attr
class Attributes(AttributeTemplate):
    key = MaskedType
    def resolve_shape(self, masked): return LOCK and types.int64
@lowering_registry.lower_cast(types.Any, MaskedType)
def cast(context, builder, fromty, toty, value): return LOCK and value

class Manager(cuda.HostOnlyCUDAMemoryManager):
    interface_version = 1
    def memalloc(self, size): raise NotImplementedError
    def get_ipc_handle(self, memory): raise NotImplementedError
    def get_memory_info(self): raise NotImplementedError
    def initialize(self): pass
    def reset(self): pass
cuda.set_memory_manager(Manager)
cuda.core.config.CUDA_LOW_OCCUPANCY_WARNINGS = 0
cuda.core.config.CAPTURED_ERRORS = "new_style"
"""

BESIDE = """
import json, sys, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv[1])
import frames
from numba import cuda
from numba_kcache import KernelCache, UncacheableError, cached_kernel

@cuda.jit(device=True)
def moved(x): return x + 2.0
def copied(x): x[0] = moved(x[1])
def counted(x): x[0] = x.shape[0]
def strided(x):
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        if i < x.size:
            x[i] = 1.0
def atomic(x): cuda.atomic.add(x, 0, 1.0)

cache, said = KernelCache(sys.argv[1]), {}
for function in (copied, counted, strided, atomic):
    try:
        cached_kernel(function, cache=cache).compile("sm_90", "void(float64[::1])")
        said[function.__name__] = "cached"
    except UncacheableError as error:
        said[function.__name__] = str(error)
print(json.dumps([said, cache.info("process").hits]))
"""


def test_package_of_masked_values_and_a_memory_manager_keep_the_cache(tmp_path: Path) -> None:
    """Registrations as cuDF has them (templates for operators and attributes, a cast of any type), some of them
    unreadable, and a memory manager and settings as RMM and cuDF set them: kernels that do not reach what cannot be
    read are cached, and found in the next process."""
    (tmp_path / "frames.py").write_text(FRAME_LIBRARY)

    found = said_in_turn(BESIDE, tmp_path)

    kernels = ("copied", "counted", "strided", "atomic")
    assert found == [[dict.fromkeys(kernels, "cached"), hits] for hits in (0, 4)]


ORDERED = """
import json, operator, sys
from numba import cuda
from numba.cuda import types
from numba.cuda.cudadecl import registry
from numba.cuda.typing import templates
from numba_kcache import KernelCache, cached_kernel

def first(x): x[0] = 1
def product(x): x[0] = x[1] * 2
NUMBERS = (types.float64[::1],)
if sys.argv[2] == "late":
    cuda.compile_ptx(first, NUMBERS, cc=(9, 0))

@registry.register_global(operator.mul)
class Product(templates.ConcreteTemplate):
    cases = [templates.signature(types.int64, types.int64, types.int64)]

if sys.argv[2] == "compiled between":
    cuda.compile_ptx(first, NUMBERS, cc=(9, 0))
cache = KernelCache(sys.argv[1])
kernel = cached_kernel(product, cache=cache)
kernel.compile("sm_90", "void(float64[::1])")
ours = "cvt.rzi.s64" in kernel.ptx(arch="sm_90", signature="void(float64[::1])")
print(json.dumps([cache.info("process").hits, ours, "cvt.rzi.s64" in cuda.compile_ptx(product, NUMBERS, cc=(9, 0))[0]]))
"""


def test_registration_after_a_compile_is_another_than_before(tmp_path: Path) -> None:
    """Numba asks its own class for the operator first if that was used before, and the code differs."""
    found = {}
    for when in ("early", "late", "early", "compiled between", "late"):
        found.setdefault(when, []).append(said(ORDERED, str(tmp_path), when, way="later" if when in found else "early"))

    assert found == {
        "early": [[0, True, True], [1, True, True]],
        "compiled between": [[1, True, True]],
        "late": [[0, False, False], [1, False, False]],
    }


FOR_CUDA = """
import sys
from numba import cuda, types
from numba.extending import overload_method
class Pair(types.Type):
    def __init__(self): super().__init__("Pair")
@overload_method(Pair, "low", target="cuda")
def low(pair): return lambda pair: 1.0
from numba_kcache import KernelCache, cached_kernel
cache = KernelCache(sys.argv[1])
@cached_kernel(cache=cache)
def kernel(x): x[0] = x[1]
kernel.compile("sm_90", "void(float64[::1])")
print(cache.info("process").misses)
"""


def test_method_registered_with_numba_for_cuda_alone_is_read_by_the_first_compile(tmp_path: Path) -> None:
    """Numba reads its registries under the target of the compile; such a method checks it (nvmath.device has some)."""
    assert said(FOR_CUDA, str(tmp_path)) == 1
