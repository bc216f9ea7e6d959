"""Three CUDA C++ kernels, compiled once and served from disk to a second process.

With a GPU the kernels run and are checked against NumPy. Without one they are compiled for sm_90 and stored; the
launches are skipped, and the script says so. Run it: `python examples/first_kernels.py`.
"""

import numpy as np
import two_processes
from numba import cuda

from numba_kcache import cached_kernel


@cached_kernel(arch="auto")
def saxpy():
    return r"""
    extern "C" __global__ void saxpy(float a, const float *x, float *y, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) y[i] = a * x[i] + y[i];
    }"""


@cached_kernel(arch="auto")
def block_sum():
    return r"""
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


@cached_kernel(arch="auto")
def blur():
    return r"""
    extern "C" __global__ void blur(const float *in, float *out, int height, int width) {
        int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
        if (x < 1 || y < 1 || x >= width - 1 || y >= height - 1) return;
        const float *at = in + y * width + x;
        out[y * width + x] = 0.2f * (at[0] + at[-1] + at[1] + at[-width] + at[width]);
    }"""


def launch_and_check() -> None:
    """Run the kernels on the device and compare their results with NumPy."""
    random = np.random.default_rng(1)
    n = 100_003  # not a multiple of the block size
    x, y = random.random(n, dtype=np.float32), random.random(n, dtype=np.float32)
    d_y = cuda.to_device(y)
    saxpy.forall(n)(2.0, cuda.to_device(x), d_y, n)
    np.testing.assert_allclose(d_y.copy_to_host(), 2 * x + y, rtol=1e-6)

    values, block = random.random(n), 256
    d_sums = cuda.device_array(-(-n // block))
    block_sum[d_sums.size, block, 0, block * 8](cuda.to_device(values), d_sums, n)
    np.testing.assert_allclose(d_sums.copy_to_host().sum(), values.sum(), rtol=1e-12)

    image = random.random((131, 257), dtype=np.float32)
    d_out = cuda.to_device(np.zeros_like(image))
    blur[(9, 5), (32, 32)](cuda.to_device(image), d_out, *image.shape)
    wanted = image[1:-1, 1:-1] + image[1:-1, :-2] + image[1:-1, 2:] + image[:-2, 1:-1] + image[2:, 1:-1]
    np.testing.assert_allclose(d_out.copy_to_host()[1:-1, 1:-1], 0.2 * wanted, rtol=1e-5)


if __name__ == "__main__":
    two_processes.run(launch_and_check, saxpy, block_sum, blur)
