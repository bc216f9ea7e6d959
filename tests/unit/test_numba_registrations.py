"""Registrations with Numba are in the key whole: edits are held against Numba's compiles without us."""

from __future__ import annotations

import functools

import pytest

from tests.support import numba_server
from tests.support.compiling import edited as in_program
from tests.support.fake_driver import build, environment, needs_fake_driver

pytestmark = [needs_fake_driver, pytest.mark.slow]

PROGRAM = """
import math, operator
from numba import cuda, types
from numba.cuda import models
from numba.cuda.cudadecl import registry as typing_registry
from numba.cuda.cudaimpl import registry as lowering_registry
from numba.cuda.extending import (
    _intrinsic, lower_builtin, make_attribute_wrapper, overload, overload_attribute, overload_method, register_jitable,
    register_model, type_callable)
from numba.cuda import cgutils
from numba.cuda.typing.templates import AttributeTemplate, ConcreteTemplate, make_concrete_template, signature

GAIN, NOTHING = 3.0, None

def scaled(x): return x
@overload(scaled, jit_options={"fastmath": False}, inline="never", strict=True)
def implement_scaled(x):
    return lambda x: x / GAIN / 7.0 + x * x * x

def told(x): return x
@overload(told, prefer_literal=False)
def implement_told(x):
    if isinstance(x, types.Literal):
        return lambda x: 5.0
    return lambda x: 6.0

@overload_method(types.Array, "of_array")
def implement_of_array(a): return lambda a: a[0] + 1.0
@overload_method(types.Tuple, "of_array")
def implement_of_tuple(a): return lambda a: 2.0

@overload_attribute(types.Array, "one_kcache")
def implement_one(a): return lambda a: 1.5
@overload_attribute(types.Array, "two_kcache")
def implement_two(a): return lambda a: 2.5

@overload(operator.sub)
def implement_sub(a, b):
    if isinstance(a, types.BaseTuple): return lambda a, b: a[0] - b[1] * 3.0
@overload(operator.truediv)
def implement_truediv(a, b):
    if isinstance(a, types.BaseTuple): return lambda a, b: a[1] / b[0] + 4.0

@register_jitable
def jitable(x): return x * 11.0

@_intrinsic(target="cuda", prefer_literal=True)
def written(context, x):
    def write(context, builder, signature, arguments):
        return context.get_constant(types.float64, 8.0 if x != NOTHING and isinstance(x, types.Literal) else 9.0)
    return types.float64(x), write

def typed(x): return x
@type_callable(typed)
def type_typed(context):
    def typer(x): return types.float64
    return typer
@lower_builtin(typed, types.Float)
def lower_typed(context, builder, signature, arguments):
    return builder.fadd(arguments[0], arguments[0])
@lower_builtin(typed, types.Integer)
def lower_typed_integer(context, builder, signature, arguments):
    return context.get_constant(types.float64, 21.0)

@typing_registry.register_attr
class OfArray(AttributeTemplate):
    key = types.Array
    def resolve_weight_kcache(self, array): return types.float64
@lowering_registry.lower_getattr(types.Array, "weight_kcache")
def lower_weight(context, builder, kind, value): return context.get_constant(types.float64, 4.0)

def concrete(x): return x
@typing_registry.register_global(concrete)
class Concrete(ConcreteTemplate):
    cases = [signature(types.float64, types.float64)]
@lowering_registry.lower(concrete, types.float64)
def lower_concrete(context, builder, signature, arguments): return arguments[0]
@lowering_registry.lower(concrete, types.float32)
def lower_concrete_single(context, builder, signature, arguments):
    return builder.fpext(arguments[0], context.get_value_type(types.float64))

def doubled(x): return x
typing_registry.register_global(doubled)(
    make_concrete_template("doubled", doubled, [signature(types.float64, types.float64, types.float64)]))
@lowering_registry.lower(doubled, types.float64, types.float64)
def lower_doubled(context, builder, signature, arguments): return arguments[0]
@lowering_registry.lower(doubled, types.float32, types.float64)
def lower_doubled_single(context, builder, signature, arguments): return arguments[1]

class PairType(types.Type):
    def __init__(self): super().__init__("Pair")
@register_model(PairType)
class PairModel(models.models.StructModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, [("low", types.float64), ("high", types.float64)])
make_attribute_wrapper(PairType, "low", "first")
make_attribute_wrapper(PairType, "high", "second")
@overload_attribute(PairType, "both")
def implement_both(pair): return lambda pair: pair.first + pair.second
class Pair: pass
@type_callable(Pair)
def type_pair(context):
    def typer(low, high): return PairType()
    return typer
@lower_builtin(Pair, types.Float, types.Float)
def lower_pair(context, builder, signature, arguments):
    made = cgutils.create_struct_proxy(signature.return_type)(context, builder)
    made.low, made.high = arguments
    return made._getvalue()
@overload(bool)
def implement_truth(pair):
    if isinstance(pair, PairType): return lambda pair: pair.first > 13.0

@cuda.jit
def kernel(x):
    if Pair(x[7], x[6]): x[9] = 1.0
    x[6] = Pair(x[6], x[7]).first + doubled(x[7], x[8]) * Pair(x[7], x[8]).both
    x[0] = scaled(x[0]) + told(3) + x.of_array() + x.one_kcache + x.two_kcache * 2.0
    x[1] = (x[0], x[1]) - (x[1], x[2])
    x[2] = (x[0], x[1]) / (x[1], x[2])
    x[3] = jitable(x[3]) + written(3) + typed(x[4]) + x.weight_kcache + concrete(x[5])
"""

