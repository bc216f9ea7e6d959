"""The parts of numba-cuda-mlir that have no documentation: all there in the named versions, else a clear error.

`NUMBA_KCACHE_TEST_MLIR` may name a version that must be the one that is installed: the lanes run this against each.
"""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from numba_kcache import ToolchainMissingError

numba_cuda_mlir = pytest.importorskip("numba_cuda_mlir")

from numba_kcache.frontends.numba import surface  # noqa: E402
from numba_kcache.frontends.numba.compiled_code import assumed_device, compiler  # noqa: E402
from numba_kcache.frontends.numba.mlir import MLIR, MlirFlavour, has_another_compile, has_planners  # noqa: E402

pytestmark = pytest.mark.lane


@pytest.fixture(autouse=True)
def _asked_again() -> Any:
    for each in (surface, compiler):
        each.cache_clear()
    yield
    for each in (surface, compiler):
        each.cache_clear()


def test_installed_version_has_every_part() -> None:
    """Names, parameters and methods, as they are probed before a compile."""
    wanted = os.environ.get("NUMBA_KCACHE_TEST_MLIR")

    assert wanted in (None, numba_cuda_mlir.__version__)
    assert compiler(MLIR).compile_mlir


def test_older_version_is_refused_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if every name exists."""
    monkeypatch.setattr(numba_cuda_mlir, "__version__", "0.5.3")

    with pytest.raises(ToolchainMissingError, match=r"0\.5\.3"):
        surface(MLIR)


def test_newer_version_is_accepted_when_it_has_every_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """No version is refused for its number alone."""
    for version in ("0.7.0", "1.0.0", "1.0.0rc1"):
        monkeypatch.setattr(numba_cuda_mlir, "__version__", version)
        for each in (surface, compiler):
            each.cache_clear()

        assert compiler(MLIR).compile_mlir


@pytest.mark.parametrize("place", ["surface_parts", "compiler_parts"])
def test_missing_part_is_named(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """The error is not an AttributeError from inside a launch."""
    home, _names = getattr(MLIR, place)[0]
    monkeypatch.setattr(MlirFlavour, place, ((home, "no_such_part"),))

    with pytest.raises(ToolchainMissingError, match="no_such_part"):
        compiler(MLIR)


def test_other_parameters_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function with other parameters is not called."""
    monkeypatch.setattr(MlirFlavour, "parameters", (("optimize", "nothing_of_the_kind"),))

    with pytest.raises(ToolchainMissingError, match="optimize takes no nothing_of_the_kind"):
        compiler(MLIR)


def test_assumed_host_is_this_threads_alone() -> None:
    """A compile for an absent target changes nothing for other threads, nor afterwards."""
    import threading

    from numba_cuda_mlir import tools

    seen: list[Any] = []
    real = tools.get_gpu_compute_capability
    tools.get_gpu_compute_capability = lambda as_type=str: (7, 5)
    try:
        with assumed_device(MLIR, (9, 0)):
            other = threading.Thread(target=lambda: seen.append(tools.get_gpu_compute_capability(tuple)))
            other.start()
            other.join()
            seen.append(tools.get_gpu_compute_capability(tuple))
        seen.append(tools.get_gpu_compute_capability(tuple))
    finally:
        tools.get_gpu_compute_capability = real

    assert seen == [(7, 5), (9, 0), (7, 5)]


def test_planner_shows() -> None:
    """A registered planner is noticed: a kernel may be cached only without one."""
    registry = surface(MLIR)._planner_registry

    assert not has_planners()
    registry._planners.append(SimpleNamespace)
    try:
        assert has_planners()
    finally:
        registry._planners.clear()


def test_registries_of_every_loaded_module_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the first compile's modules, and of one that a later version may have."""
    surface(MLIR).mlir_target.ensure_initialized()
    before = MLIR.holders()
    later = SimpleNamespace(registry=SimpleNamespace(functions=[]))
    monkeypatch.setitem(sys.modules, "numba_cuda_mlir.later", later)

    assert len(before) > 50
    assert {*MLIR.holders()} - {*before} == {("numba_cuda_mlir.later", "registry")}


def test_compile_that_a_program_replaced_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replaced compile function is noticed, since the code it makes is in no key."""
    from numba_cuda_mlir import mlir_compiler

    assert not has_another_compile()
    monkeypatch.setattr(mlir_compiler, "mlir_compiler_entry", lambda *arguments: None)

    assert has_another_compile()
