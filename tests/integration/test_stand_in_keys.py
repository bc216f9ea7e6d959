"""The keys that a stand-in makes without Numba, held against those of the same kernels with Numba."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from numba_kcache.frontends.numba.stand_in import HOMES
from tests.support import device_functions, numba_server
from tests.support import stand_in_programs as programs
from tests.support.fake_driver import build, environment, needs_fake_driver

pytestmark = [needs_fake_driver, pytest.mark.slow]

PACKAGES = {"numba": "numba", "mlir": "numba_cuda_mlir"}

GROUPS = ("atomic", "bf16", "const", "fp16", "fp8", "libdevice", "local", "random", "shared", "vector")

HOST = {"math", "config", "cuda", "types", "HAS_NUMBA", "TWO_PI_FLOAT32", "TWO_PI_FLOAT64", "xoroshiro128p_dtype"}
"""Names in these modules that are no device functions: other modules, and constants of NumPy."""


def answered(program: str, folder: Path, given: object, **env: str) -> tuple[dict[str, str], list[str]]:
    """What each kernel of a program gives, and the Numbas that are loaded at its end."""
    surroundings = {**environment(build()), "NUMBA_KCACHE_DIR": str(folder), **env}
    way = "early" if "REAL" in env else "fresh"
    told = numba_server.output(["-c", program], surroundings, env["KIND"], way=way, given=json.dumps(given))
    found, loaded = json.loads(told.splitlines()[-1])
    return found, loaded


def both(program: str, folder: Path, kind: str, given: object = None) -> tuple[dict[str, str], dict[str, str]]:
    """The answers with Numba, and those without it, after a process has stored the facts."""
    surroundings = {**environment(build()), "NUMBA_KCACHE_DIR": str(folder), "KIND": kind}
    numba_server.output(["-c", programs.COMMON], surroundings, kind, way="stand-in")
    real, _loaded = answered(program, folder, given, KIND=kind, REAL="1")
    light, loaded = answered(program, folder, given, KIND=kind)
    assert loaded == []
    return real, {name: light[name] for name in real}


@pytest.mark.parametrize("kind", ["numba", "mlir"])
def test_key_of_each_device_function_is_that_with_numba(tmp_path: Path, kind: str) -> None:
    """Every name that device code may use has without Numba the same key as with it, or needs Numba."""
    listing = ["-c", device_functions.NAMES, PACKAGES[kind], "fresh", str(tmp_path)]
    names = json.loads(numba_server.output(listing, environment(build()), kind).splitlines()[-1])

    real, light = both(programs.KEYS, tmp_path / "cache", kind, names)

    keyed = {name for name, key in light.items() if len(key) == 64}
    assert {name for name in keyed if light[name] != real[name]} == set()
    lacking = {name for name, key in real.items() if len(key) == 64} - keyed
    device = {name for name in lacking if name.startswith(tuple(f"cuda.{group}." for group in GROUPS))}
    assert {name for name in device if name.split(".")[2] not in HOST} == set()
    assert lacking.isdisjoint(f"cuda.{name}" for name in HOMES[kind].names if name not in GROUPS)
    assert len(keyed) > 800


@pytest.mark.parametrize("kind", ["numba", "mlir"])
def test_key_of_each_argument_is_that_with_numba(tmp_path: Path, kind: str) -> None:
    """Every value has without Numba the type that Numba gives it, or is left to Numba."""
    real, light = both(programs.VALUES, tmp_path / "cache", kind)

    keyed = {name for name, key in light.items() if len(key) == 64}
    assert {name for name in keyed if light[name] != real[name]} == set()
    assert len(light) >= 150
    assert len(keyed) >= 80
