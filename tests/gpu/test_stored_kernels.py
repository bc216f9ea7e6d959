"""Stored kernels of both Numbas on a device, launched without importing Numba: right results, in fresh processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

PROGRAM = """
import importlib, json, os, sys
cuda = importlib.import_module(sys.argv[1])
import numba_kcache
library = sys.argv[2]

SCALE = 3.0

@cuda.jit(device=True)
def scaled(x):
    return x * SCALE

@cuda.jit
def kernel(x, add, out, total):
    tile = cuda.shared.array(64, dtype=cuda.float32)
    i = cuda.grid(1)
    tile[cuda.threadIdx.x] = x[i]
    cuda.syncthreads()
    out[i] = scaled(tile[63 - cuda.threadIdx.x]) + add
    cuda.atomic.add(total, 0, cuda.libdevice.sqrtf(x[i]))

if library == "driver":
    import ctypes
    from cuda.bindings import driver
    driver.cuInit(0)
    driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(driver.cuDeviceGet(0)[1])[1])

    class Memory:
        def __init__(self, values):
            self.host = (ctypes.c_float * len(values))(*values)
            self.address = int(driver.cuMemAlloc(4 * len(values))[1])
            driver.cuMemcpyHtoD(self.address, ctypes.addressof(self.host), 4 * len(values))
            self.__cuda_array_interface__ = {
                "shape": (len(values),), "typestr": "<f4", "data": (self.address, False), "version": 3}

        def tolist(self):
            driver.cuMemcpyDtoH(ctypes.addressof(self.host), self.address, ctypes.sizeof(self.host))
            return list(self.host)
    array = Memory
elif library == "cupy":
    import cupy
    array = lambda values: cupy.array(values, "f4")
else:
    import torch
    array = lambda values: torch.tensor(values, dtype=torch.float32, device="cuda")

values = [float(i % 10) for i in range(128)]
x, out, total = array(values), array([0.0] * 128), array([0.0])
for _ in range(3):
    kernel[2, 64](x, 0.5, out, total)
cuda.synchronize()
assert out.tolist() == [values[64 * (i // 64) + 63 - i % 64] * 3 + 0.5 for i in range(128)]
assert abs(total.tolist()[0] - 3 * sum(each ** 0.5 for each in values)) < 0.01
found = numba_kcache.info("process")
loaded = sorted({"numba", "numba_cuda", "numba_cuda_mlir"} & sys.modules.keys())
print(json.dumps([found.hits, found.misses, loaded, kernel.explain().to_dict()["imported"]]))
"""


@pytest.mark.parametrize("library", ["driver", "cupy", "torch"])
@pytest.mark.parametrize(
    ("module", "package"), [("numba_kcache.cuda", "numba_cuda"), ("numba_kcache.mlir.cuda", "numba_cuda_mlir")]
)
def test_stored_kernel_is_right_without_numba(tmp_path: Path, module: str, package: str, library: str) -> None:
    """The second process gives the same results as the first, hits, and has imported no Numba; except one that lies in
    a folder of PYTHONPATH, where it counts by its files."""
    pytest.importorskip(package)
    if library != "driver":
        pytest.importorskip(library)
    command = [sys.executable, "-c", PROGRAM, module, library]
    env = {**os.environ, "NUMBA_KCACHE_DIR": str(tmp_path)}

    said = [json.loads(subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True).stdout) for _ in range(2)]

    assert said[0][:2] == [0, 1]
    assert said[1][:2] == [1, 0]
    assert said[1][2] == [] or "counts by its files, not by a version" in said[1][3]
