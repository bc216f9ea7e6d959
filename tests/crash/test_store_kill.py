"""Whoever is killed, whenever: readers find the old or the new, nothing is held, nothing is counted twice.

`NUMBA_KCACHE_TEST_KILLS=1000` makes the random part as long as it should be once before a release.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from numba_kcache import store as faults
from numba_kcache.store import StoredEntry, counters, eviction
from numba_kcache.store import writing as publish
from tests.support.stores import (
    Clock,
    children,
    counters_of,
    entry_of,
    file_of,
    files_below,
    in_child,
    key_of,
    killed_at,
    open_store,
    private_files,
    small_entry,
)

pytestmark = pytest.mark.usefixtures("alone")

KILLS = int(os.environ.get("NUMBA_KCACHE_TEST_KILLS", "40"))
OLD = small_entry(1)
NEW = StoredEntry(OLD.key, {"new": True}, {"cubin": bytes(range(256)) * 40})


@pytest.mark.parametrize("point", publish.FAULT_POINTS)
def test_reader_finds_old_or_new_after_kill(tmp_path: Path, point: str) -> None:
    """A writer killed at any step leaves the old bytes or the new ones, never a mixture."""
    store = open_store(tmp_path / "cache")
    store.put(OLD)

    assert killed_at(point, lambda: store.put(NEW)), f"no writer ever reached {point}"

    assert store.get(OLD.key) == (NEW if point == "publish.renamed" else OLD)
    assert store.verify() == []


@pytest.mark.parametrize("end", ["os._exit", "SIGTERM"])
@pytest.mark.parametrize("point", publish.FAULT_POINTS)
def test_reader_finds_old_or_new_after_another_end(tmp_path: Path, point: str, end: str) -> None:
    """A writer that calls os._exit, or that its batch system ends, is like a killed one."""
    store = open_store(tmp_path / "cache")
    store.put(OLD)

    def leave(name: str) -> None:
        if name == point:
            os._exit(0) if end == "os._exit" else os.kill(os.getpid(), signal.SIGTERM)

    def work() -> None:
        faults.hook = leave
        store.put(NEW)
        raise AssertionError("the writer lived on")

    status = in_child(work)

    assert status == (0 if end == "os._exit" else signal.SIGTERM)
    assert store.get(OLD.key) == (NEW if point == "publish.renamed" else OLD)
    assert store.verify() == []


@pytest.mark.parametrize("point", publish.FAULT_POINTS)
def test_row_is_there_or_not_after_kill(tmp_path: Path, point: str) -> None:
    """The same holds for a manifest, and its lock ends with its owner."""
    store = open_store(tmp_path / "cache")
    store.add_rows(OLD.key, {"key": "a"})

    assert killed_at(point, lambda: store.add_rows(OLD.key, {"key": "b"}))

    start = time.monotonic()
    assert store.add_rows(OLD.key, {"key": "c"})
    assert time.monotonic() - start < 0.5
    variants = [each["key"] for each in store.get_manifest(OLD.key)]
    assert variants == (["c", "b", "a"] if point == "publish.renamed" else ["c", "a"])


@pytest.mark.parametrize("point", publish.FAULT_POINTS)
def test_leftover_of_a_killed_writer_is_reaped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    """The first pass after the private file is old enough removes it."""
    store = open_store(tmp_path / "cache")
    store.put(OLD)
    assert killed_at(point, lambda: store.put(NEW))
    monkeypatch.setattr(eviction, "STALE_S", -10)

    store.prune()

    assert private_files(tmp_path / "cache") == []


@pytest.mark.parametrize("point", eviction.FAULT_POINTS)
def test_killed_eviction_leaves_whole_entries_and_no_lock(tmp_path: Path, point: str) -> None:
    """The next pass removes the rest."""
    clock = Clock()
    store = open_store(tmp_path / "cache", clock=clock)
    for number in range(10):
        store.put(small_entry(number))
        clock.now_s += 1
    size = file_of(store, key_of(0)).stat().st_size

    assert killed_at(point, lambda: store.prune(max_size_bytes=5 * size)), f"no pass ever reached {point}"

    assert store.verify() == []
    store.prune(max_size_bytes=5 * size)
    assert {info.key for info in store.entries()} == {key_of(number) for number in range(5, 10)}
    assert store.size()[:2] == (5 * size, 5)


def test_killed_addition_is_counted_or_not(tmp_path: Path) -> None:
    """A process that is killed once its line is written has added it; the counts of others stay."""
    counters_of(tmp_path).add({"hits": 1})

    assert killed_at("counters.appended", lambda: counters_of(tmp_path).add({"hits": 10}))

    assert counters_of(tmp_path).read() == {"hits": 11}


@pytest.mark.parametrize("point", publish.FAULT_POINTS)
def test_killed_fold_loses_no_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    """A process killed while it replaces the lines by their sums: counts are kept once, and the next fold goes on."""
    monkeypatch.setattr(counters, "FOLD_BYTES", 0)
    for _ in range(2):
        counters_of(tmp_path).add({"hits": 1})

    assert killed_at(point, counters_of(tmp_path).fold)

    assert counters_of(tmp_path).read() == {"hits": 2}
    counters_of(tmp_path).fold()
    assert (tmp_path / "v1" / counters.FILE).read_text() == '{"hits":2}'


def test_lock_dies_with_its_owner(tmp_path: Path) -> None:
    """The turn of a killed builder goes to a waiting process."""
    store = open_store(tmp_path / "cache")
    ready, start = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            with store.building(OLD.key):
                os.write(start, b"x")
                signal.pause()
        finally:
            os._exit(1)
    assert os.read(ready, 1) == b"x"
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)

    with store.building(OLD.key) as turn:
        assert turn.has_turn
        assert turn.waited_s < 1
    assert files_below(tmp_path / "cache" / "v1" / "locks") == []


@pytest.mark.slow
def test_readers_see_no_mixture_under_random_kills(tmp_path: Path) -> None:
    """Writers that put, prune and count are killed at any instant; every read is a whole entry of its key."""
    store = open_store(tmp_path / "cache", max_entries=40)
    chance = random.Random(5)

    def writer(seed: int) -> None:
        mine = open_store(tmp_path / "cache", max_entries=40)
        dice = random.Random(seed)
        while True:
            number = dice.randrange(60)
            mine.put(entry_of(number, 1000 + number * 300))
            mine.add_rows(key_of(number % 4), {"key": str(dice.randrange(9))})
            mine.counters.add({"puts": 1})
            with mine.building(key_of(100 + number % 3)):
                pass

    def check() -> None:
        for number in range(60):
            found = store.get(key_of(number))
            assert found is None or found == entry_of(number, 1000 + number * 300)

    for kill in range(KILLS):
        pid = os.fork()
        if pid == 0:
            try:
                writer(kill)
            finally:
                os._exit(1)
        deadline = time.monotonic() + 0.01 + chance.random() * 0.03
        while time.monotonic() < deadline:
            check()
        os.kill(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
        assert os.WIFSIGNALED(status)
        assert os.WTERMSIG(status) == signal.SIGKILL
        check()

    assert store.verify() == []
    assert list((tmp_path / "cache" / "v1" / "quarantine").glob("*")) == []
    for number in range(3):
        with store.building(key_of(100 + number)) as turn:
            assert turn.has_turn
    store.prune()
    assert len(list(store.entries())) <= 40


def test_interrupted_put_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the middle of a put reaches the user, and no private file is left."""
    from numba_kcache import store as faults

    def interrupt(point: str) -> None:
        if point == "publish.half_written":
            raise KeyboardInterrupt

    store = open_store(tmp_path / "cache")
    store.put(OLD)
    monkeypatch.setattr(faults, "hook", interrupt)

    with pytest.raises(KeyboardInterrupt):
        store.put(NEW)
    assert private_files(tmp_path / "cache") == []
    assert store.get(OLD.key) == OLD


