"""Waiting for another's build on one node: a builder without a sign of life is succeeded, and all waits are bounded."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from numba_kcache.store import locks, try_flock
from numba_kcache.store.locks import SILENT_S, KeyLocks
from tests.support.stores import folder_of

WAIT_S = 120.0


class Time:
    """A monotonic clock that a pause moves on.

    Attributes:
        meanwhile: Called in each pause.
    """

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.now_s, self.meanwhile = 1000.0, meanwhile

    def __call__(self) -> float:
        return self.now_s

    def pause(self, seconds: float) -> None:
        self.now_s += seconds
        self.meanwhile()


def place_of(directory: Path) -> Path:
    """The folder of the lock files."""
    place = directory / "v1" / "locks"
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    return place


def of_node(directory: Path, time: Time) -> KeyLocks:
    return KeyLocks(folder_of(directory, "locks"), clock=time, pause=time.pause)


def stopped_builder(directory: Path, name: str = "key") -> int:
    """A lock file that stays locked, as by a stopped process or a stranger."""
    fd = os.open(place_of(directory) / name, os.O_RDWR | os.O_CREAT, 0o600)
    try_flock(fd)
    return fd


def test_stopped_builder_is_succeeded_after_ten_seconds(tmp_path: Path) -> None:
    """The stopped builder keeps its lock; only one waiting process takes the turn."""
    held, time = stopped_builder(tmp_path), Time()

    with of_node(tmp_path, time).turn("key", lambda: None, WAIT_S, builds=True) as turn:
        assert turn.has_turn
        assert SILENT_S <= turn.waited_s < SILENT_S + 0.2
    os.close(held)


def test_one_takes_over_and_the_others_wait_for_that_one(tmp_path: Path) -> None:
    """Only one of the waiting processes compiles."""
    held, time = stopped_builder(tmp_path), Time()
    built: list[str] = []
    with of_node(tmp_path, time).turn("key", lambda: None, WAIT_S, builds=True) as first:
        assert first.has_turn
        second_s = Time(lambda: built.append("built") if second_s.now_s > 1003 else None)
        with of_node(tmp_path, second_s).turn("key", lambda: built[-1] if built else None, WAIT_S, builds=True) as turn:
            assert turn.found == "built"
            assert turn.waited_s < 4
    os.close(held)


def test_builder_that_gives_signs_of_life_is_waited_for(tmp_path: Path) -> None:
    """Others wait at most the whole time; then they build themselves, and the builder is not disturbed."""
    held, beats = stopped_builder(tmp_path), iter(range(1, 10**9))
    time = Time(lambda: os.utime(held, ns=(0, next(beats))))

    with of_node(tmp_path, time).turn("key", lambda: None, 60.0, builds=True) as turn:
        assert not turn.has_turn
        assert 60.0 <= turn.waited_s < 60.2
    assert (place_of(tmp_path) / "key").exists()
    os.close(held)


def test_builder_gives_signs_of_life_while_it_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The builder updates the time of its lock file repeatedly."""
    monkeypatch.setattr(locks, "BEAT_S", 0.001)
    beaten, utime = threading.Event(), os.utime
    monkeypatch.setattr(locks.os, "utime", lambda fd: (utime(fd), beaten.set()))

    with of_node(tmp_path, Time()).turn("key", lambda: None, WAIT_S, builds=True):
        assert beaten.wait(60)


def test_clock_of_the_system_means_nothing(tmp_path: Path) -> None:
    """The time of a lock file may be a year off: only its changes count as signs of life."""
    for number, skew_ns in enumerate((-(10**17), 10**17)):
        held, time = stopped_builder(tmp_path, f"key{number}"), Time()
        os.utime(held, ns=(10**18 + skew_ns, 10**18 + skew_ns))
        with of_node(tmp_path, time).turn(f"key{number}", lambda: None, WAIT_S, builds=True) as turn:
            assert SILENT_S <= turn.waited_s < SILENT_S + 0.2
        os.close(held)


def test_wait_leaves_no_descriptor_open(tmp_path: Path) -> None:
    """A process may wait for a thousand builds without running out of descriptors, however each wait ends."""
    held, time = stopped_builder(tmp_path), Time()
    turns = of_node(tmp_path, time)
    counts = set()
    for _ in range(3):
        for name, built in (("key", None), ("key", "built"), ("another", "built"), ("another", None)):
            look: Callable[[], str | None] = lambda built=built: built  # noqa: E731
            with turns.turn(name, look, 1.0) as turn:
                assert turn.found == built
        counts.add(len(os.listdir("/proc/self/fd")))  # the lock folder's descriptor stays open

    assert len(counts) == 1
    os.close(held)


def test_waits_in_vain_are_bounded_over_the_life_of_a_process(tmp_path: Path) -> None:
    """A hundred squatted locks cost a process no more than one such wait."""
    time = Time()
    node, start = of_node(tmp_path, time), time.now_s
    with ExitStack() as held:
        for number in range(100):
            held.callback(os.close, stopped_builder(tmp_path, f"key{number}"))
            with node.turn(f"key{number}", lambda: None, WAIT_S, builds=True):
                pass

    assert time.now_s - start <= WAIT_S + 0.2


