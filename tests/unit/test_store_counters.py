"""Counters that many processes add to."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from numba_kcache.model import EventKind
from numba_kcache.store import counters, totals, try_flock
from numba_kcache.store.folders import STATISTICS
from tests.support.stores import HOUR_S, Clock, Events, counters_of, folder_of


def shards(directory: Path) -> list[Path]:
    """The files that processes append to."""
    return sorted((directory / "v1" / "statistics").glob("*.jsonl"))


def test_numbers_are_summed_by_name(tmp_path: Path) -> None:
    """Counts of several stores are summed, under any names; without an addition no file exists."""
    directory = tmp_path / "cache"
    assert counters_of(directory).read() == {}
    assert not directory.exists()

    for counts in ({"hits": 1}, {"hits": 2, "compile_time_s": 0.25}, {"from_a_later_version": 7}):
        assert counters_of(directory).add(counts)

    assert counters_of(directory).read() == {"hits": 3, "compile_time_s": 0.25, "from_a_later_version": 7}


def test_sums_above_the_limit_of_a_count_lose_no_other(tmp_path: Path) -> None:
    """Each addition is below the limit of a count, their sum above it: the sum stays at the limit, other counts are
    kept."""
    events = Events()
    counters = counters_of(tmp_path, emit=events)
    for _ in range(3):
        counters.add({"bytes": 9e14, "hits": 1})
    counters.fold(stale_s=-HOUR_S)
    counters_of(tmp_path).add({"bytes": 1, "hits": 1})

    assert counters.read() == {"bytes": 1e15, "hits": 4}
    assert events == []


def test_torn_line_spoils_nothing_but_itself(tmp_path: Path) -> None:
    """A crash, or a full disk, in the middle of an addition leaves a torn line, which alone is lost."""
    counters = counters_of(tmp_path)
    counters.add({"hits": 1})
    (shard,) = shards(tmp_path)
    with shard.open("ab") as file:
        file.write(b'\n{"hits": 100, "mis')
    counters.add({"hits": 2})

    assert counters.read() == {"hits": 3}


@pytest.mark.parametrize(
    "line",
    [b"[]", b"1", b'{"hits":"1"}', b'{"hits":true}', b'{"hits":NaN}', b'{"hits":1e999}', b"[" * 100_000],
)
def test_line_that_is_no_count_is_passed_over(tmp_path: Path, line: bytes) -> None:
    """A line that no addition can have written is ignored."""
    counters = counters_of(tmp_path)
    counters.add({"hits": 1})
    (shard,) = shards(tmp_path)
    with shard.open("ab") as file:
        file.write(b"\n" + line + b"\n")

    assert counters.read() == {"hits": 1}


def test_forked_child_has_its_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes never append to one file, on whatever filesystem."""
    counters = counters_of(tmp_path)
    counters.add({"hits": 1})
    monkeypatch.setattr(os, "getpid", lambda: 12345)
    counters.add({"hits": 1})

    assert len(shards(tmp_path)) == 2
    assert counters.read() == {"hits": 2}


def test_file_is_left_after_ten_minutes(tmp_path: Path) -> None:
    """A process then begins another file, so that no process writes to a file that was unchanged for an hour."""
    clock = Clock()
    counters = counters_of(tmp_path, monotonic=clock)
    counters.add({"hits": 1})
    clock.now_s += 599
    counters.add({"hits": 1})
    assert len(shards(tmp_path)) == 1
    clock.now_s += 2
    counters.add({"hits": 1})

    assert len(shards(tmp_path)) == 2


def test_fold_leaves_files_in_use(tmp_path: Path) -> None:
    """Only files that were unchanged for an hour are folded; the sum stays."""
    for _ in range(3):
        counters_of(tmp_path).add({"hits": 1})
    os.utime(shards(tmp_path)[0], (0, 0))

    counters_of(tmp_path).fold()

    assert len(shards(tmp_path)) == 2
    assert counters_of(tmp_path).read() == {"hits": 3}