@pytest.mark.parametrize(
    ("durability", "expected"),
    [
        ("none", ["write", "write", "rename"]),
        ("data", ["write", "write", "fdatasync", "rename"]),
        ("full", ["write", "write", "fdatasync", "rename", "fsync"]),
    ],
)
def test_rename_is_fenced_by_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: str, expected: list[str]
) -> None:
    """The file is written, synced and renamed, then the directory is synced. No kill shows this, since the page cache
    survives it."""
    store = open_store(tmp_path / "cache", durability=durability)
    store.put(OLD)
    calls: list[str] = []
    for name in ("write", "fdatasync", "rename", "fsync"):
        real = getattr(os, name)

        def recorded(*args: object, name: str = name, real: object = real, **kwargs: object) -> object:
            calls.append(name)
            return real(*args, **kwargs)  # type: ignore[operator]

        monkeypatch.setattr(publish.os, name, recorded)
    with store.tree.opened("entries", OLD.key[:2]) as folder:
        publish.publish(store.tree, b"x" * 100, folder, OLD.key[2:], time_ns=0)

    assert calls == expected


def test_nothing_waits_for_the_disk_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry and a manifest are published without a sync where no durability was asked for."""
    synced: list[int] = []
    for name in ("fsync", "fdatasync", "sync"):
        monkeypatch.setattr(os, name, lambda *fd: synced.append(len(fd)))
    store = open_store(tmp_path / "cache")

    assert store.put(OLD)
    assert store.add_rows(OLD.key, {"key": "a"})
    assert synced == []


def test_first_file_of_a_directory_is_synced_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cold run of many kernels makes a directory for most of them, and must not write each file twice."""
    store = open_store(tmp_path / "cache", durability="data")
    synced: list[int] = []
    real = publish.sync_data
    monkeypatch.setattr(publish, "sync_data", lambda fd: (synced.append(fd), real(fd)))
    for number in range(3):
        assert store.put(entry_of(number))

    assert len(synced) == 3


@pytest.mark.slow
def test_writers_of_one_key_all_win(tmp_path: Path) -> None:
    """The loser of a rename race has published a whole entry too, so no writer fails."""
    store = open_store(tmp_path / "cache")
    store.put(OLD)

    def work(number: int) -> None:
        for _ in range(50):
            assert store.put(OLD if number % 2 else NEW)
            assert store.get(OLD.key) in (OLD, NEW)

    with children(6, work):
        pass
    assert store.get(OLD.key) in (OLD, NEW)
    assert private_files(tmp_path / "cache") == []
