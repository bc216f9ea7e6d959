"""How much memory does each of 10^4 kernels take, kept or dropped, and how much do 10^7 launches of one kernel?

Method      Every part is a fresh process. "kept" and "dropped": distinct kernels, one after another, are created,
            loaded from the warm cache of the measured system and run; then they are kept, or dropped at once.
            "launches": one kernel. After each tenth of the work the process records the elapsed seconds, its resident
            memory (after a garbage collection) and the device's memory in use (cuMemGetInfo). The memory of a kernel is
            the growth from the first tenth to the last, divided by the number of kernels between. numba_kcache gets
            10^4 sources that differ in a constant. To fill its cache quickly, one cubin is compiled, and the others are
            patched copies of it; all later steps are unchanged. The floor, the least that is possible, loads such
            cubins by cuModuleLoadData and unloads dropped ones. The other systems get fewer kernels, all of which they
            compile. The result states the number of kernels.
Not shown   10 to 10^5 entries in a store, which store.py measures; large kernels; another allocator.
"""

from __future__ import annotations

import argparse
import compileall
import gc
import os
import re
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from first_launch import NUMBA_BODY, Arrays, Case, driver_arrays, functions, numba_arrays
from fresh import ROOT, answer, fresh, is_pretended, say, start

N = 1 << 14
ENTRIES = 20_000
"""The default limit of a cache: more entries would be evicted before they are loaded."""

BASE = 1_000_000
TEMPLATE = "template.cubin"
"""The file with the cubin of kernel 0, which the floor patches."""


def source(number: int) -> str:
    """CUDA C++ of one kernel, y = a * x + number. The cubin contains the number and the kernel's name unchanged."""
    return (
        f'extern "C" __global__ void {name_of(number)}(float a, const float *x, float *y, int n) {{\n'
        "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        f"    if (i < n) y[i] = a * x[i] + {BASE + number}.0f;\n}}\n"
    )


def name_of(number: int) -> str:
    """The name of a kernel; all names have the same length, so that a cubin can be patched."""
    return f"k{number:05d}"


def patched(cubin: bytes, old: int, new: int) -> bytes:
    """Turn the cubin of kernel `old` into that of kernel `new`."""
    was, now = (struct.pack("<f", BASE + number) for number in (old, new))
    assert cubin.count(was) == 1, cubin.count(was)
    return cubin.replace(was, now).replace(name_of(old).encode(), name_of(new).encode())


# -- what is measured -----------------------------------------------------------------------------------


