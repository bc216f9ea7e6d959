"""Every private name of Numba that the compilation of a kernel needs, gathered and probed once.

Promise     Either all of them are there and take what they are given here, or ToolchainMissingError says which
            versions would do. Nothing else in the package imports a private name of Numba to compile.
Ground      numba-cuda 0.30.4: `_Kernel.__init__` and `CUDACodeLibrary` are what is followed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

from ...errors import ToolchainMissingError

_COMPILE_PARAMETERS = {
    "pyfunc", "return_type", "args", "debug", "lineinfo", "forceinline", "fastmath", "nvvm_options", "cc",
    "max_registers", "lto",
}  # fmt: skip
_DEVICE_USERS = ("dispatcher", "compiler", "api")
"""Modules of `numba.cuda` that ask the current device for its compute capability while they compile."""

_TEMPLATE_CACHES = ("_impl_cache", "_compiled_overloads", "_inline_overloads", "_overload_cache")


class Internals(NamedTuple):
    """Numba's own parts, under the names they have there."""

    compile_cuda: Any
    kernel_fixup: Any
    set_launch_bounds: Any
    global_compiler_lock: Any
    cuda_target: Any
    get_cudalib: Any
    get_cuda_paths: Any
    config: Any
    types: Any
    CUDADispatcher: Any
    NRT_LIBRARY: Any
    NRT_functions: Any
    reshape_funcs: Any
    folder: str
    device_users: tuple[Any, ...]


@cache
def internals() -> Internals:
    """The names, imported and probed.

    Raises:
        ToolchainMissingError: Numba is absent, or of a version whose insides are others.
    """
    try:
        found = _gathered()
    except (ImportError, AttributeError) as error:
        raise _unsuitable(str(error)) from error
    from inspect import signature

    lacking = _COMPILE_PARAMETERS - set(signature(found.compile_cuda).parameters)
    if lacking:
        raise _unsuitable(f"compile_cuda takes no {', '.join(sorted(lacking))}")
    return found


def _gathered() -> Internals:
    import importlib

    import numpy

    if not hasattr(numpy, "row_stack"):
        raise ImportError(f"NumPy {numpy.__version__} is too new for numba-cuda (np.row_stack is gone): use numpy<2.5")
    compiler, dispatcher, nvvm, target, nrt, libs, paths, lock, config, types = (
        importlib.import_module(f"numba.cuda.{name}")
        for name in (
            "compiler", "dispatcher", "cudadrv.nvvm", "descriptor", "memory_management.nrt", "cudadrv.libs",
            "cuda_paths", "core.compiler_lock", "core.config", "types",
        )
    )  # fmt: skip
    return Internals(
        compiler.compile_cuda,
        compiler.kernel_fixup,
        nvvm.set_launch_bounds,
        lock.global_compiler_lock,
        target.cuda_target,
        libs.get_cudalib,
        paths.get_cuda_paths,
        config,
        types,
        dispatcher.CUDADispatcher,
        nrt.NRT_LIBRARY,
        tuple(dispatcher._Kernel.NRT_functions),
        tuple(dispatcher.reshape_funcs),
        os.path.dirname(str(dispatcher.__file__)),
        tuple(importlib.import_module(f"numba.cuda.{name}") for name in _DEVICE_USERS),
    )


def _unsuitable(why: str) -> ToolchainMissingError:
    return ToolchainMissingError(
        "cannot compile a Numba kernel", why, "install numba-cuda>=0.30,<0.31 with numpy<2.5: numba-kcache[cu13]"
    )


def forget_implementations(function: Any) -> None:
    """Drop what Numba made of a function under `@overload` or `@intrinsic`: it makes each once in a process."""
    from numba.cuda.typing.templates import builtin_registry as registry

    templates = [each for _value, kind in registry.globals for each in getattr(kind, "templates", ())]
    for template in (*templates, *registry.attributes, *registry.functions):
        if function in (getattr(template, "_overload_func", None), getattr(template, "_definition_func", None)):
            for name in _TEMPLATE_CACHES:
                getattr(template, name, {}).clear()


@contextmanager
def compiling_for(cc: tuple[int, int]) -> Iterator[None]:
    """While it lasts, this thread's compilations are for a device of compute capability `cc`, present or not.

    Numba compiles device functions for the current device, so that without one a kernel that calls any cannot
    be compiled at all. Other threads go on seeing the real device.
    """
    parts = internals()
    thread, device = threading.get_ident(), SimpleNamespace(compute_capability=cc)
    with parts.global_compiler_lock:
        before = [module.get_current_device for module in parts.device_users]

        def current(real: Any = before[0]) -> Any:
            return device if threading.get_ident() == thread else real()

        for module in parts.device_users:
            module.get_current_device = current
        try:
            yield
        finally:
            for module, real in zip(parts.device_users, before, strict=True):
                module.get_current_device = real
