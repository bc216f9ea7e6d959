"""sha256 from either implementation."""

from __future__ import annotations

import hashlib
import runpy
import sys

import pytest

from numba_kcache import keys


@pytest.mark.parametrize("size_bytes", [0, 1, 1000, 16 << 10, (16 << 10) + 1])
@pytest.mark.parametrize("has_own", [True, False])
def test_digest_is_sha256_whoever_computes_it(monkeypatch: pytest.MonkeyPatch, size_bytes: int, has_own: bool) -> None:
    """Below and above the size limit, with and without the interpreter's own sha256."""
    if not has_own:
        monkeypatch.setitem(sys.modules, "_sha2", None)
        monkeypatch.setitem(sys.modules, "_sha256", None)
    data = bytes(range(256)) * 65
    data = data[:size_bytes]

    sha256 = runpy.run_path(keys.__file__, run_name="numba_kcache.keys")["sha256"]

    assert sha256(data).hexdigest() == hashlib.sha256(data).hexdigest()
