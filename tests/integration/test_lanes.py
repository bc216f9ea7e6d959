"""Promises of each environment: with neither, either or both of the Numbas installed, and with or without NumPy.

`python3 tasks.py lanes` runs these in an environment of each kind; elsewhere they run in the one that is there.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import numba_kcache
from numba_kcache import KernelCache, cached_kernel
from tests.support import numba_server
from tests.support.fake_driver import ROOT, build, environment, needs_fake_driver, read_log, run

pytestmark = [pytest.mark.lane, pytest.mark.slow]

NOT_NEEDED = ("numba", "numba-cuda", "numba-cuda-mlir", "llvmlite", "numpy", "cuda-core")
MODULES = ("numba", "numba_cuda_mlir", "llvmlite", "numpy", "cuda.core")

needs_numba = pytest.mark.skipif(find_spec("numba_cuda") is None, reason="no numba-cuda: numba-kcache[numba]")
needs_mlir = pytest.mark.skipif(find_spec("numba_cuda_mlir") is None, reason="no numba-cuda-mlir: numba-kcache[mlir]")

SAXPY = r"""
extern "C" __global__ void saxpy(float a, const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}"""

HEAD = f"""
import ctypes, sys
from cuda.bindings import driver
from numba_kcache import *
SAXPY, N = {SAXPY!r}, 1 << 12
class Lent:  # memory of nobody's package
    def __init__(self, typestr="<f4", n=N):
        driver.cuInit(0)
        driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])
        address = int(driver.cuMemAlloc(8 * n)[1])
        self.__cuda_array_interface__ = {{"shape": (n,), "typestr": typestr, "data": (address, False), "version": 3}}
def imported():
    return [each for each in {MODULES!r} if each in sys.modules]
"""


def child(tmp_path: Path, script: str, *events: str, of: str = "", **more: str) -> Any:
    """Run a child on the fake driver, forked from a process with a Numba if `of` names one. Returns its output, and the
    driver's events of these kinds."""
    log = tmp_path / "log"
    env = {**environment(build(), log=log), "NUMBA_KCACHE_DIR": str(tmp_path / "cache"), **more}
    said = numba_server.output(["-c", HEAD + script], env, of) if of else run(HEAD + script, env=env).stdout
    return said, read_log(log, *events)


# -- CUDA C++, in every lane -----------------------------------------------------------------------------------


def test_base_dependencies_bring_no_numba_and_no_numpy() -> None:
    """Neither do the dependencies' own dependencies; only extras bring them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    seen: set[str] = set()
    waiting = list(project["dependencies"])
    while waiting:
        name = re.split(r"[^\w.-]", waiting.pop())[0].lower().replace("_", "-")
        if name not in seen:
            seen.add(name)
            waiting += [each for each in distribution(name).requires or [] if ";" not in each]

    assert {"cuda-bindings", "cuda-pathfinder", "zstandard"} < seen
    assert seen.isdisjoint(NOT_NEEDED)


@needs_fake_driver
def test_cuda_kernel_launches_with_nobody_s_package(tmp_path: Path) -> None:
    """Cold and warm, interpreted and compiled: whatever is installed, no Numba and no NumPy is imported."""
    script = """
kernel = cached_kernel(SAXPY)
x, y = Lent(), Lent()
for _ in range(12):
    kernel[16, 256](2.0, x, y, N)
kernel.forall(N)(2.0, x, y, N)
print(info("process").hits, imported())
"""
    said = [child(tmp_path, script, "launch") for _ in range(2)]

    assert [each for each, _ in said] == ["0 []\n", "1 []\n"]
    assert [each["result"] for each in said[1][1]] == [0] * 26


@needs_fake_driver
def test_values_and_memory_of_every_kind_need_no_numpy(tmp_path: Path) -> None:
    """Half precision, vectors and records by value; array interfaces, ctypes, null and DLPack as pointers."""
    script = r"""
