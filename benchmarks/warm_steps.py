"""How long do import, decoration, first launch and exit take, cold and warm, compared with a bare cubin?

Method      Each sample is a fresh process with one kernel of one source, launched once and checked, or 31 kernels of
            one source, or one reduction of cuda.compute; samples of the systems alternate. Consecutive parts of a
            process: "python" (from its start by the parent to the first statement), "packages" (cuda.bindings, NumPy,
            Numba, CuPy), "import" of this package, "decoration", "arrays" (context and two arrays), "first" (launch and
            wait), "result" (copied back and checked), "exit" (exit handlers of the interpreter), "end" (until the
            parent sees its end), and "all". "sum" is import, decoration, first and exit: the work for the kernel, in
            whichever part it is done. The bare systems read a cubin from a file, load it, find the function, pack and
            launch, without checks: through cuda.bindings, and through Numba's driver layer, which this package must use
            in programs with Numba. Cold: an empty cache. Bytecode is compiled before, as pip does; CUDA_CACHE_DISABLE=1
            turns the driver's own cache off.
Not shown   A cold page cache, a busy node, a network file system; large kernels.
"""

from __future__ import annotations

import argparse
import atexit
import compileall
import ctypes
import os
import shutil
import struct
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from fresh import ROOT, fresh, is_pretended, say

BEGIN = time.time()
SOURCE = r"""
extern "C" __global__ void saxpy(float a, const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}"""
N = 1 << 16
MANY = 31
CUBIN = "saxpy.cubin"
COMPILERS = ("libnvrtc", "libnvvm")
"""Libraries of compilers: a process that has mapped none of them has compiled nothing."""

SUM = ("import", "decoration", "first", "exit")
"""The parts of a process that a cache adds or can shorten."""

Samples = dict[str, dict[str, dict[str, list[float]]]]


class Clock:
    """The seconds of each part of this process; a call ends a part, and the next one begins."""

    def __init__(self, started: float) -> None:
        self.parts = {"python": BEGIN - started}
        self._last = time.perf_counter()
        atexit.register(self._close)  # registered first, so called after all other exit handlers

    def __call__(self, part: str) -> None:
        self.parts[part] = time.perf_counter() - self._last
        self._last = time.perf_counter()

    def result(self, values: Sequence[float]) -> None:
        """Check a result and end the part "result"; the fake driver runs no kernel, so there is nothing to check."""
        assert is_pretended() or {float(values[0]), float(values[N - 1])} == {3.0}
        self("result")

    def _close(self) -> None:
        self("exit")
        mapped = Path("/proc/self/maps").read_text()
        say(parts=self.parts, compiled=any(name in mapped for name in COMPILERS))


# -- without Numba -----------------------------------------------------------------------------------------------


class DriverArray:
    """Device memory with an array interface, allocated by the driver and not by an array package."""

    def __init__(self, address: int) -> None:
        self.__cuda_array_interface__ = {"shape": (N,), "typestr": "<f4", "data": (address, False), "version": 3}


def bare_arrays(driver: Any) -> tuple[int, int]:
    """Create a context and two arrays of ones; return their addresses."""
    driver.cuInit(0)
    _, device = driver.cuDeviceGet(0)
    _, context = driver.cuDevicePrimaryCtxRetain(device)
    driver.cuCtxSetCurrent(context)
    host = (ctypes.c_float * N)(*[1.0] * N)
    (_, x), (_, y) = driver.cuMemAlloc(4 * N), driver.cuMemAlloc(4 * N)
    for pointer in (x, y):
        driver.cuMemcpyHtoD(pointer, ctypes.addressof(host), 4 * N)
    driver.cuCtxSynchronize()
    return int(x), int(y)


def copied(driver: Any, y: int) -> Sequence[float]:
    host = (ctypes.c_float * N)()
    driver.cuMemcpyDtoH(ctypes.addressof(host), y, 4 * N)
    return host


