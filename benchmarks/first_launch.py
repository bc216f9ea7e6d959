"""How long does a fresh process take to the results of 1, 31 and 300 cached kernels, cold and warm?

Method      Each sample is a fresh process that runs every kernel once, one after another, and checks the last result.
            "first" starts after imports, decoration and context creation, and ends when all results are synchronised.
            "second" is the time of one more kernel after these, when all Python modules are imported (not measured for
            kernels in one source). "process" is the whole process. A system is this package, or another one with its
            own cache. Cold: that cache is empty. Warm: an earlier process filled it. numba_kcache runs on raw memory
            with `__cuda_array_interface__` and on CuPy's arrays, without Numba, and on Numba's arrays. "module" and
            RawModule have all kernels in one source; Warp compiles one file to a module. With a header, the source
            includes and uses cuda_fp16.h (CUDA C++ only). Numba, Triton and Warp read their kernels from a file with as
            many functions. torch.cuda._compile_kernel stores nothing on disk, so its warm start is a cold one. Bytecode
            is compiled before, as pip does; the driver's own cache is off. Samples of the systems alternate, one
            process at a time. Cold samples of many kernels run in parallel, one process per system, if there are enough
            cores.
Not shown   A cold page cache, a busy node, a network file system; large headers (workloads.py has CUB). Systems that
            are not installed, or not measured for a number of kernels, are listed in the result.
"""

from __future__ import annotations

import argparse
import compileall
import importlib.util
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from fresh import ROOT, fresh, is_pretended, say, wait_for_the_others

N = 1 << 14
HEADER = "cuda_fp16.h"


Arrays = Callable[[], tuple[Any, Any, Callable[[], object]]]
"""Makes two arrays of ones, and a function that waits for the device."""


class Case(NamedTuple):
    """The number of kernels, and whether they include a header."""

    kernels: int
    has_header: bool

    @property
    def name(self) -> str:
        return f"{self.kernels}, {HEADER}" if self.has_header else f"{self.kernels}"


def kernel_source(number: int, has_header: bool) -> str:
    """CUDA C++ of one kernel: y = a * x + number."""
    value = "__half2float(__float2half(x[i]))" if has_header else "x[i]"
    return (
        f'extern "C" __global__ void k{number}(float a, const float *x, float *y, int n) {{\n'
        "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        f"    if (i < n) y[i] = a * {value} + {number};\n}}\n"
    )


def sources(case: Case) -> list[str]:
    """A source for each kernel, and one more for "second"."""
    head = f"#include <{HEADER}>\n" if case.has_header else ""
    return [head + kernel_source(number, case.has_header) for number in range(case.kernels + 1)]


def whole_source(case: Case) -> str:
    """Join all kernels into one source."""
    head = f"#include <{HEADER}>\n" if case.has_header else ""
    return head + "".join(kernel_source(number, case.has_header) for number in range(case.kernels))


def include_dirs() -> list[str]:
    from numba_kcache.toolchain import installed_include_dirs

    return installed_include_dirs()


# -- the systems: each makes its kernels, then the clock runs -------------------------------------------


def measured(
    launch: Callable[[int], object], synchronize: Callable[[], object], case: Case, *, has_other: bool = True
) -> dict[str, float]:
    """Seconds until all kernels have run, "first", and then until another kernel has run, "second".

    Args:
        launch: Launches a kernel by its number.
        synchronize: Waits until all launched kernels have run.
        case: The number of kernels, without that of "second".
        has_other: Whether there is a kernel for "second".
    """
    is_rank = wait_for_the_others()
    start = time.perf_counter()
    for number in range(case.kernels):
        launch(number)
    synchronize()
    found = {"first": time.perf_counter() - start}
    if has_other and not is_rank:
        start = time.perf_counter()
        launch(case.kernels)
        synchronize()
        found["second"] = time.perf_counter() - start
    return found


def check(values: Any, found: dict[str, float], case: Case) -> None:
    """Check the values that the last kernel wrote; on the fake driver, which runs no kernel, check nothing."""
    last = case.kernels if "second" in found else case.kernels - 1
    assert is_pretended() or (values == 2 + last).all(), values


def numba_arrays() -> tuple[Any, Any, Callable[[], object]]:
    import numpy as np
    from numba import cuda

    x, y = cuda.to_device(np.ones(N, np.float32)), cuda.to_device(np.ones(N, np.float32))
    cuda.synchronize()
    return x, y, cuda.synchronize


