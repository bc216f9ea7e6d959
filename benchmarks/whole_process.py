"""How long does a whole process with one cached CUDA C++ kernel take, compared with the least that is possible?

Method      Each sample is a fresh process: import, context, two arrays, the kernel, the result copied back and checked.
            "process" is from its start by the parent until it has ended. "import" (with decoration), "arrays" (with the
            context) and "first" (the first launch with its result) are parts of it. The least is cuda.bindings alone
            with the cubin from a file. numba_kcache runs on the same memory with `__cuda_array_interface__`, on arrays
            of CuPy and torch, and on Numba's. "python alone" and "import ..." are processes that end after that step:
            only the time beyond cuda.bindings could still be saved. "numba" lists the systems whose process had
            imported Numba at its end. Samples alternate.
Not shown   A cold page cache, a network file system under the packages.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from typing import Any

import programs
from harness import Folders, Result, rounds, run, say
from programs import Program

SYSTEMS = {
    "numba_kcache, Numba arrays": Program("numba", programs.our_texts),
    "bare cuda.bindings, a cubin from a file": Program("driver", programs.bare),
    "numba_kcache, memory of cuda.bindings": Program("driver", programs.our_texts),
    "numba_kcache, CuPy arrays": Program("cupy", programs.our_texts),
    "CuPy RawKernel": Program("cupy", programs.cupy_kernels),
    "numba_kcache, torch tensors": Program("torch", programs.our_texts),
}
IMPORTS = {
    "python alone": "sys",
    **{
        f"import {name}": name
        for name in ("numba_kcache", "cuda.bindings.driver", "numpy", "numba.cuda", "cupy", "torch")
    },
}
TORCH_ROUNDS = 3
"""The largest number of samples with torch: importing it takes seconds."""


PARTS = {
    "import": ("python", "packages", "import", "decoration"), "arrays": ("arrays",), "first": ("first", "result"),
}  # fmt: skip
"""The parts of a process in the table, each the sum of parts of programs.py."""


def figures_of(found: dict[str, Any]) -> dict[str, float]:
    """The seconds of a process and of its parts."""
    parts = found.get("parts")
    sums = {name: sum(parts.get(each, 0.0) for each in of) for name, of in PARTS.items()} if parts else {}
    return {"process": found["process"], **sums}


def measure(result: Result, arguments: argparse.Namespace) -> None:
    with_numba = result.notes["numba"] = []
    with Folders() as folders:
        result.take("the cubin of the bare system", "cubin", folder=folders())
        for number in rounds(arguments.rounds, arguments.within, fills=1):
            for system in (*SYSTEMS, *IMPORTS):
                if "torch" in system and number >= TORCH_ROUNDS:
                    continue
                found = result.take(system, system, repr(time.time()), folder=folders())
                if found and number < 0:
                    with_numba += [system] * found["numba"]
                elif found:
                    result.add(system, **figures_of(found))


def child(system: str, started: str = "") -> None:
    if system in SYSTEMS:
        programs.child(SYSTEMS[system], float(started))
    elif system in IMPORTS:
        importlib.import_module(IMPORTS[system])
        say(numba="numba.cuda" in sys.modules)
    else:
        programs.write_cubin()


if __name__ == "__main__":
    run(__doc__, measure, child, rounds=(15, 3))
