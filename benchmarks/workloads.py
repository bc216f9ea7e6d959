"""How long do real programs take to their first and to their last result, cold and warm, here and with other caches?

Method      Each sample is a fresh process, or eight of them together, whose results are checked after the measurement.
            "first" and "all" are seconds from the end of imports, decoration, context and arrays to the result of the
            first and of the last kernel; "process" is the whole process. Cold samples run in parallel. The programs:
            the 31 products of examples/tropical_gemm.cu; the twenty Numba kernels of numba_program.py, also in a job
            of 8 processes that start together; a block sum with CUB; and the start of a container without compilers,
            with a bundle and an empty cache, or the cache folder of a machine with compilers. NVRTC, NVVM and
            nvJitLink cannot be found there, and the memory map of the process is checked for them at the end.
Not shown   Programs that run for hours; a cold page cache; a real container, or a network between machines.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numba_program
import numpy as np
from harness import AT_ONCE, ROOT, Arguments, Result, compiles, is_pretended, require, run, say, temporary_folders
from programs import LIBRARIES, include_dirs

COMPILERS = ("nvrtc", "nvvm", "nvJitLink")
SOURCE = ROOT / "examples/tropical_gemm.cu"
SIDE = 64  # rows and columns of every matrix
RANKS = int(os.environ.get("KC_BENCH_RANKS", "8"))


def kernel_names() -> list[str]:
    """The kernels of the source: CuPy cannot list them."""
    types, kinds = ("f32", "f64", "i32", "i64"), ("", "_arg")
    rings = ("maxplus", "minplus", "maxmul")
    names = [f"{ring}_{each}{kind}" for ring in rings for each in types for kind in kinds]
    names += [f"{ring}_f32_batched" for ring in rings]
    return names + [f"backward_{of}_{each}" for of in "ab" for each in ("f32", "f64")]


def grid_of(name: str) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """One block for a product; for a gradient a thread for each element."""
    return ((SIDE // 16, SIDE // 16, 1) if name.startswith("backward") else (1, 1, 1)), (16, 16, 1)


Ready = Callable[[str], object]


def products(library: str, system: Callable[[], tuple[Ready, Callable[..., object]]]) -> dict[str, float]:
    """Seconds until one kernel has its result, and until all have run.

    Args:
        library: The library of the operands.
        system: Returns a function that makes a kernel ready, and one that launches it with its name and operands.
    """
    arrays = LIBRARIES[library]()
    ready, launch = system()
    arrays.ones(BLOCK)  # by a kernel of CuPy: its compiler is loaded
    a, b = (arrays.array(np.ones((SIDE, SIDE), np.float64)) for _ in range(2))
    c, best = (arrays.array(np.zeros((SIDE, SIDE), dtype)) for dtype in (np.float64, np.int32))
    arrays.wait()

    def one(name: str) -> None:
        operands = (a, b, c, best) if name.endswith("_arg") else (a, b, c)
        launch(name, *((a, best, c) if name.startswith("backward") else operands))
        arrays.wait()

    first, *others = kernel_names()
    start = time.perf_counter()
    ready(first)
    one(first)
    found = {"first": time.perf_counter() - start}
    for name in others:
        one(name)
    found["all"] = time.perf_counter() - start
    for name, value in {"maxplus_f64": 2, "minplus_f64": 2, "maxmul_f64": 1}.items():
        one(name)
        require((arrays.host(c) == value).all())
    return found


def our_products() -> tuple[Ready, Callable[..., object]]:
    from numba_kcache import cached_module

    module = cached_module(SOURCE)

    def launch(name: str, *operands: Any) -> None:
        pointers = (np.uintp(each.device_ctypes_pointer.value) for each in operands)
        module[name][grid_of(name)](*pointers, SIDE, SIDE, SIDE)

    return lambda name: module[name][grid_of(name)], launch


def cupy_products() -> tuple[Ready, Callable[..., object]]:
    import cupy

    module, size = cupy.RawModule(code=SOURCE.read_text(), backend="nvrtc"), (cupy.int32(SIDE),) * 3
    return module.get_function, lambda name, *operands: module.get_function(name)(*grid_of(name), (*operands, *size))


def core_products() -> tuple[Ready, Callable[..., object]]:
    """cuda.core, with its cache on disk and Numba's arrays."""
    from cuda.core import Device, LaunchConfig, Program, ProgramOptions
    from cuda.core import launch as launch_on
    from cuda.core.utils import FileStreamProgramCache

    device, cache, compiled = Device(), FileStreamProgramCache(os.environ["KC_BENCH_DIR"]), []
    device.set_current()

    def ready(_name: str) -> None:
        options = ProgramOptions(arch=f"sm_{device.arch}", no_cache=True)
        compiled.append(Program(SOURCE.read_text(), "c++", options=options).compile("cubin", cache=cache))

    def launch(name: str, *operands: Any) -> None:
        grid, block = grid_of(name)
        pointers = (each.device_ctypes_pointer.value for each in operands)
        config, size = LaunchConfig(grid=grid, block=block), (np.int32(SIDE),) * 3
        launch_on(device.default_stream, config, compiled[0].get_kernel(name), *pointers, *size)

    return ready, launch


