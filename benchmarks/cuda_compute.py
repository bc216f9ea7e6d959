"""How long does a fresh process wait for the first result of an algorithm of cuda.compute?

Method      Each figure is the time from the call until the result is on the host, the median of fresh processes. Before
            the call, a process imports cuda.compute, makes its context and arrays, and copies one to the host. "build":
            without a cache. "cache": with `install(cuda_compute=True)` and a cache that another process filled; the
            imports of the cache are included. "memory": cuda.compute deserialises and loads the built algorithm from
            bytes in memory. "again": the second call in the process of "cache". The results are checked.
Not shown   Imports of cuda.compute, CuPy and this package, which precede the measurement.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from statistics import median
from typing import Any

from harness import Arguments, Folders, Result, run, say

ALGORITHMS = ("reduction", "scan", "radix sort", "transform")


def child(algorithm: str, way: str) -> None:
    """Measure one algorithm in this process."""
    import cupy
    import numpy as np
    from cuda import compute

    import numba_kcache

    if way == "cache":
        numba_kcache.install(cuda_compute=True)
    x = cupy.asarray(np.random.default_rng(0).integers(0, 100, 100_000).astype(np.float32))
    host, zero = cupy.asnumpy(x), np.zeros(1, np.float32)
    out, plus = cupy.empty_like(x), compute.OpKind.PLUS
    ends = {"d_in": x, "d_out": out}
    keys = {"d_in_keys": x, "d_out_keys": out, "d_in_values": None, "d_out_values": None}

    def call(built: Any, **arguments: Any) -> None:
        size = built(temp_storage=None, num_items=x.size, **arguments)
        built(temp_storage=cupy.empty(size, np.uint8), num_items=x.size, **arguments)

    makers: dict[str, tuple[Any, Any, Any]] = {
        "reduction": (
            lambda: compute.make_reduce_into(**ends, op=plus, h_init=zero),
            lambda built: call(built, **ends, op=plus, h_init=zero),
            lambda: np.isclose(cupy.asnumpy(out)[0], host.sum(dtype=np.float64), rtol=1e-4),
        ),
        "scan": (
            lambda: compute.make_exclusive_scan(**ends, op=plus, init_value=zero),
            lambda built: call(built, **ends, op=plus, init_value=zero),
            lambda: np.allclose(cupy.asnumpy(out)[1:], np.cumsum(host, dtype=np.float64)[:-1], rtol=1e-3),
        ),
        "radix sort": (
            lambda: compute.make_radix_sort(**keys, order=compute.SortOrder.ASCENDING),
            lambda built: call(built, **keys),
            lambda: (cupy.asnumpy(out) == np.sort(host)).all(),
        ),
        "transform": (
            lambda: compute.make_unary_transform(**ends, op=compute.OpKind.NEGATE),
            lambda built: built(**ends, num_items=x.size, op=compute.OpKind.NEGATE),
            lambda: (cupy.asnumpy(out) == -host).all(),
        ),
    }
    make, use, is_right = makers[algorithm]
    blob = Path(os.environ["KC_BENCH_DIR"], "blob")
    if way == "memory":
        data = blob.read_bytes()
        make = lambda: compute.deserialize(data)  # noqa: E731
    times = []
    for _ in range(2):
        cupy.cuda.Device().synchronize()
        start = time.perf_counter()
        built = make()
        use(built)
        cupy.asnumpy(out[:1])
        times.append((time.perf_counter() - start) * 1e3)
        assert is_right()
    if way == "build":
        blob.write_bytes(built.serialize())
    counts = numba_kcache.info("process")
    say(first_ms=times[0], again_ms=times[1], hits=counts.hits, misses=counts.misses)


def measure(result: Result, arguments: Arguments) -> None:
    found: dict[str, Any] = {}
    for algorithm in ALGORITHMS:
        times = found[algorithm] = {}
        with Folders() as folders:
            for way, count in {"build": 1, "cache": arguments.samples + 1, "memory": arguments.samples}.items():
                name = f"{algorithm}, {way}"
                answers = [result.take(name, algorithm, way, folder=folders()) for _ in range(count)]
                if None in answers:
                    times[way] = result.left_out[name]
                    continue
                kept = answers[1:] if way == "cache" else answers
                times[way] = round(median(each["first_ms"] for each in kept), 3)
                if way == "cache":
                    times["filled"] = round(answers[0]["first_ms"], 3)
                    times["again"] = round(median(each["again_ms"] for each in kept), 3)
                    times["hits"], times["misses"] = kept[0]["hits"], kept[0]["misses"]
                result.write(milliseconds=found)
        print(algorithm, times, flush=True)


if __name__ == "__main__":
    run(__doc__, measure, child, samples=(7, 3))
