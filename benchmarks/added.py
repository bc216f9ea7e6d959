"""How much longer does a process take with a cached kernel than with a bare cubin, or with CuPy's RawKernel?

Method      Pairs of fresh processes run one after the other, in alternating order: a program with a cached kernel, and
            the same program without it. The time is that of the whole process, with import and exit.
            "cubin": the other program loads a cubin from a file through cuda.bindings. "of a text": the cached kernel
            is made from a string, not a function. "RawKernel", "fp16": both use CuPy arrays; the source is plain CUDA
            C++, or includes cuda_fp16.h. "31 of a module", "300 of a module": kernels of one source, each launched,
            compared with RawModule. "31 sources": one kernel in each, compared with 31 RawKernels. "Numba", "torch",
            "numba-cuda-mlir", "cuda.compute": the other program has the same arrays and no kernel or reduction.
            "without import": `cuda` is the stand-in; the other program has the same arrays and no kernel, or a cached
            kernel in CUDA C++ on memory of the driver.
            "cache=True": the other program uses the package's own cache. Warm: earlier processes filled the caches.
            Cold: every process has an empty folder for its caches. "Copied": the arrays are copied from the host.
            Otherwise CuPy fills them by its own kernel. With an empty cache CuPy compiles that kernel, so NVRTC is
            loaded before RawKernel needs it; with copied arrays the load counts as RawKernel's time.
Output      The median of the differences in ms with its 95% confidence interval (binomial), and the medians of both.
Not shown   A cold page cache, a busy node, a network file system.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

import programs
from harness import Arguments, Folders, Result, alternated, environment, rounds, run, seconds
from programs import Program, write_cubin

HALF = "cuda_fp16.h"


class Pair(NamedTuple):
    """Two programs to compare; `is_cold` if each of their processes begins with empty caches."""

    ours: Program
    other: Program
    is_cold: bool = False


def of_cupy(ours: programs.System, other: programs.System, **more: Any) -> Pair:
    """Programs on CuPy's arrays."""
    return Pair(Program("cupy", ours, **more), Program("cupy", other, **more))


WITH_CUPY = {
    "RawKernel": of_cupy(programs.ours, programs.cupy_kernels),
    "RawKernel, copied": Pair(
        Program("cupy, copied", programs.ours), Program("cupy, copied", programs.cupy_kernels)
    ),
    "fp16": of_cupy(programs.ours, programs.cupy_kernels, header=HALF),
    "31 of a module": of_cupy(programs.our_module, programs.cupy_module, count=31),
    "300 of a module": of_cupy(programs.our_module, programs.cupy_module, count=300),
    "31 sources": of_cupy(programs.ours, programs.cupy_kernels, count=31),
}  # fmt: skip
BARE = Program("driver", programs.bare)
PAIRS = {
    "cubin": Pair(Program("driver", programs.ours), BARE),
    "cubin of a text": Pair(Program("driver", programs.our_texts), BARE),
    **{name: pair for name, pair in WITH_CUPY.items() if name != "RawKernel, copied"},
    "Numba": Pair(Program("numba", programs.our_functions), Program("numba")),
    "torch": Pair(Program("torch", programs.ours), Program("torch")),
    "numba-cuda-mlir": Pair(Program("mlir", programs.our_mlir), Program("mlir")),
    "cuda.compute": Pair(Program("compute", programs.reduction), Program("compute")),
    "Numba cache=True": Pair(Program("numba", programs.numba_kernels), Program("numba")),
    "numba-cuda-mlir cache=True": Pair(Program("mlir", programs.mlir_kernels), Program("mlir")),
    "Numba without import, CuPy": Pair(Program("cupy", programs.stand_in), Program("cupy")),
    "Numba without import, CUDA C++": Pair(Program("driver", programs.stand_in), Program("driver", programs.ours)),
    **{f"cold {name}": pair._replace(is_cold=True) for name, pair in WITH_CUPY.items()},
}
MAIN = (
    "cubin", "RawKernel", "300 of a module", "31 sources", "Numba without import, CuPy",
    "Numba without import, CUDA C++",
)  # fmt: skip
"""The pairs that an aim needs: they get `--pairs`, other warm ones `--others`."""
SIDES = ("ours", "other")


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The order statistics between which the median lies with 95 % (binomial, normal approximation)."""
    ordered, reach = sorted(values), 0.98 * math.sqrt(len(values))
    first = max(0, math.floor(len(values) / 2 - reach))
    return ordered[first], ordered[len(values) - 1 - first]


def added_by(samples: dict[str, dict[str, list[float]]]) -> dict[str, Any]:
    """The median of the differences in ms, and the interval, of each pair."""
    found = {}
    for name, sides in samples.items():
        more = [(ours - other) * 1e3 for ours, other in zip(*(sides[side] for side in SIDES), strict=True)]
        low, high = interval(more)
        found[name] = {"added_ms": median(more), "low_ms": low, "high_ms": high, "pairs": len(more)}
    return found


def both(name: str, number: int, folders: Folders) -> dict[str, float]:
    """Seconds of one process of each side.

    Raises:
        ValueError: One failed.
    """
    found = {}
    for side in alternated(SIDES, number):
        folder = folders(name, number, side) if PAIRS[name].is_cold else folders("warm")
        variables = environment(folder, {"KC_BENCH_FILLS": "1"} if number < 0 else None)
        found[side] = seconds([sys.executable, __file__, "--child", name, side], env=variables)
    return found


def measure(result: Result, arguments: Arguments) -> None:
    chosen = set(arguments.only.split(";") if arguments.only else PAIRS) - set(vars(arguments)["except"].split(";"))
    end = time.monotonic() + arguments.within
    with Folders() as folders:
        result.take("the cubin of the bare system", "cubin", folder=folders("warm"))
        fills = 1 if arguments.quick else 2  # one fills the cache, one reads it
        for number in rounds(max(arguments.pairs, arguments.cold), fills=fills):
            for name in [name for name in PAIRS if name in chosen and name not in result.left_out]:
                is_cold = PAIRS[name].is_cold
                count = arguments.cold if is_cold else arguments.pairs if name in MAIN else arguments.others
                begin = 1 - fills if is_cold else -fills
                if not begin <= number < count or (number > 2 and time.monotonic() > end):
                    continue
                try:
                    found = both(name, number, folders)
                except ValueError as error:
                    result.samples.pop(name, None)
                    result.leave_out(name, str(error))
                    continue
                if number >= 0:
                    result.add(name, **found)
            result.write(added=added_by(result.samples))
    for name, row in result.notes["added"].items():
        ratio = median(result.samples[name]["ours"]) / median(result.samples[name]["other"])
        text = "{:40} {added_ms:+7.1f} ms ({low_ms:+.1f} to {high_ms:+.1f}), {:.3f} times, {pairs} pairs"
        print(text.format(name, ratio, **row))


def child(name: str, side: str = "") -> None:
    if side:
        getattr(PAIRS[name], side).run()
    else:
        write_cubin()


if __name__ == "__main__":
    run(__doc__, measure, child, pairs=(36, 5), others=(8, 5), cold=(6, 1), only="", **{"except": ""})
