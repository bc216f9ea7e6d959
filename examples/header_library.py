"""A kernel with its own headers: it is compiled again after an edit of a header, and a reverted edit is a hit.

Four processes share a cache: the second loads the kernel from disk, the third finds an edited header, the fourth the
original one. With a GPU the kernel runs and is checked against NumPy. Without one it is compiled for sm_90 and stored,
and the script prints that launches are skipped. Run it: `python examples/header_library.py`.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import two_processes
from numba import cuda

from numba_kcache import cached_kernel

HEADERS = {
    "grid.cuh": """
#pragma once
__device__ inline int thread_index() { return blockIdx.x * blockDim.x + threadIdx.x; }
""",
    "wave/shape.cuh": """
#pragma once
#include "../grid.cuh"
constexpr float HEIGHT = 2.0f;
__device__ inline float shape(float x) { return HEIGHT * x * (1.0f - x); }
""",
}

SOURCE = """
#include <wave/shape.cuh>
extern "C" __global__ void raise(const float *x, float *y, int n) {
    int i = thread_index();
    if (i < n) y[i] = shape(x[i]);
}"""

STEPS = (("first process", "2.0f"), ("second process", "2.0f"), ("edited header", "5.0f"), ("header as it was", "2.0f"))


def one_process(step: str, library: Path) -> None:
    """Use the kernel with the headers as they are now."""
    kernel = cached_kernel(SOURCE, name="raise", include_dirs=[library])
    height = float(re.findall(r"HEIGHT = (.*)f;", (library / "wave/shape.cuh").read_text())[0])

    def launch_and_check() -> None:
        x = np.linspace(0, 1, 1003, dtype=np.float32)
        y = cuda.device_array_like(x)
        kernel.forall(x.size)(cuda.to_device(x), y, x.size)
        np.testing.assert_allclose(y.copy_to_host(), height * x * (1 - x), rtol=1e-5, atol=1e-6)

    info = two_processes.one_process(step, launch_and_check, [kernel])
    assert info.compiles == (step in ("first process", "edited header")), "only new or edited code is compiled"


def write_library(library: Path, height: str) -> None:
    """Write the headers, with this height in shape.cuh."""
    for name, text in HEADERS.items():
        (library / name).parent.mkdir(parents=True, exist_ok=True)
        (library / name).write_text(text.replace("2.0f", height))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        one_process(sys.argv[1], Path(sys.argv[2]))
    else:
        with tempfile.TemporaryDirectory() as directory:
            environment = {**os.environ, "NUMBA_KCACHE_DIR": f"{directory}/cache"}
            for step, height in STEPS:
                write_library(Path(directory, "library"), height)
                command = [sys.executable, __file__, step, f"{directory}/library"]
                subprocess.run(command, env=environment, check=True)
