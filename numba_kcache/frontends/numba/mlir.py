"""The definition of a kernel of numba-cuda-mlir (a function or dispatcher with its options), and its artifacts.

Promise     A kernel's options are those of numba-cuda-mlir's `cuda.jit`, and mean the same. Omitted arguments have
            their defaults. Annotated parameters, and dispatchers with signatures, have the types written there. `chip=`
            and `cc=` mean the same as `arch=`, whatever device is present.
Not here    The code shared with Numba's kernels (definition), settings (mlir_flavour), packing (arguments),
            compiling (mlir_compile), and the work of its own dispatcher (mlir_dispatcher).
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import CellType
from typing import Any

from ...engine import Session
from ...errors import ArgumentError, OptionError
from ...launch.launcher import LoadedKernel
from ...model import Choice, Target, choose_for_device, parse_target
from .. import Variant
from .arguments import Signature, TypedLauncher
from .definition import PythonDefinition, PythonFrontEnd, PythonResolutions
from .flavour import Declared
from .mlir_arrays import array_type_of
from .mlir_flavour import MLIR, PACKAGE, has_planners
from .parts import surface

DECORATOR_OPTIONS = (
    "debug", "opt", "opt_level", "lineinfo", "fastmath", "inline", "forceinline", "link", "lto", "max_registers",
    "launch_bounds", "shared_memory_carveout", "extensions", "ptxas_options", "capi", "features", "_nrt",
    "experimental_ast_transforms", "abi",
)  # fmt: skip
"""Options of numba-cuda-mlir's `cuda.jit` for a kernel."""

VARARGS = 0x04  # in `co_flags`, as named by `inspect`


