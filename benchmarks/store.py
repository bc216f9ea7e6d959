"""How fast is the store, compared with other stores on disk?

Measures    Hits and publishes of entries of 4 KB, 50 KB and 5 MB, with 10 and more entries in the store, by one process
            and by eight, in one run on one machine: microseconds (median, 99th percentile) and operations per second,
            and each median as a multiple of a bare os.open + os.read + os.close of the raw bytes. In a hit numba_kcache
            verifies the bytes, decompresses the payload and parses the header. diskcache, SQLite, LMDB and cuda.core's
            FileStreamProgramCache return unverified bytes; SQLite and LMDB are also measured with an xxh3 check. Also:
            a fresh process's first hit, including 5 MB with and without compression.
Not shown   A network file system, a cold page cache, a full disk; the load of a kernel after the hit.
Baseline    For information; no test asserts it. Peers that are not installed are left out and named.
Run         python benchmarks/store.py [--entries 10,10000] [--processes 1,8] [--json FILE] [--directory DIR]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from harness import Folders, Result, answer, run, start, versions
from xxhash import xxh3_128_digest

from numba_kcache.store import StoredEntry, encoding
from numba_kcache.store.disk import DiskStore

SIZES = {"4 KB": 4_000, "50 KB": 50_000, "5 MB": 5_000_000}
ROOM_BYTES = 2_000_000_000
"""Larger combinations of size and number of entries are left out."""

SECONDS = 0.5
"""The time of each figure."""

PARAMETERS = [[0, 4, "f4", "float", "a"], [8, 8, "*kf4", "float const*", "x"]]
HEADER = {
    "kind": "cuda", "target": "sm_90a", "entries": [["saxpy", "saxpy", True, [10, 0, 0, 0], PARAMETERS]], "log": "",
    "compile_time_s": 0.123, "attributes": {},
}  # fmt: skip


def key_of(number: int) -> str:
    """A key: a digest, as the package's keys are."""
    return sha256(b"%d" % number).hexdigest()


def code_like(size_bytes: int, seed: int) -> bytes:
    """Bytes that zstd level 1 shrinks about sevenfold, as it does real cubins."""
    chance = random.Random(seed)
    words = [chance.randbytes(16) for _ in range(64)]
    out = bytearray()
    while len(out) < size_bytes:
        out += chance.choice(words) * chance.randrange(1, 6) + chance.randbytes(2)
    return bytes(out[:size_bytes])


# -- the systems, each opened in a folder ---------------------------------------------------------------


class Store(NamedTuple):
    """A way to store bytes under a key and to read them."""

    put: Callable[[str, bytes], object]
    get: Callable[[str], bytes]


def disk_store(root: Path, durability: Any = "none") -> DiskStore:
    return DiskStore(str(root), max_size_bytes=1 << 40, max_entries=1 << 30, durability=durability)


def ours(root: Path, durability: Any = "data") -> Store:
    """numba_kcache, with each entry synced, as cuda.core and LMDB do it; its default is not to sync."""
    store = disk_store(root, durability)

    def put(key: str, payload: bytes) -> None:
        if not store.put(StoredEntry(key, HEADER, {"cubin": payload})):
            raise RuntimeError("not stored")

    def get(key: str) -> bytes:
        found = store.get(key)
        assert found is not None
        return found.payloads["cubin"]

    return Store(put, get)


