"""Ranks of one job that miss the same kernels share the work: each kernel is compiled once, by a rank that is free."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from numba_kcache import KernelCache, cached_kernel, warm_up
from numba_kcache.engine.turns import GRACE_S, turns
from numba_kcache.model import Event
from numba_kcache.store.cores import cores
from numba_kcache.store.locks import WARM_UPS
from tests.support.compiling import ROOT
from tests.support.redis_server import redis_server

pytest.importorskip("numba.cuda")
pytestmark = pytest.mark.slow

PROGRAM = """
import os, signal, sys
from numba_kcache import KernelCache, cached_kernel, warm_up
from numba_kcache.model import EventKind

directory, role, held, freed = sys.argv[1:5]
cache = KernelCache(directory, tiers=sys.argv[5:], durability="none")

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
        built.append("and told so")

cache.subscribe(on_event)
for each in kernels[::2]:
    each.compile()
role = ""
try:
    kernels[1].compile()
except Exception as error:
    print(type(error).__name__)
print(*built, cache.info("process").hits, "hits")
"""
"""Two ranks: the compile of the first kernel ends after that of the second, which its builder has not come to."""


def ranks(folder: Path, *tiers: str, are_nodes: bool = False, first: str = "builder") -> list[list[str]]:
    """Return the outputs of the rank that builds the first kernel and of the rank that waits for it."""
    held, freed = folder / "held", folder / "freed"
    for each in (held, freed):
        os.mkfifo(each)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    children = []
    for role in (first, "waiter"):
        directory = folder / (role if are_nodes else "cache")
        words = [sys.executable, "-W", "ignore", "-c", PROGRAM, directory, role, held, freed, *tiers]
        children.append(subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True))
        if role == first:
            held.open().close()
    return [child.communicate(timeout=120)[0].split() for child in children]


def test_rank_that_waits_builds_the_next_kernel_whose_signature_is_given(tmp_path: Path) -> None:
    """Each kernel is compiled and counted once; an error in one compiled ahead is raised where that kernel is used."""
    builder, waiter = ranks(tmp_path)

    assert builder == ["TypingError", "first", "1", "hits"]
    assert waiter == ["TypingError", "second", "and", "told", "so", "1", "hits"]


def test_rank_that_built_ahead_succeeds_a_builder_that_was_killed(tmp_path: Path) -> None:
    """The waiting rank compiles the kernel itself, and keeps those that it built while waiting."""
    killed, waiter = ranks(tmp_path, first="killed")

    assert killed == []
    assert waiter == ["TypingError", "second", "and", "told", "so", "first", "0", "hits"]


def test_node_that_waits_builds_the_next_kernel_whose_signature_is_given(tmp_path: Path) -> None:
    """This holds between nodes with separate directories and a common Redis."""
    with redis_server(tmp_path / "redis") as server:
        builder, waiter = ranks(tmp_path, server.url, are_nodes=True)

    assert builder == ["TypingError", "first", "1", "hits"]
    assert waiter == ["TypingError", "second", "and", "told", "so", "1", "hits"]


ON_ONE_CORE = """
import os, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from numba_kcache import KernelCache, cached_kernel, warm_up
from numba_kcache.model import EventKind
cache = KernelCache(sys.argv[1], durability="none")
log = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def on_event(event):
    if event.kind in (EventKind.COMPILE_BEGIN, EventKind.COMPILE_END):
        os.write(log, b"+" if event.kind is EventKind.COMPILE_BEGIN else b"-")

cache.subscribe(on_event)
source = 'extern "C" __global__ void k%s_%d(int *x) { *x = %d; }'
kernels = [cached_kernel(source % (sys.argv[3], n, n), arch="sm_90", cache=cache) for n in range(8)]
sys.stdin.readline()
for each in kernels:
    each.compile()
