"""`install()` and `uninstall()`: cache the Numba kernels of programs without editing them.

Promise     Kernels remain Numba's own dispatchers with unchanged behaviour; only their compiled code comes from the
            cache. numba-cuda and numba-cuda-mlir are each patched, whether the program imported the package before
            `install()` or imports it later. `install()` itself imports neither.
Not here    The patches of each compiler (frontends.numba, adapters.cuda_compute).
"""

from __future__ import annotations

import os
import runpy
import sys

from .errors import ToolchainMissingError
from .frontends.numba.llvm_install import TAKEOVER as NUMBA
from .frontends.numba.mlir_install import TAKEOVER as MLIR
from .settings import install_wanted

__all__ = ["install", "install_when_imported", "main", "uninstall"]


def install(all: bool = False, cuda_compute: bool = False) -> None:
    """Cache every `@cuda.jit(cache=True)` kernel in the process's cache.

    Args:
        all: Every `@cuda.jit` kernel, whatever its `cache`.
        cuda_compute: Every build of cuda.compute as well, whether it is imported already or later.

    Raises:
        ToolchainMissingError: Neither numba-cuda nor numba-cuda-mlir is installed, and nothing else was requested.
    """
    if cuda_compute:
        from .adapters import cuda_compute as compute

        compute.install()
    found = [each for each in (NUMBA, MLIR) if each.is_installed()]
    if not found and not cuda_compute:
        raise ToolchainMissingError(
            "cannot install the cache",
            "neither numba-cuda nor numba-cuda-mlir (numba-kcache[mlir]) is installed",
            "pip install 'numba-kcache[numba]'",
        )
    for each in found:
        each.install(all)


def uninstall() -> None:
    """Undo `install`. Code that is built or loaded stays usable."""
    from .adapters import cuda_compute as compute

    compute.uninstall()
    NUMBA.uninstall()
    MLIR.uninstall()


def install_when_imported() -> None:
    """Call `install` as `NUMBA_KCACHE_INSTALL` says, as soon as the program imports a Numba."""
    NUMBA.install_when_imported()
    MLIR.install_when_imported()


def main() -> None:
    """`python -m numba_kcache.numba_hook [--all] SCRIPT [ARGUMENTS]`: run a program with the cache installed."""
    arguments = sys.argv[1:]
    every_kernel = arguments[:1] == ["--all"]
    if every_kernel:
        arguments = arguments[1:]
    if not arguments:
        print("usage: python -m numba_kcache.numba_hook [--all] SCRIPT [ARGUMENTS]", file=sys.stderr)
        raise SystemExit(2)
    install(all=every_kernel or install_wanted() == "all")
    sys.argv[:] = arguments
    sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main()
