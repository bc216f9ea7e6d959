"""Waiting for another thread: which threads are waited for, and which are not."""

from __future__ import annotations

import os
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from numba_kcache import numba_hook, waiting
from numba_kcache.engine import Events
from numba_kcache.model import Event, EventKind
from numba_kcache.waiting import Turn, Turns, is_reentered

PATIENCE_S = 30.0
"""Longest wait of these tests for a thread that they started, in seconds."""


@contextmanager
def in_thread(work: Callable[[], object]) -> Iterator[threading.Thread]:
    """Run `work` in a thread, and end it with the context."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield thread
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


@contextmanager
def held(turns: Turns, name: str) -> Iterator[threading.Event]:
    """Let another thread hold a turn until the event is set, which the end of the context does."""
    begun, end = threading.Event(), threading.Event()

    def hold() -> None:
        with Turn(turns, name):
            begun.set()
            end.wait(PATIENCE_S)

    with in_thread(hold):
        assert begun.wait(PATIENCE_S)
        yield end
        end.set()


def test_turn_of_a_living_thread_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait has no limit of time: it ends when the other thread's turn ends, and the turn is then the waiter's."""
    turns: Turns = {}
    now_s, pauses = [0.0], [0]
    with held(turns, "a") as end:
        monkeypatch.setattr(waiting, "time", types.SimpleNamespace(monotonic=lambda: now_s[0], sleep=None))

        def sleep(_seconds: float) -> None:
            now_s[0] += 3600.0
            pauses[0] += 1
            if pauses[0] == 1000:
                end.set()

        waiting.time.sleep = sleep  # type: ignore[assignment]
        with Turn(turns, "a") as turn:
            assert turn.is_mine
            assert turn.waited_s >= 1000 * 3600
    assert not turns


def test_own_and_dead_threads_and_those_of_the_parent_are_not_waited_for() -> None:
    """A turn of this thread, of one that has ended, and of one from before a fork delay nobody."""
    with in_thread(int) as dead:
        pass
    for thread, process in (
        (threading.get_ident(), os.getpid()),
        (dead.ident or 0, os.getpid()),
        (dead.ident or 0, -1),
    ):
        with Turn({"a": (thread, process)}, "a") as turn:
            assert not turn.is_mine


def test_threads_that_would_wait_for_each_other_both_go_on() -> None:
    """Three threads each hold a turn and ask for that of the next: none waits for ever, and no turn is left."""
    turns: Turns = {}
    barrier, done = threading.Barrier(3), list[str]()

    def work(mine: str, other: str) -> None:
        with Turn(turns, mine):
            barrier.wait(PATIENCE_S)
            with Turn(turns, other):
                done.append(mine)

    with in_thread(lambda: work("a", "b")), in_thread(lambda: work("b", "c")), in_thread(lambda: work("c", "a")):
        pass

    assert sorted(done) == ["a", "b", "c"]
    assert not turns


def test_thread_that_waits_does_not_wait_for_each_other_one_to_fail() -> None:
    """After a failed turn those that waited for it work at once, without a turn."""
    turns: Turns = {}
    begun, fails = threading.Event(), threading.Event()

    def fail() -> None:
        try:
            with Turn(turns, "a"):
                begun.set()
                fails.wait(PATIENCE_S)
                raise ValueError
        except ValueError:
            pass

    found = list[bool]()

    def wait() -> None:
        with Turn(turns, "a") as turn:
            found.append(turn.is_mine)

    with in_thread(fail):
        assert begun.wait(PATIENCE_S)
        with in_thread(wait) as waiter:
            while waiter.ident not in waiting.awaited:
                pass
            fails.set()

    assert found == [False]


def test_wait_with_a_limit_ends_there() -> None:
    """A thread that never ends its turn is waited for no longer than the given time."""
    turns: Turns = {}
    with held(turns, "a"), Turn(turns, "a", wait_s=0.05) as turn:
        assert not turn.is_mine
        assert 0.05 <= turn.waited_s < PATIENCE_S


def test_turn_whose_end_was_interrupted_ends_with_its_last_reference() -> None:
    """An exception that keeps the context from ending, such as a signal handler's, leaves no turn behind."""
    turns: Turns = {}
    turn = Turn(turns, "a")
    turn.__enter__()
    assert turns

    del turn

    assert not turns


def test_call_from_a_subscriber_is_a_reentry() -> None:
    """A thread that a subscriber has called back has the package on its stack twice; a plain call has it once."""
    events, seen = Events(), list[bool]()
    events.subscribe(lambda event: seen.append(is_reentered()))

    events.emit(Event(EventKind.HIT, {}))

    assert seen == [True]
    assert not is_reentered()


def test_program_that_is_run_by_this_package_is_no_re_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ranks wait for each other's compiles as they do without `numba-kcache run`."""
    (tmp_path / "program.py").write_text(
        "import sys\nfrom numba_kcache.waiting import is_reentered\nsys.found = is_reentered()"
    )
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "found", None, raising=False)
    monkeypatch.setattr(numba_hook, "install", lambda **_: None)
    numba_hook.run_program([str(tmp_path / "program.py")], False, False)

    assert sys.found is False  # type: ignore[attr-defined]


def test_call_from_user_code_that_numba_called_waits_for_nobody() -> None:
    """The thread may hold Numba's compiler lock, for which the other thread may be waiting."""
    of_numba = types.FunctionType(compile("work()", "n.py", "exec"), {"__name__": "numba.core.compiler_lock"})
    turns: Turns = {}
    seen = list[bool]()

    def user_code() -> None:
        with Turn(turns, "a") as turn:
            seen.append(turn.is_mine)

    with held(turns, "a"):
        of_numba.__globals__["work"] = user_code
        of_numba()

    assert seen == [False]


def test_thread_in_a_subscriber_is_not_waited_for_long() -> None:
    """Others go on while the user's code runs."""
    events, turns, inside, end = Events(), Turns(), threading.Event(), threading.Event()
    events.subscribe(lambda event: (inside.set(), end.wait(PATIENCE_S)))

    def build() -> None:
        with Turn(turns, "a"):
            events.emit(Event(EventKind.HIT, {}))

    with in_thread(build):
        inside.wait(PATIENCE_S)
        with Turn(turns, "a") as turn:
            assert not turn.is_mine
        end.set()
