"""numba-cuda-mlir: its row in the table of what differs, the definition of a kernel, and its artifacts.

Promise     A kernel's options are those of numba-cuda-mlir's `cuda.jit`, and mean the same. Omitted arguments have
            their defaults. Annotated parameters, and dispatchers with signatures, have the types written there. `chip=`
            and `cc=` mean the same as `arch=`, whatever device is present.
Not here    The code shared with Numba's kernels (definition), packing (arguments, mlir_arguments), compiling
            (mlir_compile), and the work of its own dispatcher (mlir_dispatcher).
Source      numba-cuda-mlir 0.5.4 and 0.6.0. cudadrv/nvrtc.py `compile`: NVRTC searches the toolkit, then
            `CUDA_NVRTC_EXTRA_SEARCH_PATHS`; not the text's own folder, since the text is passed without one.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType
from typing import Any

from ...engine import Session
from ...errors import OptionError
from ...keys import Component, Plain, component
from ...launch.launcher import LoadedKernel
from ...model import Choice, Target, choose_for_device, parse_target
from ...model.linkable import callbacks_of, linkable_input
from ...settings import variables
from .. import Variant
from . import (
    CODE_MODULES,
    STATEFUL,
    Declared,
    Extension,
    External,
    Flavour,
    code_settings,
    is_a,
    loaded,
    refuse,
    surface,
)
from .arguments import Signature, TypedLauncher, Values
from .definition import CO_VARARGS, PythonDefinition, PythonFrontEnd, PythonResolutions
from .fingerprint import OF_NUMPY, AlwaysRefused, Refused
from .mlir_arguments import MlirArraySlot, array_type_of, layout_of, other_codes, other_slot

PACKAGE = "numba_cuda_mlir"


HOME = f"{PACKAGE}.numba_cuda"
"""The copy of numba-cuda in numba-cuda-mlir."""


DISPATCHERS = f"{PACKAGE}.descriptor"
"""The module of numba-cuda-mlir's dispatchers, which is loaded in every program that has one."""


_EXTERNAL = ((f"{PACKAGE}.compiler", "ExternFunction"), (f"{PACKAGE}.device_declarations", "ExternFunction"))


_IN_MLIR = f"{PACKAGE}.typing.externals", "ExternMLIRLibraryFunction"


_BINDINGS, _OF_BINDINGS = "nanobind", f"{PACKAGE}._mlir._mlir_libs."
"""The module of the metaclass of classes in MLIR's bindings, and the prefix of the names of their own modules."""


