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
            Cold: every process has an empty folder for its caches; pairs of many kernels run in parallel. "Copied": the
            arrays are copied from the host. Otherwise CuPy fills them by its own kernel. With an empty cache CuPy
            compiles that kernel, so NVRTC is loaded before RawKernel needs it; with copied arrays the load counts as
            RawKernel's time.
            `--part warm_steps`: the parts of such a process. Each sample is a fresh process with one kernel of one
            source, launched once and checked, or 31 kernels of one source, or one reduction of cuda.compute; samples of
            the systems alternate. Consecutive parts: "python" (from its start by the parent to the first statement),
            "packages" (cuda.bindings, NumPy, Numba, CuPy), "import" of this package, "decoration", "arrays" (context
            and two arrays), "first" (launch and wait), "result" (copied back and checked), "exit" (exit handlers of the
            interpreter), "end" (until the parent sees its end), and "all". "sum" is import, decoration, first and exit:
            the work for the kernel, in whichever part it is done. The bare systems read a cubin from a file, load it,
            find the function, pack and launch, without checks: through cuda.bindings, and through Numba's driver layer,
            which this package must use in programs with Numba. Bytecode is compiled before, as pip does.
Output      The median of the differences in ms with its 95% confidence interval (binomial), and the medians of both.
Not shown   A cold page cache, a busy node, a network file system.
Not shown of warm_steps   A cold page cache, a busy node, a network file system; large kernels.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import programs
from harness import AT_ONCE, Arguments, Folders, Result, alternated, environment, in_parallel, run, seconds
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


def both(name: str, number: int, folders: Folders, limit_s: float) -> dict[str, float] | str:
    """Seconds of one process of each side; the reason, as text, if one failed."""
    found = {}
    for side in alternated(SIDES, number):
        folder = folders(name, number, side) if PAIRS[name].is_cold else folders("warm")
        variables = environment(folder, {"KC_BENCH_FILLS": "1"} if number < 0 else None)
        try:
            found[side] = seconds(
                [sys.executable, __file__, "--part", "added", "--child", name, side], env=variables, timeout=limit_s
            )
        except ValueError as error:
            return str(error)
    return found


def measure(result: Result, arguments: Arguments) -> None:
    chosen = set(arguments.only.split(";") if arguments.only else PAIRS) - set(vars(arguments)["except"].split(";"))
    fills = 1 if arguments.quick else 2  # one fills the cache, one reads it
    bounds = {
        name: (1 - fills, arguments.cold) if pair.is_cold else
        (-fills, arguments.pairs if name in MAIN else arguments.others)
        for name, pair in PAIRS.items() if name in chosen
    }  # fmt: skip
    with Folders() as folders:
        result.take("the cubin of the bare system", "cubin", folder=folders("warm"))
        for number in result.rounds(max(arguments.pairs, arguments.cold), fills=fills):
            now = [name for name, (begin, end) in bounds.items() if begin <= number < end]
            large = [name for name in now if number < 0 or (PAIRS[name].is_cold and PAIRS[name].ours.count > 1)]

            def pair(name: str, number: int = number) -> tuple[str, Any]:
                is_asked = name not in result.left_out and not result.is_over()
                found = both(name, number, folders, max(1, result.left_s())) if is_asked else None
                return name, result.kept(name, found)

            for names, at_once in ((large, AT_ONCE), ([name for name in now if name not in large], 1)):
                for name, found in in_parallel(pair, names, at_once):
                    if found and number >= 0:
                        result.add(name, **found)
            result.write(added=added_by(result.samples))
    for name, row in result.notes["added"].items():
        print("{:40} {added_ms:+7.1f} ms ({low_ms:+.1f} to {high_ms:+.1f}), {pairs} pairs".format(name, **row))


def child(name: str, side: str = "") -> None:
    if side:
        getattr(PAIRS[name], side).run()
    else:
        write_cubin()


# -- the parts of a process -----------------------------------------------------------------------------

MANY = 31
SUM = ("import", "decoration", "first", "exit")
"""The parts of a process that a cache adds or can shorten."""

SYSTEMS = {
    "numba_kcache, CUDA C++": Program("driver", programs.ours),
    "bare cuda.bindings, a cubin from a file": Program("driver", programs.bare),
    "numba_kcache, CUDA C++ with cuda_fp16.h": Program("driver", programs.ours, header="cuda_fp16.h"),
    f"numba_kcache, {MANY} kernels of a module": Program("driver", programs.our_module, MANY),
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


def sample(result: Result, system: str, folder: Path) -> dict[str, Any] | None:
    """The parts of one fresh process, and whether it mapped a compiler; None if it failed."""
    start = time.time()
    found = result.take(system, system, repr(start), folder=folder)
    if found:
        parts: dict[str, float] = found["parts"]
        parts["sum"] = sum(parts.get(name, 0.0) for name in SUM)
        parts["all"] = time.time() - start
        parts["end"] = parts["all"] - found["result"]
    return found  # type: ignore[no-any-return]


def measure_steps(result: Result, arguments: Arguments) -> None:
    with Folders() as folders:
        result.take("the cubin of the bare systems", "cubin", folder=folders("warm"))
        for number in result.rounds(arguments.rounds, fills=1):
            slow = () if number < 3 else ("torch", "mlir")  # their imports take seconds: three samples are enough
            for system, program in ((name, each) for name, each in SYSTEMS.items() if each.library not in slow):
                states = {"warm": folders("warm")}
                if 0 <= number < max(1, arguments.rounds // 3) and not system.startswith("bare"):
                    states["cold"] = folders(number, system)
                for state, folder in states.items():
                    found = sample(result, system, folder)
                    if found and number >= 0:
                        is_known = system.startswith("numba_kcache") and program.library not in WITH_COMPILERS
                        assert not is_known or found["compiled"] is (state == "cold"), (system, state, found)
                        result.add(system, state, **found["parts"])


def step_child(system: str, started: str = "") -> None:
    if started:
        programs.child(SYSTEMS[system], float(started))
    else:
        write_cubin()


if __name__ == "__main__":
    parts = {"added": (measure, child), "warm_steps": (measure_steps, step_child)}
    more = {"except": ""}
    run(__doc__, parts, pairs=(20, 5), others=(5, 5), cold=(5, 1), rounds=(7, 2), only="", **more)
