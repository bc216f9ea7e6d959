"""cuda.compute on the cache, without a GPU: built ahead of time, served to other processes, and nothing stale.

Programs run on the fake driver, which cuda.compute's extension needs to be imported. What a program finds is asked in a
frozen cache, which builds nothing: what it does not hold is an error.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from numba_kcache import KernelCache
from numba_kcache.store import StoredEntry
from tests.support import fake_driver, numba_server
from tests.support.compiling import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("cuda.compute") is None, reason="cuda-cccl is not installed"),
]
needs_mlir = pytest.mark.skipif(
    importlib.util.find_spec("numba_cuda_mlir") is None, reason="numba-cuda-mlir is not installed"
)

START = """
import json, sys
import numpy as np
import numba_kcache
from numba_kcache import FrozenCacheError
from numba_kcache.adapters.cuda_compute import cached
numba_kcache.install(cuda_compute=True)
from cuda import compute
from cuda.compute import OpKind, ProxyArray, iterators, op, types

f, zero = ProxyArray(np.float32), np.zeros(1, np.float32)
FACTOR = 3

def transform(operator, x=f, out=f, capability=90):
    return compute.make_unary_transform(d_in=x, d_out=out, op=operator, compute_capability=capability)

def scale(x):
    return x * FACTOR

def is_served(make):
    compute.clear_all_caches()
    try:
        make()
    except FrozenCacheError:
        return False
    return True

def say(*values):
    counts = numba_kcache.info("process")
    print(json.dumps([counts.misses, counts.hits, counts.errors, *values]))
"""


def run(directory: Path, program: str, *, of: str = "cuda.compute", **settings: str) -> list[Any]:
    """Return misses, hits, errors and what else the program says; `of`: what is imported before the fork."""
    folder = fake_driver.build()
    if folder is None:
        pytest.skip("no C compiler for the fake driver")
    environment = {
        **fake_driver.environment(folder), "NUMBA_KCACHE_DIR": str(directory),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), **settings,
    }  # fmt: skip
    told: list[Any] = json.loads(numba_server.output(["-c", START + program], environment, of).splitlines()[-1])
    return told


def frozen(directory: Path, program: str, **settings: str) -> list[Any]:
    return run(directory, program, NUMBA_KCACHE_MODE="frozen", **settings)


def numbers_in(directory: Path, *numbers: float) -> list[list[float]]:
    """List those of these numbers that are constants in the code of each entry, by the upper half of the double."""
    cache = KernelCache(directory)
    codes = [cache.session.local.get(each.key).payloads["built"] for each in cache.entries()]  # type: ignore[union-attr]
    return sorted([each for each in numbers if struct.pack("<d", each)[4:] in code] for code in codes)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with a transform of a well-known operator for two compute capabilities."""
    directory = tmp_path_factory.mktemp("built") / "cache"
    said = run(directory, "transform(OpKind.NEGATE, capability=[80, 90]); say()")
    assert said == [2, 0, 0]
    return directory


@pytest.fixture(scope="module")
def built_of_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with a transform of an operator that is written in Python."""
    directory = tmp_path_factory.mktemp("python") / "cache"
    assert run(directory, "transform(scale); say()", of="mlir") == [1, 0, 0]
    return directory


@pytest.fixture
def copy(built: Path, tmp_path: Path) -> Path:
    shutil.copytree(built, tmp_path / "copy")
    return tmp_path / "copy"


def test_other_process_is_served_each_compute_capability(built: Path) -> None:
    """Code is served for one target or a list in any order and spelling; another target is a miss. Nothing is
    decompressed. Each call is a look-up, since headers may have changed."""
    program = """
say(is_served(lambda: transform(OpKind.NEGATE, capability=80)),
    is_served(lambda: transform(OpKind.NEGATE, capability=["9.0", (8, 0)])),
    "zstandard" in sys.modules,
    is_served(lambda: transform(OpKind.NEGATE, capability=86)))
"""
    assert frozen(built, program) == [0, 3, 0, True, True, False, False]


def test_device_is_served_what_was_built_ahead(built: Path) -> None:
    """An entry built ahead is loaded for a real array; a second call gets the same object, another thread the same
    code."""
    program = """
from threading import Thread
from cuda.core import Device

Device(0).set_current()

class Array:
    dtype = np.dtype(np.float32)
    __cuda_array_interface__ = {"shape": (9,), "typestr": "<f4", "version": 3, "strides": None, "data": (256, False)}

x, made = Array(), []
make = lambda: made.append(transform(OpKind.NEGATE, x, x, None))
make()
make()
thread = Thread(target=make)
thread.start()
thread.join()
say(made[0] is made[1], made[2] is made[0], made[2].build_results is made[0].build_results,
    made[0]._bound_build_result is not None)
