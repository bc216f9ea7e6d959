"""How long do real programs take to their first and to their last result, cold and warm, here and with other caches?

Method      Each sample is a fresh process, or eight of them together, whose results are compared with NumPy after the
            measurement. "first" and "all" are seconds from the end of imports, decoration, context and arrays to the
            result of the first and of the last kernel; "process" is the whole process. Cold: no cache. Warm: after
            another process. With --quick, cold samples run in parallel, one for two cores. The programs: the 31
            products of examples/gemm_module.py; the twenty Numba kernels of benchmarks/numba_program, also in a job of
            8 processes that start together; a block sum with CUB; and the start of a container without compilers. The
            container has a bundle and an empty cache, or the cache folder of a machine with compilers. NVRTC, NVVM and
            nvJitLink cannot be found there, and the memory map of the process is checked for them at the end.
Not shown   Programs that run for hours; a cold page cache; a real container, or a network between machines.
"""

from __future__ import annotations

import argparse
import compileall
import importlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from first_launch import include_dirs
from fresh import ROOT, fresh, is_pretended, say, wait_for_the_others
from header import Result
from processes import ranks

COMPILERS = ("nvrtc", "nvvm", "nvJitLink")
BUNDLE = "program.kcache"
RANKS = int(os.environ.get("KC_BENCH_RANKS", "8"))


def ours_compiled() -> int:
    import numba_kcache

    return numba_kcache.info("process").compiles


def imported(folder: str, name: str) -> Any:
    """Import a program's module, with the program's folder as the working directory."""
    os.chdir(ROOT / folder)
    sys.path.insert(0, str(ROOT / folder))
    return importlib.import_module(name)


# -- 31 kernels of one source ---------------------------------------------------------------------------


class Clocked:
    """Stand in for `gemm` of the example: time each launch until its result is there."""

    def __init__(self, launch: Callable[..., object]) -> None:
        self.launch, self.first, self.all = launch, 0.0, 0.0

    def __getitem__(self, name: str) -> Any:
        return Named(self, name)


class Named:
    """One kernel of the stand-in: `gemm[name]`."""

    def __init__(self, clocked: Clocked, name: str) -> None:
        self.clocked, self.name = clocked, name

    def __getitem__(self, config: Any) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            from numba import cuda

            start = time.perf_counter()
            self.clocked.launch(self.name, config, arguments)
            cuda.synchronize()
            spent = time.perf_counter() - start
            self.clocked.first = self.clocked.first or spent
            self.clocked.all += spent

        return call


def gemm(launch_of: Callable[[Any], Callable[..., object]], compiled: Callable[[], int]) -> None:
    from modules import kernel_names
    from numba import cuda

    example: Any = imported("examples", "gemm_module")
    cuda.current_context()
    clocked = Clocked(launch_of(example))
    example.gemm = clocked
    for name in kernel_names():
        try:
            example.check(name)
        except AssertionError:
            if not is_pretended():
                raise
    say(first=clocked.first, all=clocked.all, compiles=compiled())


def gemm_ours() -> None:
    def launch_of(example: Any) -> Callable[..., object]:
        module = example.gemm
        return lambda name, config, arguments: module[name][config](*arguments)

    gemm(launch_of, ours_compiled)


def gemm_cupy() -> None:
    import cupy

    def launch_of(_example: Any) -> Callable[..., object]:
        module = cupy.RawModule(code=(ROOT / "examples/tropical_gemm.cu").read_text(), backend="nvrtc")

        def launch(name: str, config: Any, arguments: tuple[Any, ...]) -> None:
            operands = [cupy.int32(each) if isinstance(each, int) else cupy.asarray(each) for each in arguments]
            grid = tuple(config[0]) + (1,) * (3 - len(config[0]))
            module.get_function(name)(grid, config[1], operands)

        cupy.cuda.Device().synchronize()
        return launch

    gemm(launch_of, lambda: -1)


