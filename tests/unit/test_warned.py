"""Warnings of a compile: stored as rows, and given again from the rows, whatever a store holds."""

from __future__ import annotations

import functools
import threading
import warnings
from typing import Any

import pytest

from numba_kcache.frontends.numba.compiled_code import issue_again, rows_of
from numba_kcache.frontends.numba.compiled_code import recorded as recorded_under

pytest.importorskip("numba.cuda.core.errors")

LOCK = threading.RLock()
recorded = functools.partial(recorded_under, LOCK)


def kernel() -> None:
    pass


def given(rows: Any) -> list[tuple[type[Warning], str]]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        issue_again(rows, kernel, "numba.cuda.core.errors")  # type: ignore[arg-type]
    assert {each.filename for each in found} <= {__file__}
    return [(each.category, str(each.message)) for each in found]


def compiled(category: type[Warning], ended: list[bool]) -> list[list[str]]:
    """The rows of a block with one warning."""
    with recorded() as found:
        warnings.warn(f"of {kernel}", category, stacklevel=1)
        ended.append(True)
    return rows_of(found, kernel)  # type: ignore[arg-type]


def test_warning_of_a_block_is_given_when_it_ends_and_again() -> None:
    """The stored row does not contain the function's address."""
    with pytest.warns(RuntimeWarning, match="of .*kernel"):
        rows = compiled(RuntimeWarning, [])

    assert str(kernel) not in str(rows)
    assert given(rows) == [(RuntimeWarning, f"of {kernel}")]


def test_warning_that_is_an_error_in_the_program_is_raised_after_the_block() -> None:
    """The program's filters apply after the compiler has ended."""
    ended: list[bool] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")

        with pytest.raises(RuntimeWarning):
            compiled(RuntimeWarning, ended)

    assert ended


def test_warning_of_another_thread_is_given_and_is_no_warning_of_the_kernel() -> None:
    """Filters are of the whole process, so a compile sees the warnings of all threads."""
    other = threading.Thread(target=warnings.warn, args=("of another thread", RuntimeWarning))

    def beside_it() -> list[list[str]]:
        with recorded() as found:
            other.start()
            other.join()
        return rows_of(found, kernel)  # type: ignore[arg-type]

    with pytest.warns(RuntimeWarning, match="of another thread"):
        rows = beside_it()

    assert rows == []


def test_two_compiles_at_once_leave_the_program_its_filters() -> None:
    """The second block begins after the first: otherwise it would restore the filters of the first."""
    entered, ended, before = threading.Event(), threading.Event(), (warnings.filters, warnings.showwarning)

    def second() -> None:
        with recorded():
            entered.set()
            ended.wait(10)

    other = threading.Thread(target=second)
    with recorded():
        other.start()
        entered.wait(0.05)
    ended.set()
    other.join()

    assert (warnings.filters, warnings.showwarning) == before


@pytest.mark.parametrize("rows", [None, 5, "ab", {"a": "b"}, [["UserWarning"]], [[1, "a"]], [["a", "b", "c"]], ["ab"]])
def test_rows_of_another_form_give_nothing(rows: Any) -> None:
    """Stored rows are untrusted input."""
    assert given(rows) == []


@pytest.mark.parametrize("category", ["exit", "Exception", "__import__", "NoSuchWarning", "os"])
def test_name_that_is_no_warning_s_is_a_warning_of_the_user(category: str) -> None:
    """A stored name of another object gives a UserWarning, and the object is not used."""
    assert given([[category, "text"]]) == [(UserWarning, "text")]


def test_stored_texts_are_few_and_short_and_reach_no_terminal_as_commands() -> None:
    """An entry may be forged: its texts are limited in number and length, and control characters are replaced."""
    assert given([["UserWarning", "\x1b[2Ja\nb\x9b"]]) == [(UserWarning, "?[2Ja\nb?")]
    found = given([["UserWarning", f"{number} {'a' * 10**5}"] for number in range(100)])
    assert len(found) == 16
    assert {len(text) for _category, text in found} == {4000}


@pytest.mark.parametrize("begins_first", [False, True])
def test_block_of_another_thread_across_an_end_of_a_compile_loses_no_later_warning(
    monkeypatch: pytest.MonkeyPatch, begins_first: bool
) -> None:
    """Whichever began first, neither brings back filters and functions of the other."""
    shown: list[str] = []
    monkeypatch.setattr(warnings, "showwarning", lambda message, *_more, **_named: shown.append(str(message)))
    filters = [*warnings.filters]
    has_entered, may_leave = threading.Event(), threading.Event()

    def other() -> None:
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("ignore")
            has_entered.set()
            may_leave.wait()

    thread = threading.Thread(target=other)

    def start() -> None:
        thread.start()
        has_entered.wait()

    def end() -> None:
        may_leave.set()
        thread.join()

    if begins_first:
        start()
    with recorded():
        (end if begins_first else start)()
    end()

    assert [*warnings.filters] == filters
    warnings.warn("of the program", RuntimeWarning, stacklevel=1)
    assert shown == ["of the program"]
