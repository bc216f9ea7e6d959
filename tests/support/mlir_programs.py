"""Programs of numba-cuda-mlir that tests start as children under the fake driver; each takes the cache's directory."""

from __future__ import annotations

START = """
import sys, warnings
warnings.simplefilter("ignore")
import numpy as np
from numba_cuda_mlir import cuda
import numba_kcache
from numba_kcache import ArgumentError, KernelCache, cached_kernel

cache = KernelCache(sys.argv[1])
"""

START_EITHER = (
    START
    + """
decorate = cached_kernel
numba_kcache.configure(directory=sys.argv[1])
if sys.argv[2] == "installed":
    decorate = cuda.jit
    numba_kcache.install(all=True)
"""
)
"""`decorate` is `cached_kernel`, or `cuda.jit` under `install()` if the second argument is "installed"."""

CAPTURED = (
    START_EITHER
    + """
import gc
from cuda.bindings import driver
gc.disable()
x, stream = cuda.device_array(64, np.float32), driver.cuStreamCreate(1)[1]
class Cycle: pass
@decorate
def add(x, value):
    x[cuda.grid(1)] += value
for _ in range(30):
    cycle = Cycle()
    cycle.itself, cycle.array = cycle, cuda.device_array(64, np.float32)
del cycle
numba_kcache.subscribe(lambda event: gc.collect())
driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
add[1, 64, int(stream)](x, 2.0)
print(int(driver.cuStreamEndCapture(stream)[0]))
"""
)
"""The first launch of a kernel, in a capture, collects arrays of numba-cuda-mlir."""

PARITY = (
    START
    + """
from collections import namedtuple

Point = namedtuple("Point", "x y")
matrix = cuda.to_device(np.zeros((10, 6), np.float32))
record = np.zeros(3, np.dtype([("a", np.int32), ("b", np.float64)], align=True))

class Foreign:
    def __init__(self, array):
        self.array = array
    @property
    def __cuda_array_interface__(self):
        return {**self.array.__cuda_array_interface__, "stream": None}

VALUES = {
    "int": (5, -3, 2**62), "int8": (np.int8(-1),), "int16": (np.int16(-300),), "int32": (np.int32(-70000),),
    "int64": (np.int64(-(2**40)),), "uint8": (np.uint8(255),), "uint16": (np.uint16(65535),),
    "uint32": (np.uint32(2**32 - 1),), "uint64": (np.uint64(2**64 - 1), 2**63 + 5), "bool": (True, np.bool_(False)),
    "float": (2.5, -0.0, float("inf"), np.float64(1e300)), "float32": (np.float32(1.1),),
    "float16": (np.float16(0.5),), "complex": (1 + 2j, np.complex128(-3j)), "complex64": (np.complex64(3 - 4j),),
    "C": (matrix, matrix[0:0]), "F": (matrix.T,), "A": (matrix[::2, 1:3],),
    "one axis": (matrix[0], matrix[:, 0], cuda.device_array(0)), "no axis": (cuda.to_device(np.zeros(())),),
    "three axes": (cuda.to_device(np.asfortranarray(np.zeros((3, 4, 5), np.int16))),),
    "foreign": (Foreign(matrix), Foreign(matrix[::2, 1:3])),
    "complex array": (cuda.to_device(np.zeros((4, 5), np.complex64)),),
    "records": (cuda.to_device(record), cuda.to_device(record)[::2]),
    "halves": (cuda.to_device(np.zeros(3, np.float16)),), "bools": (cuda.to_device(np.zeros(3, bool)),),
    "datetime64": (np.datetime64("2026-01-01", "ns"),), "timedelta64": (np.timedelta64(-7, "s"),),
    "tuple": ((1, 2.0, np.int8(3)),), "nested": (((1, np.float32(2)), (1j,)),), "empty": ((),),
    "named tuple": (Point(np.int16(1), 2.0),), "tuple of arrays": ((matrix, 3),),
}

def echo(value, out):
    pass

out = cuda.device_array(1)
for name, values in VALUES.items():
    alone = cuda.jit(echo)  # a new one each time: one would confuse integer widths
    for value in values:
        ours = cached_kernel(echo, cache=cache)
        own = ours if "warm" in sys.argv else alone
        own[2, 32](value, out)
        for _ in range(4):
            ours[2, 32](value, out)
        print("launched", name)
print(cache.info("process").misses, "misses")
"""
)
"""Launch with each argument by `cuda.jit`, then by `cached_kernel`, interpreted and through the compiled module; with
"warm" by that alone."""

