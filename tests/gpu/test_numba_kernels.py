"""Numba kernels on a real device: results equal to Numba's bit for bit, cold, from the cache and after a reset."""

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
import enum, hashlib, json, sys, warnings
from collections import namedtuple
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

def stored(value, out):
    if cuda.grid(1) == 0:
        out[()] = value

def cube(x, out):
    i, j, k = cuda.grid(3)
    if i < x.shape[0] and j < x.shape[1] and k < x.shape[2]:
        out[i, j, k] = x[i, j, k] * (i + 2 * j + 3 * k)

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
class Mode(enum.IntEnum):
    FAST = 1
    SLOW = 70000

Point = namedtuple("Point", "x y")
cuboid = random.random((5, 6, 7), dtype=np.float32)
SCALARS = {
    **{kind: (np.dtype(kind).type(value), kind) for kind, value in (
        ("?", 1), ("i1", -100), ("i2", -30000), ("i4", -(2**31)), ("i8", -(2**62)), ("u1", 200), ("u2", 65000),
        ("u4", 2**32 - 1), ("u8", 2**64 - 1), ("f2", 0.3), ("f4", 1.1), ("f8", 1e300), ("c8", 1 - 2j), ("c16", 3j),
    )},
    "int": (-5, "i8"), "float": (-0.0, "f8"), "inf": (float("-inf"), "f8"), "nan": (float("nan"), "f4"),
    "bool": (True, "?"), "complex number": (0.1 - 1j, "c16"), "large int": (2**63 + 5, "u8"),
    "enum": (Mode.SLOW, "i8"), "datetime": (np.datetime64("2026-01-01", "ns"), "M8[ns]"),
    "timedelta": (np.timedelta64(-7, "s"), "m8[s]"),
}
CASES |= {
    f"scalar {name}": (stored, lambda value=value, kind=kind: (value, d(np.zeros((), kind))))
    for name, (value, kind) in SCALARS.items()
}
CASES |= {
    f"array of {kind}": (elementwise, lambda kind=kind: (d(np.arange(N).astype(kind)), 2.0, d(np.zeros(N))))
    for kind in ("?", "i1", "i4", "i8", "u1", "u2", "u4", "u8")
}
CASES |= {
    "three axes C": (cube, lambda: (d(cuboid), d(np.zeros(cuboid.shape)))),
    "three axes F": (cube, lambda: (d(np.asfortranarray(cuboid)), d(np.zeros(cuboid.shape, order="F")))),
    "three axes A": (cube, lambda: (d(np.repeat(cuboid, 2, 1))[:, ::2], d(np.zeros((5, 12, 7)))[:, ::2])),
    "empty": (elementwise, lambda: (d(f8[:0]), 1.0, d(f8[:0]))),
    "records, strided": (records, lambda: (d(np.repeat(record, 2))[::2], d(np.zeros(N)))),
    "complex64": (complexes, lambda: (d(f4 + np.complex64(1j)), np.complex64(2 - 0.5j), d(np.zeros(N, "c8")))),
    "named tuple": (tupled, lambda: (Point(1, (2.0, np.int8(3))), d(np.zeros(1)))),
    "cupy": (elementwise, lambda: (foreign(f8), 1.3, d(np.zeros(N)))),
}

class Foreign:  # another library's array
    def __init__(self, array):
        self.array, self.__cuda_array_interface__ = array, array.__cuda_array_interface__

def foreign(array):
    return Foreign(d(array))

GRIDS = {matrix: ((3, 4), (16, 16)), together: (4, 256), cube: ((1, 1, 1), (8, 8, 8))}

