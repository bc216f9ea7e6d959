"""How long do look-ups of this cache take in the caches of other packages, compared with their own?

Method      Each sample is a fresh process; imports, contexts and arrays precede the measurement, and the results are
            checked. Figures are medians of `--samples` processes, of one where nothing is stored.
            `--part cuda_compute`: from the call of an algorithm until its result is on the host. "build": without a
            cache. "cache": with `install(cuda_compute=True)`, its imports and a filled cache. "memory": cuda.compute
            loads the built algorithm from bytes in memory. "again": the second call in the process of "cache".
            `--part triton_kernels`: two kernels, one after the other. "own": Triton's own filled directory. "cache":
            this cache's manager, filled. Triton's launcher is built before. "ranks": the compiles of eight processes
            that start at once on an empty cache.
            `--part program_cache`: one process compiles `PROGRAMS` programs of 5 KB of code by cuda.core. Another one
            times `program.compile("cubin", cache=...)` in microseconds: "opening", the first call of all; "first",
            that of each other program; "again", each later call. "built": the same for `get_or_build` with 50 KB.
            "published": with 50 KB that each call publishes.
Not shown   Imports of the packages, and of this one except in "cache"; the digest of Triton's own files in the first
            launch, with both; the load that follows a look-up of cuda.core; a network file system, a cold page cache, a
            full disk.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from harness import AT_ONCE, Arguments, Result, alternated, run, say, temporary_folders

ALGORITHMS = ("reduction", "scan", "radix sort", "transform")


def compute(algorithm: str, way: str) -> None:
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
    algorithms: dict[str, tuple[Any, dict[str, Any], Any]] = {
        "reduction": (
            compute.make_reduce_into, {**ends, "op": plus, "h_init": zero},
            lambda: np.isclose(cupy.asnumpy(out)[0], host.sum(dtype=np.float64), rtol=1e-4)),
        "scan": (
            compute.make_exclusive_scan, {**ends, "op": plus, "init_value": zero},
            lambda: np.allclose(cupy.asnumpy(out)[1:], np.cumsum(host, dtype=np.float64)[:-1], rtol=1e-3)),
        "radix sort": (
            partial(compute.make_radix_sort, order=compute.SortOrder.ASCENDING), keys,
            lambda: (cupy.asnumpy(out) == np.sort(host)).all()),
        "transform": (
            compute.make_unary_transform, {**ends, "op": compute.OpKind.NEGATE},
            lambda: (cupy.asnumpy(out) == -host).all()),
    }  # fmt: skip
    make, given, is_right = algorithms[algorithm]
    blob = Path(os.environ["KC_BENCH_DIR"], "blob")
    data = blob.read_bytes() if way == "memory" else None
    times = []
    for _ in range(2):
        cupy.cuda.Device().synchronize()
        start = time.perf_counter()
        built = compute.deserialize(data) if data else make(**given)
        more = {}
        if algorithm != "transform":
            size = built(temp_storage=None, num_items=x.size, **given)
            more = {"temp_storage": cupy.empty(size, np.uint8)}
        built(num_items=x.size, **given, **more)
        cupy.asnumpy(out[:1])
        times.append((time.perf_counter() - start) * 1e3)
        assert is_right()
    if way == "build":
        blob.write_bytes(built.serialize())
    say(first_ms=times[0], again_ms=times[1])


def medians(samples: Mapping[str, Mapping[str, list[float]]], places: int) -> dict[str, Any]:
    return {row: {name: round(median(each), places) for name, each in of.items()} for row, of in samples.items()}


def measure_compute(result: Result, arguments: Arguments) -> None:
    def rows(*ways: str) -> dict[str, tuple[str, str]]:
        return {f"{algorithm}, {way}": (algorithm, way) for algorithm in ALGORITHMS for way in ways}

    with temporary_folders() as folders:

        def folder(name: str) -> Path:
            return folders(name.split(", ")[0])

        filled = result.take_all(rows("build", "cache"), folder, max(2, AT_ONCE))
        builds = ((name, found) for name, found in filled if name.endswith("build"))
        warm = result.sampled(rows("cache", "memory"), folder, arguments.samples, fills=0)
        for name, found in itertools.chain(builds, warm):
            algorithm, way = name.split(", ")
            again = {"again": found["again_ms"]} if way == "cache" else {}
            result.add(algorithm, **{way: found["first_ms"]}, **again)
            result.write(milliseconds=medians(result.samples, 3))


MANAGERS = {"own": {}, "cache": {"TRITON_CACHE_MANAGER": "numba_kcache.adapters.triton:CacheManager"}}
RANKS = 8


def triton_kernels(_way: str) -> None:
    """Launch two kernels in this process."""
    import torch
    import triton
    import triton.language as tl

    import numba_kcache

    @triton.jit
    def add(x, y, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)

    @triton.jit
    def softmax(x, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.program_id(0) * n + tl.arange(0, BLOCK)
        row = tl.load(x + at)
        top = tl.exp(row - tl.max(row, axis=0))
        tl.store(out + at, top / tl.sum(top, axis=0))

    n = 1024
    x, y = torch.rand(n, n, device="cuda"), torch.rand(n, n, device="cuda")
    out = torch.empty_like(x)
    torch.cuda.synchronize()
    times = []
    for launch, expected in (
        (lambda: add[(n,)](x, y, out, n * n, BLOCK=n), x + y),
        (lambda: softmax[(n,)](x, out, n, BLOCK=n), torch.softmax(x, 1)),
    ):
        torch.cuda.synchronize()
        start = time.perf_counter()
        launch()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3)
        assert torch.allclose(out, expected, atol=1e-5)
    say(first_ms=times[0], second_ms=times[1], misses=numba_kcache.info("process").misses)


def measure_triton(result: Result, arguments: Arguments) -> None:
    def take(way: str, folder: Path) -> Any:
        return result.take(way, way, folder=folder, more=MANAGERS[way])

    with temporary_folders() as folders:
        cold = {way: take(way, folders(way)) for way in MANAGERS}
        for number in result.rounds(arguments.samples):
            for way in alternated([*MANAGERS], number):
                if found := take(way, folders(way)):
                    result.add(way, **{name: found[name] for name in ("first_ms", "second_ms")})
        at_once = result.ranks("ranks", [(["cache"], folders("ranks"))] * RANKS, MANAGERS["cache"])
    found: dict[str, Any] = {**result.left_out, **medians(result.samples, 3)}
    for way in result.samples:
        found[way]["cold_ms"] = round(cold[way]["first_ms"] + cold[way]["second_ms"], 1)
    found["ranks"] = {"misses": sum(each["misses"] for each in at_once["answers"])} if at_once else "failed"
    result.write(found=found)


PROGRAMS, ROUNDS = 60, 5
WAYS = ("file backend", "numba_kcache", "built", "published")
SOURCE = 'extern "C" __global__ void k(float *x) { x[threadIdx.x] *= %d.0f; }'
BYTES = bytes(range(256)) * 200


def calls(way: str) -> list[Callable[[], bytes]]:
    """The calls that are timed, one for each program."""
    import numba_kcache

    new = itertools.count(time.time_ns())

    def get(number: int) -> bytes:
        request = {"source": SOURCE % (number if way == "built" else next(new)), "target": "sm_90"}
        return numba_kcache.get_or_build(request, lambda: BYTES).payloads["data"]

    if way in ("built", "published"):
        return [lambda number=number: get(number) for number in range(PROGRAMS)]  # type: ignore[misc]

    from cuda.core import Program, ProgramOptions
    from cuda.core.utils import FileStreamProgramCache

    from numba_kcache.adapters import ProgramCache

    options = ProgramOptions(arch="sm_90", name="k")
    cache = FileStreamProgramCache(os.environ["KC_BENCH_DIR"] + "/programs") if way == WAYS[0] else ProgramCache()
    programs = [Program(SOURCE % number, "c++", options) for number in range(PROGRAMS)]
    return [lambda each=each: bytes(each.compile("cubin", cache=cache).code) for each in programs]  # type: ignore[misc]


def program_cache(way: str) -> None:
    """Time the calls of one process."""
    timed_calls, times, codes = calls(way), [], list[bytes]()
    for _ in range(ROUNDS):
        for call in timed_calls:
            start = time.perf_counter()
            code = call()
            times.append((time.perf_counter() - start) * 1e6)
            codes.append(code)
    assert all(code == codes[at % PROGRAMS] for at, code in enumerate(codes))
    assert len(set(codes)) == (PROGRAMS if way in WAYS[:2] else 1)
    say(opening=times[:1], first=times[1:PROGRAMS], again=times[PROGRAMS:])


def measure_programs(result: Result, arguments: Arguments) -> None:
    times: dict[str, dict[str, list[float]]] = {way: {} for way in WAYS}
    with temporary_folders() as folders:
        for way, found in result.sampled({way: [way] for way in WAYS}, lambda _: folders(), arguments.samples):
            for name in ("opening", "first", "again"):
                times[way].setdefault(name, []).extend(found[name])
            result.write(microseconds={**medians(times, 2), **result.left_out})


if __name__ == "__main__":
    parts = {
        "cuda_compute": (measure_compute, compute),
        "triton_kernels": (measure_triton, triton_kernels),
        "program_cache": (measure_programs, program_cache),
    }
    run(__doc__, parts, samples=(4, 2))