SOURCE = r'''
#include <cuda_fp16.h>
#include <cuda_bf16.h>
struct Pair { int a; float b; };
extern "C" __global__ void k(float2 c, __half h, __nv_bfloat16 b, float3 v, Pair p, bool t, unsigned char u,
                             float2 *z, Pair *s, const double *d, void *any, long long n) {}'''
kernel = cached_kernel(SOURCE)
module = cached_module('__device__ double table[4]; extern "C" __global__ void one() { table[0] = 1; }')
class Tensor(ctypes.Structure):  # DLTensor, and the two pointers of DLManagedTensor
    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32),
                ("type", ctypes.c_uint8 * 4), ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.c_void_p),
                ("offset", ctypes.c_uint64), ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]
class Speaks:  # DLPack alone
    def __init__(self, array):
        data = array.__cuda_array_interface__["data"][0]
        self.tensor = Tensor(data, (2, 0), 1, (2, 64, 1, 0), (ctypes.c_int64 * 1)(4))  # four float64 on CUDA device 0
    def __dlpack_device__(self): return 2, 0
    def __dlpack__(self, *, stream):
        new = ctypes.PyDLL(None).PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return new(ctypes.addressof(self.tensor), NAME, None)
NAME = b"dltensor"
table = Speaks(module.symbol("table"))
for _ in range(12):
    kernel[1, 32]((1.0, 2.0), 0.5, 1.5, (1.0, 2.0, 3.0), bytes(8), True, ctypes.c_uint8(7),
                  Lent("<c8"), Lent("|V8"), table, ctypes.c_void_p(16), 1 << 40)
for wrong in (Lent(">f4"), Lent("<M8[ns]"), Lent("what")):
    try:
        kernel[1, 32]((1.0, 2.0), 0.5, 1.5, (1.0, 2.0, 3.0), bytes(8), True, 7, None, None, wrong, None, 0)
    except ArgumentError as error:
        print(str(error).splitlines()[0].rpartition(": ")[2])
print(imported())
"""
    said, launches = child(tmp_path, script, "launch")

    *reasons, imported = said.splitlines()
    assert imported == "[]"
    assert reasons[:2] == ["the kernel takes float64 there"] * 2
    assert reasons[2] == "the typestr of its array interface is 'what'"
    assert [each["result"] for each in launches] == [0] * 12


@needs_fake_driver
def test_symbol_is_an_array_without_numba(tmp_path: Path) -> None:
    """Shape and type by the compiler or by name, and an array interface that a kernel takes."""
    script = r"""
SOURCE = '''#include <cuda_bf16.h>
struct Pair { int a; float b; };
__device__ double coeffs[3][5]; __device__ int counter = 7; __device__ float2 points[2]; __device__ Pair pair;
__device__ __nv_bfloat16 small[2];
extern "C" __global__ void k(double *out) {
    out[0] = coeffs[0][0] + counter + points[0].x + pair.b + (float)small[1]; }'''
m = cached_module(SOURCE)
for name, dtype in (("coeffs", None), ("counter", None), ("points", None), ("pair", None),
                    ("pair", "uint64"), ("coeffs", "float32"), ("coeffs", "uint8"), ("small", None)):
    found = m.symbol(name, dtype)
    said = found.__cuda_array_interface__
    print(name, found.shape, found.dtype, said["typestr"], found.nbytes, said["shape"] == found.shape)
counter = ctypes.c_int()
driver.cuMemcpyDtoH(ctypes.addressof(counter), m.symbol("counter").__cuda_array_interface__["data"][0], 4)
print(counter.value)
m.k[1, 1](m.symbol("coeffs"))
try:
    m.symbol("pair", "complex128")
except OptionError as error:
    print(str(error).splitlines()[0])
print(imported())
try:
    m.symbol("pair", "nope")
except OptionError as error:
    print(error.what)
