"""Programs that run kernels y = a * x + number, with the arrays of each library and the kernels of each system.

A library makes arrays. A system makes kernels: it gets their numbers and yields for each a function that launches the
kernel with (a, x, y, n). Kernels are compiled or loaded by their first launch, unless a system says otherwise. So a row
of a benchmark is the name of a library and a system, and peers differ in nothing else.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import importlib.util
import os
import struct
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from harness import require, say

N = 1 << 14
GRID = N // 256, 256
WHOLE = (GRID[0], 1, 1), (GRID[1], 1, 1)

Launch = Callable[..., object]
System = Callable[[Sequence[int], str], Iterator[Launch]]
"""Makes kernels: gets their numbers, and a header that their sources include or an empty text."""


def text(number: int, header: str = "") -> str:
    """CUDA C++ of one kernel. Its cubin contains the number, as a float, and the kernel's name unchanged."""
    head = f"#include <{header}>\n" if header else ""
    value = "__half2float(__float2half(x[i]))" if header == "cuda_fp16.h" else "x[i]"
    return (
        f'{head}extern "C" __global__ void k{number}(float a, const float *x, float *y, int n) {{\n'
        "    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"
        f"    if (i < n) y[i] = a * {value} + {number}.0f;\n}}\n"
    )


def whole_text(numbers: Sequence[int], header: str) -> str:
    """One source with all kernels."""
    head = f"#include <{header}>\n" if header else ""
    return head + "".join(text(number, header).removeprefix(head) for number in numbers)


def include_dirs() -> list[str]:
    from numba_kcache.toolchain import installed_include_dirs

    return installed_include_dirs()


class Library(NamedTuple):
    """Functions of an array library: copy an array of NumPy to the device, wait, copy to the host, make ones."""

    array: Callable[[Any], Any]
    wait: Callable[[], object]
    host: Callable[[Any], Any]
    ones: Callable[[int], Any]


class DriverArray:
    """Device memory with an array interface, allocated by the driver and not by an array package."""

    def __init__(self, address: int, size: int) -> None:
        self.address, self.size = address, size
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "<f4", "data": (address, False), "version": 3}


def of_driver() -> Library:
    from cuda.bindings import driver

    def ones(size: int) -> DriverArray:
        driver.cuInit(0)
        _, device = driver.cuDeviceGet(0)
        _, context = driver.cuDevicePrimaryCtxRetain(device)
        driver.cuCtxSetCurrent(context)
        _, pointer = driver.cuMemAlloc(4 * size)
        driver.cuMemcpyHtoD(pointer, ctypes.addressof((ctypes.c_float * size)(*[1.0] * size)), 4 * size)
        return DriverArray(int(pointer), size)

    def host(array: DriverArray) -> Sequence[float]:
        copy = (ctypes.c_float * array.size)()
        driver.cuMemcpyDtoH(ctypes.addressof(copy), array.address, 4 * array.size)
        return copy

    return Library(ones, driver.cuCtxSynchronize, host, ones)


def of_numba(module: str = "numba") -> Library:
    import numpy as np

    cuda = importlib.import_module(f"{module}.cuda")
    warnings.simplefilter("ignore")
    array = cuda.to_device
    return Library(array, cuda.synchronize, lambda y: y.copy_to_host(), lambda size: array(np.ones(size, np.float32)))


def of_cupy(is_copied: bool = False) -> Library:
    import cupy
    import numpy as np

    def ones(size: int) -> Any:
        return cupy.asarray(np.ones(size, np.float32)) if is_copied else cupy.ones(size, cupy.float32)

    return Library(cupy.asarray, lambda: cupy.cuda.Device().synchronize(), cupy.asnumpy, ones)


def of_torch() -> Library:
    import torch

    def ones(size: int) -> Any:
        return torch.ones(size, device="cuda")

    return Library(lambda x: torch.from_numpy(x).cuda(), torch.cuda.synchronize, lambda y: y.cpu().numpy(), ones)


LIBRARIES: dict[str, Callable[[], Library]] = {
    "driver": of_driver,
    "numba": of_numba,
    "mlir": lambda: of_numba("numba_cuda_mlir"),
    "cupy": of_cupy,
    "cupy, copied": lambda: of_cupy(is_copied=True),
    "compute": lambda: importlib.import_module("cuda.compute") and of_cupy(),
    "torch": of_torch,
}

