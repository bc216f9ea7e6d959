"""Programs that use a stand-in, or with `REAL=1` the Numba for which it stands; run as children on the fake driver.

Each gets its cache by NUMBA_KCACHE_DIR, and prints one line of JSON: see `END`.
"""

from __future__ import annotations

START = """
import importlib, json, os, sys, warnings
warnings.simplefilter("ignore")
IS_REAL, KIND = "REAL" in os.environ, os.environ.get("KIND", "numba")
NAMES = {"numba": ("numba.cuda", "numba_kcache.cuda"), "mlir": ("numba_cuda_mlir.cuda", "numba_kcache.mlir.cuda")}
cuda = importlib.import_module(NAMES[KIND][not IS_REAL])
import numba_kcache
from numba_kcache import cached_kernel
from numba_kcache.frontends.numba import stand_in

def jit(function=None, **options):
    if function is None:
        return lambda function: jit(function, **options)
    return cached_kernel(function, kind=KIND, **options) if IS_REAL else cuda.jit(function, **options)

class Memory:
    \"\"\"An array of the driver's memory.\"\"\"

    def __init__(self, count=64, typestr="<f4", **more):
        from cuda.bindings import driver
        driver.cuInit(0)
        _, context = driver.cuDevicePrimaryCtxRetain(driver.cuDeviceGet(0)[1])
        driver.cuCtxSetCurrent(context)
        address = int(driver.cuMemAlloc(8 * count)[1])
        self.__cuda_array_interface__ = {
            "shape": (count,), "typestr": typestr, "data": (address, False), "version": 3, **more}

def say(**more):
    found = numba_kcache.info("process")
    known = {"numba", "numpy", "llvmlite", "numba_cuda", "numba_cuda_mlir"}
    print(json.dumps({
        "hits": found.hits, "misses": found.misses, "loaded": sorted(known & sys.modules.keys()),
        "why": stand_in.reasons.get(KIND, ""), "keys": sorted(
            {each.key for kernel in KERNELS for each in kernel._resolutions.known().values()}), **more}))
"""

END = """
say()
"""
"""Prints hits, misses, the modules of Numba that are loaded, why this package imported it, and the kernels' keys."""

COMMON = (
    START
    + """
SCALE, TILE = float(os.environ.get("SCALE", "2.0")), 64

@cuda.jit(device=True)
def helper(x):
    return x * SCALE

@jit
def kernel(x, factor, out):
    tile = cuda.shared.array(TILE, dtype=cuda.float32)
    i = cuda.grid(1)
    tile[cuda.threadIdx.x] = x[i]
    cuda.syncthreads()
    if i < out.size:
        out[i] = helper(tile[cuda.threadIdx.x]) * factor + SCALE
        cuda.atomic.add(out, 0, cuda.libdevice.sqrtf(x[i]))

KERNELS, before = [kernel], dict(globals())
for _ in range(3):
    kernel[1, 64](Memory(), 2.5, Memory())
cuda.synchronize()
assert all(globals()[name] is value for name, value in before.items() if name not in ("KERNELS", "before"))
"""
    + END
)
"""A kernel with a device function, shared memory, an atomic, libdevice, a global; its own globals stay as they are."""

_IMPORT = "cuda = importlib.import_module(NAMES[KIND][not IS_REAL])\nimport numba_kcache\n"

_STATEMENT = """import numba_kcache
if KIND == "numba":
    from numba import cuda
else:
    from numba_cuda_mlir import cuda
"""

UNEDITED = COMMON.replace(_IMPORT, _STATEMENT).replace("@jit", "@cuda.jit").replace(
    "= [kernel]", "= [kernel] * hasattr(kernel, 'forget')"
)  # fmt: skip
"""The program of `COMMON` as it is without this package, and the keys of its kernel if the stand-in made that."""

