"""Patch numba-cuda's dispatcher class so that unedited programs use this cache.

Method      Four methods of Numba's dispatcher class are replaced: `enable_caching` (what `cache=True` calls),
            `compile` (what a new signature calls), `specialize` (Numba's drops the cache; `forall` calls it, too), and
            `call` (a launch), so that arrays of other libraries are ordered with Numba's stream.
Not here    Finding and compiling a signature (llvm_dispatcher), and when methods are replaced (numba_hook).
Source      numba-cuda 0.30.4, dispatcher.py.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from ...engine import process_session
from ...launch import NUMBA_CUDA_MODULE, stream_handle
from ...launch.typed import around
from ...model import choose_for_device
from .llvm import NumbaDefinition, NumbaResolutions, is_simulated
from .llvm_dispatcher import DispatcherCache, specialize
from .llvm_flavour import NUMBA
from .takeover import Patch

_patch = Patch(NUMBA)
restore = _patch.restore


def replace(home: Any, every_kernel: bool) -> None:
    """Replace methods of the dispatcher class in `numba.cuda.dispatcher`; with `every_kernel`, for each kernel."""
    if is_simulated() or NUMBA_CUDA_MODULE not in sys.modules:  # then Numba uses its built-in CUDA target
        return
    kind = home.CUDADispatcher
    original_compile: Callable[[Any, Any], Any] = kind.compile

    def enable_caching(self: Any) -> None:
        _patch.attached[self] = None
        _attach(self)

    def compile_signature(self: Any, sig: Any) -> Any:
        wanted = isinstance(self._cache, home.CUDACache) or (every_kernel and not self.targetoptions.get("device"))
        if wanted and isinstance(self._cache, (home.CUDACache, home.NullCache)):
            _patch.attached[self] = self._cache
            _attach(self)
        return original_compile(self, sig)

    def specialized(self: Any, *args: Any) -> Any:
        return specialize(self, args, getattr(self._cache, "resolutions", None))

    original_call: Callable[[Any, Any, Any], Any] = kind.call

    def call(self: Any, args: Any, launch_config: Any) -> None:
        if type(self._cache) is DispatcherCache:
            stream = stream_handle(launch_config.stream)  # an object, also of the default stream
            around(lambda _stream: original_call(self, args, launch_config), stream, args)
        else:
            original_call(self, args, launch_config)

    methods = {"call": call, "enable_caching": enable_caching, "compile": compile_signature, "specialize": specialized}
    _patch.replace(kind, methods)


def _attach(dispatcher: Any) -> None:
    definition = NumbaDefinition(dispatcher, {})
    choose = functools.partial(choose_for_device, (), kernel=definition.name)
    resolutions = NumbaResolutions(definition, process_session, choose)
    resolutions.dispatcher, dispatcher._cache = dispatcher, DispatcherCache(resolutions, dispatcher, is_numbas=True)
