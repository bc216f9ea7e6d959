"""How many requests do 10,000 nodes of 8 ranks send to one Redis, cold and warm, and when does the last rank run?

Method      `measure` times each operation of the tier with a redis-server on loopback: with one client (latency) and
            with as many clients as cores (throughput). It also times the first resolution of a kernel from the local
            directory and from Redis, in fresh processes, in turn. `simulate` runs a discrete-event simulation with
            these costs. Every node requests every kernel, in the same order. The server answers one request after the
            other at its measured rate; a poll, a claim, a read and a write are one request each.
Cases       Lease and back-fill: the behaviour of the package. No lease: every node compiles each kernel that it misses.
            No back-fill: every rank reads every kernel from Redis, at each start.
Not shown   Several servers, or a network beyond its latency; the time of a compile is an argument. The simulation shows
            at which load the server saturates, not the behaviour of a particular cluster.
Run         python benchmarks/fleet.py [--nodes 10000] [--kernels 20] [--json FILE]
"""

from __future__ import annotations

import argparse
import compileall
import heapq
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from header import Result

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from numba_kcache.store import ENTRY  # noqa: E402
from numba_kcache.tiers import lease  # noqa: E402
from numba_kcache.tiers.redis import RedisTier  # noqa: E402
from tests.support.redis_server import RedisServer, redis_server  # noqa: E402

ENTRY_BYTES = 20_000
RANKS = 8
COMPILE_S = 1.0
NETWORK_S = 200e-6
"""A round trip in a cluster, in addition to the time on loopback."""

FIRST = """
import socket, sys, time, urllib.parse  # not measured: numba.cuda imports these as well
from numba_kcache import KernelCache, cached_kernel

start = time.perf_counter_ns()
cache = KernelCache(sys.argv[1], tiers=[sys.argv[2]] if sys.argv[2] else None, durability="none")
kernel = cached_kernel(sys.argv[3], arch="sm_90", cache=cache)
made = time.perf_counter_ns()
kernel.compile()
end = time.perf_counter_ns()
print((made - start) / 1e6, (end - made) / 1e6, cache.info("process").compiles)
"""
SOURCE = 'extern "C" __global__ void saxpy(float a, const float *x, float *y) { y[threadIdx.x] += a * x[threadIdx.x]; }'


