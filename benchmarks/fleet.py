"""How many requests do 10,000 nodes of 8 ranks send to one Redis, cold and warm, and when does the last rank run?

Method      `measure` times each operation of the tier with a redis-server on loopback: with one client (latency) and
            with as many clients as cores (throughput), and the first resolution of a kernel from the local directory
            and from Redis, in fresh processes, in turn. `simulate` runs a discrete-event simulation with these costs.
            Every node requests every kernel, in the same order; the server answers one request after the other; a
            poll, a claim, a read and a write are one request each. No lease: every node compiles each kernel that it
            misses. No back-fill: every rank reads every kernel from Redis, at each start.
            `--part nodes`: when nothing is compiled yet, how long does the last rank of 8 nodes wait for its kernels,
            with and without a Redis? A node is a local directory and its ranks, fresh processes that wait until all
            are ready and then request the same kernels, each in its own order, with real NVRTC compiles. "last": from
            that start until the last rank has all kernels. "ended": until the last process has ended, with its queued
            writes. "no tier": the nodes share nothing. "no lease": they share a server, and do not wait for each
            other. "lease": the default. "warm": the same ranks in new directories, with the filled server.
Not shown   Several servers, or a network beyond its latency; the time of a compile is an argument. The simulation shows
            at which load the server saturates, not the behaviour of a particular cluster.
Not shown of nodes   Launches and devices: kernels are compiled for sm_90, so no GPU is needed. Separate processors of
            the nodes: all nodes share this machine's, so that repeated compiles cost more time here than in a cluster,
            and waiting costs less. A network: it is loopback; fleet.py simulates many nodes.
"""

from __future__ import annotations

import contextlib
import heapq
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import ROOT, Arguments, Result, compiles, fresh, run, say, temporary_folders, wait_for_the_others
from programs import text

sys.path.insert(0, str(ROOT))

from numba_kcache.store import ENTRY
from numba_kcache.tiers import lease
from numba_kcache.tiers.redis import RedisTier
from tests.support.redis_server import MISSING, RedisServer, redis_server

ENTRY_BYTES = 20_000
RANKS = 8
COMPILE_S = 1.0
NETWORK_S = 200e-6
"""A round trip in a cluster, in addition to the time on loopback."""

FIRST = """
import json, socket, sys, time, urllib.parse  # not measured: numba.cuda imports these as well
from numba_kcache import KernelCache, cached_kernel

start = time.perf_counter_ns()
cache = KernelCache(sys.argv[1], tiers=[sys.argv[2]] if sys.argv[2] else None, durability="none")
kernel = cached_kernel(sys.argv[3], arch="sm_90", cache=cache)
made = time.perf_counter_ns()
kernel.compile()
end = time.perf_counter_ns()
figures = {"made_ms": (made - start) / 1e6, "resolved_ms": (end - made) / 1e6}
print(json.dumps({**figures, "compiles": cache.info("process").compiles}))
"""
STARTS = (
    {"warm": False, "leases": True, "back_fill": True},
    {"warm": False, "leases": False, "back_fill": True},
    {"warm": True, "leases": True, "back_fill": True},
    {"warm": True, "leases": True, "back_fill": False},
)


