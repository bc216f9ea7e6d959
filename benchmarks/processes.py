"""When nothing is compiled yet, how long does the last of 8 or 16 ranks of one node take to its results?

Method      8 or 16 fresh processes wait, after imports, decoration and context creation, until all are ready. Then each
            runs four kernels that are in no cache. "last": from that start until the last rank has its results. "all":
            from the start of the first process until the last has ended. The compiles of all ranks are added up; the
            minimum is four. Then the same ranks run again, warm, for the smaller number of ranks only. One GPU serves
            all ranks. Each run has a new folder for its caches.
Not shown   Several nodes, a shared file system, or a GPU for each rank; ranks that start at different times.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from harness import Folders, Result, ranks, rounds, run

SYSTEMS = ("numba_kcache", "numba_kcache, Numba kernel", "cupy RawKernel", "Numba cache=True")
"""Systems of first_launch.py: each rank runs that script."""

KERNELS = 4
SCRIPT = Path(__file__).with_name("first_launch.py")


def measure(result: Result, arguments: argparse.Namespace) -> None:
    result.notes["kernels"] = KERNELS
    counts = [*map(int, arguments.ranks.split(","))]
    for count in counts:
        for _ in rounds(arguments.rounds, arguments.within):
            for system in SYSTEMS:
                with Folders() as folders:
                    for state in ("cold", "warm") if count == counts[0] else ("cold",):
                        if system not in result.left_out:
                            found = ranks([([SCRIPT, "--child", system, KERNELS], folders())] * count)
                            if isinstance(found, str):
                                result.leave_out(system, found)
                            else:
                                compiles = sum(each["compiles"] for each in found["answers"])
                                figures = {"last": found["last"], "all": found["all"], "compiles": compiles}
                                result.add(f"{count}", system, prefix=f"{state} ", **figures)


if __name__ == "__main__":
    run(__doc__, measure, rounds=(5, 1), ranks="8,16")