class DriverArray:
    """Device memory with an array interface, allocated by the driver and not by an array package."""

    def __init__(self, address: int) -> None:
        self.address = address
        self.__cuda_array_interface__ = {"shape": (N,), "typestr": "<f4", "data": (address, False), "version": 3}

    def copy_to_host(self) -> Any:
        import numpy as np
        from cuda.bindings import driver

        host = np.zeros(N, np.float32)
        driver.cuMemcpyDtoH(host.ctypes.data, self.address, 4 * N)
        return host


def driver_arrays() -> tuple[Any, Any, Callable[[], object]]:
    import numpy as np
    from cuda.bindings import driver

    driver.cuInit(0)
    _, device = driver.cuDeviceGet(0)
    _, context = driver.cuDevicePrimaryCtxRetain(device)
    driver.cuCtxSetCurrent(context)
    host = np.ones(N, np.float32)
    (_, x), (_, y) = driver.cuMemAlloc(4 * N), driver.cuMemAlloc(4 * N)
    for pointer in (x, y):
        driver.cuMemcpyHtoD(pointer, host.ctypes.data, 4 * N)
    driver.cuCtxSynchronize()
    return DriverArray(int(x)), DriverArray(int(y)), driver.cuCtxSynchronize


def cupy_arrays() -> tuple[Any, Any, Callable[[], object]]:
    import cupy

    x, y = cupy.ones(N, cupy.float32), cupy.ones(N, cupy.float32)
    cupy.cuda.Device().synchronize()
    return x, y, cupy.cuda.Device().synchronize


