"""Import and probe every undocumented name of numba-cuda-mlir that this package uses.

Promise     Either all these names exist with the expected parameters, or ToolchainMissingError says which versions to
            install. No other module of this package imports a module of numba-cuda-mlir.
Method      `surface` has the names that numba-cuda-mlir's `cuda` loads, `compiler` those that a compile loads. `NAMES`
            has the places for the shared dialect, which reads only loaded modules.
Source      numba-cuda-mlir 0.5.4 and 0.6.0: descriptor.py, decorators.py, mlir_compiler.py, mlir_optimization.py,
            tools.py, _whole_function_planners.py.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, lru_cache
from importlib import import_module
from inspect import signature
from types import SimpleNamespace
from typing import Any

from ...errors import ToolchainMissingError
from .configuration import CODE_MODULES, registries_among
from .numbas import Names, Place, loaded

PACKAGE = "numba_cuda_mlir"
HOME = "numba_cuda_mlir.numba_cuda"
"""The copy of numba-cuda in numba-cuda-mlir."""

CUDA = "numba_cuda_mlir.cuda"
DISPATCHERS = "numba_cuda_mlir.descriptor"
"""The module of numba-cuda-mlir's dispatchers, which is loaded in every program that has one."""

FIRST = (0, 5, 4)
"""The first supported version; a later one is supported if it has every part."""

SURFACE = {
    f"{HOME}.types": ("Array", "Integer", "Float", "Complex", "Boolean", "BaseTuple", "Record", "NoneType"),
    f"{HOME}.typing.typeof": ("typeof",),
    f"{HOME}.typing": ("signature",),
    f"{HOME}.cudadrv.devicearray": ("DeviceNDArray", "DeviceRecord"),
    f"{HOME}.args": ("ArgHint", "InOut"),
    f"{HOME}.np.numpy_support": ("as_dtype",),
    f"{HOME}.core.compiler_lock": ("global_compiler_lock",),
    f"{HOME}.cudadrv.devices": ("get_context",),
    f"{HOME}.core.sigutils": ("normalize_signature",),
    DISPATCHERS: ("MLIRDispatcher", "mlir_target", "_compile_arg_types", "_extensions_use_launch_config"),
    f"{PACKAGE}.decorators": ("verify_target_options",),
    f"{PACKAGE}.compiler": ("CompileResult", "CodeLibrary"),
    f"{PACKAGE}.caching": ("MLIRCache", "CachedCompileResult", "NullCache"),
    f"{PACKAGE}._whole_function_planners": ("_planner_registry",),
    f"{PACKAGE}.lowering_utilities.type_conversions": ("to_numba_type",),
}

COMPILER = {
    f"{PACKAGE}.mlir_compiler": ("compile_mlir",),
    f"{PACKAGE}.mlir_optimization": ("optimize", "_nrt_memsys_setup_callback"),
    f"{HOME}.core.errors": ("ForceLiteralArg",),
    f"{HOME}.typing.templates": ("builtin_registry",),
    f"{PACKAGE}.extending": ("typing_registry",),
}

_LINKER = {
    f"{HOME}.utils": ("cached_file_read",),
    f"{HOME}.cuda_paths": ("get_cuda_paths",),
    f"{PACKAGE}.memory_management.nrt": ("get_include",),
}

PARAMETERS = {
    "compile_mlir": ("pyfunc", "return_type", "args", "targetoptions"),
    "optimize": ("cres",),
    "verify_target_options": ("kws",),
}

DISPATCHER_METHODS = (
    "_compile_impl",
    "_compile_public",
    "_propagate_compile_callbacks",
    "_apply_shared_memory_carveout",
)
_DISPATCHER_NAMES = (*DISPATCHER_METHODS, "_can_reuse_overload", "_resolve_overload", "configure", "specialize")

