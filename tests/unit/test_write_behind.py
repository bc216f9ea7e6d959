"""The queue of what is handed on to servers."""

from __future__ import annotations

import threading
import time

import pytest

from numba_kcache.tiers import behind as tiers_behind
from numba_kcache.tiers.behind import WriteBehind
from tests.support.compiling import in_python
from tests.support.stores import in_child

WAIT_S = 30.0


def test_works_are_done_in_order_elsewhere() -> None:
    """By one thread, which goes when nothing is left."""
    behind, done = WriteBehind(), []
    for number in range(100):
        assert behind.add(lambda number=number: done.append((number, threading.current_thread())))  # type: ignore[misc]

    assert behind.flush(WAIT_S)
    assert [number for number, _ in done] == list(range(100))
    assert threading.main_thread() not in {thread for _, thread in done}
    assert behind.add(lambda: done.append((100, threading.current_thread())))
    assert behind.flush(WAIT_S)
    assert len(done) == 101


def test_add_never_waits_and_refuses_what_is_too_much() -> None:
    """By number and by bytes; room is there again when works are done."""
    behind, gate = WriteBehind(most=3, most_bytes=100), threading.Event()
    assert behind.add(gate.wait)
    assert behind.add(lambda: None, 60)
    assert not behind.add(lambda: None, 60)
    assert behind.add(lambda: None, 40)
    assert not behind.add(lambda: None)
    gate.set()

    assert behind.flush(WAIT_S)
    assert behind.add(lambda: None, 100)


def test_flush_is_bounded() -> None:
    """A work that hangs."""
    behind, gate = WriteBehind(), threading.Event()
    behind.add(gate.wait)

    assert not behind.flush(0.01)
    gate.set()


def test_child_does_not_do_its_parent_s_works() -> None:
    """And can have works of its own."""
    behind, gate = WriteBehind(), threading.Event()
    behind.add(gate.wait)
    done: list[int] = []

    def child() -> None:
        assert behind.flush(0.01)
        assert behind.add(lambda: done.append(1))
        assert behind.flush(WAIT_S)
        assert done == [1]

    assert in_child(child) == 0
    gate.set()


def test_process_ends_when_all_is_done_or_time_is_up() -> None:
    """What waits is done; what hangs is left."""
    code = """
import sys, threading, time
from numba_kcache.tiers import behind
behind.FLUSH_S = float(sys.argv[1])
queue = behind.WriteBehind()
queue.add(lambda: (time.sleep(0.2), print("done", flush=True)))
if sys.argv[2] == "hang":
    queue.add(threading.Event().wait)
"""
    start = time.monotonic()

    assert in_python(code, "30", "end").strip() == "done"
    assert in_python(code, "0.5", "hang").strip() == "done"
    assert time.monotonic() - start < WAIT_S


def test_launch_has_its_time_before_work_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new thread waits a little first, unless somebody waits for it."""
    monkeypatch.setattr(tiers_behind, "PAUSE_S", 3600.0)
    queue, done = WriteBehind(), list[int]()
    for _ in range(2):
        assert queue.add(lambda: done.append(1))
    assert done == []

    assert queue.flush(WAIT_S)
    assert done == [1, 1]
