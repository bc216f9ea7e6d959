"""Tracebacks of errors that users meet."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import numba_kcache
from numba_kcache import KernelCache, cached_kernel, configure
from numba_kcache.errors import KCacheError, OptionError, shortened
from tests.support.compiling import EMPTY

PACKAGE = str(Path(numba_kcache.__file__).parent)


def frames(function: Callable[[], Any]) -> list[str]:
    """The files of the traceback of what a function raises, from this one on."""
    with pytest.raises(Exception) as caught:
        function()
    files = [each.filename for each in traceback.extract_tb(caught.value.__traceback__)]
    return files[files.index(__file__) :]


def broken() -> str:
    raise ZeroDivisionError("the user's own")


CALLS: dict[str, Callable[[KernelCache], Any]] = {
    "compile": lambda cache: cached_kernel("nonsense", arch="sm_90", cache=cache).compile(),
    "params": lambda cache: cached_kernel("nonsense", arch="sm_90", cache=cache).params,
    "a launch": lambda cache: cached_kernel(EMPTY, cache=cache)[2.5, 32](),
    "an option": lambda cache: cached_kernel(EMPTY, fastmth=True),  # type: ignore[call-overload]
    "an option above a function": lambda cache: cached_kernel(fastmth=True)(EMPTY),  # type: ignore[call-overload]
    "a setting": lambda cache: configure(max_size="1GB"),  # type: ignore[call-arg]
    "get_or_compile": lambda cache: cache.get_or_compile("nonsense", arch="sm_90"),
}


@pytest.mark.parametrize("name", CALLS)
def test_traceback_has_one_frame_of_this_package(name: str, tmp_path: Path) -> None:
    """The one that users call, a property with the two that it reads by: 12 to 16 came with a syntax error."""
    cache = KernelCache(tmp_path, durability="none")
    files = frames(lambda: CALLS[name](cache))

    assert [each.startswith(PACKAGE) for each in files].count(True) == (3 if name == "params" else 1)
    assert files[-1].startswith(PACKAGE)


def test_frames_of_the_user_s_function_stay(tmp_path: Path) -> None:
    """An exception of the function that returns the source ends in that function."""
    kernel = cached_kernel(broken, arch="sm_90", cache=KernelCache(tmp_path, durability="none"))
    files = frames(kernel.compile)

    assert files[-1] == __file__
    assert [each.startswith(PACKAGE) for each in files].count(True) == 1


def test_mistake_of_this_package_is_seen_whole() -> None:
    """An error that nobody raised on purpose keeps its frames, and so does one out of Python's own library."""
    for wrong in ("configure.__wrapped__", "__import__('os').path.join(None)"):
        code = compile(f"def inner():\n    {wrong}\ndef outer():\n    inner()", f"{PACKAGE}/toy.py", "exec")
        names: dict[str, Any] = {"configure": configure}
        exec(code, names)
        with pytest.raises((AttributeError, TypeError)) as caught:
            names["outer"]()
        before = traceback.extract_tb(caught.value.__traceback__)

        assert traceback.extract_tb(shortened(caught.value).__traceback__) == before


def test_development_mode_shows_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -X dev` is how to see what was left out."""
    error: KCacheError = OptionError("cannot")
    code = compile("def inner(error):\n    raise error", f"{PACKAGE}/toy.py", "exec")
    names: dict[str, Any] = {}
    exec(code, names)
    with pytest.raises(OptionError):
        names["inner"](error)

    class Flags:
        dev_mode = True

    whole = traceback.extract_tb(error.__traceback__)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "flags", Flags)
        assert traceback.extract_tb(shortened(error).__traceback__) == whole
    assert len(traceback.extract_tb(shortened(error).__traceback__)) == len(whole) - 1
