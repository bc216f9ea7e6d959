"""Launch attributes of `cached_kernel`: read at decoration, and not in the key."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from numba_kcache import LaunchError, OptionError, cached_kernel
from numba_kcache import launch as devices
from numba_kcache.launch import attributes
from numba_kcache.launch.attributes import LaunchOptions, potential_block_size, read_launch_options
from tests.support.compiling import SAXPY
from tests.support.resolving import definition_of


@pytest.mark.parametrize(("given", "read"), [
    ({}, LaunchOptions()),
    ({"cooperative": True}, LaunchOptions(cooperative=True)),
    ({"cooperative": None, "cluster": 4}, LaunchOptions(cluster=(4, 1, 1))),
    ({"cluster": (2, 2)}, LaunchOptions(cluster=(2, 2, 1))),
    ({"cluster": [2, 2, 4]}, LaunchOptions(cluster=(2, 2, 4))),
    ({"max_dynamic_shared": 99_000}, LaunchOptions(max_dynamic_shared=99_000)),
    ({"carveout": 50}, LaunchOptions(carveout=50)),
    ({"carveout": -1}, LaunchOptions(carveout=-1)),
    ({"carveout": " MaxShared"}, LaunchOptions(carveout=100)),
    ({"carveout": "MaxL1"}, LaunchOptions(carveout=0)),
    ({"carveout": "default"}, LaunchOptions(carveout=-1)),
])  # fmt: skip
def test_launch_attributes_are_read(given: dict[str, Any], read: LaunchOptions) -> None:
    """Numbers, Numba's words for the carveout, one to three extents of a cluster."""
    assert read_launch_options(given, "cuda") == read


@pytest.mark.parametrize(("given", "message"), [
    ({"cooperative": 1}, "cooperative=1: it is a int"),
    ({"cluster": 0}, "not one to three positive integers"),
    ({"cluster": (1, 1, 1, 1)}, "not one to three positive integers"),
    ({"cluster": True}, "not one to three positive integers"),
    ({"cluster": (8, 4)}, "these are 32 blocks, a cluster has at most 16"),
    ({"max_dynamic_shared": -1}, "not a number of bytes"),
    ({"max_dynamic_shared": 1e5}, "not a number of bytes"),
    ({"carveout": 101}, "neither -1 to 100 nor one of default, maxl1, maxshared"),
    ({"carveout": "most"}, "carveout='most'"),
    ({"launch_bounds": (256, 2)}, r"(?s)launch_bounds=\(256, 2\).*hint: write __launch_bounds__\(threads, blocks\)"),
])  # fmt: skip
def test_launch_attribute_that_means_nothing_is_refused_at_decoration(given: dict[str, Any], message: str) -> None:
    """The error has option, value and reason; for `launch_bounds` it names the place for bounds."""
    with pytest.raises(OptionError, match=message):
        cached_kernel(SAXPY, **given)


def test_launch_attribute_keeps_key() -> None:
    """Attributes change launches and not code, so one compile serves all values."""
    plain = cached_kernel(SAXPY, arch="sm_90")
    told = cached_kernel(
        SAXPY, arch="sm_90", cooperative=True, cluster=2, max_dynamic_shared=60_000, carveout="maxshared"
    )

    assert plain.key() == told.key()


def test_block_size_that_the_driver_refuses_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the driver's status, and no block of 0 threads is returned."""
    driver = SimpleNamespace(
        cuOccupancyMaxPotentialBlockSize=lambda *arguments: (201, 0, 0),
        name_of=lambda code: "CUDA_ERROR_INVALID_CONTEXT",
    )
    for module in (attributes, devices):
        monkeypatch.setattr(module, "bindings", lambda: driver)
    kernel: Any = SimpleNamespace(function=1, compiled=SimpleNamespace(name="saxpy"), allow_shared=lambda size: None)

    with pytest.raises(
        LaunchError, match="cannot query a block size for saxpy: the driver returned CUDA_ERROR_INVALID_"
    ):
        potential_block_size(kernel, 0)


def test_launch_attributes_are_pickled_with_the_kernel() -> None:
    """A kernel in another process launches the same way."""
    told = cached_kernel(SAXPY, arch="sm_90", cooperative=True, cluster=2)

    for other in (pickle.loads(pickle.dumps(told)), copy.deepcopy(told)):
        assert definition_of(other).launch_options == LaunchOptions(cooperative=True, cluster=(2, 1, 1))
