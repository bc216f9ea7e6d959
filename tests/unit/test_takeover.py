"""Another compiler's dispatchers are taken over when it is imported, and are restored afterwards."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from numba_kcache.frontends.numba.takeover import Takeover, give_back

HOME = "toy_compiler.dispatch"


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A compiler's package that can be imported."""
    folder = tmp_path / "toy_compiler"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "dispatch.py").write_text("is_loaded = True\n")
    (folder / "other.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    before = list(sys.meta_path)
    yield
    sys.meta_path[:] = before
    for name in [name for name in sys.modules if name.partition(".")[0] == "toy_compiler"]:
        del sys.modules[name]


def takeover_of(calls: list[Any]) -> Takeover:
    def replace(home: ModuleType, every_kernel: bool) -> None:
        calls.append((home.is_loaded, every_kernel))

    return Takeover(HOME, "toy_compiler", "toy_compiler.other", replace, lambda: calls.append("restored"))


@pytest.mark.usefixtures("compiler")
def test_compiler_that_is_imported_later_is_taken_over_then() -> None:
    """This happens once, when its module has run; imports of its other modules change nothing."""
    calls: list[Any] = []
    takeover_of(calls).install(True)
    importlib.import_module("toy_compiler.other")
    assert calls == ["restored"]

    importlib.import_module(HOME)
    importlib.reload(sys.modules[HOME])

    assert calls == ["restored", (True, True)]


@pytest.mark.usefixtures("compiler")
def test_compiler_that_is_imported_is_taken_over_at_once() -> None:
    """It can be taken over again after it was restored."""
    importlib.import_module(HOME)
    calls: list[Any] = []
    takeover = takeover_of(calls)
    takeover.install(False)
    takeover.install(True)

    assert calls == ["restored", (True, False), "restored", (True, True)]


@pytest.mark.usefixtures("compiler")
def test_uninstalled_takeover_waits_for_nothing() -> None:
    """A later import leaves the compiler's module unchanged."""
    calls: list[Any] = []
    takeover = takeover_of(calls)
    takeover.install(True)
    takeover.uninstall()
    importlib.import_module(HOME)

    assert calls == ["restored", "restored"]


class Dispatcher:
    """A kernel of the toy compiler."""

    def __init__(self, has_place: bool = True) -> None:
        self.has_place, self._cache = has_place, "of this cache"

    def compile(self) -> str:
        return "replaced"

    def enable_caching(self) -> None:
        if not self.has_place:
            raise RuntimeError("no locator")
        self._cache = "its own"


def test_dispatchers_get_methods_and_caches_back_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dispatcher gets the cache that it had or would have made, or none; a cache that was set afterwards stays."""
    monkeypatch.setattr(Dispatcher, "compile", Dispatcher.compile)
    had, made, none = Dispatcher(), Dispatcher(), Dispatcher(has_place=False)
    methods: dict[str, Any] = {"compile": lambda self: "original"}
    caches: dict[Any, Any] = {had: "before", made: None, none: None}
    give_back(Dispatcher, lambda: "null", methods, caches)

    assert [each._cache for each in (had, made, none)] == ["before", "its own", "null"]
    assert had.compile() == "original"
    had._cache = "set afterwards"
    give_back(Dispatcher, lambda: "null", methods, caches)
    assert had._cache == "set afterwards"
