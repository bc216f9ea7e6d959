"""Kernels of numba-cuda-mlir on a real device: the numbers of NumPy, cold, from the cache and after a reset."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fake_driver import ROOT

pytest.importorskip("numba_cuda_mlir")

PATH = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])

pytestmark = pytest.mark.gpu

_START = r"""
import json, sys, warnings
from collections import namedtuple
warnings.simplefilter("ignore")
import numpy as np
from numba_cuda_mlir import cuda
import numba_kcache
from numba_kcache import KernelCache, cached_kernel

cache = KernelCache(sys.argv[1])
random = np.random.default_rng(1)
N = 1003
found = {}

def check(name, got, wanted):
    got = np.asarray(got.get() if hasattr(got, "get") else got.cpu() if hasattr(got, "cpu") else got)
    found[name] = bool(np.allclose(got, wanted, rtol=1e-6))
    if not found[name]:
        print(name, got.ravel()[:6], np.asarray(wanted).ravel()[:6], file=sys.stderr)
"""

RESULTS = (
    _START
    + r"""
SCALE = 1.75

@cuda.jit(device=True)
def shaped(x):
    return x * SCALE + 0.25

@cached_kernel(cache=cache)
def elementwise(x, factor, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = shaped(x[i]) * factor

@cached_kernel(cache=cache)
def matrix(x, out):
    i, j = cuda.grid(2)
    if i < out.shape[0] and j < out.shape[1]:
        out[i, j] = x[i, j] + i * 10 + j

@cached_kernel(cache=cache)
def store(value, out):
    if cuda.grid(1) == 0:
        out[0] = value

@cached_kernel(cache=cache)
def with_default(out, value=3):
    out[0] = value

Point = namedtuple("Point", "x y")

@cached_kernel(cache=cache)
def members(pair, arrays, nothing, out):
    if cuda.grid(1) == 0:
        out[0] = pair.x + pair.y + arrays[0][1] + arrays[1]

@cached_kernel(cache=cache)
def record(r, out):
    out[0] = r.a + r.b

@cached_kernel(cache=cache)
def doubled(x):
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= 2

@cached_kernel(cache=cache)
def synced(x, out):
    grid = cuda.cg.this_grid()
    i = cuda.grid(1)
    x[i] = i
    grid.sync()
    out[i] = x[x.size - 1 - i]

@cached_kernel(cache=cache, signature="void(float32[::1], int32)")
def counted(x, n):
    i = cuda.grid(1)
    if i < n:
        x[i] = i

def grid(n):
    return (n + 255) // 256, 256

def all_of(stage):
    x = random.random(N).astype(np.float32)
    for dtype in (np.float32, np.float64, np.int32, np.int64, np.uint8):
        given = (x * 100).astype(dtype)
        out = cuda.device_array(N, np.float64)
        for _ in range(3):
            elementwise[grid(N)](cuda.to_device(given), 2.5, out)
        check(f"{stage} {np.dtype(dtype)}", out.copy_to_host(), (given * SCALE + 0.25) * 2.5)
    wide = random.random((40, 60)).astype(np.float32)
    ramp = np.arange(40)[:, None] * 10 + np.arange(60)
    for name, make in {"C": lambda d: d, "F": lambda d: d.T, "A": lambda d: d[::2, 3:50:3]}.items():
        view, host = make(cuda.to_device(wide)), make(wide)
        out = cuda.device_array(host.shape, np.float32)
        for _ in range(3):
            matrix[(8, 8), (8, 8)](view, out)
        steps = np.arange(host.shape[0])[:, None] * 10 + np.arange(host.shape[1])
        check(f"{stage} layout {name}", out.copy_to_host(), host + steps)
    z = (random.random((20, 30)) + 1j * random.random((20, 30))).astype(np.complex64)
    out = cuda.device_array((10, 30), np.complex64)
    matrix[(8, 8), (8, 8)](cuda.to_device(z)[::2], out)
    check(f"{stage} strided complex", out.copy_to_host(), z[::2] + np.arange(10)[:, None] * 10 + np.arange(30))
    numbers = np.float32(2.5), 2.5, np.int32(7), 2**40, True, np.int8(-3), 1 + 2j, np.complex64(3j), np.float16(0.5)
    for value in (*numbers, 258):
        out = cuda.device_array(1, np.complex128)
        store[1, 32](value, out)
        check(f"{stage} value {value!r}", out.copy_to_host(), [complex(value)])
    out = cuda.device_array(1, np.float64)
    with_default[1, 1](out)
    check(f"{stage} default", out.copy_to_host(), [3])
    with_default[1, 1](out, 5)
    check(f"{stage} default given", out.copy_to_host(), [5])
    members[1, 32](Point(1, 2.5), (cuda.to_device(np.arange(3.0)), 4), None, out)
    check(f"{stage} tuples", out.copy_to_host(), [1 + 2.5 + 1 + 4])
    row = np.zeros(1, np.dtype([("a", np.int32), ("b", np.float64)], align=True))
    row["a"], row["b"] = 3, 0.5
    record[1, 1](row[0], out)
    check(f"{stage} record", out.copy_to_host(), [3.5])
    host = np.arange(10.0)
    doubled[1, 32](host)
    check(f"{stage} host array", host, np.arange(10.0) * 2)
    size = 512
    out = cuda.device_array(size, np.float64)
    synced[4, 128](cuda.device_array(size, np.float64), out)
    check(f"{stage} cooperative", out.copy_to_host(), np.arange(size)[::-1])
    out = cuda.to_device(np.zeros(8, np.float32))
    counted[1, 32](out, 8)
    check(f"{stage} bound", out.copy_to_host(), np.arange(8))
    out = cuda.device_array(N, np.float64)
    elementwise[8, 128, 0, 0, (2, 1, 1)](cuda.to_device(x), 1.0, out)
    check(f"{stage} cluster", out.copy_to_host(), x * SCALE + 0.25)
    stream = cuda.stream()
    elementwise[8, 128, stream](cuda.to_device(x), 3.0, out)
    stream.synchronize()
    check(f"{stage} stream", out.copy_to_host(), (x * SCALE + 0.25) * 3)

all_of("first")
cuda.current_context().reset()
all_of("reset")
found["compiles"] = cache.info("process").compiles
print(json.dumps(found))
"""
)

LIBRARIES = (
    _START
    + r"""
import cupy
import torch

@cached_kernel(cache=cache)
def axpy(x, y, a):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = a * x[i] + y[i]

@cached_kernel(cache=cache)
def matrix(x, out):
    i, j = cuda.grid(2)
    if i < out.shape[0] and j < out.shape[1]:
        out[i, j] = x[i, j] + i * 10 + j

class Exporter:
    def __init__(self, array):
        self.array = array
    def __dlpack__(self, **more):
        return self.array.__dlpack__(**more)
    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

x = random.random(N).astype(np.float32)
for name, make in {
    "cupy": cupy.asarray, "torch": lambda h: torch.from_numpy(h.copy()).cuda(), "own": cuda.to_device,
    "dlpack": lambda h: Exporter(cupy.asarray(h)),
}.items():
    a, b = make(x), make(x)
    for _ in range(12):
        axpy[8, 128](a, b, 2.0)
    cuda.synchronize()
    got = b.array if name == "dlpack" else b.copy_to_host() if name == "own" else b
    check(name, got, x + 24 * x)
host = random.random((40, 60)).astype(np.float32)
steps = np.arange(20)[:, None] * 10 + np.arange(16)
for name, given, out in (
    ("cupy strided", cupy.asarray(host)[::2, 3:50:3], cupy.zeros((20, 16), "f4")),
    ("torch strided", torch.from_numpy(host).cuda()[::2, 3:50:3], torch.zeros((20, 16), device="cuda")),
):
    for _ in range(12):
        matrix[(8, 8), (8, 8)](given, out)
    cuda.synchronize()
    check(name, out, host[::2, 3:50:3] + steps)
weights = torch.ones(N, device="cuda", requires_grad=True)
y = torch.zeros(N, device="cuda")
axpy[8, 128](weights, y, 2.0)
cuda.synchronize()
check("torch with gradients", y, np.full(N, 2.0))
side = cupy.cuda.Stream(non_blocking=True)
with side:  # the launch goes where its arrays are
    a, b = cupy.zeros(N, "f4"), cupy.zeros(N, "f4")
    for turn in range(50):
        a += 1
        axpy[8, 128](a, b, 1.0)
    side.synchronize()
check("cupy's current stream", b, np.full(N, 50 * 51 / 2))
with torch.cuda.stream(torch.cuda.Stream()):
    a, b = torch.zeros(N, device="cuda"), torch.zeros(N, device="cuda")
    for turn in range(50):
        a += 1
        axpy[8, 128](a, b, 1.0)
    torch.cuda.current_stream().synchronize()
check("torch's current stream", b, np.full(N, 50 * 51 / 2))
a, b = torch.ones(N, device="cuda"), torch.zeros(N, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    axpy[8, 128](a, b, 1.0)
for _ in range(3):
    graph.replay()
torch.cuda.synchronize()
check("graph", b, np.full(N, 3.0))
found["compiles"] = cache.info("process").compiles
print(json.dumps(found))
"""
)

STREAMS = (
    _START
    + r"""
from cuda.bindings import driver
from cuda.core import Device

@cached_kernel(cache=cache)
def add(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] += x[i]

class Other:
    def __init__(self, handle):
        self.handle = handle
    def __cuda_stream__(self):
        return 0, self.handle

def handle_of(stream):
    return int(stream.handle.value if hasattr(stream.handle, "value") else stream.handle)

device = Device()
device.set_current()
cores, own = device.create_stream(), cuda.stream()
streams = {"none": 0, "own": own, "cuda.core": cores, "int": int(cores.handle), "protocol": Other(int(cores.handle))}
for library in ("cupy", "torch"):
    try:
        streams[library] = __import__(library).cuda.Stream()
    except ImportError:
        pass
host = random.random(N)
for name, stream in streams.items():
    x, y = cuda.to_device(host), cuda.to_device(np.zeros(N))
    cuda.synchronize()
    for _ in range(6):
        add[8, 128, stream](x, y)
    cuda.synchronize()
    check(f"stream {name}", y.copy_to_host(), 6 * host)

x, y = cuda.to_device(host), cuda.to_device(np.zeros(N))
cuda.synchronize()
handle = driver.CUstream(int(cores.handle))
mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
assert not int(driver.cuStreamBeginCapture(handle, mode)[0])
for _ in range(3):
    add[8, 128, cores](x, y)
error, graph = driver.cuStreamEndCapture(handle)
assert not int(error), error
check("captured only", y.copy_to_host(), np.zeros(N))
error, made = driver.cuGraphInstantiate(graph, 0)
for _ in range(2):
    driver.cuGraphLaunch(made, handle)
cores.sync()
check("graph", y.copy_to_host(), 6 * host)
found["compiles"] = cache.info("process").compiles
print(json.dumps(found))
"""
)

CONTEXTS = (
    _START
    + r"""
@cached_kernel(cache=cache)
def add(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] += x[i]

host = random.random(N)
for device in range(len(cuda.gpus)):
    with cuda.gpus[device]:
        x, y = cuda.to_device(host), cuda.to_device(np.zeros(N))
        for _ in range(3):
            add[8, 128](x, y)
        check(f"device {device}", y.copy_to_host(), 3 * host)
cuda.current_context().reset()
x, y = cuda.to_device(host), cuda.to_device(np.zeros(N))
add[8, 128](x, y)
check("after a reset", y.copy_to_host(), host)
found["compiles"] = cache.info("process").compiles
print(json.dumps(found))
"""
)

CLOSED = (
    _START
    + r"""
def body(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] += x[i]

numba_kcache.configure(directory=sys.argv[1])
numba_kcache.install(all=True)
host = random.random(N)
kernels = {"decorated": cached_kernel(body), "installed": cuda.jit(body)}
for turn in range(3):
    for name, add in kernels.items():
        sums = np.zeros(N)
        add[8, 128](host, sums)  # arrays of the host bring a closed context back
        check(f"{name}, host {turn}", sums, host)
        x, y = cuda.to_device(host), cuda.to_device(np.zeros(N))
        for _ in range(3):
            add[8, 128](x, y)
        check(f"{name}, device {turn}", y.copy_to_host(), 3 * host)
        del x, y
    cuda.close()
found["compiles"] = numba_kcache.info("process").compiles
print(json.dumps(found))
"""
)

RUNTIME = (
    """import os
os.environ["NUMBA_CUDA_ENABLE_NRT"] = "1"
"""
    + _START
    + r"""
from numba_cuda_mlir.numba_cuda.core import config
config.CUDA_ENABLE_NRT = config.NUMBA_CUDA_ENABLE_NRT = True

@cuda.jit(device=True)
def shouted(s):
    return s.upper()

@cached_kernel(cache=cache)
def allocates(out):
    out[0] = shouted("test") == "TEST"

for turn in range(2):
    out = cuda.to_device(np.zeros(1, np.bool_))
    allocates[1, 1](out)
    check(f"runtime {turn}", out.copy_to_host(), [True])
found["compiles"] = cache.info("process").compiles
print(json.dumps(found))
"""
)

INSTALLED = (
    _START
    + r"""
numba_kcache.configure(directory=sys.argv[1])
numba_kcache.install(all=True)
SCALE = 3.0

@cuda.jit(device=True)
def scaled(x):
    return x * SCALE

@cuda.jit
def kernel(x, n):
    i = cuda.grid(1)
    if i < n:
        x[i] = scaled(x[i])

@cuda.jit(cache=True)
def synced(x, out):
    grid = cuda.cg.this_grid()
    i = cuda.grid(1)
    x[i] = i
    grid.sync()
    out[i] = x[x.size - 1 - i]

x = cuda.to_device(np.ones(64))
kernel[1, 64](x, 64)
check("installed", x.copy_to_host(), np.full(64, 3.0))
kernel.specialize(x, 64)[1, 64](x, 64)
check("specialized", x.copy_to_host(), np.full(64, 9.0))
out = cuda.device_array(512, np.float64)
synced[4, 128](cuda.device_array(512, np.float64), out)
check("cooperative", out.copy_to_host(), np.arange(512)[::-1])
found["compiles"] = numba_kcache.info("process").compiles
print(json.dumps(found))
"""
)


def results(program: str, cache: Path) -> dict[str, bool | int]:
    """The numbers that a program prints, and the count of its compiles."""
    environment = {**os.environ, "PYTHONPATH": PATH, "NUMBA_KCACHE_DIR": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", program, str(cache)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    found: dict[str, bool | int] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


PROGRAMS = {
    "cached_kernel": RESULTS, "install": INSTALLED, "streams": STREAMS, "contexts": CONTEXTS, "closed": CLOSED,
    "runtime": RUNTIME,
}  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_numbers_are_numpys_cold_and_warm(program: str, tmp_path: Path) -> None:
    """Every type, layout, value and launch attribute; streams of everybody, graphs, devices, contexts that end; memory
    of the device runtime. The second process compiles nothing."""
    for state in ("cold", "warm"):
        found = results(program, tmp_path)

        compiles = found.pop("compiles")
        assert bool(compiles) == (state == "cold")
        assert [name for name, is_right in found.items() if not is_right] == []


def test_arrays_of_other_libraries_are_launched_in_order(tmp_path: Path) -> None:
    """Arrays of CuPy, PyTorch and DLPack, strided and with gradients, on their libraries' current streams and in a
    graph."""
    pytest.importorskip("cupy")
    pytest.importorskip("torch")
    for state in ("cold", "warm"):
        found = results(LIBRARIES, tmp_path)

        compiles = found.pop("compiles")
        assert bool(compiles) == (state == "cold")
        assert [name for name, is_right in found.items() if not is_right] == []
