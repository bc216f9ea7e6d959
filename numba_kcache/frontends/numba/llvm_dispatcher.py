"""Numba's own dispatcher for a kernel, with this cache behind it and launch options that Numba lacks.

Promise     A dispatcher made here behaves like one of `cuda.jit` with the same options, and treats arguments as Numba
            does. The kernel's launch attributes, dynamic shared memory above 48 KiB and `debug_launches` work too,
            on every device, for kernels from the cache and for those that Numba compiled.
Method      Numba's `compile` calls `load_overload` of the dispatcher's cache before it would compile. That of
            `DispatcherCache` returns a complete kernel, from disk or compiled just now, so that Numba compiles only
            kernels that must not be stored. Numba calls `kernel.launch` after the callbacks of the launch
            configuration; a callback of this module replaces it by a function that prepares the launch and calls
            Numba's. A cluster is passed to Numba's code by replacing the name `LaunchConfig` there.
            `install()` replaces four methods of the dispatcher class: `enable_caching` (what `cache=True` calls),
            `compile` (what a new signature calls), `specialize` (Numba's drops the cache; `forall` calls it, too), and
            `call` (a launch), so that arrays of other libraries are ordered with Numba's stream.
Not here    Packing in a launcher (arguments), and when methods are replaced (numba_hook). A hit
            of a kernel whose arguments are of common types does not use this module.
Source      numba-cuda 0.30.4, dispatcher.py `CUDADispatcher.call`, `compile`, `specialize`, `_Kernel.launch`;
            cuda.core's LaunchConfig counts the grid in clusters, if there are any.
"""

from __future__ import annotations

import builtins
import functools
import sys
from collections.abc import Callable, Sequence
from functools import cache
from operator import attrgetter
from types import FunctionType, SimpleNamespace
from typing import Any

from ...engine import RunsUncached, process_session
from ...errors import CodeRefusedError, CompileError, NoDeviceError
from ...launch import NUMBA_CUDA_MODULE, LaunchShape, bindings, check_interpreter, current_device, done, stream_handle
from ...launch.attributes import LaunchOptions
from ...launch.launcher import LoadedKernel
from ...launch.typed import around
from ...model import Artifact, Entry, choose_for_device
from . import dispatcher
from .dispatcher import CacheOfDispatcher, Patch, launch_watched, read_signature_list, specialized
from .flavour import surface
from .llvm import NUMBA, NumbaDefinition, NumbaResolutions, is_simulated

NAMES = dispatcher.NAMES | {"inspect_sass_cfg", "inspect_types"}
"""Attributes of Numba's dispatcher that a kernel has with the same meaning."""


class DispatcherCache(CacheOfDispatcher):
    """The cache of one of Numba's dispatchers, with the interface of Numba's caches.

    Args:
        resolutions: Resolutions of the dispatcher's function and options.
        dispatcher: The dispatcher that has this cache.
        is_numbas: Whether the program uses Numba's own decorator, so that Numba raises errors in linked code itself.
    """

    def __init__(self, resolutions: NumbaResolutions, dispatcher: Any, *, is_numbas: bool = False) -> None:
        super().__init__(resolutions)
        self.resolutions: NumbaResolutions = resolutions
        self._dispatcher, self._is_numbas = dispatcher, is_numbas

    def load_overload(self, sig: Any, _context: Any) -> Any:
        """Return the complete kernel of a signature; None if Numba has to compile it."""
        types = sig if isinstance(sig, tuple) else read_signature_list(NUMBA, sig)[0]
        is_known = any(each == types for _target, _ptx_target, each in self.resolutions.known())
        try:
            resolution = self.resolutions.for_device(current_device().target, types)
        except (NoDeviceError, RunsUncached):
            return None
        except CompileError:
            if self._is_numbas:
                return None
            raise
        if resolution.source == "compiled" and not is_known:  # Numba counts every kernel returned here as a hit
            self._dispatcher._cache_hits[sig] -= 1
            self._dispatcher._cache_misses[sig] += 1
        return make_overload(self._dispatcher, types, resolution.artifact, functools.partial(self._load, types))

    def _load(self, types: tuple[Any, ...]) -> LoadedKernel:
        """Load the kernel on the current device, with its carveout.

        Raises:
            RunsUncached, UncacheableError: It cannot be cached.
            NoDeviceError: There is no device.
        """
        device = current_device()
        found = self.resolutions.for_device(device.target, types)
        artifact, loader = found.artifact, self.resolutions.session().loader
        try:
            loaded = loader.load(artifact, artifact.entries[0], found.key or found.name, device, stored=found.is_stored)
        except CodeRefusedError as error:
            self.resolutions.give_up(found, error)
            found = self.resolutions.for_device(device.target, types)
            artifact = found.artifact
            loaded = loader.load(artifact, artifact.entries[0], found.key or found.name, device, stored=False)
        carveout = artifact.attributes.get("carveout")
        if carveout is not None:
            loaded.prefer_shared(int(carveout))
        return loaded


