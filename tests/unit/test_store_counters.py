"""Counters that many processes add to."""

from __future__ import annotations

from pathlib import Path

import pytest

from numba_kcache.model import EventKind
from numba_kcache.store import counters as module
from tests.support.stores import Events, counters_of, open_store


def file(directory: Path) -> Path:
    """The file with counts."""
    return directory / "v1" / module.FILE


def test_numbers_are_summed_by_name(tmp_path: Path) -> None:
    """Counts of several stores are summed, under any names; without an addition no file exists."""
    directory = tmp_path / "cache"
    assert counters_of(directory).read() == {}
    assert not directory.exists()

    for counts in ({"hits": 1}, {"hits": 2, "compile_time_s": 0.25}, {"from_a_later_version": 7}):
        assert counters_of(directory).add(counts)

    assert counters_of(directory).read() == {"hits": 3, "compile_time_s": 0.25, "from_a_later_version": 7}


def test_each_process_appends_a_line_to_one_file(tmp_path: Path) -> None:
    """A thousand processes make one file."""
    for _ in range(3):
        assert counters_of(tmp_path).add({"hits": 1})

    assert len(file(tmp_path).read_text().split()) == 3
    assert counters_of(tmp_path).read() == {"hits": 3}


def test_sums_above_the_limit_of_a_count_lose_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each addition is below the limit of a count, their sum above it: the sum stays at the limit, other counts are
    kept."""
    monkeypatch.setattr(module, "FOLD_BYTES", 0)
    events = Events()
    counters = counters_of(tmp_path, emit=events)
    for _ in range(3):
        counters.add({"bytes": 9e14, "hits": 1})
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
    with file(tmp_path).open("ab") as lines:
        lines.write(b"\n" + line)
    counters.add({"hits": 2})

    assert counters.read() == {"hits": 3}


def test_pass_folds_a_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums stay in one line; a small file stays as it is."""
    for _ in range(10):
        counters_of(tmp_path).add({"hits": 1})
    open_store(tmp_path).prune()
    assert len(file(tmp_path).read_text().split()) == 10

    monkeypatch.setattr(module, "FOLD_BYTES", 100)
    open_store(tmp_path).prune()

    assert file(tmp_path).read_text() == '{"hits":10}'
    counters_of(tmp_path).add({"hits": 1})
    assert counters_of(tmp_path).read() == {"hits": 11}


def test_addition_that_cannot_be_written_is_false(tmp_path: Path) -> None:
    """The addition returns False and emits one event."""
    events = Events()
    (tmp_path / "file").write_bytes(b"")

    assert not counters_of(tmp_path / "file" / "below", emit=events).add({"hits": 1})
    assert [event.kind for event in events] == [EventKind.TROUBLE]


def test_counts_that_could_not_be_written_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass writes them with the sums, and they are no longer counted from memory."""
    monkeypatch.setattr(module, "FOLD_BYTES", 0)
    counters = counters_of(tmp_path)
    counters.add({"hits": 1})
    file(tmp_path).rename(tmp_path / "aside")
    file(tmp_path).mkdir()
    assert not counters.add({"hits": 4})
    file(tmp_path).rmdir()
    (tmp_path / "aside").rename(file(tmp_path))
    counters.fold()

    assert counters.read() == {"hits": 5}


def test_cleared_counters_begin_again(tmp_path: Path) -> None:
    """The counts of all processes are reset; later counts are added. An empty folder is no error."""
    assert counters_of(tmp_path / "none").clear()
    assert not (tmp_path / "none").exists()
    one, other = counters_of(tmp_path), counters_of(tmp_path)
    one.add({"hits": 1})
    other.add({"hits": 2})
    one.add({"hits": 4})

    assert one.clear()
    assert one.read() == {}
    other.add({"hits": 8})
    assert one.read() == {"hits": 8}