def bare(root: Path, read_bytes: int = 1 << 23) -> Store:
    """os.open + os.read + os.close of a file, without any check: the baseline, not a store."""
    root.mkdir(exist_ok=True)
    text = str(root)

    def put(key: str, payload: bytes) -> None:
        fd = os.open(f"{text}/{key}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.write(fd, payload)
        os.close(fd)

    def get(key: str) -> bytes:
        fd = os.open(f"{text}/{key}", os.O_RDONLY)
        payload = os.read(fd, read_bytes)
        os.close(fd)
        return payload

    return Store(put, get)


def cuda_core(root: Path) -> Store:
    """cuda.core's cache: the raw bytes, synced, unverified."""
    from cuda.core.utils import FileStreamProgramCache

    cache = FileStreamProgramCache(root)
    return Store(lambda key, payload: cache.__setitem__(key.encode(), payload), lambda key: cache[key.encode()])


def diskcache(root: Path) -> Store:
    """diskcache with its default settings, but for the size limit."""
    import diskcache

    cache = diskcache.Cache(str(root), size_limit=1 << 40)
    return Store(cache.__setitem__, cache.__getitem__)


def sqlite(root: Path, is_verified: bool = False) -> Store:
    """One table in WAL mode, synchronous=NORMAL."""
    root.mkdir(exist_ok=True)
    base = sqlite3.connect(root / "base", timeout=60, isolation_level=None)
    for words in ("pragma journal_mode=wal", "pragma synchronous=normal",
                  "create table if not exists e (k text primary key, d blob, v blob)"):  # fmt: skip
        base.execute(words)

    def put(key: str, payload: bytes) -> None:
        base.execute("replace into e values (?,?,?)", (key, xxh3_128_digest(payload), payload))

    def get(key: str) -> bytes:
        digest, payload = base.execute("select d, v from e where k=?", (key,)).fetchone()
        assert not is_verified or xxh3_128_digest(payload) == digest
        return payload

    return Store(put, get)


def lmdb(root: Path, is_verified: bool = False) -> Store:
    """LMDB, synced."""
    import lmdb

    base = lmdb.open(str(root), map_size=1 << 35)

    def put(key: str, payload: bytes) -> None:
        with base.begin(write=True) as transaction:
            transaction.put(key.encode(), xxh3_128_digest(payload) + payload)

    def get(key: str) -> bytes:
        with base.begin() as transaction:
            stored = transaction.get(key.encode())
        payload = stored[16:]
        assert not is_verified or xxh3_128_digest(payload) == stored[:16]
        return payload

    return Store(put, get)


class System(NamedTuple):
    """A row: opens a store, also with other arguments; `filled` opens it to fill it."""

    open: Callable[..., Store]
    more: tuple[Any, ...] = ()
    filled: Callable[..., Store] | None = None


def unsynced(root: Path) -> Store:
    return ours(root, "none")


SIZE = "the size of the payload"
SYSTEMS = {
    "bare open+read, size known": System(bare, (SIZE,)),
    "bare open+read, 8 MB buffer": System(bare),
    "numba_kcache": System(ours, filled=unsynced),
    "numba_kcache, durability none": System(unsynced, filled=unsynced),
    "cuda.core FileStreamProgramCache": System(cuda_core),
    "diskcache": System(diskcache),
    "SQLite WAL": System(sqlite),
    "SQLite WAL, xxh3 checked": System(sqlite, (True,)),
    "LMDB": System(lmdb),
    "LMDB, xxh3 checked": System(lmdb, (True,)),
}


# -- hits and publishes ---------------------------------------------------------------------------------


def timed(work: Callable[[int], object], seconds: float = SECONDS, least: int = 30) -> list[float]:
    """Sorted times of `work(0)`, `work(1)`, ..., in microseconds, after a warm-up of a tenth of `seconds`."""
    times: list[float] = []
    clock, number = time.perf_counter_ns, 0
    warm_until, until = clock() + int(seconds * 1e8), clock() + int(seconds * 1.1e9)
    while clock() < until or len(times) < least:
        start = clock()
        work(number)
        end = clock()
        number += 1
        if start >= warm_until:
            times.append((end - start) / 1e3)
    return sorted(times)


def in_processes(count: int, work: Callable[[int], list[float]]) -> tuple[list[float], float]:
    """Return all times of `count` processes, sorted, and the operations per second of all together."""
    pipes = []
    for number in range(count):
        out, into = os.pipe()
        if os.fork() == 0:
            try:
                with os.fdopen(into, "w") as file:
                    json.dump(work(number), file)
            finally:
                os._exit(0)
        os.close(into)
        pipes.append(out)
    lists = [json.loads(os.fdopen(out).read()) for out in pipes]
    for _ in pipes:
        os.wait()
    return sorted(time_us for times in lists for time_us in times), sum(1e6 * len(each) / sum(each) for each in lists)


def measure_one(system: System, folder: Path, size: int, entries: int, processes: list[int], unused: int) -> Any:
    """Fill a store, unless a system with the same format did; then measure hits, and puts of keys from `unused` on."""
    payloads = [code_like(size, seed) for seed in range(4)]
    more = tuple(size if each is SIZE else each for each in system.more)
    if not folder.exists():
        sync, os.fsync = os.fsync, lambda fd: None  # filling is not measured, and 100,000 syncs take minutes
        try:
            fill = system.filled(folder) if system.filled else system.open(folder, *more)
            for number in range(entries):
                fill.put(key_of(number), payloads[number % 4])
            del fill
        finally:
            os.fsync = sync

    def hits(_process: int) -> list[float]:
        mine, keys = system.open(folder, *more), [key_of(number) for number in range(min(entries, 2000))]
        assert mine.get(keys[0]) == payloads[0]
        return timed(lambda number: mine.get(keys[number % len(keys)]))

    def puts(process: int) -> list[float]:
        mine, base = system.open(folder, *more), unused + 1_000_000 * (process + 1)
        return timed(lambda number: mine.put(key_of(base + number), payloads[0]))

    for count in processes:
        for verb, work in (("hit", hits), ("put", puts)):
            times, per_second = in_processes(count, work)
            figures = {"p50_us": median(times), "p99_us": times[int(len(times) * 0.99)], "max_us": times[-1]}
            yield {"processes": count, "verb": verb, **figures, "per_second": per_second}


# -- a fresh process -----------------------------------------------------------------------------------

FIRST_HIT = """
import json, os, sys, time; a = time.perf_counter_ns(); from numba_kcache.store.disk import DiskStore
b = time.perf_counter_ns(); store = DiskStore(sys.argv[1]); is_opened = len(sys.argv) > 3 and store.get('0' * 64)
c = time.perf_counter_ns(); entry = store.get(sys.argv[2]); d = time.perf_counter_ns(); assert entry
if len(sys.argv) > 3: fd = os.open(sys.argv[3], os.O_RDONLY); os.read(fd, int(sys.argv[4])); os.close(fd)
e = time.perf_counter_ns()
times = {"import": b - a, "open": c - b, "hit": d - c, "bare": e - d}
print(json.dumps({name: each / 1e3 for name, each in times.items()}))
"""


def first_hit(folder: Path, *words: object) -> dict[str, float]:
    """Microseconds of the parts of a fresh process with one hit; `words` name a file that it reads bare, and its size.

    In a fresh process the memory has to be mapped first, a cost that repeated hits do not have.
    """
    found = [answer(start(["-c", FIRST_HIT, folder, key_of(0), *words], folder)) for _ in range(11)]
    return {name: median(each[name] for each in found) for name in ("import", "open", "hit", "bare")}  # type: ignore[index]


def first_hits_of_large(folders: Folders) -> dict[str, dict[str, float]]:
    """A fresh process's hit of 5 MB, compressed and uncompressed, and a bare open and read."""
    size, key = SIZES["5 MB"], key_of(0)
    plain, found = folders("bare"), {}
    bare(plain).put(key, code_like(size, 0))
    usual = encoding.LEAST_FIRST_TO_COMPRESS_BYTES
    for name, least in (("packed", usual), ("as it is", size + 1)):
        encoding.LEAST_FIRST_TO_COMPRESS_BYTES = least
        unsynced(folders(name)).put(key, code_like(size, 0))
        parts = first_hit(folders(name), plain / key, size)
        (path,) = (folders(name) / "v1" / "entries").glob("*/*")
        found[name] = {"hit_us": parts["hit"], "bare_us": parts["bare"], "stored_bytes": path.stat().st_size}
    encoding.LEAST_FIRST_TO_COMPRESS_BYTES = usual
    return found


def describe_machine(machine: dict[str, Any], root: Path) -> None:
    """Replace the GPU in a machine's header by processor, filesystem and the versions of the stores."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")
    words = ["stat", "-f", "-c", "%T", root]
    packages = ("xxhash", "zstandard", "cuda-core", "diskcache", "lmdb")
    machine |= {
        "cpu": model, "cpus": os.cpu_count(), "gpu": None, "kernel": platform.release(),
        "filesystem": subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip(),
        "sqlite": sqlite3.sqlite_version, "load": os.getloadavg()[0], "date": time.strftime("%Y-%m-%d"),
        **dict.fromkeys(packages, "not installed"), **versions(*packages),
    }  # fmt: skip


def measure(result: Result, arguments: argparse.Namespace) -> None:
    tempfile.tempdir = arguments.directory or None
    counts = [*map(int, (arguments.entries or ("10" if arguments.quick else "10,10000")).split(","))]
    processes = [*map(int, (arguments.processes or ("1" if arguments.quick else "1,8")).split(","))]
    rows: list[dict[str, Any]] = []
    with Folders() as folders:
        unsynced(folders("fresh")).put(key_of(0), code_like(50_000, 0))
        parts = first_hit(folders("fresh"))
        fresh = {"import_ms": parts["import"] / 1e3, "first_hit_ms": (parts["open"] + parts["hit"]) / 1e3}
        result.notes |= {"rows": rows, "fresh_process": fresh}
        result.notes["large_first_hit"] = first_hits_of_large(folders)
        for (size_name, size), entries in [(size, entries) for size in SIZES.items() for entries in counts]:
            for number, (name, system) in enumerate(SYSTEMS.items()):
                if entries * size <= ROOM_BYTES and name not in result.left_out:
                    made = (system.filled or system.open).__name__  # one folder for all with the same format
                    folder = folders.root / f"{made}-{size}-{entries}"
                    try:
                        found = measure_one(system, folder, size, entries, processes, 10_000_000 * number)
                        rows += [{"system": name, "size": size_name, "entries": entries, **row} for row in found]
                    except ImportError as error:
                        result.leave_out(name, str(error))
                    describe_machine(result.machine, folders.root)
                    result.write()
    for row in rows:
        print(*row.values())


if __name__ == "__main__":
    run(__doc__, measure, entries="", processes="", directory="")
