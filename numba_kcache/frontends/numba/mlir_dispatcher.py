"""numba-cuda-mlir's own dispatcher for a kernel, with this cache behind it, and launches that only it can make.

Promise     A dispatcher made here behaves like one of `cuda.jit` with the same options. Each signature has a dispatcher
            of its own, since numba-cuda-mlir does not distinguish loaded kernels by all types of their arguments. For
            metadata that only a compile has (MLIR, LLVM IR), the kernel is compiled when it is first read.
Method      numba-cuda-mlir compiles in two methods, one for its launcher and one for other callers. Both first call
            `served`, which returns a compile result made from an artifact, or None if the method has to compile.
            `install()` replaces five methods of its dispatcher class: both that compile, `__getitem__`, whose launches
            then use this package's launchers where they can, `enable_caching` (what `cache=True` calls) and
            `specialize`. numba-cuda-mlir's own cache is not used: that cache ignores edited callees, globals, options
            and captured arrays, and does not record that a kernel is cooperative.
Not here    Packing in a launcher (arguments), and when methods are replaced (numba_hook).
Source      numba-cuda-mlir 0.6.0, descriptor.py `_compile_impl`, `_compile_public`, `_propagate_compile_callbacks`;
            compiler.py `CompileResult`; caching.py `CachedCompileResult`. Its launcher keeps the bound method
            `_compile`, which looks up `_compile_impl` at each call.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...engine import RunsUncached
from ...errors import (
    ArgumentError,
    CompileError,
    KCacheError,
    LaunchConfigError,
    LaunchError,
    NoDeviceError,
    OptionError,
)
from ...launch import Launch, LaunchShape, check_interpreter, current_device, stream_handle
from ...launch.launcher import LoadedKernel
from ...model import Artifact
from .. import Launches, Variant
from . import dispatcher
from .arguments import Signature, TypedLauncher, codes_of
from .compiled_code import assumed_device, compiler
from .dispatcher import CacheOfDispatcher, Patch, bound, launch_watched, specialized
from .flavour import surface
from .mlir import MLIR, VARARGS, MlirDefinition, MlirResolutions, has_another_compile, has_planners

if TYPE_CHECKING:
    from .mlir import MlirResolutions


NAMES = dispatcher.NAMES | {
    "inspect_ptx", "inspect_mlir", "inspect_mlir_optimized", "inspect_transformed_source",
}  # fmt: skip
"""Attributes of the dispatcher that a kernel has with the same meaning."""

_COMPILED_ONLY = frozenset(("mlir_module", "mlir_module_str", "mlir_module_optimized", "transformed_source", "linker"))
"""Metadata that an artifact does not have."""


# -- compile results of artifacts ---------------------------------------------------------------------------------


class Metadata(dict[str, Any]):
    """The metadata of a compile result made from an artifact: PTX is unpacked when read, missing values compiled."""

    def __init__(self, known: Mapping[str, Any], compiled: Any, extras: Mapping[str, bytes]) -> None:
        super().__init__(known)
        self._compiled, self._extras = compiled, extras

    def __missing__(self, name: str) -> Any:
        if name == "ptx" and (ptx := self._extras.get("ptx")):
            self["ptx"] = ptx.decode()
            return self["ptx"]
        if name not in _COMPILED_ONLY:
            raise KeyError(name)
        for each, value in self._compiled().metadata.items():
            self.setdefault(each, value)
        return super().get(name)

    def __contains__(self, name: object) -> bool:
        return name in _COMPILED_ONLY or super().__contains__(name) or (name == "ptx" and bool(self.get("ptx")))

    def get(self, name: str, default: Any = None) -> Any:
        """The value, compiled if needed."""
        try:
            return self[name]
        except KeyError:
            return default


def result_of(dispatcher: Any, types: Sequence[Any], artifact: Artifact) -> Any:
    """Make an object for `dispatcher.overloads` from an artifact.

    Args:
        dispatcher: A dispatcher of `cuda.jit`.
        types: Types of the arguments.
        artifact: The compiled kernel.
    """
    parts, known, target = surface(MLIR), artifact.attributes, artifact.target
    options = dict(dispatcher.targetoptions)
    options["chip"] = options.get("chip") or target.name  # text transforms read it

    @functools.cache
    def compiled() -> Any:
        making = compiler(MLIR)
        with assumed_device(MLIR, target.cc):
            found = making.compile_mlir(dispatcher.py_func, None, tuple(types), targetoptions=dict(options))
            making.optimize(found)
        return found

    metadata: dict[str, Any] = {
        "cubin": artifact.cubin, "func_name": artifact.entries[0].symbol,
        "use_cooperative": bool(known.get("cooperative")), "targetoptions": options,
    }  # fmt: skip
    if known.get("needs_setup"):
        from_link = [each for each in options.get("link") or () if hasattr(each, "setup_callback")]
        metadata["setup_callbacks"] = [each.setup_callback for each in from_link if each.setup_callback]
        metadata["teardown_callbacks"] = [each.teardown_callback for each in from_link if each.teardown_callback]
        if known.get("needs_runtime"):
            metadata["needs_nrt"] = metadata["nrt_inline"] = True
            metadata["setup_callbacks"].append(compiler(MLIR)._nrt_memsys_setup_callback)
    kept = Metadata(metadata, compiled, artifact.extras)
    result = parts.CachedCompileResult(parts.signature(parts.types.none, *types), kept)
    result.objectmode = False
    return parts.CompileResult(_Complete(result, compiled))


class _Complete:
    """A compile result whose other attributes are those of a real compile, made when one is read."""

    def __init__(self, result: Any, compiled: Any) -> None:
        self.__dict__.update(vars(result))
        self.metadata, self._compiled = result.metadata, compiled

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in (
            "max_cooperative_grid_blocks",
            "inspect_asm",
            "inspect_llvm",
            "cooperative",
        ):
            raise AttributeError(name)
        return self.metadata[name] if name == "mlir_module_str" else getattr(self._compiled(), name)


# -- in front of numba-cuda-mlir's compile ------------------------------------------------------------------------


def served(dispatcher: Any, resolutions: MlirResolutions, types: Sequence[Any], *, is_quiet: bool = False) -> Any:
    """Put the compile result of a signature into `overloads` and return it; None if numba-cuda-mlir must compile.

    Args:
        dispatcher: The dispatcher.
        resolutions: Resolutions of its function and options.
        types: Types of the arguments.
        is_quiet: Whether errors in link inputs are left to numba-cuda-mlir, which raises them itself.
    """
    definition, parts = resolutions.definition, surface(MLIR)
    is_special = has_planners() or dispatcher._literal_arg_positions or dispatcher._launch_config_enabled
    is_special = is_special or has_another_compile()
    if is_special or any(isinstance(each, parts.types.Literal) for each in types):
        return None
    signature, known = Signature(types), resolutions.known()
    try:
        device = definition.native(current_device().target)
        resolution = resolutions.for_device(device, signature)
    except (NoDeviceError, LaunchError, RunsUncached):  # numba-cuda-mlir also compiles for targets that do not run here
        return None
    except CompileError:
        if is_quiet:
            return None
        raise
    is_hit = resolution.source != "compiled" or any(variant == signature for _target, _ptx, variant in known)
    (dispatcher._cache_hits if is_hit else dispatcher._cache_misses)[tuple(types)] += 1
    result = result_of(dispatcher, types, resolution.artifact)
    options = definition.launch_options
    if options is not None and options.cooperative:
        result.metadata["use_cooperative"] = True
    dispatcher._propagate_compile_callbacks(result.metadata)
    dispatcher._apply_shared_memory_carveout(result)
    dispatcher.overloads[tuple(types)] = result
    return result


def served_launch(dispatcher: Any, resolutions: MlirResolutions, arguments: Sequence[Any], is_quiet: bool) -> Any:
    """The cubin, function name and cooperative flag for numba-cuda-mlir's own launcher; None if it must compile."""
    parts, definition = surface(MLIR), resolutions.definition
    given = getattr(parts._compile_arg_types, "types", None)
    types = tuple(parts.typeof(each) for each in arguments) if given is None else tuple(given)
    if not dispatcher._can_compile or len(types) != definition.function.__code__.co_argcount or None in types:
        return None
    annotated = definition.annotated or (None,) * len(types)
    types = tuple(fixed or each for fixed, each in zip(annotated, types, strict=True))
    for known in tuple(dispatcher.overloads):
        if len(known) == len(types) and all(map(dispatcher._can_reuse_overload, known, types)):
            return None
    result = served(dispatcher, resolutions, types, is_quiet=is_quiet)
    if result is None:
        return None
    known = result.metadata
    return known["cubin"], known["func_name"], known["use_cooperative"]


