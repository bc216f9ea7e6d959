"""Lead the kernels of programs that are not edited through this cache.

Promise     Kernels stay Numba's dispatchers and mean what they meant; only where their code comes from changes. Kernels
            that were decorated before `install()` take part from their next compilation on; `uninstall()` gives each
            back the cache that it had.
Method      Three methods of Numba's dispatcher class are replaced: `enable_caching` (what `cache=True` calls),
            `compile` (what a new signature calls) and `specialize` (which would drop the cache, and with it `forall`).
Not here    What the cache does with a signature (dispatcher).
Ground      numba-cuda 0.30.4, dispatcher.py.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from ...engine.session import process_session
from ...errors import ToolchainMissingError
from ...launch.devices import NUMBA_DEVICES
from ...model import choose_for_device
from ...settings import install_wanted
from .definition import NumbaDefinition, NumbaResolutions, is_simulated
from .dispatcher import DispatcherCache, specialize

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
        importlib.import_module(NUMBA_DEVICES)  # Numba's own target has none, and a dispatcher
        from numba.cuda import dispatcher
    except ImportError as problem:
        raise ToolchainMissingError(
            "cannot install the cache", f"numba-cuda cannot be imported: {problem}", "pip install 'numba-kcache[numba]'"
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
    if is_simulated() or NUMBA_DEVICES not in sys.modules:  # nothing is compiled; or by Numba's own target
        return
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
        return specialize(self, args, getattr(self._cache, "resolutions", None))

    for name, method in (
        ("enable_caching", enable_caching),
        ("compile", compile_signature),
        ("specialize", specialized),
    ):
        _replaced[name] = vars(kind)[name]
        method.__doc__ = _replaced[name].__doc__
        setattr(kind, name, method)


def _attach(dispatcher: Any) -> None:
    definition = NumbaDefinition(dispatcher, {})
    choose = functools.partial(choose_for_device, (), kernel=definition.name)
    resolutions = NumbaResolutions(definition, process_session, choose)
    resolutions.dispatcher, dispatcher._cache = dispatcher, DispatcherCache(resolutions, dispatcher, is_numbas=True)
