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
BOTH = "    x[0] = {0}(x[0])\n    own = cuda\n    x[0] = own{1}(x[0])"
"""The body of a kernel that reads a name by attribute, and from a local variable."""

STATES = {"compiled": "later", "loaded, reversed": "later", "imported": "first"}
"""For each state the process that is forked: one with another hash seed, or one that has filled its registries."""


def printed(program: str, package: str, state: str, directory: Path, given: str = "", way: str = "early") -> Any:
    """Run a program in a fork of a process that has imported the package; return what it prints, from JSON."""
    words, of = ["-c", program, package, state, str(directory)], {"numba_cuda_mlir": "mlir"}.get(package, package)
    return json.loads(numba_server.output(words, environment(build()), of, way=way, given=given).splitlines()[-1])


def by_eights(texts: list[str]) -> list[str]:
    return ["\n".join(texts[at : at + 8]) for at in range(0, len(texts), 8)]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_device_function_has_one_key_in_any_process(tmp_path: Path, package: str) -> None:
    """Fresh, after another kernel was compiled, after it was loaded and in reversed order, with all of Numba imported.

    Each reads eight names, by attribute and from a local variable; one of them where one of the eight has no key.
    """
    names = printed(NAMES, package, "fresh", tmp_path)
    texts = [BOTH.format(name, name.removeprefix("cuda")) for name in names]

    def has_key(asked: list[str]) -> dict[str, bool]:
        return {
            text: len(key) == 64 for text, key in printed(KEYS, package, "fresh", tmp_path, json.dumps(asked)).items()
        }

    whole = has_key(by_eights(texts))
    alone = has_key([text for text in texts if not any(text in each for each in whole if whole[each])])
    keyed = [text for text in texts if alone.get(text, True)]
    assert len(keyed) > max(600, 0.9 * len(names)), "most names have a key"

    eights = by_eights(keyed)
    asked = json.dumps([*eights, *(text for text in texts if text not in keyed)])
    first = printed(KEYS, package, "fresh", tmp_path, asked)
    assert all(len(first[each]) == 64 for each in eights)
    for state, way in STATES.items():
        found = printed(KEYS, package, state, tmp_path, asked, way)
        assert [text for text in found if found[text] != first[text]] == [], state


@pytest.mark.parametrize("package", PACKAGES)
def test_corpus_hits_in_the_second_process(tmp_path: Path, package: str) -> None:
    """fp16, bf16, libdevice, groups, atomics, shuffles, vectors, random: compiled once, found in any order."""
    kernels = len(COMMON | OWN[package])

    assert printed(COMPILED, package, "fresh", tmp_path) == [0, kernels]
    for state, way in (("fresh", "later"), ("imported, reversed", "first")):
        assert printed(COMPILED, package, state, tmp_path, way=way) == [kernels, 0], state
