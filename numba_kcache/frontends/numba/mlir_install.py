"""Patch numba-cuda-mlir's dispatcher class so that unedited programs use this cache.

Promise     While the patch is installed, numba-cuda-mlir's own cache is not used: that cache ignores edited callees,
            globals, options and captured arrays, and does not record that a kernel is cooperative.
Method      Five methods of its dispatcher class are replaced: both that compile (dispatcher), `__getitem__`
            (installed), `enable_caching` (what `cache=True` calls) and `specialize`, so that the dispatcher that it
            makes uses this cache as well.
Not here    Finding and compiling a signature (mlir_dispatcher), and when methods are replaced (numba_hook).
Source      numba-cuda-mlir 0.6.0, descriptor.py: its launcher keeps the bound method `_compile`, which looks up
            `_compile_impl` at each call.
"""

from __future__ import annotations

from typing import Any

from ...errors import KCacheError, OptionError
from .mlir import MlirResolutions
from .mlir_dispatcher import served, served_launch
from .mlir_flavour import MLIR
from .mlir_installed import InstalledDefinition, InstalledLaunches
from .parts import surface
from .takeover import CacheOfDispatcher, Patch

_patch = Patch(MLIR)
restore = _patch.restore


class DispatcherCache(CacheOfDispatcher):
    """The cache of a patched dispatcher; it always reports a miss.

    Args:
        launches: The launches of the dispatcher.
    """

    def __init__(self, launches: InstalledLaunches) -> None:
        super().__init__(launches.resolutions)
        self.resolutions: MlirResolutions = launches.resolutions
        self.launches = launches

    def load_overload(self, _sig: Any, _context: Any) -> None:
        """Return None: the replaced methods have looked into this cache already."""

    def flush(self) -> None:
        """Read the function again at the next launch."""
        self.launches.forget()


def replace(home: Any, every_kernel: bool) -> None:
    """Replace methods of the dispatcher class in `descriptor`; with `every_kernel`, for each kernel."""
    kind = home.MLIRDispatcher
    compile_impl, compile_public, specialize_plain = kind._compile_impl, kind._compile_public, kind.specialize
    get_item = kind.__getitem__

    def attached(self: Any) -> MlirResolutions | None:
        if isinstance(self._cache, DispatcherCache):
            return self._cache.resolutions
        if hasattr(self, "resolutions"):  # a dispatcher made by this package
            return None
        if self.targetoptions.get("device"):
            return None
        is_wanted = every_kernel or isinstance(self._cache, surface(MLIR).MLIRCache)
        return _attach(self, self._cache) if is_wanted else None

    def enable_caching(self: Any) -> None:
        _attach(self, None)

    def launch_of(self: Any, config: Any) -> Any:
        attached(self)
        cache = self._cache
        if type(cache) is DispatcherCache and cache.launches.takes(config):
            try:
                return cache.launches[config]
            except KCacheError:  # numba-cuda-mlir reports the error itself
                pass
        return get_item(self, config)

    def compile_for_launcher(self: Any, args: Any, *rest: Any) -> Any:
        resolutions = attached(self)
        found = None if resolutions is None else served_launch(self, resolutions, args, True)
        return compile_impl(self, args, *rest) if found is None else found

    def compile_signature(self: Any, sig: Any, abi_info: Any = None, output: Any = None) -> Any:
        if abi_info is None and output is None and (resolutions := attached(self)) is not None:
            types, _returned = surface(MLIR).normalize_signature(sig)
            found = self.overloads.get(types) or served(self, resolutions, types, is_quiet=True)
            if found is not None:
                return found
        return compile_public(self, sig, abi_info=abi_info, output=output)

    def specialize(self: Any, *args: Any) -> Any:
        made = specialize_plain(self, *args) if attached(self) is None or self.specialized else None
        return made or _specialized(self, args)

    methods = {
        "enable_caching": enable_caching,
        "__getitem__": launch_of,
        "_compile_impl": compile_for_launcher,
        "_compile_public": compile_signature,
        "specialize": specialize,
    }
    _patch.replace(kind, methods)


def _specialized(dispatcher: Any, arguments: tuple[Any, ...]) -> Any:
    """Make what `dispatcher.specialize(*arguments)` makes, but let the new dispatcher use this cache."""
    parts = surface(MLIR)
    types = tuple(each if isinstance(each, parts.types.Type) else parts.typeof(each) for each in arguments)
    key = parts.get_context().device.compute_capability, types
    found = dispatcher.specializations.get(key)
    if found is None:
        found = parts.MLIRDispatcher(dispatcher.py_func, targetoptions=dispatcher.targetoptions)
        _attach(found, found._cache)
        found.compile_for(*types)
        found.disable_compile()
        found._specialized = True
        dispatcher.specializations[key] = found
    return found


def _attach(dispatcher: Any, before: Any) -> MlirResolutions | None:
    try:
        definition = InstalledDefinition(dispatcher, {})
        assert definition.declared
    except OptionError:  # a device function
        return None
    _patch.attached[dispatcher], launches = before, InstalledLaunches(definition)
    dispatcher._cache = DispatcherCache(launches)
    return launches.resolutions
