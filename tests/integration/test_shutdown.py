"""Launches at the interpreter's exit: from atexit, `__del__` and daemon threads; and the garbage collections there."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from numba_kcache import KernelCache
from tests.support import numba_server
from tests.support.compiling import SAXPY
from tests.support.fake_driver import build, environment, needs_fake_driver, read_log, run

pytestmark = [needs_fake_driver, pytest.mark.slow]

PROGRAM = f"""
import atexit, builtins, sys, threading, warnings
warnings.simplefilter("ignore")
where, launches = sys.argv[1], int(sys.argv[2])

def late():
    source[1, 64](*null)
    source[2, 64](*null)
    numbas[1, 32](x)
    print("launched")

if where == "atexit, first":
    atexit.register(late)  # runs after all that numba and cuda registered
import numpy as np
from numba import cuda
from numba_kcache import LaunchError, cached_kernel

source, null = cached_kernel({SAXPY!r}), (2.0, None, None, 0)

@cached_kernel
def numbas(x):
    x[0] = 1

x = cuda.to_device(np.ones(8, "f4"))
for _ in range(launches):
    source[1, 64](*null)
    numbas[1, 32](x)

class Last:
    def __init__(self):
        self.kept = [lambda k=each, c=config, a=args: k[c](*a) for each, config, args in (
            (source, (1, 64), null), (source, (3, 64), null), (numbas, (1, 32), (x,)), (numbas, (3, 32), (x,)))]
        self.error = LaunchError

    def __del__(self):
        for launch in self.kept:
            try:
                launch()
            except self.error as error:
                print(str(error).splitlines()[0], flush=True)
            else:
                print("launched", flush=True)

def work():
    while True:
        source[1, 64](*null)
        numbas[1, 32](x)
        at_work.set()

if where == "atexit, last":
    atexit.register(late)
elif where == "__del__":
    builtins.last = Last()  # outlives every module
elif where == "threads":
    at_work = threading.Event()
    for _ in range(3):
        threading.Thread(target=work, daemon=True).start()
    at_work.wait()
"""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with the compiled kernels of the program."""
    cache = tmp_path_factory.mktemp("filled")
    numba_server.output(["-c", PROGRAM, "nowhere", "1"], environment(build()) | {"NUMBA_KCACHE_DIR": str(cache)})
    return cache


@pytest.mark.parametrize("launches", [1, 12], ids=["interpreted", "compiled"])
@pytest.mark.parametrize("where", ["atexit, first", "atexit, last", "__del__", "threads"])
def test_end_of_the_program_brings_no_surprise(tmp_path: Path, filled: Path, where: str, launches: int) -> None:
    """A launch at exit runs or raises an error with a message; nothing else is printed, and the exit status is 0.

    The kernels are hits in `filled`, except in the case "threads", which compiles them: a compile leaves more to end.
    """
    log = tmp_path / "log"
    cache = tmp_path / "cache" if where == "threads" else filled
    surroundings = environment(build(), log=log) | {"NUMBA_KCACHE_DIR": str(cache)}

    done = run(["-c", PROGRAM, where, str(launches)], env=surroundings)

    assert done.stderr == ""
    said = done.stdout.splitlines()
    if where.startswith("atexit"):
        assert said == ["launched"]
    elif where == "__del__":
        assert len(said) == 4
        assert set(said) <= {"launched", "cannot launch: the interpreter is shutting down"}
    assert {each["result"] for each in read_log(log, "launch")} == {0}


FORKING = f"""
import os, sys
from numba_kcache import KernelCache, cached_kernel

cache = KernelCache(sys.argv[1])
cached_kernel({SAXPY!r}, arch="sm_90", cache=cache).compile()
child = os.fork()
if not child:
    cached_kernel({SAXPY!r}, arch="sm_80", cache=cache).compile()
    print(cache.info("process").compiles, cache.info("process").misses)
    sys.exit()  # as a program ends, with all that is to be done then
os.waitpid(child, 0)
print(cache.info("process").compiles)
"""


def test_what_was_counted_before_a_fork_is_saved_once(tmp_path: Path) -> None:
    """The parent saves its counts from before the fork; the child saves only its own."""
    done = run(["-c", FORKING, str(tmp_path)], env=environment(build()))
    saved = KernelCache(tmp_path).info().to_dict()

    assert done.stdout.split() == ["1", "1", "1"]
    assert (saved["compiles"], saved["misses"]) == (2, 2)


COLLECTED = f"""
import gc, sys, warnings
warnings.simplefilter("ignore")
import numpy as np
from numba import cuda
program, launches = sys.argv[1], int(sys.argv[2])
x = cuda.to_device(np.ones(8, "f4"))
if program == "source":
    from numba_kcache import cached_kernel

    source = cached_kernel({SAXPY!r})
    for _ in range(launches):
        source[1, 64](2.0, x, x, 8)
elif program != "none":
    import numba_kcache

    if program == "install":
        numba_kcache.install()

    @(cuda.jit(cache=True) if program == "install" else numba_kcache.cached_kernel)
    def numbas(x):
        x[0] = 1

    for _ in range(launches):
        numbas[1, 32](x)
gc.set_debug(gc.DEBUG_STATS)
"""


@pytest.fixture(scope="module")
def collections(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[int]]:
    """Return the numbers of the collections at exit that free most of the modules of a program on Numba's arrays."""
    surroundings = environment(build()) | {"NUMBA_KCACHE_DIR": str(tmp_path_factory.mktemp("cache"))}

    @functools.cache
    def fill(program: str) -> None:
        numba_server.output(["-c", COLLECTED, program, "2"], surroundings)

    @functools.cache
    def large(program: str, launches: int) -> list[int]:
        fill(program)
        done = run(["-c", COLLECTED, program, str(launches)], env=surroundings)
        freed = [int(each) for each in re.findall(r"(\d+) unreachable", done.stderr)]
        return [index for index, count in enumerate(freed) if count > 10_000]

    return large


@pytest.mark.parametrize(
    ("program", "launches"), [("source", 1), ("source", 12), ("numba", 1), ("numba", 12), ("install", 1)]
)
def test_exit_frees_modules_as_early_as_without_a_kernel(
    collections: Callable[..., list[int]], program: str, launches: int
) -> None:
    """A reference that the garbage collector cannot see would keep all of Numba alive, and cost 50 ms at exit."""
    assert collections(program, launches) == collections("none", 0)