WRONG = (
    START
    + """
def echo(value):
    pass

decorate = cached_kernel
numba_kcache.configure(directory=sys.argv[1])
if sys.argv[2] == "installed":
    decorate = cuda.jit
    numba_kcache.install(all=True)

def many(*values):
    ours = decorate(echo)
    for value in values:
        for _ in range(12):
            ours[1, 1](value)

many(np.float32(2), 2.0, np.int32(5), 2**40, True, 258)
many(cuda.to_device(np.zeros((4, 20), np.complex64))[:, ::2])

@decorate
def with_default(first, value=3):
    pass

@decorate
def with_nothing(first, nothing, last):
    pass

for _ in range(12):
    with_default[1, 1](7)
    with_nothing[1, 1](7, None, 3)
"""
)
"""Arguments that numba-cuda-mlir's own launcher passes wrongly, without an error; by `cached_kernel` or `cuda.jit`."""

RARE = (
    START_EITHER
    + """
record = cuda.to_device(np.zeros(1, [("a", np.int32)])[0])

@decorate
def of_record(first):
    pass

@decorate
def of_many(first, *rest):
    pass

for _ in range(3):
    of_record[1, 1](record)
    of_many[1, 1](7)
    of_many[1, 1](7, 3)
"""
)
"""A record on the device, and *args that may be empty; by `cached_kernel` or `cuda.jit`."""

STREAMS = (
    START_EITHER
    + """
class Foreign:
    def __init__(self, array):
        self.__cuda_array_interface__ = array.__cuda_array_interface__

waited = []
from numba_kcache.launch import bindings
driver = bindings()
synchronize = driver.cuStreamSynchronize
driver.cuStreamSynchronize = lambda handle: (waited.append(int(handle)), synchronize(handle))[1]

@decorate
def kernel(x, y):
    pass

one, two = cuda.stream(), cuda.stream()
x, y = (Foreign(cuda.device_array(10, stream=each)) for each in (one, two))
for stream, *arrays in ((None, x, y), (one, x, y), *[(None, x, x)] * 12):
    kernel[1, 1, stream](*arrays)
    print([("one", "two")[each == int(two.handle)] for each in waited])
    waited.clear()
"""
)
"""Print the arrays' streams that the host waits for in launches by `cached_kernel` or `cuda.jit`: with arrays of two
streams, and many with arrays of one."""

WARNS = (
    START_EITHER
    + """
names = {}
exec("def kernel(x): pass", {}, names)
kernel = decorate(debug=True, opt=False)(names["kernel"])
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    kernel[1, 1](cuda.device_array(1))
for each in found:
    if "Performance" not in each.category.__name__:
        print(each.category.__name__, str(names["kernel"]) in str(each.message))
"""
)
"""A kernel with debug information and without source, so that its compile warns; by `cached_kernel` or `cuda.jit`."""