class MlirFlavour(Flavour):
    """numba-cuda-mlir, which lowers to MLIR."""

    kind = room = "mlir"
    packages = frozenset({PACKAGE, "numpy"})
    stateful = OF_NUMPY | {
        *(f"{HOME}.{name}" for name in STATEFUL),
        f"{PACKAGE}.tools", f"{PACKAGE}.runtime",
    }  # fmt: skip
    home = HOME
    config = f"{HOME}.core.config"
    searched = (f"{PACKAGE}.",)
    dispatchers = ((DISPATCHERS, "MLIRDispatcher"),)
    own_cache = "MLIRCache"
    types = ((f"{HOME}.types", "Type"),)
    intrinsics = ((f"{HOME}.extending", "_Intrinsic"),)
    signatures = ((f"{HOME}.typing.templates", "Signature"),)
    target = DISPATCHERS, "mlir_target"
    owned = PACKAGE
    models = (f"{PACKAGE}.models", "mlir_data_manager"), (f"{HOME}.datamodel", "default_manager")
    code_modules = (
        *(f"{HOME}.{name}" for name in CODE_MODULES),
        *(f"{PACKAGE}.{name}" for name in (
            "codegen", "compiler", "linker", "lowering_registry", "mlir_compiler", "mlir_lowering",
            "mlir_optimization", "models", "tools",
        )),
    )  # fmt: skip
    named_modules = f"{PACKAGE}.cuda", f"{HOME}.stubs", f"{PACKAGE}.cuda.libdevice"
    without_code = frozenset((
        "cache", "profile_jit", "print_before_all", "print_after_all", "dump", "dump_numba_ir", "dump_mlir",
        "dump_cubin", "dump_llvmir", "dump_ptx", "dump_ast", "dump_ast_after_all", "signature",
        "annotations_as_signatures", "fast_math", "_compile_output", "__launch_config__",
        "chip", "cc",  # the key contains the target already
    ))  # fmt: skip
    distributions = ("numba-cuda-mlir", "numpy", "cuda-core")
    runtime = f"{HOME}:cudadevrt"
    surface_parts = (
        (PACKAGE, ""),
        (DISPATCHERS, "MLIRDispatcher mlir_target _compile_arg_types _extensions_use_launch_config"),
        (f"{PACKAGE}.cuda", "as_cuda_array"),
        (f"{PACKAGE}.decorators", "mlir_jit"),
        (f"{PACKAGE}.compiler", "CompileResult CodeLibrary"),
        (f"{PACKAGE}.caching", "MLIRCache CachedCompileResult NullCache"),
        (f"{PACKAGE}._whole_function_planners", "_planner_registry"),  # see has_planners
        (f"{PACKAGE}.lowering_utilities.type_conversions", "to_numba_type"),
    )
    compiler_parts = (
        (f"{PACKAGE}.mlir_compiler", "compile_mlir"),
        (f"{PACKAGE}.mlir_optimization", "optimize _nrt_memsys_setup_callback"),
        (f"{HOME}.core.errors", "ForceLiteralArg"),
        (f"{HOME}.utils", "cached_file_read"),
        (f"{HOME}.cudadrv.nvrtc", "Program"),
    )
    linker_parts = (
        (f"{HOME}.cuda_paths", "get_cuda_paths"),
        (f"{PACKAGE}.memory_management.nrt", "get_include"),
    )
    parameters = (
        ("compile_mlir", "pyfunc return_type args targetoptions"),
        ("optimize", "cres"),
    )  # fmt: skip
    methods = (
        "_compile_impl _compile_public _propagate_compile_callbacks _apply_shared_memory_carveout _can_reuse_overload"
        " _resolve_overload configure specialize"
    )
    device_readers = ((f"{PACKAGE}.tools", "get_gpu_compute_capability"),)
    array_codes = ("u8", "u8", "i8")
    array_letters = "aa0se"  # of records the strides are in bytes
    links_itself = is_complex_whole = is_misreading = True
    name = "numba-cuda-mlir"
    hint = "pip install 'numba-kcache[mlir]', which has numba-cuda-mlir>=0.5.4"
    oldest = 0, 5, 4

    array_slot, other_codes, other_slot = MlirArraySlot, other_codes, other_slot
    layout_of = staticmethod(layout_of)

    def default_options(self, given: Mapping[str, Any], *, debug: Any, opt: bool, known: Any = None) -> dict[str, Any]:
        """The observed options of a kernel or device function, with given ones that change nothing else."""
        if given.keys() - _PLAIN_OPTIONS:
            raise Refused("only numba-cuda-mlir fills in its options")
        return {**known, **given}

    def observed_options(self) -> dict[str, Any]:
        """The options of a kernel that is given none."""
        found = dict(_declare(_default, {}).targetoptions)
        return {**found, "inline": _of_package(found["inline"])}

    def read_options(
        self, dispatcher: Any, options: dict[str, Any], links: Iterable[Any], *, is_kernel: bool
    ) -> Iterable[Any]:
        """Complete the options of a dispatcher in place, and return its link inputs.

        Callbacks of a kernel's link inputs are not part of the code: its own dispatcher runs them.

        Raises:
            AlwaysRefused: Its code depends on its source text, or on the launch configuration.
        """
        if not is_kernel:  # a device function's first compile sets these: the key is the same before and after it
            options |= {"device": True, "lto": False, "_lto_explicit": None}
        if "inline" in options:
            options["inline"] = _of_package(options["inline"])
        if options.get("experimental_ast_transforms"):
            raise AlwaysRefused("experimental_ast_transforms compiles its source text, which may run any code")
        uses_launch = loaded(DISPATCHERS, "_extensions_use_launch_config")
        if uses_launch is not None and uses_launch(dispatcher.targetoptions.get("extensions") or ()):
            raise AlwaysRefused("its extensions read the launch configuration")
        return [_without_callbacks(each) for each in links] if is_kernel else links

    def type_form(self, value: Any, extension: Extension = refuse) -> Plain | None:
        """The form of a Numba type, a signature, or a class of MLIR's bindings (its name); None for other objects.

        Raises:
            Refused: The type belongs to an extension, or refers to an object of this process (`value.Refused`).
        """
        kind = type(value)
        if kind.__module__ != _BINDINGS or not isinstance(value, type):
            return super().type_form(value, extension)
        home, members = value.__module__, [getattr(each, "fget", each) for each in vars(value).values()]
        is_own = home.startswith(_OF_BINDINGS) and loaded(home, value.__qualname__) is value
        is_patched = any(isinstance(each, FunctionType) for each in members)
        return ("class of MLIR", home, value.__qualname__) if is_own and not is_patched else None

    def external(self, value: Any) -> External | None:
        """The declaration in a descriptor of `declare_device`, or a function in MLIR; None for other objects.

        Raises:
            AlwaysRefused: It is a descriptor, but its declaration cannot be read.
        """
        if is_a(value, _IN_MLIR):
            return External(value.name, value.sig, str(value.library.source), False, ())
        if not is_a(value, *_EXTERNAL):
            return None
        try:
            return External(value.name, value.sig, str(value.abi), bool(value.use_cooperative), tuple(value.link))
        except (AttributeError, TypeError):
            raise AlwaysRefused("its declaration cannot be read") from None

    def code_environment(self, *, has_lines: bool) -> tuple[Component, ...]:
        """Read the settings by name.

        Raises:
            Refused: A planner is registered; or a setting names another LLVM, which cannot be read.
        """
        if has_planners():
            raise Refused("a whole-function planner is registered, which may rewrite any kernel")
        llvm = variables(("LIBLLVM7",)).get("LIBLLVM7", "")
        settings = code_settings(sys.modules[self.config]) | {"LIBLLVM7": llvm and _build_of(llvm)}
        return (component("numba settings", settings),)


