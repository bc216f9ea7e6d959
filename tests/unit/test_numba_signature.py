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

from numba_kcache.frontends.numba.definition import signature_component
from numba_kcache.frontends.numba.fingerprint import Refused
from numba_kcache.frontends.numba.llvm import NUMBA as dialect
from numba_kcache.keys import Component


def digest(*kinds: Any) -> str:
    found = signature_component(dialect, kinds)
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
    found = signature_component(dialect, (ARRAY, types.int32))

    assert isinstance(found, Component)
    assert found.value == ["array(float32, 1d, C)", "int32"]


def test_types_of_this_process_are_refused() -> None:
    """Their text is an address."""
    kind = cuda.jit(lambda x: x, device=True)._numba_type_

    for given in ((types.int32, kind), (types.Tuple((types.int32, kind)),)):
        with pytest.raises(Refused):
            signature_component(dialect, given)


def extension(body: str = "pass", name: str = "extension", **state: Any) -> Any:
    """A type that a program added."""
    space: dict[str, Any] = {"Type": Type, "__name__": "app"}
    exec(f"class Extension(Type):\n    {body}\n", space)
    made = space["Extension"](name)
    vars(made).update(state)
    return made


@pytest.mark.parametrize("wrapped", [lambda kind: kind, types.Optional, lambda kind: types.UniTuple(kind, 2)])
def test_type_of_an_extension_counts_by_class_and_state(wrapped: Any) -> None:
    """The code of its class, its name, and what its instance holds; alone, optional or in a tuple."""
    one = digest(wrapped(extension()))

    assert digest(wrapped(extension())) == one
    for other in (extension("bits = 1"), extension(name="other"), extension(bits=1), extension(bits=2)):
        assert digest(wrapped(other)) != one
    assert digest(wrapped(extension(bits=1))) != digest(wrapped(extension(bits=2)))


def test_type_of_an_extension_that_cannot_be_read_is_refused_by_name() -> None:
    """Unless `depends=` has a value for it."""
    kind = extension(held=object())

    with pytest.raises(Refused, match=r"class app\.Extension: a builtins\.object has no content"):
        signature_component(dialect, (kind,))
    held = [signature_component(dialect, (kind,), depends={kind: number}) for number in (1, 2)]

    assert [type(each) for each in held] == [Component, Component]
