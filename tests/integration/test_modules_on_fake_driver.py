"""Modules as the driver sees them: what is loaded, how often, and where a variable is. No kernel runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import numba_server
from tests.support.fake_driver import build, environment, needs_fake_driver, read_log, run

pytestmark = [needs_fake_driver, pytest.mark.slow]

HEAD = r"""
import sys, pickle
import numpy as np
from numba import cuda
from numba_kcache import *
SOURCE = '''
struct Pair { int a; float b; };
__constant__ double coeffs[3][5];
__device__ int counter = 7;
__device__ Pair pair;
namespace ns { __device__ float2 vector; }
extern "C" __global__ void axpy(float a, const float *x, float *y) { y[0] = a * x[0] + (float)coeffs[1][2]; }
extern "C" __global__ void count() { atomicAdd(&counter, pair.a); ns::vector.x += 1; }
template <class T, int N> __global__ void fill(T *x) { x[threadIdx.x] = N; }
'''
NAMES = ["axpy", "count", "fill<double, 3>"]
cache = KernelCache(sys.argv[1])
"""


def seen(tmp_path: Path, script: str, *events: str, devices: tuple[int, ...] = (90,), head: str = HEAD) -> Any:
    """Lines that the child printed, and the driver's events of these kinds."""
    log = tmp_path / "log"
    log.unlink(missing_ok=True)
    env, cache = environment(build(), log=log, devices=devices), tmp_path / "cache"
    if head is HEAD:
        return numba_server.in_turn(head + script, cache, env), read_log(log, *events)
    return run(["-c", head + script, str(cache)], env=env).stdout, read_log(log, *events)  # without Numba


LAUNCH_ALL = """
m = cached_module(SOURCE, NAMES, LAZY, cache=cache)
for _ in range(2):
    m.axpy[1, 32](2.0, None, None)
    m["fill<double,3>"][1, 32](None)
    if not LAZY:
        m.count[1, 32]()
print(cache.info("process").compiles, cache.info("process").hits, cache.info("process").misses)
"""


def test_eager_module_is_loaded_once_for_all_its_kernels(tmp_path: Path) -> None:
    """This holds in the process that compiles it and in the next, which compiles nothing."""
    for counts in ("1 0 1", "0 1 0"):
        said, events = seen(tmp_path, "LAZY = False" + LAUNCH_ALL, "load", "launch")

        assert said.strip() == counts
        assert [each.get("kernel") for each in events] == [
            None, *["axpy", "_Z4fillIdLi3EEvPT_", "count"] * 2,
        ]  # fmt: skip


def test_lazy_module_loads_the_kernels_that_are_used(tmp_path: Path) -> None:
    """Each kernel has its own code; the next process links nothing."""
    for counts in ("3 0 3", "0 3 0"):
        said, events = seen(tmp_path, "LAZY = True" + LAUNCH_ALL, "load", "launch")

        assert said.strip() == counts
        assert [each.get("kernel") for each in events[:4]] == [None, "axpy", None, "_Z4fillIdLi3EEvPT_"]
        assert [each["event"] for each in events[4:]] == ["launch", "launch"]


def test_each_device_has_the_module_once(tmp_path: Path) -> None:
    """Kernels of one module share it there."""
    script = """
m = cached_module(SOURCE, NAMES, cache=cache)
for device in (0, 1, 0):
    cuda.select_device(device)
    m.axpy[1, 32](2.0, None, None)
    m.count[1, 32]()
    print(m.symbol("counter").gpu_data.device_ctypes_pointer.value)
"""
    said, events = seen(tmp_path, script, "load", "launch", devices=(90, 90))

    addresses = said.split()
    assert [each["device"] for each in events if each["event"] == "load"] == [0, 1]
    assert [each["device"] for each in events if each["event"] == "launch"] == [0, 0, 1, 1, 0, 0]
    assert addresses[0] == addresses[2] != addresses[1]


