"""Import modules and hide them: a fork that imports one gets it, and what it imports, at once.

Promise     `sys.modules` has a hidden module once a program has imported it, or something that imports it.
Method      While modules are imported here, each import statement is noted for the module that is being executed.
Not here    What an import does besides: it reads no file, maps no library and runs no code in the fork.
"""

from __future__ import annotations

import builtins
import importlib.util
import sys
from collections import defaultdict
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_hidden: dict[str, ModuleType] = {}
_needs: dict[str, dict[str, None]] = defaultdict(dict)
"""The modules that each module imports, in order."""

_placed: set[str] = set()
"""What modules have put into `sys.modules` themselves."""


class _Loader:
    """One for each module: a hook of an import replaces its functions."""

    @staticmethod
    def find_spec(name: str, _path: Any = None, _target: Any = None) -> ModuleSpec | None:
        if name not in _hidden:
            return None
        module = _hidden[name]
        spec = ModuleSpec(name, _Loader(), origin=getattr(module, "__file__", None))  # type: ignore[arg-type]
        spec.submodule_search_locations = getattr(module, "__path__", None)
        spec.loader_state = module.__spec__
        return spec

    @staticmethod
    def create_module(spec: ModuleSpec) -> ModuleType:
        return _hidden[spec.name]

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        assert module.__spec__
        name, module.__spec__ = module.__spec__.name, module.__spec__.loader_state
        for each in _needs[name]:
            if each in _placed:
                sys.modules[each] = _hidden[each]
            elif each in _hidden and each not in sys.modules:
                importlib.import_module(each)


def hide(*names: str) -> list[ModuleType]:
    """Import these modules, and hide all that this has brought; return them."""
    machinery: Any = importlib._bootstrap  # type: ignore[attr-defined]
    load, imported, by_name = machinery._load_unlocked, builtins.__import__, importlib.import_module
    before, noted, running = set(sys.modules), set(sys.modules), [""]

    def note(name: str) -> None:
        noted.add(name)
        while name:
            _needs[running[-1]][name] = None
            name = name.rpartition(".")[0]

    def noted_load(spec: ModuleSpec) -> ModuleType:
        note(spec.name)
        running.append(spec.name)
        try:
            found: ModuleType = load(spec)
            for each in sys.modules.keys() - noted:
                _placed.add(each)
                note(each)
            return found
        finally:
            running.pop()

    def noted_import(name: str, space: Any = None, local: Any = None, chosen: Any = (), level: int = 0) -> Any:
        found = imported(name, space, local, chosen, level)
        home = name if not level else importlib.util.resolve_name("." * level + name, (space or {})["__package__"])
        for each in (home, *(f"{home}.{each}" for each in chosen or ())):
            if each in sys.modules:
                note(each)
        return found

    def noted_by_name(name: str, package: str | None = None) -> ModuleType:
        note(importlib.util.resolve_name(name, package))
        return by_name(name, package)

    machinery._load_unlocked, builtins.__import__, importlib.import_module = noted_load, noted_import, noted_by_name
    try:
        chosen = [by_name(name) for name in names]
    finally:
        machinery._load_unlocked, builtins.__import__, importlib.import_module = load, imported, by_name
    for name in sys.modules.keys() - before:
        if getattr(sys.modules[name], "__spec__", None) is None:
            _placed.discard(name)
        else:
            _hidden[name] = sys.modules.pop(name)
    for name, module in _hidden.items():
        home, _, end = name.rpartition(".")
        if vars(_hidden.get(home, sys)).get(end) is module:
            delattr(_hidden[home], end)  # an import sets it
    sys.meta_path.insert(0, _Loader)  # type: ignore[arg-type]
    return chosen
