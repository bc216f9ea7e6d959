"""`model.NamedTuple` makes the classes that `typing.NamedTuple` makes, and evaluates no annotation."""

from __future__ import annotations

import copy
import pickle
import typing
from typing import Any

import pytest

from numba_kcache.model import NamedTuple


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
