"""Numba's own dispatcher behind a kernel: over the artifacts of this cache, with what Numba has no word for.

Promise     A dispatcher made here behaves as one of `cuda.jit` with the same options. Arguments mean what they mean to
            Numba. The kernel's launch attributes, dynamic shared memory above 48 KiB and `debug_launches` hold all the
            same, on whichever device and for whatever Numba compiled or was given.
Method      Numba's `compile` calls `load_overload` of the dispatcher's cache before it would compile. Ours gives it a
            complete kernel, from disk or compiled just now, so that Numba compiles only what must not be stored. Numba
            calls `kernel.launch` after the callbacks of the launch configuration; a callback puts a launch of our own
            there, which prepares the function and goes on to Numba's. A cluster gets to Numba's code by the name under
            which that makes its `LaunchConfig`.
Not here    Packing of what a launcher takes (arguments), and when programs that are not edited get such a cache
            (install). No hit of a kernel whose arguments are of the common types comes here.
Ground      numba-cuda 0.30.4, dispatcher.py `CUDADispatcher.call`, `compile`, `specialize`, `_Kernel.launch`;
            cuda.core's LaunchConfig counts the grid in clusters where there are any.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import FunctionType
from typing import Any

from ...errors import CompileError, NoDeviceError
from ...launch import LaunchShape
from ...launch.attributes import LaunchOptions
from ...launch.devices import bindings, check_interpreter, current_device
from ...launch.loader import CodeRefusedError, LoadedKernel
from ..base import RunsUncached
from ..python.signatures import read_signature_list
from .definition import CompilerLock, NumbaResolutions
from .overload import make_overload
from .own import loaded_by_numba, numba_stream

NUMBAS_NAMES = frozenset((
    "signatures", "nopython_signatures", "inspect_llvm", "inspect_asm", "inspect_lto_ptx", "inspect_sass",
    "inspect_sass_cfg", "inspect_types", "get_regs_per_thread", "get_const_mem_size", "get_shared_mem_per_block",
    "get_max_threads_per_block", "get_local_mem_per_thread", "get_metadata", "stats", "overloads", "recompile",
    "py_func", "targetoptions", "extensions", "specialized", "specialize",
))  # fmt: skip
"""What a kernel has of Numba's dispatcher, with the same meaning."""


class DispatcherCache:
    """The cache of one of Numba's dispatchers; the names are Numba's.

    Args:
        resolutions: Of the dispatcher's function and options.
        dispatcher: That asks this.
        is_numbas: Whether errors in linked code are left to Numba to raise, as they are where Numba's own decorator
            is all that the program has.
    """

    def __init__(self, resolutions: NumbaResolutions, dispatcher: Any, *, is_numbas: bool = False) -> None:
        self.resolutions, self._dispatcher, self._is_numbas = resolutions, dispatcher, is_numbas

    def load_overload(self, sig: Any, _context: Any) -> Any:
        """Give the kernel of a signature, complete; None where Numba has to compile it."""
        types = sig if isinstance(sig, tuple) else read_signatures(sig)[0]
        is_known = any(each == types for _target, _ptx_target, each in self.resolutions.known())
        try:
            resolution = self.resolutions.for_device(current_device().target, types)
        except (NoDeviceError, RunsUncached):
            return None
        except CompileError:
            if self._is_numbas:
                return None
            raise
        if resolution.source == "compiled" and not is_known:  # Numba counts what it gets here as a hit
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

    def save_overload(self, sig: Any, data: Any) -> None:
        """Nothing: what Numba compiled by itself must not be stored."""

    @property
    def cache_path(self) -> str | None:
        """The directory of the cache."""
        return self.resolutions.session().store.directory

    def enable(self) -> None:
        """Nothing: there is no switch here."""

    def disable(self) -> None:
        """Nothing: there is no switch here."""

    def flush(self) -> None:
        """Read the function anew at the next launch; entries stay, they are named by what they hold."""
        self.resolutions.flush()


