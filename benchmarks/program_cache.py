"""How long does cuda.core's `compile(cache=)` take on a hit, with its own file backend and with this cache?

Method      One process compiles `PROGRAMS` programs of 5 KB of code. Another one times
            `program.compile("cubin", cache=...)`, including key and look-up. "opening": the first call of all; "first":
            the first call of each other program; "again": each later call. Medians of all samples, in microseconds.
            "built": the same for `get_or_build` with 50 KB. "published": `get_or_build` with 50 KB that no call has
            stored before, so that each call publishes an entry. The bytes are checked.
Not shown   Imports of cuda.core, the caches and their adapters, which precede the measurement; the load that follows;
            a network file system, a cold page cache, a full disk.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from harness import Arguments, Folders, Result, rounds, run, say

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


def child(way: str) -> None:
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


def measure(result: Result, arguments: Arguments) -> None:
    times: dict[str, dict[str, list[float]]] = {way: {} for way in WAYS}
    with Folders() as folders:
        for number in rounds(arguments.samples, arguments.within, fills=1):
            for way in WAYS:
                found: Any = result.take(way, way, folder=folders())
                for name in ("opening", "first", "again") if found and number >= 0 else ():
                    times[way].setdefault(name, []).extend(found[name])
            medians = {
                way: {name: round(median(each), 2) for name, each in by_name.items()} for way, by_name in times.items()
            }
            result.write(microseconds=medians | result.left_out)
    print(result.notes["microseconds"])


if __name__ == "__main__":
    run(__doc__, measure, child, samples=(7, 3))