def test_symbol_is_the_variable_with_the_compiler_s_type(tmp_path: Path) -> None:
    """Shape and dtype come from the compile or from the store; written values are read back."""
    script = """
m = cached_module(SOURCE, NAMES, cache=cache)
for name in ("coeffs", "counter", "ns::vector", "pair"):
    found = m.symbol(name)
    print(name, found.shape, found.dtype, found.nbytes)
print(int(m.symbol("counter").copy_to_host()))
m.symbol("coeffs").copy_to_device(np.arange(15.0).reshape(3, 5))
print(m.symbol("coeffs").copy_to_host()[1, 2], m.symbol("coeffs", "f4").shape)
print(m.symbol("pair", [("a", "i4"), ("b", "f4")]).copy_to_host().dtype.names)
m.axpy[1, 1](1.0, m.symbol("ns::vector"), None)
"""
    for _ in range(2):
        said, _ = seen(tmp_path, script)
        assert said.splitlines() == [
            "coeffs (3, 5) float64 120", "counter () int32 4", "ns::vector (2,) float32 8", "pair (8,) uint8 8",
            "7", "7.0 (30,)", "('a', 'b')",
        ]  # fmt: skip


def test_module_that_cannot_be_keyed_is_loaded_once_too(tmp_path: Path) -> None:
    """The kernels of an uncacheable module share its variables, as in a cached module."""
    script = """
m = cached_module(SOURCE + "__device__ int size = sizeof(__TIME__);", NAMES, cache=cache)
import warnings; warnings.simplefilter("ignore")
m.axpy[1, 32](2.0, None, None)
m.count[1, 32]()
m.symbol("counter")
"""
    _, events = seen(tmp_path, script, "load", "launch")

    assert [each["event"] for each in events] == ["load", "launch", "launch"]


def test_symbol_that_is_not_there_lists_those_that_are(tmp_path: Path) -> None:
    """A missing symbol lists the existing ones, and a wrong dtype is an error with the number of bytes."""
    script = """
m = cached_module(SOURCE, NAMES, cache=cache)
for use in (lambda: m.symbol("nope"), lambda: m.symbol("pair", "3f8"), lambda: m.symbol("pair", "nope"),
            lambda: cached_module('extern "C" __global__ void k() {}', cache=cache).symbol("x")):
    try:
        use()
    except KCacheError as error:
        print(type(error).__name__, error.what, error.why)
"""
    said, _ = seen(tmp_path, script)

    unknown, unfit, no_dtype, none = said.splitlines()
    assert "EntryError cannot find the variable 'nope'" in unknown
    assert unknown.endswith("there are coeffs, counter, pair, ns::vector")
    assert "its 8 bytes are not a multiple of 24" in unfit
    assert "OptionError cannot use dtype='nope'" in no_dtype
    assert none.endswith("there are none that its kernels use")


def test_modules_work_after_a_reset(tmp_path: Path) -> None:
    """The next use loads the module again, once; its variables have their initial values."""
    script = """
m = cached_module(SOURCE, NAMES, cache=cache)
launch = m.axpy[1, 32]
launch(2.0, None, None)
m.symbol("counter").copy_to_device(np.int32(9))
cuda.close()
launch(2.0, None, None)
m.count[1, 32]()
print(int(m.symbol("counter").copy_to_host()))
"""
    said, events = seen(tmp_path, script, "load", "launch")

    assert [each["event"] for each in events] == ["load", "launch", "load", "launch", "launch"]
    assert said.split() == ["7"]


def test_kernel_of_a_module_checks_its_arguments(tmp_path: Path) -> None:
    """A module's kernel checks arguments by the compiler's types, and the message has its name."""
    script = """
for lazy in (False, True):
    m = cached_module(SOURCE, NAMES, lazy, cache=cache)
    for use in (lambda: m.axpy[1, 32](2.0, None), lambda: m.axpy[1, 32]("a", None, None), lambda: m.axpy[1, 4096]):
        try:
            use()
        except KCacheError as error:
            print(type(error).__name__, "axpy" in str(error))
    print(m.axpy.max_threads_per_block, m.axpy.forall(100)(1.0, None, None))
"""
    said, _ = seen(tmp_path, script)

    assert (
        said.split()
        == ["ArgumentError", "True", "ArgumentError", "True", "LaunchConfigError", "True", "1024", "None"] * 2
    )


def test_launch_attributes_are_every_kernel_s(tmp_path: Path) -> None:
    """The module's launch options apply to each of its kernels."""
    script = """
m = cached_module(SOURCE, NAMES, cache=cache, cluster=2)
m.axpy[2, 32](2.0, None, None)
m.count[4, 32]()
"""
    _, launches = seen(tmp_path, script, "launch")

    assert [each["cluster"] for each in launches] == [[2, 1, 1], [2, 1, 1]]


