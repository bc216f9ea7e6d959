"""How long do 31 kernels of one source take, compiled together or one by one, cold and warm, compared with CuPy?

Method      examples/tropical_gemm.cu. Each sample is a fresh process; the measurement starts after imports, decoration
            and context creation. "bound": one kernel is ready for a launch. "first": its result is synchronised. "all":
            every kernel has run. "each": the kernels one by one, from the request of a kernel to its result. "cpu": CPU
            seconds of "all", which the load of other programs hardly changes. Cold: the system's own cache directory is
            empty. Warm: an earlier process filled it. The floor, the least that is possible, reads the same cubin from
            a file and calls cuModuleLoadData and one cuModuleGetFunction, without type checks. CUDA_CACHE_DISABLE=1
            turns the driver's own cache off. Samples of the systems alternate.
            "300 of a module", "31 of a module", "31 sources": kernels with equal parameters, warm, each launched once,
            compared with RawModule and RawKernels in pairs of processes. One of CuPy's kernels has filled the arrays,
            so NVRTC is loaded before the measurement. "all": from the request of the first kernel to the end of the
            last launch, after imports; "further": the median of those from the third on; "process": the whole process.
            --profile counts the calls of this package.
Not shown   A cold page cache, a busy node; sources whose compile time is spent in headers.
"""

from __future__ import annotations

import argparse
import compileall
import cProfile
import itertools
import json
import os
import pstats
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from added import GRID, cupy_arrays, kernel, many, names_of, sources
from fresh import answer, is_pretended
from fresh import start as start_child
from whole_process import DriverArray, N, bare_arrays

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "examples/tropical_gemm.cu"
SIDE = 64  # rows and columns of every matrix
FLOOR_CUBIN = "module.cubin"

Launch = Callable[[str, Any], None]


def kernel_names() -> list[str]:
    """The kernels of the source: CuPy cannot list them."""
    types, kinds = ("f32", "f64", "i32", "i64"), ("", "_arg")
    rings = ("maxplus", "minplus", "maxmul")
    names = [f"{ring}_{each}{kind}" for ring in rings for each in types for kind in kinds]
    names += [f"{ring}_f32_batched" for ring in rings]
    return names + [f"backward_{of}_{each}" for of in "ab" for each in ("f32", "f64")]


def measured(ready: Callable[[], object], one: Callable[[str], None], names: Iterable[str]) -> dict[str, Any]:
    """Seconds to "bound" and "first", of each kernel and of all, and the CPU time of all.

    Args:
        ready: Makes the first kernel ready to be launched.
        one: Launches a kernel and waits for its result.
        names: The kernels, the first one first.
    """
    first, *others = names
    start, cpu = time.perf_counter(), time.process_time()
    ready()
    bound = time.perf_counter()
    one(first)
    ended = [start, time.perf_counter()]
    for name in others:
        one(name)
        ended.append(time.perf_counter())
    each = [after - before for before, after in itertools.pairwise(ended)]
    cpu = time.process_time() - cpu
    return {"bound": bound - start, "first": each[0], "each": each, "all": sum(each), "cpu": cpu}


def matrices(xp: Any) -> tuple[Any, Any, Any]:
    """Operands of every kernel: as wide as the widest type, and filled with small numbers."""
    return xp.ones((SIDE, SIDE), xp.float64), xp.ones((SIDE, SIDE), xp.float64), xp.zeros((SIDE, SIDE), xp.float64)


