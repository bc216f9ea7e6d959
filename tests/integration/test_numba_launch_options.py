"""Launch attributes and `debug_launches` of Numba kernels, as the driver sees them: no kernel runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import numba_server
from tests.support.fake_driver import build, environment, needs_fake_driver, read_log

pytestmark = [needs_fake_driver, pytest.mark.slow]

HEAD = """
import sys, warnings
warnings.simplefilter("ignore")
import numpy as np
from numba import cuda
from numba_kcache import *
cache = KernelCache(sys.argv[1])
table = None

def straight(x, n):
    x[0] = n

def uncached(x, n):
    x[0] = table[0]

def debugged(x, n):
    x[0] = n

def made(function, **options):
    if function is debugged:
        options |= {"debug": True, "opt": 0}
    return cached_kernel(function, cache=cache, **options)

def array():
    return cuda.to_device(np.ones(8, "f4"))
"""

DYNAMIC_SHARED, LARGE_CLUSTERS = 8, 14
ways = pytest.mark.parametrize("way", ["straight", "host arrays", "uncached", "debugged"])
"""The way of a launch to the driver: by the compiled module, or by Numba's own code for these reasons."""


def seen(tmp_path: Path, script: str, *events: str, devices: tuple[int, ...] = (90,), **more: Any) -> Any:
    """Lines that the child printed, and the driver's events of these kinds."""
    log = tmp_path / "log"
    surroundings = environment(build(), log=log, devices=devices, **more)
    said = numba_server.output(["-c", HEAD + script, str(tmp_path / "cache")], surroundings)
    return said, [each for each in read_log(log, *events) if "reset" not in each]


def start(way: str, options: str) -> str:
    """Source that makes `kernel` and `argument()` for a way."""
    function, argument = ("straight", "np.ones(8, 'f4')") if way == "host arrays" else (way, "array()")
    return f"kernel, argument = made({function}, {options}), lambda: {argument}\ntable = array()\n"


@ways
def test_launch_attributes_reach_every_device(tmp_path: Path, way: str) -> None:
    """Cooperative, clusters and dynamic shared memory, whichever code launches: on the first device and the second."""
    script = (
        start(way, "cooperative=True, cluster=(2, 2), max_dynamic_shared=99_000")
        + """
for device in (0, 1, 0):
    cuda.select_device(device)
    table = array()
    for _ in range(12):
        kernel[(4, 2), 64](argument(), 1)
"""
    )
    _, events = seen(tmp_path, script, "set_attribute", "launch", devices=(90, 90))

    launches = [each for each in events if each["event"] == "launch"]
    asked = {(each["attribute"], each["value"], each["device"]) for each in events if each["event"] != "launch"}
    assert [each["device"] for each in launches] == [0] * 12 + [1] * 12 + [0] * 12
    assert {
        (each["cooperative"], tuple(each["cluster"]), tuple(each["grid"]), each["result"]) for each in launches
    } == {(True, (2, 2, 1), (4, 2, 1), 0)}
    assert asked == {(DYNAMIC_SHARED, 99_000, 0), (DYNAMIC_SHARED, 99_000, 1)}


@ways
def test_large_dynamic_shared_memory_is_allowed_for_every_signature(tmp_path: Path, way: str) -> None:
    """Numba itself stays below 48 KiB. This holds for the second type that a bound launch gets, and after a reset,
    after which kernels that Numba compiled fail."""
    turns = 1 if way == "uncached" else 2
    script = f"""
{start(way, "")}
for turn in range({turns}):
    bound = kernel[1, 32, 0, 64 * 1024]
    for n in (1, 2.5, 1):
        bound(argument(), n)
    cuda.current_context().reset()
"""
    _, events = seen(tmp_path, script, "launch")

    assert [(each["result"], each["shared_bytes"]) for each in events] == [(0, 64 * 1024)] * 3 * turns


REFUSED = {
    "a grid of broken clusters": ("cluster=4", "6, 32", "grid.x = 6: its clusters are 4 blocks long there"),
    "a cooperative grid that does not fit": ("cooperative=True", "10**6, 32", "of them fit on the device at once"),
    "too much dynamic shared memory": ("max_dynamic_shared=300_000", "1, 32", "a block takes at most 232448 bytes"),
    "too much for one launch": ("", "1, 32, 0, 300_000", "a block takes 0 to 232448 bytes"),
}


@ways
def test_shape_that_the_attributes_rule_out_is_refused(tmp_path: Path, way: str) -> None:
    """The error comes before any driver call of the launch, with the number that does not fit."""
    script = ""
    for options, config, _ in REFUSED.values():
        script += f"""
{start(way, options)}
try:
    kernel[{config}](argument(), 1)
except KCacheError as error:
    print(str(error).splitlines()[0])
"""
    said, launches = seen(tmp_path, script, "launch")

    for line, (_, _, message) in zip(said.splitlines(), REFUSED.values(), strict=True):
        assert message in line
    assert not launches


