"""The row of numba-cuda-mlir: its names, options, declarations of external functions, settings.

Promise     No module of numba-cuda-mlir is imported. Where the compiler transforms a function's source text
            (`experimental_ast_transforms`), the key contains that text, and the function is refused if its file has
            changed since it was compiled.
Source      numba-cuda-mlir 0.5.4 and 0.6.0. cudadrv/nvrtc.py `compile`: NVRTC searches the toolkit, then
            `CUDA_NVRTC_EXTRA_SEARCH_PATHS`; not the text's own folder, since the text is passed without one.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import os
import sys
import textwrap
from collections.abc import Iterable, Sequence
from importlib.abc import InspectLoader
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from ...keys import Component, Plain, component
from ...model import LinkInput
from ...model.linkable import callbacks_of, linkable_input
from ...settings import variables
from .code import code_form
from .configuration import CODE_MODULES, code_settings
from .flavour import Extension, Flavour, is_a, loaded, refuse
from .graph import External
from .parts import toolkit_dirs
from .value import OF_NUMPY, AlwaysRefused, Refused

if TYPE_CHECKING:
    from ...headers.roots import HeaderSearch

PACKAGE = "numba_cuda_mlir"
HOME = f"{PACKAGE}.numba_cuda"
"""The copy of numba-cuda in numba-cuda-mlir."""

DISPATCHERS = f"{PACKAGE}.descriptor"
"""The module of numba-cuda-mlir's dispatchers, which is loaded in every program that has one."""

_EXTERNAL = ((f"{PACKAGE}.compiler", "ExternFunction"), (f"{PACKAGE}.device_declarations", "ExternFunction"))
_IN_MLIR = f"{PACKAGE}.typing.externals", "ExternMLIRLibraryFunction"
_BINDINGS, _OF_BINDINGS = "nanobind", f"{PACKAGE}._mlir._mlir_libs."
"""The module of the metaclass of classes in MLIR's bindings, and the prefix of the names of their own modules."""

_OWN = (f"{PACKAGE}.decorators",)
"""Modules whose functions are used as values of options."""


