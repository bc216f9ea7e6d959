"""Eight processes start at once with an empty cache: each kernel is compiled once, the others wait for it.

There are two kernels, of CUDA C++ and of Numba. With a GPU every process launches both and checks their results.
Without one they are compiled for sm_90 and stored; the launches are skipped, and the script says so. Run it:
`python examples/multi_process_job.py`.
"""

import os
import subprocess
import sys
import tempfile

import numpy as np
import two_processes
from numba import cuda

import numba_kcache
from numba_kcache import cached_kernel

RANKS = 8


@cached_kernel(arch="auto")
def partial_sums():
    return r"""
    extern "C" __global__ void partial_sums(const float *x, float *sums, int n, int rank, int ranks) {
        float sum = 0;
        for (int i = rank * blockDim.x + threadIdx.x; i < n; i += ranks * blockDim.x) sum += x[i];
        atomicAdd(sums, sum);
    }"""


@cached_kernel(signature="void(float32[::1], float32)")
def scale(x, factor):
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= factor


def launch_and_check() -> None:
    """Run both kernels on the part of the array that belongs to this rank, and check the sum."""
    rank, n = int(sys.argv[1]), 100_003
    x, sums = cuda.to_device(np.ones(n, np.float32)), cuda.to_device(np.zeros(1, np.float32))
    scale.forall(n)(x, 2.0)
    partial_sums[1, 128](x, sums, n, rank, RANKS)
    mine = sum(1 for i in range(n) if i // 128 % RANKS == rank)
    assert sums.copy_to_host()[0] == 2 * mine


if __name__ == "__main__":
    if len(sys.argv) > 1:
        two_processes.one_process(f"rank {sys.argv[1]}", launch_and_check, [partial_sums, scale])
    else:
        with tempfile.TemporaryDirectory() as directory:
            environment = {**os.environ, "NUMBA_KCACHE_DIR": directory}
            commands = [[sys.executable, __file__, str(rank)] for rank in range(RANKS)]
            processes = [subprocess.Popen(command, env=environment) for command in commands]
            codes = [process.wait() for process in processes]
            assert not any(codes), f"the ranks ended with {codes}"
            info = numba_kcache.KernelCache(directory).info()
        print(f"the job: {info.compiles} compiles, {info.hits} hits, {info.waited} of them waited for")
        assert (info.compiles, info.hits) == (2, 2 * RANKS - 2), "each kernel is compiled once, by any of the ranks"
