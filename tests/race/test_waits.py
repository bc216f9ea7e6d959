"""Every wait of store, engine and `waiting`, with its holder stopped, killed and slow: short, reported, and of one key.

A new call that waits fails here until `WAITS` has it with the test of its three holders.
"""

from __future__ import annotations

import ast
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from numba_kcache import KernelCache, cached_kernel, warm_up
from numba_kcache.model import EventKind
from numba_kcache.observe import Statistics
from numba_kcache.store import limits, locks
from numba_kcache.store.limits import Limits, begin_pass
from numba_kcache.store.tree import Tree
from numba_kcache.warmup import pool
from tests.support.compiling import EMPTY, ROOT
from tests.support.house import HOUSE, house
from tests.support.stores import Events, entry_of, key_of, open_store

HERE = "tests/race/test_waits.py"

WAITS = {
    "engine/session.py waited": "tests/unit/test_waiting.py",
    "frontends/base.py waited": "tests/unit/test_waiting.py",
    "launch/loader.py waited": "tests/unit/test_waiting.py",
    "engine/turns.py building": f"{HERE}::test_build_of_another_process",
    "engine/turns.py elected": "tests/unit/test_lease.py",
    "store/disk.py turn": f"{HERE}::test_build_of_another_process",
    "store/disk.py wait": f"{HERE}::test_eviction_pass_of_this_process",
    "store/limits.py join": f"{HERE}::test_eviction_pass_of_this_process",
    "store/limits.py try_lock": f"{HERE}::test_eviction_pass_of_another_process",
    "store/eviction.py try_lock": "tests/unit/test_store_disk.py::test_leftovers_of_the_dead_are_reaped_by_age",
    "store/locks.py wait": "tests/unit/test_store_locks.py::test_builder_gives_signs_of_life_while_it_builds",
    "store/locks.py pause": f"{HERE}::test_build_of_another_process",
    "store/locks.py try_lock": f"{HERE}::test_build_of_another_process",
    "store/locks.py try_flock": f"{HERE}::test_build_of_another_process",
    "store/locks.py __enter__": "tests/unit/test_waiting.py",
    "store/memory.py turn": "tests/unit/test_waiting.py",
    "store/writing.py turn": f"{HERE}::test_change_of_a_manifest_by_another_process",
    "store/writing.py wait": f"{HERE}::test_eviction_pass_of_this_process",
    "waiting.py sleep": "tests/unit/test_waiting.py",
    "waiting.py waited": "tests/unit/test_waiting.py",
    "waiting.py join": "tests/race/test_reentrance.py::test_launch_at_the_end_of_the_stack_is_a_recursion_error",
    "warmup/pool.py turn": f"{HERE}::test_warm_up_of_another_process",
}
"""The test of each call that may wait, by file and name of what is called."""

CALLS = {
    "sleep", "wait", "acquire", "pause", "waited", "turn", "building", "elected", "asking", "try_lock", "try_flock",
    "__enter__", "select", "poll", "recv", "waitpid", "lock", "get_nowait", "result",
}  # fmt: skip
ROOMS = ("store/", "engine/", "waiting.py", "frontends/base.py", "launch/loader.py", "warmup/pool.py")


def calls_that_wait() -> Iterator[str]:
    """File and name of each call that may wait, in the rooms of this test."""
    for path, tree in HOUSE.trees.items():
        file = HOUSE.name_of(path)
        for node in ast.walk(tree) if file.startswith(ROOMS) else ():
            if isinstance(node, ast.Call):
                name = house.dotted(node.func).rpartition(".")[2]
                owner = ast.unparse(node.func)
                if name in CALLS or (name == "join" and "thread" in owner):
                    yield f"{file} {name}"


def test_each_wait_has_a_test() -> None:
    """The calls that may wait are those of the list, and the tests exist."""
    assert set(calls_that_wait()) == set(WAITS)
    for named in WAITS.values():
        file, _, test = named.partition("::")
        assert re.search(rf"^def {test or 'test_'}", (ROOT / file).read_text(), re.MULTILINE), named