def run_ours(kernels: Sequence[Any], case: Case, arrays: Arrays, *size: int) -> None:
    import numba_kcache

    x, y, synchronize = arrays()
    found = measured(lambda number: kernels[number][N // 256, 256](2.0, x, y, *size), synchronize, case)
    check(y.get() if arrays is cupy_arrays else y.copy_to_host(), found, case)
    say(**found, compiles=numba_kcache.info("process").compiles)


def ours(case: Case, arrays: Arrays = driver_arrays) -> None:
    from numba_kcache import cached_kernel

    run_ours([cached_kernel(source) for source in sources(case)], case, arrays, N)


def our_module(case: Case) -> None:
    import numba_kcache
    from numba_kcache import cached_module

    module = cached_module(whole_source(case))
    x, y, synchronize = driver_arrays()
    names = [f"k{number}" for number in range(case.kernels)]
    found = measured(
        lambda number: module[names[number]][N // 256, 256](2.0, x, y, N), synchronize, case, has_other=False
    )
    check(y.copy_to_host(), found, case)
    say(**found, compiles=numba_kcache.info("process").compiles)


def functions(case: Case, head: str, body: str) -> list[Any]:
    """The functions of a generated file, which the first process of a cache writes."""
    path = Path(os.environ["KC_BENCH_DIR"], f"program_{case.kernels}.py")
    if not path.is_file():
        path.write_text(head + "".join(body.format(number=number) for number in range(case.kernels + 1)))
    spec: Any = importlib.util.spec_from_file_location(path.stem, path)
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return [getattr(module, f"k{number}") for number in range(case.kernels + 1)]


NUMBA_BODY = """

def k{number}(a, x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = a * x[i] + {number}
"""


def numba_functions(case: Case) -> list[Any]:
    return functions(case, "from numba import cuda\n", NUMBA_BODY)


def our_numba_kernels(case: Case) -> None:
    from numba_kcache import cached_kernel

    run_ours([cached_kernel(function) for function in numba_functions(case)], case, numba_arrays)


def numba(case: Case) -> None:
    from numba import cuda

    kernels = [cuda.jit(cache=True)(function) for function in numba_functions(case)]
    x, y, synchronize = numba_arrays()
    found = measured(lambda number: kernels[number][N // 256, 256](2.0, x, y), synchronize, case)
    check(y.copy_to_host(), found, case)
    say(**found, compiles=sum(sum(kernel.stats.cache_misses.values()) for kernel in kernels))


def cupy_run(kernel_of: Callable[[int], Any], case: Case, *, has_other: bool = True) -> None:
    import cupy
    import numpy as np
    from cupy.cuda import compiler

    x, y = (
        cupy.ones(N, cupy.float32),
        cupy.ones(N, cupy.float32),
    )  # by a kernel of CuPy: its compiler is loaded
    a, n = np.float32(2.0), np.int32(N)
    cupy.cuda.Device().synchronize()
    compiled: list[None] = []
    real = compiler.compile_using_nvrtc

    def counted(*arguments: Any, **more: Any) -> Any:
        compiled.append(None)
        return real(*arguments, **more)

    compiler.compile_using_nvrtc = counted
    wait = cupy.cuda.Device().synchronize
    found = measured(
        lambda number: kernel_of(number)((N // 256,), (256,), (a, x, y, n)), wait, case, has_other=has_other
    )
    check(cupy.asnumpy(y), found, case)
    say(**found, compiles=len(compiled))


def cupy_options(case: Case) -> tuple[str, ...]:
    return tuple(f"-I{folder}" for folder in include_dirs()) if case.has_header else ()


def cupy_kernel(case: Case) -> None:
    import cupy

    options = cupy_options(case)
    kernels = [
        cupy.RawKernel(source, f"k{number}", options, backend="nvrtc") for number, source in enumerate(sources(case))
    ]
    cupy_run(kernels.__getitem__, case)


def cupy_module(case: Case) -> None:
    import cupy

    module = cupy.RawModule(code=whole_source(case), options=cupy_options(case), backend="nvrtc")
    cupy_run(lambda number: module.get_function(f"k{number}"), case, has_other=False)


def cuda_core(case: Case) -> None:
    import numpy as np
    from cuda.bindings import driver
    from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch
    from cuda.core.utils import FileStreamProgramCache

    cache = FileStreamProgramCache(os.environ["KC_BENCH_DIR"])
    device = Device()
    device.set_current()
    stream = device.create_stream()
    host = np.ones(N, np.float32)
    (_, x), (_, y) = driver.cuMemAlloc(4 * N), driver.cuMemAlloc(4 * N)
    for pointer in (x, y):
        driver.cuMemcpyHtoD(pointer, host.ctypes.data, 4 * N)
    stream.sync()
    folders = include_dirs() if case.has_header else None
    passed = (np.float32(2.0), int(x), int(y), np.int32(N))

    texts = sources(case)

    def one(number: int) -> None:
        options = ProgramOptions(arch=f"sm_{device.arch}", no_cache=True, include_path=folders)
        code = Program(texts[number], "c++", options=options).compile("cubin", cache=cache)
        launch(stream, LaunchConfig(grid=N // 256, block=256), code.get_kernel(f"k{number}"), *passed)

    found = measured(one, stream.sync, case)
    driver.cuMemcpyDtoH(host.ctypes.data, y, 4 * N)
    check(host, found, case)
    say(**found)


TRITON_BODY = """

@triton.jit
def k{number}(a, x, y, n, block: tl.constexpr):
    i = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(y + i, a * tl.load(x + i, mask=i < n) + {number}, mask=i < n)
"""


def triton(case: Case) -> None:
    import torch

    kernels = functions(case, "import triton\nimport triton.language as tl\n", TRITON_BODY)
    x, y = torch.ones(N, device="cuda"), torch.ones(N, device="cuda")
    torch.cuda.synchronize()
    wait = torch.cuda.synchronize
    found = measured(lambda number: kernels[number][(N // 256,)](2.0, x, y, N, block=256), wait, case)
    check(y.cpu().numpy(), found, case)
    say(**found)


def torch_compile(case: Case) -> None:
    import torch

    x, y = torch.ones(N, device="cuda"), torch.ones(N, device="cuda")
    torch.cuda.synchronize()
    more = {"cuda_include_dirs": include_dirs()} if case.has_header else {}

    texts = [
        source.replace("float a,", "double a,") for source in sources(case)
    ]  # torch passes a Python float as a double

    def one(number: int) -> None:
        kernel = torch.cuda._compile_kernel(texts[number], f"k{number}", **more)
        kernel((N // 256, 1, 1), (256, 1, 1), (2.0, x, y, N))

    found = measured(one, torch.cuda.synchronize, case)
    check(y.cpu().numpy(), found, case)
    say(**found)


def pycuda(case: Case) -> None:
    import numpy as np
    import pycuda.autoprimaryctx
    from pycuda import driver
    from pycuda.compiler import SourceModule

    assert pycuda.autoprimaryctx
    x, y = driver.to_device(np.ones(N, np.float32)), driver.to_device(np.ones(N, np.float32))
    folder = os.environ["KC_BENCH_DIR"]

    texts = sources(case)

    def one(number: int) -> None:
        kernel = SourceModule(texts[number], cache_dir=folder, no_extern_c=True).get_function(f"k{number}")
        kernel(np.float32(2.0), x, y, np.int32(N), block=(256, 1, 1), grid=(N // 256, 1))

    found = measured(one, driver.Context.synchronize, case)
    check(driver.from_device(y, (N,), np.float32), found, case)
    say(**found)


WARP_BODY = """

@wp.kernel
def k{number}(a: float, x: wp.array(dtype=float), y: wp.array(dtype=float)):
    i = wp.tid()
    y[i] = a * x[i] + {number}.0
"""


def warp(case: Case) -> None:
    import numpy as np
    import warp as wp

    wp.config.quiet = True
    wp.config.kernel_cache_dir = os.environ["KC_BENCH_DIR"]
    wp.init()
    device = wp.get_preferred_device()
    assert device.is_cuda or is_pretended(), "Warp finds no GPU"
    kernels = functions(case, "import warp as wp\n", WARP_BODY)
    x, y = (wp.array(np.ones(N, np.float32), dtype=float, device=device) for _ in range(2))
    wp.synchronize_device(device)

    def one(number: int) -> None:
        wp.launch(kernels[number], dim=N, inputs=[2.0, x, y], device=device)

    found = measured(one, lambda: wp.synchronize_device(device), case)
    check(y.numpy(), found, case)
    say(**found)


SYSTEMS: dict[str, Callable[[Case], None]] = {
    "numba_kcache": ours,
    "numba_kcache, CuPy arrays": lambda case: ours(case, cupy_arrays),
    "numba_kcache, Numba arrays": lambda case: ours(case, numba_arrays),
    "numba_kcache, module": our_module,
    "numba_kcache, Numba kernel": our_numba_kernels,
    "cupy RawKernel": cupy_kernel,
    "cupy RawModule": cupy_module,
    "cuda.core FileStreamProgramCache": cuda_core,
    "Numba cache=True": numba,
    "Triton": triton,
    "torch _compile_kernel": torch_compile,
    "PyCUDA SourceModule": pycuda,
    "Warp": warp,
}

ALL = 10**6
MOST = {
    "numba_kcache, CuPy arrays": (1, ALL),
    "numba_kcache, Numba arrays": (1, ALL),
    "cuda.core FileStreamProgramCache": (31, ALL),
    "numba_kcache, Numba kernel": (1, 31),
    "Numba cache=True": (1, 31),
    "Triton": (1, 31),
    "torch _compile_kernel": (1, 31),
    "PyCUDA SourceModule": (1, 1),
    "Warp": (1, 31),
}
"""The largest number of kernels measured, with `--quick` and without it: more take a minute or longer."""

IN_PYTHON = ("numba_kcache, Numba kernel", "Numba cache=True", "Triton", "Warp")
"""Systems whose kernels are Python functions, which include no headers."""

NOT_WITH_HEADER = (
    "numba_kcache, module",
    "numba_kcache, CuPy arrays",
    "numba_kcache, Numba arrays",
    "cupy RawModule",
    "torch _compile_kernel",
)
"""Systems that are left out with a header if `--quick` is given."""

ONCE = ("Triton", "torch _compile_kernel")
"""Systems with one warm sample if `--quick` is given: importing torch takes seconds."""


class Sampling(NamedTuple):
    """The numbers of cold and of warm samples of one case."""

    case: Case
    cold: int
    warm: int


QUICK = (
    Sampling(Case(1, False), 1, 3), Sampling(Case(31, False), 1, 2), Sampling(Case(300, False), 1, 2),
    Sampling(Case(1, True), 1, 3), Sampling(Case(31, True), 1, 2),
)  # fmt: skip
LONG = (
    Sampling(Case(1, False), 5, 9), Sampling(Case(31, False), 1, 5), Sampling(Case(300, False), 1, 3),
    Sampling(Case(1, True), 3, 7), Sampling(Case(31, True), 1, 3), Sampling(Case(300, True), 1, 3),
)  # fmt: skip


class Samples:
    """Seconds of one case, by system and "cold/warm first/second/process".

    Args:
        case: The case.
        left_out: The systems that are left out, of all cases, with the reason.
    """

    def __init__(self, case: Case, left_out: dict[str, str]) -> None:
        self.case, self.left_out = case, left_out
        self.found: dict[str, dict[str, list[float]]] = {}

    def is_out(self, system: str) -> bool:
        return system in self.left_out or f"{system}, {self.case.name}" in self.left_out

    def take(self, system: str, state: str, folder: Path) -> None:
        """Run one process and keep its times."""
        case = self.case
        words = [__file__, "--child", system, "--kernels", str(case.kernels), *["--header"] * case.has_header]
        result = fresh(words, folder)
        if isinstance(result, str):
            self.left_out[system if "No module named" in result else f"{system}, {case.name}"] = result
            print(f"{system}, {case.name}: {result}", file=sys.stderr)
            return
        if system.startswith("numba_kcache"):
            assert (result["compiles"] > 0) == (state == "cold"), (system, state, result)
        for what in [each for each in ("first", "second", "process") if each in result]:
            self.found.setdefault(system, {}).setdefault(f"{state} {what}", []).append(result[what])


def measure(
    sampling: Sampling, systems: Sequence[str], samples: Samples, done: Callable[[], object], *, is_quick: bool
) -> None:
    """Collect all samples of one case: each round fills empty caches, then reads them. Call `done` after each step."""
    processes = (os.cpu_count() or 1) if sampling.case.kernels > 1 else 1
    with tempfile.TemporaryDirectory() as parent:
        for number in range(sampling.cold):
            folders = {system: Path(parent, f"{number}-{index}") for index, system in enumerate(systems)}
            for folder in folders.values():
                folder.mkdir()
            with ThreadPoolExecutor(processes) as pool:
                runnable = [system for system in systems if not samples.is_out(system)]
                list(pool.map(samples.take, runnable, ["cold"] * len(runnable), map(folders.__getitem__, runnable)))
            done()
            for again in range(sampling.warm // sampling.cold + (number < sampling.warm % sampling.cold)):
                for system in systems:
                    if not samples.is_out(system) and not (is_quick and again and system in ONCE):
                        samples.take(system, "warm", folders[system])
                done()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--child", choices=SYSTEMS)
    parser.add_argument("--kernels", default="1,31,300", help="how many, with commas between")
    parser.add_argument("--header", action="store_true", help="only with the header; default: without, then with it")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--cold", type=int, default=ALL, help="samples at most")
    parser.add_argument("--warm", type=int, default=ALL, help="samples at most")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.child:
        SYSTEMS[arguments.child](Case(int(arguments.kernels), arguments.header))
        return
    from header import Result

    compileall.compile_dir(str(ROOT / "numba_kcache"), quiet=2)
    found: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    result = Result(arguments.json, "first_launch")
    for case, cold, warm in QUICK if arguments.quick else LONG:
        sampling = Sampling(case, min(cold, arguments.cold), min(warm, arguments.warm))
        if str(case.kernels) not in arguments.kernels.split(",") or (arguments.header and not case.has_header):
            continue
        able = [system for system in SYSTEMS if not (case.has_header and system in IN_PYTHON)]
        systems = [
            system for system in able
            if MOST.get(system, (ALL, ALL))[not arguments.quick] >= case.kernels
            and not (arguments.quick and case.has_header and system in NOT_WITH_HEADER)
        ]  # fmt: skip
        if skipped := [system for system in able if system not in systems]:
            left_out[case.name] = f"not asked in this turn: {', '.join(skipped)}"
        samples = Samples(case, left_out)

        def done(case: Case = case, systems: list[str] = systems, samples: Samples = samples) -> None:
            found[case.name] = {system: samples.found[system] for system in systems if system in samples.found}
            result.write(found, left_out=left_out)

        measure(sampling, systems, samples, done, is_quick=arguments.quick)
        show(case, found[case.name])


def show(case: Case, samples: dict[str, dict[str, list[float]]]) -> None:
    print(f"{case.name} kernels, ms")
    for system, rows in samples.items():
        cells = (f"{name} {statistics.median(times) * 1e3:9.3f}" for name, times in rows.items())
        print(f"  {system:34}", "  ".join(cells), flush=True)


if __name__ == "__main__":
    main()