COUNTED = """
import sys
from numba_kcache import KernelCache, LaunchConfigError, cached_module
cache = KernelCache(sys.argv[1])
from collections import Counter
from numba_kcache.launch import bindings
class Lent:
    __cuda_array_interface__ = {"shape": (64,), "typestr": "<f4", "data": (4096, False), "version": 3}
x, y, asked, calls = Lent(), Lent(), [], Counter()
kernel = 'extern "C" __global__ void BOUNDS k%d(float a, const float *x, float *y) { y[0] = a * x[0] + %d; }'
m = cached_module("".join(kernel % (n, n) for n in range(COUNT)).replace("BOUNDS", BOUNDS), cache=cache)
for name, function in list(vars(bindings()).items()):
    if callable(function):
        vars(bindings())[name] = lambda *given, name=name, function=function: (asked.append(name), function(*given))[1]
def count(frame, event, what):
    is_tuple = frame.f_code.co_qualname == "NamedTuple.__new__"  # a value, not a step
    if event in ("call", "c_call") and "numba_kcache" in frame.f_code.co_filename and not is_tuple:
        calls[event] += 1
"""


def test_further_kernel_of_a_module_asks_for_its_handle_and_no_more(tmp_path: Path) -> None:
    """The context's number shows that device and module are those of the kernel before; the entry has the threads that
    a block may have, and the argument types are registered."""
    script = """
m.k0[1, 32](2.0, x, y)
m.k0[1, 64](2.0, x, y)  # again: the compiled module is told
m.k1[1, 32](2.0, x, y)
asked.clear()
sys.setprofile(count)
m.k2[1, 256](2.0, x, y)
sys.setprofile(None)
print(*asked, calls["call"], calls["c_call"])
"""
    head = f"COUNT, BOUNDS = 4, ''\n{COUNTED}"
    seen(tmp_path, script, head=head)

    said, events = seen(tmp_path, script, "load", "launch", head=head)

    *asked, calls, calls_in_c = said.split()
    assert [each["event"] for each in events] == ["load", *["launch"] * 4]
    assert events[-1]["kernel"] == "k2"
    assert asked == ["cuCtxGetId", "cuModuleGetFunction"]
    assert int(calls) <= 23
    assert int(calls_in_c) <= 23


def test_further_kernels_of_a_module_make_few_objects(tmp_path: Path) -> None:
    """New objects trigger garbage collections: the kernels of a module of hundreds shall cause few of them."""
    script = """
import gc
kept = [m[f"k{n}"][1, 32](2.0, x, y) for n in range(40)]
gc.collect(), gc.disable()
before = gc.get_count()[0]
kept = [m[f"k{n}"][1, 32](2.0, x, y) for n in range(40, 80)]
print((gc.get_count()[0] - before) / 40)
"""
    head = f"COUNT, BOUNDS = 80, ''\n{COUNTED}"
    seen(tmp_path, script, head=head)

    said, _ = seen(tmp_path, script, head=head)

    assert float(said) < 22


@pytest.mark.parametrize(("count", "imported_after"), [(80, 33), (100, 2)])
def test_kernel_launched_once_of_many_does_not_import_what_tells_their_types(
    tmp_path: Path, count: int, imported_after: int
) -> None:
    """Importing `recognition` takes as long as dozens of first launches, and saves time only after hundreds. It is
    imported at the 33rd launch of a module of 80 kernels, and at the second of a module of 100. For arrays with an
    array interface, neither `launch.memory` nor `frontends.numba` is imported."""
    script = """
for n in range(COUNT):
    m[f"k{n}"][1, 32](2.0, x, y)
    if "numba_kcache.launch.recognition" in sys.modules:
        print(n + 1, *[each for each in ("launch.memory", "frontends.numba") if f"numba_kcache.{each}" in sys.modules])
        break
"""
    said, _ = seen(tmp_path, script, head=f"COUNT, BOUNDS = {count}, ''\n{COUNTED}")

    assert said.split() == [str(imported_after)]


def test_driver_is_asked_only_about_blocks_that_are_not_certain(tmp_path: Path) -> None:
    """Blocks within launch bounds cause no query; beyond them the message has the driver's limit."""
    script = """
m.k0[1, 32](2.0, x, y)
asked.clear()
m.k1[1, 64](2.0, x, y)
print("cuFuncGetAttribute" in asked)
try:
    m.k1[1, 65]
except LaunchConfigError as error:
    print("cuFuncGetAttribute" in asked, error.why)
"""
    said, _ = seen(tmp_path, script, head=f"COUNT, BOUNDS = 2, '__launch_bounds__(64)'\n{COUNTED}")

    assert said.splitlines() == ["False", "True it takes at most 64 on this device"]