MLIR = MlirFlavour()


def _of_package(inline: Any) -> Any:
    """The name of the package's own default of an option, whose version is in the key; other values unchanged."""
    home, name = f"{PACKAGE}.decorators", getattr(inline, "__qualname__", "")
    return f"{home}.{name}" if callable(inline) and loaded(home, name) is inline else inline


class _Linked:
    """A `LinkableCode` object without its callbacks."""

    def __init__(self, item: Any) -> None:
        self.name, self.data = item.name, item.data


def _without_callbacks(item: Any) -> Any:
    if linkable_input(item) is None or not callbacks_of(item):
        return item
    class_name = next(each.__name__ for each in type(item).__mro__ if each.__module__.startswith(HOME))
    return type(class_name, (_Linked,), {})(item)  # `linkable_input` tells the kind by the name of the class


def _build_of(path: str) -> str:
    from ...toolchain.locating import build_of

    try:
        return build_of(path)
    except OSError as error:
        raise Refused(f"LIBLLVM7={path}: {error.strerror}") from None


def has_planners() -> bool:
    """Check whether a planner is registered, which may rewrite any kernel."""
    return bool(getattr(loaded(f"{PACKAGE}._whole_function_planners", "_planner_registry"), "has_planners", False))


def has_another_compile() -> bool:
    """Check whether a program has replaced the functions with which numba-cuda-mlir's dispatchers compile."""
    home = sys.modules.get(f"{PACKAGE}.mlir_compiler")
    entry = getattr(home, "mlir_compiler_entry", None)
    return home is not None and getattr(getattr(entry, "__wrapped__", entry), "__globals__", None) is not vars(home)


DECORATOR_OPTIONS = (
    "debug", "opt", "opt_level", "lineinfo", "fastmath", "inline", "forceinline", "link", "lto", "max_registers",
    "launch_bounds", "shared_memory_carveout", "extensions", "ptxas_options", "capi", "features", "_nrt",
    "experimental_ast_transforms", "abi",
)  # fmt: skip
"""Options of numba-cuda-mlir's `cuda.jit` for a kernel."""

_PLAIN_OPTIONS = {"device", "fastmath", "forceinline", "lineinfo", "max_registers"}
"""Options that `cuda.jit` takes over as they are given."""


def _default() -> None:
    """A function to which `cuda.jit` gives no options."""


