"""Streams of launches as the driver sees them, of kernels of every kind: no kernel runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import numba_server
from tests.support.compiling import SAXPY
from tests.support.fake_driver import build, environment, needs_fake_driver, read_log

pytestmark = [needs_fake_driver, pytest.mark.slow]

HEAD = f"""
import gc, os, sys, warnings
warnings.simplefilter("ignore")
from types import ModuleType, SimpleNamespace
import numpy as np
from cuda.bindings import driver
from numba import cuda
import numba_kcache
from numba_kcache import *
cache, SAXPY = KernelCache(sys.argv[1]), {SAXPY!r}
one, two = cuda.stream(), cuda.stream()
print(int(one.handle), int(two.handle))

class Foreign:
    "An array of a library that is known by its array interface."
    def __init__(self, stream=None):
        self.array = cuda.device_array(64, np.float32)
        named = {{}} if stream is None else {{"stream": int(stream.handle)}}
        self.__cuda_array_interface__ = {{**self.array.__cuda_array_interface__, "version": 3, **named}}

class CupyArray(Foreign):
    "An array of a library with a current stream."

cupy = sys.modules["cupy"] = ModuleType("cupy")
cupy.ndarray, current = CupyArray, one
cupy.cuda = SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=int(current.handle)))

def on(stream):
    return cuda.device_array(64, np.float32, stream=stream)
"""

KINDS = {
    "cuda": "kernel = cached_kernel(SAXPY, cache=cache)\nlaunch = lambda k, x, y: k(2.0, x, y, 64)",
    "numba": "@cached_kernel(cache=cache)\ndef kernel(a, x, y, n): y[0] = a * x[0] + n\n"
    "launch = lambda k, x, y: k(2.0, x, y, 64)",
    "numba, specialised": "@cached_kernel(cache=cache)\ndef made(a, x, y, n): y[0] = a * x[0] + n\n"
    "kernel = made.specialize(2.0, on(one), on(one), 64)\nlaunch = lambda k, x, y: k(2.0, x, y, 64)",
    "installed": "numba_kcache.configure(directory=sys.argv[1])\nnumba_kcache.install()\n"
    "@cuda.jit(cache=True)\ndef kernel(a, x, y, n): y[0] = a * x[0] + n\n"
    "launch = lambda k, x, y: k(2.0, x, y, 64)",
    "all": "numba_kcache.configure(directory=sys.argv[1])\nnumba_kcache.install(all=True)\n"
    "@cuda.jit\ndef kernel(a, x, y, n): y[0] = a * x[0] + n\n"
    "launch = lambda k, x, y: k(2.0, x, y, 64)",
    "all, later": "@cuda.jit\ndef kernel(a, x, y, n): y[0] = a * x[0] + n\n"
    "numba_kcache.configure(directory=sys.argv[1])\nnumba_kcache.install(all=True)\n"
    "launch = lambda k, x, y: k(2.0, x, y, 64)",
    "all, no decorator": "numba_kcache.configure(directory=sys.argv[1])\nnumba_kcache.install(all=True)\n"
    "from numba.cuda.dispatcher import CUDADispatcher\n"
    "def kernel(a, x, y, n): y[0] = a * x[0] + n\n"
    "kernel = CUDADispatcher(kernel, targetoptions={'debug': False, 'opt': True, 'lto': False, 'extensions': []})\n"
    "launch = lambda k, x, y: k(2.0, x, y, 64)",
}
"""A kernel of each kind, and a launch of it."""


def seen(tmp_path: Path, script: str, kind: str = "cuda") -> list[Any]:
    """What the driver was asked for, the program's streams being 1 and 2: the stream of each launch, pairs of streams
    of which the second waits for the first. Waits of the host are not listed."""
    log = tmp_path / "log"
    log.unlink(missing_ok=True)
    said = numba_server.in_turn(HEAD + KINDS[kind] + "\n" + script, tmp_path / "cache", environment(build(), log=log))
    names = {0: 0, 1: 0} | {int(handle): number for number, handle in enumerate(said.split()[:2], 1)}
    found, recorded = list[Any](), dict[int, int]()
    for each in read_log(log, "launch", "event_record", "stream_wait"):
        stream = names.get(each["stream"], each["stream"])
        if each["event"] == "event_record":
            recorded[each["event_handle"]] = stream
        else:
            found.append(stream if each["event"] == "launch" else (recorded[each["event_handle"]], stream))
    return found


@pytest.mark.parametrize("kind", ["cuda", "numba", "numba, specialised"])
def test_launch_goes_to_the_stream_of_its_arrays(tmp_path: Path, kind: str) -> None:
    """Numba's arrays with theirs, other libraries' with the current one; the first decides, the others are ordered on
    both sides; from the first launch on, also by `forall` and with 0 in third place."""
    script = """
for _ in range(3):
    launch(kernel[1, 64], on(one), on(one))
    launch(kernel[1, 64, 0, 16], on(two), on(two))
