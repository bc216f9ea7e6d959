"""Waiting for another's build on one node: a builder that is stopped is succeeded, and all waits are bounded."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from numba_kcache import waiting
from numba_kcache.store import locks, renewed_in_children, try_flock
from numba_kcache.store.locks import STOPPED_S, KeyLocks
from tests.support.interrupts import Interrupt, lines_run
from tests.support.stores import folder_of, in_child
from tests.support.tiers import Time

WAIT_S = 120.0


def place_of(directory: Path) -> Path:
    """The folder of the lock files."""
    place = directory / "v1" / "locks"
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    return place


def of_node(directory: Path, time: Time) -> KeyLocks:
    return KeyLocks(folder_of(directory, "locks"), clock=time, pause=time.pause)


def stopped_builder(directory: Path, name: str = "key", process: str = "") -> int:
    """A lock file that stays locked by a process, "" as by a stranger, which counts as stopped."""
    fd = os.open(place_of(directory) / name, os.O_RDWR | os.O_CREAT, 0o600)
    try_flock(fd)
    os.write(fd, process.encode())
    return fd


def running_builder(directory: Path, name: str = "key") -> int:
    """A lock file that stays locked by a process that is not stopped."""
    return stopped_builder(directory, name, str(os.getpid()))


def test_stopped_builder_is_replaced_after_five_seconds(tmp_path: Path) -> None:
    """The stopped builder keeps its lock; only one waiting process takes the turn."""
    held, time = stopped_builder(tmp_path), Time()

    with of_node(tmp_path, time).turn("key", lambda: None, WAIT_S, builds=True) as turn:
        assert turn.has_turn
        assert STOPPED_S <= turn.waited_s < STOPPED_S + 0.2
    assert STOPPED_S <= 5
    os.close(held)


def test_one_takes_over_and_the_others_wait_for_that_one(tmp_path: Path) -> None:
    """Only one of the waiting processes compiles."""
    held, time = stopped_builder(tmp_path), Time()
    built: list[str] = []
    waited: list[locks.Turn[str]] = []
    with of_node(tmp_path, time).turn("key", lambda: None, WAIT_S, builds=True) as first:
        assert first.has_turn
        second_s = Time(lambda: built.append("built") if second_s.now_s > 1003 else None)

        def second() -> None:
            with of_node(tmp_path, second_s).turn(
                "key", lambda: built[-1] if built else None, WAIT_S, builds=True
            ) as turn:
                waited.append(turn)

        thread = threading.Thread(target=second)  # a thread that has a turn would not wait
        thread.start()
        thread.join()
    assert waited[0].found == "built"
    assert waited[0].waited_s < 4
    os.close(held)


@pytest.mark.parametrize("seen", [True, False])
def test_builder_that_runs_is_waited_for(tmp_path: Path, seen: bool) -> None:
    """Others wait at most the whole time; then they build themselves, and the builder is not disturbed. So is one that
    cannot be seen, as in another container."""
    held, time = stopped_builder(tmp_path, process=str(os.getpid() if seen else 2**22 + 1)), Time()

    with of_node(tmp_path, time).turn("key", lambda: None, 60.0, builds=True) as turn:
        assert not turn.has_turn
        assert 60.0 <= turn.waited_s < 60.2
    assert (place_of(tmp_path) / "key").exists()
    os.close(held)


def test_builder_that_compiles_for_a_minute_is_not_replaced(tmp_path: Path) -> None:
    """What it built is found by the process that waits."""
    held, time = running_builder(tmp_path), Time()

    look: Callable[[], str | None] = lambda: "built" if time.now_s > 1060 else None  # noqa: E731
    with of_node(tmp_path, time).turn("key", look, WAIT_S, builds=True) as turn:
        assert turn.found == "built"
    os.close(held)


def test_builder_names_its_process_while_it_builds(tmp_path: Path) -> None:
    """Without a thread; also in a file that a builder has left that failed and was killed then."""
    (place_of(tmp_path) / "key").write_bytes(b"its owner failed")
    threads = threading.active_count()
    with of_node(tmp_path, Time()).turn("key", lambda: None, WAIT_S, builds=True):
        assert (place_of(tmp_path) / "key").read_text() == str(os.getpid())
        assert threading.active_count() == threads


def test_process_that_met_a_stopped_builder_does_not_wait_for_the_next(tmp_path: Path) -> None:
    """A hundred squatted locks cost a process one wait of five seconds, and builders that run are waited for."""
    time = Time()
    node, start_s = of_node(tmp_path, time), time.now_s
    with ExitStack() as held:
        for number in range(100):
            fd = stopped_builder(tmp_path, f"key{number}")
            held.callback(os.close, fd)
            with node.turn(f"key{number}", lambda: None, WAIT_S, builds=True) as turn:
                assert turn.has_turn
        assert time.now_s - start_s < STOPPED_S + 0.2

        held.callback(os.close, running_builder(tmp_path, "alive"))
        look: Callable[[], str | None] = lambda: "built" if time.now_s > start_s + 60 else None  # noqa: E731
        with node.turn("alive", look, WAIT_S, builds=True) as turn:
            assert turn.found == "built"


def test_nobody_waits_for_another_key(tmp_path: Path) -> None:
    """As many stopped builders as there could be do not delay a process that needs another key."""
    time = Time()
    with ExitStack() as held:
        for number in range(8):
            held.callback(os.close, stopped_builder(tmp_path, f"key{number}"))
        with of_node(tmp_path, time).turn("another", lambda: None, WAIT_S, builds=True) as turn:
            assert turn.has_turn
    assert time.now_s == 1000


def test_thread_with_the_turn_of_a_key_waits_for_no_other_key(tmp_path: Path) -> None:
    """Two processes that each build what the other needs would wait for each other."""
    held, time = stopped_builder(tmp_path, "other"), Time()
    node = of_node(tmp_path, time)

    with (
        node.turn("mine", lambda: None, WAIT_S, builds=True),
        node.turn("other", lambda: None, WAIT_S, builds=True) as turn,
    ):
        assert not turn.has_turn
        assert turn.waited_s == 0
    with node.turn("other", lambda: None, WAIT_S, builds=True) as turn:
        assert turn.waited_s > 0
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
        counts.add(len(open_below(tmp_path)))  # the lock folder's descriptor stays open

    assert len(counts) == 1
    os.close(held)


def test_turn_is_free_after_a_look_that_raises(tmp_path: Path) -> None:
    """Also while the program keeps the exception, whose frames have the lock."""
    time, answers = Time(), iter([None, None])

    def take_turns() -> None:
        while True:
            with of_node(tmp_path, time).turn("key", lambda: next(answers), WAIT_S, builds=True):
                pass

    with pytest.raises(StopIteration) as kept:
        take_turns()

    with of_node(tmp_path, time).turn("key", lambda: None, WAIT_S, builds=True) as turn:
        assert turn.has_turn
        assert turn.waited_s == 0
    assert kept


def test_builder_that_has_not_begun_is_not_taken_for_a_stopped_one(tmp_path: Path) -> None:
    """Also by a process that met a stopped builder before: the turn is taken, then the entry looked for, then built."""
    waiter, builder, found = of_node(tmp_path, Time()), of_node(tmp_path, Time()), list[bool]()
    held = stopped_builder(tmp_path, "squatted")
    with waiter.turn("squatted", lambda: None, WAIT_S, builds=True):
        pass

    def wait() -> None:
        with waiter.turn("key", lambda: None, WAIT_S, builds=True) as turn:
            found.append(turn.has_turn)

    def look() -> None:
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join()

    with builder.turn("key", look, WAIT_S, builds=True) as turn:
        assert (turn.has_turn, found) == (True, [False])
    os.close(held)


def test_waits_in_vain_are_bounded_over_the_life_of_a_process(tmp_path: Path) -> None:
    """A hundred builders that never end, but run, cost a process no more than one such wait."""
    time = Time()
    node, start = of_node(tmp_path, time), time.now_s
    with ExitStack() as held:
        for number in range(100):
            held.callback(os.close, running_builder(tmp_path, f"key{number}"))
            with node.turn(f"key{number}", lambda: None, WAIT_S, builds=True):
                pass

    assert WAIT_S <= time.now_s - start <= WAIT_S + 0.2


def test_waits_for_what_was_built_are_not_counted(tmp_path: Path) -> None:
    """A node of many ranks waits for a hundred slow compiles, and compiles none of them a second time."""
    time = Time()
    node = of_node(tmp_path, time)
    for number in range(100):
        held, start = stopped_builder(tmp_path, f"key{number}"), time.now_s
        look: Callable[[], str | None] = lambda start=start: "built" if time.now_s > start + 4 else None  # noqa: E731
        with node.turn(f"key{number}", look, WAIT_S, builds=True) as turn:
            assert turn.found == "built"
        os.close(held)


def test_builder_that_goes_on_leaves_its_successor_alone(tmp_path: Path) -> None:
    """A stopped builder that continues ends its turn, and its successor's file stays."""
    time = Time()
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(of_node(tmp_path, time).turn("key", lambda: None, WAIT_S))  # does not name its process
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


