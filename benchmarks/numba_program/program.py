"""Run twenty Numba kernels, spread with their device functions over four files, and compare each with NumPy.

Needs a GPU. Run it twice: the second process compiles nothing. `python benchmarks/numba_program/program.py`
"""

import time

import numpy as np
from kernels import THREADS, WANTED
from numba import cuda

SIZE = 64 * THREADS


def run_all(is_checked=True):
    """Run every kernel; return the seconds until the first result and until the last, and the number of kernels."""
    random = np.random.default_rng(1)
    x, y = (random.uniform(-1, 1, SIZE).astype(np.float32) for _ in range(2))
    on_device = cuda.to_device(x), cuda.to_device(y)
    outputs = [cuda.to_device(np.zeros(SIZE, np.float32)) for _ in WANTED]
    cuda.synchronize()
    start, ends = time.perf_counter(), []
    for kernel, out in zip(WANTED, outputs, strict=True):
        kernel[SIZE // THREADS, THREADS](*on_device, out)
        cuda.synchronize()
        ends.append(time.perf_counter() - start)
    if is_checked:
        for wanted, out in zip(WANTED.values(), outputs, strict=True):
            np.testing.assert_allclose(out.copy_to_host(), wanted(x, y), rtol=1e-4, atol=1e-4)
    return ends[0], ends[-1], len(ends)


if __name__ == "__main__":
    first, last, count = run_all()
    print(f"{count} kernels checked: the first result after {first * 1e3:.1f} ms, the last after {last * 1e3:.1f} ms")
