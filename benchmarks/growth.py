"""How much memory does each of 10^4 kernels take, kept or dropped, and how much do 10^7 launches of one kernel?

Method      Every part is a fresh process. "kept" and "dropped": distinct kernels, one after another, are loaded from
            the warm cache of the system and run; then they are kept, or dropped at once. "launches": one kernel. After
            each tenth of the work the process records the elapsed seconds, its resident memory (after a garbage
            collection) and the device's memory in use. The memory of a kernel is the growth from the first tenth to
            the last, by the kernels between. To fill numba_kcache's cache quickly, one cubin is compiled, and the
            others are patched copies of it. The floor loads such cubins by cuModuleLoadData and unloads dropped ones.
            The other systems get 50 or 100 kernels, all of which they compile. Each part is run once.
Not shown   Large kernels; another allocator.
"""

from __future__ import annotations

import gc
import os
import re
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import programs
from harness import Arguments, Result, compiles, require, run, say, temporary_folders
from programs import LIBRARIES, Launch, N, System, patched, text

FIRST = 1_000_000
"""The number of the first kernel: all names have the same length, so that a cubin can be patched."""


def tenths(
    calls: Iterable[Callable[[], object]], count: int, wait: Callable[[], object]
) -> list[tuple[float, int, int]]:
    """Seconds of each tenth of the calls, and after it the resident bytes and the device's bytes in use."""
    from cuda.bindings import driver

    rows, start_s = [], time.perf_counter()
    for number, call in enumerate(calls, 1):
        call()
        if number % 1000 == 0:
            wait()
        if number % max(1, count // 10) == 0:
            wait()
            spent_s = time.perf_counter() - start_s
            gc.collect()
            resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            _, free, total = driver.cuMemGetInfo()
            rows.append((spent_s, resident, int(total) - int(free)))
            start_s = time.perf_counter()
    return rows


PARTS: dict[str, tuple[str, System, int]] = {
    "numba_kcache, kept": ("driver", programs.our_texts, 0),
    "numba_kcache, dropped": ("driver", programs.our_texts, 0),
    "numba_kcache, Numba arrays, dropped": ("numba", programs.our_texts, 0),
    "cuModuleLoadData, kept": ("driver", programs.bare, 0),
    "cuModuleLoadData, dropped": ("driver", partial(programs.bare, is_kept=False), 0),
    "cupy RawKernel, kept": ("cupy", programs.cupy_kernels, 100),
    "cupy RawKernel, dropped": ("cupy", programs.cupy_kernels, 100),
    "numba_kcache, Numba kernel, kept": ("numba", programs.our_functions, 50),
    "Numba cache=True, kept": ("numba", programs.numba_kernels, 50),
}
"""The rows of the table: a library; a system; and the number of kernels of a system that compiles all of them, 0 for
one with patched cubins."""


def many_kernels(name: str, count: int) -> None:
    """Make and launch distinct kernels, one after another, and keep or drop each."""
    (library_name, system, _), keeps = PARTS[name], name.endswith("kept")
    library, numbers = LIBRARIES[library_name](), range(FIRST, FIRST + count)
    x, y = library.ones(N), library.ones(N)
    library.wait()
    launches = system(numbers, "")
    kept = []

    def one(launch: Launch) -> None:
        launch(2.0, x, y, N)
        if keeps:
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
        (number,) = re.findall(r"\+ (\d+)\.0f", request.source)
        kernels = (built[0].kernels[0]._replace(name=f"k{number}", symbol=f"k{number}"),)
        return built[0]._replace(kernels=kernels, cubin=patched(built[0].cubin, FIRST + first, int(number)))

    source_build.build_source = build
    for number in range(first, count, step):
        cached_kernel(text(FIRST + number)).compile()
    if first == 0:
        programs.cubin_file(FIRST).write_bytes(built[0].cubin)
    say()


def child(part: str, *numbers: str) -> None:
    if part in PARTS:
        many_kernels(part, *map(int, numbers))
    else:
        {"launches": many_launches, "fill": fill}[part](*map(int, numbers))


def measure(result: Result, arguments: Arguments) -> None:
    many, quick = arguments.distinct, 5 if arguments.quick else 1
    counts = {name: compiled // quick or many for name, (_, _, compiled) in PARTS.items()}
    with temporary_folders() as folders:
        step = min(16, os.cpu_count() or 1)
        fills = {f"fill {first}": ("fill", many, first, step) for first in range(step)}
        fills |= {name: (name, counts[name]) for name in PARTS if PARTS[name][2] and name.endswith("kept")}
        dict(result.take_all(fills, lambda _: folders(), step))
        for name, count in {**counts, "launches": arguments.launches}.items():
            if found := result.take(name, name, count, folder=folders()):
                assert not found.get("compiles"), (name, found["compiles"])
                result.samples[name] = found
                result.write()


if __name__ == "__main__":
    run(__doc__, {"growth": (measure, child)}, launches=(10_000_000, 1_000_000), distinct=(10_000, 1000))
