"""How long does a fresh process take to the first result of a Numba kernel, cold and warm, and how long does a launch?

Method      Each sample is a fresh process that runs one kernel once and checks the result. "first" starts after
            imports, decoration and context creation, and ends when the result is synchronised. "launch" is the median
            over 41 batches of 300 asynchronous launches with two arrays and two scalars, in the same process. Cold: the
            system's own cache directory is empty. Warm: an earlier process filled it. Samples of the systems alternate.
Not shown   Host arrays, which both systems pass to the same code; a busy node.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from harness import Arguments, Folders, Result, alternated, median_of_batches, require, rounds, run, say
from programs import GRID, LIBRARIES, N, installed_decorator, k1_of, our_decorator, their_decorator

Decorator = Callable[[Any], Callable[[Any], Any]]
SYSTEMS: dict[str, Decorator] = {
    "numba_kcache": our_decorator,
    "numba_kcache.install()": installed_decorator,
    "Numba cache=True": their_decorator,
}


def first_and_launches(
    module: str, decorator: Decorator, function_of: Callable[[Any], Any], others: Mapping[str, str], batches: int
) -> None:
    """Run one kernel, and print the seconds of its first launch, and of later ones if `batches` is above 0.

    Args:
        module: The Numba, or the package of its stand-in, whose kernels run on memory of the driver.
        decorator: Gets the module's `cuda` and returns the decorator of the kernel.
        function_of: Gets the module's `cuda` and returns the kernel's function.
        others: For each figure of later launches, the library of their arrays; "own" for those of the first launch.
        batches: Batches of launches.
    """
    own = {"numba": "numba", "numba_cuda_mlir": "mlir"}.get(module, "driver")
    library, cuda = LIBRARIES[own](), importlib.import_module(f"{module}.cuda")
    kernel = decorator(cuda)(function_of(cuda))
    x, y = library.ones(N), library.ones(N)
    library.wait()
    start = time.perf_counter()
    kernel[GRID](2.0, x, y, N)
    library.wait()
    found = {"first": time.perf_counter() - start}
    require(float(library.host(y)[0]) == 3.0)
    for figure, name in others.items() if batches else ():
        try:
            operands = (2.0, x, y, N) if name == "own" else (2.0, *(LIBRARIES[name]().ones(N) for _ in range(2)), N)
            launch = partial(lambda *operands: kernel[GRID](*operands), *operands)
            found[figure] = median_of_batches(launch, library.wait, batches, 300)
        except Exception as error:  # not installed, or numba-cuda-mlir refuses its arrays
            print(f"{figure}: {error}")
    say(**found)


def measure(result: Result, arguments: Arguments, systems: Mapping[str, Any] = SYSTEMS, launches: int = 10**6) -> None:
    """In each round, run every system cold and warm; in the first `launches` rounds also for its later launches."""
    for number in rounds(arguments.rounds, arguments.within):
        with Folders() as folders:
            for state in ("cold", "warm", "launches")[: 3 if number < launches else 2]:
                for system in alternated([*systems], number):
                    if (state, system) == ("warm", "numba-cuda-mlir"):
                        continue  # it has no cache
                    batches = arguments.batches if state == "launches" else 0
                    if found := result.take(system, system, batches, folder=folders(system)):
                        later = {name: each for name, each in found.items() if name.startswith("launch")}
                        figures = {"first": found["first"], "process": found["process"]}
                        result.add(system, prefix="" if batches else f"{state} ", **(later if batches else figures))


def child(system: str, batches: str) -> None:
    first_and_launches("numba", SYSTEMS[system], k1_of, {"launch": "own"}, int(batches))


if __name__ == "__main__":
    run(__doc__, measure, child, rounds=(7, 4), batches=(41, 11))
