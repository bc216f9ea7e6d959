"""Every wait of the package, with what is waited for stopped, killed and slow: short, reported, and of one key.

A new call that waits fails here until `WAITS` has it with the test of its holders. Two sorts of calls are looked for:
those named like a wait (`CALLS`), and those by which tiers reach a service or a slow filesystem (`REACHING`).
"""

from __future__ import annotations

import ast
import os
import re
import signal
import threading
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from numba_kcache import KernelCache, cached_kernel, warm_up
from numba_kcache.engine import Statistics
from numba_kcache.launch import launcher
from numba_kcache.launch.launcher import Loader
from numba_kcache.model import Event, EventKind
from numba_kcache.store import Tree, eviction, locks
from numba_kcache.store.eviction import Limits, begin_pass
from numba_kcache.warmup import pool
from tests.support.compiling import EMPTY, ROOT
from tests.support.house import HOUSE, house
from tests.support.stores import Events, entry_of, key_of, open_store

HERE = "tests/race/test_waits.py"
THREADS, BUILD, PASS = (
    "tests/unit/test_waiting.py",
    f"{HERE}::test_build_of_another_process",
    f"{HERE}::test_eviction_pass",
)
LEASES, FLEET = "tests/unit/test_lease.py", "tests/integration/test_redis_fleet.py"
FAULTS, QUEUE = "tests/integration/test_redis_faults.py", "tests/unit/test_upload_queue.py"
STOPPED, FLUSHED = f"{FAULTS}::test_stopped_server_costs_one_timeout", f"{QUEUE}::test_flush_is_bounded"
NO_NAMES = f"{FAULTS}::test_name_servers_that_do_not_answer_cost_one_timeout"
LISTED = "tests/unit/test_object_tier.py::test_service_that_lists_without_end_is_given_up"
SLOW_SERVICE = "tests/integration/test_object_store.py::test_black_hole_costs_its_timeout"
SLOW_FOLDER = "tests/unit/test_tier_breaker.py::test_directory_on_a_slow_filesystem_costs_twenty_kernels_six_seconds"
SLOW_BUNDLE = "tests/unit/test_bundle.py::test_open_bundle_reads_its_head_alone"
SLOW_IMAGE = "tests/unit/test_image.py::test_image_that_takes_long_to_unpack_is_refused_at_a_look_up"
WORKERS = "tests/unit/test_warm_up.py"