def attribute(resolutions: NumbaResolutions, name: str) -> Any:
    """Read one of `NAMES` from the dispatcher."""
    return dispatcher.attribute_of(resolutions, name, _dispatcher, _specialize)


def launch(resolutions: NumbaResolutions, shape: LaunchShape, stream: Any, arguments: Sequence[Any]) -> None:
    """Launch as Numba does, with the options of the kernel.

    Args:
        resolutions: Resolutions of the kernel.
        shape: Extents of the launch.
        stream: The user's stream.
        arguments: Arguments of the launch.

    Raises:
        LaunchConfigError, LaunchError: The device or an attribute does not allow it; a launch in debug mode failed.
    """
    check_interpreter()
    definition, is_watched = resolutions.definition, resolutions.session().settings.debug_launches
    options = definition.launch_options
    configured = _dispatcher(resolutions)[shape.grid, shape.block, numba_stream(stream), shape.shared_bytes]
    if options or shape.shared_bytes or is_watched:
        wanted = options or LaunchOptions()
        configured.pre_launch_callbacks.append(lambda kernel, _configuration: apply_options(kernel, wanted))
    try:
        if is_watched:
            launch_watched(configured, shape, stream, arguments, definition.function)
        else:
            configured(*arguments)
    except NotImplementedError as error:  # a type that Numba can compile for but not launch with
        error.add_note(definition.note)
        raise


def block_size(resolutions: NumbaResolutions, arguments: Sequence[Any], shared_bytes: int) -> int:
    """Ask Numba's own code for the block size at which most threads are resident."""
    from_numba = _specialize(resolutions, *arguments).forall(1, 0, 0, shared_bytes)
    return int(from_numba._compute_thread_per_block(from_numba.dispatcher))


def _specialize(resolutions: NumbaResolutions, *arguments: Any) -> Any:
    """Make a dispatcher of Numba's for exactly the types of these arguments."""
    made = specialize(_dispatcher(resolutions), arguments, resolutions)
    options = resolutions.definition.launch_options
    if options:
        for kernel in made.overloads.values():
            apply_options(kernel, options)
    return made


def _dispatcher(resolutions: NumbaResolutions) -> Any:
    """Numba's dispatcher of a kernel, made when Numba itself has to launch, compile or inspect it."""
    declared, thing = resolutions.definition.declared, resolutions.definition.thing
    parts = surface(NUMBA)
    with parts.global_compiler_lock:
        made = resolutions.dispatcher
        if made is None:
            made = parts.CUDADispatcher(declared.py_func, targetoptions=dict(declared.targetoptions))
            made._cache = DispatcherCache(resolutions, made)
            if not getattr(thing, "_can_compile", True):  # the user's dispatcher is restricted to given signatures
                for types in thing.overloads:
                    made.compile(types)
                made.disable_compile()
            resolutions.dispatcher = made
    return made


