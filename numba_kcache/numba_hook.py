"""Lead the kernels of programs that are not edited through this cache.

Promise     Kernels stay Numba's dispatchers and mean what they meant; only where their code comes from changes. Kernels
            that were decorated before `install()` take part from their next compilation on; `uninstall()` gives each
            back the cache that it had.
Method      Three methods of Numba's dispatcher class are replaced: `enable_caching` (what `cache=True` calls),
            `compile` (what a new signature calls) and `specialize` (which would drop the cache, and with it `forall`).
Not here    What the cache does with a signature (numba_cache).
Ground      numba-cuda 0.30.4, dispatcher.py.
"""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from .engine.process import process_resolver
from .errors import ToolchainMissingError
from .frontends.numba.definition import NumbaPlan, defining_file
from .frontends.numba.dispatcher import specialize
from .frontends.numba.dispatcher_cache import Choice, DispatcherCache
from .model.target import Target
from .settings import install_wanted

_HOME = "numba.cuda.dispatcher"
_replaced: dict[str, Any] = {}
"""The methods of Numba's that are replaced now."""

_attached: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
"""Dispatchers that ask this cache, with the cache that they had; None for the one that `cache=True` would make."""


def install(all: bool = False) -> None:
    """Lead every `@cuda.jit(cache=True)` kernel through the process's cache.

    Args:
        all: Every `@cuda.jit` kernel, whatever its `cache`.

    Raises:
        ToolchainMissingError: numba-cuda is not installed.
    """
    try:
        from numba.cuda import dispatcher
    except ImportError as problem:
        raise ToolchainMissingError(
            "cannot install the cache", f"numba-cuda cannot be imported: {problem}", "pip install 'numba-kcache[cu13]'"
        ) from problem
    _replace(dispatcher, every_kernel=all)


def uninstall() -> None:
    """Give Numba's dispatchers back what `install` replaced. Kernels that are loaded stay so."""
    if not _replaced:
        return
    from numba.cuda.dispatcher import CUDADispatcher, NullCache

    for name, method in _replaced.items():
        setattr(CUDADispatcher, name, method)
    _replaced.clear()
    for kernel, before in list(_attached.items()):
        if before is not None:
            kernel._cache = before
            continue
        try:
            kernel.enable_caching()
        except RuntimeError:  # Numba has no place for it: such a kernel could not have been decorated without us
            kernel._cache = NullCache()
    _attached.clear()


def install_when_imported() -> None:
    """Do what the environment asks for, as soon as the program imports `numba.cuda`."""
    if _HOME in sys.modules:
        _as_asked()
    else:
        sys.meta_path.insert(0, _Arrival())


def _as_asked() -> None:
    wanted = install_wanted()
    if wanted:
        _replace(sys.modules[_HOME], every_kernel=wanted == "all")


class _Arrival:
    """Waits for the module with Numba's dispatchers, and is gone once it is found."""

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> Any:
        """The module's spec, with a loader that also does as asked; None for every other module."""
        if name != _HOME:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                load(module)
                _as_asked()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _replace(home: Any, *, every_kernel: bool) -> None:
    uninstall()
    kind = home.CUDADispatcher
    original_compile: Callable[[Any, Any], Any] = kind.compile

    def enable_caching(self: Any) -> None:
        _attached[self] = None
        _attach(self)

    def compile_signature(self: Any, sig: Any) -> Any:
        wanted = isinstance(self._cache, home.CUDACache) or (every_kernel and not self.targetoptions.get("device"))
        if wanted and isinstance(self._cache, (home.CUDACache, home.NullCache)):
            _attached[self] = self._cache
            _attach(self)
        return original_compile(self, sig)

    def specialized(self: Any, *args: Any) -> Any:
        def attach(made: Any) -> None:
            if isinstance(self._cache, DispatcherCache):
                made._cache = self._cache.shared_with(made)

        return specialize(self, args, attach)

    for name, method in (
        ("enable_caching", enable_caching),
        ("compile", compile_signature),
        ("specialize", specialized),
    ):
        _replaced[name] = vars(kind)[name]
        method.__doc__ = _replaced[name].__doc__
        setattr(kind, name, method)


def _attach(dispatcher: Any) -> DispatcherCache:
    function = dispatcher.py_func
    label = f"{function.__module__}.{function.__qualname__}"
    plan = NumbaPlan(dispatcher, label, file=defining_file(function))
    entries = DispatcherCache(plan, process_resolver, _as_numba_has_it, is_numbas=True)
    entries.dispatcher, dispatcher._cache = dispatcher, entries
    return entries


def _as_numba_has_it(target: Target) -> Choice:
    """The device's own target; the same without its suffix will do."""
    return Choice(target, None, (target.plain,) if target.suffix else (), target.stand_ins())


def main() -> None:
    """`python -m numba_kcache.numba_hook [--all] SCRIPT [ARGUMENTS]`: run a program with the cache installed."""
    arguments = sys.argv[1:]
    every_kernel = arguments[:1] == ["--all"]
    if every_kernel:
        arguments = arguments[1:]
    if not arguments:
        raise SystemExit(main.__doc__)
    install(all=every_kernel or install_wanted() == "all")
    sys.argv[:] = arguments
    sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    from numba_kcache.numba_hook import main as run_program  # this file has two names now: the imported one is patched

    run_program()
