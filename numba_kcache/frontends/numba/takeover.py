"""Patch Numba's dispatchers so that unedited programs use this cache: the code shared by both Numbas.

Promise     Kernels remain Numba's dispatchers with unchanged behaviour; only their compiled code comes from the cache.
            Kernels that were decorated before `install()` use it from their next compilation on. A compiler that the
            program has not imported is not imported, but patched when the program imports it. `uninstall()` undoes all.
Not here    The methods that are replaced (llvm_install, mlir_install).
"""

from __future__ import annotations

import atexit
import importlib.util
import sys
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any
from weakref import WeakKeyDictionary

from ...settings import install_wanted
from .flavour import Flavour
from .parts import surface


def give_back(kind: Any, null_cache: Any, methods: dict[str, Any], caches: MutableMapping[Any, Any]) -> None:
    """Restore the methods of a dispatcher class, and the previous cache of each dispatcher.

    Args:
        kind: The class.
        null_cache: Makes the cache of a dispatcher that cannot have one.
        methods: The replaced methods, by name; emptied.
        caches: Previous caches by dispatcher; None for the one that `cache=True` would make. Emptied.
    """
    for name, method in methods.items():
        setattr(kind, name, method)
    methods.clear()
    for kernel, before in list(caches.items()):
        if before is not None:
            kernel._cache = before
            continue
        try:
            kernel.enable_caching()
        except RuntimeError:  # no folder for Numba's cache: without `install`, the decorator would have raised this
            kernel._cache = null_cache()
    caches.clear()


class Patch:
    """The methods of one Numba's dispatcher class while they are replaced.

    Args:
        flavour: The Numba.

    Attributes:
        attached: Dispatchers that use this cache, with their previous cache; None for the one that `cache=True` would
            make.
    """

    def __init__(self, flavour: Flavour) -> None:
        self._flavour, self._replaced = flavour, dict[str, Any]()
        self.attached: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    def replace(self, kind: Any, methods: Mapping[str, Any]) -> None:
        """Replace these methods of a class."""
        for name, method in methods.items():
            self._replaced[name] = vars(kind)[name]
            method.__doc__ = self._replaced[name].__doc__
            setattr(kind, name, method)

    def restore(self) -> None:
        """Undo `replace`."""
        if self._replaced:
            parts = surface(self._flavour)
            give_back(parts.Dispatcher, parts.NullCache, self._replaced, self.attached)


class CacheOfDispatcher:
    """The cache of one of a Numba's dispatchers, with the interface of its caches.

    Args:
        resolutions: Resolutions of the dispatcher's function and options.
    """

    def __init__(self, resolutions: Any) -> None:
        self.resolutions = resolutions

    @property
    def cache_path(self) -> str | None:
        """The directory of the cache."""
        found: str | None = self.resolutions.session().local.directory
        return found

    def save_overload(self, _sig: Any, _data: Any) -> None:
        """Do nothing: a kernel that Numba compiled itself is one that must not be stored."""

    def enable(self) -> None:
        """Do nothing: this cache cannot be switched per dispatcher."""

    disable = enable

    def flush(self) -> None:
        """Read the function again at the next launch; entries stay, since their keys cover their content."""
        self.resolutions.flush()


class Takeover:
    """Patch one compiler's dispatchers, now or when it is imported.

    Args:
        home: The module with the dispatcher class.
        package: The package of this compiler.
        sign: A module that only this compiler has, which tells that it is installed.
        replace: Replaces methods of the class; called with the module, and whether all kernels are affected.
        restore: Undoes `replace`.
    """

    def __init__(
        self, home: str, package: str, sign: str, replace: Callable[[Any, bool], None], restore: Callable[[], None]
    ) -> None:
        self._home, self._package, self._sign, self._replace, self._restore = home, package, sign, replace, restore
        self._arrival: _Arrival | None = None

    def is_installed(self) -> bool:
        """Check whether the compiler is installed."""
        try:
            is_imported = self._home.rpartition(".")[0] in sys.modules
            return importlib.util.find_spec(self._sign if is_imported else self._package) is not None
        except (ImportError, ValueError):
            return False

    def install(self, every_kernel: bool) -> None:
        """Patch now, or as soon as the program imports the compiler.

        Args:
            every_kernel: Whether kernels without `cache=True` are affected as well.
        """
        self.uninstall()
        if self._home in sys.modules:
            self._replace(sys.modules[self._home], every_kernel)
        else:
            self._wait(lambda home: self._replace(home, every_kernel))

    def install_when_imported(self) -> None:
        """Patch as `NUMBA_KCACHE_INSTALL` asks, as soon as the program imports the compiler."""
        if self._home in sys.modules:
            self._as_asked(sys.modules[self._home])
        else:
            self._wait(self._as_asked)

    def uninstall(self) -> None:
        """Undo the patch. Kernels that are loaded stay usable."""
        self._leave()
        atexit.unregister(self._leave)
        self._arrival = None
        self._restore()

    def _as_asked(self, home: Any) -> None:
        wanted = install_wanted()
        if wanted:
            self._restore()
            self._replace(home, wanted == "all")

    def _wait(self, act: Callable[[Any], None]) -> None:
        self._arrival = _Arrival(self._home, act)
        sys.meta_path.insert(0, self._arrival)
        atexit.register(self._leave)  # at exit, CPython keeps `sys.meta_path` and its finders longer than modules

    def _leave(self) -> None:
        if self._arrival in sys.meta_path:
            sys.meta_path.remove(self._arrival)


class _Arrival:
    """A module finder that waits for one module, and removes itself when it is found.

    Args:
        home: The module's name.
        act: Called with the module once it is loaded.
    """

    def __init__(self, home: str, act: Callable[[Any], None]) -> None:
        self._home, self._act = home, act

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> Any:
        """The module's spec, with a loader that calls `act` after loading; None for every other module."""
        if name != self._home:
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                load(module)
                self._act(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
