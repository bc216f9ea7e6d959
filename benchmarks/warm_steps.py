"""Where does a warm first launch go, step by step, beside the least that could be done; and where a whole process?

Method      Each sample is a fresh process that launches one cached kernel and checks it; samples of the systems
            alternate. A floor reads a bare cubin and does nothing but load, find, pack, launch and synchronise, through
            cuda.bindings, or through Numba's driver layer as we have to where the program imports Numba ("no Numba":
            where it does not). "first" starts after imports, decoration and context creation. The steps of ours are
            taken in processes of their own, where each named function is timed without those that it calls: their sum
            is more than "first", so that shares count. The parts of a process are times between points of it; "python"
            is up to the first statement, "end" from the result on. CUDA_CACHE_DISABLE=1 keeps the driver's own cache
            out; our bytecode is compiled before, as pip does it.
Shows not   A cold page cache, a busy node, a network file system; kernels that include headers, or are large.
"""

from __future__ import annotations

import argparse
import compileall
import ctypes
import importlib
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

BEGIN = time.time()
SOURCE = r"""
extern "C" __global__ void saxpy(float a, const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}"""
N = 1 << 16
ROOT = Path(__file__).resolve().parent.parent

FLOOR = "floor: cuModuleLoadData"
"""What the others are multiples of."""

Clock = Callable[[str], None]

_PACKAGE = "numba_kcache."
SHARED_STEPS = {
    "current device": [("launch.loader", "current_device")],
    "hit: events, counts": [("resolver.Resolver", "_hit")],
    "read the entry": [("store.disk.DiskStore", "get")],
    "decode the artifact": [("resolver.Resolver", "_artifact")],
    "load the module": [("launch.loader._Module", "__init__")],
    "find the function": [("launch.loader._Module", "kernel")],
    "load: the rest": [("launch.loader.Loader", "load")],
    "limits of the function": [("launch.loader.LoadedKernel", "limits")],
    "make the launcher": [("launch.arguments.Launcher", "__init__")],
    "bind": [("launch.arguments.Launcher", "bind")],
    "pack": [("launch.arguments.Launcher", "_packed")],
    "cuLaunchKernel": [("launch.arguments.Launcher", "launch_kernel")],
    "launch: the rest": [("launch.arguments.Launcher", "_slow")],
}
STEPS = {
    "source": {
        "ask for the source": [("kernel.CachedKernel", "_source")],
        "make the request": [("jobs", "source_job")],
        "environment": [("settings", "variables")],
        "derive the key": [("keys.components", "derive")],
        "look up: the rest": [("resolver.Resolver", "resolve"), ("kernel.CachedKernel", "_resolve_ahead")],
        "read the arguments": [("launch.slots.ValueSlot", "settle"), ("launch.pointers.PointerSlot", "settle")],
        **SHARED_STEPS,
    },
    "numba": {
        "types of the arguments": [("launch.numba_dispatcher", "types_of")],
        "fingerprint": [("numba_jobs", "read_function")],
        "make the request": [("numba_jobs", "numba_job")],
        "Numba's settings": [("inputs.code_environment", "code_environment")],
        "derive the key": [("keys.components", "derive")],
        "look up: the rest": [("numba_cache.DispatcherCache", "_resolve")],
        "slots of the arguments": [("launch.numba_arguments", "slots_of"), ("launch.numba_abi", "lay_out")],
        **SHARED_STEPS,
    },
}
"""What each step is called, and the functions that do it: module, or class, and name."""


