"""Many threads and processes with one store: each key is built once, with its own bytes, within the limits."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from numba_kcache import store as faults
from numba_kcache.model import EventKind
from numba_kcache.store.disk import DiskStore
from numba_kcache.store.locks import KeyLocks
from numba_kcache.waiting import awaited
from tests.support.compiling import in_python
from tests.support.programs import program
from tests.support.stores import Events, children, counters_of, entry_of, files_below, key_of, open_store, small_entry

KEYS = 50
PROCESSES = 16


def note(path: Path, number: int) -> None:
    """Append a number to a file that many processes append to."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, b"%d\n" % number)
    os.close(fd)


def noted(path: Path) -> list[int]:
    """Read all numbers."""
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def get_or_build(store: DiskStore, number: int, builds: Path) -> None:
    """Look up, build and store a key as the cache does, and check the bytes."""
    found = store.get(key_of(number))
    if found is None:
        with store.building(key_of(number)) as turn:
            found = turn.found
            if found is None:
                note(builds, number)
                found = entry_of(number, 500 + number)
                assert store.put(found)
    assert found == entry_of(number, 500 + number)


@pytest.mark.slow
def test_cold_keys_are_built_once_each(tmp_path: Path) -> None:
    """16 processes need 50 keys, each in its own order: 50 builds, no trouble, no lock left."""

    def work(number: int) -> None:
        events = Events()
        store = open_store(tmp_path / "cache", emit=events)
        order = list(range(KEYS))
        random.Random(number).shuffle(order)
        for each in order:
            get_or_build(store, each, tmp_path / "builds")
        assert {event.kind for event in events} <= {EventKind.STORED}

    with children(PROCESSES, work):
        pass

    assert sorted(noted(tmp_path / "builds")) == list(range(KEYS))
    assert files_below(tmp_path / "cache" / "v1" / "locks") == []
    assert open_store(tmp_path / "cache").size().entries == KEYS


@pytest.mark.slow
def test_one_key_of_256_processes_is_built_once(tmp_path: Path) -> None:
    """A job starts on all cores of a large node: one process compiles, the others get what it stored. They fork from a
    small process: that of the tests is copied in twice the time."""
    code = "import pathlib, sys; from tests.race import test_store_race as test"
    in_python(f"{code}; test.build_one_key(pathlib.Path(sys.argv[1]))", str(tmp_path))

    assert noted(tmp_path / "builds") == [1]


def build_one_key(folder: Path) -> None:
    """Have 256 processes ask for one key, and each for one of its own."""

    def work(number: int) -> None:
        store = open_store(folder / "cache")
        get_or_build(store, 1, folder / "builds")
        with store.building(key_of(1000 + number)) as turn:  # a key of its own, without contention
            assert turn.found is None
            assert turn.has_turn

    with children(256, work):
        pass


def _build_in_child(root: Path, number: int) -> bool:
    """Find the parent's entry and store another one, in a child of any start method."""
    store = open_store(root)
    return store.get(key_of(0)) == small_entry(0) and store.put(small_entry(number))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_of_every_start_method_use_the_store(tmp_path: Path, method: str) -> None:
    """The parent is in the middle of a build with a store that it has used."""
    store = open_store(tmp_path / "cache")
    store.put(small_entry(0))
    with store.building(key_of(9)), multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.starmap(_build_in_child, [(tmp_path / "cache", number) for number in (1, 2)]) == [True, True]

    assert {info.key for info in store.entries()} == {key_of(number) for number in range(3)}