def cubin() -> bytes:
    return Path(os.environ["KC_BENCH_DIR"], CUBIN).read_bytes()


def launch_bare(driver: Any, function: Any, x: int, y: int) -> None:
    memory = ctypes.create_string_buffer(64)
    base = ctypes.addressof(memory)
    struct.pack_into("=f4xQQi4x4Q", memory, 0, 2.0, x, y, N, base, base + 8, base + 16, base + 24)
    driver.cuLaunchKernel(function, N // 256, 1, 1, 256, 1, 1, 0, driver.CUstream(0), base + 32, 0)


def bare(clock: Clock) -> None:
    from cuda.bindings import driver

    clock("packages")
    x, y = bare_arrays(driver)
    clock("arrays")
    _, module = driver.cuModuleLoadData(cubin())
    _, function = driver.cuModuleGetFunction(module, b"saxpy")
    launch_bare(driver, function, x, y)
    driver.cuCtxSynchronize()
    clock("first")
    clock.result(copied(driver, y))


def decorated(clock: Clock, head: str = "") -> Any:
    """Decorate a function that returns the CUDA C++ source, with `head` before it."""
    from numba_kcache import cached_kernel

    clock("import")

    @cached_kernel
    def saxpy():
        return head + SOURCE

    clock("decoration")
    return saxpy


def ours(clock: Clock, head: str = "") -> None:
    from cuda.bindings import driver

    clock("packages")
    saxpy = decorated(clock, head)
    x, y = bare_arrays(driver)
    arrays = DriverArray(x), DriverArray(y)
    clock("arrays")
    saxpy[N // 256, 256](2.0, *arrays, N)
    driver.cuCtxSynchronize()
    clock("first")
    clock.result(copied(driver, y))
    assert "numba.cuda" not in sys.modules
    path = Path(os.environ["KC_BENCH_DIR"], CUBIN)
    if not (head or path.is_file()):  # for the bare systems
        path.write_bytes(saxpy.cubin())


def ours_of_a_module(clock: Clock) -> None:
    from cuda.bindings import driver

    clock("packages")
    from numba_kcache import cached_module

    clock("import")
    module = cached_module("".join(SOURCE.replace("saxpy", f"saxpy_{number}") for number in range(MANY)))
    clock("decoration")
    x, y = bare_arrays(driver)
    arrays = DriverArray(x), DriverArray(y)
    clock("arrays")
    for number in range(MANY):
        module[f"saxpy_{number}"][N // 256, 256](2.0 if number == 0 else 0.0, *arrays, N)
    driver.cuCtxSynchronize()
    clock("first")
    clock.result(copied(driver, y))


# -- with arrays of other packages -------------------------------------------------------------------------------


def ours_on_cupy(clock: Clock) -> None:
    import cupy

    clock("packages")
    saxpy = decorated(clock)
    x, y = cupy.ones(N, cupy.float32), cupy.ones(N, cupy.float32)
    cupy.cuda.Device().synchronize()
    clock("arrays")
    saxpy[N // 256, 256](2.0, x, y, N)
    cupy.cuda.Device().synchronize()
    clock("first")
    clock.result(cupy.asnumpy(y))


def ours_on_torch(clock: Clock) -> None:
    import torch

    clock("packages")
    saxpy = decorated(clock)
    x, y = torch.ones(N, device="cuda"), torch.ones(N, device="cuda")
    torch.cuda.synchronize()
    clock("arrays")
    saxpy[N // 256, 256](2.0, x, y, N)
    torch.cuda.synchronize()
    clock("first")
    clock.result(y.cpu())


def mlir_kernel(clock: Clock) -> None:
    import numpy as np
    from numba_cuda_mlir import cuda

    warnings.simplefilter("ignore")
    clock("packages")
    from numba_kcache import cached_kernel

    clock("import")

    @cached_kernel
    def saxpy(a, x, y):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        if i < x.size:
            y[i] = a * x[i] + y[i]

    clock("decoration")
    x, y = (cuda.to_device(np.ones(N, np.float32)) for _ in range(2))
    cuda.synchronize()
    clock("arrays")
    saxpy[N // 256, 256](2.0, x, y)
    cuda.synchronize()
    clock("first")
    clock.result(y.copy_to_host())


def reduction(clock: Clock) -> None:
    import cupy
    import numpy as np
    from cuda import compute

    clock("packages")
    import numba_kcache

    numba_kcache.install(cuda_compute=True)
    clock("import")
    x, y = cupy.ones(N, cupy.float32), cupy.ones(1, cupy.float32)
    cupy.cuda.Device().synchronize()
    clock("arrays")
    compute.reduce_into(d_in=x, d_out=y, num_items=N, op=compute.OpKind.PLUS, h_init=np.zeros(1, np.float32))
    cupy.cuda.Device().synchronize()
    clock("first")
    assert float(cupy.asnumpy(y)[0]) == N
    clock("result")


# -- with Numba --------------------------------------------------------------------------------------------------


def numba_arrays(clock: Clock) -> Any:
    """Two arrays of ones."""
    import numpy as np
    from numba import cuda

    arrays = [cuda.to_device(np.ones(N, np.float32)) for _ in range(2)]
    cuda.synchronize()
    clock("arrays")
    return arrays


def import_numba(clock: Clock) -> Any:
    import numpy  # noqa: F401
    from numba import cuda

    warnings.simplefilter("ignore")
    clock("packages")
    return cuda


def bare_numba(clock: Clock) -> None:
    cuda = import_numba(clock)
    from cuda.bindings import driver
    from cuda.core import ObjectCode
    from numba.cuda.cudadrv import devices

    x, y = numba_arrays(clock)
    module = devices.get_context().create_module_image(ObjectCode.from_cubin(cubin()))
    _, kernel = driver.cuLibraryGetKernel(module.handle, b"saxpy")
    _, function = driver.cuKernelGetFunction(kernel)
    launch_bare(driver, function, *(each.gpu_data.device_ctypes_pointer.value for each in (x, y)))
    cuda.synchronize()
    clock("first")
    clock.result(y)


def ours_on_numba(clock: Clock) -> None:
    cuda = import_numba(clock)
    launch(clock, cuda, decorated(clock), N)


def numba_kernel(clock: Clock) -> None:
    cuda = import_numba(clock)
    from numba_kcache import cached_kernel

    clock("import")

    @cached_kernel
    def saxpy(a, x, y):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        if i < x.size:
            y[i] = a * x[i] + y[i]

    clock("decoration")
    launch(clock, cuda, saxpy)


def installed(clock: Clock) -> None:
    cuda = import_numba(clock)
    import numba_kcache

    numba_kcache.install()
    clock("import")

    @cuda.jit(cache=True)
    def saxpy(a, x, y):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        if i < x.size:
            y[i] = a * x[i] + y[i]

    clock("decoration")
    launch(clock, cuda, saxpy)


def launch(clock: Clock, cuda: Any, kernel: Any, *more: int) -> None:
    x, y = numba_arrays(clock)
    kernel[N // 256, 256](2.0, x, y, *more)
    cuda.synchronize()
    clock("first")
    clock.result(y)


def cupy_kernel(clock: Clock) -> None:
    import cupy
    import numpy as np

    clock("packages")
    saxpy = cupy.RawKernel(SOURCE, "saxpy", backend="nvrtc")
    clock("decoration")
    x, y = cupy.ones(N, cupy.float32), cupy.ones(N, cupy.float32)
    cupy.cuda.Device().synchronize()
    clock("arrays")
    saxpy((N // 256,), (256,), (np.float32(2.0), x, y, np.int32(N)))
    cupy.cuda.Device().synchronize()
    clock("first")
    clock.result(cupy.asnumpy(y))


BARE = "bare cuda.bindings, a cubin from a file"
"""The system that the others are shown as multiples of."""

HEADER = "numba_kcache, CUDA C++ with cuda_fp16.h"

SYSTEMS: dict[str, Callable[[Clock], None]] = {
    "numba_kcache, CUDA C++": ours,  # writes the cubin for the bare systems
    BARE: bare,
    HEADER: lambda clock: ours(clock, "#include <cuda_fp16.h>\n"),
    f"numba_kcache, {MANY} kernels of a module": ours_of_a_module,
    "numba_kcache, CUDA C++ on CuPy arrays": ours_on_cupy,
    "numba_kcache, CUDA C++ on PyTorch tensors": ours_on_torch,
    "numba_kcache, CUDA C++ on Numba arrays": ours_on_numba,
    "numba_kcache, Numba kernel": numba_kernel,
    "numba_kcache.install()": installed,
    "bare Numba driver layer, a cubin from a file": bare_numba,
    "numba_kcache, numba-cuda-mlir kernel": mlir_kernel,
    "numba_kcache, cuda.compute reduction": reduction,
    "CuPy RawKernel": cupy_kernel,
}
WITH_COMPILERS = ("CuPy", "PyTorch", "mlir", "cuda.compute")
"""Packages that may map a compiler themselves: in their processes a mapped one does not show that we compiled."""


def sample(system: str, folder: Path) -> dict[str, Any] | str:
    """The parts of one fresh process, and whether it mapped a compiler; the reason, as text, if it failed."""
    start = time.time()
    found = fresh([__file__, "--child", system, "--started", repr(start)], folder)
    if isinstance(found, str):
        return found
    parts: dict[str, float] = found["parts"]
    parts["sum"] = sum(parts.get(name, 0.0) for name in SUM)
    parts["all"] = time.time() - start
    return {**found, "parts": {**parts, "end": parts["all"] - found["result"]}}


def measure(rounds: int) -> Iterator[tuple[Samples, dict[str, str]]]:
    """Yield, after each round, seconds by system, "warm" or "cold", and part; and the systems that fail here."""
    found: Samples = {}
    left_out: dict[str, str] = {}
    warm_folder = Path(tempfile.mkdtemp())
    for number in range(-1, rounds):  # round -1 fills the caches
        for system in SYSTEMS:
            if system in left_out:
                continue
            states = {"warm": warm_folder}
            if 0 <= number < max(1, rounds // 3) and not system.startswith("bare"):
                states["cold"] = Path(tempfile.mkdtemp())
            for state, folder in states.items():
                result = sample(system, folder)
                if state == "cold":
                    shutil.rmtree(folder)
                if isinstance(result, str):
                    left_out[system] = result
                    break
                if number < 0:
                    continue
                if "numba_kcache" in system and not any(name in system for name in WITH_COMPILERS):
                    assert result["compiled"] is (state == "cold"), f"{state} {system}: compiled {result['compiled']}"
                for part, seconds in result["parts"].items():
                    found.setdefault(system, {}).setdefault(state, {}).setdefault(part, []).append(seconds)
        yield found, left_out
    shutil.rmtree(warm_folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--child", choices=SYSTEMS)
    parser.add_argument("--started", type=float, default=BEGIN)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.child:
        SYSTEMS[arguments.child](Clock(arguments.started))
        return
    from header import Result

    compileall.compile_dir(str(ROOT / "numba_kcache"), quiet=2)
    result = Result(arguments.json, "warm_steps")
    for samples, left_out in measure(arguments.rounds):
        result.write(samples, left_out=left_out)
    for state in ("warm", "cold"):
        for system, states in samples.items():
            if state in states:
                medians = {part: median(times) * 1e3 for part, times in states[state].items()}
                print(f"{state} {system:46}", ", ".join(f"{part} {time_ms:.3g}" for part, time_ms in medians.items()))
    for system, why in left_out.items():
        print(f"{system}: {why}", file=sys.stderr)


if __name__ == "__main__":
    main()
