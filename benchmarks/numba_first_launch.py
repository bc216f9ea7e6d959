"""How long does a fresh process take to the first result of a Numba kernel, cold and warm, and how long does a launch?

Method      Each sample is a fresh process that runs one kernel once and checks the result. "first" starts after
            imports, decoration and context creation, and ends when the result is synchronised. "launch" is the median
            over 41 batches of 300 asynchronous launches with two arrays and two scalars, in the same process. Cold: the
            system's own cache directory is empty; these processes run in parallel. Warm: an earlier process filled it.
            Samples of the systems alternate. `--part mlir`: the same for numba-cuda-mlir, for a kernel with a device
            function and launches with the arrays of each installed library, in the first two rounds. "process" is the
            whole process. "stand-in" imports `cuda` of numba_kcache.mlir, on driver memory.
Not shown   Host arrays, which both systems pass to the same code; a busy node.
"""

from __future__ import annotations

import time
from functools import partial
from statistics import median
from typing import Any

from harness import AT_ONCE, Arguments, Result, alternated, run, say, temporary_folders
from programs import LIBRARIES, N, Program, installed, numba_kernels, our_functions, python_kernels


def saxpy_of(cuda: Any) -> Any:
    """Kernel 1 with a device function."""

    @cuda.jit(device=True)  # type: ignore[misc]
    def scaled(a, x):  # type: ignore[no-untyped-def]
        return a * x

    def saxpy(a, x, y, n):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        if i < n:
            y[i] = scaled(a, x[i]) + 1

    return saxpy


SYSTEMS: dict[str, dict[str, Program]] = {
    "numba_first_launch": {
        "numba_kcache": Program("numba", our_functions),
        "numba_kcache.install()": Program("numba", installed),
        "Numba cache=True": Program("numba", numba_kernels),
    },
    "mlir": {
        name: Program(library, python_kernels(how, module, saxpy_of))
        for name, how, library, module in (
            ("numba_kcache", "ours", "mlir", "numba_cuda_mlir"),
            ("numba_kcache.install()", "installed", "mlir", "numba_cuda_mlir"),
            ("numba_kcache, stand-in", "jit", "driver", "numba_kcache.mlir"),
            ("numba-cuda-mlir cache=True", "cache", "mlir", "numba_cuda_mlir"),
            ("numba-cuda-mlir", "jit", "mlir", "numba_cuda_mlir"),
        )
    },
}
"""For each part its systems."""

LAUNCHES = {
    "numba_first_launch": ({"launch": "own"}, 10**6),
    "mlir": ({"launch own": "own", "launch cupy": "cupy", "launch torch": "torch"}, 2),
}
"""For each part the figures of later launches, with the library of their arrays ("own": those of the first launch), and
the number of rounds with later launches."""


def child(system: str, batches: str, part: str) -> None:
    """Run one kernel, and print the seconds of its first launch, and of later ones if `batches` is above 0."""
    ends = dict[str, float]()
    (kernel,), library, x, y = SYSTEMS[part][system].run(lambda part: ends.setdefault(part, time.perf_counter()))
    found = {"first": ends["first"] - ends["arrays"]}
    for figure, name in LAUNCHES[part][0].items() if int(batches) else ():
        try:
            if name != "own":
                x, y = (LIBRARIES[name]().ones(N) for _ in range(2))
            launch = partial(kernel, 2.0, x, y, N)
            for _ in range(20):
                launch()
            times = []
            for _ in range(int(batches)):
                library.wait()
                start = time.perf_counter()
                for _ in range(300):
                    launch()
                times.append((time.perf_counter() - start) / 300)
            found[figure] = median(times)
        except Exception as error:  # not installed, or numba-cuda-mlir refuses its arrays
            print(f"{figure}: {error}")
    say(**found)


def measure(result: Result, arguments: Arguments) -> None:
    of_part, (_, with_launches) = SYSTEMS[arguments.part], LAUNCHES[arguments.part]
    for number in result.rounds(arguments.rounds):
        systems = alternated([*of_part], number)
        with temporary_folders() as folders:
            for state in ("cold", "warm", "launches")[: 3 if number < with_launches else 2]:
                batches = arguments.batches if state == "launches" else 0
                rows = {
                    each: (each, batches) for each in systems
                    if (state, each) != ("warm", "numba-cuda-mlir")  # it has no cache
                }  # fmt: skip
                at_once = AT_ONCE if state == "cold" else 1
                for system, found in result.take_all(rows, folders, at_once):
                    later = {name: each for name, each in found.items() if name.startswith("launch")}
                    figures = {"first": found["first"], "process": found["process"]}
                    result.add(system, prefix="" if batches else f"{state} ", **(later if batches else figures))


if __name__ == "__main__":
    parts = {part: (measure, partial(child, part=part)) for part in SYSTEMS}
    run(__doc__, parts, rounds=(5, 3), batches=(41, 11))
