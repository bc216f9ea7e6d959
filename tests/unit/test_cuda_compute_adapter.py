"""The adapter of cuda.compute where cuda.compute is not imported, and the key forms of its arguments."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest

import numba_kcache
from numba_kcache import KCacheWarning, ToolchainMissingError
from numba_kcache.adapters import cuda_compute
from numba_kcache.adapters.compute_arguments import Unkeyed, dtype_form
from numba_kcache.adapters.compute_operators import OPERATORS
from numba_kcache.frontends.numba.fingerprint import Fingerprint, fingerprint

FACTOR = 2


def scale(x: float) -> float:
    """Twice as much."""
    return x * FACTOR


def test_block_without_cuda_cccl_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program asked for cuda.compute explicitly, so the missing package is an error."""
    monkeypatch.setitem(sys.modules, "cuda.compute", None)
    with pytest.raises(ToolchainMissingError, match="cuda-cccl"), cuda_compute.cached():
        pass


def test_older_cuda_cccl_works_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """`install` warns and leaves it alone, also when it is undone; a block that asks for the cache is an error."""
    older = types.ModuleType("cuda.compute")
    older.op = types.ModuleType("cuda.compute.op")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda.compute", older)
    monkeypatch.setitem(sys.modules, "cuda.compute.op", older.op)

    for _ in range(2):
        with pytest.warns(KCacheWarning, match=r"cannot cache cuda.compute: cuda-cccl is older than 1\.2"):
            numba_kcache.install(cuda_compute=True)
        numba_kcache.uninstall()
    with pytest.raises(ToolchainMissingError, match=r"pip install 'cuda-cccl\[cu13\]>=1\.2"), cuda_compute.cached():
        pass


def test_installing_waits_for_the_import_and_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """`install(cuda_compute=True)` imports nothing; `uninstall()` takes its finder away."""
    for name in [name for name in sys.modules if name.startswith("cuda.compute")]:
        monkeypatch.delitem(sys.modules, name)
    before = list(sys.meta_path)
    numba_kcache.install(cuda_compute=True)
    numba_kcache.install(cuda_compute=True)
    added = [each for each in sys.meta_path if each not in before]

    assert len(added) == 1
    assert added[0].find_spec("json") is None
    assert "cuda.compute" not in sys.modules
    numba_kcache.uninstall()
    assert sys.meta_path == before


@pytest.mark.parametrize(
    "other",
    [
        np.dtype([("a", "f4"), ("b", "i4")], align=True),
        np.dtype([("b", "f4"), ("a", "f8")]),
        np.dtype({"names": ["a", "b"], "formats": ["f4", "f8"], "offsets": [0, 8]}),
        np.dtype([("a", "f4"), ("b", "f8", (2,))]),
        np.dtype([("a", ">f4"), ("b", "f8")]),
    ],
)
def test_layout_of_a_struct_is_in_its_form(other: Any) -> None:
    """The form has names, order, offsets, types, byte order and nested shapes."""
    one = np.dtype([("a", "f4"), ("b", "f8")])

    assert dtype_form(one) == dtype_form(np.dtype([("a", "f4"), ("b", "f8")])) != dtype_form(other)


def test_array_of_objects_has_no_form() -> None:
    """An array of Python objects cannot be on a device."""
    with pytest.raises(Unkeyed, match="Python objects"):
        dtype_form(np.dtype(object))


def test_python_operator_follows_what_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A global that it reads is in its fingerprint."""
    before = fingerprint(scale, OPERATORS, with_lines=False)
    monkeypatch.setitem(globals(), "FACTOR", 3)
    after = fingerprint(scale, OPERATORS, with_lines=False)

    assert isinstance(before, Fingerprint)
    assert isinstance(after, Fingerprint)
    assert before.digest != after.digest
