"""How long does a fresh process take to the results of 1, 31 and 300 cached kernels, cold and warm?

Method      Each sample is a fresh process that runs every kernel once, one after another, and checks the last result.
            "first" starts after imports, decoration and context creation, and ends when all results are synchronised;
            "process" is the whole process. Cold: the system's cache is empty. Warm: an earlier process filled it.
            numba_kcache runs on raw memory with `__cuda_array_interface__`, on CuPy's arrays, without Numba, and on
            Numba's. "module" and RawModule have all kernels in one source. Numba and Triton read their kernels from a
            file. torch.cuda._compile_kernel stores nothing on disk: its warm start is a cold one. Samples of the
            systems alternate, one process at a time; cold ones of many kernels run in parallel, before all others.
            Systems that import PyTorch have three samples at most.
            `--part modules`: kernels with equal parameters, warm, each launched once. One of CuPy's has filled the
            arrays, so that NVRTC is loaded before. "all": from the request of the first kernel to the end of the last
            launch, after imports; "further": the median of those from the third on.
Not shown   A cold page cache, a busy node, a network file system; large headers (workloads.py has CUB). Systems that
            are not installed, or not measured for a number of kernels, are listed in the result.
Not shown of modules   A cold page cache, a busy node; sources whose compile time is spent in headers.
"""

from __future__ import annotations

import itertools
import time
from functools import partial
from statistics import median

import programs
from harness import AT_ONCE, Arguments, Result, alternated, compiles, run, say, temporary_folders
from programs import LIBRARIES, N, Program, System

HEADER = "cuda_fp16.h"
ALL, FEW, CPP = (10**6, 10**6), (31, 1), ("", HEADER)
SYSTEMS: dict[str, tuple[str, System, tuple[int, int], tuple[str, ...]]] = {
    "numba_kcache": ("driver", programs.our_texts, ALL, CPP),
    "numba_kcache, CuPy arrays": ("cupy", programs.our_texts, (10**6, 1), CPP),
    "numba_kcache, Numba arrays": ("numba", programs.our_texts, (10**6, 1), CPP),
    "numba_kcache, module": ("driver", programs.our_module, ALL, CPP),
    "numba_kcache, Numba kernel": ("numba", programs.our_functions, FEW, ("",)),
    "cupy RawKernel": ("cupy", programs.cupy_kernels, ALL, CPP),
    "cupy RawModule": ("cupy", programs.cupy_module, ALL, CPP),
    "cuda.core FileStreamProgramCache": ("driver", programs.cuda_core, (10**6, 31), CPP),
    "Numba cache=True": ("numba", programs.numba_kernels, FEW, ("",)),
    "Triton": ("torch", programs.triton_kernels, FEW, ("",)),
    "torch _compile_kernel": ("torch", programs.torch_kernels, FEW, CPP),
}
"""The library of a system's arrays; what makes its kernels; the largest number of kernels, usually and with `--quick`:
more take too long; and the headers that its kernels can include."""


CASES = {
    "1": (1, "", (3, 1), (7, 3)), "31": (31, "", (1, 1), (4, 2)), "300": (300, "", (1, 1), (3, 2)),
    f"1, {HEADER}": (1, HEADER, (2, 1), (5, 3)), f"31, {HEADER}": (31, HEADER, (1, 1), (3, 2)),
    f"300, {HEADER}": (300, HEADER, (1, 0), (3, 0)),
}  # fmt: skip
"""The number of kernels and their header, and the numbers of cold and warm samples, usually and with `--quick`."""


def first_launch(system: str, kernels: str, header: str = "") -> None:
    """Measure one system."""
    library, make, *_ = SYSTEMS[system]
    ends = dict[str, float]()
    Program(library, make, int(kernels), header).run(lambda part: ends.setdefault(part, time.perf_counter()))
    is_ours = system.startswith("numba_kcache")
    say(first=ends["first"] - ends["arrays"], **({"compiles": compiles()} if is_ours else {}))


