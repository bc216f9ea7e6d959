"""How much longer does a process take with a cached kernel than with a bare cubin, or with CuPy's RawKernel?

Method      Pairs of fresh processes run one after the other, in alternating order: a program with a cached kernel, and
            the same program with the kernel of another package, or without one. The time is that of the whole process.
            "cubin": the other program loads a cubin from a file through cuda.bindings. "of a text": the kernel is made
            from a string, not a function. "of a module": kernels of one source, each launched, compared with
            RawModule. "without import": `cuda` is the stand-in. "cache=True": a package's own cache, compared with no
            kernel. Warm: earlier processes filled the caches. Cold: every process has an empty folder for them; pairs
            of many kernels run in parallel. CuPy fills its arrays by its own kernel, with an empty cache by NVRTC,
            which is so loaded before RawKernel needs it; "copied" arrays are copied from the host.
            `--part warm_steps`: the parts of a process with one kernel, launched once and checked, 31 kernels of one
            source, or one reduction of cuda.compute: "python" (until the first statement), "packages" (cuda.bindings,
            NumPy, Numba, CuPy), "import" of this package, "decoration", "arrays" (context and two arrays), "first"
            (launch and wait), "result" (copied back and checked), "exit" (exit handlers), "end" (until the parent sees
            it), and "all". "sum" is import, decoration, first and exit: the work for the kernel, in whichever part it
            is done. The bare systems load a cubin, pack and launch without checks, through cuda.bindings or Numba's
            driver layer, which this package must use in programs with Numba.
Output      The median of the differences in ms with its 95% confidence interval (binomial), and the medians of both.
Not shown   A cold page cache, a busy node, a network file system.
Not shown of warm_steps   A cold page cache, a busy node, a network file system; large kernels.
"""

from __future__ import annotations

import math
import time
from statistics import median
from typing import Any

import programs
from harness import AT_ONCE, Arguments, Result, alternated, in_parallel, run, temporary_folders
from programs import Program

HALF = "cuda_fp16.h"


def on(library: str, ours: programs.System, other: programs.System | None = None, **more: Any) -> list[Program]:
    """Two programs to compare, on the same arrays: with a cached kernel, and with another one or none."""
    return [Program(library, system, **(more if system else {})) for system in (ours, other)]


WITH_CUPY = {
    "RawKernel": on("cupy", programs.ours, programs.cupy_kernels),
    "RawKernel, copied": on("cupy, copied", programs.ours, programs.cupy_kernels),
    "fp16": on("cupy", programs.ours, programs.cupy_kernels, header=HALF),
    "31 of a module": on("cupy", programs.our_module, programs.cupy_module, count=31),
    "300 of a module": on("cupy", programs.our_module, programs.cupy_module, count=300),
    "31 sources": on("cupy", programs.ours, programs.cupy_kernels, count=31),
}
PAIRS = {
    "cubin": on("driver", programs.ours, programs.bare),
    "cubin of a text": on("driver", programs.our_texts, programs.bare),
    **{name: pair for name, pair in WITH_CUPY.items() if name != "RawKernel, copied"},
    "Numba": on("numba", programs.our_functions),
    "torch": on("torch", programs.ours),
    "numba-cuda-mlir": on("mlir", programs.our_mlir),
    "cuda.compute": on("compute", programs.reduction),
    "Numba cache=True": on("numba", programs.numba_kernels),
    "numba-cuda-mlir cache=True": on("mlir", programs.mlir_kernels),
    "Numba without import, CuPy": on("cupy", programs.stand_in),
    "Numba without import, CUDA C++": on("driver", programs.stand_in, programs.ours),
    **{f"cold {name}": pair for name, pair in WITH_CUPY.items()},
}
MAIN = (
    "cubin", "RawKernel", "300 of a module", "31 sources", "Numba without import, CuPy",
    "Numba without import, CUDA C++",
)  # fmt: skip
"""The pairs that an aim needs: they get `--pairs`, other warm ones `--others`."""
SIDES = ("ours", "other")


def added_by(samples: dict[str, dict[str, list[float]]]) -> dict[str, Any]:
    """The median of the differences in ms of each pair, and its 95 % interval (binomial, normal approximation)."""
    found = {}
    for name, sides in samples.items():
        more = sorted((ours - other) * 1e3 for ours, other in zip(*(sides[side] for side in SIDES), strict=True))
        first = max(0, math.floor(len(more) / 2 - 0.98 * math.sqrt(len(more))))
        low, high = more[first], more[len(more) - 1 - first]
        found[name] = {"added_ms": median(more), "low_ms": low, "high_ms": high, "pairs": len(more)}
    return found


