"""Libraries are patched when they are imported, and are restored afterwards."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import numba_kcache
from numba_kcache import numba_hook
from numba_kcache.frontends.numba import dispatcher as numba_dispatcher

HOME = "toy_compiler.dispatch"


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What is done to a compiler's package that can be imported, the only one that is patched."""
    folder = tmp_path / "toy_compiler"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "dispatch.py").write_text("is_loaded = True\n")
    (folder / "other.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    done: list[Any] = []

    def replace(home: ModuleType, every_kernel: bool) -> None:
        done.append((home.is_loaded, every_kernel))

    patch: Any = SimpleNamespace(replace=replace, restore=lambda: done.append("restored"))
    monkeypatch.setitem(sys.modules, "numba_kcache.toy_patch", patch)
    monkeypatch.setattr(numba_hook, "PATCHES", {HOME: "toy_patch"})
    monkeypatch.setattr(numba_hook, "NUMBAS", {HOME: "toy_compiler"})
    before = list(sys.meta_path)
    yield done
    numba_kcache.uninstall()
    assert sys.meta_path == before
    for name in [name for name in sys.modules if name.partition(".")[0] == "toy_compiler"]:
        del sys.modules[name]


def test_compiler_that_is_imported_later_is_patched_then(calls: list[Any]) -> None:
    """This happens once, when its module has run; imports of its other modules change nothing."""
    numba_kcache.install(all=True)
    importlib.import_module("toy_compiler.other")
    assert calls == []

    importlib.import_module(HOME)
    importlib.reload(sys.modules[HOME])

    assert calls == ["restored", (True, True)]


def test_compiler_that_is_imported_is_patched_at_once(calls: list[Any]) -> None:
    """It can be patched again after it was restored."""
    importlib.import_module(HOME)
    numba_kcache.install()
    numba_kcache.install(all=True)

    assert calls == ["restored", (True, False), "restored", (True, True)]


def test_uninstalled_hook_waits_for_nothing(calls: list[Any]) -> None:
    """A later import leaves the compiler's module unchanged."""
    numba_kcache.install(all=True)
    numba_kcache.uninstall()
    importlib.import_module(HOME)

    assert calls == ["restored"]


@pytest.mark.parametrize(
    ("wanted", "done"), [("all", ["restored", (True, True)]), ("lazy", ["restored", (True, True)]), ("0", [])]
)
def test_variable_is_read_when_the_compiler_is_imported(
    calls: list[Any], monkeypatch: pytest.MonkeyPatch, wanted: str, done: list[Any]
) -> None:
    """A program may set it, or take it back, after it has imported this package."""
    monkeypatch.setenv("NUMBA_KCACHE_INSTALL", "1")
    numba_hook.install_when_imported()
    monkeypatch.setenv("NUMBA_KCACHE_INSTALL", wanted)
    importlib.import_module(HOME)

    assert calls == done


class Dispatcher:
    """A kernel of the toy compiler."""

    def __init__(self, has_place: bool = True) -> None:
        self.has_place, self._cache = has_place, "of this cache"

    def compile(self) -> str:
        return "replaced"

    specialize = compile

    def enable_caching(self) -> None:
        if not self.has_place:
            raise RuntimeError("no locator")
        self._cache = "its own"


def test_dispatchers_get_methods_and_caches_back_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dispatcher gets the cache that it had or would have made, or none; a cache that was set afterwards stays."""
    original = Dispatcher.compile
    for name in ("compile", "specialize", "enable_caching"):
        monkeypatch.setattr(Dispatcher, name, vars(Dispatcher)[name])
    parts = SimpleNamespace(Dispatcher=Dispatcher, NullCache=lambda: "null")
    monkeypatch.setattr(numba_dispatcher, "surface", lambda _flavour: parts)
    had, made, none = Dispatcher(), Dispatcher(), Dispatcher(has_place=False)
    patch = numba_dispatcher.Patch(object(), None, None)  # type: ignore[arg-type]
    patch.replace(Dispatcher, {"compile": lambda self: "of this cache"})
    patch.attached.update({had: "before", made: None, none: None})
    assert had.compile() == "of this cache"
    patch.restore()

    assert [each._cache for each in (had, made, none)] == ["before", "its own", "null"]
    assert Dispatcher.compile is original
    had._cache = "set afterwards"
    patch.restore()
    assert had._cache == "set afterwards"
