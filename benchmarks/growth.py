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
Not shown   Large kernels; another allocator.
"""

from __future__ import annotations

import gc
import os
import re
import struct
import time
from collections.abc import Callable, Iterable
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import programs
from harness import Arguments, Folders, Result, compiles, is_pretended, require, run, say
from programs import CUBIN, LIBRARIES, Launch, N, System, text

FIRST = 1_000_000
"""The number of the first kernel: all names have the same length, so that a cubin can be patched."""

ENTRIES = 20_000
"""The default limit of a cache: more entries would be evicted before they are loaded."""


def patched(cubin: bytes, old: int, new: int) -> bytes:
    """Turn the cubin of kernel `old` into that of kernel `new`."""
    was, now = (struct.pack("<f", number) for number in (old, new))
    assert cubin.count(was) == 1, cubin.count(was)
    return cubin.replace(was, now).replace(f"k{old}".encode(), f"k{new}".encode())


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
    calls: Iterable[Callable[[], object]], count: int, wait: Callable[[], object]
) -> list[tuple[float, int, int]]:
    """Seconds of each tenth of the calls, and after it the resident bytes and the device's bytes in use."""
    rows = []
    start_s = time.perf_counter()
    for number, call in enumerate(calls, 1):
        call()
        if number % 1000 == 0:
            wait()
        if number % max(1, count // 10) == 0:
            wait()
            spent = time.perf_counter() - start_s
            rows.append((spent, resident_bytes(), device_bytes()))
            start_s = time.perf_counter()
    return rows


def bare(numbers: Iterable[int], keeps: bool) -> Iterable[Launch]:
    """Load and launch patched cubins without checks; a kernel that is not kept is unloaded after its launch."""
    from cuda.bindings import driver

    template = programs.cubin()
    for number in numbers:

        def launch(a: float, x: Any, y: Any, n: int, number: int = number) -> None:
            _, module = driver.cuModuleLoadData(patched(template, FIRST, number))
            _, function = driver.cuModuleGetFunction(module, f"k{number}".encode())
            programs.launch_bare(driver, function, a, x.address, y.address, n)
            if not keeps:
                driver.cuCtxSynchronize()
                driver.cuModuleUnload(module)

        yield launch


class Part(NamedTuple):
    """A row of the table: a library, a system or None for the bare calls, and whether kernels are kept.

    Args:
        compiled: Number of kernels of a system that compiles all of them; 0 for a system with patched cubins.
    """

    library: str
    system: System | None
    keeps: bool
    compiled: int = 0


PARTS = {
    "numba_kcache, kept": Part("driver", programs.our_texts, True),
    "numba_kcache, dropped": Part("driver", programs.our_texts, False),
    "numba_kcache, Numba arrays, dropped": Part("numba", programs.our_texts, False),
    "cuModuleLoadData, kept": Part("driver", None, True),
    "cuModuleLoadData, dropped": Part("driver", None, False),
    "cupy RawKernel, kept": Part("cupy", programs.cupy_kernels, True, 300),
    "cupy RawKernel, dropped": Part("cupy", programs.cupy_kernels, False, 300),
    "numba_kcache, Numba kernel, kept": Part("numba", programs.our_functions, True, 100),
    "Numba cache=True, kept": Part("numba", programs.numba_kernels, True, 100),
}


def many_kernels(name: str, count: int) -> None:
    """Make and launch distinct kernels, one after another, and keep or drop each."""
    part = PARTS[name]
    library, numbers = LIBRARIES[part.library](), range(FIRST, FIRST + count)
    x, y = library.ones(N), library.ones(N)
    library.wait()
    launches = part.system(numbers, "") if part.system else bare(numbers, part.keeps)
    kept = []

    def one(launch: Launch) -> None:
        launch(2.0, x, y, N)
        if part.keeps:
            kept.append(launch)

    rows = tenths((lambda launch=launch: one(launch) for launch in launches), count, library.wait)
    require(float(library.host(y)[0]) == 2.0 + numbers[-1])
    say(count=count, tenths=rows, compiles=compiles() if name.startswith("numba_kcache") else 0)


def many_launches(count: int) -> None:
    from numba_kcache import cached_kernel

    library = LIBRARIES["numba"]()
    x, y = library.ones(N), library.ones(N)
    launch = cached_kernel(text(FIRST))[1, 32]
    for _ in range(min(count, 10_000)):  # one-time allocations are not counted
        launch(2.0, x, y, 32)
    library.wait()
    say(count=count, tenths=tenths(repeat(lambda: launch(2.0, x, y, 32), count), count, library.wait))


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
        (kernel,) = built[0].kernels
        kernel = kernel._replace(name=f"k{found[1]}", symbol=f"k{found[1]}")
        return built[0]._replace(kernels=(kernel,), cubin=patched(built[0].cubin, FIRST + first, int(found[1])))

    source_build.build_source = build
    for number in range(first, count, step):
        cached_kernel(text(FIRST + number)).compile()
    if first == 0:
        Path(os.environ["KC_BENCH_DIR"], CUBIN).write_bytes(built[0].cubin)
    say()


def child(part: str, *numbers: str) -> None:
    if part in PARTS:
        many_kernels(part, *map(int, numbers))
    else:
        {"launches": many_launches, "fill": fill}[part](*map(int, numbers))


def measure(result: Result, arguments: Arguments) -> None:
    many = min(arguments.distinct, 1000 if is_pretended() else ENTRIES)
    counts = {name: part.compiled // (5 if arguments.quick else 1) or many for name, part in PARTS.items()}
    with Folders() as folders:
        step = min(16, os.cpu_count() or 1)
        fills = {f"fill {first}": ("fill", many, first, step) for first in range(step)}
        fills |= {name: (name, counts[name]) for name, part in PARTS.items() if part.compiled and part.keeps}
        dict(result.take_all(fills, lambda _: folders(), step))
        for name in PARTS:
            if found := result.take(name, name, counts[name], folder=folders()):
                assert not found["compiles"], (name, found["compiles"])
                result.samples[name] = found
                result.write()
        if found := result.take("launches", "launches", arguments.launches, folder=folders()):
            result.samples["launches"] = found


if __name__ == "__main__":
    run(__doc__, measure, child, launches=(10_000_000, 1_000_000), distinct=(10_000, 10_000))
