"""Launch attributes, captures, several devices and forks, as the driver sees them: no kernel runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import numba_server
from tests.support.compiling import SAXPY
from tests.support.echo import CASES
from tests.support.fake_driver import build, environment, needs_fake_driver, read_log

pytestmark = [needs_fake_driver, pytest.mark.slow]

HEAD = f"""
import os, sys, warnings
warnings.simplefilter("ignore")
import numpy as np
from numba import cuda
from numba_kcache import *
cache, SAXPY = KernelCache(sys.argv[1]), {SAXPY!r}
null = (2.0, None, None, 0)
"""

DYNAMIC_SHARED, CARVEOUT, LARGE_CLUSTERS = 8, 9, 14


def seen(tmp_path: Path, script: str, *events: str, devices: tuple[int, ...] = (90,)) -> Any:
    """Lines that the child printed, and the driver's events of these kinds."""
    log = tmp_path / "log"
    printed = numba_server.in_turn(HEAD + script, tmp_path / "cache", environment(build(), log=log, devices=devices))
    return printed, read_log(log, *events)


def test_launch_attributes_reach_every_device(tmp_path: Path) -> None:
    """Cooperative, clusters, carveout and dynamic shared memory: on the first device and on the second."""
    script = """
kernel = cached_kernel(SAXPY, cache=cache, cooperative=True, cluster=(2, 2), max_dynamic_shared=99_000, carveout=70)
for device in (0, 1, 0):
    cuda.select_device(device)
    for _ in range(12):
        kernel[(4, 2), 64](*null)
"""
    _, events = seen(tmp_path, script, "set_attribute", "launch", devices=(90, 90))

    launches = [each for each in events if each["event"] == "launch"]
    asked = [(each["attribute"], each["value"], each["device"]) for each in events if each["event"] != "launch"]
    assert [each["device"] for each in launches] == [0] * 12 + [1] * 12 + [0] * 12
    assert {(each["cooperative"], tuple(each["cluster"]), each["result"]) for each in launches} == {
        (True, (2, 2, 1), 0)
    }
    assert asked == [(kind, value, n) for n in (0, 1) for kind, value in ((DYNAMIC_SHARED, 99_000), (CARVEOUT, 70))]


def test_carveout_is_left_to_the_driver(tmp_path: Path) -> None:
    """The driver gets -1, its own word for that."""
    _, events = seen(tmp_path, "cached_kernel(SAXPY, cache=cache, carveout='default')[16, 32](*null)", "set_attribute")

    assert [(each["attribute"], each["value"]) for each in events] == [(CARVEOUT, -1)]


def test_cluster_of_more_than_eight_blocks_is_allowed(tmp_path: Path) -> None:
    """The driver accepts it after an attribute of the kernel is set."""
    _, events = seen(
        tmp_path, "cached_kernel(SAXPY, cache=cache, cluster=16)[16, 32](*null)", "set_attribute", "launch"
    )

    assert [each.get("attribute") for each in events] == [LARGE_CLUSTERS, None]
    assert events[1]["cluster"] == [16, 1, 1]