"""
    said, _ = child(tmp_path, script)

    assert said.splitlines() == [
        "coeffs (3, 5) float64 <f8 120 True",
        "counter () int32 <i4 4 True",
        "points (2, 2) float32 <f4 16 True",
        "pair (8,) uint8 |u1 8 True",
        "pair (1,) uint64 <u8 8 True",
        "coeffs (30,) float32 <f4 120 True",
        "coeffs (120,) uint8 |u1 120 True",
        "small (2,) bfloat16 <u2 4 True",
        "7",
        "cannot view pair as complex128: its 8 bytes are not a multiple of 16",
        "[]",
        "cannot use dtype='nope'",
    ]


def test_everything_compiles_ahead_without_device(tmp_path: Path) -> None:
    """Headers of the toolkit and CCCL, templates, modules, links and LTO; a second cache gets hits from a bundle of
    these."""
    cache = KernelCache(tmp_path / "cache")
    source = r"""
    #include <cuda/std/array>
    extern "C" __device__ float twice(float);
    extern "C" __global__ void k(float *x) { cuda::std::array<float, 1> y{twice(x[0])}; x[0] = y[0]; }"""
    template = """
    #include <cuda_fp16.h>
    template <class T> __global__ void fill(T *x, T value) { x[threadIdx.x] = value; }"""
    linked = tmp_path / "twice.cu"
    linked.write_text('extern "C" __device__ float twice(float x) { return 2 * x; }')

    cached_kernel(source, name="k", link=[linked], lto=True, cache=cache).compile("sm_90")
    cached_kernel(template, name="fill<double>", cache=cache).compile(["sm_80", "sm_90"])
    cache.export_bundle(tmp_path / "all.kcache")
    other = KernelCache(tmp_path / "other")
    other.import_bundle(tmp_path / "all.kcache")

    assert other.info().entries == cache.info().entries >= 3


def test_command_line_administrates_without_cuda_and_numba(tmp_path: Path) -> None:
    """Each command that needs no compiler works in processes that can import neither CUDA, a Numba, nor NumPy."""
    cache = KernelCache(tmp_path / "cache")
    kernel = cached_kernel(SAXPY, cache=cache)
    kernel.compile("sm_90")
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    names = [each for each in (*MODULES, "cuda") if "." not in each]
    (blocked / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({names}))\n")
    env = {**os.environ, "PYTHONPATH": f"{blocked}:{ROOT}", "NUMBA_KCACHE_DIR": str(tmp_path / "cache")}
    bundle, page = str(tmp_path / "a.kcache"), str(tmp_path / "report.html")

    for arguments in (
        ["info"], ["list"], ["show", kernel.key("sm_90")], ["verify"], ["export", bundle], ["import", bundle],
        ["report", page], ["prune", "--older-than", "30d"], ["clear"],
    ):  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", "numba_kcache", *arguments], env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
    assert KernelCache(tmp_path / "cache").info().entries == 0


def test_doctor_says_which_numbas_are_there(tmp_path: Path) -> None:
    """Each is listed with its version, or as a note with the extra to install; an absent one is no fault."""
    cache = KernelCache(tmp_path / "cache")
    numba_kcache.configure(directory=cache.directory)
    done = subprocess.run(
        [sys.executable, "-m", "numba_kcache", "doctor", "--json"], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_KCACHE_DIR": str(tmp_path / "cache")},
    )  # fmt: skip
    findings = {each["subject"]: each for each in json.loads(done.stdout)["findings"]}

    for name, extra in (("numba-cuda", "numba"), ("numba-cuda-mlir", "mlir")):
        try:
            version = distribution(name).version
        except PackageNotFoundError:
            assert findings[name]["state"] == "note"
            assert findings[name]["advice"].endswith(f"pip install 'numba-kcache[{extra}]'")
        else:
            assert (findings[name]["state"], findings[name]["says"]) == ("fine", version)
    versions = ("cuda-bindings", "numba", "cuda-core", "numpy")
    assert {findings[each]["state"] for each in versions if each in findings} == {"fine"}


def test_numba_of_the_maker_decides_nothing_where_any_compiler_will_do(tmp_path: Path) -> None:
    """An entry made with another Numba, or with none, is a miss under `exact` and a hit under `any`."""
    for name in ("numba", "numba_cuda"):
        (tmp_path / "site" / f"{name}-99.9.dist-info").mkdir(parents=True)
        (tmp_path / "site" / f"{name}-99.9.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: 99.9\n")
    script = f"""