def test_waits_for_what_was_built_are_not_counted(tmp_path: Path) -> None:
    """A node of many ranks waits for a hundred slow compiles, and compiles none of them a second time."""
    time = Time()
    node = of_node(tmp_path, time)
    for number in range(100):
        held, start = stopped_builder(tmp_path, f"key{number}"), time.now_s
        look: Callable[[], str | None] = lambda start=start: "built" if time.now_s > start + 9 else None  # noqa: E731
        with node.turn(f"key{number}", look, WAIT_S, builds=True) as turn:
            assert turn.found == "built"
        os.close(held)


def test_builder_that_goes_on_leaves_its_successor_alone(tmp_path: Path) -> None:
    """A stopped builder that continues ends its turn, and its successor's file stays."""
    time = Time()
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(of_node(tmp_path, time).turn("key", lambda: None, WAIT_S))  # gives no sign of life
        assert second.enter_context(of_node(tmp_path, time).turn("key", lambda: None, WAIT_S, builds=True)).has_turn
        mine = (place_of(tmp_path) / "key").stat().st_ino
        first.close()
        assert (place_of(tmp_path) / "key").stat().st_ino == mine
    assert not (place_of(tmp_path) / "key").exists()


def test_files_without_a_name_end_the_wait_at_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a filesystem without link counts, or with a user who removes each lock file, the wait has pauses and an
    end."""
    time = Time()
    turns = of_node(tmp_path, time)
    monkeypatch.setattr(locks.os, "fstat", lambda fd: os.stat_result((0o100600, 1, 1, 0, 0, 0, 0, 0, 0, 0)))

    with turns.turn("key", lambda: None, WAIT_S) as turn:
        assert not turn.has_turn
    assert turn.waited_s == pytest.approx(WAIT_S, abs=1)


def test_child_ends_its_parents_turn_though_a_thread_held_the_signs_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child forked in a turn does not use locks that the parent's thread may have held, and ends the turn."""
    made = list[threading.Event]()

    class Noted(threading.Event):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    monkeypatch.setattr(threading, "Event", Noted)
    turns = KeyLocks(folder_of(tmp_path, "locks"))
    with ExitStack() as stack:
        stack.enter_context(turns.turn("key", lambda: None, WAIT_S, builds=True))
        pid = os.fork()
        if pid == 0:
            signal.alarm(5)
            made[0]._cond = threading.Condition(held := threading.Lock())  # type: ignore[attr-defined]
            held.acquire()  # as that thread does for an instant in each wait
            stack.close()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_place_is_given_up_by_who_waits_in_the_middle_of_a_compile(tmp_path: Path) -> None:
    """The process that it waits for may need the slot; it is released once."""
    first, second = (of_node(tmp_path, Time()) for _ in range(2))
    with first.slot(1) as is_had:
        assert is_had
        with second.slot(1) as is_had:
            assert not is_had
        first.release_slot()
        with second.slot(1) as is_had:
            assert is_had
            first.release_slot()
            with first.slot(1) as is_had:
                assert not is_had


def test_threads_of_a_process_share_a_place(tmp_path: Path) -> None:
    """A build may wait for others that it has begun; the slot is free when the last one ends."""
    own, other = (of_node(tmp_path, Time()) for _ in range(2))
    ready, ended = threading.Event(), threading.Event()
    had: list[bool] = []

    def work() -> None:
        with own.slot(1) as is_had:
            had.append(is_had)
            ready.set()
            ended.wait(10)

    thread = threading.Thread(target=work)
    with own.slot(1):
        thread.start()
        assert ready.wait(10)
    with other.slot(1) as is_had:
        assert not is_had
    ended.set()
    thread.join()
    with other.slot(1) as is_had:
        assert is_had
    assert had == [True]


def test_place_of_a_killed_compiler_is_free(tmp_path: Path) -> None:
    """The system releases its lock, and the file that stays blocks no process."""
    child = os.fork()
    if child == 0:
        with of_node(tmp_path, Time()).slot(1) as is_had:
            os.kill(os.getpid(), signal.SIGKILL if is_had else signal.SIGTERM)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert os.listdir(place_of(tmp_path))

    with of_node(tmp_path, Time()).slot(1) as is_had:
        assert is_had
    assert not os.listdir(place_of(tmp_path))


def test_everybody_has_a_place_where_there_are_no_locks(tmp_path: Path) -> None:
    """Without locks compilers are not counted, and no process waits."""
    (tmp_path / "v1").mkdir(mode=0o700)
    (tmp_path / "v1" / "locks").write_text("no folder")
    first, second = (KeyLocks(folder_of(tmp_path, "locks")) for _ in range(2))

    with first.slot(1) as is_had, second.slot(1) as is_had_too:
        assert is_had
        assert is_had_too
