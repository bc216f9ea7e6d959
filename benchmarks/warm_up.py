"""How much sooner are many kernels compiled by many workers than by one that is warm?

Method      Kernels that include CUB, each of another size, so that none is a hit of another. "one warm worker": the sum
            of what each compile took in a single worker, its start left out. "wall": from the call of warm_up to its
            return, workers' starts included. Each run has an empty cache. "start": from starting a worker to its answer
            to a task that it cannot read, the median of several.
Shows not   Numba kernels; a machine whose cores are busy.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

STARTS = 7


def sources(count: int) -> list[str]:
    """Kernels that sum a block each, by CUB."""
    return [
        f"""
#include <cub/block/block_reduce.cuh>
extern "C" __global__ void sum_{number}(const float *x, float *out) {{
    using Reduce = cub::BlockReduce<float, {64 + 4 * number}>;
    __shared__ typename Reduce::TempStorage part;
    float value = x[blockIdx.x * blockDim.x + threadIdx.x] * {number + 1}.0f;
    float sum = Reduce(part).Sum(value);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}}"""
        for number in range(count)
    ]


def measured(texts: list[str], arch: str, workers: int) -> dict[str, Any]:
    """Wall time, the sum of all compiles, and this process's own work, in seconds, from an empty cache."""
    from numba_kcache import KernelCache, cached_kernel, warm_up

    with tempfile.TemporaryDirectory() as folder:
        cache = KernelCache(folder, durability="none")
        start, cpu = time.perf_counter(), time.process_time()
        report = warm_up([cached_kernel(text, cache=cache) for text in texts], arch, workers=workers, progress=False)
        wall, cpu = time.perf_counter() - start, time.process_time() - cpu
        assert len(report.built) == len(texts)
        compiles = sum(each.seconds for each in report.results)
        return {"workers": report.workers, "wall_s": wall, "compiles_s": compiles, "parent_cpu_s": cpu}


def start_s() -> float:
    """Seconds until a new worker answers."""
    from numba_kcache.warmup.pool import _Worker

    samples = []
    for _ in range(STARTS):
        start = time.perf_counter()
        worker = _Worker()
        worker.connection.send_bytes(b"no task")
        assert worker.connection.recv().status == "unlike"
        samples.append(time.perf_counter() - start)
        worker.end()
    return statistics.median(samples)


def main() -> None:
    """Measure and print; with --json also write the result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, default=64)
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    from header import machine_header, write_result

    header, texts = machine_header(), sources(arguments.kernels)
    one = measured(texts, arguments.arch, 1)
    many = measured(texts, arguments.arch, arguments.workers)
    found = {
        "kernels": len(texts),
        "arch": arguments.arch,
        "one": one,
        "many": many,
        "times_one_warm_worker": one["compiles_s"] / many["wall_s"],
        "start_s": start_s(),
    }
    print(f"{len(texts)} kernels that include CUB, for {arguments.arch}")
    print(f"  one warm worker   {one['compiles_s']:.1f} s ({one['compiles_s'] / len(texts):.2f} s each)")
    print(
        f"  {many['workers']} workers        {many['wall_s']:.1f} s: {found['times_one_warm_worker']:.1f} times as fast"
    )
    print(f"  handing them out  {many['parent_cpu_s'] * 1e3:.0f} ms of processor in the process that asked")
    print(f"  a worker starts in {found['start_s'] * 1e3:.0f} ms")
    if arguments.json:
        write_result(arguments.json, "warm_up", header, found)


if __name__ == "__main__":
    main()
