"""CUDA C++ kernels in programs without Numba: no module of Numba is imported, and the program may import it later."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from numba_kcache.toolchain import Toolchain
from tests.support import numba_server
from tests.support.compiling import SAXPY
from tests.support.fake_driver import build, environment, needs_fake_driver, read_log, run

pytestmark = needs_fake_driver

HEAD = f"""
import sys
from cuda.bindings import driver
from numba_kcache import *
SAXPY, COUNTING = {SAXPY!r}, '''__device__ int total;
extern "C" __global__ void count(int n) {{ atomicAdd(&total, n); }}'''
N = 1 << 12
class Lent:  # memory of nobody's package
    def __init__(self, address):
        self.__cuda_array_interface__ = {{"shape": (N,), "typestr": "<f4", "data": (address, False), "version": 3}}
def context(ordinal=0):
    driver.cuInit(0)
    _, held = driver.cuDevicePrimaryCtxRetain(ordinal)
    driver.cuCtxSetCurrent(held)
def lent():
    return Lent(int(driver.cuMemAlloc(4 * N)[1]))
"""


def found(name: str) -> str:
    """Path of an installed compiler library."""
    library = Toolchain(lambda _name: None, lambda _name, _record: None).library(name)
    assert library is not None
    return library.path


def seen(tmp_path: Path, script: str, *events: str, devices: tuple[int, ...] = (90,)) -> Any:
    """Lines that the child printed, and the driver's events of these kinds. One that imports Numba is forked from a
    process that hides it."""
    log = tmp_path / "log"
    env = {**environment(build(), log=log, devices=devices), "NUMBA_KCACHE_DIR": str(tmp_path / "cache")}
    if re.search(r"(from|import) numba\b", script):
        return numba_server.output(["-c", HEAD + script], env, way="fresh"), read_log(log, *events)
    return run(HEAD + script, env=env).stdout, read_log(log, *events)


@pytest.mark.slow
def test_warm_start_imports_neither_numba_nor_numpy_nor_compilers(tmp_path: Path) -> None:
    """Interpreted and compiled launches on a raw pointer import no further module."""
    script = """
context()
x, y = lent(), lent()
saxpy = cached_kernel(SAXPY)
before = set(sys.modules)
for _ in range(12):
    saxpy[16, 256](2.0, x, y, N)
imported = sorted({each for each in sys.modules if each not in before and not each.startswith("numba_kcache")})
print(info("process").hits, imported)
print([each for each in ("numpy", "numba", "cuda.core", "cuda.bindings.nvrtc") if each in sys.modules])
"""
    seen(tmp_path, script)
    said, launches = seen(tmp_path, script, "launch")

    assert said.splitlines() == ["1 []", "[]"]
    assert [each["result"] for each in launches] == [0] * 24


@pytest.mark.slow
def test_warm_start_beside_a_mapped_nvrtc_imports_no_bindings_and_no_module_more(tmp_path: Path) -> None:
    """CuPy's programs are like this: NVRTC is mapped, and driver and NVRTC are called without the bindings."""
    program = f"""
import ctypes, sys
cuda, held = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(held), 0) == cuda.cuCtxSetCurrent(held) == 0
def lent():
    address = ctypes.c_uint64()
    assert cuda.cuMemAlloc_v2(ctypes.byref(address), 1 << 14) == 0
    return type("Lent", (), dict(__cuda_array_interface__=dict(
        shape=(1 << 12,), typestr="<f4", data=(address.value, False), version=3)))()
def start():
    from numba_kcache import cached_kernel
    cached_kernel({SAXPY!r})[16, 256](2.0, lent(), lent(), 1 << 12)
    return {{each for each in sys.modules if each.startswith("numba_kcache")}}
ctypes.CDLL({found("nvrtc")!r})
imported = start()
from numba_kcache import info
print("cuda.bindings" in sys.modules, info("process").hits, *sorted(imported))
"""
    env = {**environment(build()), "NUMBA_KCACHE_DIR": str(tmp_path / "cache")}
    run(program, env=env)

    bindings, hits, *imported = run(program, env=env).stdout.split()

    listed = (Path(__file__).parents[1] / "data/warm_modules.txt").read_text().split("# Numba")[0].split()
    assert (bindings, hits) == ("False", "1")
    assert set(imported) <= set(listed)


@pytest.mark.slow
def test_driver_is_handed_the_same_bytes_with_and_without_numba(tmp_path: Path) -> None:
    """Grid, block, stream and every parameter are equal if Numba was imported before, and if it was not."""
    script = """
context()
kernel = cached_kernel(SAXPY)
for _ in range(12):
    kernel[(3, 2), 64, 0, 128](2.5, Lent(0x7000), None, 7)
print("numba" in sys.modules)
"""
    without, bare = seen(tmp_path, script, "launch")
    (tmp_path / "log").unlink()
    with_numba, through = seen(tmp_path, "import numba.cuda\n" + script, "launch")

    assert (without, with_numba) == ("False\n", "True\n")
    for each in (*bare, *through):
        del each["pid"]
    assert bare == through
    assert len(bare) == 12


