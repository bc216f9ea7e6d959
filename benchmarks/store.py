"""How fast is the store, compared with other stores on disk?

Measures    Hits and publishes of entries of 4 KB, 50 KB and 5 MB, with 10 and more entries in the store, by one process
            and by eight, in one run on one machine: microseconds (median, 99th percentile) and operations per second,
            and each median as a multiple of a bare os.open + os.read + os.close of the raw bytes. In a hit numba_kcache
            verifies the bytes, decompresses the payload and parses the header. diskcache, SQLite, LMDB and cuda.core's
            FileStreamProgramCache return unverified bytes; SQLite and LMDB are also measured with an xxh3 check. Also:
            a fresh process's first hit, including 5 MB with and without compression, and info() at 20,000 entries.
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
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any

from header import commit, write_json
from xxhash import xxh3_128_digest

from numba_kcache.store import StoredEntry, encoding
from numba_kcache.store.disk import DiskStore

SIZES = {"4 KB": 4_000, "50 KB": 50_000, "5 MB": 5_000_000}
HEADER = {
    "kind": "cuda",
    "target": "sm_90a",
    "entries": [
        [
            "saxpy",
            "saxpy",
            True,
            [10, 0, 0, 0],
            [[0, 4, "f4", "float", "a"], [8, 8, "*kf4", "float const*", "x"]],
        ]
    ],
    "log": "",
    "compile_time_s": 0.123,
    "attributes": {},
}


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


class Ours:
    """numba_kcache, with each entry synced, as cuda.core and LMDB do it; its default is not to sync."""

    def __init__(self, root: Path, durability: Any = "data") -> None:
        self.store = DiskStore(str(root), max_size_bytes=1 << 40, max_entries=1 << 30, durability=durability)

    def put(self, key: str, payload: bytes) -> None:
        """Store."""
        if not self.store.put(StoredEntry(key, HEADER, {"cubin": payload})):
            raise RuntimeError("not stored")

    def get(self, key: str) -> bytes:
        """Read, verify, parse, unpack."""
        found = self.store.get(key)
        assert found is not None
        return found.payloads["cubin"]


class OursUnsynced(Ours):
    """`Ours` with durability="none"."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, "none")


class Bare:
    """os.open + os.read + os.close of a file, without any check: the baseline, not a store."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        os.makedirs(self.root, exist_ok=True)

    def put(self, key: str, payload: bytes) -> None:
        """Write in place."""
        fd = os.open(f"{self.root}/{key}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.write(fd, payload)
        os.close(fd)

    def get(self, key: str) -> bytes:
        """Read."""
        fd = os.open(f"{self.root}/{key}", os.O_RDONLY)
        payload = os.read(fd, 1 << 23)
        os.close(fd)
        return payload


class BareSized(Bare):
    """`Bare` with a buffer of exactly the file's size, which a store cannot know."""

    size = 0

    def get(self, key: str) -> bytes:
        """Read."""
        fd = os.open(f"{self.root}/{key}", os.O_RDONLY)
        payload = os.read(fd, self.size)
        os.close(fd)
        return payload


class CudaCore:
    """cuda.core's cache: the raw bytes, synced, unverified."""

    def __init__(self, root: Path) -> None:
        from cuda.core.utils import FileStreamProgramCache

        self.cache = FileStreamProgramCache(root)

    def put(self, key: str, payload: bytes) -> None:
        """Store."""
        self.cache[key.encode()] = payload

    def get(self, key: str) -> bytes:
        """Read."""
        return self.cache[key.encode()]


class DiskCache:
    """diskcache with its default settings, but for the size limit."""

    def __init__(self, root: Path) -> None:
        import diskcache

        self.cache = diskcache.Cache(str(root), size_limit=1 << 40)

    def put(self, key: str, payload: bytes) -> None:
        """Store."""
        self.cache[key] = payload

    def get(self, key: str) -> bytes:
        """Read."""
        return self.cache[key]


