"""Defects proven in other kernel caches, each by name: the same steps with this cache, and its behaviour.

The systems are those of the versions of 2026 that the project looked at (numba-cuda 0.30, cuda.core 1.2, Triton 3.6 and
the JAX, PyTorch, DeepGEMM and CuPy of that time). Kernels are compiled for sm_90, for which no GPU is needed.
"""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from numba_kcache import KCacheWarning, Kernel, KernelCache, cached_kernel
from numba_kcache import store as faults
from numba_kcache.model import EventKind
from numba_kcache.store import StoredEntry
from numba_kcache.store import writing as publish
from tests.support.compiling import EMPTY, ROOT, SAXPY, in_python
from tests.support.stores import (
    Events,
    children,
    entry_of,
    file_of,
    files_below,
    key_of,
    killed_at,
    open_store,
    private_files,
    small_entry,
)

pytestmark = pytest.mark.usefixtures("alone", "compiled_once")

TEMPLATE = "template <typename T> __global__ void k(T *x, T a) { *x = a; }"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The place where the cache will be."""
    return tmp_path / "cache"


def open_cache(directory: Path, **settings: Any) -> KernelCache:
    """The cache as another process would open it."""
    return KernelCache(directory, durability="none", **settings)


def compiled(cache: KernelCache, source: str = EMPTY, **options: Any) -> Kernel:
    """A kernel of this cache, resolved for sm_90."""
    kernel = cached_kernel(source, arch="sm_90", cache=cache, **options)
    kernel.compile()
    return kernel


def compiles(cache: KernelCache) -> int:
    """Number of compilations of this cache's process."""
    return cache.info("process").compiles


def path_of(directory: Path, kernel: Kernel) -> Path:
    """The file of a kernel's entry."""
    return file_of(open_store(directory), kernel.key())


WRITER = """
import sys
from numba_kcache import KernelCache, cached_kernel
directory, source, *types = sys.argv[1:]
cache = KernelCache(directory, durability="none")
sys.stdin.read()
for each in types:
    cached_kernel(source, name=f"k<{each}>", arch="sm_90", cache=cache).compile()
"""


def write_at_once(directory: Path, orders: list[list[str]]) -> None:
    """Start processes that compile instances of one template in these orders, all at the same time."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", WRITER, str(directory), TEMPLATE]
    writers = [subprocess.Popen([*command, *order], stdin=subprocess.PIPE, env=environment) for order in orders]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.close()
    assert [writer.wait(timeout=120) for writer in writers] == [0] * len(orders)


@pytest.mark.slow
def test_numba_cuda_concurrent_writers_leave_another_signature_s_kernel(directory: Path) -> None:
    """With Numba's cache an int8 kernel then ran on an int64 array; here each signature's key leads to its own code."""
    types = ["signed char", "long long", "float"]
    write_at_once(directory, [types, types[::-1], types[1:] + types[:1]])

    cache = open_cache(directory, mode="frozen")
    alone = open_cache(directory.with_name("alone"))
    for each in types:
        stored = compiled(cache, TEMPLATE, name=f"k<{each}>")
        assert [parameter.c_type for parameter in stored.params] == [f"{each}*", each]
        assert stored.cubin() == compiled(alone, TEMPLATE, name=f"k<{each}>").cubin()
    assert open_store(directory).verify() == []


@pytest.mark.slow
def test_numba_cuda_concurrent_writers_lose_index_updates(directory: Path) -> None:
    """With Numba's cache the last writer of the index drops the others' kernels; here every compiled kernel is
    found."""
    orders = [[f"{sign} {size}" for size in ("char", "short", "int")] for sign in ("signed", "unsigned")]
    write_at_once(directory, orders)

    cache = open_cache(directory, mode="frozen")
    for each in [*orders[0], *orders[1]]:
        compiled(cache, TEMPLATE, name=f"k<{each}>")
    assert cache.info().entries == 6


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_numba_cuda_truncated_or_empty_file_raises_out_of_the_launch(directory: Path, share: float) -> None:
    """Numba's cache raises EOFError; here there is one warning, and the kernel is compiled again."""
    kernel = compiled(open_cache(directory))
    path = path_of(directory, kernel)
    os.truncate(path, int(path.stat().st_size * share))
    cache = open_cache(directory)
    with pytest.warns(KCacheWarning, match="damaged"):
        again = compiled(cache)

    assert (again.cubin(), compiles(cache)) == (kernel.cubin(), 1)


