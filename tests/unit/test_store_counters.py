"""Counters that many processes add to."""

from __future__ import annotations

from pathlib import Path

import pytest

from numba_kcache.model import EventKind
from tests.support.stores import HOUR_S, Clock, Events, counters_of, open_store

DAY_S = 24 * HOUR_S


def files(directory: Path) -> list[str]:
    """The names of the files with counts."""
    return sorted(path.name for path in (directory / "v1" / "statistics").iterdir())


def test_numbers_are_summed_by_name(tmp_path: Path) -> None:
    """Counts of several stores are summed, under any names; without an addition no file exists."""
    directory = tmp_path / "cache"
    assert counters_of(directory).read() == {}
    assert not directory.exists()

    for counts in ({"hits": 1}, {"hits": 2, "compile_time_s": 0.25}, {"from_a_later_version": 7}):
        assert counters_of(directory).add(counts)

    assert counters_of(directory).read() == {"hits": 3, "compile_time_s": 0.25, "from_a_later_version": 7}


def test_each_process_appends_a_line_to_the_file_of_the_day(tmp_path: Path) -> None:
    """A thousand processes a day make one file."""
    clock = Clock(1_800_000_000.0)
    for _ in range(3):
        assert counters_of(tmp_path, clock=clock).add({"hits": 1})
    clock.now_s += DAY_S
    counters_of(tmp_path, clock=clock).add({"hits": 1})

    assert files(tmp_path) == ["2027-01-15.jsonl", "2027-01-16.jsonl"]
    assert counters_of(tmp_path).read() == {"hits": 4}


def test_sums_above_the_limit_of_a_count_lose_no_other(tmp_path: Path) -> None:
    """Each addition is below the limit of a count, their sum above it: the sum stays at the limit, other counts are
    kept."""
    events, clock = Events(), Clock()
    counters = counters_of(tmp_path, emit=events, clock=clock)
    for _ in range(3):
        counters.add({"bytes": 9e14, "hits": 1})
    clock.now_s += 3 * DAY_S
    counters.fold()
    counters_of(tmp_path).add({"bytes": 1, "hits": 1})

    assert counters.read() == {"bytes": 1e15, "hits": 4}
    assert events == []


@pytest.mark.parametrize(
    "line",
    [b'{"hits": 100, "mis', b"[]", b"1", b'{"hits":"1"}', b'{"hits":true}', b'{"hits":NaN}', b'{"hits":1e999}',
     b"[" * 100_000],
)  # fmt: skip
def test_line_that_is_torn_or_no_count_spoils_nothing_but_itself(tmp_path: Path, line: bytes) -> None:
    """A crash or a full disk in the middle of an addition, or a line that no addition can have written."""
    counters = counters_of(tmp_path)
    counters.add({"hits": 1})
    with (tmp_path / "v1" / "statistics" / files(tmp_path)[0]).open("ab") as file:
        file.write(b"\n" + line)
    counters.add({"hits": 2})

    assert counters.read() == {"hits": 3}


def test_pass_folds_the_days_before_yesterday(tmp_path: Path) -> None:
    """The sum stays, and the files stay few; today's and yesterday's may still be added to."""
    clock = Clock(1_800_000_000.0)
    store = open_store(tmp_path, clock=clock)
    for day in range(10):
        clock.now_s = 1_800_000_000.0 + day * DAY_S
        counters_of(tmp_path, clock=clock).add({"hits": 1})
    store.prune()
    store.prune()

    assert files(tmp_path) == ["2027-01-23.jsonl", "2027-01-24.jsonl", "total"]
    assert counters_of(tmp_path).read() == {"hits": 10}


def test_damaged_total_spoils_nothing_but_itself(tmp_path: Path) -> None:
    """Folded counts are lost, the others are still counted."""
    counters_of(tmp_path).add({"hits": 1})
    (tmp_path / "v1" / "statistics" / "total").write_bytes(b'{"hits":"many"}')

    assert counters_of(tmp_path).read() == {"hits": 1}


def test_addition_that_cannot_be_written_is_false(tmp_path: Path) -> None:
    """The addition returns False and emits one event."""
    events = Events()
    (tmp_path / "file").write_bytes(b"")

    assert not counters_of(tmp_path / "file" / "below", emit=events).add({"hits": 1})
    assert [event.kind for event in events] == [EventKind.TROUBLE]


def test_cleared_counters_begin_again(tmp_path: Path) -> None:
    """The counts of all processes are reset, folded or not; later counts are added. An empty folder is no error."""
    assert counters_of(tmp_path / "none").clear()
    assert not (tmp_path / "none").exists()
    clock = Clock()
    one, other = counters_of(tmp_path, clock=clock), counters_of(tmp_path)
    one.add({"hits": 1})
    clock.now_s += 3 * DAY_S
    one.fold()
    other.add({"hits": 2})
    one.add({"hits": 4})

    assert one.clear()
    assert one.read() == {}
    other.add({"hits": 8})
    assert one.read() == {"hits": 8}