class Sqlite:
    """One table in WAL mode, synchronous=NORMAL."""

    is_verified = False

    def __init__(self, root: Path) -> None:
        root.mkdir(exist_ok=True)
        self.base = sqlite3.connect(root / "base", timeout=60, isolation_level=None)
        self.base.execute("pragma journal_mode=wal")
        self.base.execute("pragma synchronous=normal")
        self.base.execute("create table if not exists e (k text primary key, d blob, v blob)")

    def put(self, key: str, payload: bytes) -> None:
        """Store."""
        self.base.execute("replace into e values (?,?,?)", (key, xxh3_128_digest(payload), payload))

    def get(self, key: str) -> bytes:
        """Read."""
        digest, payload = self.base.execute("select d, v from e where k=?", (key,)).fetchone()
        assert not self.is_verified or xxh3_128_digest(payload) == digest
        return payload


class SqliteVerified(Sqlite):
    """`Sqlite`, with the digest checked."""

    is_verified = True


class Lmdb:
    """LMDB, synced."""

    is_verified = False

    def __init__(self, root: Path) -> None:
        import lmdb

        self.base = lmdb.open(str(root), map_size=1 << 35)

    def put(self, key: str, payload: bytes) -> None:
        """Store."""
        with self.base.begin(write=True) as transaction:
            transaction.put(key.encode(), xxh3_128_digest(payload) + payload)

    def get(self, key: str) -> bytes:
        """Read."""
        with self.base.begin() as transaction:
            stored = transaction.get(key.encode())
        payload = stored[16:]
        assert not self.is_verified or xxh3_128_digest(payload) == stored[:16]
        return payload


class LmdbVerified(Lmdb):
    """`Lmdb`, with the digest checked."""

    is_verified = True


SYSTEMS: dict[str, type[Any]] = {
    "bare open+read, size known": BareSized,
    "bare open+read, 8 MB buffer": Bare,
    "numba_kcache": Ours,
    "numba_kcache, durability none": OursUnsynced,
    "cuda.core FileStreamProgramCache": CudaCore,
    "diskcache": DiskCache,
    "SQLite WAL": Sqlite,
    "SQLite WAL, xxh3 checked": SqliteVerified,
    "LMDB": Lmdb,
    "LMDB, xxh3 checked": LmdbVerified,
}


def timed(work: Callable[[int], object], seconds: float, least: int = 30) -> list[float]:
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
    if count == 1:
        times = work(0)
        return times, 1e6 * len(times) / sum(times)
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


def measure(arguments: argparse.Namespace, root: Path) -> Iterator[dict[str, Any]]:
    """One row for each system, size, number of entries, number of processes and verb."""
    for size_name, size in SIZES.items():
        BareSized.size = size
        for entries in arguments.entries:
            if entries * size > arguments.room_bytes:
                continue
            for number, (name, make) in enumerate(SYSTEMS.items()):
                folder = root / f"{size}-{entries}-{make.__mro__[-2].__name__}"  # one for all with the same format
                common = {"system": name, "size": size_name, "entries": entries}
                try:
                    found = measure_one(arguments, make, folder, size, entries, 10_000_000 * number)
                except ImportError as error:
                    print(f"left out: {name}: {error}", file=sys.stderr)
                    continue
                yield from ({**common, **row} for row in found)