def _cached_methods(kind: Any, attached: Callable[[Any], MlirResolutions | None], *, is_numbas: bool) -> dict[str, Any]:
    """The two methods of a dispatcher class that compile, with this cache in front.

    Args:
        kind: The class.
        attached: Returns the resolutions of a dispatcher; None if it does not use this cache.
        is_numbas: Whether the program uses numba-cuda-mlir's own decorator, which raises errors in link inputs itself.
    """
    compile_impl, compile_public = kind._compile_impl, kind._compile_public

    def compile_for_launcher(self: Any, args: Any, *rest: Any) -> Any:
        resolutions = attached(self)
        found = None if resolutions is None else served_launch(self, resolutions, args, is_numbas)
        if found is not None or is_numbas:
            return found or compile_impl(self, args, *rest)
        with assumed_device(MLIR, current_device().target.cc):
            return compile_impl(self, args, *rest)

    def compile_signature(self: Any, sig: Any, abi_info: Any = None, output: Any = None) -> Any:
        if abi_info is None and output is None and (resolutions := attached(self)) is not None:
            types, _returned = surface(MLIR).normalize_signature(sig)
            found = self.overloads.get(types) or served(self, resolutions, types, is_quiet=is_numbas)
            if found is not None:
                return found
        return compile_public(self, sig, abi_info=abi_info, output=output)

    return {"_compile_impl": compile_for_launcher, "_compile_public": compile_signature}


