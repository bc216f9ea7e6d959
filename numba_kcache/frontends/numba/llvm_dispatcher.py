"""Numba's own dispatcher for a kernel, with this cache behind it and launch options that Numba lacks.

Promise     A dispatcher made here behaves like one of `cuda.jit` with the same options, and treats arguments as Numba
            does. The kernel's launch attributes, dynamic shared memory above 48 KiB and `debug_launches` work too,
            on every device, for kernels from the cache and for those that Numba compiled.
Method      Numba's `compile` calls `load_overload` of the dispatcher's cache before it would compile. That of
            `DispatcherCache` returns a complete kernel, from disk or compiled just now, so that Numba compiles only
            kernels that must not be stored. Numba calls `kernel.launch` after the callbacks of the launch
            configuration; a callback of this module replaces it by a function that prepares the launch and calls
            Numba's. A cluster is passed to Numba's code by replacing the name `LaunchConfig` there.
Not here    Packing in a launcher (arguments), and dispatchers of unedited programs (llvm_install). A hit
            of a kernel whose arguments are of common types does not use this module.
Source      numba-cuda 0.30.4, dispatcher.py `CUDADispatcher.call`, `compile`, `specialize`, `_Kernel.launch`;
            cuda.core's LaunchConfig counts the grid in clusters, if there are any.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import FunctionType, SimpleNamespace
from typing import Any

from ...engine import RunsUncached
from ...errors import CodeRefusedError, CompileError, NoDeviceError
from ...launch import LaunchShape, bindings, check_interpreter, current_device, done, stream_handle
from ...launch.attributes import LaunchOptions
from ...launch.launcher import LoadedKernel
from ...model import Entry
from . import dispatcher
from .dispatcher import launch_watched, read_signature_list
from .llvm import NumbaResolutions
from .llvm_flavour import NUMBA
from .llvm_overload import make_overload
from .parts import surface
from .takeover import CacheOfDispatcher

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
    found = dispatcher.specializations.get(key)
    if found is None:
        found = surface(NUMBA).CUDADispatcher(dispatcher.py_func, targetoptions=dispatcher.targetoptions)
        if resolutions is not None:
            found._cache = DispatcherCache(resolutions, found)
        found.compile(key[1])
        found.disable_compile()
        found._specialized = True
        dispatcher.specializations[key] = found
    return found


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
