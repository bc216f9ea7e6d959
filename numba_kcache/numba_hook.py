"""`install()` and `uninstall()`: cache the kernels of programs without editing them.

Promise     Kernels remain objects of their own library with unchanged behaviour; only their compiled code comes from
            the cache. Each library is patched when `install()` is called, or when the program imports it. A library
            that the program has not imported is not imported, and neither is the module that patches it. One of an
            unsuitable version is left as it is, with a warning.
Not here    The patches of each library (`replace` and `restore` in the modules of `PATCHES`).
"""

from __future__ import annotations

import atexit
import builtins
import importlib.util
import os
import sys
import warnings
from contextlib import suppress
from importlib import import_module
from typing import Any, ClassVar

from .errors import KCacheError, KCacheWarning, OptionError, SettingsError, ToolchainMissingError, plain_lines, why_of
from .launch import NUMBA_CUDA_MODULE
from .settings import install_wanted

__all__ = ["install", "install_when_imported", "run_program", "uninstall"]

NUMBAS = {"numba.cuda.dispatcher": "numba_cuda", "numba_cuda_mlir.descriptor": "numba_cuda_mlir"}
"""The modules of both Numbas that are patched, each with its package."""

PATCHES = {
    "numba.cuda.dispatcher": "frontends.numba.llvm_dispatcher",
    "numba_cuda_mlir.descriptor": "frontends.numba.mlir_dispatcher",
    "cuda.compute": "adapters.cuda_compute",
    "cupy.cuda.compiler": "adapters.cupy",
}
"""Each module that is patched, with the module of this package that patches it."""

KINDS = {"numba": "numba", "numba_cuda_mlir": "mlir"}
"""The Numbas whose `cuda` has a stand-in, each with the kind of its kernels."""


def install(all: bool = False, cuda_compute: bool = False, cupy: bool = False) -> None:
    """Cache every `@cuda.jit(cache=True)` kernel in the process's cache.

    Args:
        all: Every `@cuda.jit` kernel, whatever its `cache`.
        cuda_compute: Every build of cuda.compute as well.
        cupy: Every kernel that CuPy compiles as well: raw, elementwise, reduction, fused and jit kernels.

    Raises:
        OptionError: A value is not True or False.
        ToolchainMissingError: Neither numba-cuda nor numba-cuda-mlir is installed, and nothing else was requested.
    """
    for name, value in (("all", all), ("cuda_compute", cuda_compute), ("cupy", cupy)):
        if type(value) is not bool:
            wanted = value if value in ("cuda_compute", "cupy") else name
            hint = f"write install({wanted}=True)"
            raise OptionError(f"cannot use {name}={value!r}", f"it is a {type(value).__name__}", hint)
    homes = ["cuda.compute"] * cuda_compute + ["cupy.cuda.compiler"] * cupy
    for home, package in NUMBAS.items():
        with suppress(ImportError, ValueError):  # a package that is being imported, or that a test replaced
            homes += [home] if importlib.util.find_spec(_sign_of(home, package)) else []
    if not homes:
        raise ToolchainMissingError(
            "cannot install the cache",
            "neither numba-cuda nor numba-cuda-mlir (numba-kcache[mlir]) is installed",
            "pip install 'numba-kcache[numba]'",
        )
    for home in homes:
        _patch_when_imported(home, all)


def _sign_of(home: str, package: str) -> str:
    """A module that tells that a Numba is installed: Numba itself has a `numba.cuda`, too."""
    is_imported = home == "numba.cuda.dispatcher" and "numba.cuda" in sys.modules
    return NUMBA_CUDA_MODULE if is_imported else package


def uninstall() -> None:
    """Undo `install`. Code that is built or loaded stays usable."""
    _arrivals.leave()
    _arrivals.awaited.clear()
    if builtins.__import__ is _import:
        builtins.__import__ = _imported
    for name in PATCHES.values():
        patch = sys.modules.get(f"{__package__}.{name}")
        if patch is not None:
            patch.restore()


def install_when_imported() -> None:
    """Call `install` as `NUMBA_KCACHE_INSTALL` says, as soon as the program imports a Numba."""
    for home in NUMBAS:
        _patch_when_imported(home, None)
    if install_wanted() == "lazy":
        builtins.__import__ = _import


def run_program(words: list[str], every_kernel: bool, is_module: bool) -> int:
    """Run a program, or a module as `python -m` does, after `install()` for all libraries; return its exit code.

    If it has no line that can run, a message says so, and the code is 2.
    """
    import runpy

    hint = "write numba-kcache run PROG.py, or run -m MODULE"
    try:
        install(all=every_kernel or install_wanted() in ("all", "lazy"), cuda_compute=True, cupy=True)
        if not words:
            raise SettingsError("cannot run a program", "none is named", hint)
        sys.argv[:] = words
        if not sys.flags.safe_path:
            sys.path[0] = os.getcwd() if is_module else os.path.dirname(os.path.realpath(words[0]))
        if is_module:
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(words[0], run_name="__main__")
    except Exception as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_globals["__name__"].split(".")[0] in (__package__, "runpy"):
            trace = trace.tb_next
        if trace is None and not getattr(error, "lineno", None):  # no line of the program was reached
            if not isinstance(error, KCacheError):
                error = SettingsError(f"cannot run {words[0]}", why_of(error), hint)
            print("numba-kcache:", plain_lines(str(error)), file=sys.stderr)
            return 2
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return 1
    return 0


_imported: Any = builtins.__import__


def _import(name: str, *how: Any, **named: Any) -> Any:
    """Execute an import statement; `from numba import cuda` as `from numba_kcache import cuda` if that can be."""
    if name in KINDS and how[2:] == (("cuda",), 0) and name not in sys.modules:
        name = import_module(".frontends.numba.light", __package__).package_with(KINDS[name]) or name
    return _imported(name, *how, **named)


# warnings and tracebacks leave out frames of the import system, which they know by these names
_import.__code__ = _import.__code__.replace(
    co_filename="<frozen importlib._bootstrap>", co_name="_call_with_frames_removed"
)


def _patch_when_imported(home: str, every_kernel: bool | None) -> None:
    """Patch a module now, or as soon as the program imports it; None: as `NUMBA_KCACHE_INSTALL` says then."""
    if home in sys.modules:
        _patch(home, every_kernel)
        return
    _arrivals.awaited[home] = every_kernel
    if _arrivals not in sys.meta_path:
        sys.meta_path.insert(0, _arrivals)
        atexit.register(_arrivals.leave)  # at exit, CPython keeps `sys.meta_path` and its finders longer than modules


def _patch(home: str, every_kernel: bool | None) -> None:
    if every_kernel is None:
        wanted = install_wanted()
        if not wanted:
            return
        every_kernel = wanted != "cached"
    patch = import_module(f".{PATCHES[home]}", __package__)
    patch.restore()
    try:
        patch.replace(sys.modules[home], every_kernel)
    except ToolchainMissingError as error:
        warnings.warn(KCacheWarning(str(error)), stacklevel=2)


class _Arrivals:
    """A module finder that waits for modules, and removes itself when all are found."""

    awaited: ClassVar[dict[str, bool | None]] = {}

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> Any:
        """The module's spec, with a loader that patches it after loading; None for every other module."""
        if name not in self.awaited:
            return None
        every_kernel = self.awaited.pop(name)
        if not self.awaited:
            self.leave()
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                load(module)
                _patch(name, every_kernel)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def leave(self) -> None:
        """Find nothing any more."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)


_arrivals = _Arrivals()