def measure_first(result: Result, arguments: Arguments) -> None:
    """In a round, each case fills empty caches and reads those of the first round, as often as it asks."""
    quick, asked = arguments.quick, arguments.kernels.split(",")
    chosen = {case: of for case, of in CASES.items() if of[2][quick] and f"{of[0]}" in asked}
    rows: dict[str, dict[str, tuple[str, ...]]] = {}
    for case, (kernels, header, _, _) in chosen.items():
        able = {system: most[quick] for system, (_, _, most, headers) in SYSTEMS.items() if header in headers}
        wanted = [system for system, most in able.items() if kernels <= most]
        rows[case] = {f"{each}, {case}": (each, f"{kernels}", *filter(None, [header])) for each in wanted}
        if skipped := [system for system in able if system not in wanted]:
            result.left_out[case] = f"not asked in this turn: {', '.join(skipped)}"
        result.samples[case] = {}

    def take(cases: list[str], state: str, number: int, at_once: int) -> None:
        of = {name: (case, words) for case in cases for name, words in rows[case].items()}
        slow = [name for name, (_, words) in of.items() if number >= 3 and SYSTEMS[words[0]][0] == "torch"]
        words = {name: of[name][1] for name in alternated([*of], number) if name not in slow}
        filled = number if state == "cold" else 0
        for name, found in result.take_all(words, partial(folders, filled), at_once):
            case, (system, *_) = of[name]
            if system.startswith("numba_kcache"):
                assert (found["compiles"] > 0) == (state == "cold"), (name, state, found)
            result.add(case, system, prefix=f"{state} ", first=found["first"], process=found["process"])

    with temporary_folders() as folders:
        take([case for case in reversed(chosen) if chosen[case][0] > 1], "cold", 0, 2 * AT_ONCE)
        for number in result.rounds(max(warm[quick] for _, _, _, warm in chosen.values())):
            for case, (kernels, _, cold, warm) in chosen.items():
                if kernels == 1 and number < cold[quick]:
                    take([case], "cold", number, 1)
                if number < warm[quick]:
                    take([case], "warm", number, 1)


MANY = {
    f"{kernels}, {side}": (int(kernels.split()[0]), system)
    for kernels, systems in {
        "300 of a module": (programs.our_module, programs.cupy_module),
        "31 of a module": (programs.our_module, programs.cupy_module),
        "31 sources": (programs.ours, programs.cupy_kernels),
    }.items()
    for side, system in zip(("ours", "cupy"), systems, strict=True)
}
"""The number of kernels and the system of each row."""


def launched_once(name: str) -> None:
    """Print the seconds of the first kernel, of a further one and of all, from its request to the end of its launch."""
    from numba_kcache import cached_kernel, cached_module  # noqa: F401 (added.py measures the import)

    (count, system), library = MANY[name], LIBRARIES["cupy"]()
    x, y = library.ones(N), library.ones(N)
    ends, kept = [time.perf_counter()], []
    for launch in system(range(1, count + 1), ""):
        launch(2.0, x, y, N)
        ends.append(time.perf_counter())
        kept.append(launch)  # a program keeps its kernels too
    each = [after - before for before, after in itertools.pairwise(ends)]
    say(all=sum(each), first=each[0], further=median(each[2:]))


def measure_modules(result: Result, arguments: Arguments) -> None:
    with temporary_folders() as folders:
        for number in result.rounds(arguments.rounds, fills=1):
            rows = {name: [name] for name in alternated([*MANY], number)}
            for name, found in result.take_all(rows, lambda _: folders()):
                del found["result"]
                if number >= 0:
                    result.add(name, **found)


if __name__ == "__main__":
    parts = {"first_launch": (measure_first, first_launch), "modules": (measure_modules, launched_once)}
    run(__doc__, parts, kernels="1,31,300", rounds=(7, 3))