OfSource = Callable[[str], Callable[..., object]]
"""The returned function gets name, grid, block and operands; its first call compiles or loads the source."""


def c_numbers(operands: Sequence[Any]) -> tuple[Any, ...]:
    """The operands, with Python's numbers as float and int of C."""
    import numpy as np

    types: dict[type, Callable[[Any], Any]] = {float: np.float32, int: np.int32}
    return tuple(types[type(each)](each) if type(each) in types else each for each in operands)


def our_source(source: str, is_text: bool = False) -> Callable[..., object]:
    """This package; the source is the result of a decorated function, the usual way to write a kernel, or a text."""
    from numba_kcache import cached_kernel

    def k1() -> str:
        return source

    kernel = cached_kernel(source if is_text else k1)
    return lambda _name, grid, block, *operands: kernel[grid, block](*operands)


def our_module_source(source: str) -> Callable[..., object]:
    from numba_kcache import cached_module

    module = cached_module(source)
    return lambda name, grid, block, *operands: module[name][grid, block](*operands)


def cupy_source(source: str, is_module: bool = False) -> Callable[..., object]:
    """CuPy's RawKernel, or RawModule."""
    import cupy

    options = ("-std=c++17", *(f"-I{folder}" for folder in include_dirs())) if "#include" in source else ()
    if is_module:
        kernel_of = cupy.RawModule(code=source, options=options, backend="nvrtc").get_function
    else:
        kernel_of = cache(lambda name: cupy.RawKernel(source, name, options, backend="nvrtc"))
    return lambda name, grid, block, *operands: kernel_of(name)(grid, block, c_numbers(operands))


def core_source(source: str) -> Callable[..., object]:
    """cuda.core, whose cache refuses a source with include paths; arrays are given by their address."""
    from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch
    from cuda.core.utils import FileStreamProgramCache

    stored, device = FileStreamProgramCache(os.environ["KC_BENCH_DIR"]), Device()
    device.set_current()
    stream, folders = device.default_stream, include_dirs() if "#include" in source else None

    @cache
    def compiled() -> Any:
        options = ProgramOptions(arch=f"sm_{device.arch}", no_cache=True, include_path=folders)
        return Program(source, "c++", options=options).compile("cubin", cache=stored)

    def run(name: str, grid: Any, block: Any, *operands: Any) -> None:
        passed = (getattr(each, "address", each) for each in c_numbers(operands))
        launch(stream, LaunchConfig(grid=grid, block=block), compiled().get_kernel(name), *passed)

    return run


def torch_source(source: str) -> Callable[..., object]:
    """torch's compiler, which passes a Python float as a double and stores nothing."""
    import torch

    compiled, more = torch.cuda._compile_kernel, {"cuda_include_dirs": include_dirs()} if "#include" in source else {}
    text = source.replace("float a,", "double a,")
    return lambda name, grid, block, *operands: compiled(text, name, **more)(grid, block, operands)


def system_of(launcher: OfSource, is_module: bool = False) -> System:
    """A system that has a source for each kernel, or one source for all."""

    def system(numbers: Sequence[int], header: str = "") -> Iterator[Launch]:
        module = launcher(whole_text(numbers, header)) if is_module else None
        for number in numbers:
            yield partial(module or launcher(text(number, header)), f"k{number}", *WHOLE)

    return system


ours, our_texts = system_of(our_source), system_of(partial(our_source, is_text=True))
our_module, cupy_kernels = system_of(our_module_source, is_module=True), system_of(cupy_source)
cupy_module = system_of(partial(cupy_source, is_module=True), is_module=True)
cuda_core, torch_kernels = system_of(core_source), system_of(torch_source)


def launch_bare(driver: Any, function: Any, a: float, x: int, y: int, n: int) -> None:
    """Pack the operands and launch, without checks."""
    memory = ctypes.create_string_buffer(64)
    base = ctypes.addressof(memory)
    struct.pack_into("=f4xQQi4x4Q", memory, 0, a, x, y, n, base, base + 8, base + 16, base + 24)
    driver.cuLaunchKernel(function, GRID[0], 1, 1, GRID[1], 1, 1, 0, driver.CUstream(0), base + 32, 0)


def cubin_file(number: int) -> Path:
    """The file of a kernel's cubin."""
    return Path(os.environ["KC_BENCH_DIR"], f"k{number}.cubin")


