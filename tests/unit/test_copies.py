"""Copies of functions with Numba's objects in place of stand-ins."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import pytest

from numba_kcache.frontends.numba import fingerprint
from numba_kcache.frontends.numba.copies import copied

FACTOR: Any = None


def function() -> Any:
    return FACTOR


class Meanwhile:
    """A stand-in; when a copy asks for the object in its place, another thread copies the same function."""

    def __init__(self) -> None:
        self.found: list[FunctionType] = []

    def _stands_for(self) -> str:
        if threading.current_thread() is threading.main_thread():
            other = threading.Thread(target=lambda: self.found.append(copied(function)), daemon=True)
            other.start()
            other.join(10)
        return "the real one"


@pytest.fixture
def factor(monkeypatch: pytest.MonkeyPatch) -> Iterator[Meanwhile]:
    """The global of the function: a stand-in."""
    fingerprint.standing.add(Meanwhile)
    found = Meanwhile()
    monkeypatch.setitem(globals(), "FACTOR", found)
    yield found
    fingerprint.standing.discard(Meanwhile)


def test_thread_copies_function_that_another_is_copying(factor: Meanwhile) -> None:
    """A thread does not wait for another's copy, and gets the same copy, which is whole."""
    made = copied(function)

    assert factor.found == [made]
    assert made() == "the real one"


def test_copy_is_brought_up_to_date(factor: Meanwhile, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy has the globals that the program has at the last call, also removed ones; the program's stay."""
    made = copied(function)
    assert (made(), FACTOR) == ("the real one", factor)

    monkeypatch.setitem(globals(), "FACTOR", 3)
    assert copied(function) is made
    assert made() == 3

    monkeypatch.delitem(globals(), "FACTOR")
    copied(function)
    with pytest.raises(NameError):
        made()


class Unbound:
    """A proxy, as of a web framework, outside of a request."""

    @property
    def __class__(self) -> Any:
        raise RuntimeError("it stands for nothing")

    @__class__.setter
    def __class__(self, value: Any) -> None:
        """Do nothing: a type checker asks for it."""


def test_copy_keeps_no_global_that_its_function_does_not_read() -> None:
    """An array that the program deletes is freed."""
    large = Meanwhile()
    namespace: dict[str, Any] = {"__name__": "program", "large": large}
    exec("def kernel(): return unbound", namespace)
    namespace["unbound"] = Unbound()
    kept, made = weakref.ref(large), copied(namespace["kernel"])

    assert made() is namespace["unbound"]
    del namespace["large"], large
    assert kept() is None
