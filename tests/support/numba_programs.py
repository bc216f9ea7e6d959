"""Numba programs that tests start as children under the fake driver; each takes the cache's directory."""

from __future__ import annotations

KINDS = """
import enum, sys, warnings
from collections import namedtuple
import numpy as np
from numba import cuda
from numba_kcache import KernelCache, cached_kernel

warnings.simplefilter("ignore")
cache = KernelCache(sys.argv[1])

class Mode(enum.IntEnum):
    FAST = 1
    SLOW = 70000

Point = namedtuple("Point", "x y")
matrix = cuda.to_device(np.zeros((10, 6), np.float32))
record = np.zeros(3, np.dtype([("a", np.int32), ("b", np.float64)], align=True))
VALUES = {
    "int": (5, -3, 2**62), "int8": (np.int8(-1),), "int16": (np.int16(-300),), "int32": (np.int32(-70000),),
    "int64": (np.int64(-(2**40)),), "uint8": (np.uint8(255),), "uint16": (np.uint16(65535),),
    "uint32": (np.uint32(2**32 - 1),), "uint64": (np.uint64(2**64 - 1), 2**63 + 5), "bool": (True, np.bool_(False)),
    "float": (2.5, -0.0, float("inf"), np.float64(1e300)), "float32": (np.float32(1.1),),
    "float16": (np.float16(0.5), np.float16("nan")),
    "complex": (1 + 2j, np.complex128(-3j)), "complex64": (np.complex64(3 - 4j),),
    "C": (matrix, matrix[0:1], matrix[0:1, 0:1], matrix[0:0]), "F": (matrix.T,), "A": (matrix[::2, 1:3],),
    "one axis": (matrix[0], matrix[:, 0], cuda.device_array(0)), "no axis": (cuda.to_device(np.zeros(())),),
    "three axes": (cuda.to_device(np.asfortranarray(np.zeros((3, 4, 5), np.int16))),),
    "records in an array": (cuda.to_device(record),),
    "half array": (cuda.to_device(np.zeros(3, np.float16)),),
    "datetime64": (np.datetime64("2026-01-01", "ns"),), "timedelta64": (np.timedelta64(-7, "s"),),
    "enum member": (Mode.SLOW, Mode.FAST), "tuple": ((1, 2.0, np.int8(3)),), "nested": (((1, np.float32(2)), (1j,)),),
    "named tuple": (Point(np.int16(1), 2.0),), "tuple of arrays": ((matrix, 3),),
}
"""
"""Arguments of every kind that Numba launches and whose bytes are the same at each launch."""

PARITY = (
    KINDS
    + """
def echo(value, out):
    pass

ours = cached_kernel(echo, cache=cache)
own = ours if "warm" in sys.argv else cuda.jit(echo)
out = cuda.device_array(1)
for name, values in VALUES.items():
    for value in values:
        try:
            own[2, 32](value, out)
        except NotImplementedError:
            print("Numba launches no", name)
            continue
        for _ in range(6):
            ours[2, 32](value, out)
        print("launched", name)
print(cache.info("process").misses, "misses")
"""
)
"""Launch with each argument by Numba, then by `cached_kernel`, interpreted and through the compiled module; with "warm"
by that alone."""

_START = """
import sys, warnings
warnings.simplefilter("ignore")
import numpy as np
from numba import cuda
from numba_kcache import KernelCache, cached_kernel

cache = KernelCache(sys.argv[1])
"""

HOST = (
    _START
    + """
@cached_kernel(cache=cache)
def ours(x, y):
    y[0] = x[0]

own = cuda.jit(ours.py_func)
d = cuda.to_device(np.ones(8))

def copies(kernel, arguments):
    seen = []
    driver = cuda.cudadrv.driver.driver
    names = ["cuMemcpyHtoDAsync", "cuMemcpyDtoH", "cuMemcpyDtoHAsync"]
    real = {name: getattr(driver, name) for name in names}
    for name in names:
        def call(*arguments, name=name):
            seen.append(name)
            return real[name](*arguments)
        setattr(driver, name, call)
    try:
        kernel[1, 32](*arguments)
    finally:
        for name in names:
            setattr(driver, name, real[name])
    return seen

for make in (lambda h: (h, d), lambda h: (h, h), lambda h: (cuda.In(h), cuda.Out(h)), lambda h: (d, cuda.InOut(h))):
    host = np.arange(8.0)
    for _ in range(3):
        ours[1, 32](d, d)
        found, wanted = copies(ours, make(host)), copies(own, make(host))
        assert found == wanted and found, (found, wanted)
    print("same copies")
"""
)
"""Launch with host arrays in every form, by Numba and by `cached_kernel`: both make the same copies."""

