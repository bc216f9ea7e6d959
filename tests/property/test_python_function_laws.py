"""Laws of the fingerprint over made-up values and programs."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from numba_kcache.frontends.numba.fingerprint import Fingerprint, Trust, fingerprint, value_form
from numba_kcache.frontends.numba.llvm import NUMBA as numba_dialect
from numba_kcache.keys import encode

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.complex_numbers(), st.text(), st.binary(), st.just(...)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=3), st.integers(0, 3)), inner, max_size=3),
        st.frozensets(st.one_of(st.integers(0, 3), st.text(max_size=2)), max_size=3),
    ),
    max_leaves=6,
)


def form(value: Any) -> bytes:
    return encode(value_form(value, Trust(), lambda inner: None))


def identity(value: Any) -> Any:
    """Identity of a value, written down in another way than the code under test does."""
    if type(value) is float:
        return "f", struct.pack(">d", value)
    if type(value) is complex:
        return "c", struct.pack(">dd", value.real, value.imag)
    if type(value) in (list, tuple):
        return type(value), tuple(map(identity, value))
    if type(value) is dict:
        return dict, tuple((identity(key), identity(each)) for key, each in value.items())
    if type(value) is frozenset:
        return frozenset, frozenset(map(identity, value))
    return type(value), value


@pytest.mark.slow
@given(VALUES, VALUES)
@settings(max_examples=400)
def test_two_values_have_one_form_only_if_they_are_the_same(one: Any, other: Any) -> None:
    """1, True, 1.0 and "1" differ, so do -0.0 and 0.0, (1,) and [1], and the order of a dict."""
    assert (form(one) == form(other)) == (identity(one) == identity(other))


@pytest.mark.slow
@given(arrays.arrays(arrays.scalar_dtypes(), arrays.array_shapes(max_side=3)), st.data())
@settings(max_examples=200)
def test_array_counts_to_the_last_byte(array: np.ndarray[Any, Any], data: st.DataObject) -> None:
    """A copy has the same form; any other byte, dtype, shape, order or writability another one."""
    before = form(array)
    assert form(array.copy()) == before

    raw = bytearray(array.tobytes())
    if raw:
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        assert form(np.frombuffer(bytes(raw), array.dtype).reshape(array.shape).copy()) != before
    frozen = array.copy()
    frozen.flags.writeable = False
    assert form(frozen) != before
    assert form(array[None]) != before
    if not array.dtype.isnative or array.dtype.itemsize > 1:
        assert form(array.astype(array.dtype.newbyteorder())) != before


NAMES = st.sampled_from(["alpha", "beta", "gamma"])
EXPRESSIONS = st.recursive(
    st.one_of(NAMES, st.integers(0, 9).map(str), st.sampled_from(["x[0]", "x.size", "1.5", "True", "'t'"])),
    lambda inner: st.builds(lambda a, operator, b: f"({a} {operator} {b})", inner, st.sampled_from("+-*/"), inner),
    max_leaves=5,
)


def taken(body: str, space: dict[str, Any], *, decoration: str = "") -> str:
    scope = dict(space)
    exec(compile(f"{decoration}def kernel(x):\n    x[0] = {body}\n", f"file{len(decoration)}.py", "exec"), scope)
    found = fingerprint(scope["kernel"], numba_dialect, with_lines=False)
    assert isinstance(found, Fingerprint)
    return found.digest


@pytest.mark.slow
@given(EXPRESSIONS, SCALARS, SCALARS)
@settings(max_examples=200)
def test_a_global_counts_if_and_only_if_it_is_read(body: str, one: Any, other: Any) -> None:
    """Changing what no code reads keeps the digest; changing what it reads does not."""
    space = {"alpha": 1, "beta": 2, "gamma": one}
    changed = taken(body, space) != taken(body, {**space, "gamma": other})

    assert changed == ("gamma" in body and identity(one) != identity(other))


@pytest.mark.slow
@given(EXPRESSIONS, st.integers(0, 5))
def test_comments_lines_and_files_do_not_count(body: str, lines: int) -> None:
    """The same function further down, under a comment, in a file of another name."""
    space = {"alpha": 1, "beta": 2, "gamma": 3}

    assert taken(body, space) == taken(body, space, decoration="# a comment\n" + "\n" * lines)


@pytest.mark.slow
@given(EXPRESSIONS, EXPRESSIONS)
@settings(max_examples=300)
def test_two_programs_have_one_digest_only_if_they_have_one_bytecode(one: str, other: str) -> None:
    """Code, names and constants that differ give digests that differ, and nothing else does."""

    def meaning(body: str) -> Any:
        code = next(
            c for c in compile(f"def kernel(x):\n    x[0] = {body}\n", "f", "exec").co_consts if hasattr(c, "co_code")
        )
        return code.co_code, code.co_names, tuple((type(each), each) for each in code.co_consts)

    space = {"alpha": 1, "beta": 2, "gamma": 3}
    assert (taken(one, space) == taken(other, space)) == (meaning(one) == meaning(other))
