"""How long does cuda.core's `compile(cache=)` take on a hit, with its own file backend and with this cache?

Method      One process compiles `PROGRAMS` programs of 5 KB of code. Another one times
            `program.compile("cubin", cache=...)`, including key and look-up. "opening": the first call of all; "first":
            the first call of each other program; "again": each later call. Medians of all samples, in microseconds.
            "built": the same for `get_or_build` with 50 KB. The bytes are checked.
Not shown   Imports of cuda.core, the caches and their adapters, which precede the measurement; the load that follows.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

PROGRAMS, ROUNDS = 60, 5
WAYS = ("file backend", "numba_kcache", "built")
SOURCE = 'extern "C" __global__ void k(float *x) { x[threadIdx.x] *= %d.0f; }'


def calls(way: str) -> list[Callable[[], bytes]]:
    """The calls that are timed, one for each program."""
    import numba_kcache

    if way == "built":
        big = bytes(range(256)) * 200
        keys = [{"source": SOURCE % number, "target": "sm_90"} for number in range(PROGRAMS)]
        return [lambda each=each: numba_kcache.get_or_build(each, lambda: big).payloads["data"] for each in keys]  # type: ignore[misc]

    from cuda.core import Program, ProgramOptions
    from cuda.core.utils import FileStreamProgramCache

    from numba_kcache.adapters import ProgramCache

    options = ProgramOptions(arch="sm_90", name="k")
    cache = FileStreamProgramCache(os.environ["KC_BENCH_DIR"] + "/programs") if way == WAYS[0] else ProgramCache()
    programs = [Program(SOURCE % number, "c++", options) for number in range(PROGRAMS)]
    return [lambda each=each: bytes(each.compile("cubin", cache=cache).code) for each in programs]  # type: ignore[misc]


def child(way: str) -> None:
    """Time the hits of one process."""
    timed_calls, times, codes = calls(way), [], list[bytes]()
    for _ in range(ROUNDS):
        for call in timed_calls:
            start = time.perf_counter()
            code = call()
            times.append((time.perf_counter() - start) * 1e6)
            codes.append(code)
    assert all(code == codes[at % PROGRAMS] for at, code in enumerate(codes))
    assert len(set(codes)) == (1 if way == "built" else PROGRAMS)
    print(json.dumps({"opening": times[0], "first": times[1:PROGRAMS], "again": times[PROGRAMS:]}))


def main() -> None:
    from fresh import answer, start
    from header import machine_header, write_json

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/program_cache.json")
    parser.add_argument("--samples", type=int, default=7)
    parser.add_argument("--child", choices=WAYS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child)
        return
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        answers_by_way: dict[str, list[Any]] = {way: [] for way in WAYS}
        for _ in range(arguments.samples + 1):  # alternating; the first process of each way fills its cache
            for way in WAYS:
                answers_by_way[way].append(answer(start([__file__, "--child", way], Path(folder))))
    for way, (_, *answers) in answers_by_way.items():
        wrong = [each for each in answers if isinstance(each, str)]
        if wrong:
            found[way] = wrong[0]
            continue
        found[way] = {"opening": round(statistics.median(each["opening"] for each in answers), 1)}
        for name in ("first", "again"):
            found[way][name] = round(statistics.median(time for each in answers for time in each[name]), 2)
        print(way, found[way], flush=True)
    write_json(arguments.json, {"machine": machine_header(), "microseconds": found})


if __name__ == "__main__":
    main()