def test_context_is_made_where_there_is_none(tmp_path: Path) -> None:
    """The primary context of device 0 is used, as by Numba, in the main thread and in another one."""
    script = """
import threading
kernel = cached_kernel(SAXPY)
kernel[1, 32](2.0, None, None, 0)
thread = threading.Thread(target=lambda: kernel[1, 32](2.0, None, None, 0))
thread.start()
thread.join()
print("numba" in sys.modules, driver.cuDevicePrimaryCtxGetState(0)[2])
"""
    said, events = seen(tmp_path, script, "launch", "load")

    assert said == "False 1\n"
    assert [each["event"] for each in events] == ["load", "launch", "launch"]
    assert {each["result"] for each in events} == {0}


@pytest.mark.slow
def test_kernel_alternates_between_devices(tmp_path: Path) -> None:
    """Each launch goes to the device of the current context; memory of another device is refused."""
    script = """
kernel = cached_kernel(SAXPY)
for ordinal in (0, 1, 0, 1):
    context(ordinal)
    own = lent()
    for _ in range(10):
        kernel[1, 32](2.0, own, own, 0)
context(0)
try:
    kernel[1, 32](2.0, own, own, 0)
except ArgumentError as error:
    print("it is on device 1, the launch on device 0" in str(error), "numba" in sys.modules)
"""
    said, events = seen(tmp_path, script, "launch", "load", devices=(90, 90))

    assert said == "True False\n"
    assert [each["device"] for each in events if each["event"] == "launch"] == ([0] * 10 + [1] * 10) * 2
    assert len([each for each in events if each["event"] == "load"]) == 2


@pytest.mark.slow
def test_module_outlives_that_numba_is_imported(tmp_path: Path) -> None:
    """The module is not loaded a second time, which would duplicate its variables; Numba's arrays are accepted
    afterwards."""
    script = """
context()
kernel = cached_kernel(SAXPY)
for _ in range(12):
    kernel[1, 32](2.0, lent(), lent(), 0)
counting = cached_module(COUNTING)
counting.count[1, 1](3)
import numpy as np
from numba import cuda
array = cuda.device_array(N, np.float32)
for _ in range(3):
    kernel[1, 32](2.0, array, array, 0)
total = counting.symbol("total")
counting.count[1, 1](4)
print(total.shape, total.dtype, total.device_ctypes_pointer.value == counting.symbol("total").gpu_data.handle.value
      if hasattr(total.gpu_data.handle, "value") else True)
other = cached_kernel(SAXPY.replace("saxpy", "other"))
other[1, 32](2.0, array, array, 0)
"""
    said, events = seen(tmp_path, script, "load", "launch", "unload")

    assert said.startswith("() int32 True")
    assert len([each for each in events if each["event"] == "load"]) == 3, "saxpy, count and other: one time each"
    assert {each["result"] for each in events} == {0}
    assert not [each for each in events if each["event"] == "unload" and each["call"] != "cuLibraryUnload"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("between", "after"),
    [("", ""), ("kernel[1, 32](2.0, array, array, 0)\n", ""), ("", "kernel.attributes, kernel.handle")],
    ids=["never met", "met", "asked"],
)
def test_kernel_is_loaded_anew_after_numba_has_closed_the_context(tmp_path: Path, between: str, after: str) -> None:
    """It was loaded before Numba's import, and launched or not between that and `cuda.close()`; it is launched then,
    or asked for its attributes first."""
    script = f"""
context()
kernel = cached_kernel(SAXPY)
for _ in range(12):
    kernel[1, 32](2.0, None, None, 0)
import numpy as np
from numba import cuda
array = cuda.device_array(N, np.float32)
{between}cuda.close()
context()
{after}
kernel[1, 32](2.0, None, None, 0)
kernel[2, 32](2.0, None, None, 0)
"""
    _, events = seen(tmp_path, script, "load", "launch")
    loads = [each for each in events if each["event"] == "load"]
    answers = [each["result"] for each in events if each["event"] == "launch"]

    assert answers == [0] * (15 if between else 14), "no handle of the context that was reaches the driver"
    assert len(loads) == 2


CLOSED_BY_NUMBA = """
import numpy as np
from numba import cuda
cuda.device_array(N, np.float32)
cuda.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 12], ids=["interpreted", "compiled"])
@pytest.mark.parametrize("end", [CLOSED_BY_NUMBA, "driver.cuDevicePrimaryCtxReset(0)"], ids=["closed", "reset"])
def test_arrays_of_two_streams_are_launched_after_the_context_was_ended(tmp_path: Path, end: str, count: int) -> None:
    """One stream waits for the other by an event of the new context: one of the context that was raises no error."""
    script = f"""
def produced():
    array = lent()
    array.__cuda_array_interface__["stream"] = int(driver.cuStreamCreate(0)[1])
    return array
