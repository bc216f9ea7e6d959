"""Lead the kernels of programs that are not edited through this cache: what both Numbas share.

Promise     Kernels stay their compiler's dispatchers and mean what they meant; only where their code comes from
            changes.
            Kernels that were decorated before `install()` take part from their next compilation on. A compiler that the
            program has not imported stays so; when it is imported, it is taken over then. `uninstall()` gives all back.
Not here    Which methods are replaced (numba.install, mlir.install).
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, MutableMapping
from typing import Any

from ...settings import install_wanted


def give_back(kind: Any, null_cache: Any, methods: dict[str, Any], caches: MutableMapping[Any, Any]) -> None:
    """Give a dispatchers' class its methods back, and each dispatcher the cache that it had.

    Args:
        kind: The class.
        null_cache: Makes the cache of a dispatcher that cannot have one.
        methods: That were replaced, by name; emptied.
        caches: By dispatcher; None for the one that `cache=True` would make. Emptied.
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
        except RuntimeError:  # it has no place for it: such a kernel could not have been decorated without us
            kernel._cache = null_cache()
    caches.clear()


class Takeover:
    """One compiler's dispatchers, and whether they ask this cache.

    Args:
        home: The module with the dispatchers' class.
        package: That this compiler is installed as.
        sign: A module that this compiler alone has.
        replace: Replaces methods of the class: called with the module, and whether every kernel is meant.
        restore: Gives all back.
    """

    def __init__(
        self, home: str, package: str, sign: str, replace: Callable[[Any, bool], None], restore: Callable[[], None]
    ) -> None:
        self._home, self._package, self._sign, self._replace, self._restore = home, package, sign, replace, restore
        self._arrival: _Arrival | None = None

    def is_installed(self) -> bool:
        """Check whether the compiler is there to be imported."""
        try:
            is_imported = self._home.rpartition(".")[0] in sys.modules
            return importlib.util.find_spec(self._sign if is_imported else self._package) is not None
        except (ImportError, ValueError):
            return False

    def install(self, every_kernel: bool) -> None:
        """Take over now, or as soon as the program imports the compiler.

        Args:
            every_kernel: Whether kernels without `cache=True` are meant as well.
        """
        self.uninstall()
        if self._home in sys.modules:
            self._replace(sys.modules[self._home], every_kernel)
        else:
            self._wait(lambda home: self._replace(home, every_kernel))

    def install_when_imported(self) -> None:
        """Do what the environment asks for, as soon as the program imports the compiler."""
        if self._home in sys.modules:
            self._as_asked(sys.modules[self._home])
        else:
            self._wait(self._as_asked)

    def uninstall(self) -> None:
        """Give the dispatchers back what was replaced. Kernels that are loaded stay so."""
        if self._arrival in sys.meta_path:
            sys.meta_path.remove(self._arrival)
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


class _Arrival:
    """Waits for a module, and is gone once it is found.

    Args:
        home: Its name.
        act: Called with it once it is loaded.
    """

    def __init__(self, home: str, act: Callable[[Any], None]) -> None:
        self._home, self._act = home, act

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> Any:
        """The module's spec, with a loader that acts afterwards; None for every other module."""
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
