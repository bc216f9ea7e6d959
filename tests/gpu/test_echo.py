"""The bytes of its arguments that a kernel sees, written out by the kernel itself."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from numba_kcache import KernelCache, cached_kernel
from tests.support.echo import CASES, Case, source

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> KernelCache:
    directory: Path = tmp_path_factory.mktemp("echo")
    return KernelCache(directory)


FILLED = (0xAA, 0x55)
"""Bytes of the output before a launch: a byte that the kernel does not write shows under one of them."""


def check_echo(kernel: Any, cases: list[Case], filled: int) -> None:
    """Check that the kernel's parameters had the bytes that C++ has; padding, which need not be copied, is not
    compared."""
    from numba import cuda

    expected = np.frombuffer(b"".join(case.expected for case in cases), np.uint8)
    counts = np.concatenate([~np.isin(np.arange(len(case.expected)), case.padding) for case in cases])
    out = cuda.to_device(np.full(len(expected), filled, np.uint8))
    kernel[1, 1](*[case.argument for case in cases], out)
    np.testing.assert_array_equal(out.copy_to_host()[counts], expected[counts], err_msg=str(cases))


@pytest.mark.parametrize("c_type", dict.fromkeys(case.c_type for case in CASES))
def test_kernel_sees_the_bytes_that_cxx_would_hold(cache: KernelCache, c_type: str) -> None:
    """Each argument of each kind, while launches are interpreted and once the compiled module makes them."""
    cases = [case for case in CASES if case.c_type == c_type]
    kernel = cached_kernel(source(cases[0]), cache=cache)

    for turn in range(16):
        for case in cases:
            check_echo(kernel, [case], FILLED[turn % 2])


def test_kernel_sees_many_parameters_each_in_its_place(cache: KernelCache) -> None:
    """One kernel with parameters of all kinds: every offset after alignment is correct."""
    cases = list({case.c_type: case for case in CASES}.values())
    kernel = cached_kernel(source(*cases), cache=cache)

    for turn in range(12):
        check_echo(kernel, cases, FILLED[turn % 2])


def test_arrays_of_every_library_are_the_memory_they_name(cache: KernelCache) -> None:
    """With Numba, CuPy and PyTorch arrays, on both paths, the kernel writes where the library reads."""
    kernel = cached_kernel(r'extern "C" __global__ void fill(float v, float *x) { x[threadIdx.x] = v; }', cache=cache)
    from numba import cuda

    arrays: list[tuple[Any, Any]] = [(cuda.device_array(32, np.float32), lambda a: a.copy_to_host())]
    try:
        import cupy

        arrays.append((cupy.zeros(32, cupy.float32), cupy.asnumpy))
    except ImportError:
        pass
    try:
        import torch

        arrays.append((torch.zeros(32, device="cuda"), lambda a: a.cpu().numpy()))
        arrays.append((torch.zeros(32, device="cuda", requires_grad=True), lambda a: a.detach().cpu().numpy()))
    except ImportError:
        pass

    for round_ in range(8):
        for array, read in arrays:
            kernel[1, 32](float(round_), array)
            assert (read(array) == round_).all()


def test_tensor_of_another_stream_is_complete_when_the_kernel_reads_it(cache: KernelCache) -> None:
    """PyTorch works long on its own stream; the launch on another stream waits for it on the device."""
    torch = pytest.importorskip("torch")
    kernel = cached_kernel(r'extern "C" __global__ void copy(const float *x, float *y) { *y = *x; }', cache=cache)
    from numba import cuda

    ours, theirs, out = cuda.stream(), torch.cuda.Stream(), cuda.to_device(np.zeros(1, np.float32))
    source_ = torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    for round_ in range(1, 12):
        with torch.cuda.stream(theirs):
            torch.cuda._sleep(20_000_000)
            source_.fill_(round_)
            kernel[1, 1, ours](source_, out)
        ours.synchronize()
        assert out.copy_to_host()[0] == round_


def test_host_arrays_in_wrappers_are_copied_around_the_launch(cache: KernelCache) -> None:
    """`cuda.In`, `Out` and `InOut` do what they do for Numba's kernels."""
    from numba import cuda

    kernel = cached_kernel(
        r'extern "C" __global__ void step(const float *a, float *b, float *c) { b[threadIdx.x] = a[threadIdx.x] + 1;'
        r" c[threadIdx.x] *= 2; }",
        cache=cache,
    )
    a, b, c = np.arange(8, dtype=np.float32), np.zeros(8, np.float32), np.ones(8, np.float32)

    for round_ in range(10):
        b[:] = 0
        kernel[1, 8](cuda.In(a), cuda.Out(b), cuda.InOut(c))
        cuda.synchronize()
        np.testing.assert_array_equal(b, a + 1)
        np.testing.assert_array_equal(c, 2.0 ** (round_ + 1))


def test_threads_that_launch_at_once_each_pass_their_own(cache: KernelCache) -> None:
    """Eight threads, one kernel, many launches: every kernel saw the arguments of its own launch."""
    from numba import cuda

    kernel = cached_kernel(
        r'extern "C" __global__ void mark(int who, float *x, int n) { if (x[n] != who) x[n] += 1000; }', cache=cache
    )
    arrays = [cuda.to_device(np.full(64, who, np.float32)) for who in range(8)]
    failures: list[Exception] = []

    def work(who: int) -> None:
        try:
            for turn in range(2000):
                kernel[1, 1](who, arrays[who], turn % 64)
        except Exception as error:  # handed to the test
            failures.append(error)

    threads = [threading.Thread(target=work, args=(who,)) for who in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cuda.synchronize()

    assert not failures
    for who, array in enumerate(arrays):
        assert (array.copy_to_host() == who).all()
