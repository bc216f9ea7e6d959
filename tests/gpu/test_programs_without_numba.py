"""CUDA C++ kernels on a real device in programs that do not use Numba, or use it later."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.test_source_kernels import SAXPY

pytestmark = pytest.mark.gpu

HEAD = f"""
import ctypes, sys
from cuda.bindings import driver
from numba_kcache import *
SAXPY, COUNTING = {SAXPY!r}, '''__device__ int total = 5;
extern "C" __global__ void count(int n, int *out) {{ out[0] = atomicAdd(&total, n); }}'''
N = 1 << 12
class Lent:
    def __init__(self, values, typestr="<f4"):
        host = ((ctypes.c_float if typestr == "<f4" else ctypes.c_int) * len(values))(*values)
        self.address = int(driver.cuMemAlloc(4 * len(values))[1])
        driver.cuMemcpyHtoD(self.address, ctypes.addressof(host), 4 * len(values))
        driver.cuCtxSynchronize()  # from pageable memory it may still go on when the call returns
        self.kind, data = type(host), (self.address, False)
        self.__cuda_array_interface__ = {{"shape": (len(values),), "typestr": typestr, "data": data, "version": 3}}
    def values(self):
        host = self.kind()
        status, = driver.cuMemcpyDtoH(ctypes.addressof(host), self.address, ctypes.sizeof(host))
        assert status == 0, status
        return list(host)
def context(ordinal=0):
    driver.cuInit(0)
    _, held = driver.cuDevicePrimaryCtxRetain(ordinal)
    driver.cuCtxSetCurrent(held)
