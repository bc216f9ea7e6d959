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

import importlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from harness import AT_ONCE, Arguments, Folders, Result, alternated, median_of_batches, require, run, say
from programs import GRID, LIBRARIES, N, installed_decorator, jit, k1_of, our_decorator, their_decorator


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


class Part(NamedTuple):
    """The systems of a Numba.

    Args:
        module: The Numba, or in "stand-in" the package of its stand-in, whose kernels run on memory of the driver.
        kernel: Gets the module's `cuda` and returns the kernel's function.
        decorators: For each system, gets the module's `cuda` and returns the decorator of the kernel.
        launches: For each figure of later launches, the library of their arrays; "own" for those of the first launch.
        rounds: The number of rounds with later launches.
    """

    module: str
    kernel: Callable[[Any], Any]
    decorators: dict[str, Callable[[Any], Callable[[Any], Any]]]
    launches: dict[str, str]
    rounds: int


OURS = {"numba_kcache": our_decorator, "numba_kcache.install()": installed_decorator}
PARTS = {
    "numba_first_launch": Part(
        "numba", k1_of, {**OURS, "Numba cache=True": their_decorator}, {"launch": "own"}, 10**6
    ),
    "mlir": Part(
        "numba_cuda_mlir", saxpy_of,
        {**OURS, "numba_kcache, stand-in": jit, "numba-cuda-mlir cache=True": their_decorator, "numba-cuda-mlir": jit},
        {"launch own": "own", "launch cupy": "cupy", "launch torch": "torch"}, 2),
}  # fmt: skip


def child(system: str, batches: str, part: str) -> None:
    """Run one kernel, and print the seconds of its first launch, and of later ones if `batches` is above 0."""
    module, function_of, decorators, launches, _ = PARTS[part]
    is_stand_in = "stand-in" in system
    own = "driver" if is_stand_in else {"numba_cuda_mlir": "mlir"}.get(module, module)
    library = LIBRARIES[own]()
    cuda = importlib.import_module("numba_kcache.mlir.cuda" if is_stand_in else f"{module}.cuda")
    kernel = decorators[system](cuda)(function_of(cuda))
    x, y = library.ones(N), library.ones(N)
    library.wait()
    start = time.perf_counter()
    kernel[GRID](2.0, x, y, N)
    library.wait()
    found = {"first": time.perf_counter() - start}
    require(float(library.host(y)[0]) == 3.0)
    for figure, name in launches.items() if int(batches) else ():
        try:
            operands = (2.0, x, y, N) if name == "own" else (2.0, *(LIBRARIES[name]().ones(N) for _ in range(2)), N)
            launch = partial(lambda *operands: kernel[GRID](*operands), *operands)
            found[figure] = median_of_batches(launch, library.wait, int(batches), 300)
        except Exception as error:  # not installed, or numba-cuda-mlir refuses its arrays
            print(f"{figure}: {error}")
    say(**found)


def measure(result: Result, arguments: Arguments) -> None:
    part = PARTS[arguments.part]
    for number in result.rounds(arguments.rounds):
        systems = alternated([*part.decorators], number)
        with Folders() as folders:
            for state in ("cold", "warm", "launches")[: 3 if number < part.rounds else 2]:
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
    parts = {part: (measure, partial(child, part=part)) for part in PARTS}
    run(__doc__, parts, rounds=(5, 3), batches=(41, 11))