@pytest.mark.slow
def test_numba_cuda_bit_flipped_cubin_loads_silently(directory: Path) -> None:
    """With Numba's cache the GPU runs the changed code; here no flipped bit of the cubin is ever served."""
    kernel = compiled(open_cache(directory))
    path = path_of(directory, kernel)
    whole = path.read_bytes()
    start, size = whole.index(kernel.cubin()), len(kernel.cubin())
    events = Events()
    store = open_store(directory, emit=events)
    for offset in range(start, start + size):
        path.write_bytes(whole[:offset] + bytes([whole[offset] ^ 1 << offset % 8]) + whole[offset + 1 :])
        assert store.get(kernel.key()) is None
    assert len(events.of(EventKind.DAMAGED)) == size
    path.write_bytes(whole[: start + 64] + bytes([whole[start + 64] ^ 1]) + whole[start + 65 :])
    with pytest.warns(KCacheWarning, match="damaged"):
        assert compiled(open_cache(directory)).cubin() == kernel.cubin()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_numba_cuda_full_disk_raises_out_of_the_launch(
    directory: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """Numba's cache raises OSError; here the kernels work, with one warning for all and no partial file."""

    def full(fd: int, view: memoryview) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(publish, "write_all", full)
    cache = open_cache(directory)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        kernels = [compiled(cache, source) for source in (EMPTY, SAXPY)]

    assert all(kernel.cubin() for kernel in kernels)
    assert [each.category for each in said] == [KCacheWarning]
    assert files_below(directory / "v1" / "entries") == private_files(directory) == []


class _Bomb:
    """An object that makes a directory when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def test_numba_cuda_unpickling_runs_planted_code(directory: Path, tmp_path: Path) -> None:
    """With Numba's cache a planted file runs code in the launching process; here it is damage, in any place."""
    kernel = compiled(open_cache(directory))
    open_cache(directory).info()
    bomb = tmp_path / "exploded"
    pickled = pickle.dumps(_Bomb(str(bomb)))
    planted = files_below(directory / "v1")
    assert len({path.relative_to(directory / "v1").parts[0] for path in planted}) >= 3
    for path in planted:
        path.write_bytes(pickled)
    (directory / "v1" / "statistics").mkdir(exist_ok=True)
    (directory / "v1" / "statistics" / "total").write_bytes(pickled)
    cache = open_cache(directory)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KCacheWarning)
        again = compiled(cache)
        cache.info()
        list(cache.entries())
        cache.verify()
        cache.prune()
        cache.clear()

    assert not bomb.exists()
    assert again.cubin() == kernel.cubin()
    os.mkdir(bomb)  # the bomb itself works
    with pytest.raises(FileExistsError):
        pickle.loads(pickled)


def test_jax_torn_entry_is_never_repaired(directory: Path) -> None:
    """In JAX a torn entry fails in every later process; here the first process that reads it replaces it."""
    kernel = compiled(open_cache(directory))
    path = path_of(directory, kernel)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.warns(KCacheWarning, match="damaged"):
        compiled(open_cache(directory))

    later = open_cache(directory)
    assert compiled(later).cubin() == kernel.cubin()
    assert compiles(later) == 0
    assert later.verify() == []


def test_pytorch_stale_lock_of_the_dead_hangs_for_ever(directory: Path) -> None:
    """PyTorch's lock is a file that outlives its owner; here the lock of an ended process blocks nobody."""
    kernel = cached_kernel(EMPTY, arch="sm_90", cache=open_cache(directory))
    lock = directory / "v1" / "locks" / kernel.key()
    lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock.write_bytes(b"4711")
    os.utime(lock, (0, 0))
    kernel.compile()

    assert kernel.cubin()
    assert not lock.exists()


def test_pytorch_lock_of_a_process_that_never_ends_hangs_for_ever(directory: Path) -> None:
    """The owner is stopped in the middle of its build; a waiting process waits a bounded time, then builds and
    stores."""
    ready, started = os.pipe()
    pid = os.fork()
    if pid == 0:
        with open_store(directory).building(key_of(1)):
            os.write(started, b"x")
            signal.pause()
    try:
        assert os.read(ready, 1) == b"x"
        os.kill(pid, signal.SIGSTOP)
        store = open_store(directory, build_wait_s=0.05)
        with store.building(key_of(1)) as turn:
            assert (turn.found is None, turn.has_turn) == (True, False)
            assert store.put(small_entry(1))
        assert open_store(directory).get(key_of(1)) == small_entry(1)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ready)
        os.close(started)