FAITHFUL = (
    START.replace(_IMPORT, _STATEMENT)
    + """
import pickle
from importlib.util import find_spec

@cuda.jit(device=True)
def helper(x):
    return x + cuda.threadIdx.x

@cuda.jit
def kernel(x):
    x[cuda.grid(1)] = helper(x[0])

kernel[1, 64](Memory())
found = [find_spec("numba").name == "numba", "numba" in sys.modules]
other = cuda.jit(nopython=True)(lambda x: None)  # an option that this package does not know
found.append(pickle.loads(pickle.dumps(kernel)).__name__ == "kernel")
from numba import cuda as again, float32
from numba.cuda.dispatcher import CUDADispatcher
import numba
importlib.reload(cuda)

@cuda.jit
def second(x):
    x[cuda.grid(1)] = helper(x[0]) * float32(2)

second[1, 64](Memory())
found += [numba is sys.modules["numba"], again is numba.cuda, cuda.is_available is again.is_available]
found += [isinstance(each, CUDADispatcher) for each in (kernel, second, other)]
found += [type(second) is CUDADispatcher, float32 is numba.types.float32, find_spec("numba.core") is not None]
numba_kcache.uninstall()
KERNELS = []
say(found=[*found, __import__.__module__ == "builtins"])
"""
)
"""What a program sees of Numba before and after it imports more of it: all is true, but the second where kernels are
stored."""

KEYS = (
    START
    + """
from numba_kcache.engine import process_session
from numba_kcache.model import Target

session, target = process_session(), Target(9, 0)
names = json.load(sys.stdin)

def keyed(function, arguments):
    definition = jit(function)._definition
    try:
        variant = (
            definition.types_of(arguments) if IS_REAL
            else definition.is_light and definition._light.types_of(arguments))
        if variant is None:
            return "not typed"
        request = definition.request(target, None, variant)
        return "refused" if request.uncacheable or not (IS_REAL or definition.is_light) else session.key(request)
    except Exception as error:
        return "raised"

def made(text, **names):
    exec(text, space := {"cuda": cuda, "__name__": "program", **names})
    return space["k"]

found, array = {}, Memory()
for chain in names:
    found[chain] = keyed(made(f"def k(x):\\n    x[0] = {chain}(x[0])\\n"), [array])
    alone = {} if IS_REAL else {"function": stand_in._made(KIND, chain[5:])}
    if IS_REAL:
        alone["function"] = eval(chain)
    if not isinstance(alone["function"], type(sys)):
        found["imported " + chain] = keyed(made("def k(x):\\n    x[0] = function(x[0])\\n", **alone), [array])
print(json.dumps([found, sorted({"numba", "numba_cuda", "numba_cuda_mlir"} & sys.modules.keys())]))
"""
)
"""Print the key of a kernel for each name of device code, read by attribute and as a global; or why there is none."""

VALUES = (
    KEYS[: KEYS.index("found, array =")]
    + """
import numpy as np

NUMBERS = [0, 1, -1, 5, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**32, 2**62, 2**63 - 1, -(2**63), 2**63,
           2**64 - 1, 2**64, -(2**63) - 1, True, False, 0.0, -0.0, 1.5, float("inf"), float("-inf"), float("nan"), 1j,
           2 - 3j, None, "text", b"bytes", (1, 2), (1, 2.0), [1], {1}, slice(1), ..., int, float]
TYPES = ["bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
         "float32", "float64", "complex64", "complex128", "longlong", "ulonglong", "intc", "uintc", "longdouble"]
NUMBERS += [getattr(np, name)(each) for name in TYPES for each in (0, 1)]
NUMBERS += [np.datetime64("2026-01-01", "ns"), np.timedelta64(1, "s"), np.str_("x"), np.float32, np.dtype("f4"),
            np.ones(3), np.ones((2, 3), np.float32).T, np.array(1.0)]

class Array:
    def __init__(self, **interface):
        usual = {"data": (4096, False), "version": 3, "shape": (8,), "typestr": "<f4"}
        self.__cuda_array_interface__ = {**usual, **interface}

class Subclass(int):
    pass

TYPESTRS = ["|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16", ">f4",
            "|V8", "<M8[ns]"]
NUMBERS += [Array(typestr=each) for each in TYPESTRS]
NUMBERS += [Array(shape=each) for each in [(), (0,), (1,), (1, 1), (2, 3), (2, 3, 4), (0, 3), (1,) * 5, [4]]]
NUMBERS += [Array(strides=each) for each in [None, (4,), (8,), (0,), (-4,), (32,), (128,)]]
NUMBERS += [Array(shape=(4, 8), strides=each) for each in
            [(32, 4), (4, 16), (64, 4), (64, 8), (32, 32), (128, 32), (4, 4)]]
NUMBERS += [Array(shape=(), strides=()), Array(data=(4096, True)), Array(data=(4096, True), shape=(2, 2)),
            Array(stream=1), Array(stream=2), Array(data=(0, False), shape=(0,)), Array(version=2), Array(mask=None),
            Array(mask=Array()), Subclass(3), Array(typestr="<f8", shape=(3, 5), data=(4096, True))]
NUMBERS += [Array(typestr=each, shape=(3, 5)) for each in TYPESTRS]
found = {}
for position, value in enumerate(NUMBERS):
    found[f"{position} {type(value).__name__}"] = keyed(made("def k(x):\\n    pass\\n"), [value])
print(json.dumps([found, sorted({"numba", "numba_cuda", "numba_cuda_mlir"} & sys.modules.keys())]))
"""
)
"""Print the key of a kernel for each value of an argument; or why there is none."""

