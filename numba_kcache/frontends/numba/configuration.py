"""The state of a Numba that enters the key: its settings, functions that a program has replaced, and registries.

Promise     All settings count, except those in a list of harmless ones. One key on two machines that differ in cores,
            CPU, home and toolkit folder. Of the modules that take part in compiling, a function or method that is not
            the compiler's own is found if it is a Python function; this package's own are left out.
Method      A setting counts by its value in Numba's configuration, which has defaults and what the program set; an
            environment variable that is not in it, by its text.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterable, Mapping
from types import FunctionType
from typing import Any

from ...keys import Plain
from ...settings import variables_starting
from .value import Trust, plain_setting

_STARTS = "NUMBA_", "LLVMLITE_"

_HARMLESS = frozenset(name for names in (
    # it prints, logs, warns or measures
    """ALWAYS_WARN_UNINIT_VAR ANNOTATE CAPTURED_ERRORS CHROME_TRACE COLOR_SCHEME CUDA_DUMP_NVVM CUDA_LOG_API_ARGS
    CUDA_LOG_LEVEL CUDA_LOG_SIZE CUDA_LOW_OCCUPANCY_WARNINGS CUDA_MLIR_DUMP_MODERN_BRIDGE_MLIR CUDA_MLIR_DUMP_NVVM
    CUDA_MLIR_ICE_FULL_TB CUDA_VERBOSE_JIT_LOG CUDA_WARN_ON_IMPLICIT_COPY DEBUG_ARRAY_OPT DEBUG_ARRAY_OPT_STATS
    DEBUG_CACHE DEBUG_FRONTEND DEBUG_INLINE_CLOSURE DEBUG_PRINT_AFTER DEBUG_PRINT_BEFORE DEBUG_PRINT_WRAP
    DEBUG_TYPEINFER DEVELOPER_MODE DIFF_IR DISABLE_ERROR_MESSAGE_HIGHLIGHTING DISABLE_PERFORMANCE_WARNINGS
    DUMP_ANNOTATION DUMP_ASSEMBLY DUMP_BYTECODE DUMP_CFG DUMP_FUNC_OPT DUMP_HTML DUMP_IR DUMP_LLVM DUMP_OPTIMIZED
    DUMP_SSA FULL_TRACEBACKS HIGHLIGHT_DUMPS HTML JIT_COVERAGE LLVM_PASS_TIMINGS PARALLEL_DIAGNOSTICS SHOW_HELP TRACE
    USE_TYPEGUARD""",
    # it describes the host, or code for the host
    """CPU_FEATURES CPU_NAME DEFAULT_NUM_THREADS DISABLE_INTEL_SVML ENABLE_AVX ENABLE_PROFILING ENABLE_SYS_MONITORING
    GDB_BINARY LLVMLITE_DIST_TEST LLVMLITE_MEMORY_MANAGER NUM_THREADS RUNNING_UNDER_PROFILER THREADING_LAYER
    THREADING_LAYER_PRIORITY USE_LLVMLITE_MEMORY_MANAGER USING_SVML _HAVE_YAML""",
    # it concerns caches, the driver or launches
    """CACHE_DIR CACHE_LOCATOR_CLASSES CUDA_ARRAY_INTERFACE_SYNC CUDA_DEALLOCS_COUNT CUDA_DEALLOCS_RATIO CUDA_DRIVER
    CUDA_MAX_PENDING_DEALLOCS_COUNT CUDA_MAX_PENDING_DEALLOCS_RATIO CUDA_MEMORY_MANAGER CUDA_MLIR_CACHE_DIR
    CUDA_MLIR_OLD_DISPATCHER_RETAIN_LIMIT CUDA_PER_THREAD_DEFAULT_STREAM CUDA_TEST_BIN_DIR CUDA_TEST_WHEEL_ONLY
    DISABLE_CUDA FUNCTION_CACHE_SIZE""",
    # a folder of headers: the content of those that are read counts
    "CUDA_INCLUDE_PATH",
    # the target of PTX if none is named: here one is
    "CUDA_DEFAULT_PTX_CC",
    # it counts under another name: CUDA_DEBUGINFO_DEFAULT, and the decorator's option `opt`
    "CUDA_DEBUGINFO OPT",
) for name in names.split())  # fmt: skip


def code_variables(known: Mapping[str, Any]) -> dict[str, Plain]:
    """Read the environment variables that count, without those whose value is in a configuration (`known`)."""
    return {
        name: text
        for name, text in variables_starting(_STARTS).items()
        if not name.startswith("NUMBA_KCACHE_")
        and name not in known
        and _HARMLESS.isdisjoint((name, own := name.removeprefix("NUMBA_")))
        and own not in known
    }


_AS_THEY_ARE = (bool, str, type(None))
"""Types of most settings, for which no function is called."""


def code_settings(config: Any) -> dict[str, Plain]:
    """Read the settings that count: of Numba's module `config`, of the environment, and of llvmlite as it is loaded.

    Numba reads changed environment variables when it starts to compile. It is made to do so here, so that key and code
    have the same settings.
    """
    try:
        config.reload_config()
    except Exception:  # an invalid variable: the compilation reports it, a look-up must not fail
        pass
    known = vars(config)
    found: dict[str, Plain] = {
        name: value if type(value := known[name]) in _AS_THEY_ARE else plain_setting(value)
        for name in _counting(tuple(known))
    }
    llvmlite = sys.modules.get("llvmlite")
    found |= {name: value for name, value in vars(llvmlite).items() if type(value) is bool} if llvmlite else {}
    return found | code_variables(known)


@functools.lru_cache(maxsize=4)
def _counting(names: tuple[str, ...]) -> list[str]:
    return sorted(name for name in names if name.isupper() and name.removeprefix("NUMBA_") not in _HARMLESS)


# -- replaced functions -----------------------------------------------------------------------------------------------

CODE_MODULES = (
    "cgutils", "compiler", "core.base", "core.callconv", "core.codegen", "core.compiler", "core.compiler_machinery",
    "core.interpreter", "core.typed_passes", "core.typeinfer", "core.untyped_passes", "cudadrv.nvvm",
    "cudadrv.nvrtc", "datamodel.manager", "datamodel.models", "debuginfo", "descriptor", "lowering", "target",
    "typing.context", "typing.templates",
)  # fmt: skip
"""Modules of `Dialect.code_modules` that both Numbas have in their `home`."""

_OWN = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep


_sound: dict[str, list[tuple[Mapping[str, Any], list[Any]]]] = {}
"""The namespaces of each module and of the classes defined in it, with their values when no function was replaced."""


def replaced(modules: Iterable[str], trust: Trust) -> list[tuple[str, FunctionType]]:
    """List the replaced functions in those of these modules that are loaded, with their full names."""
    found, files = list[tuple[str, FunctionType]](), dict[str, bool]()
    own_folders = (*trust.folders, "<frozen ", _OWN)
    for own in modules:
        module = sys.modules.get(own)
        known = _sound.get(own)
        if module is None or (known and known[0][0] is module.__dict__ and all([*a.values()] == b for a, b in known)):
            continue
        types = [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == own]
        spaces = [(own, vars(module)), *((f"{own}.{each.__qualname__}", vars(each)) for each in types)]
        here = list[tuple[str, FunctionType]]()
        for place, space in spaces:
            for name, value in space.items():  # over a thousand: no call of a function of this package for each
                if isinstance(value, (classmethod, staticmethod)):
                    value = value.__func__
                elif isinstance(value, property):
                    value = value.fget
                if type(value) is not FunctionType or (path := value.__code__.co_filename).startswith(own_folders):
                    continue
                home = str(value.__globals__.get("__name__")) if path[:1] == "<" else ""
                if files.get(path) or home.startswith("namedtuple_"):
                    continue
                if not _is_trusted(value, trust):
                    here.append((f"{place}.{name}", value))
                elif not path.startswith("<"):  # generated code is in no file
                    files[path] = True
        found += here
        if not here:
            _sound[own] = [(space, [*space.values()]) for _place, space in spaces]
    return found


def _is_trusted(function: FunctionType, trust: Trust) -> bool:
    path, home = function.__code__.co_filename, str(function.__globals__.get("__name__"))
    if path.startswith("<"):  # generated code is in no file
        return trust[home]
    return trust.has_file(path) or f"{os.sep}site-packages{os.sep}cuda{os.sep}" in path


# -- registries -------------------------------------------------------------------------------------------------------

_REGISTRIES = frozenset((
    "registry", "typing_registry", "lowering_registry", "builtin_registry", "target_registry", "impl_registry",
))  # fmt: skip


def registries_among(modules: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """List the registries in those of these modules that are loaded."""
    found = []
    for name in modules:
        module = sys.modules.get(name)
        if module is not None and not (names := vars(module)).keys().isdisjoint(_REGISTRIES):
            found += [(name, each) for each in names.keys() & _REGISTRIES if hasattr(names[each], "functions")]
    return tuple(sorted(found))
