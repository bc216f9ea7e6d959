"""What does importing numba_kcache and decorating three kernels add to a bare Python process?

Method      Whole fresh processes, bare and with the import, in turn, with bytecode compiled before as pip does.
Not shown   A cold page cache; the import of Numba or CUDA, which this package does not import: the first launch imports
            cuda.bindings.
"""

from __future__ import annotations

import argparse
import compileall
import statistics
import subprocess
import sys
import time
from pathlib import Path

from header import machine_header, write_result

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    compileall.compile_dir(str(Path(__file__).resolve().parent.parent / "numba_kcache"), quiet=2)
    samples: dict[str, list[float]] = {name: [] for name in SCRIPTS}
    for _ in range(arguments.rounds):
        for name, script in SCRIPTS.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", script], check=True)
            samples[name].append(time.perf_counter() - start)
    bare, ours = (statistics.median(times) * 1e3 for times in samples.values())
    print(f"bare {bare:.1f} ms; with the import and three kernels {ours - bare:.1f} ms more")
    if arguments.json:
        write_result(arguments.json, "import_time", machine_header(), samples)


if __name__ == "__main__":
    main()
