"""How long does a whole process with one cached CUDA C++ kernel take, compared with the least that is possible?

Method      Each sample is a fresh process: import, context, two arrays, the kernel, the result copied back and checked.
            "process" is from its start by the parent until it has ended. "import" (with decoration), "arrays" (with the
            context) and "first" (the first launch with its result) are parts of it. The least is cuda.bindings alone
            with the cubin from a file. numba_kcache runs on the same memory with `__cuda_array_interface__`, on arrays
            of CuPy and torch, and on Numba's. "python alone" and "import ..." are processes that end after that step:
            only the time beyond cuda.bindings could still be saved. "numba" lists the systems whose process had
            imported Numba at its end. Samples alternate.
Not shown   A cold page cache, a network file system under the packages.
"""

from __future__ import annotations

import argparse
import compileall
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from fresh import ROOT, fresh, is_pretended, say

SOURCE = r"""
extern "C" __global__ void saxpy(float a, const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}"""
N = 1 << 14
CUBIN = "saxpy.cubin"


class DriverArray:
    """Device memory with an array interface, allocated by the driver and not by an array package."""

    def __init__(self, address: int) -> None:
        self.__cuda_array_interface__ = {"shape": (N,), "typestr": "<f4", "data": (address, False), "version": 3}


def ours() -> Any:
    from numba_kcache import cached_kernel

    return cached_kernel(SOURCE)


def bare_arrays(driver: Any) -> tuple[int, int]:
    """Create a context and two arrays of ones; return their addresses."""
    import ctypes

    driver.cuInit(0)
    _, device = driver.cuDeviceGet(0)
    _, context = driver.cuDevicePrimaryCtxRetain(device)
    driver.cuCtxSetCurrent(context)
    host = (ctypes.c_float * N)(*[1.0] * N)
    (_, x), (_, y) = driver.cuMemAlloc(4 * N), driver.cuMemAlloc(4 * N)
    for pointer in (x, y):
        driver.cuMemcpyHtoD(pointer, ctypes.addressof(host), 4 * N)
    return int(x), int(y)


def copied(driver: Any, y: int) -> list[float]:
    import ctypes

    host = (ctypes.c_float * N)()
    driver.cuMemcpyDtoH(ctypes.addressof(host), y, 4 * N)
    return list(host)


def run(arrays: Callable[[], Any], launch: Callable[[Any], Any]) -> None:
    """Measure the parts after the imports."""
    imported = time.time()
    operands = arrays()
    ready = time.time()
    values = launch(operands)
    first = time.time() - ready
    assert is_pretended() or {float(values[0]), float(values[N - 1])} == {3.0}
    say(imported=imported, arrays=ready - imported, first=first, numba="numba.cuda" in sys.modules)