class MlirFlavour(Flavour):
    """numba-cuda-mlir, which lowers to MLIR."""

    packages = frozenset({PACKAGE, "numpy"})
    stateful = OF_NUMPY | {
        *(f"{HOME}.{name}" for name in ("api", "cudadrv.devices", "cudadrv.driver", "cudadrv.runtime", "device_init")),
        f"{PACKAGE}.tools", f"{PACKAGE}.runtime",
    }  # fmt: skip
    home = HOME
    config = f"{HOME}.core.config"
    version, versions = (PACKAGE, "__version__"), ("0.5.4", "0.6.0")
    searched = f"{PACKAGE}."
    dispatchers = ((DISPATCHERS, "MLIRDispatcher"),)
    types = ((f"{HOME}.types", "Type"),)
    intrinsics = ((f"{HOME}.extending", "_Intrinsic"),)
    signatures = ((f"{HOME}.typing.templates", "Signature"),)
    target = DISPATCHERS, "mlir_target"
    owned = PACKAGE
    registry_modules = """
        : extending
        lowering.: builtins cmath cpython ctypes cuda cuda_vector_types datetime enum exotic_float half_precision
        lowering.: libdevice math nrt numpy print record struct unicode union vector
        typing.: builtin cmath ctypes cuda cuda_vector_types exotic_float externals half_precision libdevice math
        typing.: numpy struct unicode vector
        numba_cuda.: bf16 cudadecl cudaimpl cudamath fp16 fp8 libdevicedecl mathimpl vector_types
        numba_cuda._internal.: cuda_bf16 cuda_fp16 cuda_fp8
        numba_cuda.core.: base imputils optional
        numba_cuda.cpython.: builtins charseq cmathimpl enumimpl iterators mathimpl numbers rangeobj slicing
        numba_cuda.cpython.: tupleobj unicode
        numba_cuda.misc.: cffiimpl
        numba_cuda.np.: arraymath arrayobj npdatetime npyimpl polynomial polynomial.polynomial_core
        numba_cuda.typing.: arraydecl builtins cffi_utils cmathdecl collections dictdecl enumdecl listdecl
        numba_cuda.typing.: mathdecl npdatetime npydecl setdecl templates
    """
    models = (f"{PACKAGE}.models", "mlir_data_manager"), (f"{HOME}.datamodel", "default_manager")
    making = (f"{PACKAGE}.", "numpy", "abc", "builtins", "numbers", "enum")
    generated = f"{PACKAGE}."
    code_modules = (
        *(f"{HOME}.{name}" for name in CODE_MODULES),
        *(f"{PACKAGE}.{name}" for name in (
            "codegen", "compiler", "linker", "lowering_registry", "mlir_compiler", "mlir_lowering",
            "mlir_optimization", "models", "tools",
        )),
    )  # fmt: skip
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
        (f"{HOME}.args", "ArgHint InOut"),
        (DISPATCHERS, "MLIRDispatcher mlir_target _compile_arg_types _extensions_use_launch_config"),
        (f"{PACKAGE}.cuda", "as_cuda_array"),
        (f"{PACKAGE}.decorators", "verify_target_options"),
        (f"{PACKAGE}.compiler", "CompileResult CodeLibrary"),
        (f"{PACKAGE}.caching", "MLIRCache CachedCompileResult NullCache"),
        (f"{PACKAGE}._whole_function_planners", "_planner_registry"),
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
        ("verify_target_options", "kws"),
    )  # fmt: skip
    methods = (
        "_compile_impl _compile_public _propagate_compile_callbacks _apply_shared_memory_carveout _can_reuse_overload"
        " _resolve_overload configure specialize"
    )
    device_readers = ((f"{PACKAGE}.tools", "get_gpu_compute_capability"),)
    array_codes = ("u8", "u8", "i8")
    array_letters = "aa0se"  # of records the strides are in bytes
    packs_all = True
    name = "numba-cuda-mlir"
    hint = "pip install 'numba-kcache[mlir]', which has numba-cuda-mlir>=0.5.4"

    def check_version(self) -> None:
        """Refuse versions before 0.5.4; a later one is supported if it has every part."""
        version = str(loaded(*self.version))
        if tuple(int(each) for each in version.split(".")[:3] if each.isdecimal()) < (0, 5, 4):
            raise self.unsuitable(f"is of version {version}")

    def device_answer(self, cc: tuple[int, int], as_type: type = str, **_named: Any) -> Any:
        """The compute capability, as text or numbers."""
        return cc if as_type is tuple else f"sm_{cc[0]}{cc[1]}"

    def fill_registries(self, parts: Any) -> None:
        """Make numba-cuda-mlir fill its registries, as its first compile does."""
        parts.mlir_target.ensure_initialized()

    def read_options(
        self, dispatcher: Any, options: dict[str, Any], links: Iterable[Any], extensions: Any, *, is_kernel: bool
    ) -> Iterable[Any]:
        """Complete the options of a dispatcher in place, and return its link inputs.

        Callbacks of a kernel's link inputs are not part of the code: its own dispatcher runs them.

        Raises:
            AlwaysRefused: Its code depends on the launch configuration, or its text changed since it was compiled.
        """
        if not is_kernel:  # a device function's first compile sets these: the key is the same before and after it
            options |= {"device": True, "lto": False, "_lto_explicit": None}
        inline = options.get("inline")
        if callable(inline) and inline.__module__ in _OWN and loaded(inline.__module__, inline.__qualname__) is inline:
            # The package's own default: its name says all, because the package's version is in the key.
            options["inline"] = f"{inline.__module__}.{inline.__qualname__}"
        if options.get("experimental_ast_transforms"):
            options["text"] = transformed_text(dispatcher.py_func)
        uses_launch = loaded(DISPATCHERS, "_extensions_use_launch_config")
        if extensions and uses_launch is not None and uses_launch(extensions):
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
        home, content = value.__module__, vars(value).values()
        is_own = home.startswith(_OF_BINDINGS) and loaded(home, value.__qualname__) is value
        members = {type(getattr(each, "fget", each)) for each in content} - {property}
        is_native = FunctionType not in members and any(each.__module__ == _BINDINGS for each in members)
        return ("class of MLIR", home, value.__qualname__) if is_own and is_native else None

    def external(self, value: Any) -> External | None:
        """The declaration in a descriptor of `declare_device`, or a function in MLIR; None for other objects.

        Raises:
            AlwaysRefused: It is a descriptor, but its declaration cannot be read.
        """
        if is_a(value, _IN_MLIR):
            return External(value.name, str(value.sig), str(value.library.source), False, ())
        if not is_a(value, *_EXTERNAL):
            return None
        try:
            return External(value.name, str(value.sig), str(value.abi), bool(value.use_cooperative), tuple(value.link))
        except (AttributeError, TypeError):
            raise AlwaysRefused("its declaration cannot be read") from None

    def code_environment(self, *, has_lines: bool) -> tuple[Component, ...]:
        """Read the settings by name; () while numba-cuda-mlir is not loaded.

        Raises:
            Refused: A planner is registered; or a setting names another LLVM, which cannot be read.
        """
        config = sys.modules.get(self.config)
        if config is None:
            return ()
        if has_planners():
            raise Refused("a whole-function planner is registered, which may rewrite any kernel")
        llvm = variables(("LIBLLVM7",)).get("LIBLLVM7", "")
        return (component("numba settings", {**code_settings(config), "LIBLLVM7": llvm and _build_of(llvm)}),)

    def linked_headers(self, links: Sequence[LinkInput], *, has_lines: bool) -> HeaderSearch | None:
        """Make the search for headers of CUDA C++ among these link inputs.

        Args:
            links: Link inputs of the kernel and its callees.
            has_lines: Whether line tables are compiled in.

        Raises:
            Refused: They cannot be keyed.
        """
        texts = [*dict.fromkeys(each._replace(folder="") for each in links if each.kind == "cu")]
        if not texts:
            return None
        from .files import check_texts

        if not check_texts(texts) and not has_lines:
            return None
        from ...headers.roots import HeaderSearch

        extra = filter(None, str(self.setting("CUDA_NVRTC_EXTRA_SEARCH_PATHS") or "").split(":"))
        folders = tuple(map(os.path.abspath, extra))
        codes = tuple(each.data for each in texts)
        toolkit = "mlir_include_dirs", functools.partial(toolkit_dirs, self)
        return HeaderSearch(codes, folders, toolkit, is_working=True, has_lines=has_lines, is_edited=False)