def measure_one(
    arguments: argparse.Namespace, make: Callable[[Path], Any], folder: Path, size: int, entries: int, unused: int
) -> list[dict[str, Any]]:
    """Fill a store, unless a system with the same format did; then measure hits, and puts of keys from `unused` on."""
    payloads = [code_like(size, seed) for seed in range(4)]
    is_filled, store = folder.exists(), make(folder)
    fill = OursUnsynced(folder) if isinstance(store, Ours) else store
    sync, os.fsync = os.fsync, lambda fd: None  # filling is not measured, and 100,000 syncs take minutes
    try:
        for number in range(0 if is_filled else entries):
            fill.put(key_of(number), payloads[number % 4])
    finally:
        os.fsync = sync
    del store, fill

    def hits(process: int) -> list[float]:
        mine, keys = make(folder), [key_of(number) for number in range(min(entries, 2000))]
        assert mine.get(keys[0]) == payloads[0]
        return timed(lambda number: mine.get(keys[number % len(keys)]), arguments.seconds)

    def puts(process: int) -> list[float]:
        mine, base = make(folder), unused + 1_000_000 * (process + 1)
        return timed(lambda number: mine.put(key_of(base + number), payloads[0]), arguments.seconds)

    rows = []
    for processes in arguments.processes:
        for verb, work in (("hit", hits), ("put", puts)):
            times, per_second = in_processes(processes, work)
            figures = {
                "p50_us": statistics.median(times),
                "p99_us": times[int(len(times) * 0.99)],
                "max_us": times[-1],
                "per_second": per_second,
            }
            rows.append({"processes": processes, "verb": verb, **figures})
    return rows


def fresh_process(root: Path) -> dict[str, float]:
    """Milliseconds that a new interpreter needs to import the store, and for its first hit of 50 KB."""
    Ours(root).put(key_of(0), code_like(50_000, 0))
    code = (
        "import sys, time; a = time.perf_counter_ns(); from numba_kcache.store.disk import DiskStore;"
        f"b = time.perf_counter_ns(); e = DiskStore({str(root)!r}).get({key_of(0)!r});"
        "c = time.perf_counter_ns();"
        "assert e; print((b - a) / 1e6, (c - b) / 1e6)"
    )
    runs = [
        [float(each) for each in subprocess.check_output([sys.executable, "-c", code], text=True).split()]
        for _ in range(11)
    ]
    return {
        "import_ms": statistics.median(r[0] for r in runs),
        "first_hit_ms": statistics.median(r[1] for r in runs),
    }


def first_hits_of_large(root: Path) -> dict[str, dict[str, float]]:
    """Microseconds of a fresh process's hit of 5 MB, compressed and uncompressed, and of a bare open and read.

    In a fresh process the memory has to be mapped first, a cost that repeated hits do not have.
    """
    size, key = SIZES["5 MB"], key_of(0)
    code = (
        "import os, sys, time; from numba_kcache.store.disk import DiskStore; store = DiskStore(sys.argv[1]);"
        "store.get('0' * 64); a = time.perf_counter_ns(); entry = store.get(sys.argv[2]); b = time.perf_counter_ns();"
        "fd = os.open(sys.argv[3], os.O_RDONLY); os.read(fd, int(sys.argv[4])); os.close(fd);"
        "c = time.perf_counter_ns(); assert entry; print((b - a) / 1e3, (c - b) / 1e3)"
    )
    bare, found = BareSized(root / "bare"), {}
    bare.put(key, code_like(size, 0))
    usual = encoding.LEAST_FIRST_TO_COMPRESS_BYTES
    for name, least in (("packed", usual), ("as it is", size + 1)):
        encoding.LEAST_FIRST_TO_COMPRESS_BYTES = least
        OursUnsynced(root / name).put(key, code_like(size, 0))
        command = [sys.executable, "-c", code, str(root / name), key, f"{bare.root}/{key}", str(size)]
        runs = [[float(each) for each in subprocess.check_output(command, text=True).split()] for _ in range(11)]
        (path,) = (root / name / "v1" / "entries").glob("*/*")
        found[name] = {
            "hit_us": statistics.median(run[0] for run in runs),
            "bare_us": statistics.median(run[1] for run in runs),
            "stored_bytes": path.stat().st_size,
        }
    encoding.LEAST_FIRST_TO_COMPRESS_BYTES = usual
    return found