def digest(kernel, make):
    arguments = make()
    kernel(*arguments)
    last = arguments[-1]
    if not isinstance(last, np.ndarray):
        last = last.copy_to_host() if last.size else np.empty(0)
    return hashlib.sha256(last.tobytes()).hexdigest()

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
    """Scalars of every type, arrays of every layout and element, records, tuples, enums, dates, reshape, cooperative
    grids: cold, warm in another process, and after a reset."""
    cold, warm = json.loads(child(RESULTS, tmp_path)), json.loads(child(RESULTS, tmp_path))

    assert cold["differ"] == warm["differ"] == []
    assert (cold["hits"], warm["misses"]) == (0, 0)
    assert warm["hits"] == cold["misses"] >= cold["cases"] - 9  # cases that share a signature


GIVEN = r"""
import json, sys, warnings
warnings.simplefilter("ignore")
import numpy as np
from numba import cuda
from numba_kcache import KernelCache, cached_kernel

cache = KernelCache(sys.argv[1])
SIGNATURES = "void(float64[:,:], int32, float32, float64[:,:])", [
    "void(float64[:,:], int32, float32, float64[:,:])", "void(float32[:,:], int32, float32, float32[:,:])",
    "void(float64[:,::1], int64, float64, float64[:,::1])",
]

def body(x, shift, factor, out):
    i, j = cuda.grid(2)
    if i < out.shape[0] and j < out.shape[1]:
        out[i, j] = x[i, j] * factor + shift + 10 * i

class Foreign:
    def __init__(self, array):
        self.__cuda_array_interface__ = array.__cuda_array_interface__

random, differ, launches = np.random.default_rng(1), [], 0
for given in SIGNATURES:
    own, ours = cuda.jit(given)(body), cached_kernel(cuda.jit(given)(body), cache=cache)
    for element in ("f8", "f4") if type(given) is list else ("f8",):
        host = random.random((40, 30)).astype(element)
        whole = cuda.to_device(host)
        inputs = {"C": whole, "F": cuda.to_device(np.asfortranarray(host)), "A": whole[::2, 1:9],
                  "interface": Foreign(whole)}
        for name, x in inputs.items():
            for shift, factor in ((3, 2.5), (np.int64(-4), np.float32(0.1)), (np.int16(7), 2), (2**31 + 5, 1e300)):
                wanted, shape = None, x.__cuda_array_interface__["shape"]
                for kernel in own, ours, ours, ours:
                    out = cuda.to_device(np.zeros(shape, element))
                    try:
                        kernel[(4, 4), (16, 16)](x, shift, factor, out)
                        found = out.copy_to_host().tobytes()
                    except Exception as error:
                        found = f"{type(error).__name__}: {error}"
                    if kernel is own:
                        wanted = found
                    elif found != wanted:
                        differ.append([str(given), element, name, str(shift), str(factor)])
                    launches += 1
print(json.dumps({"differ": differ, "launches": launches, **cache.info("process").to_dict()}))
"""


def test_kernels_with_given_signatures_are_numbas_bit_for_bit(tmp_path: Path) -> None:
    """Arrays of every layout, numbers that are converted or do not fit, one signature and several: cold and warm."""
    cold, warm = json.loads(child(GIVEN, tmp_path)), json.loads(child(GIVEN, tmp_path))

    assert cold["differ"] == warm["differ"] == []
    assert cold["launches"] == warm["launches"] == 192
    assert (cold["hits"], warm["misses"]) == (1, 0)  # the first signature of both kernels is the same
    assert warm["hits"] == cold["hits"] + cold["misses"]


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
    """CUDA C++ is linked to a Numba kernel, which `forall` launches."""
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


