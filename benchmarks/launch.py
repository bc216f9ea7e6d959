"""How much host time does one asynchronous launch take, by number of arguments, compared with other launchers?

Method      A kernel that does nothing (its condition is never true) takes 0 to 16 arguments, half of them float32
            arrays, half scalars. Each system launches it in batches on one stream; the device is synchronised between
            batches, outside the measurement. Batches of the systems alternate, so that disturbances of the machine
            affect all of them. A sample is the mean time of a launch in one batch; the table shows medians. "bare" is
            cuLaunchKernel through cuda.bindings with all parameters packed before. Systems that check arguments check
            all of them. The rows "Numba not imported" are measured in one process that never imports numba.cuda.
            `--packing` needs no device: a function that does nothing replaces the driver's launch.
Not shown   Latency until the kernel runs; full queues; other processes on the device.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

COUNTS = (0, 1, 2, 4, 8, 16)
LETTERS = "abcdefgh"
_kept: list[Any] = []  # objects of which a launch gets only the address: they have to stay alive
System = Callable[[int], Callable[[], Any]]
"""Makes, for a number of arguments, a function that launches the kernel once; raises if the system cannot run here."""


def source(arguments: int) -> str:
    """CUDA C++ of the kernel: pointers first, then floats."""
    half = arguments // 2
    pointers = [f"float *p{letter}" for letter in LETTERS[:half]]
    scalars = [f"float s{letter}" for letter in LETTERS[: arguments - half]]
    uses = "".join(f"p{letter}[0] = s{letter};" for letter in LETTERS[:half])
    return f'extern "C" __global__ void k({", ".join(pointers + scalars)}) {{ if (clock64() == 0) {{ {uses} }} }}'


def numba_arrays(arguments: int) -> list[Any]:
    import numpy as np
    from numba import cuda

    return [cuda.to_device(np.ones(64, np.float32)) for _ in range(arguments // 2)]


def cupy_arrays(arguments: int) -> list[Any]:
    import cupy

    return [cupy.ones(64, cupy.float32) for _ in range(arguments // 2)]


def driver_arrays(arguments: int) -> list[Any]:
    """Memory that the driver allocates, in the primary context."""
    from cuda.bindings import driver
    from first_launch import DriverArray

    driver.cuInit(0)
    _, device = driver.cuDeviceGet(0)
    _, context = driver.cuDevicePrimaryCtxRetain(device)
    driver.cuCtxSetCurrent(context)
    return [DriverArray(int(driver.cuMemAlloc(1 << 16)[1])) for _ in range(arguments // 2)]


def tensors(arguments: int) -> list[Any]:
    import torch

    return [torch.ones(64, device="cuda") for _ in range(arguments // 2)]


def ours(arrays: Callable[[int], list[Any]]) -> System:
    def make(arguments: int) -> Callable[[], Any]:
        from numba_kcache import cached_kernel

        kernel, values = cached_kernel(source(arguments), name="k"), arrays(arguments)
        operands = (*values, *[2.0] * (arguments - len(values)))
        return lambda: kernel[1, 32](*operands)

    return make


def ours_new_grid(arguments: int) -> Callable[[], Any]:
    from numba_kcache import cached_kernel

    kernel, values, grids = cached_kernel(source(arguments), name="k"), numba_arrays(arguments), count(1)
    scalars = [2.0] * (arguments - len(values))
    return lambda: kernel[next(grids), 32](*values, *scalars)


def void_pointers(arguments: int) -> list[Any]:
    arrays = numba_arrays(arguments)
    _kept.extend(arrays)
    return [ctypes.c_void_p(each.device_ctypes_pointer.value) for each in arrays]


class Exporter:
    """An array with no interface but DLPack, whose methods are those of a tensor."""

    def __init__(self, tensor: Any) -> None:
        self.__dlpack__, self.__dlpack_device__ = tensor.__dlpack__, tensor.__dlpack_device__


def exporters(arguments: int) -> list[Any]:
    return [Exporter(each) for each in cupy_arrays(arguments)]


def only_export(arguments: int) -> Callable[[], Any]:
    """The DLPack exports alone, without a launch."""
    arrays = cupy_arrays(arguments)

    def export() -> None:
        for each in arrays:
            each.__dlpack__(stream=1, max_version=(1, 0))

    return export


def bare(arrays: Callable[[int], list[Any]]) -> System:
    def make(arguments: int) -> Callable[[], Any]:
        from cuda.bindings import driver

        from numba_kcache import cached_kernel

        kernel, values = cached_kernel(source(arguments), name="k"), arrays(arguments)
        scalars = [2.0] * (arguments - len(values))
        kernel[1, 32](*values, *scalars)
        launcher = next(iter(kernel._on_device.values()))[0]
        memory, address = launcher.layout.new_buffer()
        pointers = [each.__cuda_array_interface__["data"][0] for each in values]
        launcher.pack(memory, 0, *pointers, *scalars)
        _kept.extend((kernel, memory, *values))
        function, stream = driver.CUfunction(launcher.function), driver.CUstream(0)
        launch = driver.cuLaunchKernel
        return partial(launch, function, 1, 1, 1, 32, 1, 1, 0, stream, address, 0)

    return make


def cuda_core(arguments: int) -> Callable[[], Any]:
    import numpy as np
    from cuda.core import Device, LaunchConfig, Program, ProgramOptions, Stream, launch

    device = Device()
    device.set_current()
    kernel = (
        Program(source(arguments), "c++", ProgramOptions(arch=f"sm_{device.arch}")).compile("cubin").get_kernel("k")
    )
    stream, config = Stream.from_handle(0), LaunchConfig(grid=1, block=32)
    values = numba_arrays(arguments)
    _kept.extend(values)
    passed = [each.device_ctypes_pointer.value for each in values] + [np.float32(2)] * (arguments - len(values))
    return partial(launch, stream, config, kernel, *passed)


def cupy_raw(arguments: int) -> Callable[[], Any]:
    import cupy
    import numpy as np

    kernel, values = cupy.RawKernel(source(arguments), "k"), cupy_arrays(arguments)
    passed = (*values, *[np.float32(2)] * (arguments - len(values)))
    return partial(kernel, (1,), (32,), passed)


def numba_function(arguments: int) -> Any:
    """The same kernel as a Python function."""
    from numba import cuda

    half = arguments // 2
    names = [f"p{letter}" for letter in LETTERS[:half]] + [f"s{letter}" for letter in LETTERS[: arguments - half]]
    body = "".join(f"\n        p{letter}[0] = s{letter}" for letter in LETTERS[:half]) or "\n        pass"
    scope: dict[str, Any] = {"cuda": cuda}
    exec(f"def k({', '.join(names)}):\n    if cuda.threadIdx.x > 2000:{body}\n", scope)
    return scope["k"]


def numba_jit(arguments: int) -> Callable[[], Any]:
    from numba import cuda

    launch, values = cuda.jit(numba_function(arguments))[1, 32], numba_arrays(arguments)
    scalars = [2.0] * (arguments - len(values))
    return partial(launch, *values, *scalars)


def ours_numba(arrays: Callable[[int], list[Any]]) -> System:
    def make(arguments: int) -> Callable[[], Any]:
        from numba_kcache import cached_kernel

        kernel, values = cached_kernel(numba_function(arguments), kind="numba"), arrays(arguments)
        operands = (*values, *[2.0] * (arguments - len(values)))
        return lambda: kernel[1, 32](*operands)

    return make


def ours_numba_new_grid(arguments: int) -> Callable[[], Any]:
    from numba_kcache import cached_kernel

    kernel, values = cached_kernel(numba_function(arguments), kind="numba"), numba_arrays(arguments)
    scalars, grids = [2.0] * (arguments - len(values)), count(1)
    return lambda: kernel[next(grids), 32](*values, *scalars)


def triton_jit(arguments: int) -> Callable[[], Any]:
    half = arguments // 2
    names = [f"p{letter}" for letter in LETTERS[:half]] + [f"s{letter}" for letter in LETTERS[: arguments - half]]
    body = "".join(f"        tl.store(p{letter}, s{letter})\n" for letter in LETTERS[:half]) or "        pass\n"
    text = f"def k({', '.join(names)}):\n    if tl.program_id(0) > 2000:\n{body}"
    with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as file:  # Triton reads the source from its file
        file.write(f"import triton\nimport triton.language as tl\n\n\n@triton.jit\n{text}")
    try:
        spec: Any = importlib.util.spec_from_file_location(f"triton_{arguments}", file.name)
        module: Any = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        kernel, values = module.k, tensors(arguments)
        _kept.append(module)
        scalars = [2.0 + index for index in range(arguments - half)]  # Triton compiles a 1 into the kernel
        launch = partial(kernel[(1,)], *values, *scalars)
        launch()
    finally:
        os.unlink(file.name)
    return launch


def torch_compile_kernel(arguments: int) -> Callable[[], Any]:
    import torch

    kernel = torch.cuda._compile_kernel(source(arguments), "k")
    values = tensors(arguments)
    scalars = [2.0] * (arguments - len(values))
    return partial(kernel, (1, 1, 1), (32, 1, 1), (*values, *scalars))


SYSTEMS: dict[str, System] = {
    "bare cuLaunchKernel, packed before": bare(numba_arrays),
    "numba_kcache, Numba arrays": ours(numba_arrays),
    "numba_kcache, Numba arrays, a new grid": ours_new_grid,
    "numba_kcache, CuPy arrays": ours(cupy_arrays),
    "numba_kcache, PyTorch tensors": ours(tensors),
    "numba_kcache, ctypes.c_void_p": ours(void_pointers),
    "numba_kcache, any array interface": ours(driver_arrays),
    "numba_kcache, DLPack alone, of CuPy": ours(exporters),
    "__dlpack__ of CuPy alone": only_export,
    "cuda.core launch, config built before": cuda_core,
    "CuPy RawKernel, CuPy arrays": cupy_raw,
    "numba_kcache, Numba-typed, Numba arrays": ours_numba(numba_arrays),
    "numba_kcache, Numba-typed, CuPy arrays": ours_numba(cupy_arrays),
    "numba_kcache, Numba-typed, PyTorch tensors": ours_numba(tensors),
    "numba_kcache, Numba-typed, a new grid": ours_numba_new_grid,
    "Numba cuda.jit, Numba arrays": numba_jit,
    "Triton, PyTorch tensors": triton_jit,
    "torch _compile_kernel, tensors": torch_compile_kernel,
}
WITHOUT_NUMBA: dict[str, System] = {
    "bare cuLaunchKernel, Numba not imported": bare(driver_arrays),
    "numba_kcache, memory of no package, Numba not imported": ours(driver_arrays),
    "numba_kcache, CuPy arrays, Numba not imported": ours(cupy_arrays),
    "CuPy RawKernel, CuPy arrays, Numba not imported": cupy_raw,
}


def packing(arguments: int) -> Callable[[], Any]:
    """A launch with all checks on a driver that does nothing: what this package itself costs."""
    launch, values = _stub_kernel(arguments)
    return partial(launch, *values, *[2.0] * (arguments - len(values)))


def _stub_kernel(arguments: int) -> tuple[Callable[..., None], list[Any]]:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from numba_kcache.model import Parameter
    from tests.support.launching import SHAPE, Kernel, Numba

    half = arguments // 2
    pointers = [Parameter(8 * index, 8, "*f4", "float*", f"p{index}") for index in range(half)]
    scalars = [Parameter(8 * half + 4 * index, 4, "f4", "float", f"s{index}") for index in range(arguments - half)]
    kernel, numba = Kernel((*pointers, *scalars), function=0), Numba()
    _kept.append(numba)
    nothing = ctypes.cast(ctypes.CDLL(None).abs, ctypes.c_void_p).value or 0  # calls abs(function), and function is 0
    kernel.driver.addresses["cuLaunchKernel"] = nothing
    arrays = [numba.array(4096 * (index + 1)) for index in range(half)]
    kernel.bind(native=True)(*arrays, *[2.0] * (arguments - half))
    return kernel.launcher.bind(SHAPE), [*arrays]


STUBS: dict[str, System] = {"numba_kcache on a driver that does nothing": packing}


def measure(systems: dict[str, System], batches: int, launches: int) -> dict[str, dict[int, list[float]]]:
    """Samples in microseconds by system and number of arguments; systems that cannot run here are left out."""
    found: dict[str, dict[int, list[float]]] = {name: {} for name in systems}
    for arguments in COUNTS:
        ready = {}
        for name, make in systems.items():
            try:
                ready[name] = make(arguments)
                for _ in range(50):
                    ready[name]()
            except Exception as error:  # a peer that is missing or refuses is reported and left out
                ready.pop(name, None)
                print(f"{name}, {arguments} arguments: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
        for _ in range(batches):
            for name, launch in ready.items():
                found[name].setdefault(arguments, []).append(_batch(launch, launches))
    return {name: by_count for name, by_count in found.items() if by_count}


def apart(batches: int, launches: int) -> dict[str, dict[int, list[float]]]:
    """Measure without Numba in a separate process; if it fails, print that and return no samples."""
    words = [__file__, "--without-numba", "--batches", str(batches), "--launches", str(launches)]
    done = subprocess.run([sys.executable, *words], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        print(f"--without-numba: failed with {done.returncode}", file=sys.stderr)
        return {}
    found = json.loads(done.stdout.splitlines()[-1])
    return {name: {int(count): times for count, times in by_count.items()} for name, by_count in found.items()}


def _batch(launch: Callable[[], Any], launches: int) -> float:
    start = time.perf_counter_ns()
    for _ in range(launches):
        launch()
    spent = time.perf_counter_ns() - start
    _synchronize()
    return spent / launches / 1e3


def _synchronize() -> None:
    from cuda.bindings import driver

    try:
        driver.cuCtxSynchronize()
    except RuntimeError:  # no driver here: --packing
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packing", action="store_true", help="without a device: what checks and packing cost")
    parser.add_argument("--without-numba", action="store_true", help="only the rows without Numba, as JSON")
    parser.add_argument("--batches", type=int, default=41)
    parser.add_argument("--launches", type=int, default=300)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.without_numba:
        found = measure(WITHOUT_NUMBA, arguments.batches, arguments.launches)
        assert "numba.cuda" not in sys.modules
        print(json.dumps(found))
        return
    from header import Result

    result = Result(arguments.json, "launch_packing" if arguments.packing else "launch")
    samples = measure(STUBS if arguments.packing else SYSTEMS, arguments.batches, arguments.launches)
    result.write(samples)
    if not arguments.packing:
        samples |= apart(arguments.batches, arguments.launches)
        result.write(samples)
    print(f"{'median us of a launch with arguments:':42}", "".join(f"{each:9}" for each in COUNTS))
    for name, by_count in samples.items():
        cells = (f"{statistics.median(by_count[each]):9.2f}" if each in by_count else f"{'-':>9}" for each in COUNTS)
        print(f"{name:42}", "".join(cells))


if __name__ == "__main__":
    main()
