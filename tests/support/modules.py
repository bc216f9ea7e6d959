"""Make modules from text, without Python's bytecode cache, which might serve the module before an edit."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType


@contextmanager
def imported(folder: Path, sources: Mapping[str, str], main: str = "kernels") -> Iterator[ModuleType]:
    """Write a program of several files and import its module `main`; inside the context the files can be imported."""
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
