"""The values of `model`: targets, the codes of parameter types, and the classes of its named tuples."""

from __future__ import annotations

import copy
import itertools
import pickle
import typing
from typing import Any

import pytest

from numba_kcache.errors import OptionError
from numba_kcache.model import CODE_SIZES, SCALAR_SIZES, NamedTuple, Parameter, Target, parse_target, read_arch

# -- targets: one spelling each, and the devices that run their code ---------------------------------------------------


@pytest.mark.parametrize(
    ("spelling", "target"),
    [
        ("sm_90", Target(9, 0)),
        ("sm_90a", Target(9, 0, "a")),
        ("sm_100f", Target(10, 0, "f")),
        ("sm_121", Target(12, 1)),
        ("compute_80", Target(8, 0, "", True)),
        ("compute_120f", Target(12, 0, "f", True)),
        ((9, 0), Target(9, 0)),
        ((12, 1), Target(12, 1)),
        (Target(7, 5), Target(7, 5)),
    ],
)
def test_spelling_is_read(spelling: object, target: Target) -> None:
    """Strings as compilers write them, pairs as Numba writes them, and targets themselves."""
    assert parse_target(spelling) == target


@pytest.mark.parametrize("major", [7, 8, 9, 10, 12])
@pytest.mark.parametrize("suffix", ["", "a", "f"])
@pytest.mark.parametrize("virtual", [False, True])
def test_name_reads_back(major: int, suffix: str, virtual: bool) -> None:
    """`parse_target(t.name) == t`: the header of an artifact has only the name."""
    target = Target(major, 5, suffix, virtual)

    assert parse_target(target.name) == target
    assert str(target) == target.name


@pytest.mark.parametrize(
    "spelling",
    [
        "sm_9", "sm90", "SM_90", "sm_90 ", " sm_90", "sm_90b", "sm_90aa", "sm_90\n", "sm_-90", "sm_9000", "compute", "",
        "auto", "lto_90", "90", 90, 9.0, (9,), (9, 0, 0), (9, 10), (0, 5), (-1, 0), (100, 0), (9.0, 0), (True, 0),
        ("9", "0"), [9, 0], None, b"sm_90", "sm_\uff19\uff10",
    ],
)  # fmt: skip
def test_anything_else_is_refused_with_what_to_write(spelling: object) -> None:
    """The message shows the value and the accepted forms."""
    with pytest.raises(OptionError) as caught:
        parse_target(spelling)

    assert repr(spelling) in str(caught.value)
    assert "hint: write" in str(caught.value)
    assert "sm_9" in str(caught.value) or "compute_9" in str(caught.value)


@pytest.mark.parametrize(
    ("arch", "names"),
    [
        ("auto", ()), ("native", ()), (8.6, ("sm_86",)), ("8.6", ("sm_86",)), ("86", ("sm_86",)), ("9.0a", ("sm_90a",)),
        (12.0, ("sm_120",)), ("120", ("sm_120",)), (10.3, ("sm_103",)), (["8.0", "sm_90"], ("sm_80", "sm_90")),
    ],
)  # fmt: skip
def test_compute_capability_alone_names_a_target(arch: object, names: tuple[str, ...]) -> None:
    """As `arch` takes it; "native" is the current device, like "auto"."""
    assert tuple(each.name for each in read_arch(arch)) == names


@pytest.mark.parametrize(
    ("name", "runs", "does_not"),
    [
        ("sm_80", [(8, 0), (8, 6), (8, 9)], [(7, 5), (9, 0), (12, 0)]),
        ("sm_86", [(8, 6), (8, 9)], [(8, 0), (9, 0)]),
        ("sm_90a", [(9, 0)], [(9, 1), (10, 0), (8, 9)]),
        ("sm_100a", [(10, 0)], [(10, 3), (12, 0)]),
        ("sm_100f", [(10, 0), (10, 3)], [(12, 0), (9, 0)]),
        ("compute_80", [], [(8, 0), (9, 0)]),
    ],
)
def test_code_runs_where_the_programming_guide_says(
    name: str, runs: list[tuple[int, int]], does_not: list[tuple[int, int]]
) -> None:
    """The same major and a later minor; with `a` only the same capability; PTX itself runs on no device."""
    target = parse_target(name)

    assert all(target.runs_on(cc) for cc in runs)
    assert not any(target.runs_on(cc) for cc in does_not)


def test_derived_targets() -> None:
    """The plain target drops the suffix, the virtual one keeps it."""
    target = parse_target("sm_90a")

    assert (target.plain.name, target.as_virtual.name, target.cc) == ("sm_90", "compute_90a", (9, 0))


# -- codes of parameter types: a closed set, each with its size ----------------------------------------------------

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
def test_anything_else_is_no_code(text: str) -> None:
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


# -- named tuples, as typing makes them, without a look at annotations ---------------------------------------------


class Ours(NamedTuple):
    """One with a default, a method and a property."""

    first: int
    second: str = "two"

    @property
    def both(self) -> str:
        """Return both fields."""
        return f"{self.first} {self.second}"

    def __str__(self) -> str:
        return self.both


class Theirs(typing.NamedTuple):
    """One with a default."""

    first: int
    second: str = "two"


def test_class_is_as_typing_makes_it() -> None:
    """Fields, defaults, annotations by name, equality, replacement, matching and representation."""
    ours: Any = Ours

    for name in ("_fields", "_field_defaults", "__match_args__", "__module__"):
        assert getattr(ours, name) == getattr(Theirs, name), name
    assert list(ours.__annotations__) == list(Theirs.__annotations__)
    assert (ours.__name__, ours.__qualname__, ours.__doc__) == (
        "Ours",
        "Ours",
        "One with a default, a method and a property.",
    )
    assert Ours(1) == Theirs(1) == (1, "two")
    assert repr(Ours(1, second="x")) == "Ours(first=1, second='x')"
    assert (Ours(1)._replace(first=2).both, str(Ours(3))) == ("2 two", "3 two")
    assert pickle.loads(pickle.dumps(Ours(4))) == copy.copy(Ours(4)) == Ours(4)
    assert Ours(1)._asdict() == {"first": 1, "second": "two"}


@pytest.mark.parametrize("given", [{}, {"first": 1, "third": 3}])
def test_field_that_lacks_or_is_unknown_is_refused(given: dict[str, Any]) -> None:
    """The error is a TypeError with the class's name, as for any call, also in `_replace`."""
    made: Any = Ours
    with pytest.raises(TypeError, match=r"Ours\.__new__\(\)"):
        made(**given)
    with pytest.raises(TypeError, match="third"):
        made(1)._replace(third=3)


@pytest.mark.parametrize("count", [0, 1, 14, 16, 17, 40])
def test_class_of_any_number_of_fields_is_made(count: int) -> None:
    """Classes with any number of fields share one constructor."""
    names = [f"field_{number}" for number in range(count)]
    body: dict[str, Any] = {"__annotations__": dict.fromkeys(names, "int"), "__module__": __name__}
    made = type(NamedTuple)("Made", (NamedTuple,), body)

    value = made(*range(count))

    assert value._fields == tuple(names)
    assert value == made(**dict(zip(names, range(count), strict=True))) == tuple(range(count))
    assert [getattr(value, name) for name in names] == [*range(count)]


def test_annotation_is_not_looked_at() -> None:
    """An annotation may be no expression, which typing would refuse."""
    body: dict[str, Any] = {
        "__annotations__": {"first": "no expression"},
        "__module__": __name__,
        "__qualname__": "Odd",
    }

    made: Any = type(NamedTuple)("Odd", (NamedTuple,), body)

    assert made(1).first == 1