@cache
def cubin(number: int) -> bytes:
    """The cubin of a kernel, from a file that the first process of a cache writes."""
    path = cubin_file(number)
    if not path.is_file():
        from numba_kcache import cached_kernel

        kernel, private = cached_kernel(text(number)), path.with_suffix(f".{os.getpid()}")
        kernel.compile()
        private.write_bytes(kernel.cubin())
        private.replace(path)
    return path.read_bytes()


def patched(cubin: bytes, old: int, new: int) -> bytes:
    """Turn the cubin of kernel `old` into that of kernel `new`, whose name has the same length."""
    if old == new:
        return cubin
    was, now = (struct.pack("<f", number) for number in (old, new))
    assert cubin.count(was) == 1, cubin.count(was)
    return cubin.replace(was, now).replace(f"k{old}".encode(), f"k{new}".encode())


def bare(numbers: Sequence[int], _header: str = "", is_kept: bool = True) -> Iterator[Launch]:
    """Load and launch the first kernel, and patched copies of it; one that is not kept is unloaded after its launch."""
    from cuda.bindings import driver

    for number in numbers:

        def launch(a: float, x: Any, y: Any, n: int, number: int = number) -> None:
            _, module = driver.cuModuleLoadData(patched(cubin(numbers[0]), numbers[0], number))
            _, function = driver.cuModuleGetFunction(module, f"k{number}".encode())
            launch_bare(driver, function, a, x.address, y.address, n)
            if not is_kept:
                driver.cuCtxSynchronize()
                driver.cuModuleUnload(module)

        yield launch


def bare_numba(_numbers: Sequence[int], _header: str = "") -> Iterator[Launch]:
    """Numba's driver layer, which this package must use in programs with Numba."""
    from cuda.bindings import driver
    from cuda.core import ObjectCode
    from numba.cuda.cudadrv import devices

    def launch(a: float, x: Any, y: Any, n: int) -> None:
        module = devices.get_context().create_module_image(ObjectCode.from_cubin(cubin(1)))
        _, kernel = driver.cuLibraryGetKernel(module.handle, b"k1")
        _, function = driver.cuKernelGetFunction(kernel)
        launch_bare(driver, function, a, *(each.gpu_data.device_ctypes_pointer.value for each in (x, y)), n)

    yield launch


NUMBA_BODY = """

def k{number}(a, x, y, n):
    i = cuda.grid(1)
    if i < n:
        y[i] = a * x[i] + {number}
"""
TRITON_HEAD = "import triton\nimport triton.language as tl\n"
TRITON_BODY = """

@triton.jit
def k{number}(a, x, y, n, block: tl.constexpr):
    i = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(y + i, a * tl.load(x + i, mask=i < n) + {number}, mask=i < n)
"""


def imported(path: Path) -> Any:
    """The module of a file, which Numba and Triton read again."""
    spec: Any = importlib.util.spec_from_file_location(path.stem, path)
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def generated(numbers: Sequence[int], head: str, body: str) -> list[Any]:
    """The functions of a generated file, which the first process of a cache writes."""
    path = Path(os.environ["KC_BENCH_DIR"], f"program_{numbers[0]}_{len(numbers)}.py")
    if not path.is_file():
        private = path.with_suffix(f".{os.getpid()}")
        private.write_text(head + "".join(body.format(number=number) for number in numbers))
        with contextlib.suppress(FileExistsError):  # another process was first: its times are those of the caches
            os.link(private, path)
    module = imported(path)
    return [getattr(module, f"k{number}") for number in numbers]


def k1_of(cuda: Any) -> Any:
    """Kernel 1 as a function of this file."""

    def k1(a, x, y, n):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        if i < n:
            y[i] = a * x[i] + 1

    return k1


DECORATORS: dict[str, Callable[[Any], Callable[[Any], Any]]] = {
    "ours": lambda cuda: importlib.import_module("numba_kcache").cached_kernel,
    "installed": lambda cuda: importlib.import_module("numba_kcache").install() or cuda.jit(cache=True),
    "cache": lambda cuda: cuda.jit(cache=True),
    "jit": lambda cuda: cuda.jit,
}
"""The decorator of a Python kernel: of this package, of a Numba with this package installed, with its own cache, or
alone."""


