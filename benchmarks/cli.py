"""How long does each verb of the command line take beyond the start of the interpreter, at 0, 1 and many entries?

Method      Whole fresh processes, bare and with each verb, in turn, with bytecode compiled before as pip does. Each
            entry has 7 KB and one counted hit. The output goes to a file, not to a terminal.
Not shown   A cold page cache; a terminal, which is slower to write to.
Baseline    For information, no test asserts it: `info` should take less than 0.2 s and `list` less than 1 s.
Run         python benchmarks/cli.py [--entries 0,1,20000] [--rounds 7] [--json FILE]
"""

from __future__ import annotations

import argparse
import compileall
import os
import statistics
import subprocess
import sys
import tempfile
import time
from hashlib import sha256
from pathlib import Path

from header import Result

from numba_kcache import KernelCache, cached_kernel
from numba_kcache.store import ENTRY, StoredEntry
from numba_kcache.store.disk import DiskStore

ROOT = Path(__file__).resolve().parent.parent
VERBS = {
    "info": ("info",),
    "list": ("list",),
    "list, by hits": ("list", "--sort", "hits"),
    "list, by cost": ("list", "--sort", "cost"),
    "list, all as JSON": ("list", "--json"),
    "verify": ("verify",),
    "report": ("report", os.devnull),
}
SOURCE = 'extern "C" __global__ void saxpy(float a, const float *x, float *y) { y[threadIdx.x] += a * x[threadIdx.x]; }'


def compiled() -> StoredEntry:
    """One entry as a compile stores it: `verify` reads its machine code."""
    with tempfile.TemporaryDirectory() as folder:
        kernel = cached_kernel(SOURCE, arch="sm_90", cache=KernelCache(folder))
        kernel.compile()
        found = DiskStore(folder).get(next(iter(DiskStore(folder).files(ENTRY))).key)
    assert found is not None
    return found


def fill(directory: Path, entries: int) -> None:
    """Make a cache of so many entries, each of which was served once."""
    store, hits = DiskStore(str(directory), durability="none", max_entries=10**6), {}
    entry = compiled()
    for number in range(entries):
        key = sha256(b"%d" % number).hexdigest()
        store.put(entry._replace(key=key))
        hits[f"hits/{key[:16]}"] = 1
    if hits:
        store.counters.add({"hits": entries, **hits})
    store.writer.limits.wait()


def seconds(*words: str) -> float:
    """Wall time of one process."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", default="0,1,20000")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    compileall.compile_dir(str(ROOT / "numba_kcache"), quiet=2)
    samples: dict[str, list[float]] = {}
    result = Result(arguments.json, "cli")
    with tempfile.TemporaryDirectory() as folder:
        for entries in map(int, arguments.entries.split(",")):
            directory = Path(folder) / f"{entries}"
            fill(directory, entries)
            for _ in range(arguments.rounds):
                bare = seconds("-c", "pass")
                for name, words in VERBS.items():
                    taken = seconds("-m", "numba_kcache", *words, "--directory", str(directory))
                    samples.setdefault(f"{name}, {entries} entries", []).append(taken - bare)
                result.write(samples)
    for name, taken in samples.items():
        print(f"{name:<32} {statistics.median(taken) * 1e3:7.0f} ms  (worst {max(taken) * 1e3:.0f})")


if __name__ == "__main__":
    main()