@functools.cache
def _cached_class() -> Any:
    """The class of dispatchers made here, which look kernels up in this cache before they compile."""
    kind = surface(MLIR).MLIRDispatcher
    return type("CachedDispatcher", (kind,), _cached_methods(kind, lambda made: made.resolutions, is_numbas=False))


def _make(resolutions: MlirResolutions) -> Any:
    declared, thing = resolutions.definition.declared, resolutions.definition.thing
    options = dict(declared.targetoptions)
    options["link"] = list(options.get("link") or ())
    made = _cached_class()(declared.py_func, targetoptions=options)
    made.resolutions = resolutions
    if resolutions.definition.is_bound:  # the user's dispatcher is restricted to given signatures
        made.overloads.update(thing.overloads)
        made.disable_compile()
        made._specialized = thing._specialized
    return made


def dispatcher_of(resolutions: MlirResolutions) -> Any:
    """The dispatcher of a kernel, made when numba-cuda-mlir itself has to inspect it."""
    if resolutions.dispatcher is None:
        resolutions.dispatcher = _make(resolutions)
    return resolutions.dispatcher


def attribute(resolutions: MlirResolutions, name: str) -> Any:
    """Read one of `NAMES` from the dispatcher."""
    return dispatcher.attribute_of(resolutions, name, dispatcher_of, specialize)


def specialize(resolutions: MlirResolutions, *arguments: Any) -> Any:
    """Make a dispatcher for exactly the types of these arguments."""
    made = _make(resolutions)
    made.compile_for(*arguments)
    return bound(made)


def launch(resolutions: MlirResolutions, shape: LaunchShape, stream: Any, arguments: Sequence[Any]) -> None:
    """Launch as numba-cuda-mlir does, with the options of the kernel.

    Args:
        resolutions: Resolutions of the kernel.
        shape: Extents of the launch.
        stream: The user's stream; None for that of the arguments.
        arguments: Arguments of the launch.
    """
    check_interpreter()
    definition = resolutions.definition
    arguments = definition.complete(tuple(arguments))
    variant = definition.variant(arguments)
    dispatcher = resolutions.by_variant.get(variant)
    if dispatcher is None:
        dispatcher = resolutions.by_variant.setdefault(variant, _make(resolutions))
    options, handle = definition.launch_options, None if stream is None else stream_handle(stream)
    cluster = tuple(options.cluster) if options is not None and options.cluster else None
    configured = dispatcher.configure(shape.grid, shape.block, handle, shape.shared_bytes, cluster)
    arguments = tuple(_as_its_own(each) for each in arguments)
    if resolutions.session().settings.debug_launches:
        launch_watched(configured, shape, handle or 0, arguments, definition.function)
    else:
        configured(*arguments)


