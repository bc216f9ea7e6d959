"""`get_or_compile` and cuda.core's `compile(cache=)` on a real device: code that is there before the first launch."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from numba_kcache import KernelCache

pytestmark = pytest.mark.gpu

SCALE = r"""
extern "C" __global__ void scale(float *x, float by, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= by;
}"""


def test_kernel_of_a_current_device_is_compiled_before_its_launch(tmp_path: Path) -> None:
    """It is compiled and counted when `get_or_compile` returns; the launch counts nothing and computes right."""
    from numba import cuda

    cache, x = KernelCache(tmp_path), cuda.to_device(np.arange(1000, dtype=np.float32))
    assert cache.info("process").misses == 0
    for _ in range(10):
        cache.get_or_compile(SCALE)[8, 128](x, 2.0, 1000)
    assert (cache.info("process").misses, cache.info("process").compiles) == (1, 1)
    assert np.array_equal(x.copy_to_host(), np.arange(1000, dtype=np.float32) * 1024)

    times = []
    for _ in range(200):
        start = time.perf_counter()
        for _ in range(100):
            cache.get_or_compile(SCALE)
        times.append((time.perf_counter() - start) / 100)
    assert min(times) < 4e-6


def test_program_of_cuda_core_runs_from_the_cache(tmp_path: Path) -> None:
    """Code from `ProgramCache` loads, launches and computes what a fresh compile does."""
    core = pytest.importorskip("cuda.core")
    utils = pytest.importorskip("cuda.core.utils")
    if not hasattr(utils, "ProgramCacheResource"):
        pytest.skip("this cuda.core has no program cache")
    from numba import cuda

    from numba_kcache.adapters import ProgramCache

    device = core.Device()
    device.set_current()
    stream, options = device.create_stream(), core.ProgramOptions(arch=f"sm_{device.arch}", name="scale")
    for expected in (0, 1):
        cache = KernelCache(tmp_path)
        code = core.Program(SCALE, "c++", options).compile("cubin", cache=ProgramCache(cache))
        x = cuda.to_device(np.ones(1000, dtype=np.float32))
        cuda.synchronize()
        pointer = x.__cuda_array_interface__["data"][0]
        config = core.LaunchConfig(grid=8, block=128)
        core.launch(stream, config, code.get_kernel("scale"), pointer, np.float32(3), np.int32(1000))
        stream.sync()
        assert np.array_equal(x.copy_to_host(), np.full(1000, 3, dtype=np.float32))
        assert cache.info("process").hits == expected