WAITS = {
    "adapters/turn.py wanted.turn": BUILD,
    "adapters/turn.py time.sleep": "tests/unit/test_cupy_adapter.py::test_one_of_many_threads_compiles",
    "engine/turns.py session.chain.elected": LEASES,
    "engine/turns.py session.local.building": BUILD,
    "frontends/__init__.py waited": THREADS,
    "frontends/measures.py driver.cuStreamSynchronize": "the work of the user's kernel",
    "frontends/numba/learning.py subprocess.run": (
        "tests/integration/test_stand_in.py::test_export_goes_on_where_numba_does_not_answer"
    ),
    "launch/failures.py driver.cuStreamSynchronize": "the work of the user's kernel",
    "launch/launcher.py lock.acquire": f"{HERE}::test_load_of_another_thread",
    "launch/streams.py driver.cuEventSynchronize": "the work of the user's kernel",
    "observe/progress.py is_done.wait": "a thread that nobody waits for",
    "observe/progress.py thread.join": "of a terminal that takes no text, for a second",
    "store/__init__.py fcntl.flock": BUILD,
    "store/disk.py self.locks.turn": BUILD,
    "store/eviction.py thread.join": f"{PASS}_of_this_process",
    "store/eviction.py lock.try_lock": f"{PASS}_of_another_process",
    "store/locks.py locks.pause": BUILD,
    "store/locks.py file.try_lock": BUILD,
    "store/locks.py try_flock": BUILD,
    "store/locks.py self._mark.__enter__": THREADS,
    "store/writing.py self.locks.turn": f"{HERE}::test_change_of_a_manifest_by_another_process",
    "store/writing.py self.limits.wait": f"{PASS}_of_this_process",
    "tiers/bundle.py os.open": SLOW_BUNDLE,
    "tiers/bundle.py os.pread": SLOW_BUNDLE,
    "tiers/bundle.py found.read_bytes": SLOW_BUNDLE,
    "tiers/chain.py tier.elected": LEASES,
    "tiers/chain.py operation": SLOW_FOLDER,
    "tiers/chain.py self._elections.elected": LEASES,
    "tiers/directory.py self._tree.base": SLOW_FOLDER,
    "tiers/directory.py self._tree.walk": SLOW_FOLDER,
    "tiers/directory.py tree.read": SLOW_FOLDER,
    "tiers/directory.py write": SLOW_FOLDER,
    "tiers/image.py os.open": SLOW_IMAGE,
    "tiers/image.py file.read": SLOW_IMAGE,
    "tiers/image.py archive.read": SLOW_IMAGE,
    "tiers/image.py try_flock": "tests/unit/test_image.py::test_tag_written_at_the_same_time_is_not_lost",
    "tiers/lease.py self._pause": f"{LEASES}::test_lying_server_costs_a_process_five_seconds_in_its_life",
    "tiers/lease.py waited.wait": f"{FLEET}::test_builder_that_ends_is_succeeded_by_exactly_one",
    "tiers/object_store.py obstore.get": SLOW_SERVICE,
    "tiers/object_store.py obstore.put": SLOW_SERVICE,
    "tiers/object_store.py obstore.list": LISTED,
    "tiers/tier.py thread.join": NO_NAMES,
    "tiers/redis.py socket.getaddrinfo": NO_NAMES,
    "tiers/redis.py socket.create_connection": f"{FAULTS}::test_host_of_many_addresses_has_the_time_of_one",
    "tiers/redis.py context.wrap_socket": STOPPED,
    "tiers/redis.py self._socket.sendall": STOPPED,
    "tiers/redis.py self._socket.recv": STOPPED,
    "tiers/trust.py file.read": "tests/unit/test_bundle.py::test_bad_signing_key_is_a_settings_error",
    "tiers/upload_queue.py each.flush": FLUSHED,
    "tiers/upload_queue.py self._changed.wait_for": FLUSHED,
    "toolchain/disassembly.py subprocess.run": "a program that the user asked for",
    "waiting.py waited": THREADS,
    "waiting.py thread.join": (
        "tests/race/test_reentrance.py::test_launch_at_the_end_of_the_stack_is_a_recursion_error"
    ),
    "waiting.py time.sleep": THREADS,
    "warmup/pool.py locks.turn": f"{HERE}::test_warm_up_of_another_process",
    "warmup/worker.py connection.recv": f"{WORKERS}::test_worker_ends_with_its_parent",
    "warmup/workers.py wait": f"{WORKERS}::test_compiler_that_dies_costs_one_kernel",
    "warmup/workers.py self.connection.recv": f"{WORKERS}::test_compiler_that_dies_costs_one_kernel",
    "warmup/workers.py self.process.wait": f"{WORKERS}::test_compiler_that_dies_costs_one_kernel",
}
"""The test of each call that may wait; a reason instead where what is waited for is not the cache's."""

CALLS = {
    "sleep", "wait", "wait_for", "acquire", "pause", "_pause", "waited", "turn", "building", "elected", "operation",
    "try_lock", "try_flock", "flock", "__enter__", "select", "poll", "recv", "sendall", "waitpid", "lock", "get_nowait",
    "result", "getaddrinfo", "create_connection", "wrap_socket", "cuStreamSynchronize", "cuEventSynchronize",
    "cuCtxSynchronize", "communicate",
}  # fmt: skip
REACHING = {
    "obstore.get", "obstore.put", "obstore.list", "os.open", "os.pread", "tree.read", "write", "self._tree.walk",
    "self._tree.base", "file.read", "archive.read", "found.read_bytes",
}  # fmt: skip
OF_OWNERS = {
    "join": ("thread",),
    "flush": ("_uploads", "each"),
    "run": ("subprocess",),
}
"""Calls with a common name, and the objects of which they wait."""


def calls_that_wait() -> Iterator[str]:
    """File and call of each call of the package that may wait."""
    for path, tree in HOUSE.trees.items():
        file = HOUSE.name_of(path)
        for node in ast.walk(tree):
            called = house.dotted(node.func) if isinstance(node, ast.Call) else ""
            owner, _, name = called.rpartition(".")
            is_tier = file.startswith(("tiers/", "bundles.py"))
            is_pause = called == "self._pause" and not is_tier  # of the store's writer: it stores nothing for a while
            if (
                (name in CALLS and not is_pause)
                or (is_tier and called in REACHING)
                or owner.rpartition(".")[2] in OF_OWNERS.get(name, ())
            ):
                yield f"{file} {called}"