from numba_kcache import *
cached_kernel({SAXPY!r}).compile("sm_90")
print(info("process").hits, info("process").misses)
"""
    said = []
    for path, toolchain in ((f"{tmp_path / 'site'}:{ROOT}", "exact"), (str(ROOT), "any"), (str(ROOT), "exact")):
        env = {**os.environ, "PYTHONPATH": path, "NUMBA_KCACHE_TOOLCHAIN": toolchain}
        said.append(run(script, env={**env, "NUMBA_KCACHE_DIR": str(tmp_path / "cache")}).stdout)

    assert said == ["0 1\n", "1 0\n", "0 1\n"]


@pytest.mark.parametrize("use", ["launch", "compile"])
def test_numba_kernel_without_numba_names_the_extra(tmp_path: Path, use: str) -> None:
    """The error names the extra, also if the other Numba is installed."""
    script = f"""
import sys
sys.modules["numba"] = None
from numba_kcache import *
@cached_kernel(kind="numba")
def add(x):
    x[0] += 1
try:
    add[1, 1](None) if {use!r} == "launch" else add.compile("sm_90", signature="void(float32[::1])")
except ToolchainMissingError as error:
    print(isinstance(error, ImportError), error)
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_KCACHE_DIR": str(tmp_path / "cache")}
    said = run(script, env=env).stdout

    assert said.startswith("True cannot use a Numba kernel: numba-cuda cannot be imported")
    assert said.endswith("hint: pip install 'numba-kcache[numba]'\n")


def test_missing_nvrtc_names_the_extra(tmp_path: Path) -> None:
    """Compiling says what to install."""
    script = f"""
import sys
from numba_kcache.toolchain import locating
locating.locate = lambda *_asked: None
sys.modules["cuda.bindings.nvrtc"] = None
from numba_kcache import *
try:
    cached_kernel({SAXPY!r}).compile("sm_90")
except ToolchainMissingError as error:
    print(error)
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_KCACHE_DIR": str(tmp_path / "cache")}

    assert "pip install 'numba-kcache[cu13]'" in run(script, env=env).stdout


# -- numba-cuda ------------------------------------------------------------------------------------------------

NUMBA = """
import numpy as np
from numba import cuda
@cached_kernel
def scale(x, factor):
    x[0] *= factor
array = cuda.device_array(N, np.float32)
"""


@needs_numba
@needs_fake_driver
def test_numba_kernel_and_cuda_kernel_share_arrays_and_cache(tmp_path: Path) -> None:
    """One process launches both cold and the next one warm; a variable is a Numba array there."""
    script = f"""{NUMBA}
table = cached_module('__device__ float t[4]; extern "C" __global__ void one() {{ t[0] = 1; }}')
for _ in range(12):
    scale[1, 1](array, np.float32(2))
    cached_kernel(SAXPY)[1, 32](2.0, array, array, 0)
print(type(table.symbol("t")) is type(array), info("process").misses, "numba_cuda_mlir" in sys.modules)
"""
    said = [child(tmp_path, script, "launch", of=of) for of in ("numba", "")]

    assert [each for each, _ in said] == ["True 3 False\n", "True 0 False\n"]
    assert [each["result"] for each in said[1][1]] == [0] * 48


@needs_numba
@needs_fake_driver
def test_target_that_numba_itself_brings_lends_arrays_and_is_left_alone(tmp_path: Path) -> None:
    """Without numba-cuda, `numba.cuda` of Numba itself gives arrays, streams and wrappers to CUDA C++ kernels; its own
    kernels are not cached."""
    script = """
sys.modules['numba_cuda_mlir'] = None  # install() waits for it where it is installed
sys.meta_path[:] = [each for each in sys.meta_path if type(each).__name__ != "NumbaCudaFinder"]
key = cached_kernel(SAXPY).key("sm_90")
import numpy as np
from numba import cuda
assert cuda.implementation != "NVIDIA"
cuda.cudadrv.driver.Driver._initialize_extras = lambda self: None  # the fake driver has no IPC
kernel, array = cached_kernel(SAXPY), cuda.device_array(N, np.float32)
for _ in range(12):
    kernel[1, 32, cuda.stream()](2.0, array, cuda.InOut(np.ones(N, np.float32)), 0)
