"""Numba's own dispatcher for a kernel, with this cache behind it and launch options that Numba lacks.

Promise     Arguments are treated as Numba does. The kernel's launch attributes, dynamic shared memory above 48 KiB and
            `debug_launches` work too, on every device, for kernels from the cache and for those that Numba compiled.
Method      Numba calls `launch` of an overload; that of a cached kernel prepares the launch and calls Numba's. A
            cluster is passed to Numba's code by replacing the name `LaunchConfig` there.
            `install()` replaces five methods of the dispatcher class: `enable_caching` (what `cache=True` calls),
            `compile` (what a new signature calls), `specialize` (Numba's drops the cache; `forall` calls it, too),
            `call` (a launch), so that arrays of other libraries are ordered with Numba's stream, and `compile_device`,
            so that a device function that its decorator compiles is not compiled again for a kernel.
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
from types import FunctionType, SimpleNamespace
from typing import Any

from ...launch import NUMBA_CUDA_MODULE, LaunchShape, bindings, check_interpreter, current_device, done, stream_handle
from ...launch.attributes import LaunchOptions
from ...launch.launcher import LoadedKernel, around
from ...model import Artifact, CompiledKernel
from .. import Launches
from . import check_version, dispatcher
from .arguments import Signature
from .compiled_code import noted
from .dispatcher import CacheOfDispatcher, Patch, dispatcher_of, launch_configured, specialized
from .llvm import NUMBA, NumbaDefinition, NumbaResolutions, is_simulated

NAMES = dispatcher.NAMES | {"inspect_sass_cfg"}
"""Attributes of Numba's dispatcher that a kernel has with the same meaning."""


class DispatcherCache(CacheOfDispatcher):
    """The cache of one of Numba's dispatchers, with the interface of Numba's caches."""

    def made(self, types: Signature, artifact: Artifact) -> Any:
        """Make an object for `dispatcher.overloads`."""
        found = _overload_class()(self.dispatcher, types, artifact, functools.partial(self._load, types))
        self.save_overload(types, found)
        return found

    def save_overload(self, _sig: Any, data: Any) -> None:
        """Give a kernel the launch options, also one that Numba compiled itself, which must not be stored."""
        if not self._is_numbas:
            apply_options(data, self.resolutions.definition.launch_options or LaunchOptions())

    def _load(self, types: Signature) -> LoadedKernel:
        """Load the kernel on the current device, with its carveout."""
        loaded: LoadedKernel = self.resolutions.launches._loaded(types)[1]
        return loaded


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
    definition = resolutions.definition
    configured = dispatcher_of(resolutions)[shape.grid, shape.block, numba_stream(stream), shape.shared_bytes]
    try:
        launch_configured(resolutions, configured, shape, stream, arguments)
    except NotImplementedError as error:  # a type that Numba can compile for but not launch with
        error.add_note(definition.note)
        raise


def block_size(resolutions: NumbaResolutions, arguments: Sequence[Any], shared_bytes: int) -> Any:
    """Ask Numba's own code for the block size at which most threads are resident."""
    made = specialized(dispatcher_of(resolutions), resolutions, arguments)
    from_numba = made.forall(1, 0, 0, shared_bytes)
    return from_numba._compute_thread_per_block(from_numba.dispatcher)


def apply_options(kernel: Any, options: LaunchOptions) -> None:
    """Add launch options to one of Numba's compiled kernels."""
    kernel.cooperative = kernel.cooperative or options.cooperative
    kernel.launch = functools.partial(_launch, kernel, options._replace(cooperative=kernel.cooperative))


def _launch(
    kernel: Any, options: LaunchOptions, args: Any, griddim: Any, blockdim: Any, stream: Any = 0, sharedmem: int = 0
) -> None:
    library, name, shape = kernel._codelibrary, kernel.py_func.__name__, LaunchShape(griddim, blockdim, sharedmem)
    if "compiled" in vars(kernel):  # it is from the cache, and got its attributes when it was loaded
        loaded = library.on_device()[1]
    else:
        loaded = loaded_by_numba(library.get_cufunc())  # read each time: a device reset changes the function
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
    entry = CompiledKernel(function.name, function.name, (), False, function.attrs.regs, function.attrs.shared)
    return LoadedKernel(entry, current_device(), handle, SimpleNamespace(live=[True], stays=[True]))


def _exceptions(table: list[Any]) -> Any:
    """The exceptions of a debug kernel by code, with the interface of Numba's call helper."""
    made = {
        code: (name and getattr(builtins, name), tuple(arguments), tuple(place) if place else None)
        for code, name, arguments, place in table
    }

    def get_exception(code: int) -> tuple[Any, Any, Any]:
        return made.get(code, (SystemError, (f"unknown error {code} in native function",), None))

    return SimpleNamespace(get_exception=get_exception)