class MlirDefinition(PythonDefinition):
    """A Python function or a dispatcher of numba-cuda-mlir's `cuda.jit` as a kernel.

    Attributes:
        asked: The target in the dispatcher's options; () for none.
    """

    kind = MLIR.kind
    flavour = MLIR
    decorator_options = DECORATOR_OPTIONS
    takes_cluster = True

    def __init__(self, thing: Any, options: Mapping[str, Any]) -> None:
        super().__init__(thing, options)
        self.asked = _asked_targets(thing)
        self.defaults: Values = self.function.__defaults__ or ()
        self._annotated: tuple[Any, ...] | None = None

    def native(self, device: Target) -> Target:
        """The device's compute capability without architecture-specific features, as numba-cuda-mlir compiles."""
        return device.plain

    def declare(self) -> Declared:
        """Fill in the options as `cuda.jit` does."""
        return _declare(self.subject, self.given)

    # -- types --------------------------------------------------------------------------------------

    def complete(self, arguments: Values) -> Values:
        """Add the defaults of omitted arguments."""
        lacking = self.function.__code__.co_argcount - len(arguments)
        return arguments + self.defaults[-lacking:] if 0 < lacking <= len(self.defaults) else arguments

    def variant(self, arguments: Sequence[Any]) -> Variant:
        """Type the arguments; None if no signature fits, or an extension changes them before they are typed."""
        if self.declared.targetoptions.get("extensions"):
            return None
        return super().variant(arguments)

    def types_of(self, arguments: Sequence[Any]) -> Signature:
        """Type the arguments of a launch as numba-cuda-mlir does; arrays that it does not know, by their memory."""
        code, parts = self.function.__code__, surface(MLIR)
        found = [type_of(each) for each in arguments]
        for position, kind in enumerate(self.annotated):
            if kind is not None and position < len(found):
                found[position] = kind
        if code.co_flags & CO_VARARGS:
            rest = found[code.co_argcount :]
            found[code.co_argcount :] = [parts.types.StarArgTuple.from_types(rest)]
        return Signature(found)

    @property
    def annotated(self) -> tuple[Any, ...]:
        """The type in each parameter's annotation; None if that is not a type."""
        if self._annotated is None:
            annotations, code = self.function.__annotations__, self.function.__code__
            names = code.co_varnames[: code.co_argcount] if annotations else ()
            found = [_annotation(self.function, name) if name in annotations else None for name in names]
            self._annotated = tuple(found) if any(each is not None for each in found) else ()
        return self._annotated

    # -- launches -----------------------------------------------------------------------------------

    def chosen(self, fixed: Sequence[Signature], types: Any) -> Variant:
        """The signature for these types; None if the dispatcher has to report the error."""
        like = [each for each in fixed if all(map(self.thing._can_reuse_overload, each, types))]
        best = like[:1] or self.thing._resolve_overload(types, allow_unsafe=True)[0]
        return Signature(best[0]) if len(best) == 1 else None

    def casts(self, variant: Any) -> Sequence[bool]:
        """Tell for each argument whether it is converted to its type: that of its annotation, or of a signature."""
        pairs = zip(super().casts(variant), (*self.annotated, *[None] * len(variant)), strict=False)
        return [is_cast or annotated is not None for is_cast, annotated in pairs]

    def is_launched_by_dispatcher(self, known: Mapping[str, Any]) -> bool:
        """Check whether the dispatcher's launch is needed: it sets up what callbacks need."""
        return super().is_launched_by_dispatcher(known) or bool(known.get("needs_setup"))

    def launcher(self, loaded: LoadedKernel, variant: Variant, **more: Any) -> TypedLauncher | None:
        """Make the launcher for arguments of these types; None if the dispatcher's launch is needed."""
        made = super().launcher(loaded, variant, **more)
        if made is not None and PACKAGE in sys.modules and not loaded.module.is_watched_in_mlir:
            loaded.module.watch_context(surface(MLIR).get_context().modules)
            loaded.module.is_watched_in_mlir = True
        return made


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
    if kind is tuple or (isinstance(value, tuple) and hasattr(kind, "_fields")):
        return parts.types.BaseTuple.from_types([type_of(each) for each in value], kind)
    return array_type_of(MLIR, value) or parts.typeof(value)


def _annotation(function: Any, name: str) -> Any:
    parts, given = surface(MLIR), function.__annotations__[name]
    if isinstance(given, parts.types.Type):
        return given
    try:
        return parts.to_numba_type(given)
    except (TypeError, NotImplementedError):  # as numba-cuda-mlir does: no type
        return None


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

    def block_size_by_front_end(self, arguments: Values, shared_bytes: int) -> int:
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
    """Fill in the options as `cuda.jit` does, by it; those of a dispatcher stay where none is given."""
    parts = surface(MLIR)
    is_dispatcher = isinstance(function, parts.MLIRDispatcher)
    plain = function.py_func if is_dispatcher else function
    try:
        made = parts.mlir_jit(annotations_as_signatures=False, **given)(plain)  # without a compile
    except (ValueError, TypeError) as error:
        raise OptionError("cannot use the options of the kernel", str(error).strip().splitlines()[-1]) from error
    options = {**made.targetoptions, "annotations_as_signatures": True}
    if is_dispatcher:
        derived = {"opt": ("opt_level",), "opt_level": (), "lto": ("_lto_explicit",)}
        changed = {each for name in given for each in (name, *derived.get(name, ()))}
        options = {**function.targetoptions, **{name: options[name] for name in changed}}
        options.pop("chip", None)  # the target is passed separately; a first compile writes the device's here
    return Declared(plain, options)


FRONT_END = PythonFrontEnd(MlirDefinition)