assert key == cached_kernel(SAXPY).key("sm_90")
@cached_kernel
def add(x):
    x[0] += 1
before = dict(vars(type(cuda.jit(add.__wrapped__))))
for use in (lambda: add[1, 1](array), install):
    try:
        use()
    except ToolchainMissingError as error:
        print(str(error).splitlines()[-1])
print(dict(vars(type(cuda.jit(add.__wrapped__)))) == before)
"""
    for more in ({}, {"NUMBA_KCACHE_INSTALL": "all"}):
        said, launches = child(tmp_path, script, "launch", **more)

        assert said.splitlines() == ["  hint: pip install 'numba-kcache[numba]'"] * 2 + ["True"]
    assert [each["result"] for each in launches] == [0] * 24


SIMULATED = """
import numpy as np
from numba import cuda
import numba_kcache
from numba_kcache import *
"""


def simulated(tmp_path: Path, script: str, **more: str) -> str:
    """Run a child under Numba's simulator; its output."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_KCACHE_DIR": str(tmp_path), "NUMBA_ENABLE_CUDASIM": "1"}
    return run(SIMULATED + script, env={**env, **more}).stdout


@needs_numba
@pytest.mark.parametrize("decorator", ["cached_kernel", "cached_kernel(max_registers=32)", "cached_kernel(cuda.jit)"])
def test_numba_kernel_runs_in_the_simulator(tmp_path: Path, decorator: str) -> None:
    """Results in the simulator equal those without this package: grids, `forall`, streams, shared memory, device
    functions."""
    script = f"""
@cuda.jit(device=True)
def half(x):
    return x / 2
def reverse(x, out, factor):
    part = cuda.shared.array(0, np.dtype("f8"))
    i, t = cuda.grid(1), cuda.threadIdx.x
    part[t] = half(x[i])
    cuda.syncthreads()
    out[i] = factor * part[cuda.blockDim.x - 1 - t]
plain = cuda.jit(reverse)
def run(kernel, launch):
    x, out = cuda.to_device(np.arange(8.0)), cuda.device_array(8)
    launch(kernel)(x, out, 3)
    return out.copy_to_host().tolist()
decorate = {decorator.replace("cached_kernel(cuda.jit)", "lambda f: cached_kernel(cuda.jit(f))")}
cached = decorate(reverse)
launches = [lambda k: k[2, 4, 0, 32], lambda k: k[(1, 1), (8,), cuda.stream(), 64], lambda k: k.forall(8, 0, 0, 8)]
print([run(cached, each) == run(plain, each) for each in launches], run(cached, launches[0])[:3])
print(dict(cached.overloads))
print(info("process").errors, info("process").misses)
"""
    assert simulated(tmp_path, script) == "[True, True, True] [4.5, 3.0, 1.5]\n{}\n0 0\n"


@needs_numba
@pytest.mark.parametrize("how", ["call", "variable"])
def test_install_leaves_the_simulator_alone(tmp_path: Path, how: str) -> None:
    """Unedited programs run as without the package; `uninstall()` has nothing to restore."""
    script = """
if HOW == "call":
    numba_kcache.install()
    numba_kcache.install(all=True)
@cuda.jit(cache=True)
def add(x):
    x[cuda.grid(1)] += 1
x = np.zeros(4)
add[1, 4](x)
numba_kcache.uninstall()
add[1, 4](x)
print(x.tolist())
""".replace("HOW", repr(how))
    more = {"NUMBA_KCACHE_INSTALL": "all"} if how == "variable" else {}

    assert simulated(tmp_path, script, **more) == "[2.0, 2.0, 2.0, 2.0]\n"


