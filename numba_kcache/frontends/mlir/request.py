"""The inputs of a request that are numba-cuda-mlir's own: settings, libraries and links.

Promise     A setting has the value that a compilation starting now would read; settings that only print are left out.
Method      numba-cuda-mlir reads most settings from a copy of Numba's configuration, which it updates when it starts
            to compile, and a few from the environment at each use.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...keys import Component, component
from ...settings import variables
from ..python.value import Refused, plain_setting
from .internals import CONFIG, has_planners
from .link import linked_headers as linked_headers

if TYPE_CHECKING:
    from ...model.reason import ReasonKind

LIBRARIES = ("nvvm", "libdevice", "nvJitLink", "nvrtc", "nvrtc-builtins")
"""The compiler libraries. NVRTC determines the toolkit's version, and compiles CUDA C++ link inputs."""

DISTRIBUTIONS = ("numba-cuda-mlir", "numpy", "cuda-core")
"""The packages that compile; MLIR and LLVM 7 are part of the first."""

CODE_SETTINGS = (
    "OPT", "FORCE_CUDA_CC", "CUDA_DEBUGINFO_DEFAULT", "DEBUG_JIT", "BOUNDSCHECK", "EXTEND_VARIABLE_LIFETIMES",
    "DISABLE_JIT", "CUDA_DISABLE_LTO_OPT", "CUDA_DEFAULT_PTX_CC", "CUDA_ENABLE_NRT", "CUDA_NRT_STATS", "DEBUG_NRT",
    "NUMBA_CUDA_ENABLE_NRT", "NUMBA_CUDA_NRT_STATS", "CUDA_NVRTC_EXTRA_SEARCH_PATHS", "CUDA_INCLUDE_PATH",
)  # fmt: skip
"""Attributes of numba-cuda-mlir's configuration that change code; decorator options are in the fingerprint."""

_VARIABLES = ("NUMBA_CUDA_ENABLE_NRT", "NUMBA_CUDA_NRT_STATS", "NUMBA_CUDA_NVRTC_EXTRA_SEARCH_PATHS", "LIBLLVM7")
"""Settings that are read from the environment at each use."""

VARIABLES = (
    *_VARIABLES, "NUMBA_CUDA_DEBUGINFO", "NUMBA_CUDA_MLIR_DISABLE_LTO_OPT", *(f"NUMBA_{name}" for name in CODE_SETTINGS)
)  # fmt: skip
"""All settings that are read from the environment at some time."""


def component_kinds() -> Mapping[str, ReasonKind]:
    """Map each component of a numba-cuda-mlir kernel to its kind of reason. docs/keys.md has a row for each."""
    from ...model.reason import ReasonKind
    from ..python.reasons import KINDS

    return {**KINDS, "argument types": ReasonKind.SIGNATURE, "numba settings": ReasonKind.ENVIRONMENT}


def code_environment() -> tuple[Component, ...]:
    """Read the settings by name; () while numba-cuda-mlir is not loaded.

    Raises:
        Refused: A planner is registered; or a setting names another LLVM, which cannot be read.
    """
    config = sys.modules.get(CONFIG)
    if config is None:
        return ()
    if has_planners():
        raise Refused("a whole-function planner is registered, which may rewrite any kernel")
    try:
        config.reload_config()
    except Exception:  # an invalid variable: the compilation reports it, a look-up must not fail
        pass
    read = variables(_VARIABLES)
    llvm = read.pop("LIBLLVM7", "")
    settings = {name: plain_setting(getattr(config, name, None)) for name in CODE_SETTINGS}
    return component("numba settings", {**settings, **read, "LIBLLVM7": llvm and _build_of(llvm)}),  # fmt: skip


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