def python_kernels(how: str, module: str = "numba", function_of: Callable[[Any], Any] = k1_of) -> System:
    """A system with the `cuda` of a Numba, or of a stand-in; kernels other than number 1 are in a generated file."""

    def system(numbers: Sequence[int], _header: str = "") -> Iterator[Launch]:
        cuda = importlib.import_module(f"{module}.cuda")
        decorate, is_one = DECORATORS[how](cuda), [*numbers] == [1]
        head = f"from {module} import cuda\n"
        for function in [function_of(cuda)] if is_one else generated(numbers, head, NUMBA_BODY):
            kernel = decorate(function)
            yield lambda *operands, kernel=kernel: kernel[GRID](*operands)

    return system


our_functions, installed, numba_kernels = map(python_kernels, ("ours", "installed", "cache"))
our_mlir, mlir_kernels = (python_kernels(each, "numba_cuda_mlir") for each in ("ours", "cache"))
stand_in = python_kernels("jit", "numba_kcache")  # imports `cuda` of this package: a warm process imports no Numba


def triton_kernels(numbers: Sequence[int], _header: str = "") -> Iterator[Launch]:
    for kernel in generated(numbers, TRITON_HEAD, TRITON_BODY):
        yield lambda *operands, kernel=kernel: kernel[GRID[:1]](*operands, block=GRID[1])


def reduction(_numbers: Sequence[int], _header: str = "") -> Iterator[Launch]:
    """A sum by cuda.compute, in the first element of y."""
    import numpy as np
    from cuda import compute

    import numba_kcache

    numba_kcache.install(cuda_compute=True)
    zero = np.zeros(1, np.float32)
    plus = compute.OpKind.PLUS
    yield lambda a, x, y, n: compute.reduce_into(d_in=x, d_out=y, num_items=n, op=plus, h_init=zero)


IMPORTED = {
    ours: "cached_kernel", our_texts: "cached_kernel", our_module: "cached_module", our_functions: "cached_kernel",
    our_mlir: "cached_kernel", installed: "install", reduction: "install",
}  # fmt: skip
"""The systems of this package, with the name that each imports from it."""


class Program(NamedTuple):
    """A program: a library, a system or None for arrays alone, the number of kernels, and their header."""

    library: str
    system: System | None = None
    count: int = 1
    header: str = ""


LOADED = ("libnvrtc", "libnvvm")
"""Libraries of compilers: a process that has mapped none of them has compiled nothing."""
WITH_COMPILERS = ("cupy", "cupy, copied", "torch", "mlir", "compute")
"""Libraries of arrays that map a compiler themselves: a mapped one does not show that this package has compiled."""


def child(program: Program, later: Callable[..., Mapping[str, float]] = lambda *_: {}) -> None:
    """Launch every kernel of a program once in this process and check the last result; print the seconds of its parts,
    and what `later` measures, which gets the launches, the library and its arrays.

    `is_cold` is whether this package has compiled or the stand-in has imported a Numba, if that can be seen.
    """
    begin, last = time.time(), time.perf_counter()
    parts, measured = dict[str, float](), dict[str, float]()

    def ended(part: str) -> None:
        nonlocal last
        parts[part] = time.perf_counter() - last
        last = time.perf_counter()

    def close() -> None:
        ended("exit")
        mapped = Path("/proc/self/maps").read_text()
        has_compiled = program.library not in WITH_COMPILERS and any(name in mapped for name in LOADED)
        has_numba = program.system is stand_in and {"numba", "numba_cuda_mlir"} & sys.modules.keys()
        say(begin=begin, parts=parts, is_cold=bool(has_compiled or has_numba), later=measured)

    atexit.register(close)  # registered first, so called after all other exit handlers
    library = LIBRARIES[program.library]()
    ended("packages")
    if name := IMPORTED.get(program.system):
        getattr(importlib.import_module("numba_kcache"), name)
        ended("import")
    launches = [*program.system(range(1, program.count + 1), program.header)] if program.system else []
    if launches:
        ended("decoration")
    x, y = library.ones(N), library.ones(N)
    library.wait()
    ended("arrays")
    for launch in launches:
        launch(2.0, x, y, N)
    library.wait()
    ended("first")
    value = N if program.system is reduction else 2.0 + program.count if launches else 1.0
    require(float(library.host(y)[0]) == value)
    ended("result")
    measured |= later(launches, library, x, y)
