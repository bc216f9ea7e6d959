"""The adapters in six processes at once: on an empty cache, on damaged entries, and beside a tier that does not
answer."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from numba_kcache import KernelCache
from tests.support import fake_driver, numba_server
from tests.support.compiling import EMPTY, ROOT
from tests.support.redis_server import free_port
from tests.support.stores import file_of

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::numba_kcache.KCacheWarning")]

FORKS = """
import os, sys, traceback
from pathlib import Path
log, cubin = Path(sys.argv[1]), Path(sys.argv[2]).read_bytes()

def note(count=1):
    with log.open("a") as file:
        file.write("x" * count)

IMPORTS

def child():
    BODY

for _ in range(6):
    if not os.fork():
        try:
            child()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
assert not any([os.wait()[1] for _ in range(6)])
"""

TRITON = (
    """
import hashlib, json, os
from numba_kcache.adapters.triton import CacheManager
from tests.support import fake_triton

fake_triton.add()
os.environ["TRITON_CACHE_DIR"] = os.path.dirname(sys.argv[1])

key = hashlib.sha256(b"a kernel").hexdigest()
metadata = {"hash": key, "name": "k", "target": {"backend": "cuda", "arch": 90}}
files = {"k.ttir": b"module {}", "k.cubin": cubin, "k.json": json.dumps(metadata).encode()}
""",
    """
    manager = CacheManager(key)
    group = manager.get_group("k.json")
    if group is None:
        note()
        group = {name: manager.put(data, name) for name, data in files.items()}
        manager.put_group("k.json", group)
    assert {name: Path(path).read_bytes() for name, path in group.items()} == files
""",
)

PROGRAMS = (
    "from numba_kcache.adapters import ProgramCache",
    """
    programs = ProgramCache()
    found = programs.get(b"key")
    if found is None:
        note()
        programs[b"key"] = cubin
    assert found in (None, cubin) and programs[b"key"] == cubin
""",
)

COMPUTE = (
    """
import numba_kcache, numpy as np
numba_kcache.install(cuda_compute=True)
from cuda import compute
x = compute.ProxyArray(np.float32)
""",
    """
    made = compute.make_unary_transform(d_in=x, d_out=x, op=compute.OpKind.NEGATE, compute_capability=90)
    assert type(made).__name__ == "_UnaryTransform" and len(made.build_results) == 1
    note(numba_kcache.info("process").misses)
""",
)


@pytest.fixture(scope="module")
def cubin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a kernel's code."""
    path = tmp_path_factory.mktemp("code") / "k.cubin"
    path.write_bytes(KernelCache(None, mode="off").get_or_compile(EMPTY, "k", arch="sm_90").cubin())
    return path


def run(program: tuple[str, str], log: Path, cubin: Path, settings: Mapping[str, str]) -> int:
    """Run six processes at once, each of which checks its result; return how many of them compiled."""
    log.write_text("")
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    text = FORKS.replace("IMPORTS", program[0]).replace("    BODY", program[1])
    words, env = ["-c", text, str(log), str(cubin)], {**os.environ, **settings, "PYTHONPATH": path}
    if program is COMPUTE:
        numba_server.output(words, env, "cuda.compute")
    else:
        done = subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
    return len(log.read_text())


def damage(directory: Path) -> None:
    """Flip a bit in the middle of the only stored entry."""
    cache = KernelCache(directory)
    (entry,) = cache.entries()
    file = file_of(cache.session.local, entry.key)  # type: ignore[arg-type]
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def in_each_trouble(program: tuple[str, str], tmp_path: Path, cubin: Path, settings: Mapping[str, str]) -> list[int]:
    """Numbers of compiles: with an empty cache and a dead tier; with a damaged entry; and with a sound one."""
    directory, dead = tmp_path / "cache", f"redis://127.0.0.1:{free_port()}/0"
    settings = {**settings, "NUMBA_KCACHE_DIR": str(directory), "NUMBA_KCACHE_DURABILITY": "none"}
    counts = [run(program, tmp_path / "log", cubin, {**settings, "NUMBA_KCACHE_TIERS": dead})]
    damage(directory)
    counts += [run(program, tmp_path / "log", cubin, settings) for _ in range(2)]
    assert KernelCache(directory).verify() == []
    return counts


def test_six_processes_compile_a_group_of_triton_once(tmp_path: Path, cubin: Path) -> None:
    """Each gets the files as they were put; one process compiles for the empty cache, and one for the damaged entry."""
    assert in_each_trouble(TRITON, tmp_path, cubin, {}) == [1, 1, 0]


@pytest.mark.skipif(importlib.util.find_spec("cuda.core") is None, reason="cuda-core is not installed")
def test_six_processes_have_their_programs(tmp_path: Path, cubin: Path) -> None:
    """Each gets its code: cuda.core looks up and stores in separate calls, so several may compile; with a stored
    program none does."""
    cold, healing, warm = in_each_trouble(PROGRAMS, tmp_path, cubin, {})
    assert 1 <= cold <= 6
    assert 1 <= healing <= 6
    assert warm == 0


@pytest.mark.skipif(importlib.util.find_spec("cuda.compute") is None, reason="cuda-cccl is not installed")
def test_six_processes_build_an_algorithm_once(tmp_path: Path, cubin: Path) -> None:
    """One process builds a missing algorithm of cuda.compute, and one replaces a damaged one."""
    folder = fake_driver.build()
    if folder is None:
        pytest.skip("no C compiler for the fake driver")
    assert in_each_trouble(COMPUTE, tmp_path, cubin, fake_driver.environment(folder)) == [1, 1, 0]