_BODY = """
@jit
def kernel(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = helper(x[i])

KERNELS = [kernel]
kernel[1, 64](Memory(), Memory())
"""

USES = {
    "attribute of the stand-in replaced": (
        """
@cuda.jit(device=True)
def twice(x):
    return x + x
cuda.own = twice

@cuda.jit(device=True)
def helper(x):
    return cuda.own(x)
""",
        "uses .* on the host",
    ),
    "name that was imported before its attribute is replaced": (
        """
grid = cuda.grid
@cuda.jit(device=True)
def helper(x):
    return x * grid(1)

@cuda.jit(device=True)
def twice(x):
    return x + x
cuda.grid = twice
cuda.gridsize = twice
del cuda.gridsize
cuda.grid = grid
""",
        "uses .* on the host",
    ),
    "attribute replaced for a while": (
        """
from unittest import mock
with mock.patch.object(cuda, "popc", cuda.clz):
    @cuda.jit(device=True)
    def helper(x):
        return x * cuda.popc(3)
""",
        "uses .* on the host",
    ),
    "all names imported": (
        """
exec(f"from {cuda.__name__} import *", names := {})
names = {} if IS_REAL else names
device = names.get("jit", cuda.jit)(device=True)
@device
def helper(x):
    return x * cuda.grid(1)
""",
        None,
    ),
    "attribute of Numba replaced": (
        """
import numba.cuda
@numba.cuda.jit(device=True)
def twice(x):
    return x + x
numba.cuda.own = twice

@cuda.jit(device=True)
def helper(x):
    return cuda.own(x)
""",
        "",
    ),
    "overload": (
        """
from numba.cuda.extending import overload
def helper(x):
    raise NotImplementedError
@overload(helper)
def of_helper(x):
    return lambda x: x * 3 + cuda.threadIdx.x
""",
        "",
    ),
    "setting of the program": (
        """
from numba.cuda.core import config
config.LOOP_VECTORIZE = 1 - config.LOOP_VECTORIZE
@cuda.jit(device=True)
def helper(x):
    return x * 3
""",
        "",
    ),
    "another user of Numba": (
        """
@cuda.jit(device=True)
def helper(x):
    return x * 3
import numba
""",
        "",
    ),
    "device function of a module that imports Numba": (
        """
import types
other = types.ModuleType("other")
text = "from numba import cuda\\n@cuda.jit(device=True)\\ndef helper(x):\\n    return x + cuda.threadIdx.x"
exec(text, other.__dict__)
sys.modules["other"] = other
@cuda.jit(device=True)
def helper(x):
    return other.helper(x) + 1
""",
        "",
    ),
    "device function of a module with the stand-in": (
        """
import types
other = types.ModuleType("other")
other.cuda = cuda
exec("@cuda.jit(device=True)\\ndef helper(x):\\n    return x + cuda.threadIdx.x", other.__dict__)
sys.modules["other"] = other
@cuda.jit(device=True)
def helper(x):
    return other.helper(x) + 1
""",
        None,
    ),
    "closure, default and tuple of functions": (
        """
def made(factor):
    @cuda.jit(device=True)
    def inner(x):
        return x * factor + cuda.threadIdx.x
    @cuda.jit(device=True, fastmath=True)
    def helper(x, more=2):
        return inner(x) + more
    return helper
helper = made(3.0)
""",
        None,
    ),
    "imported names, math and a type": (
        """
import math
grid, float32 = cuda.grid, cuda.float32
@cuda.jit(device=True)
def helper(x):
    part = cuda.local.array(4, float32)
    part[0] = math.sqrt(x)
    return part[0] + grid(1)
""",
        None,
    ),
    "library device functions": (
        """
@cuda.jit(device=True, inline="always")
def helper(x):
    v = cuda.float32x2(x, x)
    h = cuda.fp16.hsin(cuda.types.float16(x))
    cuda.threadfence()
    return v.x + cuda.libdevice.fast_sinf(v.y) + cuda.shfl_xor_sync(-1, x, 1) + h
""",
        None,
    ),
}  # fmt: skip
"""Ways in which a program may define `helper`, and why Numba is imported: "" by the program, None: it is not."""

