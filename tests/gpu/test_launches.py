"""Launches on real devices: attributes, captures, threads, streams, several devices, forks, and refused arguments."""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numba_kcache
from numba_kcache import ArgumentError, KernelCache, LaunchConfigError, cached_kernel
from tests.support.compiling import SAXPY

pytestmark = pytest.mark.gpu

PRODUCE = r"""
extern "C" __global__ void produce(float *x, float value, long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles) {}
    x[threadIdx.x] = value;
}"""

COPY = 'extern "C" __global__ void copy(const float *x, float *y) { y[threadIdx.x] = x[threadIdx.x]; }'

GRID_SUM = r"""
#include <cooperative_groups.h>
extern "C" __global__ void grid_sum(int *seen, int *sum) {
    if (threadIdx.x == 0) seen[blockIdx.x] = 1;
    cooperative_groups::this_grid().sync();
    if (blockIdx.x == gridDim.x - 1 && threadIdx.x == 0)
        for (int i = 0; i < gridDim.x; i++) *sum += seen[i];
}"""

CLUSTER = r"""
#include <cooperative_groups.h>
extern "C" __global__ void cluster_size(unsigned *size) {
    if (threadIdx.x == 0) size[blockIdx.x] = cooperative_groups::this_cluster().num_blocks();
}"""

CYCLES = 400_000_000
"""A fifth of a second: whoever does not wait for `produce` reads what was there before."""


@pytest.fixture
def cache(tmp_path: Path) -> KernelCache:
    return KernelCache(tmp_path / "cache")


@pytest.fixture
def two_devices() -> Any:
    from numba import cuda

    if len(cuda.gpus) < 2:
        pytest.skip("needs two GPUs")
    return cuda


