"""The reading of a Numba kernel depends on the program alone, and never on what is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import numba_server
from tests.support.device_functions import COMMON, COMPILED, KEYS, NAMES, OWN
from tests.support.fake_driver import build, environment, needs_fake_driver

pytestmark = [needs_fake_driver, pytest.mark.slow]

PACKAGES = ("numba", "numba_cuda_mlir")
LOCAL = "    own = cuda\n    x[0] = own{}(x[0])"
STATES = {"compiled": ("later", 2), "loaded, reversed": ("later", 1), "imported": ("first", 2)}
"""For each state the process that is forked: one with another hash seed, or one that has filled its registries. Every
name by attribute is asked in each, from a local variable where the step is 1."""


def printed(program: str, package: str, state: str, directory: Path, given: str = "", way: str = "early") -> Any:
    """Run a program in a fork of a process that has imported the package; return what it prints, from JSON."""
    words, of = ["-c", program, package, state, str(directory)], {"numba_cuda_mlir": "mlir"}.get(package, package)
    return json.loads(numba_server.output(words, environment(build()), of, way=way, given=given).splitlines()[-1])


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
    for state, (way, step) in STATES.items():
        found = printed(KEYS, package, state, tmp_path, json.dumps(texts[::step]), way)
        assert [text for text in found if found[text] != first[text]] == [], state


@pytest.mark.parametrize("package", PACKAGES)
def test_corpus_hits_in_the_second_process(tmp_path: Path, package: str) -> None:
    """fp16, bf16, libdevice, groups, atomics, shuffles, vectors, random: compiled once, found in any order."""
    kernels = len(COMMON | OWN[package])

    assert printed(COMPILED, package, "fresh", tmp_path) == [0, kernels]
    for state, way in (("fresh", "later"), ("imported, reversed", "first")):
        assert printed(COMPILED, package, state, tmp_path, way=way) == [kernels, 0], state
