"""How long does a fresh process take to the first result of a numba-cuda-mlir kernel, and how long does a launch take?

Method      Each sample is a fresh process that runs one kernel with a device function once and checks the result.
            "first" starts after imports, decoration and context creation, and ends when the result is synchronised.
            "process" is the whole process. "launch" is the median over batches of asynchronous launches with two arrays
            and two scalars, with the arrays of each installed library. Cold: the system's own cache directory is empty.
            Warm: an earlier process filled it. "import" is the time of `from numba_cuda_mlir import cuda`, "map" the
            part of it that loads MLIR's libraries; "stand-in" imports `cuda` of numba_kcache.mlir, on driver memory. In
            each round the systems run one after another, cold and warm, and in the first two rounds also for their
            launches; every second round has the reverse order. "shorter" is the median difference, over rounds, between
            a warm process with numba-cuda-mlir's cache and one with this cache, with an interval as in added.py.
Output      The file is written after each sample, with all samples so far. Three rounds take two minutes on an H200.
Not shown   Host arrays and records; a busy node.
Run         python benchmarks/mlir.py [--rounds N] [--batches N] [--within SECONDS] [--json FILE]
"""

from __future__ import annotations

import importlib
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fresh import is_pretended, read_arguments, sample

N = 1 << 16


def ours() -> Callable[..., Any]:
    from numba_kcache import cached_kernel

    return cached_kernel


def mlir() -> Callable[..., Any]:
    from numba_cuda_mlir import cuda

    return cuda.jit(cache=True)


def plain() -> Callable[..., Any]:
    from numba_cuda_mlir import cuda

    return cuda.jit


def installed() -> Callable[..., Any]:
    from numba_cuda_mlir import cuda

    import numba_kcache

    numba_kcache.install()
    return cuda.jit(cache=True)


def stand_in() -> Callable[..., Any]:
    from numba_kcache.mlir import cuda

    return cuda.jit


SYSTEMS = {
    "numba_kcache": ours,
    "numba_kcache, stand-in": stand_in,
    "numba_kcache.install()": installed,
    "numba-cuda-mlir cache=True": mlir,
    "numba-cuda-mlir": plain,
}


