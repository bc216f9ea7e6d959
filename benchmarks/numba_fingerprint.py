"""How long does it take to fingerprint a Numba kernel with ten callees in three modules, the first time and again?

Method      Each sample is a fresh process. It decorates the kernel with `cached_kernel` and requests its fingerprint
            twice, like launches of two signatures. The first request reads every function, the second compares all
            inputs that were read. No device is needed and nothing is compiled.
Not shown   The rest of a warm start (numba_first_launch.py).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

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
import json, sys, time
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
print(json.dumps(times))
"""


def write_program(folder: Path) -> Path:
    """Write the modules and the script; return the path of the script."""
    for name, numbers in MODULES.items():
        (folder / f"{name}.py").write_text(HEAD + "".join(FUNCTION.format(number=number) for number in numbers))
    calls = " + ".join(f"{name}.f{number}(x[i], {number})" for name, numbers in MODULES.items() for number in numbers)
    script = folder / "program.py"
    script.write_text(CHILD.format(calls=calls))
    return script


def measure(rounds: int) -> dict[str, list[float]]:
    """Samples in seconds of the first fingerprint of a process and of the next one."""
    found: dict[str, list[float]] = {"first": [], "again": []}
    with tempfile.TemporaryDirectory() as folder:
        script = write_program(Path(folder))
        for _ in range(rounds):
            done = subprocess.run(
                [sys.executable, str(script)], capture_output=True, text=True, check=True,
                env={**os.environ, "NUMBA_KCACHE_DIR": os.path.join(folder, "cache")},
            )  # fmt: skip
            for name, seconds in zip(found, json.loads(done.stdout), strict=True):
                found[name].append(seconds)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    from header import machine_header, write_result

    samples = measure(arguments.rounds)
    for name, values in samples.items():
        print(f"{name:6} median {statistics.median(values) * 1e3:.2f} ms, worst {max(values) * 1e3:.2f} ms")
    if arguments.json:
        write_result(arguments.json, "numba_fingerprint", machine_header(), samples)


if __name__ == "__main__":
    main()
