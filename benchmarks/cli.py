"""How long does each verb of the command line take beyond the start of the interpreter, at 0, 1 and many entries?

Method      Whole fresh processes, bare and with each verb, in turn, with bytecode compiled before as pip does. Each
            entry has 7 KB and one counted hit. The output goes to a file, not to a terminal.
Not shown   A cold page cache; a terminal, which is slower to write to.
Baseline    For information, no test asserts it: `info` should take less than 0.2 s and `list` less than 1 s.
Run         python benchmarks/cli.py [--entries 0,1,20000] [--rounds 7] [--json FILE]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from hashlib import sha256
from pathlib import Path

from harness import ROOT, Folders, Result, rounds, run, seconds

from numba_kcache import KernelCache, cached_kernel
from numba_kcache.settings import Settings
from numba_kcache.store import ENTRY, StoredEntry
from numba_kcache.store.disk import DiskStore

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
        cached_kernel(SOURCE, arch="sm_90", cache=KernelCache(folder)).compile()
        store = DiskStore(folder, Settings())
        found = store.get(next(iter(store.files(ENTRY))).key)
    assert found is not None
    return found


def fill(directory: Path, entries: int) -> None:
    """Make a cache of so many entries, each of which was served once."""
    store, hits = DiskStore(str(directory), Settings(max_entries=10**6)), {}
    entry = compiled()
    for number in range(entries):
        key = sha256(b"%d" % number).hexdigest()
        store.put(entry._replace(key=key))
        hits[f"hits/{key[:16]}"] = 1
    if hits:
        store.counters.add({"hits": entries, **hits})
    store.writer.limits.wait()


def measure(result: Result, arguments: argparse.Namespace) -> None:
    sizes = arguments.entries or ("0,1,2000" if arguments.quick else "0,1,20000")
    with Folders() as folders:
        for entries in map(int, sizes.split(",")):
            fill(folders(entries), entries)
            for _ in rounds(arguments.rounds, arguments.within):
                bare = seconds([sys.executable, "-c", "pass"], cwd=ROOT)
                for name, words in VERBS.items():
                    command = [sys.executable, "-m", "numba_kcache", *words, "--directory", folders(entries)]
                    taken = seconds(command, cwd=ROOT)
                    result.samples.setdefault(f"{name}, {entries} entries", []).append(taken - bare)
                result.write()


if __name__ == "__main__":
    run(__doc__, measure, rounds=(7, 3), entries="")
