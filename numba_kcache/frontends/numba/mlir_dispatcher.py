"""numba-cuda-mlir's own dispatcher for a kernel, with this cache behind it, and launches that only it can make.

Promise     Each signature has a dispatcher of its own for launches, since numba-cuda-mlir does not distinguish loaded
            kernels by all types of their arguments. For metadata that only a compile has (MLIR, LLVM IR), the kernel is
            compiled when it is first read.
Method      `install()` replaces five methods of its dispatcher class: both that compile, one for its launcher and one
            for other callers, `__getitem__`, whose launches then use this package's launchers where they can,
            `enable_caching` and `specialize`. numba-cuda-mlir's own cache is not used: that cache ignores edited
            callees, globals, options and captured arrays, and does not record that a kernel is cooperative.
Not here    Packing in a launcher (arguments), and when methods are replaced (numba_hook).
Source      numba-cuda-mlir 0.6.0, descriptor.py `_compile_impl`, `_compile_public`, `_propagate_compile_callbacks`;
            compiler.py `CompileResult`; caching.py `CachedCompileResult`. Its launcher keeps the bound method
            `_compile`, which looks up `_compile_impl` at each call.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

from ...engine import RunsUncached
from ...errors import ArgumentError, KCacheError, LaunchConfigError, LaunchError, NoDeviceError
from ...launch import CODES, Launch, LaunchShape, check_interpreter, stream_handle
from ...launch.launcher import LoadedKernel, ValueSlot
from ...model import Artifact, Parameter
from .. import Launches, Variant
from . import check_version, dispatcher, surface
from .arguments import Signature, TypedLauncher, codes_of, dtype_of
from .compiled_code import assumed_device, compiler
from .definition import CO_VARARGS
from .dispatcher import CacheOfDispatcher, Patch, launch_configured, new_dispatcher
from .mlir import MLIR, MlirDefinition, MlirResolutions, has_another_compile

NAMES = dispatcher.NAMES | {
    "inspect_ptx", "inspect_mlir", "inspect_mlir_optimized", "inspect_transformed_source",
}  # fmt: skip
"""Attributes of the dispatcher that a kernel has with the same meaning."""

_COMPILED_ONLY = frozenset(("mlir_module", "mlir_module_str", "mlir_module_optimized", "transformed_source", "linker"))
"""Metadata that an artifact does not have."""


# -- compile results of artifacts ---------------------------------------------------------------------------------


class Metadata(dict[str, Any]):
    """The metadata of a compile result made from an artifact; what an artifact does not have is compiled when read."""

    compiled: Callable[[], Any]

    def __missing__(self, name: str) -> Any:
        if name not in _COMPILED_ONLY:
            raise KeyError(name)
        self |= {**dict.fromkeys(_COMPILED_ONLY), **self.compiled().metadata, **self}
        return self[name]

    def __contains__(self, name: object) -> bool:
        return name in _COMPILED_ONLY or super().__contains__(name)

    def keys(self) -> Any:
        """All names that can be read."""
        return super().keys() | _COMPILED_ONLY

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
    options["chip"] = options.get("chip") or target.name

    @functools.cache
    def compiled() -> Any:
        making = compiler(MLIR)
        with assumed_device(MLIR, target.cc):
            found = making.compile_mlir(dispatcher.py_func, None, tuple(types), targetoptions=dict(options))
            making.optimize(found)
        return found

    metadata: dict[str, Any] = {
        "cubin": artifact.cubin, "func_name": artifact.kernels[0].symbol,
        "use_cooperative": bool(known.get("cooperative")), "targetoptions": options,
    }  # fmt: skip
    if known.get("needs_setup"):
        for word in ("setup_callback", "teardown_callback"):
            callbacks = [getattr(each, word, None) for each in options.get("link") or ()]
            metadata[f"{word}s"] = [*filter(None, callbacks)]
        if known.get("needs_runtime"):
            metadata["needs_nrt"] = metadata["nrt_inline"] = True
            metadata["setup_callbacks"].append(compiler(MLIR)._nrt_memsys_setup_callback)
    if artifact.ptx:
        metadata["ptx"] = artifact.ptx.decode()
    kept = Metadata(metadata)
    kept.compiled = compiled
    result = parts.CachedCompileResult(parts.signature(parts.types.none, *types), kept)
    result.objectmode = False
    return result


# -- dispatchers ---------------------------------------------------------------------------------------------------


class DispatcherCache(CacheOfDispatcher):
    """The cache of one of numba-cuda-mlir's dispatchers."""

    unresolved = (NoDeviceError, LaunchError, RunsUncached)  # it also compiles for targets that do not run here

    def keyed(self, types: Signature) -> Signature | None:
        """The types with those of annotations; None if the code depends on more, or is wanted otherwise."""
        dispatcher, definition = self.dispatcher, self.resolutions.definition
        is_special = dispatcher._literal_arg_positions or dispatcher._launch_config_enabled or has_another_compile()
        options, literal = dispatcher.targetoptions, surface(MLIR).types.Literal
        is_special = is_special or options.get("abi_info") or options.get("_compile_output")
        code = definition.function.__code__
        if is_special or code.co_flags & CO_VARARGS or len(types) != code.co_argcount:
            return None
        if any(each is None or isinstance(each, literal) for each in types):
            return None
        annotated = definition.annotated or (None,) * len(types)
        return Signature(fixed or each for fixed, each in zip(annotated, types, strict=True))

    def counted(self, _sig: Any, types: Any) -> Any:
        """The types: numba-cuda-mlir counts by them."""
        return tuple(types)

    def made(self, types: Signature, artifact: Artifact) -> Any:
        """Make the compile result for `dispatcher.overloads`."""
        dispatcher, options = self.dispatcher, self.resolutions.definition.launch_options
        result = result_of(dispatcher, types, artifact)
        if options is not None and options.cooperative:
            result.metadata["use_cooperative"] = True
        dispatcher._propagate_compile_callbacks(result.metadata)
        dispatcher._apply_shared_memory_carveout(surface(MLIR).CompileResult(result))
        return result


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
        dispatcher = resolutions.by_variant.setdefault(variant, new_dispatcher(resolutions))
    options, handle = definition.launch_options, None if stream is None else stream_handle(stream)
    cluster = tuple(options.cluster) if options is not None and options.cluster else None
    configured = dispatcher.configure(shape.grid, shape.block, handle, shape.shared_bytes, cluster)
    types: Any = variant or ()
    given = [_as_its_own(definition, at, *pair) for at, pair in enumerate(zip_longest(arguments, types), 1)]
    launch_configured(resolutions, configured, shape, handle or 0, given)


