"""`model.NamedTuple` makes what `typing.NamedTuple` makes, and compiles no annotation."""

from __future__ import annotations

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
        """Of both fields."""
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

    for name in ("_fields", "_field_defaults", "__match_args__", "__module__", "__slots__"):
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
    assert pickle.loads(pickle.dumps(Ours(4))) == Ours(4)
    with pytest.raises(TypeError):
        Ours()  # type: ignore[call-arg]


def test_annotation_is_not_looked_at() -> None:
    """One that is no expression, which typing would refuse."""
    body: dict[str, Any] = {
        "__annotations__": {"first": "no expression"},
        "__module__": __name__,
        "__qualname__": "Odd",
    }

    made: Any = type(NamedTuple)("Odd", (NamedTuple,), body)

    assert made(1).first == 1