def percentiles(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    return {f"p{p}": round(ordered[min(len(ordered) - 1, len(ordered) * p // 100)], 4) for p in (50, 90, 99)}


def timed(work: Any, rounds: int = 2000) -> list[float]:
    """Microseconds of each round."""
    times = []
    for number in range(rounds):
        start = time.perf_counter_ns()
        work(number)
        times.append((time.perf_counter_ns() - start) / 1e3)
    return times


def measure_operations(server: RedisServer) -> dict[str, Any]:
    """Latency of each operation, and requests per second that the server answers."""
    tier = RedisTier(server.url)
    keys = [f"{number:064x}" for number in range(4000)]
    data = random.Random(1).randbytes(ENTRY_BYTES)
    tier.put(ENTRY, keys[0], data)
    found = {
        "miss_us": percentiles(timed(lambda n: tier.get(ENTRY, keys[1 + n % 3000]))),
        "hit_us": percentiles(timed(lambda n: tier.get(ENTRY, keys[0]))),
        "claim_us": percentiles(timed(lambda n: tier.claim(keys[n], "token", 60.0))),
        "put_us": percentiles(timed(lambda n: tier.put(ENTRY, keys[n], data))),
    }
    for name, size in (("get_20kb_per_s", str(ENTRY_BYTES)), ("get_3b_per_s", "3")):
        words = [
            "redis-benchmark",
            "-p",
            str(server.port),
            "-c",
            "50",
            "-n",
            "100000",
            "-d",
            size,
            "-t",
            "get",
            "--csv",
        ]
        server.told("SET", "key:__rand_int__", bytes(int(size)))
        output = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
        found[name] = float(output.split(",")[1].strip('"'))
    tier.close()
    return found


def measure_first(server: RedisServer, folder: Path, rounds: int = 15) -> dict[str, Any]:
    """Milliseconds to make cache and kernel, and of the first resolution, in fresh processes that alternate.

    `local`: the entry is in the directory. `redis`: the entry is in Redis alone; the directory was used before and has
    a record of the compilers. `redis, new directory`: the same with an empty directory, so the compilers are searched.
    """

    def run(directory: Path, url: str, source: str = SOURCE) -> tuple[float, float, bool]:
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        words = [sys.executable, "-c", FIRST, str(directory), url, source]
        done = subprocess.run(words, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True)
        made_ms, took_ms, compiles = done.stdout.split()
        return float(made_ms), float(took_ms), compiles == "0"

    run(folder / "filled", server.url)
    run(folder / "filled", "")
    found: dict[str, list[tuple[float, float, bool]]] = {"local": [], "redis": [], "redis, new directory": []}
    for number in range(rounds):
        used = folder / f"used{number}"
        run(used, "", SOURCE.replace("saxpy", "other"))
        found["local"].append(run(folder / "filled", ""))
        found["redis"].append(run(used, server.url))
        found["redis, new directory"].append(run(folder / f"new{number}", server.url))
    assert all(is_hit for times in found.values() for _, _, is_hit in times)
    return {
        name: {
            "made_ms": percentiles([made for made, _, _ in times]),
            "resolved_ms": percentiles([took for _, took, _ in times]),
        }
        for name, times in found.items()
    }


def simulate(nodes: int, kernels: int, *, warm: bool, leases: bool, back_fill: bool, costs: dict[str, float]) -> Any:
    """Simulate a fleet: requests, bytes, compiles, and the time when the last rank has its last kernel.

    Args:
        nodes: Nodes that start within a second.
        kernels: Kernels that each node requests, in the same order.
        warm: Whether Redis has all of them at the start.
        leases: Whether one node compiles a kernel while the others wait.
        back_fill: Whether an entry that one rank read serves the other ranks of its node.
        costs: Seconds of the server for one small request (`small_s`) and for one with an entry (`entry_s`).
    """
    chance = random.Random(1)
    clients = nodes if back_fill else nodes * RANKS
    stored: list[float] = [0.0 if warm else float("inf")] * kernels
    builder: list[int] = [-1] * kernels
    busy_until_s = requests = sent_bytes = compiles = 0.0
    busiest: dict[int, int] = {}
    events = [(chance.random(), client, 0, "get", lease._FIRST_PAUSE_S) for client in range(clients)]
    heapq.heapify(events)
    last_s = 0.0
    while events:
        now_s, client, kernel, operation, pause_s = heapq.heappop(events)
        if kernel == kernels:
            last_s = max(last_s, now_s)
            continue
        if operation == "built":
            busy_until_s = max(busy_until_s, now_s) + costs["entry_s"] + 2 * costs["small_s"]
            requests, sent_bytes = requests + 3, sent_bytes + ENTRY_BYTES  # the entry, its manifest, the release
            busiest[int(busy_until_s)] = busiest.get(int(busy_until_s), 0) + 3
            stored[kernel] = min(stored[kernel], busy_until_s)
            heapq.heappush(events, (now_s, client, kernel + 1, "get", lease._FIRST_PAUSE_S))
            continue
        is_there = stored[kernel] <= now_s
        is_hit = is_there and operation == "get"
        is_first_claim = operation == "claim" and pause_s == lease._FIRST_PAUSE_S
        request_count = 2 if is_first_claim else 1  # the first claim also reads
        busy_until_s = max(busy_until_s, now_s) + (costs["entry_s"] if is_hit else costs["small_s"] * request_count)
        requests, sent_bytes = requests + request_count, sent_bytes + (ENTRY_BYTES if is_hit else 100)
        busiest[int(busy_until_s)] = busiest.get(int(busy_until_s), 0) + request_count
        answered_s = busy_until_s + NETWORK_S * request_count
        if is_hit:
            heapq.heappush(events, (answered_s, client, kernel + 1, "get", lease._FIRST_PAUSE_S))
        elif operation == "get" and leases:
            heapq.heappush(events, (answered_s, client, kernel, "claim", pause_s))
        elif is_there:
            heapq.heappush(
                events, (answered_s, client, kernel, "get", pause_s)
            )  # the lease says that the entry is written
        elif not leases or builder[kernel] < 0:
            builder[kernel] = client
            compiles += 1
            heapq.heappush(events, (answered_s + COMPILE_S, client, kernel, "built", pause_s))
        else:
            wait_s = pause_s * chance.uniform(0.5, 1.5)
            longer_s = min(2 * pause_s, lease._LONGEST_PAUSE_S)
            heapq.heappush(events, (answered_s + wait_s, client, kernel, "claim", longer_s))
    return {
        "nodes": nodes, "warm": warm, "leases": leases, "back_fill": back_fill, "requests": int(requests),
        "busiest_second": max(busiest.values(), default=0), "gigabytes": round(sent_bytes / 1e9, 3),
        "compiles": int(compiles), "last_rank_s": round(last_s, 2),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--kernels", type=int, default=20)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    compileall.compile_dir(ROOT / "numba_kcache", quiet=1)  # as pip does it
    settings = {"kernels": arguments.kernels, "entry_bytes": ENTRY_BYTES, "ranks": RANKS, "compile_s": COMPILE_S}
    samples: dict[str, Any] = {"settings": {**settings, "network_s": NETWORK_S}}
    result = Result(arguments.json, (__doc__ or "").splitlines()[0])
    with tempfile.TemporaryDirectory() as folder, redis_server(Path(folder) / "redis") as server:
        operations = samples["operations"] = measure_operations(server)
        first = samples["first_resolution"] = measure_first(server, Path(folder))
    costs = {"small_s": 1 / operations["get_3b_per_s"], "entry_s": 1 / operations["get_20kb_per_s"]}
    rows: list[Any] = []
    samples["fleet"] = rows
    for nodes in sorted({arguments.nodes // 100, arguments.nodes // 10, arguments.nodes} - {0}):
        for warm, leases, back_fill in (
            (False, True, True), (False, False, True), (True, True, True), (True, True, False),
        ):  # fmt: skip
            row = simulate(nodes, arguments.kernels, warm=warm, leases=leases, back_fill=back_fill, costs=costs)
            rows.append(row)
            result.write(samples)
            print(row, flush=True)
    print(operations, first, sep="\n")


if __name__ == "__main__":
    main()