def test_error_of_one_object_keeps_no_other_from_being_renewed_in_a_child(tmp_path: Path) -> None:
    """The child would end the turns of its parent, or wait for locks that nobody releases."""

    class Failing:
        def after_fork(self) -> None:
            raise AttributeError("half made")

    failing = [Failing() for _ in range(20)]
    for one in failing:
        renewed_in_children.add(one)
    turns = [KeyLocks(folder_of(tmp_path, "locks")) for _ in range(20)]
    with ExitStack() as stack:
        for each in turns:
            stack.enter_context(each.turn(f"key{id(each)}", lambda: None, WAIT_S))
        pid = os.fork()
        if pid == 0:
            os._exit(sum(bool(each.turns) for each in turns))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    for one in failing:
        renewed_in_children.discard(one)


def test_child_that_is_forked_in_a_turn_leaves_it_to_its_parent(tmp_path: Path) -> None:
    """The child ends its copy of the context and begins turns of its own; the parent's lock file stays locked."""
    turns = KeyLocks(folder_of(tmp_path, "locks"))
    with ExitStack() as stack:
        stack.enter_context(turns.turn("key", lambda: None, WAIT_S, builds=True))
        mine = (place_of(tmp_path) / "key").stat().st_ino
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            stack.close()
            with turns.turn("another", lambda: None, WAIT_S, builds=True) as turn:
                is_right = turn.has_turn and (place_of(tmp_path) / "key").stat().st_ino == mine
            os._exit(0 if is_right else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        other = os.open(place_of(tmp_path) / "key", os.O_RDWR)
        with pytest.raises(BlockingIOError):
            try_flock(other)
        os.close(other)


def test_files_that_get_the_number_of_a_closed_lock_are_left_alone(tmp_path: Path) -> None:
    """A build closes descriptors that it did not open and opens its own file, which gets the number: it is neither
    written to, nor closed, nor locked, and the turn ends."""
    mine = tmp_path / "mine"
    mine.write_bytes(b"mine")
    turns = KeyLocks(folder_of(tmp_path, "locks"))
    with suppress(ValueError), turns.turn("key", lambda: None, WAIT_S, builds=True):
        (lock,) = [number for number, path in open_below(tmp_path).items() if path.endswith("/locks/key")]
        opened = os.open(mine, os.O_RDWR)
        os.dup2(opened, lock)
        os.close(opened)
        raise ValueError  # a failed build marks its lock file

    assert os.fstat(lock).st_ino == mine.stat().st_ino
    assert mine.read_bytes() == b"mine"
    os.close(lock)
    with turns.turn("key", lambda: None, WAIT_S, builds=True) as turn:
        assert turn.has_turn


def open_below(folder: Path) -> dict[int, str]:
    """The descriptors of this process that lead to files below a folder, also removed ones: no other test has these."""
    found = {}
    for each in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the descriptor of the listing itself
            found[int(each)] = os.readlink(f"/proc/self/fd/{each}").removesuffix(" (deleted)")
    return {number: path for number, path in found.items() if path.startswith(f"{folder}/")}


@pytest.mark.parametrize("state", ["free", "locked", "failing"])
def test_handler_that_raises_at_any_line_leaves_no_turn_behind(tmp_path: Path, state: str) -> None:
    """Ctrl-C at each line of taking and ending a turn: afterwards another process has the turn at once, and no
    descriptor is open. In a process of its own: after an exception at some lines, CPython 3.11 goes on as if it handled
    another one."""
    assert in_child(lambda: interrupt_at_each_line(tmp_path, state)) == 0


def interrupt_at_each_line(tmp_path: Path, state: str) -> None:
    """Take and end a turn once for each line, interrupted there."""
    (tmp_path / "v1").mkdir(mode=0o700)
    node, others = KeyLocks(folder_of(tmp_path, "locks")), KeyLocks(folder_of(tmp_path, "locks"))

    def work() -> None:
        look: Callable[[], str | None] = lambda: None  # noqa: E731
        with node.turn("key", look, 0.01 if state == "locked" else WAIT_S, builds=True):
            if state == "failing":
                raise ValueError

    def attempt(line: int) -> bool:
        """Return True if `work` has fewer lines."""
        held = stopped_builder(tmp_path) if state == "locked" else None
        try:
            return lines_run(work, line, locks.__file__, waiting.__file__)
        except Interrupt:
            return False
        finally:
            if held is not None:
                os.unlink(place_of(tmp_path) / "key")
                os.close(held)

    attempt(-1)
    number, is_over = 0, False
    while not is_over:
        is_over = attempt(number)
        with others.turn("key", lambda: None, 0.0, builds=True) as turn:
            assert turn.has_turn, f"line {number}"
        with node.turn("key", lambda: None, 0.0, builds=True) as turn:
            assert turn.has_turn, f"line {number}"
        assert not node.turns
        number += 1
    assert number > 30