MORE = "@register_jitable"
"""Mark at which further registrations are put."""

MUL = """@overload(operator.mul)
def implement_mul(a, b):
    if isinstance(a, types.BaseTuple): return lambda a, b: 1
"""
MODEL = """@register_model(types.Float)
class Model(models.models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        from llvmlite import ir
        super().__init__(dmm, fe_type, ir.DoubleType())
"""
REWRITE = """from numba.cuda.core import ir
from numba.cuda.core.rewrites import Rewrite, register_rewrite
@register_rewrite("before-inference")
class Eleven(Rewrite):
    def match(self, func_ir, block, typemap, calltypes):
        self.block = block
        self.found = [each for each in block.find_insts(ir.Assign) if isinstance(each.value, ir.Const)]
        self.found = [each for each in self.found if each.value.value == 2.0]
        return bool(self.found)
    def apply(self):
        for each in self.found:
            each.value = ir.Const(11.0, each.value.loc)
        return self.block
"""
TYPEOF = """from numba.cuda.typing.typeof import typeof_impl
@typeof_impl.register(str)
def typeof_text(value, context): return types.float64
"""


def swapped(one: str, other: str) -> str:
    """The program with two of its texts in each other's place."""
    assert PROGRAM.count(one) == PROGRAM.count(other) == 1
    return PROGRAM.replace(one, "\0").replace(other, one).replace("\0", other)


edited = functools.partial(in_program, PROGRAM)

EDITS = {
    "the code of an overload": edited("x / GAIN", "x * GAIN"),
    "a global of an overload": edited("GAIN, NOTHING = 3.0", "GAIN, NOTHING = 4.0"),
    "jit options of an overload": edited('"fastmath": False', '"fastmath": True'),
    "literals first": edited("overload(told, prefer_literal=False)", "overload(told, prefer_literal=True)"),
    "literals last in an intrinsic": edited("prefer_literal=True", "prefer_literal=False"),
    "types of two methods, swapped": swapped('types.Array, "of_array"', 'types.Tuple, "of_array"'),
    "names of two attributes, swapped": swapped('"one_kcache"', '"two_kcache"'),
    "two operators, swapped": swapped("overload(operator.sub)", "overload(operator.truediv)"),
    "a function that is its own overload": edited("x * 11.0", "x * 12.0"),
    "the code that an intrinsic writes": edited("8.0 if", "10.0 if"),
    "the type that a function has": edited("def typer(x): return types.float64", "def typer(x): return types.float32"),
    "lowering": edited("builder.fadd(arguments", "builder.fmul(arguments"),
    "types of two lowerings, swapped": swapped("(typed, types.Float)", "(typed, types.Integer)"),
    "a lowered attribute": edited("types.float64, 4.0)", "types.float64, 5.0)"),
    "the type of an attribute": edited("(self, array): return types.float64", "(self, array): return types.int64"),
    "cases of a template": edited("(types.float64, types.float64)]", "(types.float64, types.float32)]"),
    "cases of a template that Numba makes": edited("float64, types.float64, types.float64)]",
                                                   "float64, types.float32, types.float64)]"),
    "the member behind an attribute": edited('"low", "first"', '"high", "first"'),
    "a function that code uses without naming it": edited("pair.first > 13.0", "pair.first > 14.0"),
    "an operator more": edited(MORE, MUL + MORE),
    "a model of a type of Numba": edited(MORE, MODEL + MORE),
    "a rewrite": edited(MORE, REWRITE + MORE),
    "a type of values": edited(MORE, TYPEOF + MORE),
}  # fmt: skip

UNSEEN = {
    "jit options of an overload", "the type of an attribute", "the type that a function has", "an operator more",
    "a model of a type of Numba", "a type of values",
}  # fmt: skip
"""Edits that leave this kernel's code as it is, or that cannot be compiled."""

ASIDE = {
    "a comment in an overload": edited("return lambda x: x / GAIN", "# why\n    return lambda x: x / GAIN"),
    "an overload that nothing uses": edited(MORE, f"def own(x): pass\n@overload(own)\ndef unused(x): pass\n{MORE}"),
    "a method that nothing uses": edited(MORE, f"@overload_method(types.Array, 'u')\ndef unused(x): pass\n{MORE}"),
}


