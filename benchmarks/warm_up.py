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
import time
from statistics import median
from typing import Any

from harness import Folders, Result, run

ARCH, STARTS = "sm_90", 7
SOURCE = """
#include <cub/block/block_reduce.cuh>
extern "C" __global__ void sum_{number}(const float *x, float *out) {{
    using Reduce = cub::BlockReduce<float, {block}>;
    __shared__ typename Reduce::TempStorage part;
    float value = x[blockIdx.x * blockDim.x + threadIdx.x] * {number}.0f;
    float sum = Reduce(part).Sum(value);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}}"""


def cpu_of_children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measured(kernels: int, workers: int) -> dict[str, Any]:
    """Seconds, from an empty cache: wall time, the sum of all compiles, and CPU time of the workers."""
    from numba_kcache import KernelCache, cached_kernel, warm_up

    texts = [SOURCE.format(number=number, block=60 + 4 * number) for number in range(1, kernels + 1)]
    with Folders() as folders:
        cache = KernelCache(folders(), durability="none")
        start, cpu_s = time.perf_counter(), cpu_of_children_s()
        report = warm_up([cached_kernel(text, cache=cache) for text in texts], ARCH, workers=workers, progress=False)
        wall_s, cpu_s = time.perf_counter() - start, cpu_of_children_s() - cpu_s
    assert len(report.built) == kernels
    compiles_s = sum(each.seconds for each in report.results)
    return {"workers": report.workers, "wall_s": wall_s, "compiles_s": compiles_s, "cpu_s": cpu_s}


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
    return median(samples)


def measure(result: Result, arguments: argparse.Namespace) -> None:
    found = result.samples
    found["kernels"], found["start_s"] = arguments.kernels, start_s()
    found["one"] = measured(arguments.kernels, 1)
    result.write()
    found["many"] = measured(arguments.kernels, len(os.sched_getaffinity(0)))
    found["times_one_warm_worker"] = found["one"]["compiles_s"] / found["many"]["wall_s"]


if __name__ == "__main__":
    run(__doc__, measure, kernels=(64, 16))
