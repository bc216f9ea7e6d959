"""Arrays, streams and memory of CuPy and PyTorch through the compiled module, on a real device."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from numba_kcache import ArgumentError, KernelCache, cached_kernel

pytestmark = pytest.mark.gpu

N = 1000


@pytest.fixture
def cache(tmp_path: Path) -> KernelCache:
    return KernelCache(str(tmp_path))


@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_numba_kernel_takes_their_arrays(cache: KernelCache, library: str) -> None:
    """Contiguous and strided arrays, launched repeatedly, give the values that Numba's own arrays give."""
    from numba import cuda

    module: Any = pytest.importorskip(library)
    more = {"device": "cuda"} if library == "torch" else {}

    @cached_kernel(cache=cache)
    def add(x, y, factor):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        if i < x.size:
            y[i] += factor * x[i]

    for step in (1, 2):
        x = module.arange(N, dtype=module.float32, **more)[::step]
        y = module.ones(N, dtype=module.float32, **more)[::step]
        for _ in range(4):
            add[8, 128](x, y, 0.5)
        found = y.cpu().numpy() if library == "torch" else y.get()
        np.testing.assert_array_equal(found, 1 + 2 * np.arange(N, dtype="f4")[::step])


@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_work_of_their_current_stream_is_done_before_the_launch(cache: KernelCache, library: str) -> None:
    """A launch on the default stream waits for writes on the library's stream, and the library's reads wait for the
    launch."""
    module: Any = pytest.importorskip(library)
    kernel = cached_kernel(
        'extern "C" __global__ void k(float *y, int n)'
        "{ for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) y[i] *= 2; }",
        cache=cache,
    )
    count = 1 << 24
    more = {"device": "cuda"} if library == "torch" else {}
    stream = module.cuda.Stream(non_blocking=True) if library == "cupy" else module.cuda.Stream()
    y = module.zeros(count, dtype=module.float32, **more)
    for _ in range(6):
        with stream if library == "cupy" else module.cuda.stream(stream):
            for _ in range(20):
                y += 1
            kernel[128, 256](y, count)
        stream.synchronize()
        y[:] = 0
        module.cuda.Device().synchronize() if library == "cupy" else module.cuda.synchronize()
    with stream if library == "cupy" else module.cuda.stream(stream):
        for _ in range(20):
            y += 1
        kernel[128, 256](y, count)
    module.cuda.Device().synchronize() if library == "cupy" else module.cuda.synchronize()
    assert float(y[0]) == float(y[-1]) == 40


def test_tensor_that_is_negated_or_conjugated_on_paper_is_refused(cache: KernelCache) -> None:
    """Lazily negated or conjugated tensors are refused at the first launch and later, also as views; plain tensors on
    the same memory are accepted."""
    torch: Any = pytest.importorskip("torch")
    kernel = cached_kernel('extern "C" __global__ void k(float *y) { y[0] += 1; }', cache=cache, strided=True)
    numbers = torch.zeros(4, dtype=torch.complex64, device="cuda")
    plain = torch.zeros(4, device="cuda")
    on_paper = [numbers.conj().imag, torch._neg_view(plain), torch._neg_view(plain)[1:], numbers.conj().imag.detach()]

    for _ in range(4):
        kernel[1, 1](plain)
        for each in on_paper:
            with pytest.raises(ArgumentError, match="negation is still pending"):
                kernel[1, 1](each)
    plain.data = torch._neg_view(torch.zeros(4, device="cuda"))
    with pytest.raises(ArgumentError, match="negation is still pending"):
        kernel[1, 1](plain)
    kernel[1, 1](torch._neg_view(plain))

    assert float(-plain[0]) == 1


def test_dropped_kernels_give_their_memory_back(cache: KernelCache) -> None:
    """The driver has only the modules of the last kernels loaded."""
    cupy: Any = pytest.importorskip("cupy")
    y = cupy.zeros(1, dtype=cupy.float32)
    loader = cache.session.loader

    for number in range(40):
        kernel = cached_kernel(f'extern "C" __global__ void k(float *y) {{ y[0] += {number}; }}', cache=cache)
        kernel[1, 1](y)
        cupy.cuda.Device().synchronize()
        del kernel
        gc.collect()

    assert float(y[0]) == sum(range(40))
    assert len(loader._modules) + len(loader._dropped) <= 2
