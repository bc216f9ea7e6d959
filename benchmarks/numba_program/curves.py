"""Curves with constants of this file: an edit of a constant changes every kernel that uses it."""

import math

import numpy as np
from numba import cuda
from vectors import clamp

WIDTH = 0.75
RATE = 3.0
COEFFICIENTS = np.array([0.5, -1.0, 0.25, 2.0], np.float32)


@cuda.jit(device=True)
def smoothstep(t):
    t = clamp(t, 0.0, 1.0)
    return t * t * (3.0 - 2.0 * t)


@cuda.jit(device=True)
def bell(x):
    return math.exp(-x * x / (2.0 * WIDTH * WIDTH))


@cuda.jit(device=True)
def logistic(x):
    return 1.0 / (1.0 + math.exp(-RATE * x))


@cuda.jit(device=True)
def polynomial(x):
    total = 0.0
    for i in range(4):
        total = total * x + COEFFICIENTS[i]
    return total