def twenty(decorator: str) -> dict[str, float]:
    """The program with the decorator of that name."""
    folder = os.path.join(os.environ["KC_PROGRAMS"], decorator)
    kernels, first, last = numba_program.run_all(folder, is_checked=not is_pretended())
    theirs = sum(sum(each.stats.cache_misses.values()) for each in kernels if decorator == "numba")
    return {"first": first, "all": last, **({"compiles": theirs} if decorator == "numba" else {})}


BLOCK, BLOCKS = 128, 64
CUB = f"""
#include <cub/block/block_reduce.cuh>
extern "C" __global__ void sums(const int *x, int *out) {{
    using Reduce = cub::BlockReduce<int, {BLOCK}>;
    __shared__ Reduce::TempStorage storage;
    int sum = Reduce(storage).Sum(x[blockIdx.x * {BLOCK} + threadIdx.x]);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}}"""


def block_sums(library: str, system: Callable[[], Callable[..., object]]) -> dict[str, float]:
    """Run the kernel; `system` returns a function that launches it with two arrays."""
    arrays, values = LIBRARIES[library](), np.arange(BLOCK * BLOCKS, dtype=np.int32)
    launch = system()
    arrays.ones(BLOCK)  # by a kernel of CuPy: its compiler is loaded
    x, out = arrays.array(values), arrays.array(np.zeros(BLOCKS, np.int32))
    arrays.wait()
    start = time.perf_counter()
    launch(x, out)
    arrays.wait()
    first = time.perf_counter() - start
    require((arrays.host(out) == values.reshape(BLOCKS, BLOCK).sum(axis=1)).all())
    return {"first": first, "all": first}


def cub_ours() -> Callable[..., object]:
    from numba_kcache import cached_kernel

    kernel = cached_kernel(CUB)
    return lambda x, out: kernel[BLOCKS, BLOCK](x, out)


def cub_cupy() -> Callable[..., object]:
    import cupy

    options = ("-std=c++17", *(f"-I{folder}" for folder in include_dirs()))
    kernel = cupy.RawKernel(CUB, "sums", options, backend="nvrtc")
    return lambda x, out: kernel((BLOCKS,), (BLOCK,), (x, out))


def cub_torch() -> Callable[..., object]:
    import torch

    compiled = torch.cuda._compile_kernel
    return lambda x, out: compiled(CUB, "sums", cuda_include_dirs=include_dirs())(
        (BLOCKS, 1, 1), (BLOCK, 1, 1), (x, out)
    )


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


