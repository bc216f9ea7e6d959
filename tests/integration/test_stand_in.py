"""Programs that import `cuda` from this package in place of Numba's, on the fake driver, in fresh processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import stand_in_programs as programs
from tests.support.fake_driver import build, environment, needs_fake_driver, read_log, run

pytestmark = [needs_fake_driver, pytest.mark.slow]


def said(program: str, cache: Path, *, log: Path | None = None, cwd: Path | None = None, **env: str) -> dict[str, Any]:
    """What a program says at its end."""
    surroundings = {**environment(build(), log=log), "NUMBA_KCACHE_DIR": str(cache), **env}
    found: dict[str, Any] = json.loads(run(["-c", program], env=surroundings, cwd=cwd).stdout.splitlines()[-1])
    return found


def test_second_process_hits_without_numba(tmp_path: Path) -> None:
    """A stored kernel is launched with the same parameters, and neither Numba, llvmlite nor NumPy is imported."""
    log = tmp_path / "log"
    cold = said(programs.COMMON, tmp_path / "cache", log=log)
    assert (cold["hits"], cold["misses"]) == (0, 1)

    warm = said(programs.COMMON, tmp_path / "cache", log=log)

    assert (warm["hits"], warm["misses"], warm["loaded"]) == (1, 0, [])
    assert warm["keys"] == cold["keys"]
    launches = [each["parameters"] for each in read_log(log, "launch")]
    assert len(launches) == 6
    assert [[each[at] for at in (2, 3, 5, 6, 7)] for each in launches] == [
        [launches[0][at] for at in (2, 3, 5, 6, 7)]
    ] * 6


def test_program_that_imports_numba_hits_the_same_entry(tmp_path: Path) -> None:
    """The key is that of the same program with `from numba import cuda`, whichever of both compiled it."""
    stored = said(programs.COMMON, tmp_path / "one")
    assert said(programs.COMMON, tmp_path / "one", REAL="1") == {
        **stored, "hits": 1, "misses": 0, "why": "", "loaded": stored["loaded"]
    }  # fmt: skip

    by_real = said(programs.COMMON, tmp_path / "two", REAL="1")
    first = said(programs.COMMON, tmp_path / "two")
    second = said(programs.COMMON, tmp_path / "two")

    assert by_real["keys"] == first["keys"] == second["keys"] == stored["keys"]
    assert (first["hits"], first["misses"]) == (second["hits"], second["misses"]) == (1, 0)
    assert "nothing of this numba-cuda is stored yet" in first["why"]
    assert second["loaded"] == []


def test_changed_global_is_compiled_with_its_new_value(tmp_path: Path) -> None:
    """A changed global is a miss, by a compile of the present value; the earlier value still hits."""
    first = said(programs.COMMON, tmp_path)

    changed = said(programs.COMMON, tmp_path, SCALE="3.0")

    assert (changed["misses"], changed["why"].rpartition(": ")[2]) == (1, "it is not stored")
    assert changed["keys"] != first["keys"]
    assert said(programs.COMMON, tmp_path, SCALE="3.0", REAL="1")["keys"] == changed["keys"]
    assert said(programs.COMMON, tmp_path)["loaded"] == []
