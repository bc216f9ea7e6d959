"""The default directory."""

from __future__ import annotations

import sys

import platformdirs
import pytest

from numba_kcache.settings import default_directory


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere platformdirs itself is asked")
@pytest.mark.parametrize("home", [None, "", " ", "/var/cache/me", " /var/cache/me ", "relative/cache"])
def test_default_directory_is_what_platformdirs_says(monkeypatch: pytest.MonkeyPatch, home: str | None) -> None:
    """The shorter code for Linux gives the directory of platformdirs, for any XDG_CACHE_HOME."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if home is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", home)

    assert default_directory() == platformdirs.user_cache_dir("numba_kcache", appauthor=False)