POLYMORPHIC = (
    _START
    + """
@cached_kernel(cache=cache)
def kernel(x, n):
    x[0] = n

@cached_kernel(cache=cache)
def empty():
    pass

d4, d8 = cuda.to_device(np.ones(8, "f4")), cuda.to_device(np.ones(8))
launch = kernel[1, 32]
for turn in range(12):
    launch(d4, turn)
    kernel[1, 32](d8, 2.5)
    kernel[1, 32](d8, np.float32(2.5))
    launch(np.ones(3), True)
    for wrong in ((), (d4,), (d4, 1, 2)):
        try:
            kernel[1, 32](*wrong)
        except TypeError as error:
            assert "argument" in str(error)
        else:
            raise AssertionError(wrong)
    try:
        kernel.forall(8)(d4)
    except TypeError as error:
        assert "it takes 2: x, n" in str(error)
    else:
        raise AssertionError
    try:
        empty[1, 32](d4)
    except TypeError as error:
        assert "it takes 0: none" in str(error), error
    else:
        raise AssertionError
    try:
        kernel[1, 32](d4, object())
    except Exception as error:
        assert "object" in str(error), error
assert len(kernel.overloads) == 4 == len(kernel.regs_per_thread), kernel.overloads
assert cache.info().entries == 4
specialised = kernel.specialize(d4, 1)
specialised[1, 32](d4, 1)
assert specialised.specialized and cache.info().entries == 4
kernel.forall(100)(d4, 1)
kernel.forall(0)(d4, 1)
assert ".entry" in next(iter(kernel.inspect_asm().values()))
assert "define" in next(iter(kernel.inspect_llvm().values()))
import io
text = io.StringIO()
kernel.inspect_types(text)
assert "array(float32, 1d, C)" in text.getvalue()
try:
    assert set(kernel.inspect_sass()) == set(kernel.overloads)
except RuntimeError as error:  # Numba's own
    assert "nvdisasm was not found" in str(error)
print("done")
"""
)
"""Launch a kernel with arguments of many types, and read its attributes by type."""

GRIDS = (
    _START
    + """
@cached_kernel(cache=cache)
def kernel(x, n):
    x[0] = n

d4, d8 = cuda.to_device(np.ones(8, "f4")), cuda.to_device(np.ones(8))
for grid in range(1, 301):
    kernel[grid, 32](d8 if grid % 7 == 0 else d4, grid)
    if grid % 50 == 0:
        kernel[(grid, 2), 32](d4, np.float32(1))
        kernel[[grid, 3], 32](np.ones(3), 1)
for wrong in (0, 2**31, (1, 70_000)):
    try:
        kernel[wrong, 32](d4, 1)
    except ValueError as error:
        print(str(error).splitlines()[0])
assert len(kernel._bound) <= 256
cuda.current_context().reset()
kernel[5, 32](cuda.to_device(np.ones(8, "f4")), 1)
kernel[6, 32](cuda.to_device(np.ones(8, "f4")), 1)
"""
)
"""Launch with many grids, and sometimes with other types and shapes."""

RESOURCES = (
    _START
    + """
TABLE = np.arange(100.0)

@cached_kernel(cache=cache, signature="void(float64[::1])")
def kernel(x):
    table = cuda.const.array_like(TABLE)
    tile = cuda.shared.array(64, np.float64)
    tile[cuda.threadIdx.x] = table[cuda.threadIdx.x]
    cuda.syncthreads()
    x[0] = tile[cuda.threadIdx.x ^ 1]

kernel.compile("sm_90a")
(types,) = kernel.const_mem_size
assert kernel.const_mem_size[types] == 800, kernel.const_mem_size
assert kernel.shared_mem_per_block[types] == 512
assert 0 < kernel.max_threads_per_block[types] <= 1024
few, many = (kernel.max_cooperative_grid_blocks(256, shared)[types] for shared in (100_000, 0))
assert 0 < few < many == kernel.max_cooperative_grid_blocks((16, 16), signature="void(float64[::1])")
from numba_kcache import LaunchConfigError
try:
    kernel.max_cooperative_grid_blocks(4096)
except LaunchConfigError:
    print("done")
"""
)
"""Read the resources of a kernel: memory, threads, cooperative blocks."""

LIFE = (
    _START
    + """
@cached_kernel(cache=cache)
def kernel(x):
    x[0] = 1

def array():
    return cuda.to_device(np.ones(8, "f4"))

for _ in range(12):
    kernel[1, 32](array())
cache.clear()
kernel[1, 32](array())
kernel[1, 32](np.ones(3, "f4"))
assert cache.info("process").misses == 2, cache.info("process")
cuda.current_context().reset()
for _ in range(12):
    kernel[1, 32](array())
kernel[1, 32](np.ones(3, "f4"))
assert cache.info("process").misses == 2
print("done")
"""
)
"""Launch before and after `clear()` and a reset of the context."""

DEVICES = (
    _START
    + """
@cached_kernel(cache=cache)
def kernel(x):
    x[0] = 1

for turn in range(2):
    for device in (0, 1):
        cuda.select_device(device)
        kernel[1, 32](cuda.to_device(np.ones(8, "f4")))
print(*sorted({each.target for each in cache.entries()}))
"""
)
"""Launch on two devices alternately."""