_HOLDERS = {
    "": "extending",
    "lowering": "builtins cmath cpython ctypes cuda cuda_vector_types datetime enum exotic_float half_precision"
    " libdevice math nrt numpy print record struct unicode union vector",
    "typing": "builtin cmath ctypes cuda cuda_vector_types exotic_float externals half_precision libdevice math numpy"
    " struct unicode vector",
    "numba_cuda": "bf16 cudadecl cudaimpl cudamath fp16 fp8 libdevicedecl mathimpl vector_types",
    "numba_cuda._internal": "cuda_bf16 cuda_fp16 cuda_fp8",
    "numba_cuda.core": "base imputils optional",
    "numba_cuda.cpython": "builtins charseq cmathimpl enumimpl iterators mathimpl numbers rangeobj slicing tupleobj"
    " unicode",
    "numba_cuda.misc": "cffiimpl",
    "numba_cuda.np": "arraymath arrayobj npdatetime npyimpl polynomial polynomial.polynomial_core",
    "numba_cuda.typing": "arraydecl builtins cffi_utils cmathdecl collections dictdecl enumdecl listdecl mathdecl"
    " npdatetime npydecl setdecl templates",
}
"""The modules with registries, by the package that contains them."""

_HOLDERS_OF = ("0.5.4", "0.6.0")
"""Versions for which `_HOLDERS` is complete; in others all modules are searched (0.3 ms)."""


@lru_cache(maxsize=1)
def _registries(_modules_loaded: int) -> tuple[Place, ...]:
    if getattr(sys.modules.get(PACKAGE), "__version__", None) not in _HOLDERS_OF:
        return registries_among([each for each in sys.modules.copy() if each.startswith(f"{PACKAGE}.")])
    starts = [(f"{PACKAGE}.{package}.".replace("..", "."), names) for package, names in _HOLDERS.items()]
    return registries_among([start + name for start, names in starts for name in names.split()])


NAMES = Names(
    packages=frozenset({PACKAGE, "numpy"}),
    home=HOME,
    dispatchers=((DISPATCHERS, "MLIRDispatcher"),),
    types=((f"{HOME}.types", "Type"),),
    intrinsics=((f"{HOME}.extending", "_Intrinsic"),),
    signatures=((f"{HOME}.typing.templates", "Signature"),),
    target=(DISPATCHERS, "mlir_target"),
    holders=lambda: _registries(len(sys.modules)),
    models=((f"{PACKAGE}.models", "mlir_data_manager"), (f"{HOME}.datamodel", "default_manager")),
    owned=PACKAGE,
    making=(f"{PACKAGE}.", "numpy", "abc", "builtins", "numbers", "enum"),
    generated=f"{PACKAGE}.",
    code_modules=(
        *(f"{HOME}.{name}" for name in CODE_MODULES),
        *(
            f"{PACKAGE}.{name}"
            for name in (
                "codegen",
                "compiler",
                "linker",
                "lowering_registry",
                "mlir_compiler",
                "mlir_lowering",
                "mlir_optimization",
                "models",
                "tools",
            )
        ),
    ),
)

EXTERNAL = ((f"{PACKAGE}.compiler", "ExternFunction"), (f"{PACKAGE}.device_declarations", "ExternFunction"))
IN_MLIR = f"{PACKAGE}.typing.externals", "ExternMLIRLibraryFunction"
BINDINGS, OF_BINDINGS = "nanobind", f"{PACKAGE}._mlir._mlir_libs."
"""The module of the metaclass of classes in MLIR's bindings, and the prefix of the names of their own modules."""

CONFIG = f"{HOME}.core.config"
EXPERIMENTAL = f"{PACKAGE}.cuda.experimental"


