"""Numba kernels under captures, threads, forks and `cuda.close()`, as the driver sees them: no kernel runs."""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support import numba_server
from tests.support.fake_driver import build, environment, needs_fake_driver, read_log

pytestmark = [needs_fake_driver, pytest.mark.slow]

HEAD = """
import os, sys, threading, warnings
warnings.simplefilter("ignore")
import numpy as np
from numba import cuda
from numba_kcache import KernelCache, LaunchError, cached_kernel

@cached_kernel(cache=KernelCache(sys.argv[1]))
def kernel(x, n, f):
    x[0] = n * f

def array():
    return cuda.to_device(np.ones(8, "f4"))
"""


def seen(tmp_path: Path, script: str, *events: str) -> Any:
    """Lines that the child printed, and the driver's events of these kinds."""
    log = tmp_path / "log"
    printed = numba_server.in_turn(HEAD + script, tmp_path / "cache", environment(build(), log=log))
    return printed, read_log(log, *events)


def test_first_launch_inside_a_capture_is_captured(tmp_path: Path) -> None:
    """The kernel is compiled and loaded outside the capture, which stays valid; the same holds for a hit in the second
    process."""
    script = """
import cuda.bindings.driver as driver
def value(answer):
    assert answer[0] == 0, answer
    return answer[1]
x, stream = array(), cuda.stream()
handle = stream.handle
driver.cuStreamBeginCapture(handle, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
for _ in range(12):
    kernel[1, 64, stream](x, 1, 2.5)
exec = value(driver.cuGraphInstantiate(value(driver.cuStreamEndCapture(handle)), 0))
value((*driver.cuGraphLaunch(exec, handle), 0))
"""
    for _ in range(2):
        (tmp_path / "log").unlink(missing_ok=True)

        _, events = seen(tmp_path, script, "capture_begin", "load", "launch", "capture_end", "graph_launch")

        kinds = [each["event"] for each in events]
        assert kinds == ["capture_begin", "load", *["launch"] * 12, "capture_end", "graph_launch"]
        assert all(each["result"] == 0 for each in events)
        assert all(each["captured"] for each in events if each["event"] == "launch")


def test_threads_that_launch_at_once_each_pass_their_own(tmp_path: Path) -> None:
    """Eight threads, from the first launch on, through one bound launch and through new grids: no mixed parameters."""
    script = """
x, meet, failed = array(), threading.Barrier(8), []

def work(number):
    try:
        meet.wait()
        bound = kernel[7, 32]
        for turn in range(60):
            bound(x, number, float(number))
            kernel[100 + turn, 32](x, number, float(number))
            kernel[7, 32](x, number, np.float32(number))
    except BaseException as error:
        failed.append(error)

threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failed, failed
"""
    _, launches = seen(tmp_path, script, "launch")

    counted: Counter[int] = Counter()
    for each in launches:
        *_, n, f = (bytes.fromhex(word) for word in each["parameters"])
        number = struct.unpack("<q", n)[0]
        assert struct.unpack("<d" if len(f) == 8 else "<f", f)[0] == number
        counted[number] += 1
    assert counted == dict.fromkeys(range(8), 180)


def test_fork_is_a_clear_error_in_the_child(tmp_path: Path) -> None:
    """A bound launch, a new grid and host arrays raise in the child; the parent works on."""
    script = """
x, h = array(), np.ones(8, "f4")
for _ in range(12):
    kernel[1, 64](x, 1, 1.0)
bound = kernel[1, 64]
sys.stdout.flush()
if not (child := os.fork()):
    for launch in (lambda: bound(x, 1, 1.0), lambda: kernel[2, 64](x, 1, 1.0), lambda: kernel[1, 64](h, 1, 1.0)):
        try:
            launch()
        except LaunchError as error:
            print(str(error).splitlines()[0], flush=True)
    os._exit(0)
os.waitpid(child, 0)
bound(x, 1, 1.0)
"""
    said, launches = seen(tmp_path, script, "launch")

    message = "cannot launch in a forked process: CUDA was initialised before the fork, and does not survive it"
    assert said.splitlines() == [message] * 3
    assert len(launches) == 13


def test_recompiled_kernel_is_launched_as_it_is_now(tmp_path: Path) -> None:
    """A global has its value of the first launch; after `recompile()`, its present value."""
    script = """
@cached_kernel(cache=KernelCache(sys.argv[1]))
def reads(x):
    x[0] = FACTOR
x = array()
for FACTOR in (2.0, 3.0):
    for _ in range(3):
        reads[1, 1](x)
reads.recompile()
for _ in range(3):
    reads[1, 1](x)
"""
    _, events = seen(tmp_path, script, "load", "launch")

    assert [each["event"] for each in events] == ["load", *["launch"] * 6, "load", *["launch"] * 3]


def test_kernel_survives_cuda_close(tmp_path: Path) -> None:
    """A launch of host arrays makes the context again, which Numba itself does not; then device arrays work too."""
    script = """
bound, host = kernel[1, 64], np.ones(8, "f4")
for _ in range(3):
    bound(host, 1, 1.0)
    x = array()
    for _ in range(10):
        bound(x, 1, 1.0)
    kernel[2, 64](x, 1, 1.0)
    del x
    cuda.close()
"""
    _, events = seen(tmp_path, script, "launch")

    assert [each["result"] for each in events] == [0] * 36
