"""Every test has the process's cache to itself: in a folder of its own, with no setting of the user's."""

from __future__ import annotations

import gc
import os
from itertools import count

import pytest

from numba_kcache.engine import session as process_cache
from numba_kcache.engine.session import save_collected
from numba_kcache.store import fallback

_number = count()


@pytest.fixture(autouse=True)
def _own_process_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in [name for name in os.environ if name.startswith("NUMBA_KCACHE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NUMBA_KCACHE_DIR", str(tmp_path_factory.getbasetemp() / f"cache-{next(_number)}"))
    monkeypatch.setenv("NUMBA_KCACHE_DURABILITY", "none")
    local = tmp_path_factory.getbasetemp() / f"local-{next(_number)}"
    local.mkdir()
    monkeypatch.setattr(fallback, "LOCAL_PARENT", str(local))  # where a refused directory falls back to
    monkeypatch.setattr(process_cache, "_process", None)
    monkeypatch.setattr(process_cache, "_overrides", {})
    monkeypatch.setattr(process_cache, "_registered", {})


@pytest.fixture
def alone() -> None:
    """The caches of earlier tests are gone: what they write when they are collected meets no fault of this test."""
    gc.collect()
    save_collected()