def child(system: str, batches: int, launches: int) -> None:
    """Run one kernel, and print its times."""
    import ctypes
    import warnings

    warnings.simplefilter("ignore")
    start, load, mapped = time.perf_counter(), ctypes.CDLL, 0.0

    def timed(*arguments: Any, **more: Any) -> Any:
        nonlocal mapped
        begin = time.perf_counter()
        try:
            return load(*arguments, **more)
        finally:
            mapped += time.perf_counter() - begin

    ctypes.CDLL = timed  # type: ignore[assignment,misc]
    is_light = SYSTEMS[system] is stand_in
    cuda: Any = importlib.import_module("numba_kcache.mlir.cuda" if is_light else "numba_cuda_mlir.cuda")
    ctypes.CDLL = load  # type: ignore[misc]
    imported = time.perf_counter() - start

    @cuda.jit(device=True)
    def scaled(a, x):  # type: ignore[no-untyped-def]
        return a * x

    def axpy(x, y, a, b):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        if i < x.size:
            y[i] = scaled(a, x[i]) + b * y[i]

    decorate = SYSTEMS[system]()
    start = time.perf_counter()
    kernel = decorate(axpy)
    decorated = time.perf_counter() - start
    x, y, read = _on_driver() if is_light else _own(cuda)
    cuda.synchronize()
    start = time.perf_counter()
    kernel[N // 256, 256](x, y, 2.0, 1)
    cuda.synchronize()
    first = time.perf_counter() - start
    result = 3.0 if is_pretended() else float(read()[0])
    answer: dict[str, Any] = {"first": first, "import": imported, "map": mapped, "decorate": decorated, "y": result}
    if batches:
        answer |= _launches(kernel, cuda, {"own": (x, y)}, batches, launches)
        answer |= _launches(kernel, cuda, _others(), batches, launches)
    print(json.dumps(answer))


def _own(cuda: Any) -> tuple[Any, Any, Callable[[], Any]]:
    """Two arrays of numba-cuda-mlir, and a function that reads the second."""
    import numpy as np

    x, y = cuda.to_device(np.ones(N, np.float32)), cuda.to_device(np.ones(N, np.float32))
    return x, y, y.copy_to_host


def _on_driver() -> tuple[Any, Any, Callable[[], Any]]:
    """Two arrays of the driver's memory, which need no package, and a function that reads the second."""
    from added import made_by_driver

    return made_by_driver()


def _others() -> dict[str, tuple[Any, Any]]:
    """Two arrays of each other array library that is installed."""
    found: dict[str, tuple[Any, Any]] = {}
    try:
        import cupy

        found["cupy"] = cupy.ones(N, "f4"), cupy.ones(N, "f4")
    except ImportError:
        pass
    try:
        import torch

        found["torch"] = torch.ones(N, device="cuda"), torch.ones(N, device="cuda")
    except (ImportError, RuntimeError, AssertionError):
        pass
    return found


def _launches(kernel: Any, cuda: Any, arrays: dict[str, tuple[Any, Any]], batches: int, launches: int) -> Any:
    """Seconds of a launch by library, with `kernel[...]` evaluated for each launch and with its result
    kept; the error, if it fails."""
    found: dict[str, Any] = {}
    for name, (x, y) in arrays.items():
        try:
            bound = kernel[N // 256, 256]
            for what, queue in (
                ("launch", lambda: kernel[N // 256, 256](x, y, 2.0, 1)),  # noqa: B023
                ("bound", lambda: bound(x, y, 2.0, 1)),  # noqa: B023
            ):
                for _ in range(20):
                    queue()
                times = []
                for _ in range(batches):
                    cuda.synchronize()
                    start = time.perf_counter()
                    for _ in range(launches):
                        queue()
                    times.append((time.perf_counter() - start) / launches)
                found[f"{what} {name}"] = statistics.median(times)
        except Exception as error:  # numba-cuda-mlir refuses arrays of some libraries
            found[f"launch {name}"] = f"{type(error).__name__}: {str(error)[:80]}"
    return found


def measure(rounds: int, batches: int, launches: int, within_s: float) -> Iterator[dict[str, dict[str, list[Any]]]]:
    """Yield, after each sample, all so far: seconds by system and "cold first", "warm process", "launch own" and so on.

    After `within_s` seconds no further sample is begun.
    """
    found: dict[str, dict[str, list[Any]]] = {name: {} for name in SYSTEMS}
    end = time.monotonic() + within_s
    for round_ in range(rounds):
        with tempfile.TemporaryDirectory() as directory:
            for state in ("cold", "warm", "launches")[: 3 if round_ < 2 else 2]:
                for system in reversed(SYSTEMS) if round_ % 2 else SYSTEMS:
                    if state == "warm" and system == "numba-cuda-mlir":
                        continue  # it has no cache
                    if time.monotonic() > end:
                        return
                    folder = Path(directory, system)
                    folder.mkdir(exist_ok=True)
                    figures = sample(__file__, system, folder, batches if state == "launches" else 0, launches)
                    for what, value in figures.items():
                        if state != "launches":
                            found[system].setdefault(f"{state} {what}", []).append(value)
                        elif what.startswith(("launch", "bound")):
                            found[system].setdefault(what, []).append(value)
                    yield found


def shorter(samples: dict[str, dict[str, list[Any]]]) -> dict[str, Any]:
    """Milliseconds by which our warm process was shorter than that with numba-cuda-mlir's cache, and the interval."""
    from added import interval

    rows = [samples[name].get("warm process", []) for name in ("numba-cuda-mlir cache=True", "numba_kcache")]
    less = [(theirs - ours) * 1e3 for theirs, ours in zip(*rows, strict=False)]
    if not less:
        return {}
    low, high = interval(less)
    return {"shorter_ms": statistics.median(less), "low_ms": low, "high_ms": high, "pairs": len(less)}


def main() -> None:
    arguments = read_arguments(__doc__)
    if arguments.child:
        child(arguments.child, arguments.batches, arguments.launches)
        return
    from header import Result

    result, samples = Result(arguments.json, "mlir"), dict[str, dict[str, list[Any]]]()
    for samples in measure(arguments.rounds, arguments.batches, arguments.launches, arguments.within):
        result.write(samples, process=shorter(samples))
    for system, rows in samples.items():
        for what, values in rows.items():
            numbers = [each for each in values if isinstance(each, float)]
            text = f"{statistics.median(numbers) * 1e3:10.3f} ms, {len(numbers)}" if numbers else f"  {values[0]}"
            if not what.endswith(" y"):
                print(f"{system:28} {what:16} {text}")
            elif set(values) != {3.0}:
                print(f"{system:28} WRONG {values}")
    found = shorter(samples)
    if found:
        text = "our warm process is {shorter_ms:.0f} ms shorter ({low_ms:.0f} to {high_ms:.0f}), {pairs} pairs"
        print(text.format(**found))


if __name__ == "__main__":
    main()
