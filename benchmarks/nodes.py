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

import argparse
import compileall
import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from first_launch import Case, sources
from fresh import ROOT, answer, open_barrier, say, start, wait_for_the_others

SYSTEMS = {"no tier": None, "no lease": "?wait=0.001", "lease": ""}
"""For each system the query that is appended to the server's URL; None if there is no server."""


def rank(number: int, count: int) -> None:
    """Run one process of a node: it compiles all kernels, and begins with the one of its own number."""
    import numba_kcache
    from numba_kcache import cached_kernel

    kernels = [cached_kernel(source, arch="sm_90") for source in sources(Case(count, has_header=True))[:count]]
    compiles = [0] * count
    wait_for_the_others()
    for index in ((number + step) % count for step in range(count)):
        before = numba_kcache.info("process").compiles
        kernels[index].compile()
        compiles[index] = numba_kcache.info("process").compiles - before
    say(compiles=compiles, errors=numba_kcache.info("process").errors)


def run(nodes: int, ranks: int, kernels: int, folder: Path, url: str) -> dict[str, Any]:
    """Run all ranks once: seconds until the last one has its kernels, and the compiles of each kernel.

    Raises:
        RuntimeError: A rank failed.
    """
    barrier = Path(tempfile.mkdtemp())
    children = [
        start(
            [str(Path(__file__)), "--rank", str(number), "--kernels", str(kernels)],
            folder / str(number % nodes),
            {"KC_BENCH_BARRIER": str(barrier), "NUMBA_KCACHE_TIERS": url},
        )
        for number in range(nodes * ranks)
    ]
    started = open_barrier(barrier, children)
    found = [answer(child) for child in children]
    ended = time.time() - started
    shutil.rmtree(barrier)
    answers = [each for each in found if isinstance(each, dict)]
    if len(answers) < len(found):
        raise RuntimeError(next(each for each in found if isinstance(each, str)))
    return {
        "last": max(each["end"] for each in answers) - started,
        "ended": ended,
        "compiles": [sum(each["compiles"][kernel] for each in answers) for kernel in range(kernels)],
        "errors": sum(each["errors"] for each in answers),
    }


def measure(
    nodes: int, ranks: int, kernels: int, rounds: int, left_out: dict[str, str]
) -> Iterator[dict[str, dict[str, list[Any]]]]:
    """Yield, after each system's turn, the samples so far by system and "cold/warm last/ended/compiles/errors"."""
    try:
        sys.path.insert(0, str(ROOT))
        from tests.support.redis_server import MISSING, redis_server
    except ImportError as error:  # this copy has no tests/
        MISSING = str(error)
    found: dict[str, dict[str, list[Any]]] = {}
    for _ in range(rounds):
        for system, options in SYSTEMS.items():
            if options is not None and MISSING:
                left_out[system] = MISSING
                continue
            rows = found.setdefault(system, {})
            with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as servers:
                folder, url = Path(name), ""
                if options is not None:
                    url = servers.enter_context(redis_server(folder / "redis")).url + options
                for state in ("cold", "warm"):
                    if state == "warm" and not url:
                        break  # a new directory without a server is cold
                    result = run(nodes, ranks, kernels, folder / state, url)
                    for what, value in result.items():
                        rows.setdefault(f"{state} {what}", []).append(value)
            yield found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=8, help="of each node")
    parser.add_argument("--kernels", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        rank(arguments.rank, arguments.kernels)
        return
    from header import Result

    compileall.compile_dir(str(ROOT / "numba_kcache"), quiet=2)  # as pip does it
    left_out: dict[str, str] = {}
    sizes = {"nodes": arguments.nodes, "ranks": arguments.ranks, "kernels": arguments.kernels}
    result = Result(arguments.json, (__doc__ or "").splitlines()[0], left_out=left_out, **sizes)
    for samples in measure(arguments.nodes, arguments.ranks, arguments.kernels, arguments.rounds, left_out):
        result.write(samples)
    for system, rows in samples.items():
        times = ", ".join(
            f"{state} {median(rows[f'{state} last']):.2f} s" for state in ("cold", "warm") if f"{state} last" in rows
        )
        print(f"{system:10} {times}, compiles by kernel {rows['cold compiles']}, errors {rows['cold errors']}")
    for system, why in left_out.items():
        print(f"{system}: {why}", file=sys.stderr)


if __name__ == "__main__":
    main()