def test_further_kernel_after_a_reset_is_loaded_again(tmp_path: Path) -> None:
    """The reset unloaded the module of the first kernel, and no launch has noticed that yet."""
    script = """
from cuda.bindings import driver
m.k0[1, 32](2.0, x, y)
driver.cuDevicePrimaryCtxReset(0)
m.k1[1, 32](2.0, x, y)
m.k0[1, 32](2.0, x, y)
"""
    _, events = seen(tmp_path, script, "load", "launch", head=f"COUNT, BOUNDS = 2, ''\n{COUNTED}")

    assert [each["event"] for each in events] == ["load", "launch", "load", "launch", "launch"]


def test_launch_that_cannot_run_is_passed_to_the_kernels_own_class(tmp_path: Path) -> None:
    """`_relaunch` of the kernel's class is called: that of an unedited program falls back on its own dispatcher."""
    script = """
from cuda.bindings import driver
from numba_kcache.frontends import define
from numba_kcache.frontends import Launches
class Own(Launches):
    def _relaunch(self, *given):
        print("again")
        return super()._relaunch(*given)
own = Own(define(kernel.replace("BOUNDS", "") % (0, 0), {"cache": cache}, 1))
launch = own[1, 32]
launch(2.0, x, y)
driver.cuDevicePrimaryCtxReset(0)
launch(2.0, x, y)
"""
    said, events = seen(tmp_path, script, "load", "launch", head=f"COUNT, BOUNDS = 1, ''\n{COUNTED}")

    assert said.split() == ["again"]
    assert [each["event"] for each in events] == ["load", "launch", "load", "launch"]


def test_further_kernel_that_its_code_contradicts_is_compiled_again(tmp_path: Path) -> None:
    """The stored header gives a module's second kernel wrong parameters, which is found before its first launch."""
    lie = """
import numba_kcache.engine.compile as compiling
true_header = compiling.artifact_header
def lying_header(artifact):
    found = true_header(artifact)
    found["entries"][1][4] = found["entries"][0][4][:2]  # those of the first kernel
    return found
compiling.artifact_header = lying_header
m.k0[1, 32](2.0, x, y)
"""
    script = """
m.k0[1, 32](2.0, x, y)
m.k1[1, 32](2.0, x, y)
m.k0[1, 32](2.0, x, y)
print(cache.info("process").hits, cache.info("process").compiles)
"""
    head = f"COUNT, BOUNDS = 2, ''\n{COUNTED}"
    seen(tmp_path, lie, head=head)

    said, events = seen(tmp_path, script, "load", "launch", head=head)

    assert said.split() == ["1", "1"]
    assert [each["event"] for each in events] == ["load", "launch", "load", "launch", "launch"]


def test_further_source_asks_which_context_is_current_by_one_number(tmp_path: Path) -> None:
    """The number is known to be that of a primary context; a context of the program's own is still refused, and a
    kernel that is launched there by mistake is not loaded again."""
    script = """
from cuda.bindings import driver
from numba_kcache import LaunchError, cached_kernel
kernels = [cached_kernel(kernel.replace("BOUNDS", "") % (0, n), cache=cache) for n in range(4)]
for each in kernels[:2]:
    each[1, 32](2.0, x, y)
asked.clear()
sys.setprofile(count)
kernels[2][1, 32](2.0, x, y)
sys.setprofile(None)
print(*[each for each in asked if each != "cuLaunchKernel"], calls["call"])
driver.cuCtxCreate(None, 0, 0)
for each in (kernels[3], kernels[0]):
    try:
        each[3, 32](2.0, x, y)
    except LaunchError as error:
        print(error.why)
driver.cuCtxPopCurrent()
kernels[0][3, 32](2.0, x, y)
"""
    head = f"COUNT, BOUNDS = 1, ''\n{COUNTED}"
    seen(tmp_path, script, head=head)

    said, loads = seen(tmp_path, script, "load", head=head)
    asked, *refused = said.splitlines()

    *asked, calls = asked.split()
    assert asked == [
        "cuCtxGetId", "cuThreadExchangeStreamCaptureMode", "cuDeviceGetCount", "cuCtxGetId", "cuModuleLoadData",
        "cuModuleGetFunction", "cuThreadExchangeStreamCaptureMode",
    ]  # fmt: skip
    assert int(calls) <= 150
    assert refused == ["it is not the primary context of device 0"] * 2
    assert len(loads) == 3