def saxpy_is_right(kernel, times=1):
    x, y = Lent(range(N)), Lent([1.0] * N)
    for _ in range(times):
        kernel[N // 128, 128](2.0, x, y, N)
    assert y.values() == [2.0 * times * each + 1 for each in range(N)]
"""


def said(folder: Path, script: str) -> str:
    """Output of a fresh process that runs the script with a cache in the folder."""
    env = {**os.environ, "NUMBA_KCACHE_DIR": str(folder / "cache")}
    env["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [env.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", HEAD + script], env=env, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_results_are_right_and_numba_is_not_imported(tmp_path: Path) -> None:
    """Cold and warm, interpreted and compiled launches, on memory that no package owns."""
    script = """
context()
saxpy_is_right(cached_kernel(SAXPY), 20)
print(info("process").compiles, "numba" in sys.modules)
"""
    assert [said(tmp_path, script), said(tmp_path, script)] == ["1 False\n", "0 False\n"]


def test_context_is_made_where_there_is_none(tmp_path: Path) -> None:
    """The launch is the process's first driver call."""
    script = """
kernel = cached_kernel(SAXPY)
kernel[1, 32](2.0, None, None, 0)
saxpy_is_right(kernel)
kernel.forall(N)(2.0, None, None, 0)
print(kernel.regs_per_thread > 0, kernel.max_threads_per_block, "numba" in sys.modules)
"""
    assert said(tmp_path, script) == "True 1024 False\n"


@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_arrays_of_other_libraries_need_no_numba(tmp_path: Path, library: str) -> None:
    """Arrays work in their library's context and on its streams; the compiled module recognises them."""
    pytest.importorskip(library)
    make = {
        "cupy": "import cupy as lib; x, y = lib.arange(N, dtype='f4'), lib.ones(N, 'f4'); stream = lib.cuda.Stream()",
        "torch": "import torch as lib; x = lib.arange(N, dtype=lib.float32, device='cuda'); y = lib.ones_like(x); "
        "stream = lib.cuda.Stream()",
    }[library]
    script = f"""
{make}
kernel = cached_kernel(SAXPY)
for n in range(20):
    kernel[N // 128, 128](2.0, x, y, N)
lib.cuda.{"Device().synchronize()" if library == "cupy" else "synchronize()"}
kernel[N // 128, 128, stream](2.0, x, y, N)
stream.synchronize()
print(y.tolist() == [42.0 * n + 1 for n in range(N)], "numba" in sys.modules)
"""
    assert said(tmp_path, script) == "True False\n"


def test_module_keeps_its_variables_when_numba_comes(tmp_path: Path) -> None:
    """The array over a variable, and the kernels before and after Numba's import, use the same memory; Numba's arrays
    work."""
    script = """
context()
counting, out = cached_module(COUNTING), Lent([0], "<i4")
counting.count[1, 1](3, out)
import numpy as np
from numba import cuda
array = cuda.to_device(np.zeros(1, np.int32))
for _ in range(12):
    counting.count[1, 1](1, array)
total = counting.symbol("total")
print(out.values(), array.copy_to_host(), total.copy_to_host())
total[()] = 100
counting.count[1, 1](1, array)
print(array.copy_to_host())
"""
    assert said(tmp_path, script) == "[5] [19] 20\n[100]\n"


@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_variable_of_a_module_is_an_array_of_the_library(tmp_path: Path, library: str) -> None:
    """The array is over the variable itself: each side reads what the other writes."""
    pytest.importorskip(library)
    take = {"cupy": "asarray", "torch": "as_tensor"}[library]
    more = ', device="cuda"' if take == "as_tensor" else ""
    script = f"""
import {library} as lib
context()
counting, out = cached_module(COUNTING), Lent([0], "<i4")
counting.count[1, 1](3, out)
total = lib.{take}(counting.symbol("total"){more})
print(int(total), tuple(total.shape), total.dtype)
total[()] = 100
lib.cuda.{"Device().synchronize()" if library == "cupy" else "synchronize()"}
counting.count[1, 1](1, out)
del total
print(out.values(), int(lib.{take}(counting.symbol("total"){more})), "numba" in sys.modules)
counting.count[1, 1](1, counting.symbol("total"))
"""
    dtype = "int32" if library == "cupy" else "torch.int32"
    assert said(tmp_path, script) == f"8 () {dtype}\n[100] 101 False\n"


@pytest.mark.parametrize("arrays", ["before", "never"])
def test_kernel_runs_after_numba_has_closed_the_context(tmp_path: Path, arrays: str) -> None:
    """The driver returns an error for a handle of the closed context, and never uses it in the new context."""
    script = f"""
context()
kernel = cached_kernel(SAXPY)
saxpy_is_right(kernel, 12)
import numpy as np
from numba import cuda
if {arrays!r} == "before":
    cuda.to_device(np.zeros(4))
cuda.close()
context()
saxpy_is_right(kernel, 12)
saxpy_is_right(kernel)
print("right")
"""
    assert said(tmp_path, script) == "right\n"


def test_stale_handle_is_answered_with_a_code(tmp_path: Path) -> None:
    """The driver itself does what the test above needs: a new context has another id, and refuses a launch of an old
    handle."""
    script = """
context()
kernel = cached_kernel(SAXPY)
saxpy_is_right(kernel)
from numba_kcache import launch as room
before, stale = room.context_id(), kernel._loaded()[1]
driver.cuDevicePrimaryCtxReset(0)
driver.cuCtxSetCurrent(driver.CUcontext(0))
context()
print(room.context_id() != before, stale.module.has_lost_its_context())
saxpy_is_right(kernel, 12)
"""
    assert said(tmp_path, script) == "True True\n"


@pytest.mark.parametrize(
    "end",
    ["from numba import cuda; cuda.current_context(); cuda.close()", "driver.cuDevicePrimaryCtxReset(0)"],
    ids=["closed", "reset"],
)
def test_arrays_of_two_streams_are_launched_in_the_next_context(tmp_path: Path, end: str) -> None:
    """The kernel is loaded anew before one stream waits for the other."""
    script = f"""
def produced(values):
    array = Lent(values)
    array.__cuda_array_interface__["stream"] = int(driver.cuStreamCreate(1)[1])
    return array
context()
kernel = cached_kernel(SAXPY)
for _ in range(2):
    for _ in range(12):
        x, y = produced(range(N)), produced([1.0] * N)
        kernel[N // 128, 128](2.0, x, y, N)
        driver.cuCtxSynchronize()
        assert y.values() == [2.0 * each + 1 for each in range(N)]
    {end}
    driver.cuCtxSetCurrent(driver.CUcontext(0))
    context()
print("right")
"""
    assert said(tmp_path, script) == "right\n"


def test_kernel_alternates_between_devices(tmp_path: Path) -> None:
    """Each launch runs on the device whose context is current."""
    script = """
driver.cuInit(0)
if driver.cuDeviceGetCount()[1] < 2:
    print("one device")
else:
    kernel = cached_kernel(SAXPY)
    for ordinal in (0, 1, 0, 1):
        context(ordinal)
        saxpy_is_right(kernel, 12)
    print("right", "numba" in sys.modules)
"""
    found = said(tmp_path, script)
    if found == "one device\n":
        pytest.skip("it needs two devices")
    assert found == "right False\n"
