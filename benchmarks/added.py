"""How much longer does a process take with a cached kernel than with a bare cubin, or with CuPy's RawKernel?

Method      Pairs of fresh processes run one after the other, in alternating order: a program with a cached kernel, and
            the same program without it. The time is that of the whole process, with import and exit.
            "cubin": the other program loads a cubin from a file through cuda.bindings. "of a text": the cached kernel
            is made from a string, not a function. "RawKernel", "fp16": both use CuPy arrays; the source is plain CUDA
            C++, or includes cuda_fp16.h. "31 of a module", "300 of a module": kernels of one source, each launched,
            compared with RawModule. "31 sources": one kernel in each, compared with 31 RawKernels. "Numba", "torch",
            "numba-cuda-mlir", "cuda.compute": the other program has the same arrays and no kernel or reduction.
            "without import", "with import": `cuda` is the stand-in, or Numba's own; the other program has the same
            arrays and no kernel, or a cached kernel in CUDA C++ on memory of the driver.
            "cache=True": the other program uses the package's own cache. Warm: earlier processes filled the caches.
            Cold: every process has an empty folder for its caches. "Copied": the arrays are copied from the host.
            Otherwise CuPy fills them by its own kernel. With an empty cache CuPy compiles that kernel, so NVRTC is
            loaded before RawKernel needs it; with copied arrays the load counts as RawKernel's time.
Output      The median of the differences in ms with its 95% confidence interval (binomial), and the medians of both.
Not shown   A cold page cache, a busy node, a network file system.
"""

from __future__ import annotations

import argparse
import compileall
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from fresh import ROOT, environment, is_pretended, reason
from whole_process import CUBIN, SOURCE, DriverArray, N, bare_arrays, copied

HALF = "#include <cuda_fp16.h>\n" + SOURCE
GRID = N // 256, 256


def require(values: Any) -> None:
    """Check the kernel's result; on the fake driver, which runs no kernel, check nothing."""
    assert is_pretended() or {float(values[0]), float(values[N - 1])} == {3.0}


def kernel(source: str) -> Any:
    """Decorate a function that returns the source: the usual way to write a kernel."""
    from numba_kcache import cached_kernel

    @cached_kernel
    def saxpy() -> str:
        return source

    return saxpy


def ours_on_bare_memory(as_text: bool = False) -> None:
    from cuda.bindings import driver

    pointers = bare_arrays(driver)
    if as_text:
        from numba_kcache import cached_kernel

        saxpy = cached_kernel(SOURCE)
    else:
        saxpy = kernel(SOURCE)
    x, y = (DriverArray(pointer) for pointer in pointers)
    saxpy[GRID](2.0, x, y, N)
    require(copied(driver, pointers[1]))
    cubin = Path(os.environ["KC_BENCH_DIR"], CUBIN)
    if os.environ.get("KC_BENCH_FILLS"):
        cubin.write_bytes(saxpy.cubin())