MLIR = MlirFlavour()


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
    try:
        status = os.stat(path)
        return _build_as(path, (status.st_ino, status.st_size, status.st_mtime_ns))
    except OSError as error:
        raise Refused(f"LIBLLVM7={path}: {error.strerror}") from None


@functools.lru_cache(maxsize=4)
def _build_as(path: str, _status: tuple[int, ...]) -> str:
    from ...toolchain.build_id import build_of

    return build_of(path)


def has_planners() -> bool:
    """Check whether a planner is registered, which may rewrite any kernel."""
    return bool(getattr(loaded(f"{PACKAGE}._whole_function_planners", "_planner_registry"), "has_planners", False))


def has_another_compile() -> bool:
    """Check whether a program has replaced the functions with which numba-cuda-mlir's dispatchers compile."""
    home = sys.modules.get(f"{PACKAGE}.mlir_compiler")
    entry = getattr(home, "mlir_compiler_entry", None)
    return home is not None and getattr(getattr(entry, "__wrapped__", entry), "__globals__", None) is not vars(home)


# -- text ---------------------------------------------------------------------------------------------------------


def transformed_text(function: Any) -> str:
    """The text of a function that a transform will read, from the present content of its file.

    Raises:
        AlwaysRefused: It cannot be read, or was edited since the function was compiled.
    """
    code = function.__code__
    try:
        linecache.checkcache(code.co_filename)
        text = textwrap.dedent(inspect.getsource(function))
        whole = "".join(linecache.getlines(code.co_filename, function.__globals__))
        made = InspectLoader.source_to_code(whole, code.co_filename)  # compiled as by an import, not run
    except (OSError, TypeError, SyntaxError, ValueError):
        raise AlwaysRefused("its text cannot be read, and a text transform reads it") from None
    if not any(_is_same(each, code) for each in _nested(made)):
        raise AlwaysRefused("its file was edited after it was imported, and a text transform reads it again")
    return text


def _is_same(one: CodeType, other: CodeType) -> bool:
    is_same_place = one.co_firstlineno == other.co_firstlineno and one.co_name == other.co_name
    return is_same_place and _form(one) == _form(other)


def _nested(code: CodeType) -> list[CodeType]:
    found = [each for each in code.co_consts if isinstance(each, CodeType)]
    return found + [inner for each in found for inner in _nested(each)]


def _form(code: CodeType) -> Any:
    return code_form(code.replace(co_flags=code.co_flags & 0xF), with_lines=False)
