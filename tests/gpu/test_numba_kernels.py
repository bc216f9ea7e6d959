"""Numba kernels on a real device: bit for bit what Numba computes, cold, from the cache and after a reset."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fake_driver import ROOT

PATH = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])

pytestmark = pytest.mark.gpu

RESULTS = r"""
import hashlib, json, sys, warnings
warnings.simplefilter("ignore")
import numpy as np
from numba import cuda, float32
import numba_kcache
from numba_kcache import KernelCache, cached_kernel

cache = KernelCache(sys.argv[1])
random = np.random.default_rng(1)
N = 10_007
SCALE = 1.7

@cuda.jit(device=True)
def shaped(x):
    return x * SCALE + 0.25

def elementwise(x, factor, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = shaped(x[i]) * factor

def matrix(x, out):
    i, j = cuda.grid(2)
    if i < out.shape[0] and j < out.shape[1]:
        out[i, j] = x[i, j] + i * 10 + j

def records(r, out):
    i = cuda.grid(1)
    if i < r.size:
        out[i] = r[i].a * 2 + r[i].b

def complexes(z, w, out):
    i = cuda.grid(1)
    if i < z.size:
        out[i] = z[i] * w + z[i].real

def halves(h, f, out):
    i = cuda.grid(1)
    if i < h.size:
        out[i] = h[i] * f + h[i]

def reshaped(x, out):
    i = cuda.grid(1)
    y = x.reshape(4, x.size // 4)
    if i < out.size:
        out[i] = y[3, i]

def together(x):
    grid = cuda.cg.this_grid()
    i = cuda.grid(1)
    x[i] += 1
    grid.sync()
    x[i] += x[(i + 1) % x.size] * 0
    grid.sync()

def tupled(t, x):
    if cuda.grid(1) == 0:
        x[0] = t[0] + t[1][0] * t[1][1]

def bfloats(out):
    if cuda.grid(1) == 0:
        out[0] = float32(bfloat16(1.5) + bfloat16(2.25))

from numba.cuda.types import bfloat16

record = np.zeros(N, np.dtype([("a", np.int32), ("b", np.float64)], align=True))
record["a"], record["b"] = random.integers(-99, 99, N), random.random(N)
f4, f8 = random.random(N, dtype=np.float32), random.random(N)
image = random.random((33, 57))
d = cuda.to_device
CASES = {
    "float32": (elementwise, lambda: (d(f4), np.float32(1.3), d(np.zeros(N, "f4")))),
    "float64": (elementwise, lambda: (d(f8), 1.3, d(np.zeros(N)))),
    "integers": (elementwise, lambda: (d(np.arange(N, dtype="i2")), -3, d(np.zeros(N)))),
    "strided": (elementwise, lambda: (d(np.repeat(f8, 2))[::2], 2.0, d(np.zeros(N)))),
    "host arrays": (elementwise, lambda: (f8, 1.3, np.zeros(N))),
    "C": (matrix, lambda: (d(image), d(np.zeros(image.shape)))),
    "F": (matrix, lambda: (d(np.asfortranarray(image)), d(np.zeros(image.shape)))),
    "A": (matrix, lambda: (d(np.repeat(image, 2, 1))[:, ::2], d(np.zeros(image.shape)))),
    "records": (records, lambda: (d(record), d(np.zeros(N)))),
    "complex": (complexes, lambda: (d(f8 + 1j), 2 - 0.5j, d(np.zeros(N, "c16")))),
    "fp16": (halves, lambda: (d(f4.astype("f2")), np.float16(0.3), d(np.zeros(N, "f2")))),
    "reshape": (reshaped, lambda: (d(f8[:10_000]), d(np.zeros(2500)))),
    "cooperative": (together, lambda: (d(np.zeros(1024)),)),
    "tuple": (tupled, lambda: ((1, (2.0, np.int8(3))), d(np.zeros(1)))),
    "bf16": (bfloats, lambda: (d(np.zeros(1, "f4")),)),
}
GRIDS = {matrix: ((3, 4), (16, 16)), together: (4, 256)}

def digest(kernel, make):
    arguments = make()
    kernel(*arguments)
    last = arguments[-1]
    return hashlib.sha256((last if isinstance(last, np.ndarray) else last.copy_to_host()).tobytes()).hexdigest()

def digests(wrap):
    made = {}
    for name, (function, make) in CASES.items():
        kernel = wrap(function)[GRIDS.get(function, (40, 256))]
        made[name] = {digest(kernel, make) for _ in range(11 if name != "host arrays" else 2)}
    return made

own = digests(cuda.jit)
kept = {}
ours = digests(lambda function: kept.setdefault(function, cached_kernel(function, cache=cache)))
cuda.current_context().reset()
again = digests(lambda function: kept[function])
print(json.dumps({
    "differ": [name for name in CASES if not own[name] == ours[name] == again[name] or len(own[name]) != 1],
    "misses": cache.info("process").misses, "hits": cache.info("process").hits, "cases": len(CASES),
}))
"""


def child(program: str, *arguments: object, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": PATH, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.strip().splitlines()[-1]


def test_results_are_numbas_bit_for_bit(tmp_path: Path) -> None:
    """Scalars, layouts, records, complex, fp16, bf16, reshape, cooperative grids: cold, warm, and after a reset."""
    cold, warm = json.loads(child(RESULTS, tmp_path)), json.loads(child(RESULTS, tmp_path))

    assert cold["differ"] == warm["differ"] == []
    assert (cold["hits"], warm["misses"]) == (0, 0)
    assert warm["hits"] == cold["misses"] >= cold["cases"] - 1


DEBUG = r"""
import sys, warnings
warnings.simplefilter("ignore")
import numpy as np
from numba import cuda
from numba_kcache import KernelCache, cached_kernel
cache = KernelCache(sys.argv[1])

def kernel(x, i):
    if i > 7:
        raise ValueError("too far")
    x[i] = x[i] // i

x = cuda.to_device(np.ones(8, np.int64))
for wrap in (lambda f: cuda.jit(f, debug=True, opt=False), lambda f: cached_kernel(f, debug=True, opt=0, cache=cache)):
    made = wrap(kernel)
    for value in (9, 0):
        try:
            made[1, 1](x, value)
        except Exception as error:
            print(type(error).__name__, error)
        else:
            print("nothing raised")
print(cache.info("process").misses)
"""


def test_debug_exceptions_are_numbas(tmp_path: Path) -> None:
    """An exception of a kernel reaches Python with its type, message, place and thread, on a hit too."""
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", DEBUG, str(tmp_path)], env={**os.environ, "PYTHONPATH": PATH},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        *said, misses = done.stdout.strip().splitlines()
        assert said[:2] == said[2:]
        assert said[0].startswith("ValueError")
        assert "too far" in said[0]
    assert misses == "0"


LINK = r"""
import sys
import numpy as np
from numba import cuda
from numba_kcache import KernelCache, cached_kernel
cache = KernelCache(sys.argv[1])
external = cuda.declare_device("external", "float64(float64)")
code = cuda.CUSource('extern "C" __device__ int external(double *r, double x) { *r = 3.0 * x; return 0; }')

@cached_kernel(cache=cache, link=[code])
def kernel(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] = external(x[i])

x = cuda.to_device(np.arange(100.0))
kernel.forall(100)(x)
assert (x.copy_to_host() == np.arange(100.0) * 3).all()
print(cache.info("process").misses)
"""


def test_linked_kernel_is_right_and_cached(tmp_path: Path) -> None:
    """CUDA C++ beside a Numba kernel, through `forall`."""
    assert [child(LINK, tmp_path), child(LINK, tmp_path)] == ["1", "0"]


INSTALLED = r"""
import numpy as np
import numba_kcache
from numba import cuda

@cuda.jit
def kernel(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] += 1

host = np.arange(100.0)
kernel[1, 128](host)
kernel.forall(100)(host)
assert (host == np.arange(100.0) + 2).all()
print(numba_kcache.info("process").misses, kernel.stats.cache_path is not None)
"""


def test_installed_program_is_right_and_cached(tmp_path: Path) -> None:
    """An unedited program under NUMBA_KCACHE_INSTALL=all."""
    env = {"NUMBA_KCACHE_INSTALL": "all", "NUMBA_KCACHE_DIR": str(tmp_path)}
    assert [child(INSTALLED, **env), child(INSTALLED, **env)] == ["1 True", "0 True"]
