"""CUDA C++ kernels on a real device: right results, cold and from the cache, and after the device was reset."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import numba_kcache
from numba_kcache import ArgumentError, KernelCache, LaunchConfigError, LaunchError, cached_kernel
from tests.support.compiling import SAXPY

pytestmark = pytest.mark.gpu

REDUCTION = r"""
extern "C" __global__ void block_sum(const double *x, double *sums, int n) {
    extern __shared__ double part[];
    int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    part[t] = i < n ? x[i] : 0.0;
    __syncthreads();
    for (int width = blockDim.x / 2; width > 0; width /= 2) {
        if (t < width) part[t] += part[t + width];
        __syncthreads();
    }
    if (t == 0) sums[blockIdx.x] = part[0];
}"""

STENCIL = r"""
extern "C" __global__ void blur(const float *in, float *out, int height, int width) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < 1 || y < 1 || x >= width - 1 || y >= height - 1) return;
    out[y * width + x] = 0.2f * (in[y * width + x] + in[y * width + x - 1] + in[y * width + x + 1]
                                 + in[(y - 1) * width + x] + in[(y + 1) * width + x]);
}"""


@pytest.fixture
def cache(tmp_path: Path) -> KernelCache:
    return KernelCache(tmp_path / "cache")


def run_saxpy(kernel: numba_kcache.Kernel, n: int = 1000) -> None:
    from numba import cuda

    x, y = np.arange(n, dtype=np.float32), np.ones(n, np.float32)
    d_x, d_y = cuda.to_device(x), cuda.to_device(y)
    kernel[(n + 127) // 128, 128](2.0, d_x, d_y, n)
    np.testing.assert_array_equal(d_y.copy_to_host(), 2 * x + 1)


def test_saxpy_is_right_cold_and_from_the_cache(cache: KernelCache) -> None:
    """The first kernel compiles, a second object of the same source is served; both compute the same."""
    run_saxpy(cached_kernel(SAXPY, cache=cache))
    cache.session.forget()
    run_saxpy(cached_kernel(SAXPY, cache=cache))

    info = cache.info("process")
    assert (info.compiles, info.hits, info.misses) == (1, 1, 1)


def test_block_reduction_over_an_odd_size(cache: KernelCache) -> None:
    """Dynamic shared memory and a size that is no power of two."""
    from numba import cuda

    n, block = 100_003, 256
    blocks = -(-n // block)
    x = np.random.default_rng(1).random(n)
    d_sums = cuda.device_array(blocks)
    kernel = cached_kernel(REDUCTION, cache=cache)

    kernel[blocks, block, 0, block * 8](cuda.to_device(x), d_sums, n)

    assert np.isclose(d_sums.copy_to_host().sum(), x.sum(), rtol=1e-12)


def test_two_dimensional_stencil(cache: KernelCache) -> None:
    """Grid and block as tuples, a two-dimensional array."""
    from numba import cuda

    image = np.random.default_rng(2).random((131, 257), dtype=np.float32)
    d_out = cuda.to_device(np.zeros_like(image))

    cached_kernel(STENCIL, cache=cache)[(9, 5), (32, 32)](cuda.to_device(image), d_out, *image.shape)

    wanted = np.zeros_like(image)
    wanted[1:-1, 1:-1] = 0.2 * (
        image[1:-1, 1:-1] + image[1:-1, :-2] + image[1:-1, 2:] + image[:-2, 1:-1] + image[2:, 1:-1]
    )
    np.testing.assert_allclose(d_out.copy_to_host(), wanted, rtol=1e-5)


def test_more_than_48_kib_of_dynamic_shared_memory(cache: KernelCache) -> None:
    """A block of 96 KiB runs; Numba has no way to ask for it."""
    from numba import cuda

    x = np.ones(12_288)
    d_sums = cuda.device_array(12)

    cached_kernel(REDUCTION, cache=cache)[12, 1024, 0, 96 * 1024](cuda.to_device(x), d_sums, x.size)

    np.testing.assert_array_equal(d_sums.copy_to_host(), 1024.0)


def test_forall_and_a_stream(cache: KernelCache) -> None:
    """`forall` picks a block size; a stream of Numba's orders the launch."""
    from numba import cuda

    stream = cuda.stream()
    x, y = np.arange(1000, dtype=np.float32), np.zeros(1000, np.float32)
    d_x, d_y = cuda.to_device(x, stream=stream), cuda.to_device(y, stream=stream)
    cached_kernel(SAXPY, cache=cache).forall(1000, stream=stream)(3.0, d_x, d_y, 1000)
    result = d_y.copy_to_host(stream=stream)
    stream.synchronize()

    np.testing.assert_array_equal(result, 3 * x)


def test_kernel_survives_a_context_reset(cache: KernelCache) -> None:
    """After a reset the same kernel object loads its module again; nothing is compiled."""
    from numba import cuda

    kernel = cached_kernel(SAXPY, cache=cache)
    run_saxpy(kernel)
    cuda.current_context().reset()
    run_saxpy(kernel)

    assert cache.info("process").compiles == 1