def _as_its_own(definition: Any, position: int, value: Any, kind: Any) -> Any:
    """Convert an argument to one that numba-cuda-mlir's launcher passes right: it misreads numbers of other types than
    the parameter's, and fails on an array of PyTorch after the launch."""
    parts, torch = surface(MLIR), sys.modules.get("torch")
    if type(kind) in (parts.Integer, parts.Float, parts.Complex, parts.Boolean):
        dtype = dtype_of(kind)
        slot = ValueSlot(definition, position, Parameter(0, dtype.itemsize, CODES[dtype.name]))
        return dtype.type(slot.convert(value))
    if torch is None or not isinstance(value, torch.Tensor):
        return value
    return parts.as_cuda_array(value.detach())


class InstalledDefinition(MlirDefinition):
    """The definition for a dispatcher of an unedited program. Arguments without a variant are launched by the
    dispatcher."""

    def variant(self, arguments: Sequence[Any]) -> Variant:
        """Type the arguments; None if numba-cuda-mlir has to launch."""
        if self.fixed or self.annotated or self.function.__code__.co_flags & CO_VARARGS:
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


InstalledDefinition.make_resolutions = InstalledResolutions


class MlirLaunches(Launches):
    """The launches of one dispatcher of an unedited program."""

    _resolutions: InstalledResolutions
    _zero = 0  # numba-cuda-mlir's default stream

    def takes(self, config: Any) -> bool:
        """Check whether this can launch a configuration: it has no cluster, and no extension changes arguments."""
        dispatcher = self._resolutions.dispatcher
        is_plain = dispatcher._can_compile and not dispatcher.extensions
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
        if types not in dispatcher.overloads:
            found = dispatcher._cache.load_overload(types, None)
            if found is None:
                raise RunsUncached(f"cannot serve {self.__name__}", "numba-cuda-mlir compiles it")
            dispatcher._cache_hits[tuple(types)] += 1
            dispatcher.overloads[tuple(types)] = surface(MLIR).CompileResult(found)
        return super()._loaded(variant)

    def _relaunch(
        self, loaded: LoadedKernel, variant: Variant, config: tuple[Any, ...], args: tuple[Any, ...], status: int
    ) -> bool:
        if not super()._relaunch(loaded, variant, config, args, status):
            grid, block, stream, shared = config
            self._resolutions.dispatcher.configure(grid, block, stream, shared or None)(*args)
        return True


_patch = Patch(MLIR, InstalledDefinition, MlirLaunches)


restore = _patch.restore


def replace(home: Any, every_kernel: bool) -> None:
    """Replace methods of the dispatcher class in `descriptor`; with `every_kernel`, for each kernel.

    Raises:
        ToolchainMissingError: numba-cuda-mlir is too old.
    """
    check_version(MLIR)
    kind, _patch.every_kernel = home.MLIRDispatcher, every_kernel
    compile_impl, compile_public, get_item = kind._compile_impl, kind._compile_public, kind.__getitem__

    def compile_for_launcher(self: Any, *args: Any) -> Any:
        _patch.resolutions(self)
        return compile_impl(self, *args)

    def compile_signature(self: Any, sig: Any, abi_info: Any = None, output: Any = None) -> Any:
        _patch.resolutions(self)
        if abi_info is not None:
            self.targetoptions["abi_info"] = abi_info  # as numba-cuda-mlir does after it has asked its cache
        return compile_public(self, sig, abi_info=abi_info, output=output)

    def launch_of(self: Any, config: Any) -> Any:
        resolutions = _patch.resolutions(self)
        launches = getattr(resolutions, "launches", None)
        if isinstance(launches, MlirLaunches) and self._can_compile and launches.takes(config):
            try:
                return launches[config]
            except KCacheError:  # numba-cuda-mlir reports the error itself
                pass
        return get_item(self, config)

    methods = {
        "__getitem__": launch_of, "_compile_impl": compile_for_launcher, "_compile_public": compile_signature,
    }  # fmt: skip
    _patch.replace(kind, methods)
