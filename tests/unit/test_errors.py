"""Tracebacks of errors that users meet."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import numba_kcache
from numba_kcache import KernelCache, cached_kernel, cached_module, configure
from numba_kcache.errors import KCacheError, OptionError, shorten
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
    "an argument": lambda cache: cached_kernel(EMPTY, arch="sm_90", cache=cache).explain("sm_x"),
    "forall": lambda cache: cached_kernel(EMPTY, cache=cache).forall([1, 2]),
    "a module": lambda cache: cached_module("nonsense", cache=cache).compile("sm_90"),
    "a module's option": lambda cache: cached_module(EMPTY, names="k"),  # type: ignore[arg-type]
    "export": lambda cache: cache.export_bundle("nowhere.kcache"),
    "get_or_compile": lambda cache: cache.get_or_compile("nonsense", arch="sm_90"),
}


@pytest.mark.parametrize("name", CALLS)
def test_traceback_has_no_frame_of_this_package(name: str, tmp_path: Path) -> None:
    """It ends in the user's line; the error's context, which the message repeats, is not shown."""
    cache = KernelCache(tmp_path, durability="none")
    with pytest.raises(KCacheError) as caught:
        CALLS[name](cache)
    files = [each.filename for each in traceback.extract_tb(caught.value.__traceback__)]

    assert files[-1] == __file__
    assert not [each for each in files if each.startswith(PACKAGE)]
    assert caught.value.__suppress_context__


def test_frames_of_the_user_s_function_stay(tmp_path: Path) -> None:
    """An exception of the function that returns the source ends in that function."""
    kernel = cached_kernel(broken, arch="sm_90", cache=KernelCache(tmp_path, durability="none"))
    files = frames(kernel.compile)

    assert files[-1] == __file__
    assert not [each for each in files if each.startswith(PACKAGE)]


def test_frames_of_numba_go_where_it_refuses_and_stay_where_it_fails() -> None:
    """A TypeError of Numba is about the user's code; an AssertionError may be a bug, which its frames show."""
    for error, is_refusal in ((TypeError("no"), True), (AssertionError("bug"), False)):
        names: dict[str, Any] = {"error": error}
        exec(compile("def inner():\n    raise error", "/env/site-packages/numba_cuda/numba/toy.py", "exec"), names)
        with pytest.raises(type(error)) as caught:
            names["inner"]()
        shorten(caught.value)
        files = [each.filename for each in traceback.extract_tb(caught.value.__traceback__)]

        assert (files[-1] == __file__) is is_refusal


def test_mistake_of_this_package_is_seen_whole() -> None:
    """An error that nobody raised on purpose keeps its frames, and so does one out of Python's own library."""
    for wrong in ("configure.no_such_thing", "__import__('os').path.join(None)"):
        code = compile(f"def inner():\n    {wrong}\ndef outer():\n    inner()", f"{PACKAGE}/toy.py", "exec")
        names: dict[str, Any] = {"configure": configure}
        exec(code, names)
        with pytest.raises((AttributeError, TypeError)) as caught:
            names["outer"]()
        before = traceback.extract_tb(caught.value.__traceback__)

        shorten(caught.value)
        assert traceback.extract_tb(caught.value.__traceback__) == before


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
        shorten(error)
        assert traceback.extract_tb(error.__traceback__) == whole
    shorten(error)
    assert len(traceback.extract_tb(error.__traceback__)) == len(whole) - 1
