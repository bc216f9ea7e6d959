"""When nothing is compiled yet, how long does the last rank of 8 nodes wait for its kernels, with and without a Redis?

Method      Each node is simulated by a local directory and its ranks, which are fresh processes. They wait after import
            and decoration until all are ready. Then each requests the same kernels, in its own order, with real NVRTC
            compiles of CUDA C++ that includes cuda_fp16.h. "last": from that start until the last rank has all kernels.
            "ended": until the last process has ended, including its queued writes to the server. Compiles are counted
            in every rank, for each kernel; the minimum is one over all nodes. "no tier": the nodes share nothing. "no
            lease": the nodes share a redis-server on loopback, and do not wait for each other (`?wait=0.001`). "lease":
            the default of the package. "warm": the same ranks in new directories, with the filled server. Each round
            has new directories and an empty server; the systems alternate.
Not shown   Launches and devices: kernels are compiled for sm_90, so no GPU is needed. Separate processors of the nodes:
            all nodes share this machine's, so that repeated compiles cost more time here than in a cluster, and waiting
            costs less. A network: it is loopback; fleet.py simulates many nodes.
Run         python benchmarks/nodes.py [--nodes 8] [--ranks 8] [--kernels 20] [--rounds 3] [--json FILE]
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from harness import ROOT, Arguments, Folders, Result, compiles, ranks, run, say, wait_for_the_others
from programs import text

SYSTEMS = {"no tier": None, "no lease": "?wait=0.001", "lease": ""}
"""For each system the query that is appended to the server's URL; None if there is no server."""


def child(number: str, kernels: str) -> None:
    """Run one process of a node: it compiles all kernels, and begins with the one of its own number."""
    import numba_kcache
    from numba_kcache import cached_kernel

    count = int(kernels)
    all_kernels = [cached_kernel(text(each, "cuda_fp16.h"), arch="sm_90") for each in range(count)]
    compiled = [0] * count
    wait_for_the_others()
    for index in ((int(number) + step) % count for step in range(count)):
        before = compiles()
        all_kernels[index].compile()
        compiled[index] = compiles() - before
    say(compiles=compiled, errors=numba_kcache.info("process").errors)


def take(result: Result, arguments: Arguments, system: str, state: str, folder: Path, url: str) -> None:
    """Run all ranks once: seconds until the last one has its kernels, and the compiles of each kernel."""
    nodes, count = arguments.nodes, arguments.kernels
    commands = [
        ([__file__, "--child", number, count], folder / f"{number % nodes}")
        for number in range(nodes * arguments.ranks)
    ]
    found = ranks(commands, {"NUMBA_KCACHE_TIERS": url})
    if isinstance(found, str):
        raise RuntimeError(found)
    answers = found["answers"]
    by_kernel = [sum(each["compiles"][kernel] for each in answers) for kernel in range(count)]
    figures = {"last": found["last"], "ended": found["ended"], "compiles": by_kernel}
    result.add(system, prefix=f"{state} ", **figures, errors=sum(each["errors"] for each in answers))


def measure(result: Result, arguments: Arguments) -> None:
    result.notes |= {"nodes": arguments.nodes, "ranks": arguments.ranks, "kernels": arguments.kernels}
    try:
        sys.path.insert(0, str(ROOT))
        from tests.support.redis_server import MISSING, redis_server
    except ImportError as error:  # this copy has no tests/
        MISSING = str(error)
    for _ in result.rounds(arguments.rounds):
        for system, options in SYSTEMS.items():
            if options is not None and MISSING:
                result.left_out[system] = MISSING
                continue
            with Folders() as folders, contextlib.ExitStack() as servers:
                url = "" if options is None else servers.enter_context(redis_server(folders("redis"))).url + options
                for state in ("cold", "warm") if url else ("cold",):  # a new directory without a server is cold
                    take(result, arguments, system, state, folders(state), url)


if __name__ == "__main__":
    run(__doc__, measure, child, nodes=(8, 4), ranks=(8, 2), kernels=(20, 4), rounds=(3, 1))
