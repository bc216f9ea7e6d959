"""Numba kernels, compiled once and served from disk to a second process; their device functions live in another file.

With a GPU the kernels run and are checked against NumPy. Without one they are compiled for sm_90 and stored; the
launches are skipped, and the script says so. Run it: `python examples/numba_kernels.py`.
"""

import numba_shapes
import numpy as np
import two_processes
from numba import cuda

from numba_kcache import cached_kernel


@cached_kernel(signature="void(float64[::1], float64[::1], float64, float64[::1])")
def blend(x, y, share, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = numba_shapes.blended(x[i], y[i], share)


@cached_kernel(signature="void(float32[:, ::1], float32[:, ::1])", fastmath=True)
def blur(image, out):
    i, j = cuda.grid(2)
    if 0 < i < out.shape[0] - 1 and 0 < j < out.shape[1] - 1:
        out[i, j] = (image[i - 1, j] + image[i + 1, j] + image[i, j - 1] + image[i, j + 1]) / 4


def launch_and_check() -> None:
    """Run the kernels on the device and compare their results with NumPy."""
    random = np.random.default_rng(1)
    x, y = random.random(100_003), random.random(100_003)
    out = cuda.device_array(x.size)
    blend.forall(x.size)(cuda.to_device(x), cuda.to_device(y), 0.3, out)
    np.testing.assert_allclose(out.copy_to_host(), 0.3 * bell(x) + 0.7 * bell(y), rtol=1e-12)

    image, blurred = random.random((61, 97), dtype=np.float32), np.zeros((61, 97), np.float32)
    blur[(4, 7), (16, 16)](image, blurred)  # host arrays: copied to the device and back, as by Numba
    wanted = (image[:-2, 1:-1] + image[2:, 1:-1] + image[1:-1, :-2] + image[1:-1, 2:]) / 4
    np.testing.assert_allclose(blurred[1:-1, 1:-1], wanted, rtol=1e-5)


def bell(x):
    return np.exp(-(x**2) / (2 * numba_shapes.WIDTH**2))


if __name__ == "__main__":
    two_processes.run(launch_and_check, blend, blur)