def grid_of(name: str) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """One block for a product; for a gradient a thread for each element."""
    return ((SIDE // 16, SIDE // 16, 1) if name.startswith("backward") else (1, 1, 1)), (16, 16, 1)


def child_ours(lazy: bool, is_checked: bool) -> None:
    import numpy as np
    from numba import cuda

    import numba_kcache
    from numba_kcache import cached_module

    module = cached_module(SOURCE, lazy=lazy)
    a, b, c = (cuda.to_device(each) for each in matrices(np))
    best = cuda.to_device(np.zeros((SIDE, SIDE), np.int32))
    cuda.synchronize()
    pointers = {each: np.uintp(each.device_ctypes_pointer.value) for each in (a, b, c, best)}

    def one(name: str) -> None:
        grid, block = grid_of(name)
        operands = (
            (a, best, c) if name.startswith("backward") else (a, b, c, best) if name.endswith("_arg") else (a, b, c)
        )
        module[name][grid, block](*(pointers[each] for each in operands), SIDE, SIDE, SIDE)
        cuda.synchronize()

    names = kernel_names()
    found = measured(lambda: module[names[0]][grid_of(names[0])], one, names)
    if is_checked:
        one("maxplus_f64")
        assert (c.copy_to_host() == 2).all()
    info = numba_kcache.info("process")
    if not lazy:
        Path(os.environ["KC_BENCH_DIR"], FLOOR_CUBIN).write_bytes(module.cubin())
    report(found, compiles=info.compiles, hits=info.hits)


def child_cupy(is_checked: bool) -> None:
    import cupy

    module = cupy.RawModule(code=SOURCE.read_text(), backend="nvrtc")
    a, b, c = matrices(cupy)
    best = cupy.zeros((SIDE, SIDE), cupy.int32)
    size = (cupy.int32(SIDE),) * 3
    cupy.cuda.Device().synchronize()

    def one(name: str) -> None:
        operands = (
            (a, best, c) if name.startswith("backward") else (a, b, c, best) if name.endswith("_arg") else (a, b, c)
        )
        module.get_function(name)(*grid_of(name), (*operands, *size))
        cupy.cuda.Device().synchronize()

    names = kernel_names()
    found = measured(lambda: module.get_function(names[0]), one, names)
    if is_checked:
        one("maxplus_f64")
        assert (cupy.asnumpy(c) == 2).all()
    report(found)


def child_floor() -> None:
    from cuda.bindings import driver
    from numba import cuda

    cuda.current_context()
    cuda.synchronize()
    path = Path(os.environ["KC_BENCH_DIR"], FLOOR_CUBIN)
    start = time.perf_counter()
    status, module = driver.cuModuleLoadData(path.read_bytes())
    loaded = time.perf_counter()
    found, _function = driver.cuModuleGetFunction(module, kernel_names()[0].encode())
    got = time.perf_counter()
    assert status == found == 0, (status, found)
    report({"load": loaded - start, "bound": got - start})


# -- many kernels of the same parameters, warm -------------------------------------------------------------------------


def ours_of_a_module(count: int) -> Iterator[Callable[..., None]]:
    from numba_kcache import cached_module

    module = cached_module(many(count))
    return (module[name][GRID] for name in names_of(count))


def raw_module(count: int) -> Iterator[Callable[..., None]]:
    import cupy

    module = cupy.RawModule(code=many(count), backend="nvrtc")
    return (raw(module.get_function(name)) for name in names_of(count))


def ours_of_sources(count: int) -> Iterator[Callable[..., None]]:
    return (kernel(source)[GRID] for source in sources(count))


def raw_kernels(count: int) -> Iterator[Callable[..., None]]:
    import cupy

    return (raw(cupy.RawKernel(source, "saxpy", backend="nvrtc")) for source in sources(count))


def raw(function: Any) -> Callable[..., None]:
    import numpy as np

    return lambda a, x, y, n: function(GRID[:1], GRID[1:], (np.float32(a), x, y, np.int32(n)))


MANY: dict[str, tuple[int, Callable[[int], Iterator[Any]], Callable[[int], Iterator[Any]]]] = {
    "300 of a module": (300, ours_of_a_module, raw_module),
    "31 of a module": (31, ours_of_a_module, raw_module),
    "31 sources": (31, ours_of_sources, raw_kernels),
}
SIDES = "ours", "cupy"


def child_of_many(case: str, side: str, is_profiled: bool) -> None:
    count, *makers = MANY[case]
    arrays = [DriverArray(each) for each in bare_arrays(driver())] if is_pretended() else cupy_arrays(False)
    if side == "ours":
        from numba_kcache import cached_kernel, cached_module  # noqa: F401 (added.py measures the import)

    profile = cProfile.Profile() if is_profiled else None
    if profile:
        profile.enable()
    ends, cpu, kept = [time.perf_counter()], time.process_time(), []
    for launch in makers[SIDES.index(side)](count):
        launch(2.0, *arrays, N)
        ends.append(time.perf_counter())
        kept.append(launch)  # a program keeps its kernels too
    if profile:
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
        return
    cpu = time.process_time() - cpu
    each = [after - before for before, after in itertools.pairwise(ends)]
    first, further = each[0], statistics.median(each[2:])
    report({"all": sum(each), "first": first, "further": further, "cpu": cpu})


def driver() -> Any:
    from cuda.bindings import driver as found

    return found


def measure_many(rounds: int, within_s: float) -> Iterator[dict[str, dict[str, list[float]]]]:
    """Yield, after each round, all samples in seconds by "case, side" and figure. Every second round runs the sides of
    a pair in the reverse order."""
    found: dict[str, dict[str, list[float]]] = {}
    folder, end = Path(tempfile.mkdtemp()), time.monotonic() + within_s
    for number in range(-1, rounds):  # the first fills the caches
        for case in MANY:
            for side in SIDES if number % 2 else SIDES[::-1]:
                if number > 1 and time.monotonic() > end:
                    continue
                start = time.perf_counter()
                outcome = answer(start_child([__file__, "--case", case, side], folder))
                seconds = time.perf_counter() - start
                if isinstance(outcome, str):
                    print(f"{case}, {side}: {outcome}", file=sys.stderr)
                elif number >= 0:
                    for what, value in {**outcome, "process": seconds}.items():
                        found.setdefault(f"{case}, {side}", {}).setdefault(what, []).append(value)
        yield found
    shutil.rmtree(folder)


def show_many(samples: dict[str, dict[str, list[float]]]) -> None:
    for name, rows in samples.items():
        numbers = (f"{what} {statistics.median(values) * 1e3:.3f}" for what, values in rows.items())
        print(f"{name:26}", "  ".join(numbers), "ms")
    for case in MANY:
        ours, cupy = (samples.get(f"{case}, {side}") for side in SIDES)
        if ours and cupy:
            ratios = (f"{what} {statistics.median(ours[what]) / statistics.median(cupy[what]):.2f}" for what in ours)
            more = statistics.median(a - b for a, b in zip(ours["process"], cupy["process"], strict=False)) * 1e3
            print(f"{case}: of CuPy's", "  ".join(ratios), f"; process {more:+.1f} ms")


def report(found: dict[str, Any], **more: object) -> None:
    print(json.dumps({**found, **more}))


EAGER, LAZY, CUPY, FLOOR = "numba_kcache eager", "numba_kcache lazy", "cupy RawModule", "read + cuModuleLoadData"
VARIABLES = {EAGER: "NUMBA_KCACHE_DIR", LAZY: "NUMBA_KCACHE_DIR", CUPY: "CUPY_CACHE_DIR"}


def sample(system: str, directory: Path, is_checked: bool) -> dict[str, Any] | None:
    """One fresh process; None if the system cannot run here."""
    environment = {**os.environ, "CUDA_CACHE_DISABLE": "1", "KC_BENCH_DIR": str(directory.parent)}
    if system in VARIABLES:
        environment[VARIABLES[system]] = str(directory)
    flags = [] if is_checked else ["--unchecked"]
    command = [sys.executable, __file__, "--child", system, *flags]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"{system}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def measure(cold_rounds: int, warm_rounds: int, is_checked: bool) -> Iterator[dict[str, dict[str, list[Any]]]]:
    """Samples in seconds by system and by "cold/warm bound/first/all/each", after each round."""
    found: dict[str, dict[str, list[Any]]] = {}
    for _ in range(cold_rounds):
        root = Path(tempfile.mkdtemp())
        for state, rounds in (("cold", 1), ("warm", -(-warm_rounds // cold_rounds))):
            for _ in range(rounds):
                for system in (EAGER, LAZY, CUPY, FLOOR) if state == "warm" else (EAGER, LAZY, CUPY):
                    result = sample(system, root / system.replace(" ", "_"), is_checked)
                    for what, value in (result or {}).items():
                        if what in ("compiles", "hits"):
                            assert what == "hits" or (value > 0) == (state == "cold"), (system, state, result)
                        else:
                            found.setdefault(system, {}).setdefault(f"{state} {what}", []).append(value)
                yield found
        shutil.rmtree(root, ignore_errors=True)


def show(samples: dict[str, dict[str, list[Any]]]) -> None:
    """Print medians in milliseconds, and the ratios of lazy to eager and of eager to the floor."""

    def middle(system: str, what: str) -> float:
        return statistics.median(samples[system][what]) if what in samples.get(system, {}) else float("nan")

    for system, rows in samples.items():
        numbers = (name for name in rows if not name.endswith("each"))
        print(f"{system:26}", "  ".join(f"{name} {middle(system, name) * 1e3:.3f}" for name in numbers), "ms")
    runs = samples.get(LAZY, {}).get("cold each", [])
    eager = middle(EAGER, "cold first")
    one = statistics.median(seconds for run in runs for seconds in run[1:]) if runs else float("nan")
    wall, cpu = (middle(LAZY, what) / middle(EAGER, what) for what in ("cold all", "cold cpu"))
    print(
        f"lazy, cold: median kernel / eager whole {one / eager:.3f}; all one by one {wall:.2f} in time, {cpu:.2f} cpu"
    )
    floor = middle(FLOOR, "warm load")
    print(f"eager, warm: bound {middle(EAGER, 'warm bound') / floor:.2f} of the floor, first result "
          f"{middle(EAGER, 'warm first') / floor:.2f}; cupy {middle(CUPY, 'warm bound') / floor:.2f}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--child", choices=(EAGER, LAZY, CUPY, FLOOR))
    parser.add_argument("--cold", type=int, default=3, help="cold samples of each system")
    parser.add_argument("--warm", type=int, default=11, help="warm samples of each system")
    parser.add_argument("--unchecked", action="store_true", help="for a driver that runs nothing: compare no results")
    parser.add_argument(
        "--many", type=int, default=9, help="pairs of processes with many kernels of the same parameters"
    )
    parser.add_argument("--within", type=float, default=1e9, help="seconds after which none of these is begun")
    parser.add_argument("--case", nargs=2)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.case:
        child_of_many(*arguments.case, arguments.profile)
    elif arguments.child in (EAGER, LAZY):
        child_ours(arguments.child == LAZY, not arguments.unchecked)
    elif arguments.child == CUPY:
        child_cupy(not arguments.unchecked)
    elif arguments.child == FLOOR:
        child_floor()
    else:
        from header import Result

        compileall.compile_dir(str(ROOT / "numba_kcache"), quiet=2)
        result, samples, of_many = Result(arguments.json, "modules"), dict[str, Any](), dict[str, Any]()
        for samples in measure(arguments.cold, arguments.warm, not (arguments.unchecked or is_pretended())):
            result.write(samples, many=of_many)
        if samples:
            show(samples)
        for of_many in measure_many(arguments.many, arguments.within) if arguments.many else ():
            result.write(samples, many=of_many)
        show_many(of_many)


if __name__ == "__main__":
    main()