@cache
def _overload_class() -> Any:
    """The class of overloads made from artifacts, defined once Numba is imported."""
    from cuda.core import ObjectCode
    from numba.cuda import types as numba_types
    from numba.cuda import typing
    from numba.cuda.codegen import CUDACodeLibrary
    from numba.cuda.cudadrv import devices
    from numba.cuda.dispatcher import _Kernel

    class CachedOverload(_Kernel):  # type: ignore[misc]
        """A kernel made from an artifact. An attribute that only a compile has is that of one made when it is read."""

        def __init__(
            self, dispatcher: Any, types: tuple[Any, ...], artifact: Artifact, load: Callable[[], LoadedKernel]
        ) -> None:
            known, options = artifact.attributes, dict(dispatcher.targetoptions)
            options["link"] = list(options.get("link") or ())  # Numba appends to it
            self.compiled = cache(lambda: _Kernel(dispatcher.py_func, types, **options))
            self.objectmode, self.entry_point = False, None
            self.extensions = options.get("extensions") or ()
            self.py_func, self.argtypes = dispatcher.py_func, types
            self.debug, self.lineinfo = bool(known.get("debug")), bool(options.get("lineinfo"))
            self.cooperative, self.shared_memory_carveout = bool(known.get("cooperative")), known.get("carveout")
            self.launch_bounds, self.launch_config_sensitive = options.get("launch_bounds"), False
            self.entry_name = artifact.kernels[0].symbol
            self.signature = typing.signature(numba_types.none, *types)
            self.call_helper = _exceptions(known.get("exceptions") or [])
            self._codelibrary = CachedLibrary(self, artifact, load)

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return getattr(self.compiled(), name)

        def __reduce__(self) -> Any:
            return self.compiled().__reduce__()

        def bind(self) -> None:
            self._codelibrary.get_cufunc()

    class CachedLibrary(CUDACodeLibrary):  # type: ignore[misc]
        """The code library of a kernel made from an artifact."""

        def __init__(self, overload: CachedOverload, artifact: Artifact, load: Callable[[], LoadedKernel]) -> None:
            self._name, self._entry_name = artifact.kernels[0].name, overload.entry_name
            self._overload, self._load, target = overload, load, artifact.target
            own = target.cc, (*target.cc, ""), (*target.cc, target.suffix)
            self._cubin_cache = dict.fromkeys(own, ObjectCode.from_cubin(artifact.cubin, name=self._entry_name))
            self._ptx_cache = {key: [artifact.ptx.decode()] for key in own} if artifact.ptx else {}
            self._linkerinfo_cache = dict.fromkeys(own, artifact.log)
            self._functions: dict[int, tuple[Any, LoadedKernel]] = {}

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return getattr(self._overload.compiled().library, name)

        def get_cufunc(self) -> Any:
            return self.on_device()[0]

        def on_device(self) -> tuple[Any, LoadedKernel]:
            ordinal = devices.get_context().device.id
            found = self._functions.get(ordinal)
            if found is None or not found[1].live[0]:
                loaded = self._load()
                found = self._functions[ordinal] = loaded.numba_function, loaded
            return found

    return CachedOverload


_patch = Patch(NUMBA, NumbaDefinition, Launches)


restore = _patch.restore


def replace(home: Any, every_kernel: bool) -> None:
    """Replace methods of the dispatcher class in `numba.cuda.dispatcher`; with `every_kernel`, for each kernel.

    Raises:
        ToolchainMissingError: numba-cuda is too old.
    """
    if is_simulated() or NUMBA_CUDA_MODULE not in sys.modules:  # then Numba uses its built-in CUDA target
        return
    check_version(NUMBA)
    kind, _patch.every_kernel = home.CUDADispatcher, every_kernel
    original_compile, original_call, original_device = kind.compile, kind.call, kind.compile_device

    def compile_signature(self: Any, sig: Any) -> Any:
        _patch.resolutions(self)
        return original_compile(self, sig)

    def call(self: Any, args: Any, launch_config: Any) -> None:
        if _patch.resolutions(self) is None:
            original_call(self, args, launch_config)
            return
        stream = stream_handle(launch_config.stream)  # an object, also of the default stream
        around(lambda _stream: original_call(self, args, launch_config), stream, args)

    def compile_device(self: Any, args: Any, return_type: Any = None) -> Any:
        if not sys._getframe(1).f_code.co_filename.endswith("/decorators.py"):
            return original_device(self, args, return_type)
        with noted(NUMBA, self):
            return original_device(self, args, return_type)

    _patch.replace(kind, {"call": call, "compile": compile_signature, "compile_device": compile_device})