@contextmanager
def holder(state: str, hold: Callable[[], object]) -> Iterator[None]:
    """Run a process that calls `hold`, which returns what it holds, and is then stopped, killed, or slow."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        held = hold()
        os.write(theirs, b"held")
        while held is not None:
            signal.pause()
        os._exit(1)
    try:
        assert os.read(ours, 4) == b"held"
        if state != "slow":
            os.kill(pid, signal.SIGKILL if state == "killed" else signal.SIGSTOP)
        if state == "killed":
            os.waitpid(pid, 0)
        yield
    finally:
        if state != "killed":
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(ours)
        os.close(theirs)


STATES = ("stopped", "killed", "slow")


def entered(root: Path, name: str, **options: bool) -> object:
    """Take a turn in another process, and return it."""
    turn = open_store(root).locks.turn(name, lambda: None, 0.0, builds=True, **options)
    assert turn.__enter__().has_turn
    return turn


@pytest.mark.parametrize("state", STATES)
def test_build_of_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    """A killed builder is replaced at once, a stopped one after `SILENT_S`, a slow one not; another key does not
    wait."""
    monkeypatch.setattr(locks, "SILENT_S", 2.5)
    wait_s = 4.0
    with holder(state, lambda: entered(tmp_path, key_of(1))):
        store = open_store(tmp_path, max_wait_s=wait_s)
        with store.building(key_of(2)) as turn:
            assert turn.has_turn
            assert turn.waited_s < 0.5
        with store.building(key_of(1)) as turn:
            least_s, most_s = {"stopped": (2.5, 3.9), "killed": (0.0, 1.0), "slow": (wait_s - 0.1, wait_s + 1)}[state]
            assert turn.has_turn == (state != "slow")
            assert least_s <= turn.waited_s <= most_s


@pytest.mark.parametrize("state", STATES)
def test_change_of_a_manifest_by_another_process(tmp_path: Path, state: str) -> None:
    """It is waited for a second, which is an event and a count, and then not."""
    events = Events()
    with holder(state, lambda: entered(tmp_path, f"{key_of(1)}.manifest")):
        store = open_store(tmp_path, emit=events)
        start_s = time.monotonic()
        assert store.add_variant(key_of(1), {"key": key_of(2)})
        assert time.monotonic() - start_s < 3

    assert len(events.of(EventKind.WAITED)) == (state != "killed")
    counted = Statistics()
    counted.heard.extend(events)
    assert counted.process.waits == (state != "killed")
    assert all(each.fields["what"] and each.fields["waited_s"] >= 1 for each in events.of(EventKind.WAITED))


@pytest.mark.parametrize("state", STATES)
def test_eviction_pass_of_another_process(tmp_path: Path, state: str) -> None:
    """Nobody waits for it: a put goes on, and `prune` says that another process holds the lock."""
    store = open_store(tmp_path, emit=(events := Events()), max_entries=1)
    store.put(entry_of(1))
    store.wait_for_eviction()
    with holder(state, lambda: begin_pass(Tree(str(tmp_path)), time.time())):
        assert store.put(entry_of(2))
        store.wait_for_eviction()
        assert store.prune(max_size_bytes=0).entries == (2 if state == "killed" else 0) or state == "killed"
    said = [str(each.fields["error"]) for each in events.of(EventKind.TROUBLE)]
    assert ["another process holds evict.lock" in each for each in said] == [True] * (state != "killed")


def test_eviction_pass_of_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that hangs in its thread delays `clear` no longer than a bounded time, which is an event."""
    monkeypatch.setattr(limits, "LONGEST_WAIT_S", 1.0)
    end, begun = threading.Event(), threading.Event()
    monkeypatch.setattr(Limits, "prune", lambda *_, **__: (begun.set(), end.wait(60)))
    store = open_store(tmp_path, emit=(events := Events()))
    store.put(entry_of(1))
    store._writer.limits.start()
    assert begun.wait(60)

    assert store.clear().entries == 1

    end.set()
    (event,) = events.of(EventKind.WAITED)
    assert "eviction pass" in event.fields["what"]


@pytest.mark.slow
@pytest.mark.parametrize("state", STATES)
def test_warm_up_of_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    """A warm-up waits for another one as for a builder, and then goes on."""
    monkeypatch.setattr(locks, "SILENT_S", 1.5)
    cache = KernelCache(tmp_path, build_wait_s=2.0, durability="none")
    heard: list[str] = []
    cache.subscribe(lambda event: heard.append(str(event.fields.get("what", ""))))
    with holder(state, lambda: entered(tmp_path, pool.LOCK, has_keys=True)):
        report = warm_up(cached_kernel(EMPTY, cache=cache), "sm_90", progress=False)

    assert len(report.built) == 1
    assert any("warms up" in each for each in heard) == (state != "killed")
