"""How long does a fresh process take to the first result of a numba-cuda-mlir kernel, and how long does a launch take?

Method      That of numba_first_launch.py, for a kernel with a device function, and launches with the arrays of each
            installed library, in the first two rounds. "process" is the whole process. "stand-in" imports `cuda` of
            numba_kcache.mlir, on driver memory. Every second round has the reverse order.
Not shown   Host arrays and records; a busy node.
"""

from __future__ import annotations

from typing import Any

from harness import Arguments, Result, run
from numba_first_launch import first_and_launches
from numba_first_launch import measure as measure_all
from programs import installed_decorator, jit, our_decorator, their_decorator

SYSTEMS = {
    "numba_kcache": our_decorator,
    "numba_kcache, stand-in": jit,
    "numba_kcache.install()": installed_decorator,
    "numba-cuda-mlir cache=True": their_decorator,
    "numba-cuda-mlir": jit,
}
LAUNCHES = {"launch own": "own", "launch cupy": "cupy", "launch torch": "torch"}


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


def measure(result: Result, arguments: Arguments) -> None:
    measure_all(result, arguments, SYSTEMS, launches=2)


def child(system: str, batches: str) -> None:
    module = "numba_kcache.mlir" if "stand-in" in system else "numba_cuda_mlir"
    first_and_launches(module, SYSTEMS[system], saxpy_of, LAUNCHES, int(batches))


if __name__ == "__main__":
    run(__doc__, measure, child, rounds=(7, 3), batches=(41, 11))
