"""Loaded modules of a process: one for each artifact and device, for any number of threads and kernel objects."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.support.compiling import SAXPY
from tests.support.fake_driver import build, environment, needs_fake_driver, read_log, run

pytestmark = needs_fake_driver

CHILD = f"""
import sys, threading
from numba import cuda
from numba_kcache import KernelCache, cached_kernel
cache = KernelCache(sys.argv[1])
kernels = [cached_kernel({SAXPY!r}, cache=cache) for _ in range(4)]
barrier, gpus = threading.Barrier(16), list(cuda.gpus)  # Numba's list of them is not made by two threads at once

def work(number):
    barrier.wait(60)
    with gpus[number % 2]:
        for kernel in kernels[number % 4:] + kernels[:number % 4]:
            kernel[1, 32](2.0, None, None, 0)

threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
info = cache.info("process")
print(info.compiles, info.misses, info.entries)
"""


@pytest.mark.slow
def test_threads_and_kernels_of_one_artifact_load_it_once_per_device(tmp_path: Path) -> None:
    """16 threads, 4 kernel objects of one source, 2 devices: one compile, one entry, 2 modules, 64 launches."""
    log = tmp_path / "log"
    done = run(["-c", CHILD, str(tmp_path / "cache")], env=environment(build(), log=log, devices=(90, 90)))
    events = read_log(log, "load", "launch")

    assert done.stdout.split() == ["1", "1", "1"]
    assert Counter((each["event"], each["device"]) for each in events) == {
        ("load", 0): 1,
        ("load", 1): 1,
        ("launch", 0): 32,
        ("launch", 1): 32,
    }
    assert {each["result"] for each in events} == {0}