@pytest.mark.slow
def test_keys_are_built_once_per_generation(tmp_path: Path) -> None:
    """With `clear` and `prune` in between, there are no more builds than keys and removals; bytes are always right."""

    def work(number: int) -> None:
        events = Events()
        store = open_store(tmp_path / "cache", emit=events)
        dice = random.Random(number)
        for _ in range(120):
            get_or_build(store, dice.randrange(KEYS), tmp_path / "builds")
            chance = dice.random()
            if chance < 0.01:
                note(tmp_path / "removed", store.clear().entries)
            elif chance < 0.03:
                note(tmp_path / "removed", store.prune(max_size_bytes=15_000).entries)
            elif chance < 0.05:
                note(tmp_path / "removed", int(store.remove(key_of(dice.randrange(KEYS)))))
        assert not events.of(EventKind.DAMAGED)
        said = [each.fields["error"] for each in events.of(EventKind.TROUBLE)]
        assert all("another process holds evict.lock" in each for each in said)

    with children(PROCESSES, work):
        pass

    assert sum(noted(tmp_path / "removed")) > 0
    assert len(noted(tmp_path / "builds")) <= KEYS + sum(noted(tmp_path / "removed"))
    assert open_store(tmp_path / "cache").verify() == []


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount the filesystem that measures")
def test_limits_hold_while_many_write(tmp_path: Path) -> None:
    """The store never exceeds the limit and the entries being written, so a file system without more room does not fill
    up."""
    limit, writers, entry_kib = 40, 4, 8
    room_kib = (limit + 3 * writers) * entry_kib + 64
    point = tmp_path / "mnt"
    point.mkdir()
    mount = [program("mount"), "-t", "tmpfs", "-o", f"size={room_kib}k,mode=700", "none", str(point)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("cannot mount here")

    def write(number: int) -> None:
        store = open_store(point / "cache", max_entries=limit)
        for each in range(60):
            assert store.put(entry_of(1000 * number + each, 1024 * entry_kib - 500))
            while store.size().entries > limit:
                store.prune()

    try:
        with children(writers, write):
            pass
        store = open_store(point / "cache", max_entries=limit)
        store.prune()
        assert limit // 2 < store.size().entries <= limit
    finally:
        subprocess.run([program("umount"), "-l", str(point)], check=True)


def test_threads_build_once(tmp_path: Path) -> None:
    """Eight threads need twenty keys of one store."""
    store = open_store(tmp_path / "cache")
    together = threading.Barrier(8)

    def work(_: int) -> None:
        for number in range(20):
            together.wait()
            get_or_build(store, number, tmp_path / "builds")

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))

    assert sorted(noted(tmp_path / "builds")) == list(range(20))


def test_waiting_is_bounded(tmp_path: Path) -> None:
    """A process that has waited long enough builds itself; the owner of the turn is not disturbed."""
    store = open_store(tmp_path / "cache")
    impatient = open_store(tmp_path / "cache", build_wait_s=0.05)

    def second() -> None:  # in a thread, since one with a turn waits for no other
        with impatient.building(key_of(1)) as turn:
            assert turn.found is None
            assert not turn.has_turn
            assert 0.05 <= turn.waited_s < 1
        with impatient.building(key_of(1)) as turn:
            assert not turn.has_turn

    with store.building(key_of(1)) as owner, ThreadPoolExecutor(1) as threads:
        threads.submit(second).result(timeout=30)
        assert owner.has_turn


def test_thread_waits_for_the_build_of_another_as_long_as_it_lasts(tmp_path: Path) -> None:
    """The limit of waiting is for other processes: a thread gets what another one of its process built."""
    store = open_store(tmp_path / "cache", build_wait_s=0.01)

    def second() -> object:
        with store.building(key_of(1)) as turn:
            return turn.found

    with ThreadPoolExecutor(1) as threads:
        with store.building(key_of(1)):
            found = threads.submit(second)
            with pytest.raises(TimeoutError):
                found.result(timeout=0.2)
            store.put(small_entry(1))
        assert found.result(timeout=30) == small_entry(1)


def test_other_keys_do_not_wait(tmp_path: Path) -> None:
    """A minute's compile of one kernel holds up no other."""
    one, other = open_store(tmp_path / "cache"), open_store(tmp_path / "cache")

    with one.building(key_of(1)):
        for number in range(2, 300):
            with other.building(key_of(number)) as turn:
                assert turn.has_turn