UNEDITED = (
    START
    + """
from numba_cuda_mlir import types

@cuda.jit
def kernel(x, n):
    if cuda.grid(1) < n:
        x[cuda.grid(1)] = n

@cuda.jit("void(float32[::1], float32)")
def fixed(x, n):
    x[0] = n

@cuda.jit
def wrapped(x, n):
    x[0] = n

@cuda.jit
def broken(x, n):
    x[0] = n.nothing

class Wrapper:
    def prepare_args(self, kind, value, stream, retr):
        return (types.int64, 7) if value == "seven" else (kind, value)

x, host = cuda.to_device(np.ones(64, np.float32)), np.ones(64, np.float32)

def launched(kernel, config, *arguments):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            for _ in range(3):
                kernel[config](*arguments)
            outcome = "ran"
        except BaseException as error:
            outcome = f"{type(error).__name__}: {error}"
    return outcome, sorted({str(each.message).rstrip(".") for each in seen})

def faces():
    wrapped.extensions.append(Wrapper())
    stream = cuda.stream()
    for kernel_, config, arguments in (
        (kernel, (256, 64), (x, 5)), (kernel, (256, 64, stream, 16), (x, 5)), (kernel, (4, 64), (host, 5)),
        (kernel, (1, 64, 0, None), (x, 5)), (kernel, (1, 64, None, 0, 1), (x, 5)), (kernel, (0, 1), (x, 5)),
        (kernel, (1, 4096), (x, 5)), (kernel, (1,), (x, 5)), (kernel, ("a", 1), (x, 5)),
        (kernel, ((1, 1), [32]), (x, 5)), (kernel, (1, 1), (x,)), (kernel, (1, 1), (x, object())),
        (kernel, (1, 1), (x, "text")), (kernel, 1, (x, 5)),
        (fixed, (1, 1), (x, 5)), (fixed, (1, 1), (x, 2.5)), (wrapped, (1, 1), (x, "seven")),
        (broken, (1, 1), (x, 5)), (kernel, (2, 32), (x, np.float32(2))),
    ):
        yield launched(kernel_, config, *arguments)
    wrapped.extensions.clear()
    yield [len(each.overloads) for each in (kernel, fixed, wrapped)]

if sys.argv[2] == "installed":
    numba_kcache.configure(directory=sys.argv[1])
    numba_kcache.install(all=True)
print(*faces(), sep="\\n")
"""
)
"""Print the results, errors and warnings of valid and invalid launches in a program that uses `cuda.jit` alone."""

RECOMPILED = (
    START
    + """
numba_kcache.configure(directory=sys.argv[1])
if sys.argv[2] == "installed":
    numba_kcache.install(all=True)
FACTOR = 2.0

@(cuda.jit if sys.argv[2] == "installed" else cached_kernel)
def kernel(x):
    x[0] = FACTOR

x = cuda.to_device(np.ones(4, np.float32))
for FACTOR in (2.0, 3.0):
    for _ in range(3):
        kernel[1, 1](x)
print(numba_kcache.info("process").compiles)
kernel.recompile()
for _ in range(3):
    kernel[1, 1](x)
print(numba_kcache.info("process").compiles)
"""
)
"""Change a global between launches, and call `recompile()`, which reads it again."""

CLOSED = (
    START
    + """
numba_kcache.configure(directory=sys.argv[1])
numba_kcache.install(all=True)

def body(x, n):
    x[0] = n

host, kernel = np.ones(8, "f4"), (cuda.jit if sys.argv[2] == "installed" else cached_kernel)(body)
configured = kernel[1, 32]
for end in (cuda.close, lambda: cuda.current_context().reset(), cuda.close, cuda.close):
    configured(host, 5)  # opens the context again
    x = cuda.to_device(host)
    for _ in range(3):
        configured(x, 5)
        kernel[1, 32](x, 5)
    del x
    end()
print(numba_kcache.info("process").compiles, numba_kcache.info("process").misses)
"""
)
"""Close and reset contexts between launches."""

WARM = (
    START
    + """
SCALE = 2.0

@cuda.jit(device=True)
def helper(x):
    return x * SCALE

@cached_kernel(cache=cache)
def kernel(x, factor, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = helper(x[i]) * factor + SCALE

x = cuda.to_device(np.ones(64, np.float32))
before = set(sys.modules)
kernel[1, 64](x, 2.0, x)
maps = open("/proc/self/maps").read()
print("libraries", [each for each in ("libnvvm", "libLLVM-7", "libnvrtc", "libnvJitLink") if each in maps])
print("modules", sorted(each for each in set(sys.modules) - before if not each.startswith("numba_kcache.")))
from numba_cuda_mlir.descriptor import mlir_target
print("initialized", mlir_target._typingctx_initialized)
print("hits", cache.info("process").hits, "misses", cache.info("process").misses)
"""
)
"""Print the modules and libraries that a warm start loads."""

