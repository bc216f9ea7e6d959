"""Which argument types are one key, and which are not."""

from __future__ import annotations

import enum
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
from numba import cuda, from_dtype, types
from numba.core.types.abstract import Type
from numba.cuda.typing.typeof import typeof

from numba_kcache.frontends.numba import dialect
from numba_kcache.frontends.python.definition import signature_component
from numba_kcache.frontends.python.function import Uncapturable
from numba_kcache.keys import Component


def digest(*kinds: Any) -> str:
    found = signature_component(dialect.form_of_type, kinds)
    assert isinstance(found, Component), found
    return found.digest


def pair(fields: str) -> Any:
    return typeof(namedtuple("Pair", fields)(1, 2))


def mode(fast: int) -> Any:
    return typeof(enum.IntEnum("Mode", {"FAST": fast, "SLOW": 9}).SLOW)


def record(**options: Any) -> Any:
    return from_dtype(np.dtype([("a", np.int32), ("b", np.float64)], **options))


ARRAY = types.Array(types.float32, 1, "C")
DIFFERENT = {
    "dtype": (ARRAY, types.Array(types.float64, 1, "C")),
    "axes": (ARRAY, types.Array(types.float32, 2, "C")),
    "layout": (ARRAY, types.Array(types.float32, 1, "A")),
    "read only": (ARRAY, types.Array(types.float32, 1, "C", readonly=True)),
    "aligned": (ARRAY, types.Array(types.float32, 1, "C", aligned=False)),
    "width": (types.int32, types.int64),
    "sign": (types.int32, types.uint32),
    "order of a named tuple's fields": (pair("x y"), pair("y x")),
    "members of an enum": (mode(1), mode(2)),
    "offsets of a record": (record(), record(align=True)),
    "offsets of a record in an array": (types.Array(record(), 1, "C"), types.Array(record(align=True), 1, "C")),
    "nesting": (types.Tuple((types.int32, types.Tuple((types.int32,)))), types.UniTuple(types.int32, 2)),
    "unit of time": (types.NPDatetime("s"), types.NPDatetime("ns")),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_difference_changes_digest(what: str) -> None:
    """Each of these is other code; Numba's text of a type does not show all of them."""
    one, other = DIFFERENT[what]

    assert digest(one) != digest(other)


def test_order_and_number_of_arguments_count() -> None:
    """Arguments are told apart by place, and a tuple is not its members."""
    assert digest(types.int32, types.int64) != digest(types.int64, types.int32)
    assert digest(types.int32, types.int32) != digest(types.UniTuple(types.int32, 2))


def test_same_types_made_twice_keep_digest() -> None:
    """Objects of another process, classes of another import."""
    for make in (lambda: pair("x y"), lambda: mode(1), record, lambda: types.Array(types.int8, 3, "F")):
        assert digest(make()) == digest(make())


def test_text_of_the_types_is_kept_for_explanations() -> None:
    """A reader of a difference sees what Numba would print."""
    found = signature_component(dialect.form_of_type, (ARRAY, types.int32))

    assert isinstance(found, Component)
    assert found.value == ["array(float32, 1d, C)", "int32"]


def test_types_of_extensions_and_of_this_process_are_refused() -> None:
    """The lowering of such types cannot be read."""

    class Extension(Type):
        pass

    for kind in (Extension("extension"), cuda.jit(lambda x: x, device=True)._numba_type_):
        assert isinstance(signature_component(dialect.form_of_type, (types.int32, kind)), Uncapturable)
        assert isinstance(signature_component(dialect.form_of_type, (types.Tuple((types.int32, kind)),)), Uncapturable)


def test_types_of_extensions_can_be_vouched_for() -> None:
    """With `depends=`, extension types count by name; types known only by an address stay refused."""

    class Extension(Type):
        pass

    one, other = (
        signature_component(dialect.form_of_type, (Extension(name),), is_covered=True) for name in ("one", "other")
    )
    assert isinstance(one, Component)
    assert isinstance(other, Component)
    assert one.digest != other.digest
    dispatcher = cuda.jit(lambda x: x, device=True)._numba_type_
    assert isinstance(signature_component(dialect.form_of_type, (dispatcher,), is_covered=True), Uncapturable)
