"""31 matrix products over max-plus, min-plus and max-times from one source, compiled once for all processes to come.

With a GPU every kernel runs and is checked against NumPy: on odd sizes, with ties, and with the semiring's zero (-inf,
+inf or 0) in the matrices. Without one they are compiled for sm_90 and stored; the launches are skipped, and the script
says so. With --lazy each kernel is linked when it is first used. Run: `python examples/gemm_module.py [--lazy]`.
"""

import sys
from pathlib import Path

import numpy as np
from numba import cuda

from numba_kcache import cached_module

LAZY = "--lazy" in sys.argv
gemm = cached_module(Path("tropical_gemm.cu"), lazy=LAZY)

TYPES = {"f32": np.float32, "f64": np.float64, "i32": np.int32, "i64": np.int64}
RINGS = {"maxplus": np.argmax, "minplus": np.argmin, "maxmul": np.argmax}
SIZES = ((1, 1, 1), (67, 129, 33), (130, 65, 7))  # m, n, k


def zero(ring, dtype):
    """The zero of a semiring: the neutral element of its addition."""
    limits = np.iinfo(dtype) if np.issubdtype(dtype, np.integer) else np.finfo(dtype)
    if ring == "maxmul":
        return dtype(0)
    if limits.dtype.kind == "i":
        return dtype(limits.min if ring == "maxplus" else limits.max)
    return dtype(-np.inf if ring == "maxplus" else np.inf)


def matrix(ring, dtype, shape, random):
    """A matrix of few different numbers, so that there are ties, and a fifth of the semiring's zero."""
    numbers = random.integers(0 if ring == "maxmul" else -4, 5, shape).astype(dtype)
    numbers[random.random(shape) < 0.2] = zero(ring, dtype)
    return numbers


def product(ring, a, b):
    """The product of two matrices, and for each element the first k that gives it."""
    dtype = a.dtype.type
    left, right = a[:, :, None], b[None, :, :]
    if ring == "maxmul":
        each = left * right
    else:
        nothing = (left == zero(ring, dtype)) | (right == zero(ring, dtype))
        with np.errstate(over="ignore"):
            each = np.where(nothing, zero(ring, dtype), left + right)
    best = RINGS[ring](each, axis=1)
    return np.take_along_axis(each, best[:, None, :], 1)[:, 0, :], best.astype(np.int32)


def tile(type_name, kind):
    """Rows (and columns) of the result that one block computes; tropical_gemm.cu has the same numbers."""
    return 128 if type_name.endswith("32") and kind != "arg" else 64


def check(name):
    """Run one kernel on the device and compare its results with NumPy."""
    if name.startswith("backward"):
        check_backward(name)
        return
    ring, type_name, *kind = name.split("_")
    kind, dtype, random = kind[0] if kind else "", TYPES[type_name], np.random.default_rng(1)
    side = tile(type_name, kind)
    for m, n, k in SIZES:
        count = 3 if kind == "batched" else 1
        a, b = matrix(ring, dtype, (count, m, k), random), matrix(ring, dtype, (count, k, n), random)
        wanted = [product(ring, *pair) for pair in zip(a, b, strict=True)]
        c, best = cuda.device_array((count, m, n), dtype), cuda.device_array((m, n), np.int32)
        outputs = (c, best) if kind == "arg" else (c,)
        grid = -(-n // side), -(-m // side), count
        gemm[name][grid, (16, 16)](cuda.to_device(a), cuda.to_device(b), *outputs, m, n, k)
        np.testing.assert_array_equal(c.copy_to_host(), [values for values, _ in wanted])
        if kind == "arg":
            np.testing.assert_array_equal(best.copy_to_host(), wanted[0][1])


def check_backward(name):
    """Run one gradient and compare it with NumPy."""
    _, of, type_name = name.split("_")
    dtype, random = TYPES[type_name], np.random.default_rng(1)
    for m, n, k in SIZES:
        best = random.integers(0, k, (m, n)).astype(np.int32)
        d_c = random.integers(-4, 5, (m, n)).astype(dtype)
        chosen = best[:, None, :] == np.arange(k)[None, :, None]
        gradient = np.where(chosen, d_c[:, None, :], 0).sum(axis=2 if of == "a" else 0).astype(dtype)
        result = cuda.device_array(gradient.shape, dtype)
        rows, columns = gradient.shape
        grid = -(-columns // 16), -(-rows // 16)
        gemm[name][grid, (16, 16)](cuda.to_device(d_c), cuda.to_device(best), result, m, n, k)
        np.testing.assert_array_equal(result.copy_to_host(), gradient)


def launch_and_check():
    """Run the 31 kernels."""
    for name in gemm:
        check(name)


if __name__ == "__main__":
    import two_processes

    two_processes.run(launch_and_check, gemm)