ATTRIBUTES = r"""
import sys
import numpy as np
from numba import cuda
from numba_kcache import KernelCache, LaunchConfigError, cached_kernel
cache = KernelCache(sys.argv[1])
table = cuda.to_device(np.ones(4))

def body(seen, total):
    grid = cuda.cg.this_grid()
    if cuda.threadIdx.x == 0:
        seen[cuda.blockIdx.x] = 1
    grid.sync()
    if cuda.grid(1) == 0:
        for i in range(cuda.gridDim.x):
            total[0] += seen[i]

def large(x):
    tile = cuda.shared.array(0, np.float64)
    tile[cuda.threadIdx.x + 8000] = cuda.threadIdx.x
    cuda.syncthreads()
    x[cuda.threadIdx.x] = tile[8000 + cuda.blockDim.x - 1 - cuda.threadIdx.x]

def uncached(x):
    tile = cuda.shared.array(0, np.float64)
    tile[cuda.threadIdx.x + 8000] = cuda.threadIdx.x * table[0]
    cuda.syncthreads()
    x[cuda.threadIdx.x] = tile[8000 + cuda.blockDim.x - 1 - cuda.threadIdx.x]

together = cached_kernel(body, cache=cache, cooperative=True)
together.compile(signature="void(int32[::1], int32[::1])")
blocks = together.max_cooperative_grid_blocks(128, signature="void(int32[::1], int32[::1])")
for make in (cuda.to_device, lambda array: array):  # straight, and by Numba's own code
    for _ in range(11):
        seen, total = make(np.zeros(blocks + 1, np.int32)), make(np.zeros(1, np.int32))
        together[blocks, 128](seen, total)
        assert (total if isinstance(total, np.ndarray) else total.copy_to_host())[0] == blocks
    try:
        cached_kernel(body, cache=cache, cooperative=True)[blocks + 1, 128](seen, total)
    except LaunchConfigError as error:
        assert f"{blocks} of them fit" in str(error)
    else:
        raise AssertionError("one block too many ran")

for function in (large, uncached):
    kernel = cached_kernel(function, cache=cache, max_dynamic_shared=80_000)
    for make in (cuda.to_device, lambda array: array):
        x = make(np.zeros(256))
        kernel[1, 256, 0, 70_000](x)
        assert ((x if isinstance(x, np.ndarray) else x.copy_to_host()) == np.arange(255, -1, -1)).all()

if cuda.get_current_device().compute_capability >= (9, 0):
    kernel = cached_kernel(large, cache=cache, cluster=(4, 2))
    for make in (cuda.to_device, lambda array: array):
        kernel[(8, 4), 256, 0, 70_000](make(np.zeros(256)))
    try:
        kernel[(6, 4), 256, 0, 70_000](cuda.to_device(np.zeros(256)))
    except LaunchConfigError as error:
        assert "clusters are 4 blocks" in str(error)
    else:
        raise AssertionError("a broken cluster ran")
cuda.synchronize()
print(cache.info("process").misses)
"""


def test_launch_attributes_of_numba_kernels_hold(tmp_path: Path) -> None:
    """Cooperative grids, clusters and 70 KB of shared memory: straight, through Numba's code, and for what is not
    cached; on a hit as on a miss."""
    first, second = (int(child(ATTRIBUTES, tmp_path)) for _ in range(2))

    assert second == first - 2, "all but the uncached kernel, once, come from the cache"


FAILING = r"""
import os, sys
import numpy as np
from numba import cuda
from numba_kcache import KernelCache, LaunchError, cached_kernel

@cached_kernel
def kernel(x, n):
    x[cuda.grid(1) + n] = 1

x = cuda.to_device(np.zeros(64))
for _ in range(12):
    kernel[1, 64](x, 0)
try:
    kernel[2, 64](x, 1 << 36)
except LaunchError as error:
    print(error.what, error.why, sep=" | ", flush=True)
os._exit(0)
"""


def test_debug_launches_names_the_numba_kernel_that_failed(tmp_path: Path) -> None:
    """The error comes from the launch itself, with its arguments by name and type."""
    said = child(FAILING, NUMBA_KCACHE_DEBUG="1", NUMBA_KCACHE_DIR=str(tmp_path))

    assert said.startswith("kernel(x: array(float64, 1d, C) = numba.DeviceNDArray of float64 (64,), n: int64 = ")
    assert "failed with grid (2, 1, 1), block (64, 1, 1), sharedmem 0" in said
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in said
