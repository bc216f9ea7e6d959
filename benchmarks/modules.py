"""How long do 31 kernels of one source take, compiled together or one by one, cold and warm, compared with CuPy?

Method      examples/tropical_gemm.cu. Each sample is a fresh process; the measurement starts after imports, decoration
            and context creation. "bound": one kernel is ready for a launch. "first": its result is synchronised. "all":
            every kernel has run. Cold: the system's own cache directory is empty. Warm: an earlier process filled it.
            The floor, the least that is possible, reads the same cubin from a file and calls cuModuleLoadData and one
            cuModuleGetFunction, without type checks. Samples of the systems alternate.
            "300 of a module", "31 of a module", "31 sources": kernels with equal parameters, warm, each launched once,
            compared with RawModule and RawKernels in pairs of processes. One of CuPy's kernels has filled the arrays,
            so NVRTC is loaded before the measurement. "all": from the request of the first kernel to the end of the
            last launch, after imports; "further": the median of those from the third on; "process": the whole process.
Not shown   A cold page cache, a busy node; sources whose compile time is spent in headers.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import programs
from harness import ROOT, Folders, Result, alternated, compiles, require, rounds, run, say
from programs import LIBRARIES, N, System

SOURCE = ROOT / "examples/tropical_gemm.cu"
SIDE = 64  # rows and columns of every matrix
FLOOR_CUBIN = "module.cubin"


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


def measured(xp: Any, ready: Callable[[str], object], launch: Callable[..., object], wait: Callable[[], object],
             array: Callable[[Any], Any], host: Callable[[Any], Any]) -> dict[str, float]:  # fmt: skip
    """Seconds until one kernel is ready for a launch ("bound"), until its result, and until all have run.

    Args:
        xp: NumPy or CuPy, for the operands.
        ready: Makes a kernel ready to be launched.
        launch: Launches a kernel with its name and operands.
        wait: Waits for its result.
        array: Makes an operand of an array of `xp`.
        host: Copies an operand to the host.
    """
    a, b = (array(xp.ones((SIDE, SIDE), xp.float64)) for _ in range(2))
    c, best = array(xp.zeros((SIDE, SIDE), xp.float64)), array(xp.zeros((SIDE, SIDE), xp.int32))
    wait()

    def one(name: str) -> None:
        products = (a, b, c, best) if name.endswith("_arg") else (a, b, c)
        launch(name, *((a, best, c) if name.startswith("backward") else products))
        wait()

    first, *others = kernel_names()
    start = time.perf_counter()
    ready(first)
    bound = time.perf_counter() - start
    one(first)
    found = {"bound": bound, "first": time.perf_counter() - start}
    for name in others:
        one(name)
    found["all"] = time.perf_counter() - start
    for name, value in {"maxplus_f64": 2, "minplus_f64": 2, "maxmul_f64": 1}.items():
        one(name)
        require((host(c) == value).all())
    return found


def our_products(lazy: bool = False, writes_cubin: bool = False) -> dict[str, float]:
    import numpy as np
    from numba import cuda

    from numba_kcache import cached_module

    module = cached_module(SOURCE, lazy=lazy)

    def launch(name: str, *operands: Any) -> None:
        pointers = (np.uintp(each.device_ctypes_pointer.value) for each in operands)
        module[name][grid_of(name)](*pointers, SIDE, SIDE, SIDE)

    found = measured(
        np, lambda name: module[name][grid_of(name)], launch, cuda.synchronize, cuda.to_device,
        lambda each: each.copy_to_host(),
    )  # fmt: skip
    if writes_cubin:
        Path(os.environ["KC_BENCH_DIR"], FLOOR_CUBIN).write_bytes(module.cubin())
    return {**found, "compiles": compiles()}


def cupy_products() -> dict[str, float]:
    import cupy

    module = cupy.RawModule(code=SOURCE.read_text(), backend="nvrtc")
    size = (cupy.int32(SIDE),) * 3

    def launch(name: str, *operands: Any) -> None:
        module.get_function(name)(*grid_of(name), (*operands, *size))

    wait = cupy.cuda.Device().synchronize
    return measured(cupy, module.get_function, launch, wait, lambda each: each, cupy.asnumpy)


def core_products() -> dict[str, float]:
    """cuda.core, with its cache on disk and Numba's arrays."""
    import numpy as np
    from cuda.core import Device, LaunchConfig, Program, ProgramOptions
    from cuda.core import launch as launch_on
    from cuda.core.utils import FileStreamProgramCache
    from numba import cuda

    device, cache, compiled = Device(), FileStreamProgramCache(os.environ["KC_BENCH_DIR"]), list[Any]()
    device.set_current()

    def ready(_name: str) -> None:
        options = ProgramOptions(arch=f"sm_{device.arch}", no_cache=True)
        compiled.append(Program(SOURCE.read_text(), "c++", options=options).compile("cubin", cache=cache))

    def launch(name: str, *operands: Any) -> None:
        pointers = (each.device_ctypes_pointer.value for each in operands)
        grid, block = grid_of(name)
        config = LaunchConfig(grid=grid, block=block)
        size = (np.int32(SIDE),) * 3
        launch_on(device.default_stream, config, compiled[0].get_kernel(name), *pointers, *size)

    return measured(np, ready, launch, cuda.synchronize, cuda.to_device, lambda each: each.copy_to_host())