def bare() -> None:
    from ctypes import c_float, c_int, c_void_p

    from cuda.bindings import driver

    def launch(pointers: tuple[int, int]) -> list[float]:
        _, module = driver.cuModuleLoadData(Path(os.environ["KC_BENCH_DIR"], CUBIN).read_bytes())
        _, function = driver.cuModuleGetFunction(module, b"saxpy")
        passed = (2.0, *pointers, N), (c_float, c_void_p, c_void_p, c_int)
        driver.cuLaunchKernel(function, N // 256, 1, 1, 256, 1, 1, 0, 0, passed, 0)
        return copied(driver, pointers[1])

    run(lambda: bare_arrays(driver), launch)


def on_driver_memory() -> None:
    from cuda.bindings import driver

    saxpy = ours()

    def launch(pointers: tuple[int, int]) -> list[float]:
        x, y = (DriverArray(pointer) for pointer in pointers)
        saxpy[N // 256, 256](2.0, x, y, N)
        return copied(driver, pointers[1])

    run(lambda: bare_arrays(driver), launch)


def on_numba() -> None:
    import numpy as np
    from numba import cuda

    saxpy = ours()

    def launch(arrays: Any) -> Any:
        saxpy[N // 256, 256](2.0, *arrays, N)
        return arrays[1].copy_to_host()

    run(lambda: [cuda.to_device(np.ones(N, np.float32)) for _ in range(2)], launch)
    folder = Path(os.environ["KC_BENCH_DIR"])
    if not (folder / CUBIN).is_file():
        (folder / CUBIN).write_bytes(saxpy.cubin())


def on_cupy() -> None:
    import cupy

    saxpy = ours()

    def launch(arrays: Any) -> Any:
        saxpy[N // 256, 256](2.0, *arrays, N)
        return cupy.asnumpy(arrays[1])

    run(lambda: [cupy.ones(N, cupy.float32) for _ in range(2)], launch)


def on_torch() -> None:
    import torch

    saxpy = ours()

    def launch(arrays: Any) -> Any:
        saxpy[N // 256, 256](2.0, *arrays, N)
        return arrays[1].cpu()

    run(lambda: [torch.ones(N, device="cuda") for _ in range(2)], launch)


def cupy_alone() -> None:
    import cupy
    import numpy as np

    saxpy = cupy.RawKernel(SOURCE, "saxpy", backend="nvrtc")

    def launch(arrays: Any) -> Any:
        saxpy((N // 256,), (256,), (np.float32(2), *arrays, np.int32(N)))
        return cupy.asnumpy(arrays[1])

    run(lambda: [cupy.ones(N, cupy.float32) for _ in range(2)], launch)


def importing(name: str) -> Callable[[], None]:
    def child() -> None:
        __import__(name)
        say(numba="numba.cuda" in sys.modules)

    return child


PARTS = ("numba_kcache", "cuda.bindings.driver", "numpy", "numba.cuda", "cupy", "torch")
TORCH_ROUNDS = 3
"""The largest number of samples with torch: importing it takes seconds."""

FIRST = "numba_kcache, Numba arrays"
BARE = "bare cuda.bindings, a cubin from a file"
SYSTEMS: dict[str, Callable[[], None]] = {
    FIRST: on_numba,  # writes the cubin for `BARE`
    BARE: bare,
    "numba_kcache, memory of cuda.bindings": on_driver_memory,
    "numba_kcache, CuPy arrays": on_cupy,
    "CuPy RawKernel": cupy_alone,
    "numba_kcache, torch tensors": on_torch,
    "python alone": importing("sys"),
    **{f"import {name}": importing(name) for name in PARTS},
}


def measure(rounds: int) -> Iterator[tuple[dict[str, dict[str, list[float]]], dict[str, str], list[str]]]:
    """Yield, after each round, seconds by system and part; the systems that fail here, with the reason; and the systems
    whose process imported Numba."""
    found: dict[str, dict[str, list[float]]] = {}
    left_out: dict[str, str] = {}
    with_numba = []
    folder = Path(tempfile.mkdtemp())
    for number in range(-1, rounds):  # round -1 fills the caches
        for system in SYSTEMS:
            if system in left_out or ("torch" in system and number >= TORCH_ROUNDS):
                continue
            begin = time.time()
            result = fresh([__file__, "--child", system], folder)
            if isinstance(result, str):
                left_out[system] = result
                continue
            if number < 0:
                with_numba += [system] * result["numba"]
                continue
            if "imported" in result:
                result["import"] = result["imported"] - begin
            for what in ("process", "import", "arrays", "first"):
                if what in result:
                    found.setdefault(system, {}).setdefault(what, []).append(result[what])
        yield found, left_out, with_numba
    shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--child", choices=SYSTEMS)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.child:
        SYSTEMS[arguments.child]()
        return
    from header import Result

    compileall.compile_dir(str(ROOT / "numba_kcache"), quiet=2)
    result = Result(arguments.json, "whole_process")
    for samples, left_out, with_numba in measure(arguments.rounds):
        result.write(samples, left_out=left_out, numba=with_numba)
    least = median(samples[BARE]["process"]) if BARE in samples else float("nan")
    for system, rows in samples.items():
        cells = (f"{name} {median(times) * 1e3:.1f} ms" for name, times in rows.items())
        share = f"{median(rows['process']) / least:.2f} of bare"
        print(f"{system:42}", ", ".join(cells), f"({share}{', numba imported' if system in with_numba else ''})")
    for system, why in left_out.items():
        print(f"{system}: {why}", file=sys.stderr)


if __name__ == "__main__":
    main()
