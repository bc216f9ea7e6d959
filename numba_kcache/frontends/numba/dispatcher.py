"""The Numbas' own dispatchers, and patching them for unedited programs: code that both need.

Promise     A dispatcher made here behaves like one of the Numba's `cuda.jit` with the same options. Patched kernels
            remain Numba's dispatchers with unchanged behaviour; only their compiled code comes from the cache. Kernels
            that were decorated before `install()` use it from their next compilation on. `uninstall()` undoes all.
Method      A Numba's `compile` calls `load_overload` of the dispatcher's cache before it would compile. That of
            `CacheOfDispatcher` returns a complete kernel, from disk or compiled just now, so that the Numba compiles
            only kernels that must not be stored.
Not here    What it returns, and launches by a dispatcher (llvm_dispatcher, mlir_dispatcher).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from ...engine import RunsUncached
from ...errors import CompileError, NoDeviceError, OptionError
from ...launch import LaunchShape, bindings, current_device, relaxed
from ...model import Artifact
from .. import Kernel, Launches, define
from . import Flavour, surface
from .arguments import Signature

NAMES = frozenset((
    "signatures", "nopython_signatures", "inspect_llvm", "inspect_asm", "inspect_lto_ptx", "inspect_sass",
    "get_regs_per_thread", "get_const_mem_size", "get_shared_mem_per_block", "get_max_threads_per_block",
    "get_local_mem_per_thread", "get_metadata", "stats", "overloads", "recompile", "py_func", "targetoptions",
    "extensions", "specialized", "specialize", "inspect_types",
))  # fmt: skip
"""Attributes of a Numba's dispatcher that a kernel has with the same meaning."""


def attribute_of(resolutions: Any, name: str) -> Any:
    """Read an attribute of the dispatcher of a kernel, which is first given every resolved signature.

    Args:
        resolutions: Resolutions of the kernel.
        name: One of `NAMES`, or of those that one Numba alone has.
    """
    if name == "specialize":
        return functools.partial(specialized_kernel, resolutions)
    dispatcher = dispatcher_of(resolutions)
    if dispatcher._can_compile:
        for _target, _ptx_target, types in resolutions.known():
            if tuple(types) not in dispatcher.overloads:
                dispatcher.compile(tuple(types))
    return getattr(dispatcher, name)


def dispatcher_of(resolutions: Any) -> Any:
    """The Numba's dispatcher of a kernel, made when the Numba itself has to launch, compile or inspect it."""
    with resolutions.definition.compiler_lock():
        if resolutions.dispatcher is None:
            resolutions.dispatcher = new_dispatcher(resolutions)
    return resolutions.dispatcher


def new_dispatcher(resolutions: Any) -> Any:
    """Make a dispatcher over this cache, restricted to given signatures if that of the user is."""
    definition, thing = resolutions.definition, resolutions.definition.thing
    options = dict(definition.declared.targetoptions)
    options["link"] = list(options.get("link") or ())
    made = surface(definition.flavour).Dispatcher(definition.declared.py_func, targetoptions=options)
    made._cache = resolutions.cache_of(made)
    if not getattr(thing, "_can_compile", True):
        for types in thing.overloads:
            made.compile(types)
        made.disable_compile()
        made._specialized = thing._specialized
    return made


def specialized(dispatcher: Any, resolutions: Any, arguments: Sequence[Any]) -> Any:
    """Make what `dispatcher.specialize(*arguments)` makes, but over this cache, which the Numba would drop."""
    parts = surface(resolutions.definition.flavour)
    if dispatcher.specialized:
        raise RuntimeError("Dispatcher already specialized")
    types = tuple([each if isinstance(each, parts.types.Type) else parts.typeof(each) for each in arguments])
    key = parts.get_context().device.compute_capability, types
    found = dispatcher.specializations.get(key)
    if found is None:
        found = parts.Dispatcher(dispatcher.py_func, targetoptions=dispatcher.targetoptions)
        found._cache = resolutions.cache_of(found)
        found.compile(types)
        found.disable_compile()
        found._specialized = True
        dispatcher.specializations[key] = found
    return found


def specialized_kernel(resolutions: Any, *arguments: Any) -> Any:
    """Make the kernel with the same options that takes arguments of these types, or values like these, alone."""
    definition, dispatcher = resolutions.definition, dispatcher_of(resolutions)
    made = resolutions.specialized
    own = surface(definition.flavour).types.Type
    types = [each if isinstance(each, own) else definition.types_of([each])[0] for each in arguments]
    found = specialized(dispatcher, resolutions, types)
    if found not in made:
        made[found] = Kernel(define(found, {**definition.options, "signature": None}, 0))
    return made[found]


def launch_configured(
    resolutions: Any, configured: Any, shape: LaunchShape, stream: Any, arguments: Sequence[Any]
) -> None:
    """Launch by a configured dispatcher; in debug mode, wait for the kernel: an error shows the arguments."""
    if not resolutions.session().settings.debug_launches:
        configured(*arguments)
        return
    from ...launch.failures import watched

    def queue() -> bool:
        configured(*arguments)
        return True

    function = resolutions.definition.function
    watched(
        bindings(), stream, queue, kernel=function.__name__, shape=shape,
        parameters=function.__code__.co_varnames[: len(arguments)], arguments=arguments,
    )  # fmt: skip