@needs_numba
def test_simulator_refuses_cuda_kernels_and_compiles_in_words(tmp_path: Path) -> None:
    """CUDA C++ compiles ahead, but its launch raises the reason. A Numba kernel launches, but does not compile
    ahead."""
    script = f"""
kernel = cached_kernel({SAXPY!r})
kernel.compile("sm_90")
@cached_kernel
def add(x):
    x[0] += 1
array = cuda.device_array(8)
for use in (lambda: kernel[1, 32](2.0, array, array, 8), lambda: kernel.compile(),
            lambda: add.compile("sm_90", signature="void(float64[::1])")):
    try:
        use()
    except KCacheError as error:
        print(type(error).__name__, "NUMBA_ENABLE_CUDASIM is set" in str(error), "simulator" in str(error))
"""
    assert simulated(tmp_path, script).splitlines() == [
        "NoDeviceError True True", "NoDeviceError True True", "ToolchainMissingError True True",
    ]  # fmt: skip


# -- numba-cuda-mlir -------------------------------------------------------------------------------------------


@needs_mlir
@needs_fake_driver
def test_cuda_kernel_takes_arrays_and_streams_of_mlir(tmp_path: Path) -> None:
    """A CUDA C++ kernel takes them with the NumPy of that environment, without importing numba-cuda."""
    script = """
import numpy as np
from numba_cuda_mlir import cuda
array, stream = cuda.device_array(N, np.float32), cuda.stream()
kernel = cached_kernel(SAXPY)
for _ in range(12):
    kernel[1, 32](np.float32(2), array, array, np.int32(0))
    kernel[1, 32, stream](2.0, array, array, 0)
print("numba" in sys.modules)
"""
    said, launches = child(tmp_path, script, "launch")

    assert said == "False\n"
    assert [each["result"] for each in launches] == [0] * 24
    assert len({each["stream"] for each in launches}) == 2


@needs_mlir
@pytest.mark.skipif(find_spec("numba_cuda") is not None, reason="numba-cuda takes no newer NumPy than 2.4")
def test_mlir_alone_has_the_newest_numpy() -> None:
    """That is 2.5 or newer, which numba-cuda does not support: no dependency of this package holds it back."""
    if sys.version_info < (3, 12):
        pytest.skip("NumPy 2.5 needs Python 3.12")
    import numpy

    assert tuple(map(int, numpy.__version__.split(".")[:2])) >= (2, 5)


@needs_numba
@needs_mlir
@needs_fake_driver
def test_both_numbas_work_in_one_process(tmp_path: Path) -> None:
    """Kernels of numba-cuda and CUDA C++ on arrays of both, whichever was imported first."""
    first, second = "from numba import cuda", "from numba_cuda_mlir import cuda as mlir"
    for of, lines in (("numba", (first, second)), ("mlir", (second, first))):
        script = f"""
import numpy as np
{lines[0]}
{lines[1]}
@cached_kernel
def scale(x, factor):
    x[0] *= factor
ours, theirs = cuda.device_array(N, np.float32), mlir.device_array(N, np.float32)
for _ in range(12):
    cached_kernel(SAXPY)[1, 32](2.0, ours, theirs, 0)
    scale[1, 1](ours, np.float32(2))
"""
        child(tmp_path, script, of=of)
    launches = read_log(tmp_path / "log", "launch")

    assert [each["result"] for each in launches] == [0] * 48


@needs_fake_driver
def test_install_line_of_the_readme_brings_what_its_example_needs(tmp_path: Path) -> None:
    """A reader who copies both gets no error: the example runs where that line was followed."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    numba = readme.index("### A Numba kernel")
    line, example = readme.index("pip install", numba), readme.index("```python", numba)
    extras = set(re.findall(r"\[([\w,]+)\]", readme[line:])[0].split(","))
    code = readme[example:].partition("\n")[2].partition("```")[0]

    assert line < example
    assert {"cu13", *(("numba",) if "from numba import cuda" in code else ())} == extras
    assert "import cupy" not in code or "cupy" in readme[line:example]
    if find_spec("numba_cuda") is not None and find_spec("cupy") is not None:
        assert child(tmp_path, code, "launch")[1]
