"""Waiting for another thread: which threads are waited for, and which are not."""

from __future__ import annotations

import os
import threading
import time

from numba_kcache.model import Event, EventKind
from numba_kcache.observe import Events
from numba_kcache.waiting import is_reentered, waited


def test_who_has_not_ended_is_waited_for() -> None:
    """The wait ends when the other thread's mark is removed."""
    end = threading.Event()
    worker = threading.Thread(target=end.wait)
    worker.start()
    marks = {"a": (worker.ident or 0, os.getpid())}
    threading.Timer(0.02, lambda: marks.pop("a")).start()

    assert waited(marks, "a", marks["a"], 5.0)
    end.set()


def test_nobody_waits_for_itself_nor_for_the_dead_nor_for_a_parent() -> None:
    """Marks of this thread, of one that has ended, and of one from before a fork are not waited for."""
    worker = threading.Thread(target=int)
    worker.start()
    worker.join()
    owners = [(threading.get_ident(), os.getpid()), (worker.ident or 0, os.getpid()), (threading.get_ident(), -1)]
    start = time.monotonic()

    assert [waited({"a": owner}, "a", owner) for owner in owners] == [False] * 3
    assert time.monotonic() - start < 2


def test_waiting_has_an_end() -> None:
    """A thread that never ends is waited for no longer than the given time."""
    end = threading.Event()
    worker = threading.Thread(target=end.wait)
    worker.start()
    owner = worker.ident or 0, os.getpid()

    assert not waited({"a": owner}, "a", owner, 0.05)
    end.set()


def test_who_is_called_back_is_known_by_its_stack() -> None:
    """A thread that a subscriber has called back has the package on its stack twice; a plain call has it once."""
    events, seen = Events(), list[bool]()
    events.subscribe(lambda event: seen.append(is_reentered()))

    events.emit(Event(EventKind.HIT, {}))

    assert seen == [True]
    assert not is_reentered()


def test_thread_in_a_subscriber_is_not_waited_for_long() -> None:
    """Others go on while the user's code runs."""
    events, inside, end = Events(), threading.Event(), threading.Event()
    events.subscribe(lambda event: (inside.set(), end.wait()))
    worker = threading.Thread(target=events.emit, args=(Event(EventKind.HIT, {}),))
    worker.start()
    inside.wait()
    owner, start = (worker.ident or 0, os.getpid()), time.monotonic()

    assert not waited({"a": owner}, "a", owner)
    assert time.monotonic() - start < 5
    end.set()