class Patch:
    """The methods of one Numba's dispatcher class while they are replaced.

    Args:
        flavour: The Numba.
        definition: The class of definitions of its kernels.
        launches: The class of their launches.

    Attributes:
        attached: Dispatchers that use this cache, with their previous cache; None for the one that `cache=True` would
            make.
        every_kernel: Whether kernels without `cache=True` use it, too.
    """

    every_kernel = False

    def __init__(self, flavour: Flavour, definition: Any, launches: type[Launches]) -> None:
        self._flavour, self._definition, self._launches = flavour, definition, launches
        self._replaced = dict[str, Any]()
        self.attached: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    def replace(self, kind: Any, methods: Mapping[str, Any]) -> None:
        """Replace these methods of a class, `enable_caching` (what `cache=True` calls) and `specialize`."""
        original = kind.specialize

        def enable_caching(dispatcher: Any) -> None:
            self._attach(dispatcher, None)

        def specialize(dispatcher: Any, *arguments: Any) -> Any:
            resolutions = self.resolutions(dispatcher)
            if resolutions is None:
                return original(dispatcher, *arguments)
            return specialized(dispatcher, resolutions, arguments)

        for name, method in {"enable_caching": enable_caching, "specialize": specialize, **methods}.items():
            self._replaced[name] = vars(kind)[name]
            method.__doc__ = self._replaced[name].__doc__
            setattr(kind, name, method)

    def resolutions(self, dispatcher: Any) -> Any:
        """The resolutions of a dispatcher, which uses this cache from now on; None if it must not."""
        cache, parts = dispatcher._cache, surface(self._flavour)
        if isinstance(cache, CacheOfDispatcher):
            return cache.resolutions
        if not isinstance(cache, (parts.OwnCache, parts.NullCache)) or dispatcher.targetoptions.get("device"):
            return None
        is_wanted = self.every_kernel or isinstance(cache, parts.OwnCache)
        return self._attach(dispatcher, cache) if is_wanted else None

    def _attach(self, dispatcher: Any, before: Any) -> Any:
        try:
            definition = self._definition(dispatcher, {})
            assert definition.declared
        except OptionError:  # a device function
            return None
        resolutions: Any = self._launches(definition)._resolutions
        self.attached[dispatcher] = before
        resolutions.dispatcher, dispatcher._cache = dispatcher, resolutions.cache_of(dispatcher, is_numbas=True)
        return resolutions

    def restore(self) -> None:
        """Undo `replace`, and give each dispatcher its previous cache back."""
        if not self._replaced:
            return
        parts = surface(self._flavour)
        for name, method in self._replaced.items():
            setattr(parts.Dispatcher, name, method)
        self._replaced.clear()
        for kernel, before in list(self.attached.items()):
            if before is not None:
                kernel._cache = before
                continue
            try:
                kernel.enable_caching()
            except RuntimeError:  # no folder for Numba's cache: the decorator would have raised this without `install`
                kernel._cache = parts.NullCache()
        self.attached.clear()


class CacheOfDispatcher:
    """The cache of one of a Numba's dispatchers, with the interface of its caches.

    Args:
        resolutions: Resolutions of the dispatcher's function and options.
        dispatcher: The dispatcher that has this cache.
        is_numbas: Whether the program uses the Numba's own decorator, which raises errors in linked code itself.
    """

    unresolved: tuple[type[Exception], ...] = (NoDeviceError, RunsUncached)
    """Errors after which the Numba compiles."""

    def __init__(self, resolutions: Any, dispatcher: Any, *, is_numbas: bool = False) -> None:
        self.resolutions, self.dispatcher, self._is_numbas = resolutions, dispatcher, is_numbas

    @property
    def cache_path(self) -> Any:
        """The directory of the cache."""
        return self.resolutions.session().local.directory

    def load_overload(self, sig: Any, _context: Any) -> Any:
        """Return the complete kernel of a signature; None if the Numba has to compile it."""
        resolutions, definition = self.resolutions, self.resolutions.definition
        given = sig if isinstance(sig, tuple) else surface(definition.flavour).normalize_signature(sig)[0]
        types = self.keyed(Signature(given))
        if types is None:
            return None
        is_known = any(each == types for _target, _ptx_target, each in resolutions.known())
        try:
            with relaxed():
                resolution = resolutions.for_device(definition.native(current_device().target), types)
        except self.unresolved:
            return None
        except CompileError:
            if self._is_numbas:
                return None
            raise
        if resolution.source == "compiled" and not is_known:  # a Numba counts every kernel returned here as a hit
            counted = self.counted(sig, given)
            self.dispatcher._cache_hits[counted] -= 1
            self.dispatcher._cache_misses[counted] += 1
        return self.made(types, resolution.artifact)

    def keyed(self, types: Signature) -> Signature | None:
        """The types under which the kernel is looked up; None if the Numba has to compile it."""
        return types

    def counted(self, sig: Any, _types: Any) -> Any:
        """The key under which the Numba counts a hit."""
        return sig

    def made(self, types: Signature, artifact: Artifact) -> Any:
        """Make what the Numba's own cache would return."""
        raise NotImplementedError

    def save_overload(self, _sig: Any, _data: Any) -> None:
        """Do nothing: a kernel that Numba compiled itself is one that must not be stored."""

    def flush(self) -> None:
        """Read the function again at the next launch; entries stay, since their keys cover their content."""
        (self.resolutions.launches or self.resolutions).forget()