def percentiles(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    return {f"p{p}": round(ordered[min(len(ordered) - 1, len(ordered) * p // 100)], 4) for p in (50, 90, 99)}


def measure_operations(server: RedisServer) -> dict[str, Any]:
    """Microseconds of each operation, and requests per second that the server answers."""
    tier, data = RedisTier(server.url), random.Random(1).randbytes(ENTRY_BYTES)
    keys = [f"{number:064x}" for number in range(4000)]
    tier.put(ENTRY, keys[0], data)
    operations: dict[str, Callable[[int], object]] = {
        "miss_us": lambda n: tier.get(ENTRY, keys[1 + n % 3000]),
        "hit_us": lambda n: tier.get(ENTRY, keys[0]),
        "claim_us": lambda n: tier.claim(keys[n], "token", 60.0),
        "put_us": lambda n: tier.put(ENTRY, keys[n], data),
    }
    found: dict[str, Any] = {}
    for name, work in operations.items():
        times = []
        for number in range(2000):
            begin = time.perf_counter_ns()
            work(number)
            times.append((time.perf_counter_ns() - begin) / 1e3)
        found[name] = percentiles(times)
    for name, size in (("get_20kb_per_s", ENTRY_BYTES), ("get_3b_per_s", 3)):
        server.told("SET", "key:__rand_int__", bytes(size))
        words = f"redis-benchmark -p {server.port} -c 50 -n 100000 -d {size} -t get --csv".split()
        output = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
        found[name] = float(output.split(",")[1].strip('"'))
    return found


def measure_first(server: RedisServer, folder: Path, rounds: int = 15) -> dict[str, Any]:
    """Milliseconds to make cache and kernel, and of the first resolution, in fresh processes that alternate.

    `local`: the entry is in the directory. `redis`: the entry is in Redis alone; the directory was used before and has
    a record of the compilers. `redis, new directory`: the same with an empty directory, so the compilers are searched.
    """

    def first(directory: Path, url: str, number: int = 1) -> Any:
        found = fresh(["-c", FIRST, directory, url, text(number)], folder)
        assert isinstance(found, dict), found
        return found

    for url in (server.url, ""):
        first(folder / "filled", url)
    found: dict[str, list[dict[str, float]]] = {"local": [], "redis": [], "redis, new directory": []}
    for number in range(rounds):
        used = folder / f"used{number}"
        first(used, "", 2)
        found["local"].append(first(folder / "filled", ""))
        found["redis"].append(first(used, server.url))
        found["redis, new directory"].append(first(folder / f"new{number}", server.url))
    assert not any(each["compiles"] for answers in found.values() for each in answers)
    return {
        name: {what: percentiles([each[what] for each in answers]) for what in ("made_ms", "resolved_ms")}
        for name, answers in found.items()
    }


def simulate(nodes: int, kernels: int, *, warm: bool, leases: bool, back_fill: bool, costs: dict[str, float]) -> Any:
    """Simulate a fleet: requests, bytes, compiles, and the time when the last rank has its last kernel.

    The nodes start within a second. `warm`: Redis has all kernels. `leases`: one node compiles a kernel while the
    others wait. `back_fill`: an entry that one rank read serves the other ranks of its node. `costs`: seconds of the
    server for a small request (`small_s`) and for one with an entry (`entry_s`).
    """
    chance = random.Random(1)
    stored = [0.0 if warm else float("inf")] * kernels
    is_built = [False] * kernels
    busy_until_s = last_s = sent_bytes = 0.0
    requests: Counter[int] = Counter()  # by second
    compiles = 0
    first_s = lease._FIRST_PAUSE_S
    clients = range(nodes if back_fill else nodes * RANKS)
    events = [(chance.random(), client, 0, "get", first_s) for client in clients]
    heapq.heapify(events)

    def serve(now_s: float, cost_s: float, count: int, size: int) -> None:
        nonlocal busy_until_s, sent_bytes
        busy_until_s, sent_bytes = max(busy_until_s, now_s) + cost_s, sent_bytes + size
        requests[int(busy_until_s)] += count

    while events:
        now_s, client, kernel, operation, pause_s = heapq.heappop(events)
        if kernel == kernels:
            last_s = max(last_s, now_s)
            continue
        if operation == "built":  # the entry, its manifest, the release
            serve(now_s, costs["entry_s"] + 2 * costs["small_s"], 3, ENTRY_BYTES)
            stored[kernel] = min(stored[kernel], busy_until_s)
            heapq.heappush(events, (now_s, client, kernel + 1, "get", first_s))
            continue
        is_there = stored[kernel] <= now_s
        is_hit = is_there and operation == "get"
        count = 2 if operation == "claim" and pause_s == first_s else 1  # the first claim also reads
        serve(now_s, costs["entry_s"] if is_hit else costs["small_s"] * count, count, ENTRY_BYTES if is_hit else 100)
        answered_s = busy_until_s + NETWORK_S * count
        if is_hit:
            event = (answered_s, client, kernel + 1, "get", first_s)
        elif operation == "get" and leases:
            event = (answered_s, client, kernel, "claim", pause_s)
        elif is_there:  # the lease says that the entry is written
            event = (answered_s, client, kernel, "get", pause_s)
        elif not leases or not is_built[kernel]:
            is_built[kernel], compiles = True, compiles + 1
            event = (answered_s + COMPILE_S, client, kernel, "built", pause_s)
        else:
            wait_s = pause_s * chance.uniform(0.5, 1.5)
            event = (answered_s + wait_s, client, kernel, "claim", min(2 * pause_s, lease._LONGEST_PAUSE_S))
        heapq.heappush(events, event)
    return {
        "nodes": nodes, "warm": warm, "leases": leases, "back_fill": back_fill, "requests": requests.total(),
        "busiest_second": max(requests.values(), default=0), "gigabytes": round(sent_bytes / 1e9, 3),
        "compiles": compiles, "last_rank_s": round(last_s, 2),
    }  # fmt: skip


TIERS = {"no tier": None, "no lease": "?wait=0.001", "lease": ""}
"""For each system the query that is appended to the server's URL; None if there is no server."""


def child(number: str, kernels: str) -> None:
    """Run one process of a node: it compiles all kernels, and begins with the one of its own number."""
    from numba_kcache import cached_kernel

    count = int(kernels)
    all_kernels = [cached_kernel(text(each, "cuda_fp16.h"), arch="sm_90") for each in range(count)]
    compiled = [0] * count
    wait_for_the_others()
    for index in ((int(number) + step) % count for step in range(count)):
        before = compiles()
        all_kernels[index].compile()
        compiled[index] = compiles() - before
    say(compiles=compiled)


def measure_nodes(result: Result, arguments: Arguments) -> None:
    """Run all ranks: seconds until the last one has its kernels, and the compiles of each kernel."""
    nodes, count = arguments.directories, arguments.kernels
    result.notes |= {"nodes": nodes, "ranks": arguments.ranks, "kernels": count}
    for system, options in (each for _ in result.rounds(arguments.rounds) for each in TIERS.items()):
        if options is not None and MISSING:
            result.left_out[system] = MISSING
            continue
        with temporary_folders() as folders, contextlib.ExitStack() as servers:
            url = "" if options is None else servers.enter_context(redis_server(folders("redis"))).url + options
            for state in ("cold", "warm") if url else ("cold",):  # a new directory without a server is cold
                ranks = range(nodes * arguments.ranks)
                commands = [((number, count), folders(state, number % nodes)) for number in ranks]
                if found := result.ranks(system, commands, {"NUMBA_KCACHE_TIERS": url}):
                    each = [rank["compiles"] for rank in found["answers"]]
                    all_ranks = [sum(rank[kernel] for rank in each) for kernel in range(count)]
                    figures = {"last": found["last"], "ended": found["ended"], "compiles": all_ranks}
                    result.add(system, prefix=f"{state} ", **figures)


def measure_fleet(result: Result, arguments: Arguments) -> None:
    with temporary_folders() as folders, redis_server(folders("redis")) as server:
        operations = result.samples["operations"] = measure_operations(server)
        result.samples["first_resolution"] = measure_first(server, folders("first"))
    costs = {"small_s": 1 / operations["get_3b_per_s"], "entry_s": 1 / operations["get_20kb_per_s"]}
    rows = result.samples["fleet"] = []
    for nodes in sorted({arguments.nodes // 100, arguments.nodes // 10, arguments.nodes} - {0}):
        for how in STARTS:
            rows.append(simulate(nodes, arguments.kernels, **how, costs=costs))
            result.write()
            print(rows[-1], flush=True)


if __name__ == "__main__":
    parts = {"fleet": (measure_fleet, None), "nodes": (measure_nodes, child)}
    run(
        __doc__, parts, nodes=(10_000, 200), kernels=(20, 5), directories=(8, 4), ranks=(8, 2), rounds=(3, 1)
    )  # fmt: skip
