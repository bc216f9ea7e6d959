"""Ranks of one job that miss the same kernels compile each kernel once, also in a warm-up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from numba_kcache import KernelCache, cached_kernel, warm_up
from numba_kcache.model import Event
from numba_kcache.store.locks import KeyLocks
from numba_kcache.warmup import pool
from tests.support.compiling import ROOT

pytest.importorskip("numba.cuda")
pytestmark = pytest.mark.slow

RANK = """
import os, signal, sys
from numba_kcache import KernelCache, cached_kernel
from numba_kcache.model import EventKind
cache = KernelCache(sys.argv[1], durability="none")
role, held = sys.argv[2:]

def on_event(event):
    if event.kind is EventKind.COMPILE_BEGIN and role != "waiter":
        open(held, "w").close()  # the others may start: this one has the turn
        os.kill(os.getpid(), signal.SIGKILL if role == "killed" else signal.SIGSTOP)

cache.subscribe(on_event)
cached_kernel('extern "C" __global__ void k(int *x) { *x = 1; }', arch="sm_90", cache=cache).compile()
print(cache.info("process").compiles)
"""


@pytest.mark.parametrize("role", ["killed", "stopped"])
def test_builder_that_is_killed_or_stopped_is_replaced_by_one_rank(tmp_path: Path, role: str) -> None:
    """Eight ranks miss the kernel that a ninth was compiling: one of them compiles it, within `STOPPED_S` and a bit."""
    os.mkfifo(tmp_path / "held")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-c", RANK, tmp_path / "cache"]
    builder = subprocess.Popen([*words, role, tmp_path / "held"], env=environment, stdout=subprocess.PIPE)
    try:
        (tmp_path / "held").open().close()
        more: dict[str, Any] = {"env": environment, "stdout": subprocess.PIPE, "text": True}
        others = [subprocess.Popen([*words, "waiter", ""], **more) for _ in range(8)]
        compiles = [int(each.communicate(timeout=120)[0]) for each in others]
    finally:
        builder.kill()
        builder.communicate()

    assert sum(compiles) == 1
    assert KernelCache(tmp_path / "cache").verify() == []


PROGRAM = """
import os, signal, sys
from numba_kcache import KernelCache, cached_kernel
from numba_kcache.model import EventKind

directory, role, held, freed = sys.argv[1:]
cache = KernelCache(directory, durability="none")

def first(out):
    out[0] = 1

def second(out):
    out[0] = 2

def third(out):
    out[0] = undefined

options = {"signature": "void(int32[::1])", "arch": "sm_90", "cache": cache}
kernels = [cached_kernel(each, **options) for each in (first, third, second)]
built = []

def on_event(event):
    if event.kind is EventKind.COMPILE_END:
        built.append(event.fields["kernel"].rpartition(".")[2])
    if role in ("builder", "killed") and event.kind is EventKind.COMPILE_BEGIN:
        open(held, "w").close()  # the other may start: this one has the turn for the first kernel
        open(freed).close()  # until the other has built the second
        if role == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
    if role == "waiter" and built == ["second"]:
        open(freed, "w").close()
        built.append("freed")

cache.subscribe(on_event)
for each in kernels[::2]:
    each.compile()
role = ""
try:
    kernels[1].compile()
except Exception as error:
    print(type(error).__name__)