def gemm_cuda_core() -> None:
    import numpy as np
    from cuda.core import Device, LaunchConfig, Program, ProgramOptions
    from cuda.core import launch as launch_on
    from cuda.core.utils import FileStreamProgramCache

    def launch_of(_example: Any) -> Callable[..., object]:
        device = Device()
        device.set_current()
        text, stream = (ROOT / "examples/tropical_gemm.cu").read_text(), device.default_stream
        compiled: list[Any] = []

        def launch(name: str, config: Any, arguments: tuple[Any, ...]) -> None:
            if not compiled:
                options = ProgramOptions(arch=f"sm_{device.arch}", no_cache=True)
                cache = FileStreamProgramCache(os.environ["KC_BENCH_DIR"])
                compiled.append(Program(text, "c++", options=options).compile("cubin", cache=cache))
            operands = [
                np.int32(each) if isinstance(each, int) else int(each.device_ctypes_pointer.value) for each in arguments
            ]
            launch_config = LaunchConfig(grid=tuple(config[0]), block=tuple(config[1]))
            launch_on(stream, launch_config, compiled[0].get_kernel(name), *operands)

        return launch

    gemm(launch_of, lambda: -1)


# -- twenty Numba kernels -------------------------------------------------------------------------------


def program() -> None:
    """Run the program with the decorator that KC_PROGRAM names."""
    module: Any = imported("benchmarks/numba_program", "program")
    from numba import cuda

    cuda.current_context()
    wait_for_the_others()
    first, last, _count = module.run_all(is_checked=not is_pretended())
    is_numbas = os.environ.get("KC_PROGRAM") == "numba"
    kernels = module.WANTED if is_numbas else ()
    compiles = sum(sum(each.stats.cache_misses.values()) for each in kernels) if is_numbas else ours_compiled()
    say(first=first, all=last, compiles=compiles)


def program_numba() -> None:
    os.environ["KC_PROGRAM"] = "numba"
    program()


def program_signatures() -> None:
    os.environ["KC_PROGRAM"] = "signatures"
    program()


# -- a header of CUB ------------------------------------------------------------------------------------

BLOCK, BLOCKS = 128, 64
CUB = f"""
#include <cub/block/block_reduce.cuh>
extern "C" __global__ void sums(const int *x, int *out) {{
    using Reduce = cub::BlockReduce<int, {BLOCK}>;
    __shared__ Reduce::TempStorage storage;
    int sum = Reduce(storage).Sum(x[blockIdx.x * {BLOCK} + threadIdx.x]);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}}"""


def block_sums(launch: Callable[[], object], result: Callable[[], Any], compiled: Callable[[], int]) -> None:
    import numpy as np

    start = time.perf_counter()
    launch()
    first = time.perf_counter() - start
    wanted = np.arange(BLOCK * BLOCKS, dtype=np.int32).reshape(BLOCKS, BLOCK).sum(axis=1)
    assert is_pretended() or (result() == wanted).all()
    say(first=first, all=first, compiles=compiled())


def cub_ours() -> None:
    import numpy as np
    from numba import cuda

    from numba_kcache import cached_kernel

    kernel = cached_kernel(CUB)
    x = cuda.to_device(np.arange(BLOCK * BLOCKS, dtype=np.int32))
    out = cuda.to_device(np.zeros(BLOCKS, np.int32))
    cuda.synchronize()

    def launch() -> None:
        kernel[BLOCKS, BLOCK](x, out)
        cuda.synchronize()

    block_sums(launch, out.copy_to_host, ours_compiled)


def cub_cupy() -> None:
    import cupy

    options = ("-std=c++17", *(f"-I{folder}" for folder in include_dirs()))
    kernel = cupy.RawKernel(CUB, "sums", options, backend="nvrtc")
    x, out = cupy.arange(BLOCK * BLOCKS, dtype=cupy.int32), cupy.zeros(BLOCKS, cupy.int32)
    cupy.cuda.Device().synchronize()

    def launch() -> None:
        kernel((BLOCKS,), (BLOCK,), (x, out))
        cupy.cuda.Device().synchronize()

    block_sums(launch, lambda: cupy.asnumpy(out), lambda: -1)


