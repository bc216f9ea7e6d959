"""How long do real programs take to their first and to their last result, cold and warm, here and with other caches?

Method      Each sample is a fresh process, or eight of them together, whose results are checked after the measurement.
            "first" and "all" are seconds from the end of imports, decoration, context and arrays to the result of the
            first and of the last kernel; "process" is the whole process. One cold sample of each, in parallel,
            `--rounds` warm ones, one process at a time, and `--jobs` jobs, each on empty and then on filled caches.
            The programs: the 31 products of examples/tropical_gemm.cu; the twenty Numba kernels of numba_program.py,
            also in a job of 8 processes that start together; a block sum with CUB; and the start of a container
            without compilers, with a bundle and an empty cache, or the cache folder of a machine with compilers.
            NVRTC, NVVM and nvJitLink cannot be found there, and the memory map of the process is checked for them at
            the end.
Not shown   Programs that run for hours; a cold page cache; a real container, or a network between machines.
"""

from __future__ import annotations

import importlib
import itertools
import os
import shutil
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numba_program
import numpy as np
import programs
from harness import AT_ONCE, ROOT, Arguments, Result, compiles, require, run, say, temporary_folders
from programs import LIBRARIES, OfSource

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


def products(library: str, launcher: OfSource) -> dict[str, float]:
    """Seconds until one kernel has its result, and until all have run, on the arrays of a library."""
    arrays = LIBRARIES[library]()
    launch = launcher(SOURCE.read_text())
    arrays.ones(BLOCK)  # by a kernel of CuPy: its compiler is loaded
    a, b = (arrays.array(np.ones((SIDE, SIDE), np.float64)) for _ in range(2))
    c, best = (arrays.array(np.zeros((SIDE, SIDE), dtype)) for dtype in (np.float64, np.int32))
    arrays.wait()

    def one(name: str) -> None:
        is_gradient = name.startswith("backward")
        grid = (SIDE // 16, SIDE // 16, 1) if is_gradient else (1, 1, 1)  # one block for a product
        operands = (a, best, c) if is_gradient else (a, b, c, best) if name.endswith("_arg") else (a, b, c)
        if library == "numba":  # arrays have one type, parameters several
            operands = tuple(np.uintp(each.device_ctypes_pointer.value) for each in operands)
        launch(name, grid, (16, 16, 1), *operands, SIDE, SIDE, SIDE)
        arrays.wait()

    first, *others = kernel_names()
    start = time.perf_counter()
    one(first)
    found = {"first": time.perf_counter() - start}
    for name in others:
        one(name)
    found["all"] = time.perf_counter() - start
    for name, value in {"maxplus_f64": 2, "minplus_f64": 2, "maxmul_f64": 1}.items():
        one(name)
        require((arrays.host(c) == value).all())
    return found


def twenty(decorator: str) -> dict[str, Any]:
    """The program with the decorator of that name."""
    folder = os.path.join(os.environ["KC_PROGRAMS"], decorator)
    kernels, first, last, digest = numba_program.run_all(folder)
    theirs = sum(sum(each.stats.cache_misses.values()) for each in kernels if decorator == "numba")
    return {"first": first, "all": last, "digest": digest, **({"compiles": theirs} if decorator == "numba" else {})}


BLOCK, BLOCKS = 128, 64
CUB = f"""
#include <cub/block/block_reduce.cuh>
extern "C" __global__ void sums(const int *x, int *out) {{
    using Reduce = cub::BlockReduce<int, {BLOCK}>;
    __shared__ Reduce::TempStorage storage;
    int sum = Reduce(storage).Sum(x[blockIdx.x * {BLOCK} + threadIdx.x]);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}}"""


def block_sums(library: str, launcher: OfSource) -> dict[str, float]:
    arrays, values = LIBRARIES[library](), np.arange(BLOCK * BLOCKS, dtype=np.int32)
    launch = launcher(CUB)
    arrays.ones(BLOCK)  # by a kernel of CuPy: its compiler is loaded
    x, out = arrays.array(values), arrays.array(np.zeros(BLOCKS, np.int32))
    arrays.wait()
    start = time.perf_counter()
    launch("sums", (BLOCKS, 1, 1), (BLOCK, 1, 1), x, out)
    arrays.wait()
    first = time.perf_counter() - start
    require((arrays.host(out) == values.reshape(BLOCKS, BLOCK).sum(axis=1)).all())
    return {"first": first, "all": first}


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
CHILDREN: dict[str, tuple[Callable[..., dict[str, Any]], dict[str, tuple[Any, ...]]]] = {
    "31 kernels of one source": (products, {
        OURS: ("numba", programs.our_module_source), CUPY: ("cupy", partial(programs.cupy_source, is_module=True)),
        CORE: ("numba", programs.core_source),
    }),
    NUMBAS: (twenty, {OURS: ("kcache",), NUMBA: ("numba",), GIVEN: ("signatures",)}),
    SUM: (block_sums, {
        OURS: ("numba", partial(programs.our_source, is_text=True)), CUPY: ("cupy", programs.cupy_source),
        TORCH: ("torch", programs.torch_source),
    }),
}  # fmt: skip
"""For each workload the function that measures it, and that function's arguments for each system."""

CONTAINED = {NUMBAS: (OURS, NUMBA), SUM: (OURS, CUPY)}
"""The systems of each workload that keep code on disk and are also started without compilers."""


def child(workload: str, system: str, how: str = "", take: str = "", bundle: str = "") -> None:
    """Measure a system, or export its cache; "contained": without compilers, where `take` makes a bundle known."""
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
    is_counted = "KC_BENCH_BARRIER" in os.environ and system.startswith(OURS)  # counting takes time of the process
    say(**({"compiles": compiles()} if is_counted else {}), **found)


def measure(result: Result, arguments: Arguments) -> None:
    """Run all on empty caches, in parallel, then one after another on the filled ones, and the jobs."""
    result.notes["ranks"] = RANKS
    pairs = {
        f"{workload}: {system}": (workload, system)
        for workload, (_, systems) in CHILDREN.items() for system in systems
    }  # fmt: skip
    digests = set[str]()
    starts: dict[str, tuple[str, str, tuple[object, ...], Path | None]] = {}  # row, system, words, filled cache or None

    def keep(row: str, system: str, state: str, found: dict[str, Any]) -> None:
        digests.update({found["digest"]} if "digest" in found else ())
        if len(digests) > 1:
            result.leave_out(f"{row}: {system}", "its results differ from those of another system")
        figures = {name: found[name] for name in ("first", "all", "process", "compiles") if name in found}
        result.add(row, system, prefix=f"{state} ", **figures)

    with temporary_folders() as folders:
        more = {"KC_PROGRAMS": str(folders("programs"))}
        for decorator in numba_program.DECORATORS:
            numba_program.write(folders("programs", decorator), decorator)
        for name, found in [*result.take_all(pairs, lambda name: folders(*pairs[name]), AT_ONCE, more=more)]:
            workload, system = pairs[name]
            keep(workload, system, "cold", found)
            built, row = folders(workload, system), f"{workload}, no compiler"
            starts[f"{name}, warm"] = workload, system, (workload, system), built
            if system not in CONTAINED.get(workload, ()):
                continue
            bundle, contained = built.with_suffix(".kcache"), (workload, system, "contained")
            if system == OURS and result.take(row, workload, system, "export", "", bundle, folder=built, more=more):
                for take in ("import_bundle", "register_bundle"):
                    starts[f"{name}, {take}"] = row, f"{OURS}, {take}", (*contained, take, bundle), None
            copied = shutil.copytree(built, built.with_suffix(".copy"))  # a container has other paths
            starts[f"{name}, copied"] = row, f"{system}, cache folder copied", contained, copied
        words, new = {name: each[2] for name, each in starts.items()}, itertools.count()

        def folder(name: str) -> Path:
            return starts[name][3] or folders(f"new {next(new)}")

        for name, found in result.sampled(words, folder, arguments.rounds, fills=0, more=more):
            keep(*starts[name][:2], "warm", found)
        row = f"20 Numba kernels, {RANKS} processes"
        for number in result.rounds(arguments.jobs):
            for system, state in ((system, state) for system in (OURS, GIVEN, NUMBA) for state in ("cold", "warm")):
                commands = [((NUMBAS, system), folders("job", system, number))] * RANKS
                if job := result.ranks(f"{row}: {system}, {state}", commands, more):
                    compiled = sum(each["compiles"] for each in job["answers"])
                    keep(row, system, state, {"all": job["last"], "process": job["all"], "compiles": compiled})


if __name__ == "__main__":
    run(__doc__, {"workloads": (measure, child)}, rounds=(2, 1), jobs=(2, 1))
