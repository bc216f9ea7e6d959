"""`get_or_build` in many threads, processes and nodes: one build for all, also if a process dies or a server is
down."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from numba_kcache import KernelCache
from tests.support.compiling import ROOT
from tests.support.redis_server import free_port, needs_redis, redis_server
from tests.support.stores import file_of
from tests.support.tiers import MemoryTier

pytestmark = pytest.mark.slow

PROGRAM = """
import os, sys, threading, time
from numba_kcache import KernelCache
log, directory, tiers, threads = sys.argv[1:5]

def note(text):
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f"{text}\\n".encode())
    os.close(fd)

def build():
    note("built")
    time.sleep(0.3)  # what a compile takes: long enough for all to miss
    return {"code": b"code" * 10_000}

cache = KernelCache(directory, durability="none", tiers=[tiers] if tiers else None)
note("here")
while open(log).read().count("here") < int(sys.argv[5]):
    time.sleep(0.005)

def ask():
    found = cache.get_or_build({"a": 1}, build, label="toy")
    note(f"{found.payloads == {'code': b'code' * 10_000}} {found.source}")

asking = [threading.Thread(target=ask) for _ in range(int(threads))]
for each in asking: each.start()
for each in asking: each.join()
"""


def run(log: Path, directories: Sequence[Path], tiers: str = "", threads: int = 1) -> Counter[str]:
    """Run one process for each directory, which all miss the same request at once; return the notes of all."""
    command = [sys.executable, "-c", PROGRAM, str(log)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    started = [
        subprocess.Popen(
            [*command, str(each), tiers, str(threads), str(len(directories))], env=env, stderr=-1, text=True
        )
        for each in directories
    ]
    assert [(each.communicate()[1], each.returncode)[1] for each in started] == [0] * len(started)
    return Counter(log.read_text().splitlines())


def test_twelve_processes_of_four_threads_build_once(tmp_path: Path) -> None:
    """All forty-eight threads get the same bytes; one built them, the others waited or had a hit."""
    noted = run(tmp_path / "log", [tmp_path / "cache"] * 12, threads=4)
    assert noted["built"] == 1
    assert sum(count for text, count in noted.items() if text.startswith("True")) == 48


def test_twelve_processes_heal_a_damaged_entry_once(tmp_path: Path) -> None:
    """All processes detect the damage at once; none gets a wrong byte, and one builds."""
    cache = KernelCache(tmp_path / "cache", durability="none")
    key = cache.get_or_build({"a": 1}, lambda: {"code": b"code" * 10_000}).key
    file = file_of(cache.session.local, key)  # type: ignore[arg-type]
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)

    noted = run(tmp_path / "log", [tmp_path / "cache"] * 12)
    assert noted["built"] == 1
    assert sum(count for text, count in noted.items() if text.startswith("True")) == 12


@needs_redis
def test_nodes_of_one_tier_build_once(tmp_path: Path) -> None:
    """Six nodes with separate directories and one Redis: one of them builds."""
    with redis_server(tmp_path / "redis") as server:
        noted = run(tmp_path / "log", [tmp_path / f"node{number}" for number in range(6)], server.url)
    assert noted["built"] == 1
    assert sum(count for text, count in noted.items() if text.startswith("True")) == 6


@pytest.mark.filterwarnings("ignore::numba_kcache.KCacheWarning")
def test_dead_tier_costs_a_build_and_no_error(tmp_path: Path) -> None:
    """No server listens at the tier's address: the result is built and stored in the directory."""
    cache = KernelCache(tmp_path, durability="none", tiers=[f"redis://127.0.0.1:{free_port()}/0"])
    assert cache.get_or_build({"a": 1}, lambda: b"code").payloads == {"data": b"code"}
    assert KernelCache(tmp_path).get_or_build({"a": 1}, lambda: b"other").payloads == {"data": b"code"}


@pytest.mark.filterwarnings("ignore::numba_kcache.KCacheWarning")
@pytest.mark.parametrize("trouble", ["error", "damage"])
def test_tier_in_trouble_is_a_miss(tmp_path: Path, trouble: str) -> None:
    """A tier that fails at each request, or returns damaged bytes, is a miss; a sound one serves."""
    first, tier = KernelCache(tmp_path / "first", durability="none"), MemoryTier()
    first.session.mount(tier)
    first.get_or_build({"a": 1}, lambda: b"code" * 100)
    first.session.chain.uploads.flush(10)  # type: ignore[union-attr]

    def served(name: str) -> str:
        cache = KernelCache(tmp_path / name, durability="none")
        cache.session.mount(tier)
        found = cache.get_or_build({"a": 1}, lambda: b"code" * 100)
        assert found.payloads == {"data": b"code" * 100}
        return found.source

    assert served("sound") == "tier"
    if trouble == "error":
        tier.error = OSError("the wire is cut")
    else:
        ((key, data),) = tier.entries.items()
        tier.entries[key] = data[:-30] + bytes([data[-30] ^ 1]) + data[-29:]
    assert served("second") == "compiled"


def test_builder_that_is_killed_leaves_its_turn(tmp_path: Path) -> None:
    """Another process builds after the builder is killed, and no file of the killed one is found."""
    started = tmp_path / "started"
    code = """
import pathlib, sys, time
from numba_kcache import KernelCache
def build():
    pathlib.Path(sys.argv[2]).touch()
    time.sleep(60)
KernelCache(sys.argv[1]).get_or_build({"a": 1}, build)
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "cache"), str(started)], env=env)
    deadline = time.monotonic() + 60
    while not started.exists():
        assert time.monotonic() < deadline
        time.sleep(0.005)
    killer = threading.Timer(0.2, lambda: os.kill(child.pid, signal.SIGKILL))
    killer.start()
    found = KernelCache(tmp_path / "cache").get_or_build({"a": 1}, lambda: b"code")
    child.wait()
    killer.join()
    assert found.payloads == {"data": b"code"}


def test_failing_build_fails_for_each_that_asks(tmp_path: Path) -> None:
    """After a failed build no caller waits or gets its error: each builds for itself."""
    cache, barrier, raised = KernelCache(tmp_path), threading.Barrier(6), list[Any]()

    def fail() -> bytes:
        raise ValueError("mine")

    def ask() -> None:
        barrier.wait()
        try:
            cache.get_or_build({"a": 1}, fail)
        except ValueError as error:
            raised.append(error)

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(set(map(id, raised))) == 6
