"""How long does a fresh process wait for the first result of an algorithm of cuda.compute?

Method      Each figure is the time from the call until the result is on the host, the median of fresh processes. Before
            the call, a process imports cuda.compute, makes its context and arrays, and copies one to the host. "build":
            without a cache. "cache": with `install(cuda_compute=True)` and a cache that another process filled; the
            imports of the cache are included. "memory": cuda.compute deserialises and loads the built algorithm from
            bytes in memory. "again": the second call in the process of "cache". The results are checked.
Not shown   Imports of cuda.compute, CuPy and this package, which precede the measurement.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

ALGORITHMS = ("reduction", "scan", "radix sort", "transform")


def child(algorithm: str, way: str, blob: Path) -> None:
    """Measure one algorithm in this process."""
    import cupy
    import numpy as np
    from cuda import compute

    import numba_kcache

    if way == "cache":
        numba_kcache.install(cuda_compute=True)
    x = cupy.asarray(np.random.default_rng(0).integers(0, 100, 100_000).astype(np.float32))
    host, zero = cupy.asnumpy(x), np.zeros(1, np.float32)
    out, n = cupy.empty_like(x), x.size
    plus = compute.OpKind.PLUS

    def call(built: Any, **arguments: Any) -> None:
        size = built(temp_storage=None, **arguments)
        built(temp_storage=cupy.empty(size, np.uint8), **arguments)

    makers: dict[str, tuple[Any, Any, Any]] = {
        "reduction": (
            lambda: compute.make_reduce_into(d_in=x, d_out=out, op=plus, h_init=zero),
            lambda built: call(built, d_in=x, d_out=out, num_items=n, op=plus, h_init=zero),
            lambda: np.isclose(cupy.asnumpy(out)[0], host.sum(dtype=np.float64), rtol=1e-4),
        ),
        "scan": (
            lambda: compute.make_exclusive_scan(d_in=x, d_out=out, op=plus, init_value=zero),
            lambda built: call(built, d_in=x, d_out=out, num_items=n, op=plus, init_value=zero),
            lambda: np.allclose(cupy.asnumpy(out)[1:], np.cumsum(host, dtype=np.float64)[:-1], rtol=1e-3),
        ),
        "radix sort": (
            lambda: compute.make_radix_sort(
                d_in_keys=x, d_out_keys=out, d_in_values=None, d_out_values=None, order=compute.SortOrder.ASCENDING
            ),
            lambda built: call(
                built, d_in_keys=x, d_out_keys=out, d_in_values=None, d_out_values=None, num_items=n
            ),
            lambda: (cupy.asnumpy(out) == np.sort(host)).all(),
        ),
        "transform": (
            lambda: compute.make_unary_transform(d_in=x, d_out=out, op=compute.OpKind.NEGATE),
            lambda built: built(d_in=x, d_out=out, num_items=n, op=compute.OpKind.NEGATE),
            lambda: (cupy.asnumpy(out) == -host).all(),
        ),
    }  # fmt: skip
    make, use, is_right = makers[algorithm]
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
    print(json.dumps({"first_ms": times[0], "again_ms": times[1], "hits": counts.hits, "misses": counts.misses}))


def main() -> None:
    from fresh import answer, start
    from header import machine_header, write_json

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/cuda_compute.json")
    parser.add_argument("--samples", type=int, default=7)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child[0], arguments.child[1], Path(arguments.child[2]))
        return
    header, found = machine_header(), dict[str, Any]()
    for algorithm in ALGORITHMS:
        with tempfile.TemporaryDirectory() as folder:
            times: dict[str, Any] = {}
            rounds = {"build": 1, "cache": arguments.samples + 1, "memory": arguments.samples}
            for way, count in rounds.items():
                words = [__file__, "--child", algorithm, way, str(Path(folder) / "blob")]
                answers = [answer(start(words, Path(folder))) for _ in range(count)]
                if any(isinstance(each, str) for each in answers):
                    times[way] = next(each for each in answers if isinstance(each, str))
                    continue
                kept: Any = answers[1:] if way == "cache" else answers
                times[way] = round(statistics.median(each["first_ms"] for each in kept), 3)
                if way == "cache":
                    times["filled"] = round(answers[0]["first_ms"], 3)  # type: ignore[index]
                    times["again"] = round(statistics.median(each["again_ms"] for each in kept), 3)
                    times["hits"], times["misses"] = kept[0]["hits"], kept[0]["misses"]
            found[algorithm] = times
            print(algorithm, times, flush=True)
        write_json(arguments.json, {"machine": header, "milliseconds": found})


if __name__ == "__main__":
    main()
