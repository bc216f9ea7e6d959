"""Numba's configuration as a component of the key."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from numba import cuda  # noqa: F401  (loads what is read)
from numba.cuda.core import config

from numba_kcache.frontends.numba.request import CODE_SETTINGS, code_environment


def digest() -> str:
    return code_environment()[0].digest


@pytest.mark.parametrize(
    ("name", "value"),
    [("NUMBA_OPT", "0"), ("NUMBA_OPT", "max"), ("NUMBA_FORCE_CUDA_CC", "8.0"), ("NUMBA_CUDA_DEBUGINFO", "1")],
)
def test_variable_changes_digest(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """Numba's cache lacks these in its key, and serves an unoptimised or sm_80 kernel to a normal run."""
    before = digest()

    monkeypatch.setenv(name, value)
    changed = digest()
    monkeypatch.undo()

    assert changed != before
    assert digest() == before


@pytest.mark.parametrize("name", ["CUDA_ENABLE_NRT", "CUDA_NVRTC_EXTRA_SEARCH_PATHS", "CUDA_DEBUG_POLY", "OPT"])
def test_value_set_by_the_program_changes_digest(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Settings made in Python, not in the environment, count as well."""
    before = digest()

    monkeypatch.setattr(config, name, "/other" if "PATHS" in name else 1 - int(bool(getattr(config, name))))

    assert digest() != before


def test_default_of_the_toolkit_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a CUDA runtime, or with an older one, the defaults are others: they are in the key, but not of what is
    asked for, so that code made elsewhere is found. What a program sets is requested."""
    from numba.cuda import debuginfo

    before = code_environment()
    assert [each.name for each in before] == ["numba settings", "numba toolkit"]
    other = not debuginfo.DEBUG_POLY_SUPPORTED
    monkeypatch.setattr(config, "CUDA_DEBUG_POLY", other)
    set_by_program = code_environment()
    monkeypatch.setattr(debuginfo, "DEBUG_POLY_SUPPORTED", other)
    of_another_toolkit = code_environment()

    assert set_by_program[0] != before[0]
    assert set_by_program[1] == before[1]
    assert of_another_toolkit[0] == before[0]
    assert of_another_toolkit[1] != before[1]


def test_settings_that_only_print_keep_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dumps and warnings change no code."""
    before = digest()

    monkeypatch.setenv("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0")
    monkeypatch.setenv("NUMBA_DISABLE_PERFORMANCE_WARNINGS", "1")

    assert digest() == before


def test_every_setting_is_one_of_numbas() -> None:
    """A name that Numba no longer has would always be read as None."""
    known = [name for name in CODE_SETTINGS if hasattr(config, name)]

    assert set(CODE_SETTINGS) - set(known) <= {"USE_LEGACY_TYPE_SYSTEM"}


def test_nothing_is_read_before_numba_is_loaded() -> None:
    """The warm path of a CUDA C++ kernel must not import Numba for this."""
    script = (
        "from numba_kcache.frontends.numba.request import code_environment as read; import sys\n"
        "assert read() == () and 'numba' not in sys.modules"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    subprocess.run([sys.executable, "-c", script], env=environ, check=True)
