"""The inputs of a Numba kernel's request that are numba-cuda's own: settings, libraries and linked headers.

Method      Two settings have defaults that Numba takes from the installed CUDA runtime. Default values are in the
            component `numba toolkit`, which counts as part of the compilers; a value that the program sets is in the
            component `numba settings`, like the other settings.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...keys import Component, component
from ...model.request import LinkInput
from ..python.value import plain_setting
from . import dialect

if TYPE_CHECKING:
    from ...headers.roots import HeaderSearch
    from ...model.reason import ReasonKind

LIBRARIES = ("nvvm", "libdevice", "nvJitLink", "nvrtc", "nvrtc-builtins")
"""The compiler libraries. NVRTC is used for every kernel: Numba queries its architectures, and its fp16 is CUDA C++."""

DISTRIBUTIONS = ("numba", "numba-cuda", "llvmlite", "numpy", "cuda-core")

CODE_SETTINGS = (
    "OPT", "FORCE_CUDA_CC", "CUDA_DEBUGINFO_DEFAULT", "CUDA_DEBUG_POLY", "CUDA_DEBUG_POLY_USE_TYPED_CONST",
    "DEBUG_JIT", "BOUNDSCHECK", "EXTEND_VARIABLE_LIFETIMES", "CUDA_ENABLE_NRT", "CUDA_NRT_STATS", "DEBUG_NRT",
    "CUDA_NVRTC_EXTRA_SEARCH_PATHS", "CUDA_INCLUDE_PATH", "USE_LEGACY_TYPE_SYSTEM",
)  # fmt: skip
"""Attributes of `numba.core.config` that change code; each has an environment variable `NUMBA_...` of about the same
name. Decorator options are in the fingerprint."""

_OF_TOOLKIT = {
    "CUDA_DEBUG_POLY": "DEBUG_POLY_SUPPORTED", "CUDA_DEBUG_POLY_USE_TYPED_CONST": "DEBUG_POLY_USE_TYPED_CONST",
}  # fmt: skip
"""Settings whose default depends on the toolkit, and the name of that default in `numba.cuda.debuginfo`."""

_CONFIG = "numba.cuda.core.config"


def component_kinds() -> Mapping[str, ReasonKind]:
    """The kind of reason for each component of a Numba kernel. docs/keys.md has a row for each."""
    from ...model.reason import ReasonKind
    from ..python.reasons import KINDS

    return {
        **KINDS,
        "argument types": ReasonKind.SIGNATURE,
        "numba settings": ReasonKind.ENVIRONMENT,
        "numba toolkit": ReasonKind.COMPILER,
    }


def linked_headers(links: Sequence[LinkInput], *, has_lines: bool) -> HeaderSearch | None:
    """Make the search for headers of CUDA C++ among these link inputs, and of the runtime that Numba may add.

    Args:
        links: Link inputs of the kernel and its callees.
        has_lines: Whether the kernel has line tables; its link inputs have none.

    Raises:
        Refused: They cannot be keyed.
    """
    texts = [each for each in links if each.kind == "cu"]
    runtime = dialect.runtime()
    if not texts and runtime is None:
        return None
    from ..python.files import check_texts

    asking = check_texts(texts)
    if runtime is None and not asking:
        return None
    from ...headers.roots import HeaderSearch

    extra = str(dialect.loaded(_CONFIG, "CUDA_NVRTC_EXTRA_SEARCH_PATHS") or "").split(":")
    texts += filter(None, (runtime,))
    folders = dict.fromkeys(filter(None, (*extra, *(each.folder for each in texts))))
    is_working = not all(each.folder for each in texts)
    toolkit = ("numba_include_dirs", _toolkit_dirs)
    return HeaderSearch(tuple(each.data for each in texts), tuple(folders), toolkit, is_working=is_working)


def _toolkit_dirs() -> Sequence[str]:
    from .link import toolkit_dirs

    return toolkit_dirs()


def code_environment() -> tuple[Component, ...]:
    """Read the settings, and the toolkit's defaults; () while `numba.cuda` is not loaded.

    Numba reads changed environment variables when it starts to compile. It is made to do so here, so that key and code
    have the same settings.
    """
    config = sys.modules.get(_CONFIG)
    if config is None:
        return ()
    try:
        config.reload_config()
    except Exception:  # an invalid variable: the compilation reports it, a look-up must not fail
        pass
    settings = {name: plain_setting(getattr(config, name, None)) for name in CODE_SETTINGS}
    defaults = {
        name: plain_setting(dialect.loaded("numba.cuda.debuginfo", where)) for name, where in _OF_TOOLKIT.items()
    }
    for name, default in defaults.items():
        if settings[name] == default:
            settings[name] = None
    return component("numba settings", settings), component("numba toolkit", defaults)