OPTIONS = (
    START
    + """
def body(x, n):
    i = cuda.grid(1)
    if i < n:
        x[i] = x[i] * 2 + 1

types = "void(float32[::1], int64)"
keys = {}
for options in (
    {}, {"fastmath": True}, {"max_registers": 32}, {"debug": True, "opt": False}, {"opt": False}, {"lineinfo": True},
    {"lto": True}, {"launch_bounds": 128}, {"ptxas_options": "-v"}, {"capi": True}, {"inline": "never"},
    {"shared_memory_carveout": 50}, {"link": [cuda.CUSource("__device__ int unused() { return 1; }")]},
):
    kernel = cached_kernel(body, cache=cache, signature=types, **options)
    keys.setdefault(kernel.key(arch="sm_90"), []).append(str(options))
    kernel.compile(arch="sm_90")
    dispatcher = cached_kernel(cuda.jit(**options)(body), signature=types, cache=cache)
    assert kernel.key(arch="sm_90") == dispatcher.key("sm_90")
print([names for names in keys.values() if len(names) > 1])
kernel.compile(arch=["sm_80", "sm_120"])
print([target for target in ("sm_120", "sm_80", "sm_86", "sm_90") if kernel.explain(target).is_hit])
"""
)
"""Compile with each option by itself, and one kernel for three targets, without a device."""

DEFECTS = (
    START
    + """
import importlib, pathlib, pickle
folder = pathlib.Path(sys.argv[1]).parent
sys.path.insert(0, str(folder))
sys.dont_write_bytecode = True
numba_kcache.configure(directory=sys.argv[1])
stage = sys.argv[2]

from numba_cuda_mlir.numba_cuda.cudadrv import libs
find, runtime = libs.get_cudalib, folder / "libcudadevrt.a"
archive = pathlib.Path(find("cudadevrt", static=True)).read_bytes()
runtime.write_bytes(archive[:24] + (b"1234567890" if stage == "relinked" else archive[24:34]) + archive[34:])
libs.get_cudalib = lambda name, static=False: str(runtime) if static else find(name)

(folder / "callee.py").write_text(
    "from numba_cuda_mlir import cuda\\n@cuda.jit(device=True)\\ndef f(x):\\n    return x * %s\\n" % sys.argv[3]
)
from callee import f
GLOBAL = float(sys.argv[4])
numba_kcache.install()

@cuda.jit(cache=True)
def calls(x):
    x[0] = f(x[1])

@cuda.jit(cache=True)
def reads(x):
    x[0] = x[1] * GLOBAL

@cuda.jit(cache=True)
def synced(x):
    cuda.cg.this_grid().sync()
    x[0] = 1

captured = cuda.to_device(np.arange(4.0))

@cuda.jit(cache=True)
def captures(x):
    x[0] = captured[1]

@cuda.jit(cache=True, link=[cuda.CUSource('extern "C" __device__ int two(int* out) { *out = 2; return 0; }')])
def links(x):
    x[0] = 1

x = cuda.to_device(np.ones(8))
for kernel in (calls, reads, synced, captures, links):
    before = numba_kcache.info("process").hits
    kernel[1, 32](x)
    print(kernel.__name__, "hit" if numba_kcache.info("process").hits > before else "compiled")
"""
)
"""Kernels with `cache=True` for which numba-cuda-mlir's own cache serves wrong code."""

INSTALLED = (
    START
    + """
import pickle
numba_kcache.configure(directory=sys.argv[1])
early = cuda.jit(lambda x: None)
numba_kcache.install(all=True)

@cuda.jit
def kernel(x, n):
    i = cuda.grid(1)
    if i < n:
        x[i] = x[i] * 3

@cuda.jit("void(float32[::1])")
def signed(x):
    x[0] = 2

x = cuda.to_device(np.ones(64, np.float32))
early[1, 1](x)
kernel[1, 32](x, 64)
signed[1, 32](x)
kernel.specialize(x, 64)[1, 32](x, 64)
pickle.loads(pickle.dumps(kernel))[1, 32](x, 64)
(types,) = kernel.overloads
assert kernel.signatures == [types] and kernel.nopython_signatures
for name in ("asm", "ptx", "llvm", "mlir", "mlir_optimized"):
    look = getattr(kernel, f"inspect_{name}")
    assert types in look() and len(str(look(types))) > 100, look
assert kernel.get_regs_per_thread(types) > 0
hits, misses = kernel.stats.cache_hits, kernel.stats.cache_misses
print("kernel", hits.total() and "hit" or "", misses.total() and "missed" or "")
print("compiles", numba_kcache.info("process").compiles)
numba_kcache.uninstall()
kernel.recompile()
kernel[1, 32](x, 64)
print("compiles afterwards", numba_kcache.info("process").compiles)
"""
)
"""A program that uses `cuda.jit` alone, and the public attributes of its dispatchers."""