"""
    assert frozen(built, program) == [0, 2, 0, True, False, True, True]


def test_what_decides_code_is_in_the_key(built: Path) -> None:
    """These are the operator, dtypes of input and output, the iterator's kind, the algorithm and the version of
    cuda-cccl."""
    program = """
i = ProxyArray(np.int32)
asked = [is_served(each) for each in (
    lambda: transform(OpKind.NEGATE),
    lambda: transform(OpKind.IDENTITY),
    lambda: transform(OpKind.NEGATE, i),
    lambda: transform(OpKind.NEGATE, f, i),
    lambda: transform(OpKind.NEGATE, iterators.CountingIterator(np.float32(0))),
    lambda: compute.make_reduce_into(d_in=f, d_out=f, op=OpKind.PLUS, h_init=zero, compute_capability=90),
)]
say(*asked)
"""
    other = 'import cuda.cccl; cuda.cccl.__version__ += ".1"; say(is_served(lambda: transform(OpKind.NEGATE)))'

    assert frozen(built, program)[3:] == [True, False, False, False, False, False]
    assert frozen(built, other)[3:] == [False]


OTHER_TOOLKIT = """
from cuda.cccl.headers import include_paths
include_paths.find_nvidia_header_directory = lambda name: Path({folder!r})
include_paths.get_include_paths.cache_clear()
transform(OpKind.NEGATE)
say()
"""


def test_any_header_that_nvrtc_read_is_in_the_key(tmp_path: Path) -> None:
    """Also one that cuda.compute's own headers include, far from the names that are known to it."""
    from numba_kcache.toolchain import installed_include_dirs

    folder, installed = tmp_path / "toolkit", Path(installed_include_dirs()[-1])
    folder.mkdir()
    for each in installed.iterdir():
        (folder / each.name).symlink_to(each)
    program, cache = "from pathlib import Path" + OTHER_TOOLKIT.format(folder=str(folder)), tmp_path / "cache"
    assert [run(cache, program)[:2] for _ in range(2)] == [[1, 0], [0, 1]]

    edited = folder / "cuda_fp8.hpp"
    text = edited.read_text()
    edited.unlink()
    edited.write_text(f"{text}\n// edited\n")

    assert run(cache, program)[:2] == [1, 0]
    (folder / "not_read.h").write_text("")
    assert run(cache, program)[:2] == [0, 1]


def test_every_algorithm_is_led_through_the_cache(tmp_path: Path) -> None:
    """Every algorithm that cuda.compute can serialise is cached."""
    program = """
from cuda.compute._serialization import Serializable
from numba_kcache.adapters import cuda_compute
say(sorted(set(Serializable._registry) ^ set(cuda_compute._replaced)))
"""
    assert run(tmp_path, program)[3:] == [[]]


@needs_mlir
def test_operator_in_python_counts_by_its_code(built_of_python: Path) -> None:
    """Location and comments of an operator do not count; constants, globals and called functions do. No compiler is
    loaded."""
    program = """
first = scale

def scale(x):
    # the same, elsewhere
    return x * FACTOR

def changed(x):
    return x * FACTOR + 1

def helper(x):
    return x * FACTOR

def calls(x):
    return helper(x)

asked = [is_served(lambda: transform(each)) for each in (first, scale, changed, calls)]
FACTOR = 4
asked.append(is_served(lambda: transform(scale)))
say(*asked, "numba_cuda_mlir" in sys.modules)
"""
    assert frozen(built_of_python, program)[3:] == [True, True, False, False, False, False]


REGISTERED = """
from numba_cuda_mlir import cuda, extending

def doubled(x):
    raise NotImplementedError

def of_number(x):
    return lambda x: x * FACTOR

extending.overload(doubled, typing_registry=extending.typing_registry)(of_number)

@cuda.jit(device=True)
def shifted(x):
    return x + SHIFT

def operator(x):
    return doubled(x) + shifted(x)

FACTOR, SHIFT = 1234.5, 2345.5
"""


@needs_mlir
def test_operator_counts_by_what_is_registered_and_decorated(tmp_path: Path) -> None:
    """An unchanged implementation is served; its globals count, and those of a device function, even if one with the
    old global is compiled."""
    program = f"{REGISTERED}\ntransform(operator)\nFACTOR, SHIFT = 4321.5, 5432.5\ntransform(operator)\nsay()"
    asked = f"{REGISTERED}\nasked = []\nfor FACTOR in 1234.5, 4321.5:\n    for SHIFT in 2345.5, 5432.5:\n"
    asked += "        asked.append(is_served(lambda: transform(operator)))\nsay(*asked)"

    assert run(tmp_path, program, of="mlir") == [2, 0, 0]
    assert numbers_in(tmp_path, 1234.5, 2345.5, 4321.5, 5432.5) == [[1234.5, 2345.5], [4321.5, 5432.5]]
    assert frozen(tmp_path, asked)[3:] == [True, False, False, True]


