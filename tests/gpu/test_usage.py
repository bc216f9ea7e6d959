"""Other uses of a kernel than launches by position, on a real device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from numba_kcache import KernelCache, cached_kernel
from tests.support.compiling import SAXPY

pytestmark = pytest.mark.gpu

N = 1000


@pytest.fixture
def cache(tmp_path: Path) -> KernelCache:
    return KernelCache(str(tmp_path))


def test_arguments_by_name_compute_what_those_by_position_do(cache: KernelCache) -> None:
    """Arguments by name, mixed and in any order, between launches by position, for a source kernel and a Numba
    kernel."""
    from numba import cuda

    kernel = cached_kernel(SAXPY, cache=cache)
    x, y = cuda.to_device(np.arange(N, dtype="f4")), cuda.to_device(np.zeros(N, "f4"))
    for _ in range(3):
        kernel[8, 128](1.0, x, y, N)
        kernel[8, 128](n=N, y=y, x=x, a=1.0)
        kernel.forall(N)(1.0, x, n=N, y=y)
    np.testing.assert_array_equal(y.copy_to_host(), 9 * np.arange(N, dtype="f4"))

    @cached_kernel(cache=cache)
    def add(x, y, factor=2.0):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        if i < x.size:
            y[i] += factor * x[i]

    for _ in range(3):
        add[8, 128](x, y, -1.0)
        add[8, 128](y=y, factor=-1.0, x=x)
        add[8, 128](x, y=y)
    np.testing.assert_array_equal(y.copy_to_host(), 9 * np.arange(N, dtype="f4"))


def test_measures_agree_with_cupy(cache: KernelCache) -> None:
    """The same attributes under the same names, the same occupancy and block."""
    cupy = pytest.importorskip("cupy")

    kernel = cached_kernel(SAXPY, cache=cache)
    raw = cupy.RawKernel(SAXPY, "saxpy")
    raw.compile()
    assert set(kernel.attributes) >= set(raw.attributes)
    assert kernel.attributes["num_regs"] == kernel.regs_per_thread
    same = ("max_threads_per_block", "shared_size_bytes", "binary_version", "max_dynamic_shared_size_bytes")
    assert {name: kernel.attributes[name] for name in same} == {name: raw.attributes[name] for name in same}
    own = cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(kernel.handle, 256, 0)
    _, block = cupy.cuda.driver.occupancyMaxPotentialBlockSize(kernel.handle, 0, 0)
    assert kernel.occupancy(256) == kernel.occupancy((16, 16)) == own
    assert kernel.suggested_block() == block
    assert kernel.occupancy(256, sharedmem=100_000) < own
    assert kernel.max_cooperative_grid_blocks(256) % own == 0


def test_time_tells_long_kernels_from_short_ones(cache: KernelCache) -> None:
    """A kernel that waits for four million clock ticks takes so long; an empty one does not."""
    wait = cached_kernel(
        'extern "C" __global__ void wait(long long ticks)'
        "{ long long start = clock64(); while (clock64() - start < ticks) {} }",
        cache=cache,
    )
    short, long = wait.time(1, 1, 0, repeats=9), wait.time(1, 1, ticks=4_000_000, repeats=9)
    print(f"empty {short * 1e3:.1f} us, four million ticks {long:.3f} ms")

    assert 0 < short < 0.5
    assert 1 < long < 10  # at 0.4 to 4 GHz


def test_texture_and_surface_of_cupy_are_read_and_written(cache: KernelCache) -> None:
    """The kernel reads each texel unfiltered, and the surface has what it wrote."""
    cupy = pytest.importorskip("cupy")
    from cupy.cuda import runtime
    from cupy.cuda.texture import (
        ChannelFormatDescriptor,
        CUDAarray,
        ResourceDescriptor,
        SurfaceObject,
        TextureDescriptor,
        TextureObject,
    )

    width, height = 16, 4
    channel = ChannelFormatDescriptor(32, 0, 0, 0, runtime.cudaChannelFormatKindFloat)

    def array() -> Any:
        return CUDAarray(channel, width, height, 0, runtime.cudaArraySurfaceLoadStore)

    given = np.arange(width * height, dtype="f4").reshape(height, width)
    source, target = array(), array()
    source.copy_from(given)
    texture = TextureObject(
        ResourceDescriptor(runtime.cudaResourceTypeArray, cuArr=source),
        TextureDescriptor(
            (runtime.cudaAddressModeClamp,) * 2, runtime.cudaFilterModePoint, runtime.cudaReadModeElementType
        ),
    )
    surface = SurfaceObject(ResourceDescriptor(runtime.cudaResourceTypeArray, cuArr=target))
    kernel = cached_kernel(
        r"""
    extern "C" __global__ void copy(cudaTextureObject_t from, cudaSurfaceObject_t to, float *out, int width) {
        int x = threadIdx.x, y = threadIdx.y;
        float texel = tex2D<float>(from, x, y);
        out[y * width + x] = texel;
        surf2Dwrite(2 * texel, to, x * sizeof(float), y);
    }""",
        cache=cache,
    )
    out = cupy.zeros((height, width), cupy.float32)
    for _ in range(3):
        kernel[1, (width, height)](texture, surface, out, width)
    written = np.empty_like(given)
    cupy.cuda.Device().synchronize()
    target.copy_to(written)

    np.testing.assert_array_equal(out.get(), given)
    np.testing.assert_array_equal(written, 2 * given)


def test_complex_numbers_and_signed_arrays_arrive(cache: KernelCache) -> None:
    """`double2` and `float2` get both parts of a complex number; pointers to unsigned integers get the bits of signed
    ones."""
    torch = pytest.importorskip("torch")

    pairs = cached_kernel(
        r"""
    extern "C" __global__ void parts(double2 a, float2 b, double *out) {
        out[0] = a.x; out[1] = a.y; out[2] = b.x; out[3] = b.y;
    }""",
        cache=cache,
    )
    out = torch.zeros(4, dtype=torch.float64, device="cuda")
    for _ in range(3):
        pairs[1, 1](1.5 - 2j, -0.25 + 8j, out)
    assert out.tolist() == [1.5, -2, -0.25, 8]

    shift = cached_kernel(
        r"""
    extern "C" __global__ void shift(unsigned *a, unsigned short *b, unsigned long long *c) {
        *a >>= 1; *b >>= 1; *c >>= 1;
    }""",
        cache=cache,
    )
    values = [torch.full((1,), -1, dtype=each, device="cuda") for each in (torch.int32, torch.int16, torch.int64)]
    for _ in range(3):
        shift[1, 1](*values)
    assert [int(each) for each in values] == [2**29 - 1, 2**13 - 1, 2**61 - 1]