launch(kernel.forall(64), CupyArray(), CupyArray())
launch(kernel[2, 64], on(two), CupyArray())
launch(kernel[2, 64], Foreign(two), CupyArray())
launch(kernel[2, 64], Foreign(two), Foreign(two))
launch(kernel[2, 64, two], on(one), on(0))
launch(kernel[2, 64], on(0), on(0))
"""
    for _ in range(2):  # compiled, and from the store
        assert seen(tmp_path, script, kind) == [
            1, 2, 1, 2, 1, 2, 1, (1, 2), 2, (2, 1), (2, 1), 1, (1, 2), 2, (1, 2), 2, 0,
        ]  # fmt: skip


def test_launch_by_numba_itself_is_ordered_alike(tmp_path: Path) -> None:
    """Host arrays go through Numba's dispatcher, which takes them on the default stream alone."""
    script = "launch(kernel[1, 64], np.ones(64, 'f4'), on(two))\nlaunch(kernel[1, 64], np.ones(64, 'f4'), CupyArray())"

    assert seen(tmp_path, script, "numba") == [(2, 0), 0, (0, 2), (1, 0), 0, (0, 1)]


@pytest.mark.parametrize("kind", ["installed", "all", "all, later", "all, no decorator"])
def test_installed_kernels_keep_the_default_stream(tmp_path: Path, kind: str) -> None:
    """Numba's own arrays ask for nothing, as in Numba; foreign ones are waited for, and wait, from the first launch on.
    A stream that is given waits for producers alone."""
    script = """
launch(kernel[1, 64], on(two), CupyArray())
launch(kernel[1, 64], on(one), on(two))
launch(kernel[1, 64, two], on(two), CupyArray())
"""
    assert seen(tmp_path, script, kind) == [(1, 0), 0, (0, 1), 0, (1, 2), 2]


def test_capture_of_the_arrays_stream_takes_the_launch_in(tmp_path: Path) -> None:
    """Whichever argument it belongs to; no stream outside is made to wait, and the capture stays valid."""
    script = """
y, x = CupyArray(), on(two)
launch(kernel[1, 64], y, y)
driver.cuStreamBeginCapture(one.handle, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
launch(kernel[1, 64], x, y)
launch(kernel[1, 64], on(0), y)
assert driver.cuStreamEndCapture(one.handle)[0] == 0
launch(kernel[1, 64], x, y)
"""
    assert seen(tmp_path, script) == [1, (2, 1), 1, 1, (1, 2), 2, (2, 1)]


def test_time_is_measured_on_the_stream_of_the_arrays(tmp_path: Path) -> None:
    """Events on another stream would measure nothing."""
    script = "import numba_kcache\ny = on(one)\nkernel.time(1, 64, 2.0, y, y, 64, repeats=2)"
    log = tmp_path / "log"
    seen(tmp_path, script)

    streams = [each["stream"] for each in read_log(log, "event_record", "launch")]
    assert len(set(streams)) == 1
    assert streams[0] > 2


UNLOAD = """
stream = cuda.stream()
kernel[1, 64](2.0, on(stream), on(stream), 64)
del stream
{how}
gc.collect()
cuda.current_context().deallocations.clear()
others = [cached_kernel(SAXPY + f"// {{number}}", cache=cache) for number in range(3)]
for other in others:  # all stay: a collection that runs by itself would drop those of earlier loads
    other[1, 64](2.0, None, None, 0)
cuda.current_context().deallocations.clear()
"""


@pytest.mark.parametrize("how", ["del kernel, launch", "kernel.forget(); kernel[1, 64](2.0, None, None, 0)"])
def test_module_launched_on_a_chosen_stream_stays(tmp_path: Path, how: str) -> None:
    """Nothing tells the end of its work once the stream is destroyed."""
    script = HEAD + KINDS["cuda"] + UNLOAD.format(how=how)
    log = tmp_path / "log"
    numba_server.in_turn(script, tmp_path / "cache", environment(build(), log=log))

    assert not read_log(log, "unload")


def test_array_over_dlpack_is_kept_until_the_kernel_has_run(tmp_path: Path) -> None:
    """An array that is deleted right after the launch keeps its memory; a later launch frees it."""
    script = """
import weakref
freed, told = [], set()
class Exporter:
    "Like JAX's arrays: an interface without a stream, and DLPack."
    def __init__(self):
        self.array = np.ones(64, np.float32)
        weakref.finalize(self.array, freed.append, 1)
        self.__cuda_array_interface__ = {"shape": (64,), "typestr": "<f4", "data": (4096, True), "version": 2}
    def __dlpack_device__(self):
        return 13, 0
    def __dlpack__(self, *, stream, max_version=None):
        told.add(stream)
        return self.array.__dlpack__(max_version=max_version)

ready, pending = [600], []
from numba_kcache import launch as room
query = room.bindings().cuEventQuery
room.bindings().__dict__["cuEventQuery"] = lambda event: (ready[0],)
kernel = cached_kernel('extern "C" __global__ void k(const float *x) {}', cache=cache)
for _ in range(5):
    kernel[1, 64](Exporter())
gc.collect()
print(len(freed), end=" ")
ready[0] = 0
kernel[1, 64](Exporter())
gc.collect()
print(len(freed), told)
"""
    said = numba_server.in_turn(HEAD + script, tmp_path / "cache", environment(build()))

    assert said.splitlines()[1] == "0 5 {1}"