class MlirDefinition(PythonDefinition):
    """A Python function or a dispatcher of numba-cuda-mlir's `cuda.jit` as a kernel.

    Attributes:
        asked: The target in the dispatcher's options; () for none.
        is_bound: Whether it takes fixed signatures, to which arguments are cast.
    """

    kind = "mlir"
    room = "mlir"
    flavour = MLIR
    decorator_options = DECORATOR_OPTIONS
    takes_cluster = True

    def __init__(self, thing: Any, options: Mapping[str, Any]) -> None:
        super().__init__(thing, options)
        self.asked = _asked_targets(thing)
        self.is_bound = not getattr(thing, "_can_compile", True)
        self.defaults: tuple[Any, ...] = self.function.__defaults__ or ()
        self._annotated: tuple[Any, ...] | None = None

    def native(self, device: Target) -> Target:
        """The device's compute capability without architecture-specific features, as numba-cuda-mlir compiles."""
        return device.plain

    def declare(self) -> Declared:
        """Fill in the options as `cuda.jit` does."""
        return _declare(self.subject, self.given)

    # -- types --------------------------------------------------------------------------------------

    def complete(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """Add the defaults of omitted arguments."""
        lacking = self.function.__code__.co_argcount - len(arguments)
        return arguments + self.defaults[-lacking:] if 0 < lacking <= len(self.defaults) else arguments

    def variant(self, arguments: Sequence[Any]) -> Variant:
        """Type the arguments; None if no signature fits.

        Raises:
            ArgumentError: The number of arguments is wrong.
            ValueError, TypeError: One has no type.
        """
        arguments, code = self.complete(tuple(arguments)), self.function.__code__
        if self.declared.targetoptions.get("extensions"):
            return None  # extensions change the arguments before they are typed
        if len(arguments) != code.co_argcount and not (code.co_flags & VARARGS and len(arguments) > code.co_argcount):
            raise ArgumentError(
                f"cannot launch {self.name} with {len(arguments)} arguments",
                f"it takes {code.co_argcount}: {', '.join(code.co_varnames[: code.co_argcount])}",
            )
        try:
            types = self.types_of(arguments)
        except (ValueError, TypeError) as error:  # the error's message does not name the kernel
            error.add_note(self.note)
            raise
        return _signature_for(self.thing, types) if self.is_bound else types

    def types_of(self, arguments: Sequence[Any]) -> Signature:
        """Type the arguments of a launch as numba-cuda-mlir does; arrays that it does not know, by their memory."""
        code, parts = self.function.__code__, surface(MLIR)
        found = [type_of(each) for each in arguments]
        for position, kind in enumerate(self.annotated):
            if kind is not None and position < len(found):
                found[position] = kind
        if code.co_flags & VARARGS:
            rest = found[code.co_argcount :]
            found[code.co_argcount :] = [parts.types.StarArgTuple.from_types(rest)]
        return Signature(found)

    @property
    def annotated(self) -> tuple[Any, ...]:
        """The type in each parameter's annotation; None if that is not a type."""
        if self._annotated is None:
            annotations = self.function.__annotations__
            names = self.function.__code__.co_varnames[: self.function.__code__.co_argcount]
            found = [_annotation(self.function, name) if name in annotations else None for name in names]
            self._annotated = tuple(found) if any(each is not None for each in found) else ()
        return self._annotated

    # -- launches -----------------------------------------------------------------------------------

    @property
    def is_cast(self) -> Any:
        """Whether numbers are converted to the types of a signature that the user wrote."""
        return self.is_bound or bool(self.annotated)

    def is_launched_by_dispatcher(self, known: Mapping[str, Any]) -> bool:
        """Check whether the dispatcher's launch is needed: it sets up what callbacks need."""
        return super().is_launched_by_dispatcher(known) or bool(known.get("needs_setup"))

    def launcher(self, loaded: LoadedKernel, variant: Variant, **more: Any) -> TypedLauncher | None:
        """Make the launcher for arguments of these types; None if the dispatcher's launch is needed."""
        made = super().launcher(loaded, variant, **more)
        if made is not None:
            watch_context(loaded)
        return made


class _Sentinel:
    """Stored with the modules of numba-cuda-mlir's context, and finalised when the context is destroyed."""


def watch_context(loaded: LoadedKernel) -> None:
    """Clear a module's `live` when `cuda.close()` destroys numba-cuda-mlir's context, so that it is loaded again."""
    module, live = loaded.module, loaded.live
    if getattr(module, "mlir_context", None) is None:
        sentinel, modules = _Sentinel(), surface(MLIR).get_context().modules
        modules[sentinel] = sentinel
        module.mlir_context = weakref.ref(sentinel, lambda _gone: live.__setitem__(0, False))


def type_of(value: Any) -> Any:
    """Type one argument.

    Raises:
        ValueError: It has no type.
    """
    parts, kind = surface(MLIR), type(value)
    if kind is parts.DeviceNDArray:
        return value._numba_type_
    if kind is float:
        return parts.types.float64
    if kind is bool:
        return parts.types.boolean
    if kind is tuple or (isinstance(value, tuple) and hasattr(kind, "_fields")):
        return parts.types.BaseTuple.from_types([type_of(each) for each in value], kind)
    return array_type_of(value) or parts.typeof(value)


def _annotation(function: Any, name: str) -> Any:
    parts, given = surface(MLIR), function.__annotations__[name]
    if isinstance(given, parts.types.Type):
        return given
    try:
        return parts.to_numba_type(given)
    except (TypeError, NotImplementedError):  # as numba-cuda-mlir does: no type
        return None


def _signature_for(dispatcher: Any, types: Signature) -> Variant:
    """The one signature of a dispatcher that fits these types; None if the dispatcher has to report the error."""
    if types in dispatcher.overloads:
        return types
    best, _has_any = dispatcher._resolve_overload(types, allow_unsafe=True)
    return Signature(best[0]) if len(best) == 1 else None


def _asked_targets(thing: Any) -> tuple[Target, ...]:
    """The target in a dispatcher's options; () for none.

    The dispatcher's first compile writes the device's target there as well.
    """
    options = getattr(thing, "targetoptions", None) or {}
    if options.get("cc") is not None:
        return (parse_target(tuple(options["cc"])),)
    chip = None if getattr(thing, "overloads", None) else options.get("chip")
    return (parse_target(chip),) if chip else ()


class MlirResolutions(PythonResolutions):
    """The artifacts of one kernel of numba-cuda-mlir.

    Attributes:
        by_variant: Dispatchers with one signature each: numba-cuda-mlir does not tell loaded kernels apart by all
            argument types.
    """

    definition: MlirDefinition

    def __init__(
        self, definition: MlirDefinition, session: Callable[[], Session], choose: Callable[[Target], Choice]
    ) -> None:
        super().__init__(definition, session, functools.partial(_choose, definition, choose))
        self.by_variant: dict[Variant, Any] = {}

    def compiles_uncached(self) -> bool:
        """Check whether an uncacheable kernel is compiled here: not if its code may depend on the launch."""
        return not (has_planners() or self.definition.declared.targetoptions.get("extensions"))

    def forget(self) -> None:
        """Resolve again at the next launch. Running launches go on."""
        super().forget()
        self.by_variant = {}
        if self.dispatcher is not None and self.dispatcher._can_compile:
            self.dispatcher.overloads.clear()

    def block_size_by_front_end(self, arguments: tuple[Any, ...], shared_bytes: int) -> int:
        """The default block size of numba-cuda-mlir."""
        return 128


MlirDefinition.make_resolutions = MlirResolutions


def _choose(definition: MlirDefinition, choose: Callable[[Target], Choice], device: Target) -> Choice:
    """Choose the target for a device: that of the options, with PTX linked for the device if it is newer."""
    asked = definition.asked
    if not asked or "arch" in definition.options:
        return choose(definition.native(device))
    named = (*asked, *(each.as_virtual for each in asked))
    return choose_for_device(named, definition.native(device), kernel=definition.name)


def _declare(function: Any, given: Mapping[str, Any]) -> Declared:
    parts = surface(MLIR)
    if isinstance(function, parts.MLIRDispatcher):
        options = dict(function.targetoptions)
        if options.get("device"):
            raise OptionError(
                "cannot launch a device function", "it was decorated with device=True", "call it in a kernel"
            )
        options.pop("chip", None)  # the target is passed separately; a first compile writes the device's here
        checked = _verified(given)
        derived = {"opt": ("opt_level",), "opt_level": (), "lto": ("_lto_explicit",)}
        for name in given:
            options.update({each: checked[each] for each in (name, *derived.get(name, ()))})
        return Declared(function.py_func, options)
    config = sys.modules[MLIR.config]
    defaults: dict[str, Any] = {"debug": config.CUDA_DEBUGINFO_DEFAULT != 0}
    if "opt_level" not in given:
        defaults["opt"] = config.OPT != 0
    options = _verified({**defaults, **given})
    experimental = sys.modules.get(f"{PACKAGE}.cuda.experimental")
    if experimental is not None and "experimental_ast_transforms" not in given:
        switches = {id(experimental), id(experimental.consteval), id(experimental.local_array_from)}
        cells = [each.cell_contents for each in function.__closure__ or () if each != CellType()]
        if any(id(each) in switches for each in (*function.__globals__.values(), *cells)):
            options["experimental_ast_transforms"] = True  # as `cuda.jit` does
    return Declared(function, options)


def _verified(given: Mapping[str, Any]) -> dict[str, Any]:
    try:
        options: dict[str, Any] = surface(MLIR).verify_target_options(dict(given))
    except (ValueError, TypeError) as error:
        raise OptionError("cannot use the options of the kernel", str(error).strip().splitlines()[-1]) from error
    return options


FRONT_END = PythonFrontEnd(MlirDefinition)
