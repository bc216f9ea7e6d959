"""Device functions for numba_kernels.py, in a separate file: they are part of the kernels' code."""

import math

from numba import cuda

WIDTH = 0.5


@cuda.jit(device=True)
def bell(x):
    return math.exp(-(x * x) / (2 * WIDTH * WIDTH))


@cuda.jit(device=True)
def blended(x, y, share):
    return bell(x) * share + bell(y) * (1.0 - share)