@pytest.mark.parametrize("point", publish.FAULT_POINTS[:-1])
def test_deepgemm_loser_of_a_rename_race_aborts(directory: Path, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
    """Another process publishes the same key at any moment of a publish: both succeed, and a whole entry is there."""
    first, second = open_store(directory), open_store(directory)
    won: list[bool] = []

    def overtaken(name: str) -> None:
        if name == point:
            monkeypatch.setattr(faults, "hook", None)
            won.append(second.put(entry_of(1)))

    monkeypatch.setattr(faults, "hook", overtaken)

    assert first.put(entry_of(1))
    assert won == [True]
    assert first.get(key_of(1)) == second.get(key_of(1)) == entry_of(1)
    assert private_files(directory) == files_below(directory / "v1" / "quarantine") == []


@pytest.mark.parametrize("point", publish.FAULT_POINTS)
def test_triton_group_of_files_is_not_atomic(directory: Path, point: str) -> None:
    """In Triton PTX, cubin and JSON are separate files; here a kill leaves the whole old group or the whole new one."""
    old, new = (
        StoredEntry(key_of(1), {"made": made}, {"cubin": made.encode() * 999, "ptx": made.encode() * 99})
        for made in ("old", "new")
    )
    store = open_store(directory)
    store.put(old)
    assert killed_at(point, lambda: open_store(directory).put(new))
    found = open_store(directory).get(key_of(1))

    assert found == (new if point == "publish.renamed" else old)
    assert len(files_below(directory / "v1" / "entries")) == 1


def test_triton_manifests_hold_absolute_paths(directory: Path, tmp_path: Path) -> None:
    """A Triton cache that was moved or mounted elsewhere misses; here it hits, with its headers."""
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "one.h").write_text("#define ONE 1\n")
    source, options = f'#include "one.h"\n{EMPTY}', {"include_dirs": [str(tmp_path / "include")]}
    compiled(open_cache(directory), source, **options)
    shutil.move(directory, tmp_path / "moved")
    cache = open_cache(tmp_path / "moved", mode="frozen")
    compiled(cache, source, **options)

    assert compiles(cache) == 0
    assert not [path for path in files_below(tmp_path / "moved") if str(directory).encode() in path.read_bytes()]


@pytest.mark.slow
def test_numba_cuda_grows_without_bound(directory: Path) -> None:
    """Numba's cache never removes anything; here bytes and files are limited by default."""
    assert KernelCache(directory).session.local.settings.max_size_bytes == 1 << 30
    assert KernelCache(directory).session.local.settings.max_entries == 20_000
    cache = open_cache(directory, max_entries=4)
    for number in range(12):
        compiled(cache, f'extern "C" __global__ void k{number}() {{}}')
        cache.session.local.writer.limits.wait()

    assert 1 <= len(list(cache.entries())) <= 4
    cache.prune()  # the next pass counts a manifest that was written during the last one
    assert len(files_below(directory / "v1" / "manifests")) <= 4


@pytest.mark.parametrize("removed", ["entries", "tmp", "."])
@pytest.mark.parametrize("point", publish.FAULT_POINTS[:-1])
def test_cuda_core_clear_removes_the_directory_under_a_put(
    directory: Path, monkeypatch: pytest.MonkeyPatch, point: str, removed: str
) -> None:
    """cuda.core's `put` raises FileNotFoundError; here a folder removed during a put is made again, and the put
    succeeds."""
    store = open_store(directory)
    store.put(small_entry(1))
    store.writer.limits.wait()

    def vanish(name: str) -> None:
        if name == point:
            monkeypatch.setattr(faults, "hook", None)
            shutil.rmtree(directory / "v1" / removed)

    monkeypatch.setattr(faults, "hook", vanish)

    assert store.put(small_entry(2))
    assert store.get(key_of(2)) == small_entry(2)


@pytest.mark.slow
def test_cuda_core_clear_races_with_put(directory: Path) -> None:
    """Two processes put and two clear, 200 times each: every put stores, none raises, and every entry is whole."""
    events = Events()

    def work(number: int) -> None:
        store = open_store(directory, emit=events)
        for each in range(200):
            if number % 2:
                store.clear()
            else:
                assert store.put(small_entry(each))
        assert events.of(EventKind.TROUBLE) == events.of(EventKind.DAMAGED) == []

    with children(4, work):
        pass
    assert open_store(directory).verify() == []


def test_cuda_core_failing_put_drops_the_compiled_object(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In cuda.core the error replaces the code; here the code is used, also by the next kernel object."""

    def fail(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("numba_kcache.store.writing.publish", fail)
    cache = open_cache(directory)
    with pytest.warns(KCacheWarning, match="continues after a failure"):
        kernel = compiled(cache)

    assert kernel.cubin()
    assert compiled(cache).cubin() == kernel.cubin()
    assert compiles(cache) == 1


@pytest.mark.slow
def test_cupy_import_fails_where_the_cache_directory_cannot_be_made() -> None:
    """CuPy's `import` raises; here the directory is first used by the first kernel, which then works without it."""
    code = """
import sys, numba_kcache
kernel = numba_kcache.cached_kernel(sys.argv[1], arch="sm_90")
print(len(kernel.cubin()) > 0)
"""
    for place in ("/proc/no/such/place", "/dev/null/cache"):
        assert in_python(code, EMPTY, NUMBA_KCACHE_DIR=place).strip() == "True"