OURS, NUMBA, CUPY, TORCH = "numba_kcache", "Numba cache=True", "cupy", "torch _compile_kernel"
GIVEN, CORE = "numba_kcache, signatures given", "cuda.core FileStreamProgramCache"
NUMBAS, SUM = "20 Numba kernels in four files", "block sum with CUB"
Found = dict[str, float]
CHILDREN: dict[str, tuple[Callable[..., Found], dict[str, tuple[Any, ...]]]] = {
    "31 kernels of one source": (
        products, {OURS: ("numba", our_products), CUPY: ("cupy", cupy_products), CORE: ("numba", core_products)}),
    NUMBAS: (twenty, {OURS: ("kcache",), NUMBA: ("numba",), GIVEN: ("signatures",)}),
    SUM: (block_sums, {OURS: ("numba", cub_ours), CUPY: ("cupy", cub_cupy), TORCH: ("torch", cub_torch)}),
}  # fmt: skip
"""For each workload the function that measures it, and that function's arguments for each system."""

CONTAINED = {NUMBAS: (OURS, NUMBA), SUM: (OURS, CUPY)}
"""The systems of each workload that keep code on disk and are also started without compilers."""


def child(workload: str, system: str, how: str = "", take: str = "", bundle: str = "") -> None:
    """Measure a system, or export its cache; "contained" is without compilers, and `take` imports or registers a bundle
    there, within "process"."""
    if how == "export":
        import numba_kcache

        say(entries=numba_kcache.export_bundle(bundle).entries)
        return
    if how:
        refuse_compilers()
    if take:
        getattr(importlib.import_module("numba_kcache"), take)(bundle)
    measured, systems = CHILDREN[workload]
    found = measured(*systems[system])
    maps = Path("/proc/self/maps").read_text() if how else ""
    assert not any(f"lib{each}" in maps for each in COMPILERS), "a compiler was loaded"
    say(**({"compiles": compiles()} if system.startswith(OURS) else {}), **found)


def measure(result: Result, arguments: Arguments) -> None:
    """In each round, run all on empty caches, in parallel, and then one after another on the filled ones."""
    result.notes["ranks"] = RANKS
    pairs = {
        f"{workload}: {system}, cold": (workload, system)
        for workload, (_, systems) in CHILDREN.items()
        for system in systems
    }

    def keep(workload: str, system: str, state: str, found: dict[str, Any] | None) -> None:
        names = [name for name in ("first", "all", "process", "compiles") if name in (found or {})]
        if found:
            result.add(workload, system, prefix=f"{state} ", **{name: found[name] for name in names})

    for _ in result.rounds(arguments.rounds):
        with temporary_folders() as folders:
            more = {"KC_PROGRAMS": str(folders("programs"))}
            for decorator in numba_program.DECORATORS:
                numba_program.write(folders("programs", decorator), decorator)

            def warm(row: str, named: str, *words: object, folder: Path, more: Mapping[str, str] = more) -> None:
                keep(row, named, "warm", result.take(f"{row}: {named}, warm", *words, folder=folder, more=more))

            for name, found in [*result.take_all(pairs, lambda name: folders(*pairs[name]), AT_ONCE, more=more)]:
                workload, system = pairs[name]
                built = folders(workload, system)
                keep(workload, system, "cold", found)
                warm(workload, system, workload, system, folder=built)
                if system not in CONTAINED.get(workload, ()):
                    continue
                row, bundle = f"{workload}, no compiler", built.with_suffix(".kcache")
                if system == OURS and result.take(row, workload, system, "export", "", bundle, folder=built, more=more):
                    for take in ("import_bundle", "register_bundle"):
                        words = (workload, system, "contained", take, bundle)
                        warm(row, f"{OURS}, {take}", *words, folder=folders(workload, take))
                copy = built.rename(built.with_suffix(".copy"))  # a container does not have the paths of the machine
                warm(row, f"{system}, cache folder copied", workload, system, "contained", folder=copy)
            for system in (OURS, GIVEN, NUMBA):
                for state in ("cold", "warm"):
                    row = f"20 Numba kernels, {RANKS} processes"
                    commands = [((NUMBAS, system), folders("job", system))] * RANKS
                    if found := result.ranks(f"{row}: {system}, {state}", commands, more):
                        compiled = sum(each["compiles"] for each in found["answers"])
                        figures = {"all": found["last"], "process": found["all"], "compiles": compiled}
                        keep(row, system, state, figures)


if __name__ == "__main__":
    run(__doc__, measure, child, rounds=(3, 1))