def in_child(script: str, tmp_path: Path, **variables: str) -> str:
    """Output of a child that runs the script with this file's names."""
    head = f"import os, sys, numpy as np\nfrom numba import cuda\nfrom numba_kcache import *\nSAXPY = {SAXPY!r}\n"
    environment = {**os.environ, "NUMBA_KCACHE_DIR": str(tmp_path), **variables}
    done = subprocess.run([sys.executable, "-c", head + script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def captured(stream: Any, work: Callable[[], object]) -> Callable[[], None]:
    """Capture what `work` queues on the stream; the result launches the graph there."""
    import cuda.bindings.driver as driver

    def done(answer: tuple[Any, ...]) -> Any:
        assert answer[0] == 0, answer
        return answer[1] if len(answer) > 1 else None

    done(driver.cuStreamBeginCapture(stream.handle, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
    try:
        work()
    finally:
        graph = driver.cuStreamEndCapture(stream.handle)
    runnable = done(driver.cuGraphInstantiate(done(graph), 0))
    return lambda: done(driver.cuGraphLaunch(runnable, stream.handle))


# -- attributes and occupancy ---------------------------------------------------------------------------------


def test_cooperative_grid_synchronises(cache: KernelCache) -> None:
    """The largest grid that fits runs and sees all its blocks; one block more is refused."""
    from numba import cuda

    kernel = cached_kernel(GRID_SUM, cache=cache, cooperative=True)
    blocks = kernel.max_cooperative_grid_blocks(256)
    seen, total = cuda.to_device(np.zeros(blocks + 1, np.int32)), cuda.to_device(np.zeros(1, np.int32))

    kernel[blocks, 256](seen, total)

    assert total.copy_to_host()[0] == blocks
    with pytest.raises(LaunchConfigError, match=f"{blocks} of them fit"):
        kernel[blocks + 1, 256]


@pytest.mark.parametrize("blocks", [1, 2, 8, 16])
def test_cluster_has_the_blocks_that_were_asked_for(cache: KernelCache, blocks: int) -> None:
    """Clusters of up to 16 blocks work; 16 needs a non-portable attribute of the kernel."""
    from numba import cuda

    if cuda.get_current_device().compute_capability < (9, 0):
        pytest.skip("needs compute capability 9.0")
    d_size = cuda.device_array(32, np.uint32)
    kernel = cached_kernel(CLUSTER, cache=cache, cluster=blocks)
    for _ in range(12):
        kernel[32, 64](d_size)

    np.testing.assert_array_equal(d_size.copy_to_host(), blocks)


def test_carveout_and_dynamic_shared_memory_are_set_when_the_kernel_is_loaded(cache: KernelCache) -> None:
    """The driver returns the values that were set."""
    kernel = cached_kernel(SAXPY, cache=cache, max_dynamic_shared=80_000, carveout="MaxShared")
    kernel[1, 32](1.0, None, None, 0)

    assert kernel.attributes["max_dynamic_shared_size_bytes"] == 80_000
    assert kernel.attributes["preferred_shared_memory_carveout"] == 100


def test_forall_with_much_dynamic_shared_memory(cache: KernelCache) -> None:
    """The driver is asked for a block size with as much as a block may have."""
    from numba import cuda

    d_x, d_y = cuda.to_device(np.ones(1000, np.float32)), cuda.to_device(np.zeros(1000, np.float32))
    cached_kernel(SAXPY, cache=cache).forall(1000, sharedmem=90_000)(3.0, d_x, d_y, 1000)

    np.testing.assert_array_equal(d_y.copy_to_host(), 3.0)


# -- captures ---------------------------------------------------------------------------------------------------


def test_capture_with_the_kernel_s_first_launch_replays(cache: KernelCache) -> None:
    """The kernel is compiled, loaded, bound and launched while the stream is captured; then the graph runs three
    times."""
    from numba import cuda

    stream = cuda.stream()
    x = np.arange(1000, dtype=np.float32)
    d_x, d_y = cuda.to_device(x, stream=stream), cuda.to_device(np.zeros_like(x), stream=stream)
    stream.synchronize()
    kernel = cached_kernel(SAXPY, cache=cache)

    replay = captured(stream, lambda: [kernel[8, 128, stream](2.0, d_x, d_y, 1000) for _ in range(12)])
    stream.synchronize()
    assert not d_y.copy_to_host(stream=stream).any(), "capturing runs nothing"
    for _ in range(3):
        replay()

    stream.synchronize()
    np.testing.assert_array_equal(d_y.copy_to_host(), 3 * 12 * 2 * x)


def test_capture_survives_garbage_that_a_first_launch_collects(cache: KernelCache) -> None:
    """A compile makes so many objects that Python collects others, whose finalizers free memory of the device."""
    from numba import cuda

    stream = cuda.stream()
    d_x, d_y = cuda.to_device(np.ones(1000, np.float32)), cuda.to_device(np.zeros(1000, np.float32))

    def add(x: Any, y: Any) -> None:
        i = cuda.grid(1)
        if i < y.size:
            y[i] += x[i]

    for kernel in (cached_kernel(add, cache=cache), cached_kernel(add, cache=cache)):  # nothing stored, then stored
        for _ in range(30):
            cycle: list[Any] = [cuda.device_array(64, np.float32)]
            cycle.append(cycle)
        del cycle
        cuda.synchronize()
        end = numba_kcache.subscribe(lambda _event: gc.collect())
        try:
            captured(stream, functools.partial(kernel[8, 128, stream], d_x, d_y))()
        finally:
            end()
        stream.synchronize()

    np.testing.assert_array_equal(d_y.copy_to_host(), 2)


def test_capture_waits_for_an_argument_of_another_stream(cache: KernelCache) -> None:
    """The graph waits for a stream outside the capture that still writes the argument."""
    from numba import cuda

    outside, stream = cuda.stream(), cuda.stream()
    d_x, d_y = cuda.device_array(32, np.float32, stream=outside), cuda.to_device(np.zeros(32, np.float32))
    produce, copy = cached_kernel(PRODUCE, cache=cache), cached_kernel(COPY, cache=cache)
    produce[1, 32, outside](d_x, 1.0, 0)
    copy[1, 32, stream](d_y, d_y)  # compiled and loaded by now: that would take longer than the producer
    produce[1, 32, outside](d_x, 2.0, CYCLES)

    captured(stream, lambda: copy[1, 32, stream](d_x, d_y))()

    stream.synchronize()
    np.testing.assert_array_equal(d_y.copy_to_host(), 2.0)


# -- threads, streams, devices ------------------------------------------------------------------------------------


def test_eight_threads_launch_one_kernel(cache: KernelCache) -> None:
    """Each thread has its own scalars, arrays and stream, and no launch gets another thread's parameters."""
    from numba import cuda

    kernel, wrong = cached_kernel(SAXPY, cache=cache), list[Any]()
    barrier = threading.Barrier(8)

    def work(number: int) -> None:
        try:
            stream = cuda.stream()
            d_x = cuda.to_device(np.ones(256, np.float32), stream=stream)
            d_y = cuda.to_device(np.zeros(256, np.float32), stream=stream)
            barrier.wait()
            for k in range(500):
                kernel[2 + k % 3, 128, stream](float(number + k % 2), d_x, d_y, 256)
            result = d_y.copy_to_host(stream=stream)
            stream.synchronize()
            np.testing.assert_array_equal(result, 500 * number + 250)
        except BaseException as error:
            wrong.append(error)
            barrier.abort()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not wrong


def consumed(cache: KernelCache, make: Callable[[], Any], producer: Any, *, told: bool) -> float:
    """Values that a launch on one stream reads of an argument on which a long kernel still works on another.

    Args:
        cache: For the kernels.
        make: Makes the argument.
        producer: The stream of its library.
        told: Whether the launch sees the library's object, or only an address, which says nothing of streams.
    """
    from numba import cuda

    stream, out = cuda.stream(), cuda.to_device(np.zeros(32, np.float32))
    produce, copy = cached_kernel(PRODUCE, cache=cache), cached_kernel(COPY, cache=cache)
    copy[1, 32, stream](out, out)  # compiled and loaded by now: that would take longer than the producer
    x = make()
    produce[1, 32, producer](x, 1.0, 0)
    cuda.synchronize()
    produce[1, 32, producer](x, 2.0, CYCLES)
    address = ctypes.c_void_p(x.__cuda_array_interface__["data"][0])
    copy[1, 32, stream](x if told else address, out)
    stream.synchronize()
    result = out.copy_to_host()
    assert (result == result[0]).all()
    return float(result[0])


def test_argument_of_another_numba_stream_is_waited_for(cache: KernelCache) -> None:
    """The device waits for an event; a bare address, which has no stream, shows that the wait is needed."""
    from numba import cuda

    stream = cuda.stream()
    made = lambda: cuda.device_array(32, np.float32, stream=stream)  # noqa: E731

    assert consumed(cache, made, stream, told=True) == 2.0
    assert consumed(cache, made, stream, told=False) == 1.0


def test_argument_of_another_cupy_stream_is_waited_for(cache: KernelCache) -> None:
    """CuPy writes its arrays on its current stream."""
    cupy = pytest.importorskip("cupy")

    with cupy.cuda.Stream(non_blocking=True) as stream:
        made = lambda: cupy.zeros(32, cupy.float32)  # noqa: E731
        for _ in range(3):
            assert consumed(cache, made, stream, told=True) == 2.0
        assert consumed(cache, made, stream, told=False) == 1.0


def test_argument_of_another_torch_stream_is_waited_for(cache: KernelCache) -> None:
    """PyTorch writes its tensors on its current stream."""
    torch = pytest.importorskip("torch")

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        made = lambda: torch.zeros(32, device="cuda")  # noqa: E731
        for _ in range(3):
            assert consumed(cache, made, stream, told=True) == 2.0
        assert consumed(cache, made, stream, told=False) == 1.0


def test_kernel_alternates_between_devices(cache: KernelCache, two_devices: Any) -> None:
    """Each device has its own module and arrays; results are right on both, from one thread."""
    kernel, arrays = cached_kernel(SAXPY, cache=cache), list[Any]()
    x = np.arange(256, dtype=np.float32)
    for device in (0, 1):
        with two_devices.gpus[device]:
            arrays.append((two_devices.to_device(x), two_devices.to_device(np.zeros_like(x))))

    for _ in range(20):
        for device in (0, 1):
            with two_devices.gpus[device]:
                kernel[2, 128](device + 1.0, *arrays[device], 256)

    for device in (0, 1):
        with two_devices.gpus[device]:
            np.testing.assert_array_equal(arrays[device][1].copy_to_host(), 20 * (device + 1) * x)


def test_array_of_another_device_is_refused(cache: KernelCache, two_devices: Any) -> None:
    """The error names both devices and comes before the launch, interpreted or compiled."""
    kernel = cached_kernel(SAXPY, cache=cache)
    far = two_devices.to_device(np.ones(32, np.float32))
    with two_devices.gpus[1]:
        near = two_devices.to_device(np.ones(32, np.float32))
        for _ in range(12):
            with pytest.raises(
                ArgumentError, match=r"2 of saxpy \(float const\* x\): it is on device 0, the launch on"
            ):
                kernel[1, 32](2.0, far, near, 32)
            kernel[1, 32](2.0, near, near, 0)
        np.testing.assert_array_equal(near.copy_to_host(), 1.0)


def test_second_device_gets_the_launch_attributes(cache: KernelCache, two_devices: Any) -> None:
    """Carveout, dynamic shared memory and a cooperative launch, on each."""
    kernel = cached_kernel(GRID_SUM, cache=cache, cooperative=True, max_dynamic_shared=60_000, carveout=50)
    for device in (0, 1):
        with two_devices.gpus[device]:
            seen = two_devices.to_device(np.zeros(64, np.int32))
            total = two_devices.to_device(np.zeros(1, np.int32))
            kernel[64, 64](seen, total)
            loaded = kernel._loaded()[1]

            assert total.copy_to_host()[0] == 64
            assert loaded.device.ordinal == device
            assert loaded.attribute("MAX_DYNAMIC_SHARED_SIZE_BYTES") == 60_000
            assert loaded.attribute("PREFERRED_SHARED_MEMORY_CARVEOUT") == 50


# -- processes ----------------------------------------------------------------------------------------------------


def test_fork_is_a_clear_error_in_the_child(tmp_path: Path) -> None:
    """Both a bound and a new launch raise in the child; the parent works on."""
    script = """
kernel, y = cached_kernel(SAXPY), cuda.to_device(np.ones(64, np.float32))
for _ in range(12):
    kernel[1, 64](0.0, y, y, 64)
bound = kernel[1, 64]
if not (child := os.fork()):
    for launch in (bound, lambda *args: kernel[2, 64](*args)):
        try:
            launch(0.0, None, None, 0)
        except LaunchError as error:
            print(error.what, error.hint, sep=" | ", flush=True)
    os._exit(0)
os.waitpid(child, 0)
kernel[1, 64](1.0, y, y, 64)
assert (y.copy_to_host() == 2).all()
"""
    said = in_child(script, tmp_path).splitlines()

    assert (
        said == ["cannot launch in a forked process | start workers with spawn, or fork before the first CUDA call"] * 2
    )


def test_debug_launches_names_the_launch_that_failed(tmp_path: Path) -> None:
    """For an invalid address the error comes from the launch itself, with its arguments."""
    script = """
import ctypes
kernel, x = cached_kernel(SAXPY), cuda.to_device(np.ones(64, np.float32))
kernel[1, 64](2.0, x, x, 64)
try:
    kernel[1, 64](2.0, x, ctypes.c_void_p(4096), 64)
except LaunchError as error:
    print(error.what, error.why, sep=" | ", flush=True)
os._exit(0)
"""
    said = in_child(script, tmp_path, NUMBA_KCACHE_DEBUG="1")

    assert said.startswith(
        "saxpy(float a = 2.0 (float), float const* x = numba.DeviceNDArray of float32 (64,), float* y ="
    )
    assert "failed with grid (1, 1, 1), block (64, 1, 1), sharedmem 0" in said
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in said


MANY = {
    "source": ("cached_kernel(SAXPY)", "(0.0, y, y, 64)", "(0.5, y, y, 0)", "(1, y, None, 0)"),
    "numba": ("cached_kernel(body)", "(0.0, y, y, 64)", "(np.float64(0.5), y, y, 0)", "(0.0, y, y, np.int64(0))"),
}


@pytest.mark.parametrize("kind", MANY)
def test_a_million_launches_leave_nothing(tmp_path: Path, kind: str) -> None:
    """The host's resident memory does not grow, over one grid and over ever new ones."""
    kernel, *arguments = MANY[kind]
    script = f"""
import resource
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
def body(a, x, y, n):
    i = cuda.grid(1)
    if i < n:
        y[i] = a * x[i] + y[i]
kernel, y = {kernel}, cuda.to_device(np.ones(64, np.float32))
def launch(count):
    same = kernel[1, 64]
    for k in range(count // 5):
        same{arguments[0]}; same{arguments[1]}; same{arguments[2]}; kernel[1, 64]{arguments[0]}
        kernel[1 + k % 5000, 64]{arguments[1]}
    cuda.synchronize()
launch(50_000)
before = resident()
launch(1_000_000)
print(resident() - before)
"""
    assert int(in_child(script, tmp_path)) < 4 * 2**20


# -- refusals -----------------------------------------------------------------------------------------------------


REFUSED: dict[str, tuple[Callable[[Any, Any], tuple[Any, ...]], str]] = {
    "swapped": (
        lambda cuda, x: (x, 2.0, x, 64),
        r"(?s)DeviceNDArray of float32 \(64,\) as argument 1 of saxpy \(float a\): .*hint: ",
    ),
    "a number for a pointer": (
        lambda cuda, x: (2.0, 2, x, 64),
        r"(?s)2 \(int\) as argument 2 of saxpy \(float const\* x\): .*hint: check the order",
    ),
    "a strided view": (
        lambda cuda, x: (2.0, x[::2], x, 32),
        r"(?s)argument 2 of saxpy \(float const\* x\): it is not contiguous, its strides are \(8,\).*hint: ",
    ),
    "float64 for float": (
        lambda cuda, x: (2.0, x, cuda.to_device(np.ones(64)), 64),
        r"(?s)of float64 \(64,\) as argument 3 of saxpy \(float\* y\): the kernel takes float32 there.*hint: make it",
    ),
    "a host array": (
        lambda cuda, x: (2.0, x, np.ones(64, np.float32), 64),
        r"(?s)numpy.ndarray of float32 \(64,\) as argument 3 of saxpy \(float\* y\): .*on the host.*hint: copy it",
    ),
    "a float for an int": (lambda cuda, x: (2.0, x, x, 64.5), r"(?s)64.5 \(float\) as argument 4 of saxpy \(int n\): "),
}


@pytest.mark.parametrize("recognised", [False, True], ids=["interpreted", "compiled"])
@pytest.mark.parametrize("case", REFUSED)
def test_wrong_argument_is_refused_by_name(cache: KernelCache, case: str, recognised: bool) -> None:
    """The error has position, kernel, C++ type, parameter name, the value and a hint; no kernel is launched."""
    from numba import cuda

    make, message = REFUSED[case]
    d_x = cuda.to_device(np.ones(64, np.float32))
    kernel = cached_kernel(SAXPY, cache=cache)
    for _ in range(12 if recognised else 0):
        kernel[1, 64](0.0, d_x, d_x, 0)

    with pytest.raises(ArgumentError, match=message):
        kernel[1, 64](*make(cuda, d_x))
    np.testing.assert_array_equal(d_x.copy_to_host(), 1.0)