def test_kernel_survives_cuda_close(tmp_path: Path) -> None:
    """After `cuda.close()` a launch makes Numba's context again, which Numba itself does not."""
    script = f"""
import numpy as np, numba_kcache
from numba import cuda
from numba_kcache import cached_kernel
kernel = cached_kernel({SAXPY!r})
for _ in range(3):
    kernel[1, 64](2.0, None, None, 0)  # brings the context back, if it was closed
    y = cuda.to_device(np.ones(64, np.float32))
    kernel[1, 64](2.0, y, y, 64)
    assert (y.copy_to_host() == 3).all()
    del y
    cuda.close()
print(numba_kcache.info("process").compiles)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "NUMBA_KCACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )

    assert done.stdout.split() == ["1"], done.stderr


def test_clear_makes_the_next_launch_resolve_again(cache: KernelCache) -> None:
    """A cleared cache compiles again, also for a launch that was bound before."""
    kernel = cached_kernel(SAXPY, cache=cache)
    run_saxpy(kernel)
    cache.clear()
    run_saxpy(kernel)

    assert cache.info("process").compiles == 2


@pytest.mark.parametrize("arch", ["sm_90", "compute_80", ["sm_80", "sm_90"], "auto"])
def test_named_targets_run(cache: KernelCache, arch: object) -> None:
    """An exact target, PTX linked for the device, and a list from which the device's is taken."""
    run_saxpy(cached_kernel(SAXPY, cache=cache, arch=arch))


def test_ptx_runs_with_a_signature(cache: KernelCache) -> None:
    """PTX is linked by nvJitLink; its signature gives the types."""
    ptx = cached_kernel(SAXPY, cache=cache).ptx()

    run_saxpy(cached_kernel(ptx, cache=cache, signature="float, const float*, float*, int"))


def test_numba_compile_ptx_tuple_runs(cache: KernelCache) -> None:
    """The tuple of `numba.cuda.compile_ptx` is accepted as it is: a pointer and a number, in Numba's layout."""
    from numba import cuda, types

    def fill(out, value):  # type: ignore[no-untyped-def]
        out[cuda.grid(1)] = value

    compiled = cuda.compile_ptx(fill, types.void(types.CPointer(types.float32), types.float32), device=False)
    kernel = cached_kernel(compiled, cache=cache, signature="float*, float")
    d_out = cuda.device_array(64, np.float32)

    kernel[2, 32](d_out, 7.0)

    np.testing.assert_array_equal(d_out.copy_to_host(), 7.0)


def test_linked_device_code_runs(cache: KernelCache, tmp_path: Path) -> None:
    """A CUDA C++ file with a device function is linked in."""
    from numba import cuda

    (tmp_path / "twice.cu").write_text('extern "C" __device__ float twice(float a) { return 2 * a; }')
    source = 'extern "C" __device__ float twice(float); extern "C" __global__ void k(float *x) { *x = twice(*x); }'
    for lto in (False, True):
        d_x = cuda.to_device(np.array([21.0], np.float32))
        cached_kernel(source, cache=cache, link=[tmp_path / "twice.cu"], lto=lto)[1, 1](d_x)
        assert d_x.copy_to_host()[0] == 42.0


def test_wrong_arguments_never_reach_the_driver(cache: KernelCache) -> None:
    """Swapped, missing and host arguments are refused with the parameter's type."""
    from numba import cuda

    kernel = cached_kernel(SAXPY, cache=cache)
    d_x = cuda.to_device(np.ones(8, np.float32))
    for arguments in ((d_x, 2.0, d_x, 8), (2.0, d_x, d_x), (2.0, np.ones(8, np.float32), d_x, 8),
                      (2.0, cuda.to_device(np.ones(8)), d_x, 8), (2.0, d_x, d_x, 8.5)):  # fmt: skip
        with pytest.raises(ArgumentError):
            kernel[1, 8](*arguments)
    np.testing.assert_array_equal(d_x.copy_to_host(), 1.0)


def test_oversized_block_is_refused(cache: KernelCache) -> None:
    """The device's limits are checked before the launch."""
    with pytest.raises(LaunchConfigError, match="1025"):
        cached_kernel(SAXPY, cache=cache)[1, 1025]
    with pytest.raises(LaunchConfigError):
        cached_kernel(SAXPY, cache=cache)[0, 32]


def test_cubin_for_another_device_says_so(cache: KernelCache) -> None:
    """A cubin that the device cannot run is refused with the target's name."""
    with pytest.raises(LaunchError, match="sm_120"):
        run_saxpy(cached_kernel(SAXPY, cache=cache, arch="sm_120"))


def test_second_process_compiles_nothing_and_loads_no_compiler(tmp_path: Path) -> None:
    """A fresh process is served from disk and never maps NVRTC, NVVM or nvJitLink."""
    script = f"""
import numpy as np, numba_kcache
from numba import cuda
from numba_kcache import cached_kernel
kernel = cached_kernel({SAXPY!r})
y = cuda.to_device(np.ones(64, np.float32))
kernel[1, 64](2.0, y, y, 64)
assert (y.copy_to_host() == 3).all()
maps = open("/proc/self/maps").read()
info = numba_kcache.info("process")
print(info.compiles, info.hits, any(name in maps for name in ("libnvrtc", "libnvvm", "libnvJitLink")))
"""
    environment = {**os.environ, "NUMBA_KCACHE_DIR": str(tmp_path)}
    said = [
        subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]

    assert said[0].split() == ["1", "0", "True"]
    assert said[1].split() == ["0", "1", "False"]