def bare_cubin() -> None:
    from ctypes import c_float, c_int, c_void_p

    from cuda.bindings import driver

    pointers = bare_arrays(driver)
    _, module = driver.cuModuleLoadData(Path(os.environ["KC_BENCH_DIR"], CUBIN).read_bytes())
    _, function = driver.cuModuleGetFunction(module, b"saxpy")
    passed = (2.0, *pointers, N), (c_float, c_void_p, c_void_p, c_int)
    driver.cuLaunchKernel(function, N // 256, 1, 1, 256, 1, 1, 0, 0, passed, 0)
    require(copied(driver, pointers[1]))


def cupy_arrays(copied: bool) -> Any:
    import cupy
    import numpy as np

    return [cupy.asarray(np.ones(N, np.float32)) if copied else cupy.ones(N, cupy.float32) for _ in range(2)]


def ours_on_cupy(source: str, copied: bool = False) -> None:
    x, y = cupy_arrays(copied)
    kernel(source)[GRID](2.0, x, y, N)
    require(y.get())


def raw_kernel(source: str, copied: bool = False) -> None:
    import cupy
    import numpy as np

    x, y = cupy_arrays(copied)
    saxpy = cupy.RawKernel(source, "saxpy", backend="nvrtc")
    saxpy(GRID[:1], GRID[1:], (np.float32(2), x, y, np.int32(N)))
    require(y.get())


def many(count: int) -> str:
    """One source of `count` kernels; the last one, `saxpy`, is the one whose result is checked."""
    kernels = [
        SOURCE.replace("saxpy", f"saxpy_{number}").replace("a *", f"(a + {number}.0f) *") for number in range(count)
    ]
    return "".join([*kernels[1:], SOURCE])


def names_of(count: int) -> list[str]:
    return [*(f"saxpy_{number}" for number in range(1, count)), "saxpy"]


def ours_of_a_module(count: int) -> None:
    from numba_kcache import cached_module

    (x, y), (_, other) = cupy_arrays(False), cupy_arrays(False)
    module = cached_module(many(count))
    for name in names_of(count):
        module[name][GRID](2.0, x, y if name == "saxpy" else other, N)
    require(y.get())


def raw_module(count: int) -> None:
    import cupy
    import numpy as np

    (x, y), (_, other) = cupy_arrays(False), cupy_arrays(False)
    module = cupy.RawModule(code=many(count), backend="nvrtc")
    for name in names_of(count):
        arguments = np.float32(2), x, y if name == "saxpy" else other, np.int32(N)
        module.get_function(name)(GRID[:1], GRID[1:], arguments)
    require(y.get())


def sources(count: int) -> list[str]:
    return [SOURCE.replace("a *", f"(a + {number}.0f) *") for number in range(1, count)] + [SOURCE]


def ours_of_sources(count: int) -> None:
    (x, y), (_, other) = cupy_arrays(False), cupy_arrays(False)
    for source in sources(count):
        kernel(source)[GRID](2.0, x, y if source is SOURCE else other, N)
    require(y.get())


def raw_kernels(count: int) -> None:
    import cupy
    import numpy as np

    (x, y), (_, other) = cupy_arrays(False), cupy_arrays(False)
    for source in sources(count):
        arguments = np.float32(2), x, y if source is SOURCE else other, np.int32(N)
        cupy.RawKernel(source, "saxpy", backend="nvrtc")(GRID[:1], GRID[1:], arguments)
    require(y.get())


def numba_arrays() -> Any:
    import warnings

    import numpy as np
    from numba import cuda

    warnings.simplefilter("ignore")
    return [cuda.to_device(np.ones(N, np.float32)) for _ in range(2)]


def numba_saxpy(decorate: Any) -> None:
    from numba import cuda

    @decorate
    def saxpy(a, x, y, n):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        if i < n:
            y[i] = a * x[i] + y[i]

    x, y = numba_arrays()
    saxpy[GRID](2.0, x, y, N)
    require(y.copy_to_host())


def ours_of_numba() -> None:
    from numba_kcache import cached_kernel

    numba_saxpy(cached_kernel)


def no_kernel() -> None:
    numba_arrays()[1].copy_to_host()


def numba_with_its_own_cache() -> None:
    from numba import cuda

    numba_saxpy(cuda.jit(cache=True))


def torch_arrays() -> Any:
    import torch

    return [torch.ones(N, device="cuda") for _ in range(2)]


def ours_on_torch() -> None:
    x, y = torch_arrays()
    kernel(SOURCE)[GRID](2.0, x, y, N)
    require(y.cpu())


def no_kernel_of_torch() -> None:
    torch_arrays()[1].cpu()


def mlir_arrays() -> Any:
    import warnings

    import numpy as np
    from numba_cuda_mlir import cuda

    warnings.simplefilter("ignore")
    return [cuda.to_device(np.ones(N, np.float32)) for _ in range(2)]


def mlir_saxpy(decorate: Callable[[Any], Any]) -> None:
    from numba_cuda_mlir import cuda

    def saxpy(a, x, y, n):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        if i < n:
            y[i] = a * x[i] + y[i]

    cached = decorate(saxpy)
    x, y = mlir_arrays()
    cached[GRID](2.0, x, y, N)
    require(y.copy_to_host())


def ours_of_mlir() -> None:
    from numba_kcache import cached_kernel

    mlir_saxpy(cached_kernel)


def mlir_with_its_own_cache() -> None:
    from numba_cuda_mlir import cuda

    mlir_saxpy(cuda.jit(cache=True))


def no_kernel_of_mlir() -> None:
    mlir_arrays()[1].copy_to_host()


Made = tuple[Any, Any, Callable[[], Any]]
"""Two arrays, and a function that reads the second."""


def made_by_driver() -> Made:
    from cuda.bindings import driver

    pointers = bare_arrays(driver)
    return *map(DriverArray, pointers), lambda: copied(driver, pointers[1])


def made_by_cupy() -> Made:
    x, y = cupy_arrays(False)
    return x, y, y.get


def made_by_torch() -> Made:
    x, y = torch_arrays()
    return x, y, y.cpu


def only(make: Callable[[], Made]) -> None:
    make()[2]()


def python_kernel(module: str, make: Callable[[], Made]) -> None:
    """Launch a kernel of a Numba, whose `cuda` is imported from that module; a warm stand-in may not load it."""
    from importlib import import_module

    cuda: Any = import_module(module)
    is_light = module.startswith("numba_kcache")
    if is_light:
        decorate = cuda.jit
    else:
        from numba_kcache import cached_kernel as decorate

    @decorate
    def saxpy(a, x, y, n):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        if i < n:
            y[i] = a * x[i] + y[i]

    x, y, read = make()
    saxpy[GRID](2.0, x, y, N)
    require(read())
    loaded = {"numba", "numba_cuda_mlir"} & sys.modules.keys()
    assert not (is_light and loaded) or "KC_BENCH_FILLS" in os.environ, saxpy.explain().imported


def arrays_for_compute() -> Any:
    from cuda import compute

    return compute, *cupy_arrays(False)


def ours_of_compute() -> None:
    import numpy as np

    import numba_kcache

    numba_kcache.install(cuda_compute=True)
    compute, x, y = arrays_for_compute()
    zero = np.zeros(1, np.float32)
    compute.reduce_into(d_in=x, d_out=y, num_items=N, op=compute.OpKind.PLUS, h_init=zero)
    assert float(y.get()[0]) == N


def no_reduction() -> None:
    arrays_for_compute()[2].get()


class Pair(NamedTuple):
    """Two programs to compare; `is_cold` if each of their processes begins with empty caches."""

    ours: Callable[[], None]
    other: Callable[[], None]
    is_cold: bool = False


MANY = {
    "31 of a module": (lambda: ours_of_a_module(31), lambda: raw_module(31)),
    "300 of a module": (lambda: ours_of_a_module(300), lambda: raw_module(300)),
    "31 sources": (lambda: ours_of_sources(31), lambda: raw_kernels(31)),
}
PAIRS = {
    "cubin": Pair(ours_on_bare_memory, bare_cubin),
    "cubin of a text": Pair(lambda: ours_on_bare_memory(as_text=True), bare_cubin),
    "RawKernel": Pair(lambda: ours_on_cupy(SOURCE), lambda: raw_kernel(SOURCE)),
    "fp16": Pair(lambda: ours_on_cupy(HALF), lambda: raw_kernel(HALF)),
    "Numba": Pair(ours_of_numba, no_kernel),
    "torch": Pair(ours_on_torch, no_kernel_of_torch),
    "numba-cuda-mlir": Pair(ours_of_mlir, no_kernel_of_mlir),
    "cuda.compute": Pair(ours_of_compute, no_reduction),
    "Numba cache=True": Pair(numba_with_its_own_cache, no_kernel),
    "numba-cuda-mlir cache=True": Pair(mlir_with_its_own_cache, no_kernel_of_mlir),
    **{name: Pair(*both) for name, both in MANY.items()},
    "cold RawKernel": Pair(lambda: ours_on_cupy(SOURCE), lambda: raw_kernel(SOURCE), is_cold=True),
    "cold RawKernel, copied": Pair(lambda: ours_on_cupy(SOURCE, True), lambda: raw_kernel(SOURCE, True), is_cold=True),
    "cold fp16": Pair(lambda: ours_on_cupy(HALF), lambda: raw_kernel(HALF), is_cold=True),
    **{f"cold {name}": Pair(*both, is_cold=True) for name, both in MANY.items()},
}
for library, make in {"CuPy": made_by_cupy, "torch": made_by_torch}.items():
    for numba, names in {
        "Numba": ("numba_kcache.cuda", "numba.cuda"),
        "numba-cuda-mlir": ("numba_kcache.mlir.cuda", "numba_cuda_mlir.cuda"),
    }.items():
        for way, module in zip(("without import", "with import"), names, strict=True):
            PAIRS[f"{numba} {way}, {library}"] = Pair(partial(python_kernel, module, make), partial(only, make))
PAIRS |= {
    "Numba without import, CUDA C++": Pair(
        partial(python_kernel, "numba_kcache.cuda", made_by_driver), ours_on_bare_memory
    ),
    "numba-cuda-mlir without import, CUDA C++": Pair(
        partial(python_kernel, "numba_kcache.mlir.cuda", made_by_driver), ours_on_bare_memory
    ),
}
SIDES = "ours", "other"


def process(name: str, side: str, folder: Path, **more: str) -> float | str:
    """Seconds of one process; the reason, as text, if it failed."""
    command = [sys.executable, __file__, "--child", name, side]
    begin = time.perf_counter()
    done = subprocess.run(command, env=environment(folder, more), capture_output=True, text=True)
    seconds = time.perf_counter() - begin
    return seconds if done.returncode == 0 else reason(done.stderr or done.stdout)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The order statistics between which the median lies with 95 % (binomial, normal approximation)."""
    ordered, reach = sorted(values), 0.98 * math.sqrt(len(values))
    first = max(0, math.floor(len(values) / 2 - reach))
    return ordered[first], ordered[len(values) - 1 - first]


def measure(
    names: Sequence[str], pairs: int, cold: int, within_s: float
) -> Iterator[tuple[dict[str, dict[str, list[float]]], dict[str, str]]]:
    """Yield, after each round, the seconds of both sides of each pair, and the pairs that fail here with the reason."""
    found: dict[str, dict[str, list[float]]] = {name: {side: [] for side in SIDES} for name in names}
    left_out: dict[str, str] = {}
    warm, end = Path(tempfile.mkdtemp()), time.monotonic() + within_s
    for number in range(-2, max(pairs, cold)):  # two rounds are not counted: one fills the cache, one reads it
        for name in names:
            pair = PAIRS[name]
            limit, begin = (cold, -1) if pair.is_cold else (pairs, -2)
            if name in left_out or not begin <= number < limit or (number > 2 and time.monotonic() > end):
                continue
            for side in reversed(SIDES) if number % 2 else SIDES:
                folder = Path(tempfile.mkdtemp()) if pair.is_cold else warm
                fills = {"KC_BENCH_FILLS": "1"} if number < 0 else {}
                seconds = process(name, side, folder, **fills)
                if pair.is_cold:
                    shutil.rmtree(folder)
                if isinstance(seconds, str):
                    left_out[name] = f"{side}: {seconds}"
                elif number >= 0:
                    found[name][side].append(seconds)
        yield {name: sides for name, sides in found.items() if name not in left_out}, left_out
    shutil.rmtree(warm)


def added_by(samples: dict[str, dict[str, list[float]]]) -> dict[str, Any]:
    """The median of the differences in ms, and the interval, of each pair."""
    found = {}
    for name, sides in samples.items():
        if more := [(ours - other) * 1e3 for ours, other in zip(sides["ours"], sides["other"], strict=True)]:
            low, high = interval(more)
            found[name] = {"added_ms": median(more), "low_ms": low, "high_ms": high, "pairs": len(more)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--child", nargs=2)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--cold", type=int, default=12)
    parser.add_argument("--only", default=";".join(PAIRS), help="names of pairs, separated by semicolons")
    parser.add_argument("--except", dest="left", default="", help="names of pairs that are left out, likewise")
    parser.add_argument("--within", type=float, default=1e9, help="seconds after which no further pair is begun")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.child:
        name, side = arguments.child
        getattr(PAIRS[name], side)()
        return
    from header import Result

    compileall.compile_dir(str(ROOT / "numba_kcache"), quiet=2)
    names = [name for name in PAIRS if name in set(arguments.only.split(";")) - set(arguments.left.split(";"))]
    result = Result(arguments.json, "added")
    for samples, left_out in measure(names, arguments.pairs, arguments.cold, arguments.within):
        added = added_by(samples)
        result.write(samples, left_out=left_out, added=added)
    for name, row in added.items():
        medians = ", ".join(f"{side} {median(samples[name][side]) * 1e3:.0f}" for side in SIDES)
        ratio = median(samples[name]["ours"]) / median(samples[name]["other"])
        print(
            "{:40} {added_ms:+7.1f} ms ({low_ms:+.1f} to {high_ms:+.1f}), {:.3f} times, {pairs} pairs; {}".format(
                name, ratio, medians, **row
            )
        )
    for name, why in left_out.items():
        print(f"{name}: {why}", file=sys.stderr)


if __name__ == "__main__":
    main()
