"""The queue of uploads to servers."""

from __future__ import annotations

import threading
import time

import pytest

from numba_kcache.tiers import upload_queue
from numba_kcache.tiers.upload_queue import UploadQueue
from tests.support.compiling import in_python
from tests.support.interrupts import Interrupt
from tests.support.stores import in_child

WAIT_S = 30.0


def test_works_are_done_in_order_elsewhere() -> None:
    """One thread runs the tasks, and ends when the queue is empty."""
    queue, done = UploadQueue(), []
    for number in range(100):
        assert queue.add(lambda number=number: done.append((number, threading.current_thread())))  # type: ignore[misc]

    assert queue.flush(WAIT_S)
    assert [number for number, _ in done] == list(range(100))
    assert threading.main_thread() not in {thread for _, thread in done}
    assert queue.add(lambda: done.append((100, threading.current_thread())))
    assert queue.flush(WAIT_S)
    assert len(done) == 101


def test_add_never_waits_and_refuses_what_is_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue is limited in number and bytes; finished tasks free their space."""
    monkeypatch.setattr(upload_queue, "MOST_WAITING", 3)
    monkeypatch.setattr(upload_queue, "MOST_BYTES", 100)
    queue, gate = UploadQueue(), threading.Event()
    assert queue.add(gate.wait)
    assert queue.add(lambda: None, 60)
    assert not queue.add(lambda: None, 60)
    assert queue.add(lambda: None, 40)
    assert not queue.add(lambda: None)
    gate.set()

    assert queue.flush(WAIT_S)
    assert queue.add(lambda: None, 100)


def test_work_that_fails_does_not_stop_those_behind() -> None:
    """After a MemoryError, for instance, the thread goes on, and no `flush` waits for it in vain."""
    queue, done = UploadQueue(), list[int]()

    def fails() -> None:
        raise MemoryError

    assert queue.add(fails, 10)
    assert queue.add(lambda: done.append(1))

    assert queue.flush(WAIT_S)
    assert done == [1]


def test_handler_that_raises_after_the_thread_has_started_leaves_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C when the thread of a task has begun: the task is done once, and the next one after it."""
    queue, gate, begun, done = UploadQueue(), threading.Event(), threading.Event(), list[int]()
    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", lambda thread: (start(thread), interrupt()))
    with pytest.raises(Interrupt):
        queue.add(lambda: (done.append(1), begun.set(), gate.wait()))
    monkeypatch.undo()

    assert not queue.flush(0)
    assert begun.wait(WAIT_S)
    assert queue.add(lambda: done.append(2))
    gate.set()
    assert queue.flush(WAIT_S)
    assert done == [1, 2]


def interrupt() -> None:
    raise Interrupt


def test_flush_is_bounded() -> None:
    """It returns although a task hangs."""
    queue, gate = UploadQueue(), threading.Event()
    queue.add(gate.wait)

    assert not queue.flush(0.01)
    gate.set()


def test_child_does_not_do_its_parent_s_works() -> None:
    """A forked child can queue its own tasks."""
    queue, gate = UploadQueue(), threading.Event()
    queue.add(gate.wait)
    done: list[int] = []

    def child() -> None:
        assert queue.flush(0.01)
        assert queue.add(lambda: done.append(1))
        assert queue.flush(WAIT_S)
        assert done == [1]

    assert in_child(child) == 0
    gate.set()


def test_process_ends_when_all_is_done_or_time_is_up() -> None:
    """Queued tasks are done at exit; a task that hangs is abandoned."""
    code = """
import sys, threading, time
from numba_kcache.tiers import upload_queue
upload_queue.FLUSH_S = float(sys.argv[1])
queue = upload_queue.UploadQueue()
queue.add(lambda: (time.sleep(0.2), print("done", flush=True)))
if sys.argv[2] == "hang":
    queue.add(threading.Event().wait)
"""
    start = time.monotonic()

    assert in_python(code, "30", "end").strip() == "done"
    assert in_python(code, "0.5", "hang").strip() == "done"
    assert time.monotonic() - start < WAIT_S