DIFFERENT = {name: START + text + _BODY + END for name, (text, _why) in USES.items()}
"""A program for each of `USES`."""

BOTH_WAYS = (
    START
    + """
@jit
def kernel(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] * 2

KERNELS, own, other = [kernel], Memory(), Memory(typestr="<f8")
kernel[1, 64](own, own)
import numba
for _ in range(2):
    kernel[1, 64](own, own)
    kernel[1, 64](own, other)
    kernel[2, 32](own, own)
    kernel.forall(64)(own, own)
import numpy
kernel[1, 64](numpy.ones(64, "f4"), own)
assert len(kernel.overloads) == len(kernel.signatures) == 2, kernel.overloads
"""
    + END
)
"""Launches before and after Numba is imported, with two signatures, and one by Numba's dispatcher."""

SIGNATURES = (
    START
    + """
def body(x, n):
    i = cuda.grid(1)
    if i < x.size:
        x[i] = n

found = {}
TWO = ["void(float32[:], float32)", "void(float64[:], float64)"]
for signature in ("void(float32[:], int32)", TWO, "int32(int32)"):
    try:
        kernel = cuda.jit(signature)(body)
    except TypeError as error:
        found[str(signature)] = str(error)
        continue
    assert len(kernel.overloads) == 1 + isinstance(signature, list)
    is_misread = KIND == "mlir" and "int32" in signature  # by the real launcher
    for number in (3, -1, 2) if is_misread else (3, 2.75, 2**40 + 5, -1):
        try:
            kernel[1, 64](Memory(), number)
        except TypeError as error:
            found[f"{signature} {number}"] = str(error)
    kernel[1, 64](Memory(strides=(8,)), 7)
KERNELS = []
say(found=found)
"""
)
"""Launches of kernels with signatures, and the errors of some."""

EXPLAINED = (
    COMMON.removesuffix(END)
    + """
found = kernel.explain()
say(told=str(found), imported=found.to_dict()["imported"])
"""
)
"""As `COMMON`, with the kernel's explanation."""

WRAPPED = (
    START
    + """
@cached_kernel(max_registers=32)
@cuda.jit(fastmath=True)
def kernel(x, factor, out):
    i = cuda.grid(1)
    out[i] = x[i] * factor

KERNELS, x, out = [kernel], Memory(), Memory()
kernel[1, 64](x, 2.0, out)
"""
    + END
)
"""`cached_kernel` above `cuda.jit`, as programs that import Numba have it."""

