"""Programs that use a stand-in, or with `REAL=1` the Numba for which it stands; run as children on the fake driver.

Each gets its cache by NUMBA_KCACHE_DIR, and prints one line of JSON: see `END`.
"""

from __future__ import annotations

START = """
import importlib, json, os, sys, warnings
warnings.simplefilter("ignore")
IS_REAL, KIND = "REAL" in os.environ, os.environ.get("KIND", "numba")
NAMES = {"numba": ("numba.cuda", "numba_kcache.cuda"), "mlir": ("numba_cuda_mlir.cuda", "numba_kcache.mlir.cuda")}
cuda = importlib.import_module(NAMES[KIND][not IS_REAL])
import numba_kcache
from numba_kcache import cached_kernel
from numba_kcache.frontends.numba import stand_in

def jit(function=None, **options):
    if function is None:
        return lambda function: jit(function, **options)
    return cached_kernel(function, kind=KIND, **options) if IS_REAL else cuda.jit(function, **options)

class Memory:
    \"\"\"An array of the driver's memory.\"\"\"

    def __init__(self, count=64, typestr="<f4", **more):
        from cuda.bindings import driver
        driver.cuInit(0)
        _, context = driver.cuDevicePrimaryCtxRetain(driver.cuDeviceGet(0)[1])
        driver.cuCtxSetCurrent(context)
        address = int(driver.cuMemAlloc(8 * count)[1])
        self.__cuda_array_interface__ = {
            "shape": (count,), "typestr": typestr, "data": (address, False), "version": 3, **more}

def say(**more):
    found = numba_kcache.info("process")
    known = {"numba", "numpy", "llvmlite", "numba_cuda", "numba_cuda_mlir"}
    print(json.dumps({
        "hits": found.hits, "misses": found.misses, "loaded": sorted(known & sys.modules.keys()),
        "why": stand_in.reasons.get(KIND, ""), "keys": sorted(
            {each.key for kernel in KERNELS for each in kernel._resolutions.known().values()}), **more}))
"""

END = """
say()
"""
"""Prints hits, misses, the modules of Numba that are loaded, why this package imported it, and the kernels' keys."""

COMMON = (
    START
    + """
SCALE, TILE = float(os.environ.get("SCALE", "2.0")), 64

@cuda.jit(device=True)
def helper(x):
    return x * SCALE

@jit
def kernel(x, factor, out):
    tile = cuda.shared.array(TILE, dtype=cuda.float32)
    i = cuda.grid(1)
    tile[cuda.threadIdx.x] = x[i]
    cuda.syncthreads()
    if i < out.size:
        out[i] = helper(tile[cuda.threadIdx.x]) * factor + SCALE
        cuda.atomic.add(out, 0, cuda.libdevice.sqrtf(x[i]))

KERNELS, before = [kernel], dict(globals())
for _ in range(3):
    kernel[1, 64](Memory(), 2.5, Memory())
assert all(globals()[name] is value for name, value in before.items() if name not in ("KERNELS", "before"))
"""
    + END
)
"""A kernel with a device function, shared memory, an atomic, libdevice, a global; its own globals stay as they are."""