REFUSED = {
    "a grid of broken clusters": ("cluster=4)[6, 32]", "grid.x = 6: its clusters are 4 blocks long there"),
    "a cooperative grid that does not fit": ("cooperative=True)[10**6, 32]", "of them fit on the device at once"),
    "too much dynamic shared memory": ("max_dynamic_shared=300_000)[1, 32]", "a block takes at most 232448 bytes"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_shape_that_the_attributes_rule_out_is_refused(tmp_path: Path, case: str) -> None:
    """The error comes before any driver call of the launch, with the number that does not fit."""
    launch, message = REFUSED[case]
    script = f"""
try:
    cached_kernel(SAXPY, cache=cache, {launch}(*null)
except KCacheError as error:
    print(error)
"""
    said, launches = seen(tmp_path, script, "launch")

    assert message in said
    assert not launches


def test_static_shared_memory_takes_from_the_dynamic(tmp_path: Path) -> None:
    """The last launch that fits is queued; one byte more is refused, with the size of the kernel's own arrays."""
    script = """
kernel = cached_kernel('''\\nextern "C" __global__ void k(int *x) {
    __shared__ int own[256]; own[threadIdx.x] = x[0]; __syncthreads(); x[0] = own[255 - threadIdx.x]; }''', cache=cache)
for more in 0, 1:
    try:
        kernel[1, 32, 0, 232448 - 1024 + more](None)
    except LaunchConfigError as error:
        print(error)
"""
    said, launches = seen(tmp_path, script, "launch")

    assert "a block takes 0 to 231424 bytes beside the 1024 of its static arrays" in said
    assert len(launches) == 1


def test_clusters_need_a_device_that_has_them(tmp_path: Path) -> None:
    """The error has the device's compute capability, and does not come from the driver."""
    script = """
try:
    cached_kernel(SAXPY, cache=cache, cluster=2)[2, 32](*null)
except LaunchError as error:
    print(error)
"""
    said, _ = seen(tmp_path, script, devices=(80,))

    assert "clusters need compute capability 9.0, this device is sm_80" in said


def test_occupancy_honours_dynamic_shared_memory(tmp_path: Path) -> None:
    """Blocks with much shared memory leave room for fewer at once; `forall` uses the kernel's own limit."""
    script = """
kernel = cached_kernel(SAXPY, cache=cache, cluster=4)
plain, shared = kernel.max_cooperative_grid_blocks(256), kernel.max_cooperative_grid_blocks((16, 16), 120_000)
print(plain > shared, shared == cuda.get_current_device().MULTIPROCESSOR_COUNT)
kernel.forall(1000, sharedmem=120_000)(*null)
kernel.forall(1000)(*null)
bounded = cached_kernel(SAXPY.replace("void saxpy", "void __launch_bounds__(96) saxpy"), cache=cache)
bounded.forall(1000)(*null)
for wrong in (lambda: kernel.forall(1000, sharedmem=10**6), lambda: kernel.max_cooperative_grid_blocks(2048)):
    try:
        wrong()
    except LaunchConfigError as error:
        print("refused")
"""
    said, launches = seen(tmp_path, script, "launch")

    assert said.split() == ["True", "True", "refused", "refused"]
    assert [each["result"] for each in launches] == [0, 0, 0]
    assert [each["grid"][0] % 4 for each in launches[:2]] == [0, 0], "whole clusters"
    assert all(each["grid"][0] * each["block"][0] >= 1000 for each in launches)
    assert launches[2]["block"][0] <= 96


def test_static_shared_memory_counts_against_what_needs_no_opting_in(tmp_path: Path) -> None:
    """40 KiB of arrays and 20 KiB of the launch exceed 48 KiB, so the kernel's attribute is set."""
    script = """
kernel = cached_kernel('''extern "C" __global__ void k(int *x) {
    __shared__ int a[10240]; a[threadIdx.x] = x[0]; __syncthreads(); x[1] = a[threadIdx.x ^ 1]; }''', cache=cache)
kernel[1, 32, 0, 20_480](None)
"""
    _, events = seen(tmp_path, script, "set_attribute", "launch")

    assert [each["result"] for each in events] == [0, 0]


def test_first_launch_inside_a_capture_is_captured(tmp_path: Path) -> None:
    """The module is loaded outside the capture, which stays valid; streams of arguments outside it are waited for."""
    script = """
import cuda.bindings.driver as driver
def value(answer):
    assert answer[0] == 0, answer
    return answer[1]
cuda.current_context()
stream, other = cuda.stream(), cuda.stream()
handle = stream.handle
x = cuda.device_array(64, np.float32, stream=other)
kernel = cached_kernel(SAXPY, cache=cache)
driver.cuStreamBeginCapture(handle, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
for _ in range(12):
    kernel[1, 64, stream](2.0, x, x, 64)
graph = value(driver.cuStreamEndCapture(handle))
exec = value(driver.cuGraphInstantiate(graph, 0))
for _ in range(3):
    value((*driver.cuGraphLaunch(exec, handle), 0))
"""
    _, events = seen(tmp_path, script, "capture_begin", "load", "launch", "event_record", "capture_end", "graph_launch")

    kinds = [each["event"] for each in events if each["event"] != "event_record"]
    assert kinds == ["capture_begin", "load", *["launch"] * 12, "capture_end", *["graph_launch"] * 3]
    assert all(each["result"] == 0 for each in events)
    assert all(each["captured"] for each in events if each["event"] == "launch")


def test_garbage_that_is_collected_in_a_first_launch_does_not_end_a_capture(tmp_path: Path) -> None:
    """Compiling makes so many objects that Python collects garbage, and the finalizers of Numba's arrays free memory,
    which a capture forbids; kernels of each kind, nothing stored and stored."""
    script = """
import gc
import cuda.bindings.driver as driver
gc.disable()
configure(directory=sys.argv[1])
x = cuda.device_array(64, np.float32)
stream = driver.cuStreamCreate(1)[1]
class Cycle: pass
def add(x, value):
    x[cuda.grid(1)] += value
def litter():
    for _ in range(30):
        cycle = Cycle()
        cycle.itself, cycle.array = cycle, cuda.device_array(64, np.float32)
subscribe(lambda event: gc.collect())
install()
makers = (
    lambda: cached_kernel(add), lambda: cached_kernel(SAXPY), lambda: cuda.jit(cache=True, opt=2)(add),
    lambda: get_or_compile(SAXPY, std="c++17"),
)
for make in makers * 2:
    litter()
    driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
    launch = make()[1, 64, cuda.external_stream(int(stream))]
    launch(*((2.0, x, x, 64) if make in makers[1::2] else (x, 2.0)))
    print(int(driver.cuStreamEndCapture(stream)[0]))
    if make is makers[3]:
        print(info("process").misses, info("process").hits)
        configure(directory=sys.argv[1])
"""
    said, events = seen(tmp_path, script, "forbidden", "free", "launch")

    assert said.split() == [*"0000", "4", "0", *"0000", "0", "4"]
    assert [each["captured"] for each in events if each["event"] == "launch"] == [True] * 8
    assert sum(each["event"] == "free" for each in events) >= 100, "garbage was collected"
    assert not [each for each in events if each["event"] == "forbidden"]


def test_first_launch_leaves_the_capture_mode_of_its_thread(tmp_path: Path) -> None:
    """Also one that initialises the driver, before which there is no mode to ask for."""
    script = """
import cuda.bindings.driver as driver
cached_kernel(SAXPY, cache=cache, arch="sm_90").compile()
kernel = cached_kernel(SAXPY, cache=cache)
try:
    kernel[1, 64](2.0, 0, 0, 64)
except ArgumentError:
    pass
print(driver.cuThreadExchangeStreamCaptureMode(driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)[1].value)
"""
    said, _ = seen(tmp_path, script, "launch")

    assert said.split() == ["0"]


def test_kernel_alternates_between_devices(tmp_path: Path) -> None:
    """Each device has its module; an array of the other device is refused where the process sees two."""
    script = """
kernel = cached_kernel(SAXPY, cache=cache)
arrays = {}
for device in (0, 1):
    cuda.select_device(device)
    arrays[device] = cuda.device_array(64, np.float32)
for _ in range(12):
    for device in (0, 1):
        cuda.select_device(device)
        kernel[1, 64](2.0, arrays[device], arrays[device], 64)
for x in (arrays[0], arrays[0].view(np.int32)):
    try:
        kernel[1, 64](2.0, x, arrays[1], 64)
    except ArgumentError as error:
        print(error)
"""
    said, launches = seen(tmp_path, script, "launch", devices=(90, 80))

    assert [each["device"] for each in launches] == [0, 1] * 12
    assert "argument 2 of saxpy (float const* x): it is on device 0, the launch on device 1\n  hint: copy it" in said


def test_fork_is_a_clear_error_in_the_child(tmp_path: Path) -> None:
    """A bound launch, a new one, and a kernel that the parent never used raise in the child."""
    script = """
kernel = cached_kernel(SAXPY, cache=cache)
for _ in range(12):
    kernel[1, 64](*null)
bound = kernel[1, 64]
fresh = cached_kernel(SAXPY, cache=cache, strided=True)
sys.stdout.flush()
if not (child := os.fork()):
    for launch in (lambda: bound(*null), lambda: kernel[2, 64](*null), lambda: fresh[1, 64](*null)):
        try:
            launch()
        except LaunchError as error:
            print(str(error).splitlines()[0], flush=True)
    os._exit(0)
os.waitpid(child, 0)
kernel[1, 64](*null)
"""
    said, launches = seen(tmp_path, script, "launch")

    message = "cannot launch in a forked process: CUDA was initialised before the fork, and does not survive it"
    assert said.splitlines() == [message] * 3
    assert len(launches) == 13


def test_debug_launches_is_a_setting(tmp_path: Path) -> None:
    """It can change while the program runs; when on, each launch is followed by a wait."""
    script = """
kernel = cached_kernel(SAXPY)
for on in (False, True, False):
    configure(debug_launches=on, directory=sys.argv[1])
    stream = cuda.stream()
    for _ in range(12):
        kernel[1, 64, stream](*null)
"""
    _, events = seen(tmp_path, script, "launch", "synchronize")

    kinds = [each["event"] for each in events]
    assert kinds == ["launch"] * 12 + ["synchronize", "launch", "synchronize"] * 12 + ["launch"] * 12


EVERY_KIND = """
from tests.support.echo import CASES, source
out = cuda.device_array(4096, "u1")
first = list({case.c_type: case for case in CASES}.values())
everything = cached_kernel(source(*first), cache=cache)
for _ in range(4):
    everything[1, 1](*[case.argument for case in first], out)
"""


def test_every_kind_of_parameter_reaches_the_driver_as_cxx_holds_it(tmp_path: Path) -> None:
    """One kernel has parameters of all kinds, by the compiler's own prototype; interpreted and compiled launches pass
    the same bytes."""
    _, launches = seen(tmp_path, EVERY_KIND, "launch")

    expected = [case.expected.hex() for case in {case.c_type: case for case in CASES}.values()]
    assert len(launches) > 2
    assert [each["parameters"][:-1] for each in launches] == [expected] * len(launches)
