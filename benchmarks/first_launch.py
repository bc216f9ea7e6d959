"""How long does a fresh process take to the results of 1, 31 and 300 cached kernels, cold and warm?

Method      Each sample is a fresh process that runs every kernel once, one after another, and checks the last result.
            "first" starts after imports, decoration and context creation, and ends when all results are synchronised.
            "process" is the whole process. A system is this package, or another one with its own cache. Cold: that
            cache is empty. Warm: an earlier process filled it. numba_kcache runs on raw memory with
            `__cuda_array_interface__` and on CuPy's arrays, without Numba, and on Numba's arrays. "module" and
            RawModule have all kernels in one source. With a header, the source includes and uses cuda_fp16.h (CUDA C++
            only). Numba and Triton read their kernels from a file with as many functions. torch.cuda._compile_kernel
            stores nothing on disk, so its warm start is a cold one. Bytecode is compiled before, as pip does; the
            driver's own cache is off. Samples of the systems alternate, one process at a time. Cold samples of many
            kernels run in parallel, before all others. Systems that import PyTorch have three samples at most.
            `--part modules`: 300 and 31 kernels of a module, and 31 sources, with equal parameters, warm, each launched
            once, compared with RawModule and RawKernels in pairs of processes. One of CuPy's kernels has filled the
            arrays, so that NVRTC is loaded before. "all": from the request of the first kernel to the end of the last
            launch, after imports; "further": the median of those from the third on; "process": the whole process.
Not shown   A cold page cache, a busy node, a network file system; large headers (workloads.py has CUB). Systems that
            are not installed, or not measured for a number of kernels, are listed in the result.
Not shown of modules   A cold page cache, a busy node; sources whose compile time is spent in headers.
"""

from __future__ import annotations

import itertools
import time
from functools import partial
from statistics import median
from typing import NamedTuple

import programs
from harness import AT_ONCE, Arguments, Folders, Result, alternated, compiles, run, say
from programs import LIBRARIES, N, Program, System

HEADER = "cuda_fp16.h"
ALL = 10**6


class Row(NamedTuple):
    """A system of the table.

    Args:
        library: The library of its arrays.
        system: Makes its kernels.
        most: The largest number of kernels that is measured, usually and with `--quick`: more take too long.
        with_header: Whether its kernels can include a header.
    """

    library: str
    system: System
    most: tuple[int, int] = (ALL, ALL)
    with_header: bool = True


FEW = 31, 1
SYSTEMS = {
    "numba_kcache": Row("driver", programs.our_texts),
    "numba_kcache, CuPy arrays": Row("cupy", programs.our_texts, (ALL, 1)),
    "numba_kcache, Numba arrays": Row("numba", programs.our_texts, (ALL, 1)),
    "numba_kcache, module": Row("driver", programs.our_module),
    "numba_kcache, Numba kernel": Row("numba", programs.our_functions, FEW, False),
    "cupy RawKernel": Row("cupy", programs.cupy_kernels),
    "cupy RawModule": Row("cupy", programs.cupy_module),
    "cuda.core FileStreamProgramCache": Row("driver", programs.cuda_core, (ALL, 31)),
    "Numba cache=True": Row("numba", programs.numba_kernels, FEW, False),
    "Triton": Row("torch", programs.triton_kernels, FEW, False),
    "torch _compile_kernel": Row("torch", programs.torch_kernels, FEW),
}


class Case(NamedTuple):
    """The number of kernels and their header, and the numbers of cold and warm samples, usually and with `--quick`."""

    kernels: int
    header: str
    cold: tuple[int, int]
    warm: tuple[int, int]

    @property
    def name(self) -> str:
        return f"{self.kernels}, {self.header}" if self.header else f"{self.kernels}"


CASES = (
    Case(1, "", (3, 1), (7, 3)), Case(31, "", (1, 1), (4, 2)), Case(300, "", (1, 1), (3, 2)),
    Case(1, HEADER, (2, 1), (5, 3)), Case(31, HEADER, (1, 1), (3, 2)), Case(300, HEADER, (1, 0), (3, 0)),
)  # fmt: skip