"""


def test_no_more_compilers_run_than_there_are_cores(tmp_path: Path) -> None:
    """Ranks need different kernels on one core: one compiles at a time."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-c", ON_ONE_CORE, tmp_path / "cache", tmp_path / "log"]
    children = [subprocess.Popen([*words, str(n)], env=environment, stdin=subprocess.PIPE) for n in range(4)]
    for child in children:
        assert child.stdin is not None
        child.stdin.close()
    assert [child.wait(120) for child in children] == [0] * 4

    assert (tmp_path / "log").read_bytes() == b"+-" * 32


def test_rank_that_gets_no_place_compiles_after_its_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All slots are held for ever: that costs `build_wait_s` once, not once for each kernel."""
    monkeypatch.setattr(turns, "vain_s", 0.0)
    cache = KernelCache(tmp_path, build_wait_s=0.2, durability="none")
    kernels = [
        cached_kernel(f'extern "C" __global__ void k{number}() {{}}', arch="sm_90", cache=cache) for number in range(9)
    ]
    locks = [KernelCache(tmp_path).session.local.locks for _ in range(cores())]
    with ExitStack() as stack:
        assert all(stack.enter_context(each.slot(cores())) for each in locks)
        start_s = time.monotonic()
        for kernel in kernels:
            kernel.compile()
        assert time.monotonic() - start_s >= 0.2
        assert turns.vain_s < 0.4
    assert cache.info("process").compiles == 9


def nothing(out: object) -> None:
    """A kernel."""


@pytest.mark.parametrize("has_waited", [True, False])
def test_rank_leaves_kernels_to_others_for_half_a_second_in_its_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_waited: bool
) -> None:
    """A rank that had to wait before leaves the next kernels to others for so long; a process that is alone loses no
    time."""
    for name, value in (("has_waited", has_waited), ("has_compiled", False), ("grace_s", 2 * GRACE_S)):
        monkeypatch.setattr(turns, name, value)
    cache = KernelCache(tmp_path, durability="none")
    left = []
    for number in range(4):
        with cache.session.local.locks.slot(1):  # another rank compiles
            pass
        monkeypatch.setattr(turns, "has_compiled", False)  # as if its compilers were not loaded yet
        cached_kernel(nothing, signature="void(int32[::1])", depends=[number], cache=cache, arch="sm_90").compile()
        left.append(turns.grace_s)

    assert left == ([GRACE_S, 0, 0, 0] if has_waited else [2 * GRACE_S] * 4)


def test_no_rank_builds_ahead_where_all_cores_compile(tmp_path: Path) -> None:
    """If as many compilers run as there are cores, a waiting rank only waits."""
    *others, locks = [KernelCache(tmp_path / "cache").session.local.locks for _ in range(cores() + 1)]
    with ExitStack() as stack:
        assert all(stack.enter_context(each.slot(cores())) for each in others)
        with locks.slot(cores()) as is_had:
            assert not is_had
    with locks.slot(cores()) as is_had, locks.slot(cores()) as is_had_again:
        assert is_had
        assert is_had_again  # it has a slot


@pytest.mark.parametrize(("quota", "count"), [("100000 100000", 1), ("150000 100000", 2), ("max 100000", 0), ("", 0)])
def test_quota_of_a_container_bounds_its_cores(tmp_path: Path, quota: str, count: int) -> None:
    """The quota counts if it is lower than the affinity."""
    (tmp_path / "cpu.max").write_text(quota)
    own = len(os.sched_getaffinity(0))

    assert cores(str(tmp_path / "cpu.max")) == min(own, count or own)


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
    assert workers or sorted(int(each[3]) for each in said) == [0, 0, min(6, cores())]


def test_warm_up_goes_on_where_another_never_ends(tmp_path: Path) -> None:
    """It waits for the other's turn no longer than `build_wait_s`."""
    cache = KernelCache(tmp_path, build_wait_s=0.1, durability="none")
    kernel = cached_kernel('extern "C" __global__ void k() {}', cache=cache)
    with KernelCache(tmp_path).session.local.locks.slot(1, WARM_UPS) as is_had:
        assert is_had
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
