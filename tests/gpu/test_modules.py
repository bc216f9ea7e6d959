"""Modules on a real device: every kernel of the example compared with NumPy, variables, templates, compiled code."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from numba_kcache import CachedModule, KernelCache, cached_kernel, cached_module

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]
SOURCE = r"""
__constant__ double coeffs[2][3];
__device__ int counter = 7;
__device__ const float table[4] = {1, 2, 3, 4};
struct Pair { int a; float b; };
__device__ Pair pair;
namespace ns { __device__ float2 vector; }
extern "C" __global__ void weigh(double *x) { x[threadIdx.x] *= coeffs[1][threadIdx.x]; }
extern "C" __global__ void count() { atomicAdd(&counter, 1); }
extern "C" __global__ void seen(int *x) { x[0] = counter; }
extern "C" __global__ void look(float *x) { x[threadIdx.x] = table[threadIdx.x]; }
extern "C" __global__ void set_all() { pair.a = 3; pair.b = 0.5f; ns::vector = make_float2(1, 2); }
template <class T, int N> struct box { T value[N]; };
template <class T, int N> __global__ void fill(T *x) { x[threadIdx.x] = T(N) / T(2); }
template <class T> __global__ void size_of(int *x) { x[0] = sizeof(T); }
"""
NAMES = ["weigh", "count", "seen", "look", "set_all", "fill<float, 5>", "fill<int, 5>", "size_of<box<double, 3>>"]


@pytest.fixture
def cache(tmp_path: Path) -> KernelCache:
    return KernelCache(tmp_path / "cache")


def to_device(values: Any) -> Any:
    from numba import cuda

    return cuda.to_device(values)


def example() -> ModuleType:
    """examples/gemm_module.py, which has the reference results."""
    found = importlib.util.spec_from_file_location("gemm_module", ROOT / "examples/gemm_module.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, tuple[ModuleType, CachedModule]]:
    """The example with its module, eager and lazy, each compiled once for all tests."""
    cache = KernelCache(tmp_path_factory.mktemp("gemm"))
    return {
        lazy: (example(), cached_module(ROOT / "examples/tropical_gemm.cu", lazy=lazy, cache=cache))
        for lazy in (False, True)
    }


def names_of_products() -> list[str]:
    rings, types = ("maxplus", "minplus", "maxmul"), ("f32", "f64", "i32", "i64")
    found = [f"{ring}_{each}{kind}" for ring in rings for each in types for kind in ("", "_arg")]
    found += [f"{ring}_f32_batched" for ring in rings]
    return found + [f"backward_{of}_{each}" for of in "ab" for each in ("f32", "f64")]


@pytest.mark.parametrize("lazy", [False, True], ids=["eager", "lazy"])
@pytest.mark.parametrize("name", names_of_products())
def test_product_is_numpy_s(products: dict[bool, Any], name: str, lazy: bool) -> None:
    """Results equal NumPy's on odd sizes, with ties and infinities, for kernels compiled together and linked
    separately."""
    reference, module = products[lazy]
    reference.gemm = module

    reference.check(name)


def test_example_has_these_kernels(products: dict[bool, Any]) -> None:
    """The list above has every kernel of the example."""
    assert sorted(products[False][1]) == sorted(names_of_products())
    assert len(names_of_products()) == 31


def test_example_says_that_it_launched(tmp_path: Path) -> None:
    """The second process of the example compiles nothing."""
    script = str(ROOT / "examples/gemm_module.py")
    done = subprocess.run([sys.executable, script, "--lazy"], capture_output=True, text=True, check=False, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "0 compiles" in done.stdout.splitlines()[1]
    assert done.stdout.count("launched and checked against NumPy") == 2


def test_variables_are_the_kernels_own(cache: KernelCache) -> None:
    """The host writes and kernels read, kernels write and the host reads: cold, and from the store."""
    for _ in range(2):
        module = cached_module(SOURCE, NAMES, cache=cache)
        coeffs, x = module.symbol("coeffs"), to_device(np.ones(3))
        coeffs.copy_to_device(np.arange(6.0).reshape(2, 3))
        module.weigh[1, 3](x)
        before = int(module.symbol("counter").copy_to_host())
        module.count[2, 32]()
        result = to_device(np.zeros(1, np.int32))
        module.seen[1, 1](result)

        np.testing.assert_array_equal(x.copy_to_host(), [3, 4, 5])
        assert int(module.symbol("counter").copy_to_host()) == result.copy_to_host()[0] == before + 64
        module.set_all[1, 1]()
        pair = module.symbol("pair", [("a", "i4"), ("b", "f4")]).copy_to_host()
        assert pair.ravel().tolist() == [(3, 0.5)]
        np.testing.assert_array_equal(module.symbol("ns::vector").copy_to_host(), [1, 2])
        cache.session.forget()


def test_symbol_is_an_argument(cache: KernelCache) -> None:
    """A kernel takes a variable of a module like any array."""
    module = cached_module(SOURCE, NAMES, cache=cache)
    module["fill<float, 5>"][1, 2](module.symbol("ns::vector"))

    np.testing.assert_array_equal(module.symbol("ns::vector").copy_to_host(), [2.5, 2.5])


@pytest.mark.parametrize("lazy", [False, True], ids=["eager", "lazy"])
def test_templates_by_name_expression_compute(cache: KernelCache, lazy: bool) -> None:
    """Each instance has its own code; nested brackets and commas are allowed."""
    module = cached_module(SOURCE, NAMES, lazy, cache=cache)
    floats, integers, size = (to_device(np.zeros(4, each)) for each in (np.float32, np.int32, np.int32))
    module["fill<float,5>"][1, 4](floats)
    module["fill<int,5>"][1, 4](integers)
    module["size_of<box<double,3>>"][1, 1](size)

    assert (floats.copy_to_host() == 2.5).all()
    assert (integers.copy_to_host() == 2).all()
    assert size.copy_to_host()[0] == 24


def test_lazy_kernel_has_the_constants_of_the_source(cache: KernelCache) -> None:
    """A table that no kernel writes to is linked with each kernel."""
    x = to_device(np.zeros(4, np.float32))
    cached_module(SOURCE, NAMES, True, cache=cache).look[1, 4](x)

    np.testing.assert_array_equal(x.copy_to_host(), [1, 2, 3, 4])


def test_values_of_a_template_reach_the_device(cache: KernelCache) -> None:
    """The instance has the defaults, other values, or macros."""

    @cached_kernel(cache=cache, defines={"SCALE": 3})
    def fill(T: str = "float", TILE: int = 16) -> str:
        return f'extern "C" __global__ void fill({T} *x) {{ x[threadIdx.x] = SCALE * {TILE}; }}'

    floats, doubles = to_device(np.zeros(2, np.float32)), to_device(np.zeros(2))
    fill[1, 2](floats)
    fill.instantiate(T="double", TILE=5)[1, 2](doubles)

    assert floats.copy_to_host().tolist() == [48, 48]
    assert doubles.copy_to_host().tolist() == [15, 15]


@pytest.mark.parametrize("output", ["cubin", "ltoir", "ptx"])
def test_code_that_was_made_before_runs(cache: KernelCache, tmp_path: Path, output: str) -> None:
    """Compiled code runs from bytes and from a file; with a signature its arguments are checked and converted."""
    from numba import cuda

    from tests.support.compiling import SAXPY, compiled

    major, minor = cuda.current_context().device.compute_capability
    code = compiled(SAXPY, output, f"sm_{major}{minor}", *(["-dlto"] if output == "ltoir" else []))
    code = code.rstrip(b"\0") if output == "ptx" else code
    path = tmp_path / f"saxpy.{output}"
    path.write_bytes(code)
    x, y = to_device(np.ones(100, np.float32)), to_device(np.ones(100, np.float32))
    for thing in (path, code):
        cached_kernel(thing, cache=cache, signature="float, const float*, float*, int")[1, 128](2, x, y, 100)

    assert (y.copy_to_host() == 5).all()


def test_code_of_a_faster_compile_computes_the_same(cache: KernelCache) -> None:
    """The code is slower, and its results are equal."""
    source = 'extern "C" __global__ void k(float *x) { x[threadIdx.x] = x[threadIdx.x] * 3 + 1; }'
    for level in ("min", "mid", "max"):
        x = to_device(np.arange(32, dtype=np.float32))
        cached_kernel(source, cache=cache, options=[f"--Ofast-compile={level}"])[1, 32](x)
        np.testing.assert_array_equal(x.copy_to_host(), np.arange(32) * 3 + 1)
