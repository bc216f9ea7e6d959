"""A kernel cache for CUDA C++ and Numba kernels: compiled once, loaded from disk by every later process.

Importing this package imports neither CUDA nor Numba; names are resolved at first use.
"""

# ruff: noqa: F403, F405
from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # type checkers find the defining modules here; `__all__` lists the public names
    from .cache import *
    from .engine.built import *
    from .errors import *
    from .explanation.text import *
    from .frontends import *
    from .model import *
    from .model.reason import *
    from .module import *
    from .numba_hook import *
    from .observe.info import *
    from .store.listing import *
    from .version import __version__
    from .warmup.pool import *

__all__ = [
    "ArgumentError", "Built", "BundleError", "CacheInfo", "CachedModule", "CodeRefusedError", "CompileError",
    "EntryError", "EntryInfo", "Event", "EventKind", "Explanation", "FrozenCacheError", "KCacheError",
    "KCacheWarning", "Kernel", "KernelCache", "LaunchConfigError", "LaunchError", "LinkError", "NoDeviceError",
    "OptionError", "Reason", "ReasonKind", "SettingsError", "ToolchainMissingError", "UncacheableError",
    "UnknownTargetError", "WarmUpReport",
    "__version__", "cached_kernel", "cached_module", "clear", "configure", "entries", "explain", "export_bundle",
    "get_or_build", "get_or_compile", "import_bundle", "info", "install", "print_info", "prune",
    "pull", "push", "register_bundle", "subscribe", "uninstall", "verify", "warm_up",
]  # fmt: skip

_HOMES = {
    "CacheInfo": "observe.info",
    "Built": "engine.built",
    "CachedModule": "module",
    "EntryInfo": "store.listing",
    "Event": "model",
    "EventKind": "model",
    "Explanation": "explanation.text",
    "Kernel": "frontends",
    "Reason": "model.reason",
    "ReasonKind": "model.reason",
    "WarmUpReport": "warmup.pool",
    "__version__": "version",
    "cached_kernel": "frontends",
    "cached_module": "module",
    "install": "numba_hook",
    "uninstall": "numba_hook",
}
"""The defining module of each public name that is neither an error nor a function of `cache`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        text = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(text, name=name, obj=sys.modules[__name__])  # Python then says what was meant
    home = _HOMES.get(name) or ("errors" if name.endswith(("Error", "Warning")) else "cache")
    value = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


if import_module(".settings", __name__).install_wanted():
    import_module(".numba_hook", __name__).install_when_imported()