def test_specialised_kernel_has_the_attributes(tmp_path: Path) -> None:
    """`.specialize` gives a kernel with the same options, the same one for equal types."""
    script = """
kernel = made(straight, cooperative=True, cluster=2, max_dynamic_shared=99_000)
kernel.specialize(array(), 1)[4, 32, 0, 90_000](array(), 1)
assert kernel.specialize(array(), 2) is kernel.specialize(array(), 1)
"""
    _, events = seen(tmp_path, script, "set_attribute", "launch")

    assert [each.get("value") for each in events] == [99_000, None]
    assert (events[1]["cooperative"], events[1]["cluster"], events[1]["result"]) == (True, [2, 1, 1], 0)


def test_forall_launches_whole_clusters(tmp_path: Path) -> None:
    """The grid is rounded up; clusters of more than eight blocks work."""
    script = "made(straight, cluster=16).forall(1000, 64)(array(), 1)"
    _, events = seen(tmp_path, script, "set_attribute", "launch")

    assert [each.get("attribute") for each in events] == [LARGE_CLUSTERS, None]
    assert (events[1]["grid"], events[1]["cluster"]) == ([16, 1, 1], [16, 1, 1])


def test_cooperative_code_is_checked_without_the_option(tmp_path: Path) -> None:
    """A kernel that synchronises its grid is launched cooperatively, and a grid that does not fit is refused with its
    name."""
    script = """
def together(x):
    cuda.cg.this_grid().sync()
kernel = cached_kernel(together, cache=cache)
kernel[2, 32](array())
try:
    kernel[10**6, 32](array())
except LaunchConfigError as error:
    print(error)
"""
    said, launches = seen(tmp_path, script, "launch")

    assert "cannot launch together with 1000000 blocks: it is cooperative" in said
    assert [each["cooperative"] for each in launches] == [True]


def test_attributes_that_mean_nothing_are_refused_at_decoration(tmp_path: Path) -> None:
    """Invalid attributes are refused as for CUDA C++; `launch_bounds` and `carveout` stay Numba's."""
    script = """
for options in ({"cooperative": 1}, {"cluster": 0}, {"max_dynamic_shared": -1}):
    try:
        made(straight, **options)
    except OptionError as error:
        print(str(error).splitlines()[0])
made(straight, launch_bounds=64, carveout="MaxShared")
"""
    said, _ = seen(tmp_path, script)

    assert [line.split(":")[0] for line in said.splitlines()] == [
        "cannot use cooperative=1", "cannot use cluster=0", "cannot use max_dynamic_shared=-1"
    ]  # fmt: skip


@ways
def test_debug_launches_waits_for_numba_kernels(tmp_path: Path, way: str) -> None:
    """When on, each launch is between two waits; when off again, there is none."""
    script = f"""
cache = None
{start(way, "")}
x = argument()
for on in (True, False):
    configure(debug_launches=on, directory=sys.argv[1])
    stream = 0 if isinstance(x, np.ndarray) else cuda.stream()  # as Numba has host arrays
    for _ in range(12):
        kernel[1, 64, stream](x, 1)
"""
    _, events = seen(tmp_path, script, "launch", "synchronize")

    kinds = [each["event"] for each in events]
    at = [n for n, kind in enumerate(kinds) if kind == "launch"]
    assert len(at) == 24
    assert all(kinds[n - 1] == kinds[n + 1] == "synchronize" for n in at[:12])
    if way == "straight":
        assert kinds[at[11] + 2 :] == ["launch"] * 12


FAILS = """
from numba_kcache.launch import bindings
driver = bindings()
configure(debug_launches=True, directory=sys.argv[1])
cache = None
{start}
x = argument()
real = driver.cuStreamSynchronize
def failing(stream):
    return (700,) if calls.append(0) or len(calls) == {which} else real(stream)
calls = []
driver.cuStreamSynchronize = failing
try:
    kernel[2, 64](x, 1)
except LaunchError as error:
    print(error)
"""


@pytest.mark.parametrize(("way", "x"), [("straight", "x: array(float32, 1d, C)"), ("debugged", "x")])
def test_failed_launch_is_named_with_its_arguments(tmp_path: Path, way: str, x: str) -> None:
    """Kernel, parameters by name, arguments as described, shape, and the driver's own error."""
    said, _ = seen(tmp_path, FAILS.format(start=start(way, ""), which=2))

    assert said.startswith(f"{way}({x} = numba.DeviceNDArray of float32 (8,), n")
    assert "= 1 (int)) failed with grid (2, 1, 1), block (64, 1, 1), sharedmem 0: the driver returned" in said
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in said


@pytest.mark.parametrize("way", ["straight", "debugged"])
def test_earlier_failure_is_not_blamed_on_the_launch(tmp_path: Path, way: str) -> None:
    """The error says that the failure is earlier, and the launch is not made."""
    said, launches = seen(tmp_path, FAILS.format(start=start(way, ""), which=1), "launch")

    assert said.startswith(f"cannot launch {way}: work that was queued before it failed")
    assert not launches
