"""How long does it take to fingerprint a Numba kernel with ten callees in three modules, the first time and again?

Method      Each sample is a fresh process. It decorates the kernel with `cached_kernel` and requests its fingerprint
            twice, like launches of two signatures. The first request reads every function, the second compares all
            inputs that were read. No device is needed and nothing is compiled.
Not shown   The rest of a warm start (numba_first_launch.py).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from harness import Folders, Result, answer, rounds, run, start

FUNCTION = """
@cuda.jit(device=True)
def f{number}(x, n):
    total = 0.0
    for i in range(n):
        if x > i:
            total += math.sin(x) * SCALE + TABLE[{number}]
        else:
            total -= math.sqrt(abs(x)) / (i + 1)
    return total
"""
HEAD = "import math\nimport numpy as np\nfrom numba import cuda\nSCALE = 1.5\nTABLE = np.arange(16.0)\n"
MODULES = {"first": range(4), "second": range(4, 7), "third": range(7, 10)}
CHILD = """
import json, time
from numba import cuda
import first, second, third
from numba_kcache import cached_kernel
from numba_kcache.frontends.numba.definition import read_function

@cached_kernel
def kernel(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = {calls}

times = []
for _ in range(2):
    start = time.perf_counter()
    found = read_function(kernel._definition)
    times.append(time.perf_counter() - start)
assert len([each for each in found.components if each.name.startswith("device function")]) == 10
print(json.dumps({{"first": times[0], "again": times[1]}}))
"""


def write_program(folder: Path) -> Path:
    """Write the modules and the script; return the path of the script."""
    for name, numbers in MODULES.items():
        (folder / f"{name}.py").write_text(HEAD + "".join(FUNCTION.format(number=number) for number in numbers))
    calls = " + ".join(f"{name}.f{number}(x[i], {number})" for name, numbers in MODULES.items() for number in numbers)
    script = folder / "program.py"
    script.write_text(CHILD.format(calls=calls))
    return script


def measure(result: Result, arguments: argparse.Namespace) -> None:
    with Folders() as folders:
        script = write_program(folders("program"))
        for _ in rounds(arguments.rounds, arguments.within):
            found = answer(start([script], folders("cache")))
            if isinstance(found, str):
                result.leave_out("numba_kcache", found)
                return
            result.add(**found)


if __name__ == "__main__":
    run(__doc__, measure, rounds=(15, 5))
