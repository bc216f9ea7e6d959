"""Device functions for numba_kernels.py: part of the kernels' code, in a file of their own."""

import math

from numba import cuda

WIDTH = 0.5


@cuda.jit(device=True)
def bell(x):
    return math.exp(-(x * x) / (2 * WIDTH * WIDTH))


@cuda.jit(device=True)
def blended(x, y, share):
    return bell(x) * share + bell(y) * (1.0 - share)
