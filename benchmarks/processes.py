"""When nothing is compiled yet, how long does the last of 8 or 16 ranks of one node take to its results?

Method      8 or 16 fresh processes wait, after imports, decoration and context creation, until all are ready. Then each
            runs four kernels that are in no cache. "last": from that start until the last rank has its results. "all":
            from the start of the first process until the last has ended. The compiles of all ranks are added up; the
            minimum is four. Then the same ranks run again, warm, for the smaller number of ranks only. One GPU serves
            all ranks. Each run has a new folder for its caches.
Not shown   Several nodes, a shared file system, or a GPU for each rank; ranks that start at different times.
"""

from __future__ import annotations

import argparse
import compileall
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from fresh import ROOT, answer, open_barrier, start

SYSTEMS = ("numba_kcache", "numba_kcache, Numba kernel", "cupy RawKernel", "Numba cache=True")
"""Systems of first_launch.py: each rank runs that script."""

KERNELS = 4


def ranks(words: Sequence[str], count: int, folder: Path) -> dict[str, Any] | str:
    """Run `count` ranks of a script together: their seconds and compiles; the reason, as text, if one failed."""
    barrier = Path(tempfile.mkdtemp())
    begin = time.time()
    children = [start(words, folder, {"KC_BENCH_BARRIER": str(barrier)}) for _ in range(count)]
    started = open_barrier(barrier, children)
    found = [answer(child) for child in children]
    ended = time.time()
    shutil.rmtree(barrier)
    for each in found:
        if isinstance(each, str):
            return each
    ends = [each["end"] for each in found if isinstance(each, dict)]
    compiles = [each["compiles"] for each in found if isinstance(each, dict)]
    return {"last": max(ends) - started, "all": ended - begin, "compiles": sum(compiles)}


def measure(
    count: int, states: Sequence[str], rounds: int, left_out: dict[str, str]
) -> Iterator[dict[str, dict[str, list[float]]]]:
    """Yield, after each run of `count` ranks, the samples so far by system and "cold/warm last/all/compiles"."""
    found: dict[str, dict[str, list[float]]] = {}
    script = str(Path(__file__).with_name("first_launch.py"))
    for _ in range(rounds):
        for system in SYSTEMS:
            folder = Path(tempfile.mkdtemp())
            words = [script, "--child", system, "--kernels", str(KERNELS)]
            for state in states:
                result = left_out.get(system) or ranks(words, count, folder)
                if isinstance(result, str):
                    left_out[system] = result
                    break
                rows = found.setdefault(system, {})
                for what, value in result.items():
                    rows.setdefault(f"{state} {what}", []).append(value)
                yield found
            shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="8,16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    from header import Result

    compileall.compile_dir(str(ROOT / "numba_kcache"), quiet=2)
    left_out: dict[str, str] = {}
    counts = tuple(map(int, arguments.ranks.split(",")))
    samples: dict[str, Any] = {}
    result = Result(arguments.json, "processes", left_out=left_out, kernels=KERNELS)
    for count in counts:
        is_first = count == counts[0]
        rounds = 1 if arguments.quick else arguments.rounds
        for found in measure(count, ("cold", "warm") if is_first else ("cold",), rounds, left_out):
            samples[str(count)] = found
            result.write(samples)
    for count, systems in samples.items():
        for system, rows in systems.items():
            cells = (f"{name} {median(times) * 1e3:.0f} ms" for name, times in rows.items() if "compiles" not in name)
            print(f"{count:>3} ranks, {system:28}", ", ".join(cells), "compiles", rows["cold compiles"])
    for system, why in left_out.items():
        print(f"{system}: {why}", file=sys.stderr)


if __name__ == "__main__":
    main()
