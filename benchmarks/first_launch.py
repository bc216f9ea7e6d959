"""How long until the first result of a cached CUDA C++ kernel in a fresh process, cold and warm, beside others?

Method      Each sample is a fresh process that runs saxpy once and checks it. "first" starts after imports,
            decoration and context creation and ends when the result is synchronised; "process" starts when the parent
            starts the child. Cold: the system's own cache directory is empty; warm: it was filled by a process before.
            Our bytecode is compiled before, as pip does it. CUDA_CACHE_DISABLE=1 keeps the driver's own cache out.
            Samples of the systems alternate.
Shows not   A cold page cache, a busy node, a network file system; kernels that include headers.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SOURCE = r"""
extern "C" __global__ void saxpy(float a, const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}"""
N = 1 << 16


def child_here() -> None:
    import numpy as np

    import numba_kcache
    from numba_kcache import cached_kernel

    @cached_kernel(arch="auto")
    def saxpy():
        return SOURCE

    from numba import cuda

    x, y = cuda.to_device(np.ones(N, np.float32)), cuda.to_device(np.ones(N, np.float32))
    cuda.synchronize()
    start = time.perf_counter()
    saxpy[N // 256, 256](2.0, x, y, N)
    cuda.synchronize()
    first = time.perf_counter() - start
    assert (y.copy_to_host() == 3).all()
    info = numba_kcache.info("process")
    report(first, compiles=info.compiles, hits=info.hits)


def child_cupy() -> None:
    import cupy
    import numpy as np

    saxpy = cupy.RawKernel(SOURCE, "saxpy", backend="nvrtc")
    x, y = cupy.ones(N, cupy.float32), cupy.ones(N, cupy.float32)  # compiled or cached too: its machinery is warm
    cupy.cuda.Device().synchronize()
    start = time.perf_counter()
    saxpy((N // 256,), (256,), (np.float32(2.0), x, y, np.int32(N)))
    cupy.cuda.Device().synchronize()
    first = time.perf_counter() - start
    assert (cupy.asnumpy(y) == 3).all()
    report(first)


def child_cuda_core() -> None:
    import numpy as np
    from cuda.bindings import driver
    from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch
    from cuda.core.utils import FileStreamProgramCache

    cache = FileStreamProgramCache(os.environ["KC_BENCH_DIR"])
    device = Device()
    device.set_current()
    stream = device.create_stream()
    host = np.ones(N, np.float32)
    (_, x), (_, y) = driver.cuMemAlloc(4 * N), driver.cuMemAlloc(4 * N)
    for pointer in (x, y):
        driver.cuMemcpyHtoD(pointer, host.ctypes.data, 4 * N)
    stream.sync()
    start = time.perf_counter()
    options = ProgramOptions(arch=f"sm_{device.arch}", no_cache=True)
    code = Program(SOURCE, "c++", options=options).compile("cubin", cache=cache)
    kernel = code.get_kernel("saxpy")
    config = LaunchConfig(grid=N // 256, block=256)
    launch(stream, config, kernel, np.float32(2.0), int(x), int(y), np.int32(N))
    stream.sync()
    first = time.perf_counter() - start
    driver.cuMemcpyDtoH(host.ctypes.data, y, 4 * N)
    assert (host == 3).all()
    report(first)


def report(first_s: float, **more: object) -> None:
    print(json.dumps({"first_s": first_s, "end": time.time(), **more}))


CHILDREN = {
    "numba_kcache": child_here,
    "cupy RawKernel": child_cupy,
    "cuda.core FileStreamProgramCache": child_cuda_core,
}
VARIABLES = {"numba_kcache": "NUMBA_KCACHE_DIR", "cupy RawKernel": "CUPY_CACHE_DIR"}


def sample(system: str, directory: Path) -> dict[str, float] | None:
    """One fresh process; None where the system cannot run here."""
    environment = {**os.environ, "CUDA_CACHE_DISABLE": "1", "KC_BENCH_DIR": str(directory)}
    environment[VARIABLES.get(system, "KC_BENCH_DIR")] = str(directory)
    start = time.time()
    done = subprocess.run(
        [sys.executable, __file__, "--child", system], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        print(f"{system}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    result = json.loads(done.stdout.strip().splitlines()[-1])
    result["process_s"] = result.pop("end") - start
    return result


def measure(rounds: int) -> dict[str, dict[str, list[float]]]:
    """Samples in seconds by system and by "cold/warm first/process"."""
    found: dict[str, dict[str, list[float]]] = {}
    for _ in range(rounds):
        for system in CHILDREN:
            directory = Path(tempfile.mkdtemp())
            for state in ("cold", "warm"):
                result = sample(system, directory)
                if result is None:
                    break
                if system == "numba_kcache":
                    assert result["compiles"] == (state == "cold"), result
                for what in ("first", "process"):
                    found.setdefault(system, {}).setdefault(f"{state} {what}", []).append(result[f"{what}_s"])
            shutil.rmtree(directory, ignore_errors=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--child", choices=CHILDREN)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.child:
        CHILDREN[arguments.child]()
        return
    from header import machine_header, write_result

    compileall.compile_dir(str(Path(__file__).resolve().parent.parent / "numba_kcache"), quiet=2)
    samples = measure(arguments.rounds)
    for system, rows in samples.items():
        cells = (f"{name} {statistics.median(times) * 1e3:9.3f} ms" for name, times in rows.items())
        print(f"{system:36}", "  ".join(cells))
    if arguments.json:
        write_result(arguments.json, "first_launch", machine_header(), samples)


if __name__ == "__main__":
    main()