OPTIONS = (
    _START
    + """
@cached_kernel(cache=cache)
def together(x):
    cuda.cg.this_grid().sync()
    x[0] = 1

@cached_kernel(cache=cache, carveout="MaxShared", launch_bounds=64)
def tiled(x):
    tile = cuda.shared.array(0, np.float32)
    tile[0] = 1
    x[0] = tile[0]

d, h = cuda.to_device(np.ones(8, "f4")), np.ones(8, "f4")
for argument in (d, h):
    together[1, 32](argument)
    tiled[1, 32, 0, 64 * 1024](argument)
"""
)
"""Launch with attributes (cooperative, carveout), with device arrays and, through Numba's dispatcher, host arrays."""

AHEAD = (
    _START
    + """
SCALE = 3
@cuda.jit(device=True)
def scaled(x):
    return x * SCALE

@cached_kernel(cache=cache, signature=["void(float32[::1], int64)", "void(float64[::1], int64)"])
def kernel(x, n):
    x[0] = scaled(x[0]) + n

if sys.argv[2] == "ahead":
    kernel.compile(arch=["sm_80", "sm_90a"])
    assert len({kernel.key("sm_80", "void(float32[::1], int64)"), kernel.key("sm_90a"), kernel.key("sm_80")}) == 2
    assert len(kernel.cubin("sm_80", "void(float64[::1], int64)")) > 1000
else:
    kernel[1, 32](cuda.to_device(np.ones(8, "f4")), 1)
    kernel[1, 32](cuda.to_device(np.ones(8)), 1)
print(cache.info("process").misses, "misses")
"""
)
"""Compile without a device, or launch with one."""

UNCACHED = (
    _START
    + """
warnings.simplefilter("always")
table = cuda.to_device(np.ones(8, "f4"))

@cached_kernel(cache=cache)
def reading(x):
    x[0] = table[0]

class Extension:
    def prepare_args(self, kind, value, stream, retr):
        return kind, value

@cached_kernel(cache=cache, extensions=[Extension()])
def extended(x):
    x[0] = 1

@cached_kernel(cache=cache, strict=True)
def refused(x):
    x[0] = table[0]

x = cuda.to_device(np.ones(8, "f4"))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(3):
        reading[1, 32](x)
        reading.forall(8)(x)
        extended[1, 32](x)
print(*(each.message for each in caught if "cached" in str(each.message)), sep="\\n")
from numba_kcache import UncacheableError
for attempt in (lambda: refused[1, 32](x), lambda: reading.compile("sm_90", "void(float32[::1])")):
    try:
        attempt()
    except UncacheableError as error:
        assert "table" in str(error)
    else:
        raise AssertionError
print("strict refuses,", cache.info().entries, "entries")
"""
)
"""Kernels that cannot be keyed: they run uncached with a warning, or are refused with `strict=True`."""

UNTRACKED = (
    _START
    + """
from pathlib import Path
text = "__device__ const char *when = __DATE__;\\n"
linked = Path(sys.argv[1], "linked.cu")
linked.write_text(text + 'extern "C" __device__ int answer(int *out) { *out = 42; return 0; }')
answer = cuda.declare_device("answer", "int32()")

@cached_kernel(cache=cache, link=[str(linked)])
def kernel(x):
    x[0] = answer()

d4, d8 = cuda.to_device(np.ones(8, "f4")), cuda.to_device(np.ones(8))
for x in (d4, d8, d4):
    kernel[1, 32](x)
kernel[1, 32](np.ones(8))
print(len(kernel.overloads), cache.info().entries)
"""
)
"""Launch a kernel whose link input uses `__DATE__`, which cannot be keyed, with two signatures."""

VOUCHED = (
    _START
    + """
class Count(int):
    pass

FACTOR, calls = Count(sys.argv[2]), []

class Extension:
    def prepare_args(self, kind, value, stream, retr):
        calls.append(kind)
        return kind, value

EXTENSION = Extension()

@cached_kernel(cache=cache, depends={FACTOR: int(FACTOR), EXTENSION: "1"}, extensions=[EXTENSION])
def kernel(x, n):
    x[0] = FACTOR * n

x = cuda.to_device(np.ones(8, "f4"))
for _ in range(12):
    kernel[1, 32](x, 1)
print(cache.info("process").misses, len(calls), cache.info().entries)
"""
)
"""Launch a kernel that can be keyed only because of its `depends=`."""

BAD = (
    _START
    + """
what, whose = sys.argv[2:4]

if what == "returns":
    def kernel(x):
        return x[0]
elif what == "typing":
    def kernel(x):
        x[0] = x.nothing
else:
    def kernel(x):
        x[0] = 1

if what == "numpy":
    del np.row_stack
launch = cached_kernel(kernel, cache=cache, kind="numba") if whose == "ours" else cuda.jit(kernel)
try:
    unsupported = {"unsupported": "text", "untyped": object(), "too large": 10**30}
    launch[1, 32](unsupported[what] if what in unsupported else cuda.to_device(np.ones(8)))
except BaseException as error:
    print(type(error).__name__, error)
    notes = getattr(error, "__notes__", [])
    assert whose != "ours" or what == "numpy" or "the Numba kernel __main__.kernel" in notes[-1]
else:
    print("launched")
"""
)
"""Kernels and arguments that Numba refuses."""