def _as_its_own(value: Any) -> Any:
    """Wrap an array of PyTorch as one of numba-cuda-mlir, whose launcher fails on PyTorch's after the launch."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor):
        return value
    return surface(MLIR).as_cuda_array(value.detach())


class InstalledDefinition(MlirDefinition):
    """The definition for a dispatcher of an unedited program. Arguments without a variant are launched by the
    dispatcher."""

    def variant(self, arguments: Sequence[Any]) -> Variant:
        """Type the arguments; None if numba-cuda-mlir has to launch."""
        if self.is_bound or self.annotated or self.function.__code__.co_flags & VARARGS:
            return None
        try:
            types: Any = super().variant(arguments)
            for each in types:
                codes_of(MLIR, each)
            return types  # type: ignore[no-any-return]
        except (ArgumentError, ValueError, TypeError, KeyError):  # numba-cuda-mlir reports the error, or can launch
            return None

    def launcher(self, *arguments: Any, **more: Any) -> TypedLauncher | None:
        """Make the launcher, which has the host wait for streams as numba-cuda-mlir does: programs may rely on that."""
        made = super().launcher(*arguments, **more)
        if made is not None:
            made.waits_on_host = True
        return made


class InstalledResolutions(MlirResolutions):
    """The artifacts of one dispatcher of an unedited program."""

    def launch_by_front_end(self, shape: LaunchShape, stream: Any, arguments: tuple[Any, ...]) -> None:
        """Launch through the dispatcher itself."""
        self.dispatcher.configure(shape.grid, shape.block, stream, shape.shared_bytes or None)(*arguments)


class InstalledLaunches(Launches):
    """The launches of one dispatcher of an unedited program.

    Args:
        definition: Its definition.
    """

    _resolutions: InstalledResolutions
    _zero = 0  # numba-cuda-mlir's default stream

    def __init__(self, definition: InstalledDefinition) -> None:
        super().__init__(definition)
        self._resolutions.dispatcher, self._planners = definition.thing, surface(MLIR)._planner_registry

    @property
    def resolutions(self) -> MlirResolutions:
        """The artifacts of the dispatcher."""
        return self._resolutions

    def takes(self, config: Any) -> bool:
        """Check whether this can launch a configuration: it has no cluster, and no extension changes arguments."""
        dispatcher = self._resolutions.dispatcher
        is_plain = dispatcher._can_compile and not dispatcher.extensions and not self._planners.has_planners
        return is_plain and type(config) is tuple and len(config) in (2, 3, 4)

    def _bind(self, config: Any) -> Launch:
        self._resolutions.dispatcher.configure(*config)
        return super()._bind(config)

    def _configure(self, config: Any, shape: LaunchShape, stream: Any, variant: Variant = None) -> Launch | None:
        try:
            return super()._configure(config, shape, stream, variant)
        except LaunchConfigError:  # numba-cuda-mlir launches, so that the program gets the driver's error
            return None

    def _loaded(self, variant: Variant = None) -> Any:
        types: Any = variant
        dispatcher = self._resolutions.dispatcher
        if types not in dispatcher.overloads and served(dispatcher, self._resolutions, types, is_quiet=True) is None:
            raise RunsUncached(f"cannot serve {self.__name__}", "numba-cuda-mlir compiles it")
        return super()._loaded(variant)

    def _relaunch(
        self, loaded: LoadedKernel, variant: Variant, config: tuple[Any, ...], args: tuple[Any, ...], status: int
    ) -> bool:
        if not super()._relaunch(loaded, variant, config, args, status):
            grid, block, stream, shared = config
            self._resolutions.dispatcher.configure(grid, block, stream, shared or None)(*args)
        return True


_patch = Patch(MLIR)


restore = _patch.restore


class DispatcherCache(CacheOfDispatcher):
    """The cache of a patched dispatcher; it always reports a miss."""

    resolutions: MlirResolutions

    def load_overload(self, _sig: Any, _context: Any) -> None:
        """Return None: the replaced methods have looked into this cache already."""

    def flush(self) -> None:
        """Read the function again at the next launch."""
        self.resolutions.launches.forget()


def replace(home: Any, every_kernel: bool) -> None:
    """Replace methods of the dispatcher class in `descriptor`; with `every_kernel`, for each kernel."""
    kind = home.MLIRDispatcher
    specialize_plain, get_item = kind.specialize, kind.__getitem__

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
        if type(cache) is DispatcherCache and cache.resolutions.launches.takes(config):
            try:
                return cache.resolutions.launches[config]
            except KCacheError:  # numba-cuda-mlir reports the error itself
                pass
        return get_item(self, config)

    def specialize(self: Any, *args: Any) -> Any:
        made = specialize_plain(self, *args) if attached(self) is None or self.specialized else None
        return made or _specialized(self, args)

    methods = {
        "enable_caching": enable_caching,
        "__getitem__": launch_of,
        "specialize": specialize,
        **_cached_methods(kind, attached, is_numbas=True),
    }
    _patch.replace(kind, methods)


def _specialized(dispatcher: Any, arguments: tuple[Any, ...]) -> Any:
    """Make what `dispatcher.specialize(*arguments)` makes, but let the new dispatcher use this cache."""
    parts = surface(MLIR)
    types = tuple(each if isinstance(each, parts.types.Type) else parts.typeof(each) for each in arguments)

    def prepare(made: Any) -> None:
        _attach(made, made._cache)
        made.compile_for(*types)

    return specialized(MLIR, dispatcher, (parts.get_context().device.compute_capability, types), prepare)


def _attach(dispatcher: Any, before: Any) -> MlirResolutions | None:
    try:
        definition = InstalledDefinition(dispatcher, {})
        assert definition.declared
    except OptionError:  # a device function
        return None
    _patch.attached[dispatcher], launches = before, InstalledLaunches(definition)
    dispatcher._cache = DispatcherCache(launches.resolutions)
    return launches.resolutions
