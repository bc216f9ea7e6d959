"""Import and probe, once, every private name of numba-cuda that the compilation of a kernel needs.

Promise     Either all these names exist with the expected parameters, or ToolchainMissingError says which versions to
            install. No other module of the package imports private names of Numba to compile.
Source      numba-cuda 0.30.4: `_Kernel.__init__` and `CUDACodeLibrary`, whose steps `llvm_compile` repeats.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from inspect import signature
from types import SimpleNamespace
from typing import Any

from ...errors import ToolchainMissingError

_NAMES = {
    "compiler": ("compile_cuda", "kernel_fixup"),
    "dispatcher": ("CUDADispatcher", "_Kernel", "reshape_funcs"),
    "cudadrv.nvvm": ("set_launch_bounds",),
    "descriptor": ("cuda_target",),
    "memory_management.nrt": ("NRT_LIBRARY",),
    "cudadrv.libs": ("get_cudalib",),
    "cuda_paths": ("get_cuda_paths",),
    "core.compiler_lock": ("global_compiler_lock",),
    "typing.templates": ("builtin_registry",),
}
"""The names used from each module of `numba.cuda`."""

_COMPILE_PARAMETERS = {
    "pyfunc", "return_type", "args", "debug", "lineinfo", "forceinline", "fastmath", "nvvm_options", "cc",
    "max_registers", "lto",
}  # fmt: skip
_DEVICE_USERS = ("dispatcher", "compiler", "api")
"""Modules of `numba.cuda` that read the current device's compute capability while they compile."""


@cache
def internals() -> SimpleNamespace:
    """Import and probe Numba's own parts: `_NAMES`, `config`, `types`, and the `folder` of `numba.cuda`.

    Raises:
        ToolchainMissingError: Numba is absent, or of a version with other internals.
    """
    try:
        found = SimpleNamespace(
            config=import_module("numba.cuda.core.config"),
            types=import_module("numba.cuda.types"),
            folder=os.path.dirname(str(import_module("numba.cuda.dispatcher").__file__)),
        )
        for home, names in _NAMES.items():
            module = import_module(f"numba.cuda.{home}")
            vars(found).update({name: getattr(module, name) for name in names})
        import_module("numba.cuda.np.arrayobj")  # numba-cuda 0.30 reads functions of NumPy that NumPy 2.5 has not
    except (ImportError, AttributeError) as error:
        use = ": use numpy<2.5" if "numpy" in str(error) else ""
        raise _unsuitable(f"{error}{use}") from error
    lacking = _COMPILE_PARAMETERS - set(signature(found.compile_cuda).parameters)
    if lacking:
        raise _unsuitable(f"compile_cuda takes no {', '.join(sorted(lacking))}")
    return found


def _unsuitable(why: str) -> ToolchainMissingError:
    return ToolchainMissingError("cannot compile a Numba kernel", why, "pip install 'numba-kcache[numba]'")


@contextmanager
def assumed_device(cc: tuple[int, int]) -> Iterator[None]:
    """Make this thread compile as if the current device had compute capability `cc`.

    Numba compiles device functions for the current device: without a device, a kernel that calls a device function
    cannot be compiled at all. Other threads still get the real device.
    """
    from .garbage import uncollected

    users = [import_module(f"numba.cuda.{name}") for name in _DEVICE_USERS]
    thread, device = threading.get_ident(), SimpleNamespace(compute_capability=cc)
    with internals().global_compiler_lock:
        before = [module.get_current_device for module in users]

        def current(real: Any = before[0]) -> Any:
            return device if threading.get_ident() == thread else real()

        for module in users:
            module.get_current_device = current  # type: ignore[attr-defined]
        try:
            with uncollected():
                internals().cuda_target.target_context.refresh()
            yield
        finally:
            for module, real in zip(users, before, strict=True):
                module.get_current_device = real  # type: ignore[attr-defined]