def first_launch(system: str, kernels: str, header: str = "") -> None:
    """Measure one system."""
    row, ends = SYSTEMS[system], dict[str, float]()
    program = Program(row.library, row.system, int(kernels), header)
    program.run(lambda part: ends.setdefault(part, time.perf_counter()))
    is_ours = system.startswith("numba_kcache")
    say(first=ends["first"] - ends["arrays"], **({"compiles": compiles()} if is_ours else {}))


def is_slow(system: object) -> bool:
    return SYSTEMS[f"{system}"].library == "torch"


def measure_first(result: Result, arguments: Arguments) -> None:
    """In a round, each case fills empty caches and reads those of the first round, as often as it asks."""
    is_quick = arguments.quick
    chosen = [case for case in CASES if case.cold[is_quick] and f"{case.kernels}" in arguments.kernels.split(",")]
    rows: dict[Case, dict[str, tuple[object, ...]]] = {}
    for case in chosen:
        able = {system: row for system, row in SYSTEMS.items() if row.with_header or not case.header}
        wanted = [system for system, row in able.items() if case.kernels <= row.most[is_quick]]
        rows[case] = {f"{each}, {case.name}": (each, case.kernels, *filter(None, [case.header])) for each in wanted}
        if skipped := [system for system in able if system not in wanted]:
            result.left_out[case.name] = f"not asked in this turn: {', '.join(skipped)}"

    def take(cases: list[Case], state: str, number: int, at_once: int) -> None:
        of = {name: (case, words) for case in cases for name, words in rows[case].items()}
        words = {name: of[name][1] for name in alternated([*of], number) if number < 3 or not is_slow(of[name][1][0])}
        filled = number if state == "cold" else 0
        for name, found in result.take_all(words, partial(folders, filled), at_once):
            case, (system, *_) = of[name]
            if f"{system}".startswith("numba_kcache"):
                assert (found["compiles"] > 0) == (state == "cold"), (name, state, found)
            result.add(case.name, f"{system}", prefix=f"{state} ", first=found["first"], process=found["process"])

    result.samples |= {case.name: {} for case in chosen}
    with Folders() as folders:
        take([case for case in reversed(chosen) if case.kernels > 1], "cold", 0, 2 * AT_ONCE)
        for number in result.rounds(max(case.warm[is_quick] for case in chosen)):
            for case in chosen:
                if case.kernels == 1 and number < case.cold[is_quick]:
                    take([case], "cold", number, 1)
                if number < case.warm[is_quick]:
                    take([case], "warm", number, 1)


# -- many kernels of the same parameters ----------------------------------------------------------------


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


def launched_once(case: str, side: str) -> None:
    """Print the seconds of the first kernel, of a further one and of all, from its request to the end of its launch."""
    from numba_kcache import cached_kernel, cached_module  # noqa: F401 (added.py measures the import)

    pair, library = MANY[case], LIBRARIES["cupy"]()
    x, y = library.ones(N), library.ones(N)
    ends, kept = [time.perf_counter()], []
    for launch in getattr(pair, side)(range(1, pair.count + 1), ""):
        launch(2.0, x, y, N)
        ends.append(time.perf_counter())
        kept.append(launch)  # a program keeps its kernels too
    each = [after - before for before, after in itertools.pairwise(ends)]
    say(all=sum(each), first=each[0], further=median(each[2:]))


def measure_modules(result: Result, arguments: Arguments) -> None:
    rows = {f"{case}, {side}": (case, side) for case in MANY for side in ("ours", "cupy")}
    with Folders() as folders:
        for number in result.rounds(arguments.rounds, fills=1):
            order = {name: rows[name] for name in alternated([*rows], number)}
            for name, found in result.take_all(order, lambda _: folders()):
                del found["result"]
                if number >= 0:
                    result.add(name, **found)


if __name__ == "__main__":
    parts = {"first_launch": (measure_first, first_launch), "modules": (measure_modules, launched_once)}
    run(__doc__, parts, kernels="1,31,300", rounds=(7, 3))
