"""Patch Numba's dispatchers so that unedited programs use this cache: the code shared by both Numbas.

Promise     Kernels remain Numba's dispatchers with unchanged behaviour; only their compiled code comes from the cache.
            Kernels that were decorated before `install()` use it from their next compilation on. `uninstall()` undoes
            all.
Not here    The methods that are replaced (llvm_install, mlir_install), and when (numba_hook).
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any
from weakref import WeakKeyDictionary

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