context()
kernel, x, y = cached_kernel(SAXPY), produced(), produced()
for _ in range({count}):
    kernel[1, 32](2.0, x, y, N)
{end}
context()
kernel[1, 32](2.0, produced(), produced(), N)
"""
    _, events = seen(tmp_path, script, "load", "launch", "stream_wait")
    at = max(number for number, each in enumerate(events) if each["event"] == "load")
    waits = [each["result"] for each in events[at:] if each["event"] == "stream_wait"]

    assert [each["result"] for each in events if each["event"] == "launch"] == [0] * (count + 1)
    assert waits[:1] == [0]


@pytest.mark.slow
def test_stream_that_is_gone_does_not_load_the_module_again(tmp_path: Path) -> None:
    """The driver returns the same status as for a destroyed context; the module keeps its variables."""
    script = """
context()
kernel = cached_kernel(SAXPY)
kernel[1, 32](2.0, None, None, 0)
try:
    kernel[1, 32, 0xdead0](2.0, None, None, 0)
except LaunchError as error:
    print(error.args[0])
kernel[1, 32](2.0, None, None, 0)
"""
    said, loads = seen(tmp_path, script, "load")

    assert "cannot launch saxpy" in said
    assert len(loads) == 1


REFUSED = {
    "no device": ((), "", "NoDeviceError", "CUDA_ERROR_NO_DEVICE"),
    "a context that is not the primary one": (
        (90,),
        "driver.cuInit(0); driver.cuCtxCreate(None, 0, 0)",
        "LaunchError",
        "it is not the primary context of device 0",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", REFUSED)
def test_what_is_in_the_way_is_said(tmp_path: Path, case: str) -> None:
    """The error comes before any compile, and without an import of Numba."""
    devices, before, kind, message = REFUSED[case]
    script = f"""
{before}
try:
    cached_kernel(SAXPY)[1, 32](2.0, None, None, 0)
except KCacheError as error:
    print(type(error).__name__, error, "numba" in sys.modules)
"""
    said, launches = seen(tmp_path, script, "launch", devices=devices)

    assert said.startswith(kind)
    assert message in said
    assert said.rstrip().endswith("False")
    assert not launches


def test_missing_driver_library_is_no_device(tmp_path: Path) -> None:
    """A machine without a driver gets the error for a missing device."""
    script = """
try:
    cached_kernel(SAXPY)[1, 32](2.0, None, None, 0)
except NoDeviceError as error:
    print(error, "numba" in sys.modules)
"""
    env = {**environment(build()), "LD_LIBRARY_PATH": "", "NUMBA_KCACHE_DIR": str(tmp_path)}
    said = run(HEAD + script, env=env).stdout

    assert "cannot find a CUDA device" in said
    assert "arch='sm_90'" in said
    assert said.rstrip().endswith("False")


@pytest.mark.slow
@pytest.mark.parametrize("user", ["ours", "the program's own"])
def test_fork_is_a_clear_error_in_the_child(tmp_path: Path, user: str) -> None:
    """The error does not depend on the library that used CUDA before the fork; the parent works on."""
    script = f"""
import os
kernel = cached_kernel(SAXPY)
if {user!r} == "ours":
    kernel[1, 32](2.0, None, None, 0)
else:
    context()
child = os.fork()
if not child:
    try:
        kernel[1, 32](2.0, None, None, 0)
    except LaunchError as error:
        os._exit(0 if "does not survive" in str(error) else 1)
    os._exit(2)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
kernel[1, 32](2.0, None, None, 0)
"""
    said, _ = seen(tmp_path, script)

    assert said == "0\n"


@pytest.mark.slow
@pytest.mark.parametrize("comes", ["before", "after"])
def test_compiled_module_takes_numbas_arrays_by_itself(tmp_path: Path, comes: str) -> None:
    """After the first such array, no launch of a CUDA C++ or Numba kernel takes the interpreted path."""
    come = """
import numpy as np
from numba import cuda
array = cuda.device_array(N, np.float32)
"""
    script = f"""
from numba_kcache.launch.launcher import Launcher
slow = Launcher._slow
def counted(*arguments):
    global asked
    asked += 1
    return slow(*arguments)
Launcher._slow = counted
context()
kernel = cached_kernel(SAXPY)
{come if comes == "before" else ""}
for _ in range(12):
    kernel[1, 32](2.0, lent(), None, 0)
{come if comes == "after" else ""}
@cached_kernel
def scale(x, factor):
    x[0] *= factor
for _ in range(12):
    kernel[1, 32](2.0, array, array, 0)
    scale[1, 1](array, 2.0)
asked = 0
for _ in range(5):
    kernel[1, 32](np.float32(2.0), array, array, np.int32(0))
    scale[1, 1](array, 2.0)
print(asked)
"""
    said, _ = seen(tmp_path, "asked = 0\n" + script)

    assert said == "0\n"
