"""Write a program of twenty Numba kernels, spread with their device functions over four files, and run it.

An edit of a constant of a file would change every kernel that uses it, as in any program.
"""

from __future__ import annotations

import hashlib
import sys
import time
from pathlib import Path
from typing import Any

import harness
import numpy as np

DECORATORS = {
    "kcache": "from numba_kcache import cached_kernel as kernel",
    "numba": "kernel = cuda.jit(cache=True)",
    "signatures": "from numba_kcache import cached_kernel\n"
    'kernel = cached_kernel(signature="void(float32[::1], float32[::1], float32[::1])")',
}
WIDTH, RATE, COEFFICIENTS, FACTOR, THREADS, BINS = 0.75, 3.0, (0.5, -1.0, 0.25, 2.0), 2.5, 64, 8
SIZE = 64 * THREADS
FILES = {
    "vectors": ("", {
        "length(x, y)": "math.sqrt(x * x + y * y)",
        "lerp(a, b, t)": "a + (b - a) * t",
        "clamp(value, low, high)": "min(max(value, low), high)",
        "wrap(i, n)": "(i + n) % n",
    }),
    "stencils": ("from vectors import wrap", {
        "laplace(x, i)": "x[wrap(i - 1, x.size)] - 2.0 * x[i] + x[wrap(i + 1, x.size)]",
        "average(x, i)": "(x[wrap(i - 1, x.size)] + x[i] + x[wrap(i + 1, x.size)]) / 3.0",
        "slope(x, i)": "0.5 * (x[wrap(i + 1, x.size)] - x[wrap(i - 1, x.size)])",
    }),
    "curves": (
        f"from vectors import clamp\nWIDTH, RATE, COEFFICIENTS = {WIDTH}, {RATE}, np.array({COEFFICIENTS}, np.float32)",
        {
        "smooth(t)": "t * t * (3.0 - 2.0 * t)",
        "smoothstep(t)": "smooth(clamp(t, 0.0, 1.0))",
        "bell(x)": "math.exp(-x * x / (2.0 * WIDTH * WIDTH))",
        "logistic(x)": "1.0 / (1.0 + math.exp(-RATE * x))",
        "polynomial(x)": " + ".join(f"COEFFICIENTS[{3 - power}] * x**{power}" for power in range(4)),
    }),
}  # fmt: skip
"""The files of device functions: their first lines, and the functions with what each returns."""


KERNELS = {
    "scaled": "FACTOR * x[i]", "added": "FACTOR * x[i] + y[i]", "multiplied": "x[i] * y[i]",
    "lengths": "length(x[i], y[i])", "blended": "lerp(x[i], y[i], 0.25)", "clamped": "clamp(x[i], -0.5, 0.5)",
    "smoothed": "smoothstep(x[i])", "bells": "bell(x[i])", "grown": "logistic(x[i])", "powers": "polynomial(x[i])",
    "diffused": "x[i] + 0.1 * laplace(x, i)", "averaged": "average(x, i)", "slopes": "slope(x, i)",
    "advected": "x[i] - y[i] * slope(x, i)", "far_bells": "bell(length(x[i], y[i]))",
    "smooth_blends": "lerp(x[i], y[i], smoothstep(x[i]))", "shifted": "x[wrap(i + 3, x.size)]",
    "turned": "x[x.size - 1 - i]", "block_sums": "total", "histogram": "",
}  # fmt: skip
"""Of each kernel the element that it writes."""

BODIES = {
    "block_sums": f"""
    shared, lane, total = cuda.shared.array({THREADS}, np.float32), cuda.threadIdx.x, 0.0
    shared[lane] = x[i] if i < x.size else 0.0
    cuda.syncthreads()
    for j in range({THREADS}):
        total += shared[j]
""",
    "histogram": f"""
    if i < x.size:
        cuda.atomic.add(out, int(clamp((x[i] + 1.0) * {0.5 * BINS}, 0.0, {BINS - 1.0})), 1.0)
""",
}
"""What two kernels do before they write."""


def write(folder: Path, decorator: str) -> None:
    """Write the four files, with the decorator of that name."""
    for name, (head, functions) in FILES.items():
        bodies = (f"\n@cuda.jit(device=True)\ndef {each}:\n    return {value}\n" for each, value in functions.items())
        head = f"import math\nimport numpy as np\nfrom numba import cuda\n{head}\n"
        (folder / f"{name}.py").write_text(head + "\n".join(bodies))
    imports = "".join(f"from {name} import *\n" for name in FILES)
    kernels = [f"import numpy as np\nfrom numba import cuda\n{imports}{DECORATORS[decorator]}\nFACTOR = {FACTOR}\n"]
    for name, element in KERNELS.items():
        ends = f"    if i < out.size:\n        out[i] = {element}\n" if element else ""
        begins = f"@kernel\ndef {name}(x, y, out):\n    i = cuda.grid(1)\n"
        kernels.append(begins + BODIES.get(name, "").removeprefix("\n") + ends)
    (folder / "kernels.py").write_text("\n\n".join(kernels))


def run_all(folder: str) -> tuple[list[Any], float, float, str]:
    """Run every kernel of the program in a folder.

    Returns:
        The kernels, the seconds until the first result and until the last, and the digest of all results.
    """
    sys.path.insert(0, folder)
    import kernels as program  # type: ignore[import-not-found]
    from numba import cuda

    kernels = [getattr(program, name) for name in KERNELS]
    cuda.current_context()
    harness.wait_for_the_others()
    random = np.random.default_rng(1)
    x, y = (random.uniform(-1, 1, SIZE).astype(np.float32) for _ in range(2))
    on_device = cuda.to_device(x), cuda.to_device(y)
    outputs = [cuda.to_device(np.zeros(SIZE, np.float32)) for _ in kernels]
    cuda.synchronize()
    start, ends = time.perf_counter(), []
    for kernel, out in zip(kernels, outputs, strict=True):
        kernel[SIZE // THREADS, THREADS](*on_device, out)
        cuda.synchronize()
        ends.append(time.perf_counter() - start)
    results = b"".join(each.copy_to_host().tobytes() for each in outputs)
    return kernels, ends[0], ends[-1], hashlib.sha256(results).hexdigest()
