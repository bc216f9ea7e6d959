"""Run an example script as two processes with one cache: the second must compile nothing."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

from numba import cuda

import numba_kcache


def run(launch_and_check: Callable[[], None], *kernels: Any) -> None:
    """Run the calling script twice; each process uses the kernels and prints the number of compiles and hits.

    Args:
        launch_and_check: Launches the kernels on the device and compares their results with NumPy.
        kernels: The kernels, which are only compiled, for sm_90, if there is no device.
    """
    if sys.argv[-1] in ("first", "second"):
        info = one_process(f"{sys.argv[-1]} process", launch_and_check, kernels)
        if sys.argv[-1] == "second":
            assert info.compiles == 0, "the second process must be served from disk"
            print(numba_kcache.info())
        return
    with tempfile.TemporaryDirectory() as directory:
        for which in ("first", "second"):
            environment = {**os.environ, "NUMBA_KCACHE_DIR": directory}
            subprocess.run([sys.executable, *sys.argv, which], env=environment, check=True)


def one_process(title: str, launch_and_check: Callable[[], None], kernels: Sequence[Any]) -> numba_kcache.CacheInfo:
    """Compile or load the kernels, and launch them if there is a device; return the counts of this process."""
    start = time.perf_counter()
    if cuda.is_available():
        launch_and_check()
        what = "launched and checked against NumPy"
    else:
        for kernel in kernels:
            kernel.compile(arch="sm_90")
        what = "no CUDA device: compiled for sm_90, launches skipped"
    seconds = time.perf_counter() - start
    info = numba_kcache.info("process")
    print(f"{title}: {seconds * 1e3:.1f} ms, {info.compiles} compiles, {info.hits} hits ({what})", flush=True)
    return info