SCRIPT = """
import hashlib, sys, types
app = sys.modules["app"] = types.ModuleType("app")
space = vars(app)
exec({source!r}, space)
from numba import float64
from numba_kcache.frontends.numba.llvm import NUMBA as dialect
from numba_kcache.frontends.numba.compiled_code import compile_kernel
from numba_kcache.frontends.numba.fingerprint import fingerprint
from numba_kcache.model import Target
before = fingerprint(space["kernel"], dialect, with_lines=False)
digest = getattr(before, "digest", None) or str(before)
try:
    code = compile_kernel(dialect, space["kernel"], (float64[::1],), Target(9, 0)).cubin
    code = hashlib.sha256(code).hexdigest()
except Exception as error:
    code = type(error).__name__
after = fingerprint(space["kernel"], dialect, with_lines=False)
assert getattr(after, "digest", None) == digest, (after, before)
print(digest, code, sep="|")
"""


@functools.cache
def outcome(source: str) -> tuple[str, str]:
    """The kernel's digest, and that of the cubin which Numba makes without us, in a process of its own."""
    digest, code = numba_server.output(["-c", SCRIPT.format(source=source)], environment(build())).strip().split("|")
    return digest, code


@pytest.mark.parametrize("what", EDITS)
def test_edit_of_a_registration_invalidates_key(what: str) -> None:
    """The code that Numba makes is another; so is the digest, and a compile in between changes neither."""
    before, after = outcome(PROGRAM), outcome(EDITS[what])

    assert len(before[0]) == 64, before
    assert before[0] != after[0]
    assert (before[1] != after[1]) or what in UNSEEN


@pytest.mark.parametrize("what", ASIDE)
def test_edit_beside_the_kernel_keeps_key(what: str) -> None:
    """The code is the same, too."""
    assert outcome(ASIDE[what]) == outcome(PROGRAM)


def test_order_of_registrations_for_different_things_keeps_key() -> None:
    """The order depends on the order of imports."""
    start, end = PROGRAM.index("@overload(operator.sub)"), PROGRAM.index("@register_jitable")
    sub, truediv = PROGRAM[start:end].split("@overload(operator.truediv)")
    swapped = PROGRAM[:start] + "@overload(operator.truediv)" + truediv + sub + PROGRAM[end:]

    assert outcome(swapped) == outcome(PROGRAM)


INSTALLED = """
import sys, sysconfig
library = '''
import operator
from {home}.types import Array, BaseTuple
from {home}.extending import overload, overload_attribute
@overload_attribute(Array, "gain_kcache")
def gain(a): return lambda a: {gain}
@overload(operator.sub)
def sub(a, b):
    if isinstance(a, BaseTuple): return lambda a, b: {gain}
'''
exec(compile(library, sysconfig.get_path("purelib") + "/library.py", "exec"), {{"__name__": "library"}})
import numba_kcache.frontends.numba.{row} as row
from numba_kcache.frontends.numba.fingerprint import fingerprint
def by_attribute(x): x[0] = x.gain_kcache
def by_operator(x): x[0] = (1.0, 2.0) - (3.0, 4.0)
print(*(fingerprint(each, row.{flavour}, with_lines=False).digest for each in (by_attribute, by_operator)))
"""


@pytest.mark.parametrize(
    ("of", "home", "row"), [("numba", "numba.cuda", "llvm"), ("mlir", "numba_cuda_mlir.numba_cuda", "mlir")]
)
def test_registrations_of_an_installed_package_count(of: str, home: str, row: str) -> None:
    """A library in `site-packages`, below Python's own folder, is the program's as any other file is."""
    digests = [
        numba_server.output(
            ["-c", INSTALLED.format(home=home, row=row, flavour={"llvm": "NUMBA", "mlir": "MLIR"}[row], gain=gain)],
            environment(build()),
            of,
        ).split()
        for gain in ("3.0", "5.0")
    ]

    assert all(before != after for before, after in zip(*digests, strict=True)), digests


NAMED = """
library = '''
import operator
from numba.cuda import types
from numba.cuda.cudadecl import registry
from numba.cuda.typing.templates import ConcreteTemplate, signature
@registry.register_global(operator.matmul)
class Product(ConcreteTemplate):
    key = operator.matmul
    cases = [signature(types.{returned}, types.float64, types.float64)]
'''
exec(library, {{"__name__": "numpy_of_mine"}})
from numba_kcache.frontends.numba.llvm import NUMBA
from numba_kcache.frontends.numba.fingerprint import fingerprint
def kernel(x): x[0] = x[0] @ x[1]
print(fingerprint(kernel, NUMBA, with_lines=False).digest)
"""


def test_registration_of_a_package_that_is_named_like_a_pinned_one_counts() -> None:
    """It is told by where its module comes from, not by the start of its name."""
    before, after = (
        numba_server.output(["-c", NAMED.format(returned=returned)], environment(build()))
        for returned in ("float64", "float32")
    )

    assert len(before.strip()) == 64
    assert before != after
