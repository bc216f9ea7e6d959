"""Which cached kernels a module has.

Promise     Whatever a module, or a class in it, holds under some name is found once. A file is run as it would be by
            `import`, never as `__main__`, and not again if it was imported already.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

from ..errors import EntryError, OptionError
from ..kernel import Kernel
from ..module import CachedModule

Cached = Kernel | CachedModule
"""What can be compiled ahead."""


def find_kernels(module_or_file: Any) -> list[Cached]:
    """Every cached kernel of a module.

    Args:
        module_or_file: A module, its dotted name, or the path of a Python file.

    Raises:
        OptionError: It is none of these.
        EntryError: There is no such module or file.
    """
    module = load_module(module_or_file)
    found: dict[int, Cached] = {id(kernel): kernel for kernel in _kernels_of(vars(module).values(), module.__name__)}
    return list(found.values())


def kernels_of(given: Any) -> list[Cached]:
    """The kernels that a user means.

    Args:
        given: A kernel, what `find_kernels` takes, or a list of these.

    Raises:
        OptionError, EntryError: It is none of these, or holds no kernel.
    """
    if isinstance(given, (Kernel, CachedModule)):
        return [given]
    if isinstance(given, (str, os.PathLike, ModuleType)):
        found = find_kernels(given)
        if not found:
            raise EntryError(f"cannot find a kernel in {given}", "nothing in it was made by cached_kernel")
        return found
    if not hasattr(given, "__iter__"):
        raise OptionError(
            f"cannot find kernels in {given!r}", f"it is a {type(given).__name__}", "give kernels, modules or files"
        )
    found_in_all = {id(kernel): kernel for each in given for kernel in kernels_of(each)}
    return list(found_in_all.values())


def load_module(module_or_file: Any) -> ModuleType:
    """The module, imported if need be; a file under its stem, with its folder on the path as for a script.

    Raises:
        OptionError: It is no module, name or path.
        EntryError: There is no such module or file.
    """
    if isinstance(module_or_file, ModuleType):
        return module_or_file
    if not isinstance(module_or_file, (str, os.PathLike)):
        raise OptionError(f"cannot import {module_or_file!r}", f"it is a {type(module_or_file).__name__}")
    name = os.fspath(module_or_file)
    if name.endswith(".py") or os.sep in name:
        return _load_file(os.path.abspath(name))
    if not all(map(str.isidentifier, name.split("."))):
        raise EntryError(f"cannot import {name!r}", "it is no module's name", "a file ends in .py")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name + ".").startswith(error.name + "."):
            raise  # it is there, and what it imports is not
        raise EntryError(f"cannot import {name}", str(error), "a file ends in .py") from None


def _load_file(path: str) -> ModuleType:
    folder, file = os.path.split(path)
    name = file.removesuffix(".py")
    for known in list(sys.modules.values()):
        if isinstance(known, ModuleType) and vars(known).get("__file__") == path and known.__name__ != "__main__":
            return known
    if "\0" in path or not os.path.isfile(path):
        raise EntryError(f"cannot import {path}", "there is no such file")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or name in sys.modules:
        raise EntryError(f"cannot import {path}", f"{name} is the name of another module here")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _kernels_of(values: Iterable[Any], module: str) -> Iterator[Cached]:
    for value in list(values):
        if isinstance(value, (Kernel, CachedModule)):
            yield value
        elif isinstance(value, type) and value.__module__ == module:
            yield from _kernels_of(vars(value).values(), module)
