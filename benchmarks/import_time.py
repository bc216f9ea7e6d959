"""What does importing numba_kcache and decorating three kernels add to a bare Python process?

Method      Whole fresh processes, bare and with the import, in turn, with bytecode compiled before as pip does.
Not shown   A cold page cache; the import of Numba or CUDA, which this package does not import: the first launch imports
            cuda.bindings.
"""

from __future__ import annotations

import argparse
import sys

from harness import Result, alternated, rounds, run, seconds

SCRIPTS = {
    "bare Python": "pass",
    "numba_kcache and three kernels": """
from numba_kcache import cached_kernel
@cached_kernel
def a(): return "x"
@cached_kernel
def b(): return "y"
@cached_kernel(arch="sm_90")
def c(): return "z"
import sys
assert not {"numba", "cuda", "numpy"} & set(sys.modules)
""",
}


def measure(result: Result, arguments: argparse.Namespace) -> None:
    for number in rounds(arguments.rounds, arguments.within):
        for name in alternated([*SCRIPTS], number):
            result.samples.setdefault(name, []).append(seconds([sys.executable, "-c", SCRIPTS[name]]))
        result.write()


if __name__ == "__main__":
    run(__doc__, measure, rounds=(21, 7))