@cache
def surface() -> SimpleNamespace:
    """Import and probe the names that numba-cuda-mlir's `cuda` loads.

    Raises:
        ToolchainMissingError: numba-cuda-mlir is not installed, or of an unsupported version.
    """
    try:
        version = str(import_module(PACKAGE).__version__)
        found = _gathered(SURFACE)
    except (ImportError, AttributeError) as error:
        raise _unsuitable(str(error)) from error
    found.types = import_module(f"{HOME}.types")
    found.cuda = import_module(CUDA)
    found.current_device = lambda: found.get_context().device
    numbers = tuple(int(each) for each in version.split(".")[:3] if each.isdecimal())
    if numbers < FIRST:
        raise _unsuitable(f"it is of version {version}")
    lacking = [name for name in _DISPATCHER_NAMES if not hasattr(found.MLIRDispatcher, name)]
    if lacking:
        raise _unsuitable(f"its dispatcher has no {lacking[0]}")
    return found


@cache
def compiler() -> SimpleNamespace:
    """Import and probe the names that a compile needs.

    Raises:
        ToolchainMissingError: numba-cuda-mlir is of an unsupported version.
    """
    try:
        found = _gathered(COMPILER)
    except (ImportError, AttributeError) as error:
        raise _unsuitable(str(error)) from error
    vars(found).update(vars(surface()))
    for name, wanted in PARAMETERS.items():
        lacking = set(wanted) - set(signature(getattr(found, name)).parameters)
        if lacking:
            raise _unsuitable(f"{name} takes no {min(lacking)}")
    return found


def _gathered(table: Mapping[str, Iterable[str]]) -> SimpleNamespace:
    found = SimpleNamespace()
    for home, names in table.items():
        module = sys.modules.get(home) or import_module(home)
        vars(found).update({name: getattr(module, name) for name in names})
    return found


def _unsuitable(why: str) -> ToolchainMissingError:
    return ToolchainMissingError(
        "cannot use numba-cuda-mlir", why, "install numba-cuda-mlir>=0.5.4: numba-kcache[mlir]"
    )


@cache
def linker_parts() -> SimpleNamespace:
    """Import the names that compile CUDA C++ link inputs.

    Raises:
        ToolchainMissingError: numba-cuda-mlir is of an unsupported version.
    """
    try:
        found = _gathered(_LINKER)
        found.nvrtc = import_module(f"{HOME}.cudadrv.nvrtc")
        assert callable(found.nvrtc.Program)
    except (ImportError, AttributeError) as error:
        raise _unsuitable(str(error)) from error
    return found


def has_planners() -> bool:
    """Check whether a planner is registered, which may rewrite any kernel."""
    return bool(getattr(loaded(f"{PACKAGE}._whole_function_planners", "_planner_registry"), "has_planners", False))


def has_another_compile() -> bool:
    """Check whether a program has replaced the functions with which numba-cuda-mlir's dispatchers compile."""
    home = sys.modules.get(f"{PACKAGE}.mlir_compiler")
    entry = getattr(home, "mlir_compiler_entry", None)
    return home is not None and getattr(getattr(entry, "__wrapped__", entry), "__globals__", None) is not vars(home)


@contextmanager
def assumed_host(cc: tuple[int, int]) -> Iterator[None]:
    """Make this thread compile as if the first device had this compute capability.

    numba-cuda-mlir reads the compute capability of a process's first device once, and links for it regardless of the
    target. Other threads still get the real value.
    """
    from .garbage import uncollected

    tools = import_module(f"{PACKAGE}.tools")
    thread, target = threading.get_ident(), surface().mlir_target
    with surface().global_compiler_lock:
        real = tools.get_gpu_compute_capability

        def assumed(as_type: type = str) -> Any:
            if threading.get_ident() != thread:
                return real(as_type)
            return cc if as_type is tuple else f"sm_{cc[0]}{cc[1]}"

        tools.get_gpu_compute_capability = assumed  # type: ignore[attr-defined]
        try:
            with uncollected():
                target.ensure_initialized()
            yield
        finally:
            tools.get_gpu_compute_capability = real  # type: ignore[attr-defined]