def attribute(resolutions: NumbaResolutions, name: str) -> Any:
    """Read one of `NUMBAS_NAMES` off the dispatcher, which then has every signature that was launched or compiled."""
    if name == "specialize":
        return functools.partial(_specialize, resolutions)
    dispatcher = _dispatcher(resolutions)
    if dispatcher._can_compile:
        for _target, _ptx_target, types in resolutions.known():
            if types not in dispatcher.overloads:
                dispatcher.compile(types)
    return getattr(dispatcher, name)


def launch(resolutions: NumbaResolutions, shape: LaunchShape, stream: Any, arguments: Sequence[Any]) -> None:
    """Launch as Numba does, with the options of the kernel.

    Args:
        resolutions: Of the kernel.
        shape: Extents of the launch.
        stream: As the user gave it.
        arguments: Of the launch.

    Raises:
        LaunchConfigError, LaunchError: The device, or an attribute, rules it out; a watched launch failed.
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
            _launch_watched(configured, shape, stream, arguments, definition.function)
        else:
            configured(*arguments)
    except NotImplementedError as error:  # a type that Numba compiles for and does not launch
        error.add_note(definition.note)
        raise


def _launch_watched(
    configured: Any, shape: LaunchShape, stream: Any, arguments: Sequence[Any], function: FunctionType
) -> None:
    from ...launch.debugging import watched

    def launch() -> bool:
        configured(*arguments)
        return True

    watched(
        bindings(), stream, launch, kernel=function.__name__, shape=shape,
        parameters=function.__code__.co_varnames[: len(arguments)], arguments=arguments,
    )  # fmt: skip


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
    """Numba's dispatcher of a kernel, made when something is to be launched, compiled or looked at by Numba itself."""
    declared, thing = resolutions.definition.declared, resolutions.definition.thing
    from numba.cuda.dispatcher import CUDADispatcher

    with CompilerLock():
        made = resolutions.dispatcher
        if made is None:
            made = CUDADispatcher(declared.py_func, targetoptions=dict(declared.targetoptions))
            made._cache = DispatcherCache(resolutions, made)
            if not getattr(thing, "_can_compile", True):  # it takes the signatures that it was given, no others
                for types in thing.overloads:
                    made.compile(types)
                made.disable_compile()
            resolutions.dispatcher = made
    return made


def read_signatures(given: Any) -> tuple[tuple[Any, ...], ...]:
    """The argument types of what `signature=` takes: as `cuda.jit` takes it, or a list of that.

    Raises:
        OptionError: One is not a signature, or returns something.
    """
    from numba.cuda import types
    from numba.cuda.core import sigutils

    return read_signature_list(given, sigutils.normalize_signature, (None, types.void))


def specialize(dispatcher: Any, arguments: Sequence[Any], resolutions: NumbaResolutions | None) -> Any:
    """`dispatcher.specialize(*arguments)`, with a cache; Numba's own gives the specialised dispatcher none."""
    from numba.cuda.api import get_current_device
    from numba.cuda.dispatcher import CUDADispatcher

    if dispatcher.specialized:
        raise RuntimeError("Dispatcher already specialized")
    key = get_current_device().compute_capability, tuple(dispatcher.typeof_pyval(each) for each in arguments)
    found = dispatcher.specializations.get(key)
    if found is None:
        found = CUDADispatcher(dispatcher.py_func, targetoptions=dispatcher.targetoptions)
        if resolutions is not None:
            found._cache = DispatcherCache(resolutions, found)
        found.compile(key[1])
        found.disable_compile()
        found._specialized = True
        dispatcher.specializations[key] = found
    return found


def apply_options(kernel: Any, options: LaunchOptions) -> None:
    """Make one of Numba's compiled kernels launch with the options from now on."""
    kernel.cooperative = kernel.cooperative or options.cooperative
    kernel.launch = functools.partial(_launch, kernel, options._replace(cooperative=kernel.cooperative))


def _launch(
    kernel: Any, options: LaunchOptions, args: Any, griddim: Any, blockdim: Any, stream: Any = 0, sharedmem: int = 0
) -> None:
    loaded = loaded_by_numba(kernel._codelibrary.get_cufunc())  # asked each time: it is another one after a reset
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