def floor() -> dict[str, float]:
    from cuda.bindings import driver

    LIBRARIES["driver"]().ones(N)
    path = Path(os.environ["KC_BENCH_DIR"], FLOOR_CUBIN)
    start = time.perf_counter()
    status, module = driver.cuModuleLoadData(path.read_bytes())
    found, _function = driver.cuModuleGetFunction(module, kernel_names()[0].encode())
    assert status == found == 0, (status, found)
    return {"bound": time.perf_counter() - start}


FLOOR = "read + cuModuleLoadData"
SYSTEMS: dict[str, Callable[[], dict[str, float]]] = {
    "numba_kcache eager": lambda: our_products(writes_cubin=True),
    "numba_kcache lazy": lambda: our_products(lazy=True),
    "cupy RawModule": cupy_products,
    FLOOR: floor,
}

# -- many kernels of the same parameters, warm ----------------------------------------------------------


class Pair(NamedTuple):
    """The number of kernels, and the systems that are compared."""

    count: int
    ours: System
    cupy: System


MANY = {
    "300 of a module": Pair(300, programs.our_module, programs.cupy_module),
    "31 of a module": Pair(31, programs.our_module, programs.cupy_module),
    "31 sources": Pair(31, programs.ours, programs.cupy_kernels),
}
SIDES = ("ours", "cupy")


def launched_once(pair: Pair, side: str) -> dict[str, float]:
    """Seconds of the first kernel, of each further one and of all, from its request to the end of its launch."""
    from numba_kcache import cached_kernel, cached_module  # noqa: F401 (added.py measures the import)

    library = LIBRARIES["cupy"]()
    x, y = library.ones(N), library.ones(N)
    ends, kept = [time.perf_counter()], []
    for launch in getattr(pair, side)(range(1, pair.count + 1), ""):
        launch(2.0, x, y, N)
        ends.append(time.perf_counter())
        kept.append(launch)  # a program keeps its kernels too
    each = [after - before for before, after in itertools.pairwise(ends)]
    return {"all": sum(each), "first": each[0], "further": median(each[2:])}


def measure_many(result: Result, pairs: int, within_s: float) -> None:
    many: dict[str, dict[str, list[float]]] = {}
    with Folders() as folders:
        for number in rounds(pairs, within_s, fills=1):
            for case in MANY:
                for side in alternated(SIDES, number):
                    found = result.take(f"{case}, {side}", case, side, folder=folders())
                    for what in ("all", "first", "further", "process") if found and number >= 0 else ():
                        many.setdefault(f"{case}, {side}", {}).setdefault(what, []).append(found[what])
            result.write(many=many)
    for name, rows in many.items():
        print(name, *(f"{what} {median(times) * 1e3:.3f} ms" for what, times in rows.items()))


def measure(result: Result, arguments: argparse.Namespace) -> None:
    for _ in range(arguments.cold):
        with Folders() as folders:
            states: Sequence[str] = ["cold", *["warm"] * -(-arguments.warm // arguments.cold)]
            for state, system in itertools.product(states, SYSTEMS):
                folder = folders("lazy" if "lazy" in system else "eager and CuPy")
                if (state, system) != ("cold", FLOOR) and (found := result.take(system, system, folder=folder)):
                    assert "compiles" not in found or (found["compiles"] > 0) == (state == "cold"), (system, found)
                    figures = {what: found[what] for what in ("bound", "first", "all") if what in found}
                    result.add(system, prefix=f"{state} ", **figures)
    if arguments.many:
        measure_many(result, arguments.many, arguments.within)


def child(name: str, side: str = "") -> None:
    say(**(launched_once(MANY[name], side) if side else SYSTEMS[name]()))


if __name__ == "__main__":
    run(__doc__, measure, child, cold=(3, 1), warm=(11, 3), many=(9, 3))
