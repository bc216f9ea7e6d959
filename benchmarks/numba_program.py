"""Write a program of twenty Numba kernels, spread with their device functions over four files, and run it.

An edit of a constant of a file would change every kernel that uses it, as in any program.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
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


def smooth(x: Any) -> Any:
    t = np.clip(x, 0, 1)
    return t * t * (3 - 2 * t)


def bell(x: Any) -> Any:
    return np.exp(-(x**2) / (2 * WIDTH**2))


def binned(x: Any) -> Any:
    bins = np.clip((x.astype(np.float64) + 1) * 0.5 * BINS, 0, BINS - 1).astype(int)
    return np.bincount(bins, minlength=x.size)


KERNELS: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "scaled": ("FACTOR * x[i]", lambda x, y: FACTOR * x),
    "added": ("FACTOR * x[i] + y[i]", lambda x, y: FACTOR * x + y),
    "multiplied": ("x[i] * y[i]", lambda x, y: x * y),
    "lengths": ("length(x[i], y[i])", lambda x, y: np.hypot(x, y)),
    "blended": ("lerp(x[i], y[i], 0.25)", lambda x, y: x + (y - x) * 0.25),
    "clamped": ("clamp(x[i], -0.5, 0.5)", lambda x, y: np.clip(x, -0.5, 0.5)),
    "smoothed": ("smoothstep(x[i])", lambda x, y: smooth(x)),
    "bells": ("bell(x[i])", lambda x, y: bell(x)),
    "grown": ("logistic(x[i])", lambda x, y: 1 / (1 + np.exp(-RATE * x))),
    "powers": ("polynomial(x[i])", lambda x, y: np.polyval(COEFFICIENTS, x)),
    "diffused": ("x[i] + 0.1 * laplace(x, i)", lambda x, y: x + 0.1 * (np.roll(x, 1) - 2 * x + np.roll(x, -1))),
    "averaged": ("average(x, i)", lambda x, y: (np.roll(x, 1) + x + np.roll(x, -1)) / 3),
    "slopes": ("slope(x, i)", lambda x, y: (np.roll(x, -1) - np.roll(x, 1)) / 2),
    "advected": ("x[i] - y[i] * slope(x, i)", lambda x, y: x - y * (np.roll(x, -1) - np.roll(x, 1)) / 2),
    "far_bells": ("bell(length(x[i], y[i]))", lambda x, y: bell(np.hypot(x, y))),
    "smooth_blends": ("lerp(x[i], y[i], smoothstep(x[i]))", lambda x, y: x + (y - x) * smooth(x)),
    "shifted": ("x[wrap(i + 3, x.size)]", lambda x, y: np.roll(x, -3)),
    "turned": ("x[x.size - 1 - i]", lambda x, y: x[::-1]),
    "block_sums": ("total", lambda x, y: np.repeat(x.reshape(-1, THREADS).sum(axis=1), THREADS)),
    "histogram": ("", lambda x, y: binned(x)),
}
"""Of each kernel the element that it writes, and its NumPy equivalent for a size that is a multiple of THREADS."""

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
    for name, (element, _) in KERNELS.items():
        ends = f"    if i < out.size:\n        out[i] = {element}\n" if element else ""
        begins = f"@kernel\ndef {name}(x, y, out):\n    i = cuda.grid(1)\n"
        kernels.append(begins + BODIES.get(name, "").removeprefix("\n") + ends)
    (folder / "kernels.py").write_text("\n\n".join(kernels))


def run_all(folder: str, is_checked: bool) -> tuple[list[Any], float, float]:
    """Run every kernel of the program in a folder, and compare each with NumPy.

    Returns:
        The kernels, and the seconds until the first result and until the last.
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
    for (_, wanted), out in zip(KERNELS.values(), outputs, strict=True) if is_checked else ():
        np.testing.assert_allclose(out.copy_to_host(), wanted(x, y), rtol=1e-4, atol=1e-4)
    return kernels, ends[0], ends[-1]
