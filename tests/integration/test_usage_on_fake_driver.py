"""Other uses of a kernel than launches by position, as the driver sees them: no kernel runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import numba_server
from tests.support.compiling import SAXPY
from tests.support.fake_driver import build, environment, needs_fake_driver, read_log, run

pytestmark = [needs_fake_driver, pytest.mark.slow]

HEAD = f"""
import inspect, sys, warnings
warnings.simplefilter("ignore")
from numba_kcache import *
cache, SAXPY = KernelCache(sys.argv[1]), {SAXPY!r}
saxpy = cached_kernel(SAXPY, name="saxpy", cache=cache)
def said(ask):
    try:
        print(ask())
    except (KCacheError, TypeError) as error:
        print(type(error).__name__, error)
"""


def seen(tmp_path: Path, script: str, *events: str) -> Any:
    """Lines that the child printed, and the driver's events of these kinds. One that imports a Numba is forked from a
    process that has done so."""
    log = tmp_path / "log"
    log.unlink(missing_ok=True)
    words, env = ["-c", HEAD + script, str(tmp_path / "cache")], environment(build(), log=log)
    if "import cuda" in script:
        said = numba_server.output(words, env, "mlir" if "numba_cuda_mlir" in script else "numba")
    else:
        said = run(words, env=env).stdout
    return said.splitlines(), read_log(log, *events)


def test_source_kernel_takes_arguments_by_name(tmp_path: Path) -> None:
    """Names work for a text, an instance of a template, a module and `forall`, also in a later process."""
    script = """
@cached_kernel(cache=cache)
def fill(T: str = "float") -> str:
    return f'extern "C" __global__ void fill({T} *x, int n) {{ if (threadIdx.x < n) x[threadIdx.x] = 1; }}'

module = cached_module('''template <class T> __global__ void scale(T *x, T factor) { *x *= factor; }''',
                       names=["scale<float>"])
for _ in range(3):
    saxpy[2, 32](n=3, a=2.0, x=None, y=None)
    saxpy.forall(100)(2.0, None, n=3, y=None)
    fill.instantiate(T="double")[1, 32](n=5, x=None)
    module["scale<float>"][1, 1](None, factor=0.5)
print(list(inspect.signature(saxpy).parameters))
saxpy[1, 1](**dict(inspect.signature(saxpy).bind(2.0, x=None, y=None, n=3).arguments))
"""
    for _ in range(2):
        printed, launches = seen(tmp_path, script, "launch")
        assert printed == ["['a', 'x', 'y', 'n']"]
        assert [each["result"] for each in launches] == [0] * 13
    by_name = {tuple(map(str, each["parameters"])) for each in launches if each["kernel"] == "saxpy"}
    assert len(by_name) == 1


@pytest.mark.parametrize("home", ["numba", "numba_cuda_mlir"])
def test_numba_kernel_takes_arguments_by_name(tmp_path: Path, home: str) -> None:
    """The names and defaults are those of the Python function, at the first launch of a signature and later."""
    pytest.importorskip(f"{home}.cuda" if home == "numba" else home)
    script = f"""
from {home} import cuda

@cached_kernel(cache=cache)
def add(x, y, factor=2.0):
    x[0] += factor * y[0]

x, y = cuda.device_array(4, "f4"), cuda.device_array(4, "f4")
for _ in range(3):
    add[1, 32](x, y, 2.0)
    add[1, 32](factor=2.0, y=y, x=x)
    add[1, 32](x, y=y)
    add.forall(4)(x, y=y, factor=2.0)

@cached_kernel(cache=cache)
def subtract(x, y, factor=2.0):
    x[0] -= factor * y[0]

subtract[1, 32](factor=2.0, y=y, x=x)
subtract.forall(4)(factor=2.0, y=y, x=x)
said(lambda: add[1, 32](x, z=y))
said(lambda: add[1, 32](x, factor=1.0))
"""
    printed, launches = seen(tmp_path, script, "launch")

    assert len(launches) == 14
    assert len({str(each["parameters"]) for each in launches}) == 1
    assert printed == [
        "ArgumentError cannot launch add with an argument named 'z': it takes x, y, factor",
        "  hint: the names are x, y, factor",
        "ArgumentError cannot launch add with 2 arguments: it takes 3: x, y, factor; y is missing",
        "  hint: pass one argument for each parameter",
    ]


def test_names_of_what_a_compiler_made_are_not_guessed(tmp_path: Path) -> None:
    """PTX has no names of parameters: the error says so, with the types of a signature."""
    script = """
ptx = cached_kernel(saxpy.ptx(), signature="float, const float*, float*, int", cache=cache)
said(lambda: ptx[1, 32](2.0, None, None, n=3))
said(lambda: saxpy(a=2.0))
said(lambda: saxpy[8, 128](a=2.0))
"""
    printed, launches = seen(tmp_path, script, "launch")

    assert not launches
    assert printed[0].startswith("ArgumentError cannot launch saxpy with an argument named 'n': the names of its")
    assert printed[1] == "  hint: pass the arguments by position: it takes float, float const*, float*, int"
    assert printed[2].startswith("LaunchConfigError cannot launch saxpy")
    assert "x, y, n are missing" in printed[4]


def test_measures_are_the_driver_s(tmp_path: Path) -> None:
    """Blocks of a multiprocessor, a suitable block size, and attributes under the names of CuPy."""
    script = """
import cuda.bindings.driver as driver

def ask(attribute):
    return driver.cuFuncGetAttribute(attribute, driver.CUfunction(saxpy.handle))[1]

