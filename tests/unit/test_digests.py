"""sha256, whoever computes it."""

from __future__ import annotations

import hashlib

import pytest

from numba_kcache import keys as digests


@pytest.mark.parametrize("size_bytes", [0, 1, 1000, 16 << 10, (16 << 10) + 1])
@pytest.mark.parametrize("has_own", [True, False])
def test_digest_is_sha256_whoever_computes_it(monkeypatch: pytest.MonkeyPatch, size_bytes: int, has_own: bool) -> None:
    """Below and above the limit, with the interpreter's own sha256 and without it."""
    if not has_own:
        monkeypatch.setattr(digests, "_own", None)
    data = bytes(range(256)) * 65
    data = data[:size_bytes]

    assert digests.sha256(data).hexdigest() == hashlib.sha256(data).hexdigest()
