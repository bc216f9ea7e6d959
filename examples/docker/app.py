"""A service that starts often: its kernels are compiled when its image is built, and only loaded when it starts.

`python app.py` is the service; `python examples/docker/app.py` runs it anywhere. With a GPU the kernels run and are
checked against NumPy. Without one the launches are skipped, and the script says so.
"""

import time

import numpy as np
from numba import cuda

import numba_kcache
from numba_kcache import cached_kernel


@cached_kernel
def saxpy():
    return r"""
    extern "C" __global__ void saxpy(float a, const float *x, float *y, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) y[i] = a * x[i] + y[i];
    }"""


@cached_kernel(signature="void(float32[::1], float32)")
def scale(x, factor):
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= factor


def main() -> None:
    """Launch the kernels once, as for a request, and print times and counts."""
    start = time.perf_counter()
    if cuda.is_available():
        n = 1003
        x, y = cuda.to_device(np.ones(n, np.float32)), cuda.to_device(np.arange(n, dtype=np.float32))
        scale.forall(n)(x, 3.0)
        saxpy.forall(n)(2.0, x, y, n)
        np.testing.assert_allclose(y.copy_to_host(), 6 + np.arange(n))
        what = "launched and checked against NumPy"
    else:
        what = "no CUDA device: launches skipped"
    info = numba_kcache.info("process")
    seconds = time.perf_counter() - start
    print(f"service: {seconds * 1e3:.1f} ms, {info.compiles} compiles, {info.hits} hits ({what})")


if __name__ == "__main__":
    main()
