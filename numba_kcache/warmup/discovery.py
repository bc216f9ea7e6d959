"""Find the cached kernels of a module, and other libraries' objects in it that can be built ahead.

Promise     Each kernel that is an attribute of the module or of a class in it, or is in a list, tuple, set, dict or
            simple namespace there, however deep, is found once. A file is executed as by `import`, never as
            `__main__`, and not again if it was imported already.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import Any, Protocol

from ..errors import EntryError, OptionError
from ..frontends import Kernel
from ..module import CachedModule

Cached = Kernel | CachedModule
"""The objects of this package that can be compiled ahead."""


class Builder(Protocol):
    """An object of another library that can be built ahead: its class has `__warm_up__`."""

    def __warm_up__(self, targets: Sequence[str] | None) -> object:
        """Build its code with `get_or_build`.

        Args:
            targets: The requested targets, `"sm_90"`; None for the object's own, or the device's.
        """


def kernels_of(given: Any) -> list[Cached]:
    """List the kernels in what a user passed.

    Args:
        given: A kernel, a module, its dotted name, the path of a file, or a list of these.

    Raises:
        OptionError, EntryError: `given` is none of these, or contains no kernel.
    """
    return [each for each in warmable(given) if isinstance(each, Cached)]


def warmable(given: Any, built: Sequence[object] = ()) -> list[Cached | Builder]:
    """List the kernels, and other libraries' objects that can be built ahead, in what a user passed.

    Args:
        given: A kernel, such an object, a module, its dotted name, the path of a file, or a list of these.
        built: A list that grows when code is built while a module is imported; a module that builds code need not
            contain kernels.

    Raises:
        OptionError, EntryError: `given` is none of these, or contains nothing to build.
    """
    if _is_warmable(given):
        return [given]
    if isinstance(given, (str, os.PathLike, ModuleType)):
        before = len(built)
        found = _found_in(load_module(given))
        if not found and len(built) == before:
            raise EntryError(
                f"cannot find a kernel in {given}",
                "nothing in it was made by cached_kernel",
                "decorate kernels where the module is imported",
            )
        return found
    if not hasattr(given, "__iter__"):
        raise OptionError(
            f"cannot find kernels in {given!r}",
            f"it is of type {type(given).__name__}",
            "give kernels, modules or files",
        )
    return list({id(each): each for several in given for each in warmable(several, built)}.values())


def _is_warmable(thing: Any) -> bool:
    return isinstance(thing, Cached) or hasattr(type(thing), "__warm_up__")


def _found_in(module: ModuleType) -> list[Cached | Builder]:
    contents = [value for name, value in vars(module).items() if name != "__builtins__"]
    return list({id(each): each for each in _values_of(contents, module.__name__, set())}.values())


_HINT = "name a module that can be imported from here, or a file that ends in .py"


def load_module(module_or_file: Any) -> ModuleType:
    """Import a module or a file, unless it is imported already.

    A file is imported under its stem, with its folder on `sys.path` as for a script.

    Raises:
        OptionError: The argument is not a module, name or path.
        EntryError: There is no such module or file.
    """
    if isinstance(module_or_file, ModuleType):
        return module_or_file
    if not isinstance(module_or_file, (str, os.PathLike)):
        raise OptionError(f"cannot import {module_or_file!r}", f"it is a {type(module_or_file).__name__}", _HINT)
    name = os.fspath(module_or_file)
    if name.endswith(".py") or os.sep in name:
        return _load_file(os.path.abspath(name))
    if not all(map(str.isidentifier, name.split("."))):
        raise EntryError(f"cannot import {name!r}", "it is not a module's name", _HINT)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name + ".").startswith(error.name + "."):
            raise  # the module exists, but one that it imports does not
        raise EntryError(f"cannot import {name}", str(error), _HINT) from None


def _load_file(path: str) -> ModuleType:
    folder, file = os.path.split(path)
    name = file.removesuffix(".py")
    for known in list(sys.modules.values()):
        if isinstance(known, ModuleType) and vars(known).get("__file__") == path and known.__name__ != "__main__":
            return known
    if "\0" in path or not os.path.isfile(path):
        raise EntryError(f"cannot import {path}", "there is no such file", _HINT)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or name in sys.modules:
        raise EntryError(f"cannot import {path}", f"{name} is the name of another module here", "rename the file")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _values_of(values: Iterable[Any], module: str, seen: set[int]) -> Iterator[Cached | Builder]:
    for value in list(values):
        while isinstance(value, (staticmethod, classmethod)):
            value = value.__func__
        if _is_warmable(value):
            yield value
        elif id(value) in seen:
            continue  # seen before: a list may contain itself
        elif isinstance(value, type) and value.__module__ == module:
            seen.add(id(value))
            yield from _values_of(vars(value).values(), module, seen)
        elif isinstance(value, (list, tuple, set, frozenset, dict, MappingProxyType, SimpleNamespace)):
            seen.add(id(value))
            contents = vars(value) if isinstance(value, SimpleNamespace) else value
            yield from _values_of(
                contents.values() if isinstance(contents, (dict, MappingProxyType)) else contents, module, seen
            )
