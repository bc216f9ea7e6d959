"""Every test has the process's cache to itself: in its own folder, with no setting of the user's."""

from __future__ import annotations

import compileall
import gc
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path

import pytest

import numba_kcache
from numba_kcache import engine
from numba_kcache.engine import save_collected
from numba_kcache.store import folders
from tests.support.programs import require_paths, starts_programs

HERE = Path(__file__).parent
_number = count()
require_paths()
# JAX takes three quarters of a device's memory at its first use: tests beside it would have none
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


@contextmanager
def bytecode_kept() -> Generator[None]:
    """Write bytecode of what is imported, whatever the environment says."""
    kept, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    try:
        yield
    finally:
        sys.dont_write_bytecode = kept


def pytest_configure(config: pytest.Config) -> None:
    """Compile to bytecode once what hundreds of children import: where bytecode is not written, each would compile it
    again. No test of Hypothesis fails for the time that it takes. pytest rewrites the assertions in its package, as in
    each of a plugin: once, too."""
    if not hasattr(config, "workerinput"):
        for folder in (Path(numba_kcache.__file__).parent, HERE / "support", HERE / "differential"):
            compileall.compile_dir(folder, quiet=2)
    if find_spec("hypothesis") is not None:  # a lane may lack it
        with bytecode_kept():
            from hypothesis import HealthCheck, settings

        settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
        settings.load_profile("untimed")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Collect in a lane only files with lane tests: the others import packages that a lane may lack."""
    if config.option.markexpr != "lane" or collection_path.suffix != ".py":
        return None
    return True if "mark.lane" not in collection_path.read_text(encoding="utf-8") else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that start programs of other packages, themselves or by a fixture, or are left out without."""
    for item in items:
        if isinstance(item, pytest.Function):
            fixtures = [each.func for found in item._fixtureinfo.name2fixturedefs.values() for each in found]
            reasons = str([each.kwargs.get("reason") for each in item.iter_markers("skipif")])
            if "on PATH" in reasons or "(cc)" in reasons or starts_programs(item.function, *fixtures):
                item.add_marker("program")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the bytecode of the tests: to make it takes half of the collection. Walk none of its objects for garbage,
    which takes a third of the rest; they are there until the end."""
    gc.disable()
    try:
        with bytecode_kept():
            return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.fixture(autouse=True)
def _own_process_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in [name for name in os.environ if name.startswith("NUMBA_KCACHE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NUMBA_KCACHE_DIR", str(tmp_path_factory.getbasetemp() / f"cache-{next(_number)}"))
    monkeypatch.setenv("NUMBA_KCACHE_DURABILITY", "none")
    local = tmp_path_factory.getbasetemp() / f"local-{next(_number)}"
    local.mkdir()
    monkeypatch.setattr(folders, "LOCAL_PARENT", str(local))  # of host files, and of locks of network directories
    monkeypatch.setattr(engine, "_process", {})
    monkeypatch.setattr(engine, "_overrides", {})
    monkeypatch.setattr(engine, "_registered", {})


@pytest.fixture
def compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what is done with code: NVRTC makes that of a text without directives once in a process."""
    from tests.support.compiling import run_nvrtc_once

    monkeypatch.setattr("numba_kcache.frontends.source.build.run_nvrtc", run_nvrtc_once)


@pytest.fixture
def alone() -> None:
    """The caches of earlier tests are gone: what they write when they are collected meets no fault of this test."""
    gc.collect()
    gc.freeze()  # what is alive now is not walked again by the next test: 0.2 s each, where Numba is loaded
    save_collected()