class Stopwatch:
    """Times the functions of steps, each without the others that it calls."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner: list[float] = []

    def watch(self, steps: dict[str, list[tuple[str, str]]]) -> None:
        """Replace each function by one that is timed, wherever a module of ours has it under its name."""
        for label, places in steps.items():
            for home, name in places:
                owner = _named(home)
                function = getattr(owner, name)
                timed = self._timed(label, function)
                holders = [module for module in list(sys.modules.values()) if getattr(module, name, None) is function]
                for holder in [owner, *holders]:
                    setattr(holder, name, timed)

    def _timed(self, label: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **more: Any) -> Any:
            self._inner.append(0.0)
            start = time.perf_counter()
            try:
                return function(*arguments, **more)
            finally:
                took = time.perf_counter() - start
                self.seconds[label] = self.seconds.get(label, 0.0) + took - self._inner.pop()
                if self._inner:
                    self._inner[-1] += took

        return timed


def _named(home: str) -> Any:
    module, _, last = (_PACKAGE + home).rpartition(".")
    if last[:1].isupper() or last.startswith("_M"):
        return getattr(importlib.import_module(module), last)
    return importlib.import_module(_PACKAGE + home)


def source_child(clock: Clock, *, has_steps: bool) -> dict[str, float]:
    import numpy as np

    clock("numpy")
    saxpy = source_kernel(clock)
    from numba import cuda

    clock("numba.cuda")
    x, y = cuda.to_device(np.ones(N, np.float32)), cuda.to_device(np.ones(N, np.float32))
    cuda.synchronize()
    steps = launch(clock, saxpy, (2.0, x, y, N), cuda.synchronize, STEPS["source"] if has_steps else {})
    _check(y)
    Path(os.environ["KC_BENCH_DIR"], "saxpy.cubin").write_bytes(saxpy.cubin())
    return steps


def lent_child(clock: Clock, *, has_steps: bool) -> dict[str, float]:
    """The same where nothing imports Numba."""
    from cuda.bindings import driver

    clock("cuda.bindings")
    saxpy = source_kernel(clock)
    host, x, y = bare_arrays(driver)
    arguments = (2.0, Lent(x), Lent(y), N)
    steps = launch(clock, saxpy, arguments, driver.cuCtxSynchronize, STEPS["source"] if has_steps else {})
    driver.cuMemcpyDtoH(ctypes.addressof(host), y, 4 * N)
    _check(list(host))
    assert "numba.cuda" not in sys.modules
    return steps


class Lent:
    """Memory of the device that belongs to no package's arrays."""

    def __init__(self, address: int) -> None:
        self.__cuda_array_interface__ = {"shape": (N,), "typestr": "<f4", "data": (address, False), "version": 3}


def source_kernel(clock: Clock) -> Any:
    from numba_kcache import cached_kernel

    @cached_kernel(arch="auto")
    def saxpy():
        return SOURCE

    clock("numba_kcache, decoration")
    return saxpy


def numba_child(clock: Clock, *, has_steps: bool) -> dict[str, float]:
    import warnings

    warnings.simplefilter("ignore")
    import numpy as np

    clock("numpy")
    from numba import cuda

    clock("numba.cuda")
    from numba_kcache import cached_kernel

    @cached_kernel
    def saxpy(a, x, y):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        if i < x.size:
            y[i] = a * x[i] + y[i]

    clock("numba_kcache, decoration")
    x, y = cuda.to_device(np.ones(N, np.float32)), cuda.to_device(np.ones(N, np.float32))
    cuda.synchronize()
    steps = launch(clock, saxpy, (2.0, x, y), cuda.synchronize, STEPS["numba"] if has_steps else {})
    _check(y)
    return steps


