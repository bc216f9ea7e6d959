"""Device functions that the other files build on."""

import math

from numba import cuda


@cuda.jit(device=True)
def length(x, y):
    return math.sqrt(x * x + y * y)


@cuda.jit(device=True)
def lerp(a, b, t):
    return a + (b - a) * t


@cuda.jit(device=True)
def clamp(value, low, high):
    return min(max(value, low), high)


@cuda.jit(device=True)
def wrap(i, n):
    return (i + n) % n