def test_waiter_is_given_what_was_built(tmp_path: Path) -> None:
    """A waiting process gets the entry without building, and reports its waiting time."""
    store = open_store(tmp_path / "cache")
    ready, started = os.pipe()

    def wait(_: int) -> None:
        with open_store(tmp_path / "cache").building(key_of(1)) as turn:
            assert turn.found == small_entry(1)
            assert turn.found is not None
            assert turn.waited_s > 0

    with store.building(key_of(1)):
        with children(1, lambda _: (os.write(started, b"x"), wait(0))):
            assert os.read(ready, 1) == b"x"
            store.put(small_entry(1))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_failure_of_one_does_not_queue_the_others(tmp_path: Path, kind: str) -> None:
    """After a failed build all waiting processes build at once, not one after another."""
    waiters = 4
    context = multiprocessing.get_context("fork")
    together = threading.Barrier(waiters) if kind == "threads" else context.Barrier(waiters)
    waiting = threading.Semaphore(0) if kind == "threads" else context.Semaphore(0)
    store = open_store(tmp_path / "cache")

    class Failed(Exception):
        pass

    def work(_: int) -> None:
        mine = store if kind == "threads" else open_store(tmp_path / "cache")
        looked, looks = mine.get, itertools.count(1)

        def look(key: str) -> object:
            if next(looks) == 3:  # all are waiting, however late they started
                waiting.release()
            return looked(key)

        if kind == "processes":
            mine.get = look  # type: ignore[method-assign,assignment]
        else:
            waiting.release()
        with suppress(Failed):
            with mine.building(key_of(1)) as turn:
                assert turn.found is None
                together.wait(60)  # all build at the same time
                raise Failed

    if kind == "threads":
        with ThreadPoolExecutor(waiters) as pool:
            with suppress(Failed):
                with store.building(key_of(1)):
                    results = [pool.submit(work, number) for number in range(waiters)]
                    while len(awaited) < waiters:
                        time.sleep(0)
                    raise Failed
            for result in results:
                result.result()
    else:
        with suppress(Failed):
            with store.building(key_of(1)):
                running = children(waiters, work)
                running.__enter__()
                for _ in range(waiters):
                    waiting.acquire()
                raise Failed
        running.__exit__(None, None, None)
    with open_store(tmp_path / "cache").building(key_of(1)) as turn:
        assert turn.has_turn


def test_turn_does_not_pass_to_a_forked_child(tmp_path: Path) -> None:
    """A worker forked during a build does not hold the key's lock after its parent's build."""
    store = open_store(tmp_path / "cache")
    finish, finished = os.pipe()

    def child(_: int) -> None:
        os.close(finished)
        with store.building(key_of(2)) as turn:
            assert turn.has_turn
        os.read(finish, 1)

    building = store.building(key_of(1))
    building.__enter__()
    with children(1, child):
        building.__exit__(None, None, None)
        with open_store(tmp_path / "cache").building(key_of(1)) as turn:
            assert turn.has_turn
            assert turn.waited_s < 1
        os.close(finished)


@pytest.mark.slow
def test_fork_in_the_middle_of_everything(tmp_path: Path) -> None:
    """A child forked while other threads are inside the store can use it at once."""
    store = open_store(tmp_path / "cache")
    stop = threading.Event()

    def busy(number: int) -> None:
        while not stop.is_set():
            with store.building(key_of(number)):
                store.put(small_entry(number))
            store.counters.add({"hits": 1})

    def work(_: int) -> None:
        start = time.monotonic()
        for number in range(4):
            with store.building(key_of(number)) as turn:
                assert turn.found == small_entry(number)
        assert store.put(small_entry(9))
        assert store.counters.add({"hits": 1})
        assert time.monotonic() - start < 5

    for number in range(4):
        store.put(small_entry(number))
    with ThreadPoolExecutor(4) as threads:
        for number in range(4):
            threads.submit(busy, number)
        try:
            for _ in range(20):
                with children(1, work):
                    pass
        finally:
            stop.set()