def specialize(dispatcher: Any, arguments: Sequence[Any], resolutions: NumbaResolutions | None) -> Any:
    """Make what `dispatcher.specialize(*arguments)` makes, but with this cache, which Numba would drop."""
    from numba.cuda.api import get_current_device

    if dispatcher.specialized:
        raise RuntimeError("Dispatcher already specialized")
    key = get_current_device().compute_capability, tuple(dispatcher.typeof_pyval(each) for each in arguments)

    def prepare(made: Any) -> None:
        if resolutions is not None:
            made._cache = DispatcherCache(resolutions, made)
        made.compile(key[1])

    return specialized(NUMBA, dispatcher, key, prepare)


def apply_options(kernel: Any, options: LaunchOptions) -> None:
    """Add launch options to one of Numba's compiled kernels."""
    kernel.cooperative = kernel.cooperative or options.cooperative
    kernel.launch = functools.partial(_launch, kernel, options._replace(cooperative=kernel.cooperative))


def _launch(
    kernel: Any, options: LaunchOptions, args: Any, griddim: Any, blockdim: Any, stream: Any = 0, sharedmem: int = 0
) -> None:
    loaded = loaded_by_numba(kernel._codelibrary.get_cufunc())  # read each time: a device reset changes the function
    name, shape = kernel.py_func.__name__, LaunchShape(griddim, blockdim, sharedmem)
    options.apply(loaded, name)
    loaded.prepare(shape, name)
    options.check(shape, loaded, name)
    launch = type(kernel).launch
    if options.cluster:
        names = {**launch.__globals__, "LaunchConfig": functools.partial(_in_clusters, options.cluster)}
        launch = FunctionType(launch.__code__, names, launch.__name__, launch.__defaults__, launch.__closure__)
    launch(kernel, args, griddim, blockdim, stream, sharedmem)


def _in_clusters(cluster: Sequence[int], *, grid: Sequence[int], **more: Any) -> Any:
    from cuda.core import LaunchConfig

    return LaunchConfig(grid=tuple(n // each for n, each in zip(grid, cluster, strict=True)), cluster=cluster, **more)


def numba_stream(stream: Any) -> Any:
    """Convert a stream for Numba's own launch: 0, Numba's and cuda.core's are unchanged, others are wrapped by handle.

    Raises:
        LaunchConfigError: It is not a known kind of stream.
    """
    if not stream or type(stream).__module__.startswith(("numba.", "cuda.core")):
        return stream or 0
    from numba.cuda import external_stream

    return external_stream(stream_handle(stream))


def loaded_by_numba(function: Any) -> LoadedKernel:
    """Wrap a function that Numba loaded on the current device as a `LoadedKernel`."""
    handle = done(bindings().cuKernelGetFunction(int(function.handle)), f"find {function.name}")
    entry = Entry(function.name, function.name, (), False, function.attrs.regs, function.attrs.shared)
    return LoadedKernel(entry, current_device(), handle, SimpleNamespace(live=[True], stays=[True]))


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

    def specialize_cached(self: Any, *args: Any) -> Any:
        return specialize(self, args, getattr(self._cache, "resolutions", None))

    original_call: Callable[[Any, Any, Any], Any] = kind.call

    def call(self: Any, args: Any, launch_config: Any) -> None:
        if type(self._cache) is DispatcherCache:
            stream = stream_handle(launch_config.stream)  # an object, also of the default stream
            around(lambda _stream: original_call(self, args, launch_config), stream, args)
        else:
            original_call(self, args, launch_config)

    methods = {
        "call": call,
        "enable_caching": enable_caching,
        "compile": compile_signature,
        "specialize": specialize_cached,
    }
    _patch.replace(kind, methods)


def _attach(dispatcher: Any) -> None:
    definition = NumbaDefinition(dispatcher, {})
    choose = functools.partial(choose_for_device, (), kernel=definition.name)
    resolutions = NumbaResolutions(definition, process_session, choose)
    resolutions.dispatcher, dispatcher._cache = dispatcher, DispatcherCache(resolutions, dispatcher, is_numbas=True)