def resident_bytes() -> int:
    """Memory of this process that is in RAM, after a garbage collection."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def device_bytes() -> int:
    """Memory of the device that is in use, by all processes."""
    from cuda.bindings import driver

    _, free, total = driver.cuMemGetInfo()
    return int(total) - int(free)


def tenths(
    work: Iterable[Callable[[], object]], count: int, synchronize: Callable[[], object]
) -> list[tuple[float, int, int]]:
    """Seconds of each tenth of the calls, and after it the resident bytes and the device's bytes in use."""
    rows = []
    start_s = time.perf_counter()
    for number, call in enumerate(work, 1):
        call()
        if number % 1000 == 0:
            synchronize()
        if number % max(1, count // 10) == 0:
            synchronize()
            spent = time.perf_counter() - start_s
            rows.append((spent, resident_bytes(), device_bytes()))
            start_s = time.perf_counter()
    return rows


def grown(
    count: int,
    make: Callable[[int], Callable[[], object]],
    synchronize: Callable[[], object],
    last: Callable[[], float],
    *,
    keeps: bool,
    **more: Callable[[], object],
) -> None:
    """Measure the growth over many kernels.

    Args:
        count: Number of kernels.
        make: Makes a kernel by its number, as a function that launches it.
        synchronize: Waits until all launched kernels have run.
        last: Reads the value that the last kernel wrote.
        keeps: Whether the kernels are kept.
        more: Further figures of the answer, each with the function that reads it at the end.
    """
    kept = []

    def one(number: int) -> None:
        kernel = make(number)
        kernel()
        if keeps:
            kept.append(kernel)

    rows = tenths((lambda number=number: one(number) for number in range(count)), count, synchronize)
    assert is_pretended() or last() == 2.0 + BASE + count - 1, last()
    say(count=count, tenths=rows, **{name: ask() for name, ask in more.items()})


def compiles() -> int:
    import numba_kcache

    return numba_kcache.info("process").compiles


def ours(count: int, *, keeps: bool, arrays: Arrays = driver_arrays) -> None:
    from numba_kcache import cached_kernel

    x, y, synchronize = arrays()

    def make(number: int) -> Callable[[], object]:
        kernel = cached_kernel(source(number))
        return lambda: kernel[N // 256, 256](2.0, x, y, N)

    grown(count, make, synchronize, lambda: float(y.copy_to_host()[0]), keeps=keeps, compiles=compiles)


def bare(count: int, *, keeps: bool) -> None:
    from ctypes import c_float, c_int, c_void_p

    from cuda.bindings import driver

    x, y, synchronize = driver_arrays()
    values = 2.0, x.address, y.address, N
    passed = values, (c_float, c_void_p, c_void_p, c_int)
    template = Path(os.environ["KC_BENCH_DIR"], TEMPLATE).read_bytes()

    def make(number: int) -> Callable[[], object]:
        _, module = driver.cuModuleLoadData(patched(template, 0, number))
        _, function = driver.cuModuleGetFunction(module, name_of(number).encode())

        def call() -> None:
            driver.cuLaunchKernel(function, N // 256, 1, 1, 256, 1, 1, 0, 0, passed, 0)
            if not keeps:
                synchronize()
                driver.cuModuleUnload(module)

        return call

    grown(count, make, synchronize, lambda: float(y.copy_to_host()[0]), keeps=keeps)


def cupy_kernels(count: int, *, keeps: bool) -> None:
    import cupy
    import numpy as np

    x, y = cupy.ones(N, cupy.float32), cupy.ones(N, cupy.float32)

    def make(number: int) -> Callable[[], object]:
        kernel = cupy.RawKernel(source(number), name_of(number), backend="nvrtc")
        return lambda: kernel((N // 256,), (256,), (np.float32(2.0), x, y, np.int32(N)))

    grown(count, make, cupy.cuda.Device().synchronize, lambda: float(y[0]), keeps=keeps)


def python_kernels(count: int, decorate: Callable[[Any], Any], **more: Callable[[], object]) -> None:
    """Measure Python kernels of one file, which are kept."""
    body = NUMBA_BODY.replace("{number}\n", f"({BASE} + {{number}})\n")
    kernel_functions = functions(Case(count - 1, False), "from numba import cuda\n", body)
    x, y, synchronize = numba_arrays()

    def make(number: int) -> Callable[[], object]:
        kernel = decorate(kernel_functions[number])
        return lambda: kernel[N // 256, 256](2.0, x, y)

    grown(count, make, synchronize, lambda: float(y.copy_to_host()[0]), keeps=True, **more)


def our_python_kernels(count: int) -> None:
    from numba_kcache import cached_kernel

    python_kernels(count, cached_kernel, compiles=compiles)


def numba_kernels(count: int) -> None:
    from numba import cuda

    python_kernels(count, cuda.jit(cache=True))


def launches(count: int) -> None:
    from itertools import repeat

    from numba_kcache import cached_kernel

    x, y, synchronize = numba_arrays()
    launch = cached_kernel(source(0))[1, 32]
    for _ in range(min(count, 10_000)):  # one-time allocations are not counted
        launch(2.0, x, y, 32)
    synchronize()
    before = resident_bytes()
    rows = tenths(repeat(lambda: launch(2.0, x, y, 32), count), count, synchronize)
    say(count=count, before_bytes=before, tenths=rows)


def fill(count: int, first: int, step: int) -> None:
    """Store every `step`-th source from `first` on, for this machine's device: one is compiled, the others patched."""
    import numba_kcache
    from numba_kcache import cached_kernel
    from numba_kcache.frontends.source import build as source_build

    numba_kcache.configure(durability="none")
    real, built = source_build.build_source, []

    def build(request: Any, *arguments: Any) -> Any:
        if not built:
            built.append(real(request, *arguments))
            return built[0]
        found = re.search(r"\+ (\d+)\.0f", request.source)
        assert found
        number = int(found[1]) - BASE
        (kernel,) = built[0].kernels
        kernel = kernel._replace(name=name_of(number), symbol=name_of(number))
        return built[0]._replace(kernels=(kernel,), cubin=patched(built[0].cubin, first, number))

    source_build.build_source = build
    for number in range(first, count, step):
        cached_kernel(source(number)).compile()
    if first == 0:
        Path(os.environ["KC_BENCH_DIR"], TEMPLATE).write_bytes(built[0].cubin)
    say()


OURS, ON_NUMBA, FLOOR, CUPY = "numba_kcache", "numba_kcache, Numba arrays", "cuModuleLoadData", "cupy RawKernel"
OUR_PYTHON, NUMBA = "numba_kcache, Numba kernel", "Numba cache=True"
SYSTEMS: dict[str, Callable[..., None]] = {
    f"{OURS}, kept": lambda count: ours(count, keeps=True),
    f"{OURS}, dropped": lambda count: ours(count, keeps=False),
    f"{ON_NUMBA}, dropped": lambda count: ours(count, keeps=False, arrays=numba_arrays),
    f"{FLOOR}, kept": lambda count: bare(count, keeps=True),
    f"{FLOOR}, dropped": lambda count: bare(count, keeps=False),
    f"{CUPY}, kept": lambda count: cupy_kernels(count, keeps=True),
    f"{CUPY}, dropped": lambda count: cupy_kernels(count, keeps=False),
    f"{OUR_PYTHON}, kept": our_python_kernels,
    f"{NUMBA}, kept": numba_kernels,
}
PARTS: dict[str, Callable[..., None]] = {**SYSTEMS, "launches": launches, "fill": fill}
COMPILED = {CUPY: 300, OUR_PYTHON: 100, NUMBA: 100}
"""Number of kernels of the systems whose kernels are all compiled; `--quick` takes a fifth of them."""


def ask(part: str, count: int, folder: Path) -> dict[str, Any] | str:
    return fresh([__file__, "--child", part, "--numbers", str(count)], folder)


def fill_all(count: int, folder: Path) -> float:
    """Fill our cache by one process per core, 16 at most; return the seconds that it took."""
    begin, step = time.perf_counter(), min(16, os.cpu_count() or 1)
    words = [__file__, "--child", "fill", "--numbers"]
    children = [start([*words, f"{count},{first},{step}"], folder) for first in range(step)]
    answers = [answer(child, 500) for child in children]
    if failed := [each for each in answers if isinstance(each, str)]:
        raise SystemExit(f"fill: {failed[0]}")
    return time.perf_counter() - begin


def measure(counts: dict[str, int], calls: int, done: Callable[[str, dict[str, Any] | str], None]) -> None:
    """Measure every part.

    Args:
        counts: Number of kernels of each system.
        calls: Number of launches.
        done: Called with the name of each part and its answer.
    """
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent)
        fill_s = fill_all(counts[OURS], folder)
        for part in SYSTEMS:
            system, _, how = part.rpartition(", ")
            if system in COMPILED and how == "kept":
                ask(part, counts[system], folder)
            found = ask(part, counts[system], folder)
            if isinstance(found, dict):
                assert not found.get("compiles"), (part, found["compiles"])
                found |= {"fill_s": fill_s} if system == OURS else {}
            done(part, found)
        done("launches", ask("launches", calls, folder))


def show(part: str, found: dict[str, Any]) -> None:
    early, late = found["tenths"][0], found["tenths"][-1]
    host, device = ((late[index] - early[index]) / 1e6 for index in (1, 2))
    print(f"{part}, {found['count']}: {host:+.2f} MB of the host and {device:+.2f} MB of the device from the first "
          f"tenth to the last; {early[0]:.2f} s the first, {late[0]:.2f} s the last", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--child", choices=PARTS)
    parser.add_argument("--numbers", help="of a child")
    parser.add_argument("--launches", type=int, default=10_000_000)
    parser.add_argument("--distinct", type=int, default=10_000)
    parser.add_argument("--quick", action="store_true", help="a tenth of the launches, a fifth of what is compiled")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.child:
        PARTS[arguments.child](*map(int, arguments.numbers.split(",")))
        return
    from header import Result

    compileall.compile_dir(str(ROOT / "numba_kcache"), quiet=2)
    many = min(arguments.distinct, 1000 if is_pretended() else ENTRIES)
    counts = dict.fromkeys((OURS, ON_NUMBA, FLOOR), many)
    counts |= {system: count // 5 if arguments.quick else count for system, count in COMPILED.items()}
    samples: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    result = Result(arguments.json, "growth", left_out=left_out)

    def done(part: str, found: dict[str, Any] | str) -> None:
        if isinstance(found, str):
            left_out[part] = found
            print(f"{part}: {found}", file=sys.stderr)
        else:
            samples[part] = found
            show(part, found)
        result.write(samples)

    measure(counts, arguments.launches // (10 if arguments.quick else 1), done)


if __name__ == "__main__":
    main()