def launch(
    clock: Clock,
    kernel: Any,
    arguments: tuple[Any, ...],
    synchronize: Callable[[], object],
    steps: dict[str, list[tuple[str, str]]],
) -> dict[str, float]:
    """The first launch, and the seconds of each of its steps; "other" is what no step claims."""
    stopwatch = Stopwatch()
    stopwatch.watch(steps)
    clock("context, arrays")
    start = time.perf_counter()
    kernel[N // 256, 256](*arguments)
    queued = time.perf_counter()
    synchronize()
    first = time.perf_counter() - start
    clock("first launch")
    import numba_kcache

    compiles = numba_kcache.info("process").compiles
    if not steps:
        return {"first": first, "compiles": compiles}
    found = {**stopwatch.seconds, "synchronise": first - (queued - start)}
    return {**found, "other": first - sum(found.values()), "compiles": compiles}


def bare_arrays(driver: Any) -> tuple[Any, int, int]:
    """A context, ones on the host, and their copies on the device."""
    driver.cuInit(0)
    _, device = driver.cuDeviceGet(0)
    _, context = driver.cuDevicePrimaryCtxRetain(device)
    driver.cuCtxSetCurrent(context)
    host = (ctypes.c_float * N)(*[1.0] * N)
    (_, x), (_, y) = driver.cuMemAlloc(4 * N), driver.cuMemAlloc(4 * N)
    for pointer in (x, y):
        driver.cuMemcpyHtoD(pointer, ctypes.addressof(host), 4 * N)
    driver.cuCtxSynchronize()
    return host, int(x), int(y)


def floor_child(clock: Clock, *, library: bool) -> dict[str, float]:
    from cuda.bindings import driver

    clock("cuda.bindings")
    host, x, y = bare_arrays(driver)
    path = os.path.join(os.environ["KC_BENCH_DIR"], "saxpy.cubin")
    clock("context, arrays")
    times = [time.perf_counter()]
    with open(path, "rb") as file:
        cubin = file.read()
    times.append(time.perf_counter())
    if library:
        _, module = driver.cuLibraryLoadData(cubin, [], [], 0, [], [], 0)
    else:
        _, module = driver.cuModuleLoadData(cubin)
    times.append(time.perf_counter())
    if library:
        _, kernel = driver.cuLibraryGetKernel(module, b"saxpy")
        _, function = driver.cuKernelGetFunction(kernel)
    else:
        _, function = driver.cuModuleGetFunction(module, b"saxpy")
    finish(times, driver, function, x, y, driver.cuCtxSynchronize)
    clock("first launch")
    driver.cuMemcpyDtoH(ctypes.addressof(host), y, 4 * N)
    _check(list(host))
    return _floor_steps(times)


def numba_floor_child(clock: Clock) -> dict[str, float]:
    import numpy as np

    clock("numpy")
    from numba import cuda

    clock("numba.cuda")
    from cuda.bindings import driver
    from cuda.core import ObjectCode
    from numba.cuda.cudadrv import devices

    x, y = cuda.to_device(np.ones(N, np.float32)), cuda.to_device(np.ones(N, np.float32))
    cuda.synchronize()
    path = os.path.join(os.environ["KC_BENCH_DIR"], "saxpy.cubin")
    clock("context, arrays")
    times = [time.perf_counter()]
    with open(path, "rb") as file:
        cubin = file.read()
    times.append(time.perf_counter())
    module = devices.get_context().create_module_image(ObjectCode.from_cubin(cubin))
    times.append(time.perf_counter())
    _, kernel = driver.cuLibraryGetKernel(module.handle, b"saxpy")
    _, function = driver.cuKernelGetFunction(kernel)
    addresses = (each.gpu_data.device_ctypes_pointer.value for each in (x, y))
    finish(times, driver, function, *addresses, cuda.synchronize)
    clock("first launch")
    _check(y)
    return _floor_steps(times)


def finish(times: list[float], driver: Any, function: Any, x: int, y: int, synchronize: Callable[[], object]) -> None:
    """Pack, launch, synchronise."""
    times.append(time.perf_counter())
    memory = ctypes.create_string_buffer(64)
    base = ctypes.addressof(memory)
    struct.pack_into("=f4xQQi4x4Q", memory, 0, 2.0, x, y, N, base, base + 8, base + 16, base + 24)
    times.append(time.perf_counter())
    driver.cuLaunchKernel(function, N // 256, 1, 1, 256, 1, 1, 0, driver.CUstream(0), base + 32, 0)
    times.append(time.perf_counter())
    synchronize()
    times.append(time.perf_counter())


def _floor_steps(times: list[float]) -> dict[str, float]:
    names = ("read the file", "load the module", "find the function", "pack", "cuLaunchKernel", "synchronise")
    steps = {name: after - before for name, (before, after) in zip(names, pairwise(times), strict=True)}
    return {**steps, "first": times[-1] - times[0]}


def cupy_child(clock: Clock) -> dict[str, float]:
    import numpy as np

    clock("numpy")
    import cupy

    clock("cupy")
    saxpy = cupy.RawKernel(SOURCE, "saxpy", backend="nvrtc")
    x, y = cupy.ones(N, cupy.float32), cupy.ones(N, cupy.float32)
    cupy.cuda.Device().synchronize()
    clock("context, arrays")
    start = time.perf_counter()
    saxpy((N // 256,), (256,), (np.float32(2.0), x, y, np.int32(N)))
    cupy.cuda.Device().synchronize()
    first = time.perf_counter() - start
    clock("first launch")
    _check(y)
    return {"first": first}


def _check(values: Any) -> None:
    """On a GPU every element is 3; under the tests' fake driver, where no kernel runs, it is what it was."""
    assert {float(values[0]), float(values[N - 1])} <= ({1.0} if os.environ.get("KC_FAKE_DEVICES") else {3.0})


CHILDREN: dict[str, Callable[[Clock], dict[str, float]]] = {
    "numba_kcache, CUDA C++": lambda clock: source_child(clock, has_steps=False),
    "numba_kcache, CUDA C++, no Numba": lambda clock: lent_child(clock, has_steps=False),
    "numba_kcache, Numba kernel": lambda clock: numba_child(clock, has_steps=False),
    "steps of CUDA C++, no Numba": lambda clock: lent_child(clock, has_steps=True),
    "steps of CUDA C++": lambda clock: source_child(clock, has_steps=True),
    "steps of a Numba kernel": lambda clock: numba_child(clock, has_steps=True),
    FLOOR: lambda clock: floor_child(clock, library=False),
    "floor: cuLibraryLoadData": lambda clock: floor_child(clock, library=True),
    "floor: Numba's driver layer": numba_floor_child,
    "CuPy RawKernel": cupy_child,
}


def child(system: str, started: float) -> None:
    points = [("python", BEGIN - started)]
    last = [time.perf_counter()]

    def clock(name: str) -> None:
        now = time.perf_counter()
        points.append((name, now - last[0]))
        last[0] = time.perf_counter()

    steps = CHILDREN[system](clock)
    print(json.dumps({"steps": steps, "process": dict(points), "end": time.time()}))


def sample(system: str, directory: Path) -> dict[str, dict[str, float]] | None:
    """One fresh process: its steps and its parts; None where the system cannot run here."""
    environment = {**os.environ, "CUDA_CACHE_DISABLE": "1", "KC_BENCH_DIR": str(directory)}
    environment |= {"NUMBA_KCACHE_DIR": str(directory / "ours"), "CUPY_CACHE_DIR": str(directory / "cupy")}
    start = time.time()
    command = [sys.executable, __file__, "--child", system, "--started", repr(start)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"{system}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    found = json.loads(done.stdout.strip().splitlines()[-1])
    process: dict[str, float] = found["process"]
    process["end"] = time.time() - found["end"]
    process["all"] = time.time() - start
    return {"steps": found["steps"], "process": process}


def measure(rounds: int) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Seconds by system, "steps" or "process", and name."""
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    directory = Path(tempfile.mkdtemp())
    for number in range(-2, rounds):  # before the first: compiled, then led to by its hints
        for system in CHILDREN:
            result = None if number > -2 and system not in found else sample(system, directory)
            if result is None:
                continue
            rows = found.setdefault(system, {"steps": {}, "process": {}})
            if number < 0:
                continue
            assert not result["steps"].pop("compiles", 0), f"{system} compiled"
            for kind, values in result.items():
                for name, value in values.items():
                    rows[kind].setdefault(name, []).append(value)
    shutil.rmtree(directory, ignore_errors=True)
    return found


def show(samples: dict[str, dict[str, dict[str, list[float]]]]) -> None:
    for kind, unit, factor in (("steps", "us", 1e6), ("process", "ms", 1e3)):
        for system, rows in samples.items():
            named = rows[kind]
            if kind == "process" and system.startswith("steps"):
                continue  # the same process as without them
            medians = {name: statistics.median(values) for name, values in named.items()}
            whole = medians.get("first") or medians.get("all") or sum(medians.values())
            print(f"\n{system}: {kind} in {unit}, median (lowest to highest), share")
            for name, values in named.items():
                low, high, middle = min(values) * factor, max(values) * factor, medians[name] * factor
                print(f"  {name:26} {middle:10.1f} ({low:.1f}-{high:.1f}) {medians[name] / whole:6.1%}")
    firsts = {system: rows["steps"]["first"] for system, rows in samples.items() if "first" in rows["steps"]}
    floor = statistics.median(firsts[FLOOR])
    print()
    for system, times in firsts.items():
        middle = statistics.median(times)
        print(f"{system:28} first {middle * 1e6:8.1f} us, {middle / floor:5.2f} of the floor")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--child", choices=CHILDREN)
    parser.add_argument("--started", type=float, default=BEGIN)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child, arguments.started)
        return
    from header import machine_header, write_result

    compileall.compile_dir(str(ROOT / "numba_kcache"), quiet=2)
    samples = measure(arguments.rounds)
    show(samples)
    if arguments.json:
        write_result(arguments.json, "warm_steps", machine_header(), samples)


if __name__ == "__main__":
    main()
