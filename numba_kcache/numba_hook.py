"""`install()` and `uninstall()`: lead the kernels of programs that are not edited through the process's cache.

Promise     Kernels stay their compiler's and mean what they meant; only where their code comes from changes.
Not here    What is replaced in each compiler (frontends.numba.install).
"""

from __future__ import annotations

import os
import runpy
import sys

from .frontends.numba.install import install, uninstall
from .settings import install_wanted

__all__ = ["install", "main", "uninstall"]


def main() -> None:
    """`python -m numba_kcache.numba_hook [--all] SCRIPT [ARGUMENTS]`: run a program with the cache installed."""
    arguments = sys.argv[1:]
    every_kernel = arguments[:1] == ["--all"]
    if every_kernel:
        arguments = arguments[1:]
    if not arguments:
        raise SystemExit(main.__doc__)
    install(all=every_kernel or install_wanted() == "all")
    sys.argv[:] = arguments
    sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main()