DEVICES = (
    START
    + """
@cached_kernel(cache=cache)
def kernel(x):
    x[0] = 1

for turn in range(2):
    for device in (0, 1):
        cuda.select_device(device)
        kernel[1, 32](cuda.to_device(np.ones(8, "f4")))
cuda.current_context().reset()
for _ in range(3):
    kernel[1, 32](cuda.to_device(np.ones(8, "f4")))
asked = cached_kernel(cuda.jit(chip="sm_80")(kernel.py_func), cache=cache, signature="void(float32[::1])")
asked.compile()
print(*sorted({each.target for each in cache.entries()}))
"""
)
"""Launch on two devices alternately, reset a context, and compile for a target of neither."""

REFUSED = (
    START
    + """
import logging
from numba_cuda_mlir.extending import WholeFunctionPlanner, register_planner

def why(kernel, *arguments):
    warnings.simplefilter("always")
    with warnings.catch_warnings(record=True) as seen:
        kernel[1, 32](*arguments)
        kernel[1, 32](*arguments)
    print(*[str(each.message).splitlines()[0] for each in seen if "cache" in str(each.message)])

x = cuda.to_device(np.ones(8))
captured = cuda.to_device(np.arange(4.0))

@cached_kernel(cache=cache)
def captures(x):
    x[0] = captured[1]

why(captures, x)
bound = cached_kernel(cuda.jit("void(float64[::1], int32)")(lambda x, n: None), cache=cache)
for value in (5, 2**40, 2.5):
    try:
        bound[1, 1](x, value)
    except ArgumentError as error:
        print(error.what)

class Planner(WholeFunctionPlanner):
    def run(self):
        return False

register_planner(Planner)

@cached_kernel(cache=cache)
def planned(x):
    x[0] = 1

why(planned, x)
print("stored", cache.info().entries)
"""
)
"""Kernels that cannot be keyed: they run uncached, with a warning."""

INTRINSICS = (
    START
    + r"""
from numba_cuda_mlir import extending
from numba_cuda_mlir._mlir.extras import types as T
from numba_cuda_mlir.cuda.experimental import intrin
from numba_cuda_mlir.mlir.dialect_exts import arith

FACTOR = 2.5

def multiply(builder, target, args, kwargs):
    builder.store_var(target, arith.mulf(builder.load_var(args[0]), arith.constant(FACTOR, T.f64())))

@extending.intrinsic
def multiplied(typingctx, x):
    return x(x), multiply

def in_mlir(number):
    return intrin.define(f"func.func private @added(%x: f64) -> f64 attributes {{always_inline}} {{ "
                         f"%c = arith.constant {number} : f64 %r = arith.addf %x, %c : f64 return %r : f64 }}")

added = in_mlir(1.5)

def kernel(x):
    x[0] = multiplied(added(x[0]))

def ptx_text():
    found = cached_kernel(kernel, arch="sm_90", cache=cache)
    found.compile(signature="void(float64[::1])")
    return found.ptx(signature="void(float64[::1])")

texts = [ptx_text()]
FACTOR = 3.5
texts.append(ptx_text())
added = in_mlir(4.5)
texts.append(ptx_text())
FACTOR, added = 2.5, in_mlir(1.5)
texts.append(ptx_text())
print(len(set(texts[:3])), cache.info("process").compiles, cache.info("process").misses)
"""
)
"""Compile a kernel whose intrinsic reads a global, and whose inline MLIR has a constant, before and after changes."""

INSPECTED = (
    START
    + """
def body(x):
    x[0] = 1.5

def text():
    return cuda.jit(chip="sm_80")(body).compile("void(float32[:])").mlir_module

plain = text()
numba_kcache.configure(directory=sys.argv[1])
numba_kcache.install(all=True)
found = text()
of_result = cuda.jit(chip="sm_80")(body).compile("void(float32[:])").mlir_module_str
assert "@_Z4body" in of_result, of_result
print(found == plain, 'chip = "sm_80"' in found, numba_kcache.info("process").misses)
newer = cuda.jit(chip="sm_100")(body).compile("void(float32[:])").mlir_module
print('chip = "sm_100"' in newer)
"""
)
"""Read the MLIR of kernels that the cache serves to a dispatcher for another target than the device's."""
