"""How much sooner do many workers compile many kernels than one worker, and how much CPU time do they use?

Method      Kernels that include CUB, each with another block size, so that all are misses. "one warm worker": the sum
            of all compile times in a single worker, without its start. "wall": from the call of warm_up to its return,
            with the start of the workers. Each run has an empty cache. "start": from the start of a worker to its
            answer to an invalid task, the median of several. "cpu": CPU time of all workers, with their start.
Not shown   Numba kernels; a machine whose cores are busy.
"""

from __future__ import annotations

import argparse
import os
import resource
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
    """Kernels that add up the values of a block by CUB."""
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


def cpu_of_children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measured(texts: list[str], arch: str, workers: int) -> dict[str, Any]:
    """Seconds, from an empty cache: wall time, the sum of all compiles, CPU time of the workers and of this process."""
    from numba_kcache import KernelCache, cached_kernel, warm_up

    with tempfile.TemporaryDirectory() as folder:
        cache = KernelCache(folder, durability="none")
        start, cpu, children = time.perf_counter(), time.process_time(), cpu_of_children_s()
        report = warm_up([cached_kernel(text, cache=cache) for text in texts], arch, workers=workers, progress=False)
        wall, cpu = time.perf_counter() - start, time.process_time() - cpu
        assert len(report.built) == len(texts)
        compiles = sum(each.seconds for each in report.results)
        children = cpu_of_children_s() - children
        times = {"wall_s": wall, "compiles_s": compiles, "cpu_s": children, "parent_cpu_s": cpu}
        return {"workers": report.workers, **times}


def start_s() -> float:
    """Seconds until a new worker answers."""
    from numba_kcache.warmup.workers import Worker

    samples = []
    for _ in range(STARTS):
        start = time.perf_counter()
        worker = Worker()
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
    print(f"  CPU time          {many['cpu_s']:.1f} s")
    print(f"  parent process    {many['parent_cpu_s'] * 1e3:.0f} ms of CPU time")
    print(f"  a worker starts in {found['start_s'] * 1e3:.0f} ms")
    if arguments.json:
        write_result(arguments.json, "warm_up", header, found)


if __name__ == "__main__":
    main()
