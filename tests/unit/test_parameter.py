"""The codes of parameter types: a closed set, each code with its size."""

from __future__ import annotations

import itertools

import pytest

from numba_kcache.model import CODE_SIZES, SCALAR_SIZES, Parameter

VALUES = ["?", "o", *SCALAR_SIZES, *(f"v{n}{scalar}" for n in "1234" for scalar in SCALAR_SIZES)]
CODES = [*VALUES, *(f"*{const}{value}" for const in ("", "k") for value in VALUES)]


def test_every_word_of_the_grammar_is_a_code() -> None:
    """Scalars, vectors, structs and the unknown; pointers to them; pointers to const."""
    assert set(CODES) <= set(CODE_SIZES)
    assert len(set(CODES)) == len(CODES)


@pytest.mark.parametrize(
    "text",
    ["", "*", "*k", "k", "i3", "f16", "v0f4", "v5f4", "vf4", "**f4", "*kkf4", "f4 ", " f4", "f4\n", "F4", "f4f4", "*kv",
     "v4?", "v4o", "x", "int", "*k*f4", "v4v4f4", "f4\0"],
)  # fmt: skip
def test_anything_else_is_not(text: str) -> None:
    """Near misses of codes: a stored entry cannot introduce a code that no launch can pack."""
    assert text not in CODE_SIZES


def test_all_short_words_are_as_the_grammar_says() -> None:
    """Every word of up to three letters over the alphabet of the codes, compared with the list."""
    alphabet = "*k?ov1248biufce45"
    words = ("".join(letters) for size in (1, 2, 3) for letters in itertools.product(alphabet, repeat=size))

    assert {word for word in words if word in CODE_SIZES} == {code for code in CODES if len(code) <= 3}


def test_size_of_each_code() -> None:
    """Pointers take 8 bytes, vectors their elements; structs and the unknown are not told by the code."""
    for code in CODES:
        if code.startswith("*"):
            assert CODE_SIZES[code] == 8
        elif code in ("?", "o"):
            assert CODE_SIZES[code] is None
        elif code.startswith("v"):
            assert CODE_SIZES[code] == int(code[1]) * SCALAR_SIZES[code[2:]]
        else:
            assert CODE_SIZES[code] == int(code[1]) if code not in ("bf", "e4", "e5", "c4", "c8") else True
    assert [CODE_SIZES[code] for code in ("bf", "e4", "e5", "c4", "c8")] == [2, 1, 1, 8, 16]


def test_parameter_reads_as_its_declaration() -> None:
    """Type and name where they are known, else the size."""
    assert str(Parameter(0, 8, "*kf4", "float const*", "x")) == "float const* x"
    assert str(Parameter(0, 8, "*kf4", "float const*")) == "float const*"
    assert str(Parameter(0, 12, "?")) == "12 bytes"