@needs_mlir
def test_structs_that_were_compiled_keep_keys(built_of_python: Path) -> None:
    """cuda.compute registers each struct with the compiler: an operator without structs is still a hit."""
    program = """
import contextlib
Pair = compute.gpu_struct({"a": np.float32, "b": np.int32})
def first(x):
    return Pair(x, 1)
with contextlib.suppress(Exception):
    transform(first, f, ProxyArray(Pair))
from cuda.compute import _jit
import numba_cuda_mlir.cuda
say(is_served(lambda: transform(scale)))
"""
    assert frozen(built_of_python, program)[3:] == [True]


def test_arguments_that_cannot_be_told_are_built_as_ever(built: Path) -> None:
    """A user's iterator and an operator without a key are built by cuda.compute with one event; a frozen cache refuses
    both."""
    program = """
import os

class Mine(iterators.CountingIterator):
    pass

class State:
    value = 2

state = State()

def impure(x):
    return x * state.value

said = []
for make in (lambda: transform(OpKind.NEGATE, Mine(np.float32(0))), lambda: transform(impure)):
    try:
        make()
    except FrozenCacheError as error:
        said.append(str(error))
say(*said)
"""
    *_, iterator, operator = frozen(built, program)

    assert "Mine is not one of cuda.compute's" in iterator
    assert "its operator cannot be keyed" in operator


def test_error_of_cuda_compute_is_its_own(tmp_path: Path) -> None:
    """cuda.compute's error keeps type and text, nothing is stored, and a second call raises it again."""
    program = """
said = []
for _ in range(2):
    try:
        transform(OpKind.NEGATE, ProxyArray(np.int32), f)  # refused before NVRTC compiles anything
    except Exception as error:
        said.append(type(error).__name__)
say(*said, numba_kcache.info().entries)
"""
    assert run(tmp_path, program)[3:] == ["RuntimeError", "RuntimeError", 0]


def test_block_asks_its_cache_alone(copy: Path, tmp_path: Path) -> None:
    """Within `cached(cache)` only that cache is used; afterwards cuda.compute's own constructors are back."""
    program = f"""
numba_kcache.uninstall()
from cuda.compute.algorithms._transform import _UnaryTransform
plain = _UnaryTransform.__init__
cache = numba_kcache.KernelCache({str(copy)!r}, mode="frozen")
with cached(cache):
    assert _UnaryTransform.__init__ is not plain
    served = is_served(lambda: transform(OpKind.NEGATE))
assert _UnaryTransform.__init__ is plain
say(served, cache.info("process").hits)
"""
    assert run(tmp_path / "own", program) == [0, 0, 0, True, 1]


def test_code_that_no_observed_compile_made_is_not_stored(tmp_path: Path) -> None:
    """Another NVRTC made it, or it was kept from before: the headers that it depends on are not known."""
    program = """
import warnings
warnings.simplefilter("ignore")
from numba_kcache.adapters import compute_builds
compute_builds._Entry._build = lambda self, components: {"object": b"text", "code": b"code"}
compute_builds._take = lambda *_: None
transform(OpKind.IDENTITY)
say(numba_kcache.info().entries)
"""
    assert run(tmp_path, program)[3:] == [0]


def test_code_that_cannot_be_read_is_set_aside_and_built(copy: Path) -> None:
    """Someone with write access stored rubbish under valid digests."""
    cache = KernelCache(copy)
    store: Any = cache.session.local
    for each in cache.entries():
        stored = store.get(each.key)
        rubbish = bytes(len(stored.payloads["built"]))
        assert store.put(StoredEntry(each.key, stored.header, {**stored.payloads, "built": rubbish}))

    misses, hits, errors, made = run(copy, "say(type(transform(OpKind.NEGATE)).__name__)")
    assert made == "_UnaryTransform"
    assert (misses, hits) == (0, 1)
    assert errors > 0
    assert frozen(copy, "say(is_served(lambda: transform(OpKind.NEGATE)))") == [0, 0, 0, False]


def test_bundle_carries_algorithms(built: Path, tmp_path: Path) -> None:
    """Algorithms are ordinary entries of a bundle, listed by the algorithm's name."""
    cache = KernelCache(built)
    report = cache.export_bundle(tmp_path / "all.kcache")
    program = f"numba_kcache.register_bundle({str(tmp_path / 'all.kcache')!r}); "
    program += "say(is_served(lambda: transform(OpKind.NEGATE)))"

    assert {each.kernels for each in cache.entries()} == {("cuda.compute:UnaryTransform",)}
    assert report.entries == 2
    assert frozen(tmp_path / "new", program)[3:] == [True]
