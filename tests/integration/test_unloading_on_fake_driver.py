"""Modules that are no longer referenced are unloaded at a later load, and not before their launches are done."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.support.fake_driver import build, environment, needs_fake_driver, read_log, run

pytestmark = [needs_fake_driver, pytest.mark.slow]

HEAD = """
import gc, sys, threading
from cuda.bindings import driver
from numba_kcache import KernelCache, cached_kernel, cached_module
cache = KernelCache(sys.argv[1])
driver.cuInit(0)
contexts = [driver.cuDevicePrimaryCtxRetain(number)[1] for number in range(driver.cuDeviceGetCount()[1])]
driver.cuCtxSetCurrent(contexts[0])

def made(number):
    text = 'extern "C" __global__ void k(int *out) { *out = %d; }' % number
    return cached_kernel(text, cache=cache)

def load(number):
    "Load another module, and let go of it."
    made(number)[1, 32](None)
    gc.collect()

def note(text):
    driver.cuCtxSetLimit(driver.CUlimit.CU_LIMIT_STACK_SIZE, 4096 + text)  # an event in the log
"""


def events(tmp_path: Path, script: str, devices: tuple[int, ...] = (90,)) -> list[str]:
    """Loads, unloads and notes of a child, in their order: `load`, `unload`, `note 1`."""
    log = tmp_path / "log"
    run(["-c", HEAD + script, str(tmp_path / "cache")], env=environment(build(), log=log, devices=devices))
    found = read_log(log, "load", "unload", "set_limit", "launch")
    assert {each["result"] for each in found} == {0}
    return [each["event"] for each in found if each["event"] != "launch"]


def test_dropped_module_is_unloaded_at_the_next_load(tmp_path: Path) -> None:
    """The module stays loaded when its kernel is collected, until the next kernel is loaded."""
    script = """
kernel = made(1)
kernel[1, 32](None)
del kernel
gc.collect()
note(1)
load(2)
"""
    assert events(tmp_path, script) == ["load", "set_limit", "unload", "load"]


def test_loop_of_distinct_kernels_keeps_one_module(tmp_path: Path) -> None:
    """Each module is unloaded before the next but one is loaded, whichever thread launched it."""
    script = """
for number in range(5):
    thread = threading.Thread(target=lambda: (driver.cuCtxSetCurrent(contexts[0]), load(number)))
    thread.start()
    thread.join()
"""
    found = Counter(events(tmp_path, script))

    assert (found["load"], found["unload"]) == (5, 4)


def test_threads_that_load_and_drop_at_once_have_all_unloaded(tmp_path: Path) -> None:
    """Each module is unloaded once, by the thread that loads next; no launch uses an unloaded module."""
    script = """
def work(first):
    driver.cuCtxSetCurrent(contexts[0])
    for number in range(first, first + 5):
        load(number)

threads = [threading.Thread(target=work, args=(first,)) for first in (10, 20, 30, 40)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
gc.collect()
load(1)
"""
    found = Counter(events(tmp_path, script))

    assert (found["load"], found["unload"]) == (21, 20)


@pytest.mark.parametrize(
    "how", ["launch = kernel[1, 32]", "handle = kernel.handle", "kernel[1, 32, int(stream)](None)"]
)
def test_module_that_is_held_or_given_out_stays(tmp_path: Path, how: str) -> None:
    """A module stays if a bound launch or a handle refers to it, or if it was launched on a stream of the user's."""
    script = f"""
_, stream = driver.cuStreamCreate(0)
kernel = made(1)
kernel[1, 32](None)
{how}
del kernel
gc.collect()
load(2)
load(3)
"""
    assert Counter(events(tmp_path, script)) == {"load": 3, "unload": 1}


@pytest.mark.parametrize("forgets", ["kernel.forget()", "cache.clear()"])
def test_module_that_was_forgotten_is_unloaded(tmp_path: Path, forgets: str) -> None:
    """A module that the next launch replaces is unloaded at the load after it."""
    script = f"""
kernel = made(1)
for _ in range(3):
    kernel[1, 32](None)
    {forgets}
kernel[1, 32](None)
gc.collect()
load(2)
"""
    found = Counter(events(tmp_path, script))

    assert found["load"] >= 2
    assert found["unload"] == found["load"] - 2


def test_module_launched_under_capture_stays(tmp_path: Path) -> None:
    """The graph has its functions; another unreferenced module is unloaded after the capture."""
    script = """
from numba import cuda
stream = cuda.stream()
cuda.current_context()
handle = driver.CUstream(int(stream.handle))
load(1)
kernel = made(2)
kernel[1, 32, stream](None)
driver.cuStreamBeginCapture(handle, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
kernel[1, 32, stream](None)
kernel[1, 32, stream](None)
driver.cuStreamEndCapture(handle)
del kernel
gc.collect()
for number in range(3, 7):
    load(number)
cuda.current_context().deallocations.clear()
"""
    found = Counter(events(tmp_path, script))

    assert found == {"load": 6, "unload": 4}


def test_nothing_is_unloaded_while_a_stream_is_captured(tmp_path: Path) -> None:
    """A capture of any stream that waits for the default one delays unloading, and is not ended by it."""
    script = """
gc.disable()  # a collection in the loop would unload some of the three before the capture
_, stream = driver.cuStreamCreate(0)
for number in range(3):
    made(number)[1, 32](None)
gc.collect()
driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
made(100)[1, 32, 2](None)
assert driver.cuStreamEndCapture(stream)[0] == 0
note(1)
load(101)
load(102)
"""
    found = events(tmp_path, script)
    end = found.index("set_limit")

    assert "unload" not in found[:end]
    assert found[end:].count("unload") == 4


def test_modules_of_several_devices_go_in_their_own_context(tmp_path: Path) -> None:
    """A load on one device unloads no module of another."""
    script = """
load(1)
driver.cuCtxSetCurrent(contexts[1])
load(2)
note(1)
load(3)
note(2)
driver.cuCtxSetCurrent(contexts[0])
load(4)
"""
    assert events(tmp_path, script, devices=(90, 90)) == [
        "load", "load", "set_limit", "unload", "load", "set_limit", "unload", "load",
    ]  # fmt: skip


def test_module_of_a_context_that_was_reset_is_left_alone(tmp_path: Path) -> None:
    """The handle is invalid after the reset, so the driver is not called to unload it."""
    script = """
load(1)
driver.cuDevicePrimaryCtxReset(0)
driver.cuCtxSetCurrent(driver.CUcontext(0))
contexts[0] = driver.cuDevicePrimaryCtxRetain(0)[1]
driver.cuCtxSetCurrent(contexts[0])
note(1)
load(2)
load(3)
"""
    found = events(tmp_path, script)

    assert found[found.index("set_limit") :] == ["set_limit", "load", "unload", "load"]
