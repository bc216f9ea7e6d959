"""What of Numba's configuration changes the code it makes.

Promise     The values are those that a compilation starting now would use. Numba is never imported: as long
            as `numba.cuda` is not loaded there is nothing to read.
Method      Two settings have defaults that Numba takes from the installed CUDA runtime. Left alone they say who
            compiles, and stand in a component of their own; set by a program they say what.
Not here    Decorator options (python_function has them) and settings that only print.
"""

from __future__ import annotations

import operator
import os
import sys
from typing import Any

from ...keys.components import Component, component
from ...keys.encoding import Plain
from ...settings import environment

CODE_SETTINGS = (
    "OPT", "FORCE_CUDA_CC", "CUDA_DEBUGINFO_DEFAULT", "CUDA_DEBUG_POLY", "CUDA_DEBUG_POLY_USE_TYPED_CONST",
    "DEBUG_JIT", "BOUNDSCHECK", "EXTEND_VARIABLE_LIFETIMES", "CUDA_ENABLE_NRT", "CUDA_NRT_STATS", "DEBUG_NRT",
    "CUDA_NVRTC_EXTRA_SEARCH_PATHS", "CUDA_INCLUDE_PATH", "USE_LEGACY_TYPE_SYSTEM",
)  # fmt: skip
"""Attributes of `numba.core.config`; each has an environment variable `NUMBA_...` of about the same name."""

_OF_TOOLKIT = {
    "CUDA_DEBUG_POLY": "DEBUG_POLY_SUPPORTED", "CUDA_DEBUG_POLY_USE_TYPED_CONST": "DEBUG_POLY_USE_TYPED_CONST",
}  # fmt: skip
"""Settings whose default depends on the toolkit, and where in `numba.cuda.debuginfo` it stands."""


def code_environment() -> tuple[Component, ...]:
    """The settings by name, and the defaults that are the toolkit's; () while `numba.cuda` is not loaded.

    Numba reads changed environment variables when it starts to compile; it is told to do so here already, so
    that key and code are of the same settings.
    """
    config = sys.modules.get("numba.cuda.core.config")
    if config is None or "numba.cuda" not in sys.modules:
        return ()
    global _seen, _last
    before, had_file = _seen
    now, has_file = environment(before), os.access(str(getattr(config, "_config_fname", "")), os.F_OK)
    if now is not before or has_file or had_file:
        try:
            config.reload_config()
        except Exception:  # a variable that Numba cannot read: the compilation will say so, a lookup must not
            pass
        _seen = now, has_file
    values = list(map(vars(config).get, CODE_SETTINGS))
    if _last is None or list in map(type, values) or not all(map(operator.is_, _last[0], values)):
        _last = values, _components(dict(zip(CODE_SETTINGS, map(_plain, values), strict=True)))
    return _last[1]


def _components(settings: dict[str, Plain]) -> tuple[Component, ...]:
    debuginfo = sys.modules.get("numba.cuda.debuginfo")
    defaults = {name: _plain(getattr(debuginfo, where, None)) for name, where in _OF_TOOLKIT.items()}
    for name, default in defaults.items():
        if settings[name] == default:
            settings[name] = None
    return component("numba settings", settings), component("numba toolkit", defaults)


_seen: tuple[dict[Any, Any] | None, bool] = (None, False)
"""The environment, and whether there was a configuration file, when Numba was last told to read them: as long as
nothing has changed, it need not be told again."""

_last: tuple[list[Any], tuple[Component, ...]] | None = None
"""The values that were met last, and their components."""


def extra_search_paths() -> str:
    """Numba's folders for headers beside the toolkit's, separated by colons; "" while `numba.cuda` is not loaded."""
    return str(getattr(sys.modules.get("numba.cuda.core.config"), "CUDA_NVRTC_EXTRA_SEARCH_PATHS", None) or "")


def _plain(value: object) -> Plain:
    """Numba's optimisation level is an int with a name of its own ("max"); the rest are plain."""
    if value is None or type(value) in (bool, str):
        return value  # type: ignore[return-value]
    if isinstance(value, (tuple, list)):
        return [_plain(each) for each in value]
    return repr(value)