def cub_torch() -> None:
    import torch

    x = torch.arange(BLOCK * BLOCKS, dtype=torch.int32, device="cuda")
    out = torch.zeros(BLOCKS, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()

    def launch() -> None:
        kernel = torch.cuda._compile_kernel(CUB, "sums", cuda_include_dirs=include_dirs())
        kernel((BLOCKS, 1, 1), (BLOCK, 1, 1), (x, out))
        torch.cuda.synchronize()

    block_sums(launch, lambda: out.cpu().numpy(), lambda: -1)


def cub_pycuda() -> None:
    import numpy as np
    import pycuda.autoprimaryctx
    from pycuda import driver
    from pycuda.compiler import SourceModule

    assert pycuda.autoprimaryctx
    x = driver.to_device(np.arange(BLOCK * BLOCKS, dtype=np.int32))
    out = driver.to_device(np.zeros(BLOCKS, np.int32))
    driver.Context.synchronize()

    def launch() -> None:
        module = SourceModule(CUB, cache_dir=os.environ["KC_BENCH_DIR"], no_extern_c=True)
        module.get_function("sums")(x, out, block=(BLOCK, 1, 1), grid=(BLOCKS, 1))
        driver.Context.synchronize()

    block_sums(launch, lambda: driver.from_device(out, (BLOCKS,), np.int32), lambda: -1)


# -- a container without compilers ----------------------------------------------------------------------


def refuse_compilers() -> None:
    """Make the compilers unavailable: cuda.pathfinder does not find them, and dlopen fails."""
    from cuda import pathfinder

    real = pathfinder.load_nvidia_dynamic_lib

    def load(name: str) -> Any:
        if name in COMPILERS:
            raise pathfinder.DynamicLibNotFoundError(f"{name} is not installed here")
        return real(name)

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "ctypes.dlopen" and any(each in str(arguments[0]) for each in COMPILERS):
            raise OSError(f"{arguments[0]}: no compiler is installed here")

    pathfinder.load_nvidia_dynamic_lib = load
    sys.addaudithook(refuse)


def no_compiler_is_mapped() -> None:
    maps = Path("/proc/self/maps").read_text()
    assert not any(f"lib{each}" in maps for each in COMPILERS), "a compiler was loaded"


def contained(run: Callable[[], None]) -> Callable[[], None]:
    """A child without compilers; if there is a bundle, the child first imports or registers it, within "process"."""

    def child() -> None:
        refuse_compilers()
        if "KC_BENCH_BUNDLE" in os.environ:
            import numba_kcache

            take = getattr(numba_kcache, os.environ["KC_BENCH_TAKE"])  # import_bundle or register_bundle
            take(os.environ["KC_BENCH_BUNDLE"])
        run()
        no_compiler_is_mapped()

    return child


def export() -> None:
    import numba_kcache

    report = numba_kcache.export_bundle(os.environ["KC_BENCH_BUNDLE"])
    say(entries=report.entries, bytes=os.path.getsize(os.environ["KC_BENCH_BUNDLE"]))


GIVEN = "numba_kcache, signatures given"
OURS, NUMBA, CUPY, TORCH = "numba_kcache", "Numba cache=True", "cupy", "torch _compile_kernel"
CORE, PYCUDA = "cuda.core FileStreamProgramCache", "PyCUDA SourceModule"
CHILDREN: dict[str, dict[str, Callable[[], None]]] = {
    "31 kernels of one source": {OURS: gemm_ours, CUPY: gemm_cupy, CORE: gemm_cuda_core},
    "20 Numba kernels in four files": {OURS: program, NUMBA: program_numba, GIVEN: program_signatures},
    "block sum with CUB": {OURS: cub_ours, CUPY: cub_cupy, TORCH: cub_torch, PYCUDA: cub_pycuda},
}
JOB = f"20 Numba kernels, {RANKS} processes"


def ask(workload: str, system: str, folder: Path, flag: str = "--child", **more: str) -> Any:
    return fresh([__file__, flag, workload, system], folder, more)


class Results:
    """Samples by workload, system and "cold/warm first/all/process/compiles", and the runs that failed."""

    def __init__(self, path: Path | None) -> None:
        self.samples: dict[str, dict[str, dict[str, list[float]]]] = {}
        self.left_out: dict[str, str] = {}
        self.result = Result(path, "workloads", left_out=self.left_out, ranks=RANKS)

    def add(self, workload: str, system: str, state: str, found: dict[str, Any] | str) -> bool:
        """Keep one answer and write the result; return False if the answer is the reason of a failure."""
        if isinstance(found, str):
            self.left_out[f"{workload}: {system}, {state}"] = found
            return False
        rows = self.samples.setdefault(workload, {}).setdefault(system, {})
        for what, value in found.items():
            if what != "compiles" or value >= 0:
                rows.setdefault(f"{state} {what}", []).append(value)
        self.result.write(self.samples)
        return True


CONTAINED = {"20 Numba kernels in four files": (OURS, NUMBA), "block sum with CUB": (OURS, CUPY)}
"""The systems of each workload that keep code on disk and are also started without compilers."""


def measure(results: Results, processes: int) -> None:
    """Run one round of all workloads; cold runs of single processes run `processes` at a time."""
    with tempfile.TemporaryDirectory() as parent:
        pairs = [(workload, system) for workload, systems in CHILDREN.items() for system in systems]
        folders = [Path(parent, str(number)) for number in range(len(pairs))]
        for folder in folders:
            folder.mkdir()
        with ThreadPoolExecutor(processes) as pool:
            cold = list(pool.map(ask, *zip(*pairs, strict=True), folders))
        for (workload, system), folder, found in zip(pairs, folders, cold, strict=True):
            if results.add(workload, system, "cold", found):
                results.add(workload, system, "warm", ask(workload, system, folder))
                if system in CONTAINED.get(workload, ()):
                    measure_container(workload, system, folder, results)
    for system in (OURS, GIVEN, NUMBA):
        folder = Path(tempfile.mkdtemp())
        words = [__file__, "--child", "20 Numba kernels in four files", system]
        for state in ("cold", "warm"):
            found = ranks(words, RANKS, folder)
            if isinstance(found, dict):
                found = {"all": found["last"], "process": found["all"], "compiles": found["compiles"]}
            results.add(JOB, system, state, found)
        shutil.rmtree(folder)


def measure_container(workload: str, system: str, built: Path, results: Results) -> None:
    """Start without compilers from a bundle of the folder `built`, which a run with compilers filled, and from a copy.

    The folder is moved, since the paths of the machine that built it do not exist in a container.
    """
    named, parent = f"{workload}, no compiler", Path(tempfile.mkdtemp())
    if system == OURS:
        bundle = str(parent / BUNDLE)
        exported = ask(workload, system, built, "--export", KC_BENCH_BUNDLE=bundle)
        assert isinstance(exported, dict), exported
        for how in ("import", "register"):
            empty = parent / how
            empty.mkdir()
            more = {"KC_BENCH_BUNDLE": bundle, "KC_BENCH_TAKE": f"{how}_bundle"}
            results.add(named, f"{OURS}, {how}_bundle", "warm", ask(workload, system, empty, "--contained", **more))
    built.rename(parent / "copy")
    found = ask(workload, system, parent / "copy", "--contained")
    results.add(named, f"{system}, cache folder copied", "warm", found)
    shutil.rmtree(parent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--child", nargs=2)
    parser.add_argument("--contained", nargs=2)
    parser.add_argument("--export", nargs=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round; cold samples run in parallel")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.child or arguments.contained:
        workload, system = arguments.child or arguments.contained
        child = CHILDREN[workload][system]
        (contained(child) if arguments.contained else child)()
        return
    if arguments.export:
        export()
        return
    compileall.compile_dir(str(ROOT / "numba_kcache"), quiet=2)
    results = Results(arguments.json)
    for _ in range(1 if arguments.quick else arguments.rounds):
        measure(results, max(1, (os.cpu_count() or 1) // 2) if arguments.quick else 1)
    for workload, systems in results.samples.items():
        for system, rows in systems.items():
            cells = (f"{name} {median(times) * 1e3:.1f}" for name, times in rows.items() if "compiles" not in name)
            print(f"{workload}: {system}: {', '.join(cells)} ms")
    for what, why in results.left_out.items():
        print(f"{what}: {why}", file=sys.stderr)


if __name__ == "__main__":
    main()
