"""Make Numba's object of a compiled kernel (an overload of a dispatcher) from an artifact, without a compilation.

Promise     Numba's own code launches the object, with Numba's meaning of every argument, stream, exception and
            attribute. Its module is loaded once for each device, again after a reset, with its carveout. Attributes
            that only a compilation has (LLVM IR, types, another target's code) make Numba compile when first read.
Not here    Finding artifacts: the caller passes `load`.
Source      numba-cuda 0.30.4, dispatcher.py `_Kernel`, codegen.py `CUDACodeLibrary`: what `launch`, `bind`, `inspect_*`
            and the attributes of a kernel read.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any

from ...launch.launcher import LoadedKernel
from ...model import Artifact

Load = Callable[[], LoadedKernel]
"""Returns the kernel, loaded on the current device."""


def make_overload(dispatcher: Any, types: tuple[Any, ...], artifact: Artifact, load: Load) -> Any:
    """Make an object for `dispatcher.overloads`.

    Args:
        dispatcher: A dispatcher of `cuda.jit`.
        types: Numba types of the arguments.
        artifact: The compiled kernel.
        load: Loads it on the current device.
    """
    overload, library = _classes()
    return overload(dispatcher, types, artifact, library(dispatcher, types, artifact, load))


class _Exceptions:
    """The exceptions of a debug kernel by code, with the interface of Numba's call helper."""

    def __init__(self, table: list[Any]) -> None:
        self._table = {
            code: (name and getattr(builtins, name), tuple(arguments), tuple(place) if place else None)
            for code, name, arguments, place in table
        }

    def get_exception(self, code: int) -> tuple[Any, Any, Any]:
        unknown = SystemError, (f"unknown error {code} in native function",), None
        return self._table.get(code, unknown)


@cache
def _classes() -> tuple[Any, Any]:
    """The two classes, defined once Numba is imported."""
    from cuda.core import ObjectCode
    from numba.cuda import types as numba_types
    from numba.cuda import typing
    from numba.cuda.codegen import CUDACodeLibrary
    from numba.cuda.cudadrv import devices
    from numba.cuda.dispatcher import _Kernel

    class CachedOverload(_Kernel):  # type: ignore[misc]
        """A kernel made from an artifact."""

        def __init__(self, dispatcher: Any, types: tuple[Any, ...], artifact: Artifact, library: Any) -> None:
            known = artifact.attributes
            self._codelibrary = library
            self.objectmode, self.entry_point = False, None
            self.extensions = dispatcher.targetoptions.get("extensions") or ()
            self.py_func, self.argtypes = dispatcher.py_func, types
            self.debug, self.lineinfo = bool(known.get("debug")), bool(known.get("lineinfo"))
            self.cooperative, self.shared_memory_carveout = bool(known.get("cooperative")), known.get("carveout")
            self.launch_bounds, self.launch_config_sensitive = dispatcher.targetoptions.get("launch_bounds"), False
            self.entry_name = artifact.entries[0].symbol
            self.signature = typing.signature(numba_types.none, *types)
            self.call_helper = _Exceptions(known.get("exceptions") or [])

        def __getattr__(self, name: str) -> Any:
            """Read an attribute that only a compilation has from a newly compiled kernel."""
            if name.startswith("__"):
                raise AttributeError(name)
            return getattr(self._codelibrary.compiled, name)

        def __reduce__(self) -> Any:
            return self._codelibrary.compiled.__reduce__()

        type_annotation = property(attrgetter("_codelibrary.compiled.type_annotation"))
        inspect_types = property(attrgetter("_codelibrary.compiled.inspect_types"))

        def bind(self) -> None:
            self._codelibrary.get_cufunc()

    class CachedLibrary(CUDACodeLibrary):  # type: ignore[misc]
        """The code library of a kernel made from an artifact."""

        def __init__(self, dispatcher: Any, types: tuple[Any, ...], artifact: Artifact, load: Load) -> None:
            entry = artifact.entries[0]
            super().__init__(None, entry.name, entry_name=entry.symbol)
            self._dispatcher, self._types, self._artifact, self._load = dispatcher, types, artifact, load
            self._functions: dict[int, tuple[Any, LoadedKernel]] = {}
            self._compiled: Any = None
            self._finalized = True
            self._lto = bool(dispatcher.targetoptions.get("lto"))
            self.use_cooperative = bool(artifact.attributes.get("cooperative"))

        get_ltoir = property(attrgetter("compiled._codelibrary.get_ltoir"))
        get_lto_ptx = property(attrgetter("compiled._codelibrary.get_lto_ptx"))
        llvm_strs = property(attrgetter("compiled._codelibrary.llvm_strs"))
        modules = property(attrgetter("compiled._codelibrary.modules"))

        @property
        def compiled(self) -> Any:
            """The same kernel, compiled by Numba for inspection."""
            if self._compiled is None:
                options = dict(self._dispatcher.targetoptions)
                options["link"] = list(options.get("link") or ())  # Numba appends to it
                self._compiled = _Kernel(self._dispatcher.py_func, self._types, **options)
            return self._compiled

        def get_cufunc(self) -> Any:
            ordinal = devices.get_context().device.id
            found = self._functions.get(ordinal)
            if found is None or not found[1].live[0]:
                loaded = self._load()
                found = self._functions[ordinal] = loaded.numba_function, loaded
            return found[0]

        def get_cubin(self, cc: Any = None) -> Any:
            if self._is_own(cc):
                return ObjectCode.from_cubin(self._artifact.cubin, name=self._entry_name)
            return self.compiled._codelibrary.get_cubin(cc)

        def get_asm_strs(self, cc: Any = None) -> Any:
            if self._is_own(cc) and self._artifact.ptx:
                return [self._artifact.ptx.decode()]
            return self.compiled._codelibrary.get_asm_strs(cc)

        def get_linkerinfo(self, cc: Any) -> Any:
            return self._artifact.log if self._is_own(cc) else super().get_linkerinfo(cc)

        def _is_own(self, cc: Any) -> bool:
            return tuple(self._ensure_cc(cc)[:2]) == self._artifact.target.cc

    return CachedOverload, CachedLibrary
