"""What does importing numba_kcache and decorating three kernels add to a bare Python process?

Method      Whole fresh processes, bare and with the import, in turn; their bytecode is compiled before, as pip does it.
            "used before" is a file of three kernels that an earlier process compiled: what they led to is read,
            verified and keyed while they are decorated.
Shows not   A cold page cache. Neither Numba nor CUDA is imported by it; the first launch imports cuda.bindings, and
            where CuPy or PyTorch is there the decoration of a kernel that was used before does.
"""

from __future__ import annotations

import argparse
import compileall
import os
import statistics
import subprocess
import sys
import tempfile
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
USED = "numba_kcache and three kernels, used before"
KERNEL = """
@cached_kernel(arch="sm_90")
def k{number}():
    return 'extern "C" __global__ void k{number}(float *x) {{ x[threadIdx.x] *= {number}; }}'
if sys.argv[1:]:
    k{number}.compile()
"""
PROGRAM = "\n".join(
    [
        "import sys",
        "from numba_kcache import cached_kernel",
        *(KERNEL.format(number=number) for number in range(3)),
        'assert not {"numba", "cuda", "numpy"} & set(sys.modules) or sys.argv[1:]',
    ]
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    compileall.compile_dir(str(Path(__file__).resolve().parent.parent / "numba_kcache"), quiet=2)
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program.py")
        program.write_text(PROGRAM)
        environment = {**os.environ, "NUMBA_KCACHE_DIR": str(Path(folder, "cache"))}
        for _ in range(2):
            subprocess.run([sys.executable, str(program), "compile"], env=environment, check=True)
        children = {**{name: ["-c", script] for name, script in SCRIPTS.items()}, USED: [str(program)]}
        samples: dict[str, list[float]] = {name: [] for name in children}
        for _ in range(arguments.rounds):
            for name, words in children.items():
                start = time.perf_counter()
                subprocess.run([sys.executable, *words], env=environment, check=True)
                samples[name].append(time.perf_counter() - start)
    bare, *ours = (statistics.median(samples[name]) * 1e3 for name in samples)
    more, used = (f"{each - bare:.1f} ms" for each in ours)
    print(f"bare {bare:.1f} ms; with the import and three kernels {more} more, used before {used} more")
    if arguments.json:
        write_result(arguments.json, "import_time", machine_header(), samples)


if __name__ == "__main__":
    main()