DEFAULTS = (
    START
    + """
@cuda.jit(device=True)
def helper(x, factor=2):
    return x * factor
helper.py_func.__defaults__ = 5,

@jit
def kernel(x):
    x[0] = helper(x[0])

KERNELS = []
kernel[1, 64](Memory())
codes = [each.artifact.ptx for each in kernel._resolutions.known().values()] or kernel.inspect_asm().values()
assert codes
say(is_replaced=any("0f40A00000" in str(each) for each in codes))
"""
)
"""A default of a device function that is replaced after its decorator; the second is 5.0 in the code."""

INTEGER = (
    START
    + """
class Number(int):
    pass

@jit
def kernel(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = 1

KERNELS, out, x = [kernel], Memory(), Number(3)
x.__cuda_array_interface__ = out.__cuda_array_interface__
kernel[1, 64](x, out)
"""
    + END
)
"""An argument that has an array interface, and is typed by its class."""

TUPLES = (
    START
    + """
from collections import namedtuple

@cuda.jit(device=True)
def first(x):
    return x + 1

@cuda.jit(device=True)
def second(x):
    return PAIR[0](x) * 2

PAIR, Named = (first, 2), namedtuple("Named", "function number")

def made(nested):
    @jit
    def kernel(x, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = PAIR[0](x[i]) + nested[0].function(x[i]) + nested[1]
    return kernel

KERNELS = [made((Named(second, 3), 4))]
KERNELS[0][1, 64](Memory(), Memory())
"""
    + END
)
"""Device functions in tuples: of a global that one of them reads too, and named and nested ones of a closure."""

CALLED = (
    START
    + """
import types

@cuda.jit(fastmath=True)
def helper(x):
    return x / 3

other = types.ModuleType("other")
other.helper, sys.modules["other"] = helper, other

def made(called):
    @jit
    def kernel(x, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = helper(x[i]) + called(x[i]) + other.helper(x[i])
    return kernel

KERNELS = [made(helper)]
KERNELS[0][1, 64](Memory(), Memory())
"""
    + END
)
"""A function under `cuda.jit` without `device=True` that a kernel calls: a global, in a closure and in a module."""

LINKED = (
    START
    + """
external = cuda.declare_device("external", "float32(float32)")

@cuda.jit(link=["own.cu"])
def kernel(x):
    x[0] = external(x[0])

KERNELS = [kernel]
kernel[1, 64](Memory())
"""
    + END
)
"""A kernel that links a file by a relative path."""

PATCHED = (
    START
    + """
original, calls = cuda.jit, []

def patched(*arguments, **options):
    calls.append(options)
    return original(*arguments, **options, fastmath=True)

cuda.jit = patched

@cuda.jit(device=True)
def helper(x):
    return x / 3

cuda.jit = original

@jit
def kernel(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = helper(x[i])

KERNELS = [kernel]
kernel[1, 64](Memory(), Memory())
say(calls=len(calls))
"""
)
"""A program that replaces `cuda.jit` for a while."""

CHOSEN = (
    COMMON.removesuffix(END)
    + """
numba_kcache.KernelCache().export_bundle(os.environ["BUNDLE"], kernel)
"""
    + END
)
"""As `COMMON`; exports its kernel alone."""

HOST = (
    START
    + """
import numpy

@jit
def kernel(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] * 2

KERNELS = [kernel]
x, out = cuda.to_device(numpy.ones(64, "f4")), cuda.device_array(64, "f4")
pinned = cuda.pinned_array(64, "f4")
kernel[1, 64](x, out)
out.copy_to_host(pinned)
with cuda.pinned(numpy.ones(64, "f4")):
    kernel[1, 64](x, out)
cuda.synchronize()
say(kinds=[f"{type(each).__module__}.{type(each).__qualname__}" for each in (x, out, pinned)])
"""
)
"""Memory that Numba makes."""

