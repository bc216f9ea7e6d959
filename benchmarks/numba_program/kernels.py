"""Twenty kernels that call device functions of three other files, and the NumPy equivalent of each.

With `KC_PROGRAM=numba` in the environment, Numba's own `cuda.jit(cache=True)` decorates them instead of
`cached_kernel`; with `KC_PROGRAM=signatures`, `cached_kernel` gets the types of the arguments.
"""

import os

import numpy as np
from curves import COEFFICIENTS, RATE, WIDTH, bell, logistic, polynomial, smoothstep
from numba import cuda
from stencils import average, laplace, slope
from vectors import clamp, length, lerp, wrap

if os.environ.get("KC_PROGRAM") == "numba":
    kernel = cuda.jit(cache=True)
else:
    from numba_kcache import cached_kernel as kernel

    if os.environ.get("KC_PROGRAM") == "signatures":
        kernel = kernel(signature="void(float32[::1], float32[::1], float32[::1])")

FACTOR = 2.5
THREADS = 64
BINS = 8


@kernel
def scaled(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = FACTOR * x[i]


@kernel
def added(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = FACTOR * x[i] + y[i]


@kernel
def multiplied(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] * y[i]


@kernel
def lengths(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = length(x[i], y[i])


@kernel
def blended(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = lerp(x[i], y[i], 0.25)


@kernel
def clamped(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = clamp(x[i], -0.5, 0.5)


@kernel
def smoothed(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = smoothstep(x[i])


@kernel
def bells(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = bell(x[i])


@kernel
def grown(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = logistic(x[i])


@kernel
def powers(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = polynomial(x[i])


@kernel
def diffused(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + 0.1 * laplace(x, i)


@kernel
def averaged(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = average(x, i)


@kernel
def slopes(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = slope(x, i)


@kernel
def advected(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] - y[i] * slope(x, i)


@kernel
def far_bells(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = bell(length(x[i], y[i]))


@kernel
def smooth_blends(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = lerp(x[i], y[i], smoothstep(x[i]))


@kernel
def shifted(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[wrap(i + 3, x.size)]


@kernel
def turned(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[x.size - 1 - i]


@kernel
def block_sums(x, y, out):
    """Every thread gets the sum over its block."""
    shared = cuda.shared.array(THREADS, np.float32)
    i, lane = cuda.grid(1), cuda.threadIdx.x
    shared[lane] = x[i] if i < x.size else 0.0
    cuda.syncthreads()
    total = 0.0
    for j in range(THREADS):
        total += shared[j]
    if i < out.size:
        out[i] = total


@kernel
def histogram(x, y, out):
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(out, int(clamp((x[i] + 1.0) * 0.5 * BINS, 0.0, BINS - 1.0)), 1.0)


def smooth(x):
    t = np.clip(x, 0, 1)
    return t * t * (3 - 2 * t)


def binned(x):
    bins = np.clip((x.astype(np.float64) + 1) * 0.5 * BINS, 0, BINS - 1).astype(int)
    return np.bincount(bins, minlength=x.size)


WANTED = {
    scaled: lambda x, y: FACTOR * x,
    added: lambda x, y: FACTOR * x + y,
    multiplied: lambda x, y: x * y,
    lengths: lambda x, y: np.hypot(x, y),
    blended: lambda x, y: x + (y - x) * 0.25,
    clamped: lambda x, y: np.clip(x, -0.5, 0.5),
    smoothed: lambda x, y: smooth(x),
    bells: lambda x, y: np.exp(-(x**2) / (2 * WIDTH**2)),
    grown: lambda x, y: 1 / (1 + np.exp(-RATE * x)),
    powers: lambda x, y: np.polyval(COEFFICIENTS, x),
    diffused: lambda x, y: x + 0.1 * (np.roll(x, 1) - 2 * x + np.roll(x, -1)),
    averaged: lambda x, y: (np.roll(x, 1) + x + np.roll(x, -1)) / 3,
    slopes: lambda x, y: (np.roll(x, -1) - np.roll(x, 1)) / 2,
    advected: lambda x, y: x - y * (np.roll(x, -1) - np.roll(x, 1)) / 2,
    far_bells: lambda x, y: np.exp(-(x**2 + y**2) / (2 * WIDTH**2)),
    smooth_blends: lambda x, y: x + (y - x) * smooth(x),
    shifted: lambda x, y: np.roll(x, -3),
    turned: lambda x, y: x[::-1],
    block_sums: lambda x, y: np.repeat(x.reshape(-1, THREADS).sum(axis=1), THREADS),
    histogram: lambda x, y: binned(x),
}
"""The NumPy equivalent of each kernel, for arrays whose size is a multiple of THREADS."""
