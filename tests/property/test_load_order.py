"""The reading of a Numba kernel depends on the program alone, and never on what is loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.compiling import ROOT
from tests.support.device_functions import COMMON, COMPILED, KEYS, NAMES, OWN

pytestmark = pytest.mark.slow

PACKAGES = ("numba", "numba_cuda_mlir")
LOCAL = "    own = cuda\n    x[0] = own{}(x[0])"
STATES = {"compiled": 2, "loaded, reversed": 1, "imported": 2}
"""Every name by attribute is asked in each state, from a local variable where the step is 1."""


def printed(program: str, package: str, state: str, directory: Path, given: str = "", **environment: str) -> Any:
    """Run a program in a fresh process; return what it prints, from JSON."""
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("NUMBA_")}
    done = subprocess.run(
        [sys.executable, "-c", program, package, state, str(directory)],
        input=given, capture_output=True, text=True, check=False, timeout=300,
        env={**inherited, "PYTHONPATH": str(ROOT), **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("package", PACKAGES)
def test_every_device_function_has_one_key_in_any_process(tmp_path: Path, package: str) -> None:
    """Fresh, after another kernel was compiled, after it was loaded and in reversed order, with all of Numba imported.

    A fresh process, and one that asks in reversed order after a load, read each name by attribute and from a local
    variable, the others by attribute alone.
    """
    names = printed(NAMES, package, "fresh", tmp_path)
    texts = [text for name in names for text in (f"    x[0] = {name}(x[0])", LOCAL.format(name.removeprefix("cuda")))]
    first = printed(KEYS, package, "fresh", tmp_path, json.dumps(texts))

    assert sum(len(each) == 64 for each in first.values()) > 1000, "most names have a key"
    for state, step in STATES.items():
        found = printed(KEYS, package, state, tmp_path, json.dumps(texts[::step]))
        assert [text for text in found if found[text] != first[text]] == [], state


@pytest.mark.parametrize("package", PACKAGES)
def test_corpus_hits_in_the_second_process(tmp_path: Path, package: str) -> None:
    """fp16, bf16, libdevice, groups, atomics, shuffles, vectors, random: compiled once, found in any order."""
    kernels = len(COMMON | OWN[package])

    assert printed(COMPILED, package, "fresh", tmp_path) == [0, kernels]
    for state in ("fresh", "imported, reversed"):
        assert printed(COMPILED, package, state, tmp_path) == [kernels, 0], state