def measure(result: Result, arguments: Arguments) -> None:
    chosen = set(arguments.only.split(";") if arguments.only else PAIRS) - set(vars(arguments)["except"].split(";"))
    fills = 1 if arguments.quick else 2  # one fills the cache, one reads it
    bounds = {
        name: (1 - fills, arguments.cold) if name.startswith("cold") else
        (-fills, arguments.pairs if name in MAIN else arguments.others)
        for name in PAIRS if name in chosen
    }  # fmt: skip
    with temporary_folders() as folders:
        for number in result.rounds(max(arguments.pairs, arguments.cold), fills=fills):
            now = [name for name, (begin, end) in bounds.items() if begin <= number < end]
            large = [name for name in now if number < 0 or (name.startswith("cold") and PAIRS[name][0].count > 1)]

            def pair(name: str, number: int = number) -> tuple[str, dict[str, float]]:
                found = {}
                for side in alternated(SIDES, number):
                    folder = folders(name, number, side) if name.startswith("cold") else folders("warm")
                    more = {"KC_BENCH_FILLS": "1"} if number < 0 else None
                    if answer := result.take(name, name, side, folder=folder, more=more):
                        found[side] = answer["process"]
                return name, found

            for names, at_once in ((large, AT_ONCE), ([name for name in now if name not in large], 1)):
                for name, found in in_parallel(pair, names, at_once):
                    if len(found) == len(SIDES) and number >= 0:
                        result.add(name, **found)
            result.write(added=added_by(result.samples))


SUM = ("import", "decoration", "first", "exit")
"""The parts of a process that a cache adds or can shorten."""

SYSTEMS = {
    "numba_kcache, CUDA C++": Program("driver", programs.ours),
    "bare cuda.bindings, a cubin from a file": Program("driver", programs.bare),
    "numba_kcache, CUDA C++ with cuda_fp16.h": Program("driver", programs.ours, header=HALF),
    "numba_kcache, 31 kernels of a module": Program("driver", programs.our_module, 31),
    "numba_kcache, CUDA C++ on CuPy arrays": Program("cupy", programs.ours),
    "numba_kcache, CUDA C++ on PyTorch tensors": Program("torch", programs.ours),
    "numba_kcache, CUDA C++ on Numba arrays": Program("numba", programs.ours),
    "numba_kcache, Numba kernel": Program("numba", programs.our_functions),
    "numba_kcache.install()": Program("numba", programs.installed),
    "bare Numba driver layer, a cubin from a file": Program("numba", programs.bare_numba),
    "numba_kcache, numba-cuda-mlir kernel": Program("mlir", programs.our_mlir),
    "numba_kcache, cuda.compute reduction": Program("compute", programs.reduction),
    "CuPy RawKernel": Program("cupy", programs.cupy_kernels),
}
WITH_COMPILERS = ("cupy", "torch", "mlir", "compute")
"""Libraries that may map a compiler themselves: in their processes a mapped one does not show that we compiled."""


def measure_steps(result: Result, arguments: Arguments) -> None:
    with temporary_folders() as folders:
        for number in result.rounds(arguments.rounds, fills=1):
            slow = () if number < 3 else ("torch", "mlir")  # their imports take seconds: three samples are enough
            for system, program in ((name, each) for name, each in SYSTEMS.items() if each.library not in slow):
                states = {"warm": folders("warm")}
                if 0 <= number < max(1, arguments.rounds // 3) and not system.startswith("bare"):
                    states["cold"] = folders(number, system)
                for state, folder in states.items():
                    begin = time.time()
                    found = result.take(system, system, repr(begin), folder=folder)
                    if found and number >= 0:
                        all_s, parts = time.time() - begin, found["parts"]
                        is_known = system.startswith("numba_kcache") and program.library not in WITH_COMPILERS
                        assert not is_known or found["compiled"] is (state == "cold"), (system, state, found)
                        sum_s = sum(parts.get(name, 0.0) for name in SUM)
                        result.add(system, state, **parts, sum=sum_s, all=all_s, end=all_s - found["result"])


if __name__ == "__main__":
    parts = {
        "added": (measure, lambda name, side: PAIRS[name][SIDES.index(side)].run()),
        "warm_steps": (measure_steps, lambda system, started: programs.child(SYSTEMS[system], float(started))),
    }
    more = {"except": ""}
    run(__doc__, parts, pairs=(20, 5), others=(5, 5), cold=(5, 1), rounds=(7, 2), only="", **more)
