"""How much host time does one asynchronous launch take, by number of arguments, compared with other launchers?

Method      A kernel that does nothing takes 0 to 16 arguments, half of them float32 arrays, half scalars. Each system
            launches it in 41 batches of 300 on one stream, the batches of the systems alternate, and the device is
            synchronised between them, outside the measurement. A sample is the mean time of a launch in one batch.
            "bare" is cuLaunchKernel through cuda.bindings with all parameters packed before. Systems that check
            arguments check all of them. The rows "Numba not imported" are measured in one process that never imports
            numba.cuda.
Not shown   Latency until the kernel runs; full queues; other processes on the device.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import numpy as np
from harness import Arguments, Result, run, say, temporary_folders
from programs import LIBRARIES, Launch, imported

COUNTS = (0, 1, 2, 4, 8, 16)
LETTERS = "abcdefgh"
SIZE = 64
_kept: list[Any] = []  # objects of which a launch gets only the address: they have to stay alive
System = Callable[[int], Launch]
"""Makes, for a number of arguments, a function that launches the kernel once; raises if the system cannot run here."""


def kernel_text(arguments: int, store: str, array: str = "{}", scalar: str = "{}") -> tuple[str, str]:
    """The parameters of the kernel, arrays before scalars, and its statements: each stores a scalar in an array."""
    half = arguments // 2
    arrays, scalars = ([f"{kind}{letter}" for letter in LETTERS] for kind in "ps")
    parameters = [*map(array.format, arrays[:half]), *map(scalar.format, scalars[: arguments - half])]
    return ", ".join(parameters), "; ".join(map(store.format, arrays[:half], scalars))


def source(arguments: int) -> str:
    """CUDA C++ of the kernel."""
    parameters, uses = kernel_text(arguments, "{}[0] = {}", "float *{}", "float {}")
    return f'extern "C" __global__ void k({parameters}) {{ if (clock64() == 0) {{ {uses}; }} }}'


def python_function(arguments: int, cuda: Any) -> Any:
    """The same kernel as a Python function."""
    parameters, uses = kernel_text(arguments, "{}[0] = {}")
    scope: dict[str, Any] = {"cuda": cuda}
    exec(f"def k({parameters}):\n    if cuda.threadIdx.x > 2000:\n        {uses or 'pass'}\n", scope)
    return scope["k"]


Arrays = Callable[[int], list[Any]]
"""Makes the arrays for a number of arguments."""


def of(library: str, wrapped: Callable[[Any], Any] = lambda array: array) -> Arrays:
    def make(arguments: int) -> list[Any]:
        ones = LIBRARIES[library]().ones
        arrays = [ones(SIZE) for _ in range(arguments // 2)]
        _kept.extend(arrays)
        return [wrapped(each) for each in arrays]

    return make


class Exporter:
    """An array with no interface but DLPack, whose methods are those of a tensor."""

    def __init__(self, tensor: Any) -> None:
        self.__dlpack__, self.__dlpack_device__ = tensor.__dlpack__, tensor.__dlpack_device__


void_pointers = of("numba", lambda array: ctypes.c_void_p(array.device_ctypes_pointer.value))


def operands(arguments: int, arrays: Arrays, scalar: Any = 2.0) -> tuple[Any, ...]:
    values = arrays(arguments)
    return (*values, *[scalar] * (arguments - len(values)))


def cached(arguments: int, is_typed: bool = False) -> Any:
    """A kernel of this package: of CUDA C++, or typed by Numba."""
    from numba_kcache import cached_kernel

    if not is_typed:
        return cached_kernel(source(arguments), name="k")
    from numba import cuda

    return cached_kernel(python_function(arguments, cuda), kind="numba")


def ours(arrays: Arrays, *, is_typed: bool = False, new_grid: bool = False) -> System:
    def make(arguments: int) -> Launch:
        kernel, values, grids = cached(arguments, is_typed), operands(arguments, arrays), count(1)
        return (lambda: kernel[next(grids), 32](*values)) if new_grid else (lambda: kernel[1, 32](*values))

    return make


def only_export(arguments: int) -> Launch:
    """The DLPack exports alone, without a launch."""
    arrays = of("cupy")(arguments)

    def export() -> None:
        for each in arrays:
            each.__dlpack__(stream=1, max_version=(1, 0))

    return export


def bare(library: str) -> System:
    """cuLaunchKernel with the function and the memory for parameters that this package uses."""

    def make(arguments: int) -> Launch:
        from cuda.bindings import driver

        kernel, values = cached(arguments), operands(arguments, of(library))
        kernel[1, 32](*values)
        launcher = next(iter(kernel._on_device.values()))[0]
        memory, address = launcher.layout.new_buffer()
        arrays, scalars = values[: arguments // 2], values[arguments // 2 :]
        launcher.pack(memory, 0, *(each.__cuda_array_interface__["data"][0] for each in arrays), *scalars)
        _kept.extend((kernel, memory, *values))
        function, stream = driver.CUfunction(launcher.function), driver.CUstream(0)
        return partial(driver.cuLaunchKernel, function, 1, 1, 1, 32, 1, 1, 0, stream, address, 0)

    return make


def cuda_core(arguments: int) -> Launch:
    from cuda.core import Device, LaunchConfig, Program, ProgramOptions, Stream, launch

    device = Device()
    device.set_current()
    code = Program(source(arguments), "c++", ProgramOptions(arch=f"sm_{device.arch}")).compile("cubin")
    passed = operands(arguments, of("numba", lambda array: array.device_ctypes_pointer.value), np.float32(2))
    return partial(launch, Stream.from_handle(0), LaunchConfig(grid=1, block=32), code.get_kernel("k"), *passed)


def cupy_raw(arguments: int) -> Launch:
    import cupy

    kernel = cupy.RawKernel(source(arguments), "k")
    return partial(kernel, (1,), (32,), operands(arguments, of("cupy"), np.float32(2)))


def numba_jit(arguments: int) -> Launch:
    from numba import cuda

    return partial(cuda.jit(python_function(arguments, cuda))[1, 32], *operands(arguments, of("numba")))


def triton_jit(arguments: int) -> Launch:
    parameters, uses = kernel_text(arguments, "tl.store({}, {})")
    text = f"def k({parameters}):\n    if tl.program_id(0) > 2000:\n        {uses or 'pass'}\n"
    with temporary_folders() as folders:
        file = folders() / f"triton_{arguments}.py"  # Triton reads the source from its file
        file.write_text(f"import triton\nimport triton.language as tl\n\n\n@triton.jit\n{text}")
        module = imported(file)
        values = [2.0 + index for index in range(arguments - arguments // 2)]  # Triton compiles a 1 into the kernel
        launch = partial(module.k[(1,)], *of("torch")(arguments), *values)
        launch()
    return launch


def torch_compile_kernel(arguments: int) -> Launch:
    import torch

    kernel = torch.cuda._compile_kernel(source(arguments), "k")
    return partial(kernel, (1, 1, 1), (32, 1, 1), operands(arguments, of("torch")))


SYSTEMS: dict[str, System] = {
    "bare cuLaunchKernel, packed before": bare("numba"),
    "numba_kcache, Numba arrays": ours(of("numba")),
    "numba_kcache, Numba arrays, a new grid": ours(of("numba"), new_grid=True),
    "numba_kcache, CuPy arrays": ours(of("cupy")),
    "numba_kcache, PyTorch tensors": ours(of("torch")),
    "numba_kcache, ctypes.c_void_p": ours(void_pointers),
    "numba_kcache, any array interface": ours(of("driver")),
    "numba_kcache, DLPack alone, of CuPy": ours(of("cupy", Exporter)),
    "__dlpack__ of CuPy alone": only_export,
    "cuda.core launch, config built before": cuda_core,
    "CuPy RawKernel, CuPy arrays": cupy_raw,
    "numba_kcache, Numba-typed, Numba arrays": ours(of("numba"), is_typed=True),
    "numba_kcache, Numba-typed, CuPy arrays": ours(of("cupy"), is_typed=True),
    "numba_kcache, Numba-typed, PyTorch tensors": ours(of("torch"), is_typed=True),
    "numba_kcache, Numba-typed, a new grid": ours(of("numba"), is_typed=True, new_grid=True),
    "Numba cuda.jit, Numba arrays": numba_jit,
    "Triton, PyTorch tensors": triton_jit,
    "torch _compile_kernel, tensors": torch_compile_kernel,
}
WITHOUT_NUMBA: dict[str, System] = {
    "bare cuLaunchKernel, Numba not imported": bare("driver"),
    "numba_kcache, memory of no package, Numba not imported": ours(of("driver")),
    "numba_kcache, CuPy arrays, Numba not imported": ours(of("cupy")),
    "CuPy RawKernel, CuPy arrays, Numba not imported": cupy_raw,
}


def samples(systems: dict[str, System], arguments: int, batches: int, launches: int) -> dict[str, list[float] | str]:
    """Microseconds of a launch in each batch, by system; the reason, as text, for a system that cannot run here."""
    from cuda.bindings import driver

    ready, found = dict[str, Launch](), dict[str, Any]()
    for name, make in systems.items():
        try:
            launch = make(arguments)
            for _ in range(50):
                launch()
            ready[name], found[name] = launch, []
        except Exception as error:  # a peer that is missing or refuses
            found[name] = f"{type(error).__name__}: {str(error)[:200]}"
    for _ in range(batches):
        for name, launch in ready.items():
            start = time.perf_counter()
            for _ in range(launches):
                launch()
            found[name].append((time.perf_counter() - start) / launches * 1e6)
            driver.cuCtxSynchronize()
    return found


GROUPS = {"Numba imported": SYSTEMS, "Numba not imported": WITHOUT_NUMBA}


def child(group: str, batches: str, launches: str) -> None:
    """Print the samples of the systems of a group, for each number of arguments."""
    say(rows={count: samples(GROUPS[group], count, int(batches), int(launches)) for count in COUNTS})
    assert GROUPS[group] is SYSTEMS or "numba.cuda" not in sys.modules


def measure(result: Result, arguments: Arguments) -> None:
    words = {group: (group, arguments.batches, arguments.launches) for group in GROUPS}
    with temporary_folders() as folders:
        for _, found in result.take_all(words, folders):
            for count, row in found["rows"].items():
                for name, times in row.items():
                    if isinstance(times, str):
                        result.leave_out(name, times)
                    else:
                        result.samples.setdefault(name, {})[count] = times
            result.write()


if __name__ == "__main__":
    run(__doc__, {"launch": (measure, child)}, batches=(41, 11), launches=(300, 300))
