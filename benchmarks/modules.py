"""How long do many kernels of the same parameters take from their request to their launch, compared with CuPy?

Method      300 and 31 kernels of a module, and 31 sources, with equal parameters, warm, each launched once, compared
            with RawModule and RawKernels in pairs of processes. One of CuPy's kernels has filled the arrays, so that
            NVRTC is loaded before. "all": from the request of the first kernel to the end of the last launch, after
            imports; "further": the median of those from the third on; "process": the whole process.
Not shown   A cold page cache, a busy node; sources whose compile time is spent in headers.
"""

from __future__ import annotations

import itertools
import time
from statistics import median
from typing import NamedTuple

import programs
from harness import Arguments, Folders, Result, alternated, run, say
from programs import LIBRARIES, N, System


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
SIDES = ("ours", "cupy")


def launched_once(pair: Pair, side: str) -> dict[str, float]:
    """Seconds of the first kernel, of each further one and of all, from its request to the end of its launch."""
    from numba_kcache import cached_kernel, cached_module  # noqa: F401 (added.py measures the import)

    library = LIBRARIES["cupy"]()
    x, y = library.ones(N), library.ones(N)
    ends, kept = [time.perf_counter()], []
    for launch in getattr(pair, side)(range(1, pair.count + 1), ""):
        launch(2.0, x, y, N)
        ends.append(time.perf_counter())
        kept.append(launch)  # a program keeps its kernels too
    each = [after - before for before, after in itertools.pairwise(ends)]
    return {"all": sum(each), "first": each[0], "further": median(each[2:])}


def measure(result: Result, arguments: Arguments) -> None:
    with Folders() as folders:
        for number in result.rounds(arguments.rounds, fills=1):
            for case in MANY:
                for side in alternated(SIDES, number):
                    found = result.take(f"{case}, {side}", case, side, folder=folders())
                    if found and number >= 0:
                        del found["result"]
                        result.add(f"{case}, {side}", **found)


def child(name: str, side: str) -> None:
    say(**launched_once(MANY[name], side))


if __name__ == "__main__":
    run(__doc__, measure, child, rounds=(9, 3))