def many_entries(root: Path, count: int = 20_000) -> dict[str, float]:
    """Milliseconds to compute the size of 20,000 entries, to list them, and to read the counters of 128 processes."""
    ours = OursUnsynced(root)
    for number in range(count):
        ours.put(key_of(number), b"x" * 3000)
    ours.store.writer.limits.wait()
    for _ in range(128):
        DiskStore(str(root)).counters.add({"hits": 1, "misses": 1, "compile_time_s": 0.5})
    out = {}
    for name, work in (
        ("exact_size_ms", ours.store.size),
        ("counters_ms", ours.store.counters.read),
        ("entries_ms", lambda: list(ours.store.entries())),
    ):
        start = time.perf_counter_ns()
        work()
        out[name] = (time.perf_counter_ns() - start) / 1e6
    return out


def directory_type(directory: str) -> str:
    """The type of the filesystem that holds `directory`."""
    found = subprocess.run(["stat", "-f", "-c", "%T", directory], capture_output=True, text=True, check=False)
    return found.stdout.strip()


def machine(directory: str) -> dict[str, Any]:
    """The machine, filesystem and versions of the measurement."""
    packages = ("xxhash", "zstandard", "cuda-core", "diskcache", "lmdb")
    versions = {}
    for name in packages:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")
    return {
        "commit": commit(),
        "cpu": model,
        "cpus": os.cpu_count(),
        "gpu": None,
        "kernel": platform.release(),
        "filesystem": directory_type(directory),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "load": os.getloadavg()[0],
        "date": time.strftime("%Y-%m-%d"),
        **versions,
    }


def show(rows: list[dict[str, Any]]) -> None:
    """Print tables, with the ratio to a bare read or write."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["verb"], row["size"], row["entries"], row["processes"]), []).append(row)
    for (verb, size, entries, processes), group in groups.items():
        bare = group[0]["p50_us"]
        print(f"\n{verb} of {size}, {entries} entries, {processes} process{'es' * (processes > 1)}")
        print(f"  {'':34}{'p50 us':>10}{'p99 us':>10}{'max us':>11}{'per s':>10}{'x bare':>8}")
        for row in group:
            print(
                f"  {row['system']:34}{row['p50_us']:10.1f}{row['p99_us']:10.1f}{row['max_us']:11.1f}"
                f"{row['per_second']:10.0f}{row['p50_us'] / bare:8.1f}"
            )


def main() -> None:
    """Measure and print."""
    numbers = lambda text: [int(each) for each in text.split(",")]  # noqa: E731
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=numbers, default=[10, 10_000])
    parser.add_argument("--processes", type=numbers, default=[1, 8])
    parser.add_argument("--seconds", type=float, default=0.5, help="for each figure")
    parser.add_argument("--room-bytes", type=int, default=2_000_000_000, help="larger combinations are left out")
    parser.add_argument("--directory", help="on the filesystem to measure")
    parser.add_argument("--json", help="write the figures and the machine here")
    arguments = parser.parse_args()
    root, rows = Path(tempfile.mkdtemp(dir=arguments.directory)), list[dict[str, Any]]()
    try:
        fresh, many = fresh_process(root / "fresh"), many_entries(root / "many")
        large = first_hits_of_large(root / "large")
        named = tempfile.gettempdir() if arguments.directory is None else arguments.directory
        out = {"machine": machine(named), "rows": rows, "fresh_process": fresh}
        out |= {"20000_entries": many, "large_first_hit": large}
        for row in measure(arguments, root):
            rows.append(row)
            if arguments.json:
                write_json(Path(arguments.json), out)
    finally:
        shutil.rmtree(root)
    show(rows)
    print("\nfresh process: " + ", ".join(f"{name} {value:.2f}" for name, value in fresh.items()))
    print("20,000 entries: " + ", ".join(f"{name} {value:.1f}" for name, value in many.items()))
    for name, figures in large.items():
        print(f"5 MB {name}, fresh process: " + ", ".join(f"{each} {value:.0f}" for each, value in figures.items()))


if __name__ == "__main__":
    main()