counts = cache.info("process")
print(*built, counts.hits, counts.compiles)
"""
"""Two ranks: the compile of the first kernel ends after that of the second, which its builder has not come to."""


@pytest.mark.parametrize("role", ["builder", "killed"])
def test_rank_that_would_wait_builds_the_next_kernel_whose_signature_is_given(tmp_path: Path, role: str) -> None:
    """Each kernel is compiled and counted once, by a killed builder's successor too; an error in one built ahead is
    raised where it is used."""
    held, freed = tmp_path / "held", tmp_path / "freed"
    for each in (held, freed):
        os.mkfifo(each)
    words = [sys.executable, "-W", "ignore", "-c", PROGRAM, tmp_path / "cache"]
    more: dict[str, Any] = {"env": {**os.environ, "PYTHONPATH": str(ROOT)}, "stdout": subprocess.PIPE, "text": True}
    builder = subprocess.Popen([*words, role, held, freed], **more)
    held.open().close()
    waiter = subprocess.Popen([*words, "waiter", held, freed], **more)
    said = [each.communicate(timeout=120)[0].split() for each in (builder, waiter)]

    if role == "killed":
        assert said == [[], ["TypingError", "second", "freed", "first", "0", "2"]]
    else:
        assert said == [["TypingError", "first", "1", "1"], ["TypingError", "second", "freed", "1", "1"]]


@pytest.mark.parametrize(("quota", "count"), [("100000 100000", 1), ("150000 100000", 2), ("max 100000", 0), ("", 0)])
def test_quota_of_a_container_bounds_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, count: int
) -> None:
    """The quota counts if it is lower than the affinity."""
    (tmp_path / "cpu.max").write_text(quota)
    monkeypatch.setattr(pool, "QUOTA", str(tmp_path / "cpu.max"))
    own = len(os.sched_getaffinity(0))

    assert pool.cores() == min(own, count or own)


WARM_UP = """
import sys
from numba_kcache import KernelCache, cached_kernel, warm_up
sources = ['extern "C" __global__ void k%d(int *x) { *x = %d; }' % (n, n) for n in range(6)]
cache = KernelCache(sys.argv[1], durability="none")
kernels = [cached_kernel(each, cache=cache) for each in sources]
print("ready", flush=True)
sys.stdin.readline()
report = warm_up(kernels, "sm_90", workers=int(sys.argv[2]) or None, progress=False)
print(len(report.results), len(report.failed), cache.info("process").compiles, report.workers)
"""


@pytest.mark.parametrize("workers", [2, 0])
def test_ranks_that_warm_up_together_compile_each_kernel_once(tmp_path: Path, workers: int) -> None:
    """All ranks report all kernels; only one has workers, unless `workers=` is given."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-c", WARM_UP, tmp_path / "cache", str(workers)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    children = [subprocess.Popen(words, env=environment, text=True, **pipes) for _ in range(3)]  # type: ignore[call-overload]
    for child in children:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    said = [child.communicate(timeout=120)[0].split() for child in children]

    assert [each[:2] for each in said] == [["6", "0"]] * 3
    assert sum(int(each[2]) for each in said) == 6
    assert workers or sorted(int(each[3]) for each in said) == [0, 0, min(6, pool.cores())]


def test_warm_up_goes_on_where_another_never_ends(tmp_path: Path) -> None:
    """It waits for the other's turn no longer than `build_wait_s`."""
    cache = KernelCache(tmp_path, build_wait_s=0.1, durability="none")
    kernel = cached_kernel('extern "C" __global__ void k() {}', cache=cache)
    other = KeyLocks(cache.session.local.locks.folder)
    with other.turn(pool.LOCK, lambda: None, 0.0, builds=True, has_keys=True) as turn:
        assert turn.has_turn
        report = warm_up(kernel, "sm_90", progress=False)

    assert len(report.built) == 1
    assert report.seconds >= 0.1


def test_warm_up_in_the_middle_of_one_waits_for_nobody(tmp_path: Path) -> None:
    """A subscriber that begins a warm-up inside one would otherwise wait for itself."""
    cache = KernelCache(tmp_path, durability="none", build_wait_s=20)
    first, second = (cached_kernel(f'extern "C" __global__ void k{each}() {{}}', cache=cache) for each in range(2))
    reports: list[Any] = []

    def on_event(event: Event) -> None:
        if not reports:
            reports.append(None)
            reports.append(warm_up(second, "sm_90", progress=False))

    cache.subscribe(on_event)
    assert len(warm_up(first, "sm_90", progress=False).built) == 1
    assert len(reports[1].built) == 1
    assert reports[1].seconds < cache.session.settings.build_wait_s