names = driver.CUfunction_attribute
print(saxpy.attributes["num_regs"] == ask(names.CU_FUNC_ATTRIBUTE_NUM_REGS) == saxpy.regs_per_thread)
print(saxpy.attributes["binary_version"] == ask(names.CU_FUNC_ATTRIBUTE_BINARY_VERSION))
print(sorted(saxpy.attributes) == sorted(
    ["max_threads_per_block", "shared_size_bytes", "const_size_bytes", "local_size_bytes", "num_regs", "ptx_version",
     "binary_version", "cache_mode_ca", "max_dynamic_shared_size_bytes", "preferred_shared_memory_carveout"]))
each = saxpy.occupancy((16, 16))
print(each == saxpy.occupancy(256) == driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(saxpy.handle, 256, 0)[1])
print(saxpy.occupancy(256, sharedmem=120_000) < each)
print(saxpy.max_cooperative_grid_blocks(256) % each)
print(saxpy.suggested_block() == driver.cuOccupancyMaxPotentialBlockSize(saxpy.handle, None, 0, 0)[2])
print(cached_kernel(SAXPY.replace("void saxpy", "void __launch_bounds__(96) saxpy"), cache=cache).suggested_block())
said(lambda: saxpy.occupancy(2048))
said(lambda: saxpy.suggested_block(10**6))
"""
    printed, launches = seen(tmp_path, script, "launch")

    assert not launches
    assert printed[:7] == ["True", "True", "True", "True", "True", "0", "True"]
    assert 0 < int(printed[7]) <= 96
    assert printed[8].startswith("LaunchConfigError cannot launch saxpy with block.x = 2048")
    assert printed[10].startswith("LaunchConfigError cannot launch saxpy with sharedmem = 1000000")


def test_measures_of_a_numba_kernel_are_by_signature(tmp_path: Path) -> None:
    """They are a dict over all launched signatures, or those of the given one."""
    script = """
from numba import cuda

@cached_kernel(cache=cache)
def add(x):
    x[0] += 1

print(add.attributes, add.occupancy(32))
add[1, 32](cuda.device_array(4, "f4"))
(signature, attributes), = add.attributes.items()
print(attributes["num_regs"] == add.regs_per_thread[signature])
print(add.occupancy(32, signature=signature) == add.occupancy(32)[signature] > 0)
print(add.suggested_block(signature=signature) == add.suggested_block()[signature])
"""
    printed, _ = seen(tmp_path, script)

    assert printed == ["{} {}", "True", "True", "True"]


def test_time_is_the_median_between_events(tmp_path: Path) -> None:
    """The first launch is not counted; each other one is between two events of its stream, which are destroyed."""
    script = """
took = saxpy.time(4, 64, 2.0, None, None, 0, repeats=5, sharedmem=16)
print(type(took).__name__, 0 <= took < 1000)
saxpy.time(4, 64, 2.0, None, n=0, y=None, repeats=1)
said(lambda: saxpy.time(4, 64, 2.0, None, None, 0, repeats=0))
said(lambda: saxpy.time(4, 64, 2.0, repeats=1))
"""
    printed, events = seen(tmp_path, script, "launch", "event_record")

    kinds = [each["event"] for each in events]
    assert kinds == ["launch", *["event_record", "launch", "event_record"] * 5, "launch", "event_record", "launch",
                     "event_record"]  # fmt: skip
    assert {each["shared_bytes"] for each in events[:10] if each["event"] == "launch"} == {16}
    assert printed[0] == "float True"
    assert printed[1] == "OptionError cannot time saxpy with repeats=0: it is not a positive integer"
    assert printed[2] == "  hint: write repeats=20"
    assert printed[3].startswith("ArgumentError cannot launch saxpy with 1 argument")


def test_stream_that_is_captured_is_not_timed(tmp_path: Path) -> None:
    """An error says that no kernel runs under capture, and the capture stays valid."""
    script = """
import cuda.bindings.driver as driver
saxpy[1, 32](2.0, None, None, 0)
_, stream = driver.cuStreamCreate(1)
driver.cuStreamBeginCapture(stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
said(lambda: saxpy.time(1, 32, 2.0, None, None, 0, stream=int(stream)))
print(driver.cuStreamEndCapture(stream)[0] == 0)
"""
    printed, launches = seen(tmp_path, script, "launch")

    assert len(launches) == 1
    assert printed == [
        "LaunchError cannot time saxpy: its stream is being captured, and runs nothing",
        "  hint: use another stream",
        "True",
    ]


@pytest.mark.parametrize("launches", [0, 3])
def test_launch_is_copied_as_itself_and_not_pickled(tmp_path: Path, launches: int) -> None:
    """A launch may name a context and a stream: the error says to pickle the kernel, whatever ran before."""
    script = f"""
import copy, pickle
from numba import cuda
@cached_kernel(cache=cache)
def double(x):
    x[0] *= 2
for kernel, arguments in ((saxpy, (2.0, None, None, 0)), (double, (cuda.device_array(1, "float32"),))):
    for _ in range({launches}):
        kernel[1, 32](*arguments)
    launch = kernel[1, 32]
    print(copy.copy(launch) is copy.deepcopy(launch) is launch)
    said(lambda: pickle.dumps(launch))
"""
    printed, _ = seen(tmp_path, script)

    for name, said in zip(("saxpy", "double"), (printed[:3], printed[3:]), strict=True):
        assert said == [
            "True",
            f"OptionError cannot pickle a launch of {name}: it belongs to a context of this process",
            f"  hint: pickle {name} itself, and write {name}[grid, block](...) where it is unpickled",
        ]