def test_fork_while_another_thread_opens(tmp_path: Path) -> None:
    """A child forked while a thread opens the store, or starts an eviction, does not wait for ever."""
    store = open_store(tmp_path / "cache", max_entries=1)
    store.put(small_entry(1))
    store.writer.limits.wait()
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with store.opening, store.writer.limits.mutex:
            held.set()
            release.wait()

    def work(_: int) -> None:
        signal.alarm(10)
        store.writer.is_settled = store._is_checked = False
        assert store.put(small_entry(2))
        store.writer.limits.wait()
        assert store.size().entries <= 1

    with ThreadPoolExecutor(1) as threads:
        threads.submit(hold)
        held.wait()
        try:
            with children(1, work):
                pass
        finally:
            release.set()


@pytest.mark.slow
def test_numbers_of_many_processes_are_summed_once(tmp_path: Path) -> None:
    """Eight processes add, one reads: sums never fall, and no count is lost."""
    directory = tmp_path / "cache"
    stop = multiprocessing.get_context("fork").Event()

    def add(_number: int) -> None:
        for _ in range(40):
            assert counters_of(directory).add({"hits": 1, "misses": 2})

    def read(_: int) -> None:
        last = 0.0
        while not stop.is_set():
            now = counters_of(directory).read().get("hits", 0)
            assert now >= last
            last = now

    with children(1, read):
        with children(8, add):
            pass
        stop.set()

    assert counters_of(directory).read() == {"hits": 320, "misses": 640}


@pytest.mark.slow
def test_rows_of_many_processes_are_all_kept(tmp_path: Path) -> None:
    """Six processes add ten variants each to one family, which are merged under a lock."""

    def work(number: int) -> None:
        store = open_store(tmp_path / "cache")
        for each in range(10):
            assert store.add_rows(key_of(1), {"key": f"{number}.{each}"})

    with children(6, work):
        pass

    variants = open_store(tmp_path / "cache").get_manifest(key_of(1))
    assert {each["key"] for each in variants} == {f"{n}.{e}" for n in range(6) for e in range(10)}


@pytest.mark.slow
def test_passes_of_many_processes_do_not_add_up(tmp_path: Path) -> None:
    """Eight processes prune to the same limit at once: together they remove no more than one would."""
    store = open_store(tmp_path / "cache")
    for number in range(100):
        store.put(small_entry(number))
    size = store.size().size_bytes // 100

    def work(_: int) -> None:
        open_store(tmp_path / "cache").prune(max_size_bytes=50 * size)

    with children(8, work):
        pass
    assert len(list(store.entries())) == 50


def test_locks_without_a_directory_are_for_threads() -> None:
    """A read-only or memory-only store has locks between threads only."""
    locks = KeyLocks(None)

    with locks.turn("a", lambda: None, 1) as turn:
        assert turn.has_turn
    with locks.turn("a", lambda: "built", 1) as found:
        assert found.found == "built"


def test_child_forked_during_a_pass_keeps_nobody_from_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child inherits the open lock file, but the parent releases the lock when its pass ends."""
    store = open_store(tmp_path)
    store.put(entry_of(1))
    end, pids = os.pipe(), list[int]()

    def fork(point: str) -> None:
        if point == "eviction.walked" and not pids:
            pids.append(os.fork())
            if pids == [0]:
                os.close(end[1])
                os.read(end[0], 1)
                os._exit(0)

    with monkeypatch.context() as patch:
        patch.setattr(faults, "hook", fork)
        store.prune()
    removed = store.prune(max_size_bytes=0)
    for each in end:
        os.close(each)

    assert os.waitpid(pids[0], 0)[1] == 0
    assert removed.entries == 1
