"""How long does a fresh process take to the first result of a Numba kernel, cold and warm, and how long does a launch?

Method      Each sample is a fresh process that runs one kernel once and checks the result. "first" starts after
            imports, decoration and context creation, and ends when the result is synchronised. "launch" is the median
            over 41 batches of 300 asynchronous launches with two arrays and two scalars, in the same process. Cold: the
            system's own cache directory is empty. Warm: an earlier process filled it. Samples of the systems alternate.
Not shown   Host arrays, which both systems pass to the same code; a busy node.
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fresh import read_arguments, sample

N = 1 << 16


def ours() -> Callable[..., Any]:
    from numba_kcache import cached_kernel

    return cached_kernel


def numba() -> Callable[..., Any]:
    from numba import cuda

    return cuda.jit(cache=True)


def installed() -> Callable[..., Any]:
    from numba import cuda

    import numba_kcache

    numba_kcache.install()
    return cuda.jit(cache=True)


SYSTEMS = {"numba_kcache": ours, "numba_kcache.install()": installed, "Numba cache=True": numba}


def child(system: str, batches: int, launches: int) -> None:
    import warnings

    warnings.simplefilter("ignore")
    import numpy as np
    from numba import cuda

    def axpy(x, y, a, b):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        if i < x.size:
            y[i] = a * x[i] + b * y[i]

    kernel = SYSTEMS[system]()(axpy)
    x, y = cuda.to_device(np.ones(N, np.float32)), cuda.to_device(np.ones(N, np.float32))
    cuda.synchronize()
    start = time.perf_counter()
    kernel[N // 256, 256](x, y, 2.0, 1)
    cuda.synchronize()
    first = time.perf_counter() - start
    times = []
    for _ in range(batches):
        start = time.perf_counter()
        for _ in range(launches):
            kernel[N // 256, 256](x, y, 2.0, 1)
        times.append((time.perf_counter() - start) / launches)
        cuda.synchronize()
    print(json.dumps({"first_s": first, "launch_s": statistics.median(times) if times else 0.0, "y": float(y[0])}))


def measure(rounds: int, batches: int, launches: int, within_s: float) -> Iterator[dict[str, dict[str, list[float]]]]:
    """Samples in seconds by system and by "cold first", "warm first", "launch", after each round."""
    found: dict[str, dict[str, list[float]]] = {name: {} for name in SYSTEMS}
    end = time.monotonic() + within_s
    for number in range(rounds):
        if number and time.monotonic() > end:
            return
        for system in SYSTEMS:
            directory = Path(tempfile.mkdtemp())
            for state in ("cold", "warm"):
                result = sample(__file__, system, directory, batches if state == "warm" else 0, launches)
                found[system].setdefault(f"{state} first", []).append(result["first_s"])
            found[system].setdefault("launch", []).append(result["launch_s"])
            shutil.rmtree(directory, ignore_errors=True)
        yield found


def main() -> None:
    arguments = read_arguments(__doc__)
    if arguments.child:
        child(arguments.child, arguments.batches, arguments.launches)
        return
    from header import Result

    result = Result(arguments.json, "numba_first_launch")
    for samples in measure(arguments.rounds, arguments.batches, arguments.launches, arguments.within):
        result.write(samples)
    for system, rows in samples.items():
        cells = (f"{name} {statistics.median(values) * 1e3:.4g} ms" for name, values in rows.items())
        print(f"{system:26}", ", ".join(cells))
    medians = {
        system: {name: statistics.median(each) for name, each in rows.items()} for system, rows in samples.items()
    }
    ours, theirs = medians["numba_kcache"], medians["Numba cache=True"]
    print(", ".join(f"{name}: {ours[name] / theirs[name]:.3f} of Numba's" for name in ours))


if __name__ == "__main__":
    main()
