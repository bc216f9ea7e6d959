"""How much longer does a process take with a cached kernel than with a bare cubin, or with CuPy's RawKernel?

Method      Pairs of fresh processes run one after the other, in alternating order: a program with a cached kernel, and
            the same program with the kernel of another package, or without one. The time is that of the whole process.
            "cubin": the other program loads a cubin from a file through cuda.bindings. "of a text": the kernel is made
            from a string, not a function. "of a module": kernels of one source, each launched, compared with
            RawModule. "without import": `cuda` is the stand-in. "cache=True": a package's own cache, compared with no
            kernel. Warm: earlier processes filled the caches. Cold: every process has an empty folder for them; pairs
            of many kernels run in parallel. CuPy fills its arrays by its own kernel, with an empty cache by NVRTC,
            which is so loaded before RawKernel needs it; "copied" arrays are copied from the host.
            A pair that an aim needs is run `--pairs` times, another warm one `--others` times, a cold one `--cold`
            times; two pairs at most of programs that take seconds to import PyTorch or numba-cuda-mlir.
Output      The median of the differences in ms with its 95% confidence interval (binomial), and the medians of both.
Not shown   A cold page cache, a busy node, a network file system.
"""

from __future__ import annotations

import math
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
    "Numba with import, CuPy": on("cupy", programs.our_functions),
    "Numba without import, CUDA C++": on("driver", programs.stand_in, programs.ours),
    **{f"cold {name}": pair for name, pair in WITH_CUPY.items()},
}
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


def count_of(name: str, arguments: Arguments) -> int:
    """The number of pairs to run."""
    if PAIRS[name][0].library in ("torch", "mlir"):
        return min(2, arguments.others)
    is_main = "import" in name or name in ("cubin", "RawKernel", "fp16", "Numba")  # an aim or a page needs the pair
    return int(arguments.cold if name.startswith("cold") else arguments.pairs if is_main else arguments.others)


def measure(result: Result, arguments: Arguments) -> None:
    counts = {name: count_of(name, arguments) for name in PAIRS}
    with temporary_folders() as folders:
        for number in result.rounds(max(counts.values()), fills=1):
            now = [name for name in PAIRS if number < counts[name] and not (number < 0 and name.startswith("cold"))]
            parallel = [name for name in now if number < 0 or (name.startswith("cold") and PAIRS[name][0].count > 1)]

            def pair(name: str, number: int = number) -> tuple[str, dict[str, float]]:
                found = {}
                for side in alternated(SIDES, number):
                    folder = folders(name, number, side) if name.startswith("cold") else folders("warm")
                    if answer := result.take(name, name, side, folder=folder):
                        assert number < 0 or "without import" not in name or not answer["is_cold"], (name, side)
                        found[side] = answer["process"]
                return name, found

            for names, at_once in ((parallel, AT_ONCE), ([name for name in now if name not in parallel], 1)):
                for name, found in in_parallel(pair, names, at_once):
                    if len(found) == len(SIDES) and number >= 0:
                        result.add(name, **found)
            result.write(added=added_by(result.samples))


if __name__ == "__main__":
    run(
        __doc__, {"added": (measure, lambda name, side: programs.child(PAIRS[name][SIDES.index(side)]))},
        pairs=(12, 1), others=(4, 1), cold=(4, 1),
    )  # fmt: skip
