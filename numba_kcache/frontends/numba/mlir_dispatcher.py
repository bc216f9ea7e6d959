"""numba-cuda-mlir's own dispatcher for a kernel, with this cache behind it, and launches that only it can make.

Promise     A dispatcher made here behaves like one of `cuda.jit` with the same options. Each signature has a dispatcher
            of its own, since numba-cuda-mlir does not distinguish loaded kernels by all types of their arguments. For
            metadata that only a compile has (MLIR, LLVM IR), the kernel is compiled when it is first read.
Method      numba-cuda-mlir compiles in two methods, one for its launcher and one for other callers. Both first call
            `served`, which returns a compile result made from an artifact, or None if the method has to compile.
Not here    Packing in a launcher (arguments), and dispatchers of unedited programs (mlir_install).
Source      numba-cuda-mlir 0.6.0, descriptor.py `_compile_impl`, `_compile_public`, `_propagate_compile_callbacks`;
            compiler.py `CompileResult`; caching.py `CachedCompileResult`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...engine import RunsUncached
from ...errors import CompileError, LaunchError, NoDeviceError
from ...launch import LaunchShape, check_interpreter, current_device, stream_handle
from ...model import Artifact
from . import dispatcher
from .arguments import Signature
from .dispatcher import launch_watched
from .mlir_flavour import MLIR, has_another_compile, has_planners
from .parts import assumed_device, compiler, surface

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


@functools.cache
def _cached_class() -> Any:
    """The class of dispatchers made here."""

    class CachedDispatcher(surface(MLIR).MLIRDispatcher):  # type: ignore[misc]
        """A dispatcher that looks kernels up in this cache before it compiles."""

        resolutions: MlirResolutions

        def _compile_impl(self, args: Any, *rest: Any) -> Any:
            found = served_launch(self, self.resolutions, args, False)
            if found is not None:
                return found
            with assumed_device(MLIR, current_device().target.cc):
                return super()._compile_impl(args, *rest)

        def _compile_public(self, sig: Any, abi_info: Any = None, output: Any = None) -> Any:
            types, _returned = surface(MLIR).normalize_signature(sig)
            if abi_info is None and output is None and types not in self.overloads:
                found = served(self, self.resolutions, types)
                if found is not None:
                    return found
            return super()._compile_public(sig, abi_info=abi_info, output=output)

    return CachedDispatcher


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
    made.disable_compile()
    made._specialized = True
    return made


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
