"""A kernel of numba-cuda-mlir in modules on disk, asked of the cache and of numba-cuda-mlir.

Promise     `plain` shares no code with the package: a dispatcher compiles in a process that imports the modules afresh.
            The PTX is compared; names and counters in it are the compiler's to choose.
"""

from __future__ import annotations

import os
import sys

from . import python_asks
from .cpp_asks import Answer, Call

_HOME = "numba_cuda_mlir.numba_cuda"


def _pretend_device() -> None:
    """Let it compile without a device."""
    from numba_cuda_mlir import tools

    tools._cached_cc = (9, 0)


def warm() -> None:
    """Import numba-cuda-mlir, so that forked processes need not; its threads survive no fork: nothing is compiled."""
    sys.dont_write_bytecode = True
    python_asks.use(_HOME)
    import numba_cuda_mlir.cuda
    import numba_cuda_mlir.mlir_optimization  # noqa: F401
    from numba_cuda_mlir.descriptor import mlir_target

    _pretend_device()
    mlir_target.ensure_initialized()  # with Python's own functions under their names, which edits change


def decorate(call: Call) -> None:
    """Make the kernel now; a later ask takes it."""
    python_asks.use(_HOME)
    python_asks.decorate(call)


def serve(call: Call) -> Answer:
    """Request the PTX from the cache."""
    python_asks.use(_HOME)
    return python_asks.serve(call)


def plain(call: Call) -> list[Answer]:
    """Compile the program as it is now with numba-cuda-mlir alone."""
    from numba_cuda_mlir import cuda

    python_asks.use(_HOME)
    _pretend_device()
    try:
        python_asks.enter(call)
        function, types = vars(sys.modules["pk_main"])["k"], python_asks.types_of(call["signature"])
        kernel = cuda.jit(**call["options"])(function)
        kernel.compile(types)
        return [Answer(kernel.inspect_asm(types))]
    except Exception as error:
        return [Answer(None, failed=f"{type(error).__name__}: {error}")]
    finally:
        os.chdir("/")