def test_each_wait_has_a_test() -> None:
    """The calls that may wait are those of the list, and the tests exist."""
    assert set(calls_that_wait()) == set(WAITS)
    for named in WAITS.values():
        file, _, test = named.partition("::")
        if file.startswith("tests/"):
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
    """A killed builder is replaced at once, a stopped one after `STOPPED_S`, a slow one not; another key does not
    wait."""
    monkeypatch.setattr(locks, "STOPPED_S", 2.5)
    wait_s = 4.0
    with holder(state, lambda: entered(tmp_path, key_of(1))):
        store = open_store(tmp_path, build_wait_s=wait_s)
        with store.building(key_of(2)) as turn:
            assert turn.has_turn
            assert turn.waited_s < 2.4
        with store.building(key_of(1)) as turn:
            assert turn.has_turn == (state != "slow")
            assert {"stopped": 2.5, "killed": 0.0, "slow": wait_s - 0.1}[state] <= turn.waited_s
            assert turn.waited_s < 2.4 or state != "killed"


@pytest.mark.parametrize("state", STATES)
def test_change_of_a_manifest_by_another_process(tmp_path: Path, state: str) -> None:
    """It is waited for a second, which is an event and a count, and then not, in the life of a process."""
    events = Events()
    store = open_store(tmp_path, emit=events)
    assert store.add_rows(key_of(1), {"key": key_of(3)})
    with holder(state, lambda: entered(tmp_path, key_of(1))):
        start_s = time.monotonic()
        assert store.add_rows(key_of(1), {"key": key_of(2)})
        assert store.add_rows(key_of(1), {"key": key_of(4)})
        assert store.add_rows(key_of(1), {"key": key_of(5)})
        assert time.monotonic() - start_s < 3
        variants = [each["key"] for each in store.get_manifest(key_of(1))]
        assert variants == [key_of(number) for number in (5, 4, 2, 3)]

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
    store.writer.limits.wait()
    with holder(state, lambda: begin_pass(Tree(str(tmp_path)), time.time())):
        assert store.put(entry_of(2))
        store.writer.limits.wait()
        assert store.prune(max_size_bytes=0).entries == (2 if state == "killed" else 0) or state == "killed"
    said = [str(each.fields["error"]) for each in events.of(EventKind.TROUBLE)]
    assert ["another process holds evict.lock" in each for each in said] == [True] * (state != "killed")


def test_eviction_pass_of_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that hangs in its thread delays `clear` no longer than a bounded time, which is an event."""
    monkeypatch.setattr(eviction, "LONGEST_WAIT_S", 1.0)
    end, begun = threading.Event(), threading.Event()
    monkeypatch.setattr(Limits, "prune", lambda *_, **__: (begun.set(), end.wait(60)))
    store = open_store(tmp_path, emit=(events := Events()))
    store.put(entry_of(1))
    store.writer.limits.start()
    assert begun.wait(60)

    assert store.clear().entries == 1

    end.set()
    (event,) = events.of(EventKind.WAITED)
    assert "eviction pass" in event.fields["what"]


@pytest.mark.parametrize("state", ["slow", "dead"])
def test_load_of_another_thread(monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    """A load that another thread makes is waited for a bounded time, also if that thread has ended; the wait is an
    event, and the next load of the kernel waits for nobody."""
    monkeypatch.setattr(launcher, "LONGEST_WAIT_S", 3.0)
    events: list[Event] = []
    loader, end = Loader(events.append), threading.Event()
    held = loader.loading.setdefault(("key", 0), threading.RLock())
    thread = threading.Thread(target=lambda: (held.acquire(), end.wait(60 * (state == "slow"))))
    thread.start()
    if state == "dead":
        thread.join()

    for waits in (True, False):
        start_s = time.monotonic()
        with pytest.raises(AttributeError):  # of the artifact that this test lacks
            loader.load(None, None, "key", types.SimpleNamespace(ordinal=0), stored=False)
        assert (time.monotonic() - start_s >= 3.0) == waits

    end.set()
    assert [each.kind for each in events] == [EventKind.WAITED]


@pytest.mark.slow
@pytest.mark.parametrize("state", STATES)
def test_warm_up_of_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    """A warm-up waits for another one as for a builder, and then goes on."""
    monkeypatch.setattr(locks, "STOPPED_S", 1.5)
    cache = KernelCache(tmp_path, build_wait_s=2.0, durability="none")
    heard: list[str] = []
    cache.subscribe(lambda event: heard.append(str(event.fields.get("what", ""))))
    with holder(state, lambda: entered(tmp_path, pool.LOCK, has_keys=True)):
        report = warm_up(cached_kernel(EMPTY, cache=cache), "sm_90", progress=False)

    assert len(report.built) == 1
    assert any("warms up" in each for each in heard) == (state != "killed")