STREAMS = (
    START
    + """
@jit
def kernel(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] * 2

KERNELS, x, out = [kernel], Memory(), Memory()
stream, start, end = cuda.stream(), cuda.event(), cuda.event(timing=True)
with stream.auto_synchronize():
    start.record(stream)
    kernel[1, 64, stream](x, out)
    end.record(stream)
end.synchronize()
end.wait(cuda.default_stream())
other = cuda.external_stream(int(stream))
kernel[1, 64, other](x, out)
other.synchronize()
assert end.query() and cuda.event_elapsed_time(start, end) == start.elapsed_time(end) >= 0
assert stream.__cuda_stream__() == (0, int(stream)) != (0, 0) == cuda.default_stream().__cuda_stream__()
if "AFTER" in os.environ:
    import numpy
    array = cuda.to_device(numpy.ones(64, "f4"), stream=stream)
    kernel[1, 64, stream](array, out)
    array.copy_to_host(stream=other)
    later = cuda.event()
    later.record(stream)
    later.wait(other)
    cuda.event_elapsed_time(start, later)
    stream.add_callback
    assert isinstance(stream, type(cuda.stream())) and type(later).__module__.endswith("cudadrv.driver")
"""
    + END
)
"""Streams and events; with `AFTER=1` also used by Numba once that is loaded."""

WARNED = (
    START
    + """
@jit
def kernel(x):
    print(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30,
          31, 32, 33)

KERNELS = [kernel]
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    kernel[512, 64](Memory())
say(warned=[each.category.__name__ for each in found])
"""
)
"""A kernel whose compile warns."""

SWAPPED = (
    START
    + """
import operator
added, operator.add = operator.add, operator.sub
cuda.is_available
assert operator.add is operator.sub
operator.add = added

@jit
def kernel(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + 21.0

KERNELS = [kernel]
kernel[1, 64](Memory(typestr="<f8"), Memory(typestr="<f8"))
say(is_sum="0d4035000000000000" in "".join(kernel.ptx().values()))
"""
)
"""A function of Python that is replaced after the import of `cuda`, while Numba's is imported."""

REPLACED = (
    START
    + """
import operator

@jit
def first(x, out):
    out[0] = x[0] + 21.0

ADDED = float(os.environ.get("ADDED", "1"))

@jit
def second(x, out):
    out[0] = x[0] + ADDED

KERNELS = [first, second]
first[1, 64](Memory(typestr="<f8"), Memory(typestr="<f8"))
operator.add = operator.sub
second[1, 64](Memory(typestr="<f8"), Memory(typestr="<f8"))
say(code="".join(second.ptx().values()))
"""
)
"""A function of Python that is replaced after the first launch, at which Numba by itself would have compiled."""

RANDOM = (
    """
import os
if "FIRST" in os.environ:
    import numba
import importlib
home = "numba.cuda" if "REAL" in os.environ else "numba_kcache.cuda"
random = importlib.import_module(f"{home}.random")
"""
    + START
    + """
import numpy as np
uniform = random.xoroshiro128p_uniform_float32

@jit
def kernel(states, out):
    i = cuda.grid(1)
    out[i] = uniform(states, i)

KERNELS = [kernel]
kernel[1, 64](random.create_xoroshiro128p_states(64, seed=1), cuda.device_array(64, np.float32))
assert cuda.random.uint64_to_unit_float32
"""
    + END
)
"""Functions of host and device from a module in `cuda`, which is imported by itself; with `FIRST=1` after `numba`."""

PICKLED = (
    START
    + """
import cloudpickle, copy, pickle
path = os.environ["PICKLED"]
if os.path.exists(path):
    with open(path, "rb") as file:
        KERNELS = [pickle.load(file), cloudpickle.load(file)]
else:
    @cuda.jit(device=True)
    def helper(x):
        return x * cuda.float32(2)

    @cuda.jit
    def scaled(x):
        x[0] = x[0] * 3

    @jit
    def kernel(x):
        scaled(x)
        x[cuda.grid(1)] = cuda.libdevice.sqrtf(helper(x[0]))

    with open(path, "wb") as file:
        pickle.dump(kernel, file)
        cloudpickle.dump(kernel, file)
    assert copy.copy(kernel) is copy.deepcopy(kernel) is kernel
    KERNELS = [kernel]
for kernel in KERNELS:
    kernel[1, 64](Memory())
"""
    + END
)
"""The first process pickles a kernel of its `__main__` as multiprocessing does, and as dask and joblib do; the next
ones launch both."""
