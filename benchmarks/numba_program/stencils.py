"""Neighbours on a ring."""

from numba import cuda
from vectors import wrap


@cuda.jit(device=True)
def laplace(x, i):
    return x[wrap(i - 1, x.size)] - 2.0 * x[i] + x[wrap(i + 1, x.size)]


@cuda.jit(device=True)
def average(x, i):
    return (x[wrap(i - 1, x.size)] + x[i] + x[wrap(i + 1, x.size)]) / 3.0


@cuda.jit(device=True)
def slope(x, i):
    return 0.5 * (x[wrap(i + 1, x.size)] - x[wrap(i - 1, x.size)])
