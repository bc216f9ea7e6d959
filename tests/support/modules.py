"""Modules from text: a program's files as they are now, without Python's own bytecode cache in between."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType


@contextmanager
def imported(folder: Path, sources: Mapping[str, str], main: str = "kernels") -> Iterator[ModuleType]:
    """The module `main` of a program of several files, all of which can import each other while it lasts."""
    modules = {}
    for name, text in sources.items():
        path = folder / f"{name}.py"
        path.write_text(text)
        modules[name] = module = ModuleType(name)
        module.__file__ = str(path)
    hidden = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        for name, module in modules.items():
            exec(compile(sources[name], str(module.__file__), "exec"), module.__dict__)
        yield modules[main]
    finally:
        for name, before in hidden.items():
            if before is None:
                del sys.modules[name]
            else:
                sys.modules[name] = before