def test_fold_in_the_middle_of_a_read_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that has seen the old total and then misses the folded files looks again."""
    for _ in range(3):
        counters_of(tmp_path).add({"hits": 1})
        os.utime(shards(tmp_path)[-1], (0, 0))
    for shard in shards(tmp_path):
        os.utime(shard, (0, 0))
    folder = folder_of(tmp_path, STATISTICS)
    names = folder.names

    def interrupted() -> list[str]:
        counters_of(tmp_path).fold()
        return names()

    monkeypatch.setattr(folder, "names", interrupted)

    assert counters.CounterFile(folder).read() == {"hits": 3}
    assert shards(tmp_path) == []


def test_many_files_are_folded_by_who_adds_one_more(tmp_path: Path) -> None:
    """The process that adds one file too many folds the others: files stay bounded, also if nobody reads statistics."""
    for _ in range(140):
        counters_of(tmp_path).add({"hits": 1})
        os.utime(max(shards(tmp_path), key=lambda path: path.stat().st_mtime_ns), (0, 0))

    assert len(shards(tmp_path)) < 20
    assert counters_of(tmp_path).read() == {"hits": 140}


def test_process_does_not_look_at_files_that_another_has_just_looked_at(tmp_path: Path) -> None:
    """With many processes in an hour and all files in use, one process in ten minutes examines them, not each
    process."""
    for _ in range(140):
        counters_of(tmp_path).add({"hits": 1})
    lock = tmp_path / "v1" / "statistics" / "fold.lock"

    looked = []
    for age_s in (1200, 0):
        now = time.time() - age_s
        os.utime(lock, (now, now))
        before = lock.stat().st_mtime_ns
        counters_of(tmp_path).add({"hits": 1})
        looked.append(lock.stat().st_mtime_ns != before)

    assert looked == [True, False]
    assert counters_of(tmp_path).read() == {"hits": 142}


def test_damaged_total_is_trouble_and_no_exception(tmp_path: Path) -> None:
    """Folded counts are lost, the others are still counted."""
    events = Events()
    counters_of(tmp_path).add({"hits": 1})
    (tmp_path / "v1" / "statistics" / "total").write_bytes(b'{"counts":{"hits":"many"},"folded":[]}')

    assert counters_of(tmp_path, emit=events).read() == {"hits": 1}
    assert {event.kind for event in events} == {EventKind.TROUBLE}


def test_addition_that_cannot_be_written_is_false(tmp_path: Path) -> None:
    """The addition returns False and emits one event."""
    events = Events()
    (tmp_path / "file").write_bytes(b"")

    assert not counters_of(tmp_path / "file" / "below", emit=events).add({"hits": 1})
    assert [event.kind for event in events] == [EventKind.TROUBLE]


def test_child_forked_in_a_fold_holds_up_no_later_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers forked during a fold live for months with the descriptors that were open then."""
    counters_of(tmp_path).add({"hits": 1})
    ours, theirs = os.pipe()
    pids: list[int] = []

    def fork(_point: str) -> None:
        if not pids:
            pids.append(os.fork())
            if not pids[0]:
                os.close(theirs)
                os.read(ours, 1)  # until the parent has finished
                os._exit(0)

    monkeypatch.setattr(totals, "reached", fork)
    counters_of(tmp_path).fold(stale_s=-1)
    try:
        lock = os.open(tmp_path / "v1" / "statistics" / "fold.lock", os.O_RDWR)
        try_flock(lock)
        os.close(lock)
    finally:
        os.close(theirs)
        os.waitpid(pids[0], 0)
        os.close(ours)


def test_cleared_counters_begin_again(tmp_path: Path) -> None:
    """The counts of all processes are reset, folded or not; later counts are added. An empty folder is no error."""
    assert counters_of(tmp_path / "none").clear()
    assert not (tmp_path / "none").exists()
    one, other = counters_of(tmp_path), counters_of(tmp_path)
    one.add({"hits": 1})
    one.fold(stale_s=-60)
    other.add({"hits": 2})
    one.add({"hits": 4})

    assert one.clear()
    assert one.read() == {}
    other.add({"hits": 8})
    assert one.read() == {"hits": 8}
