"""A kernel cache for Numba CUDA: CUDA C++ and Numba kernels compiled once, launched from disk ever after.

Importing this package imports neither CUDA nor Numba; names are resolved at first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cache import (
        KernelCache,
        clear,
        configure,
        entries,
        explain,
        export_bundle,
        import_bundle,
        info,
        print_info,
        prune,
        pull,
        push,
        register_bundle,
        subscribe,
        verify,
        warm_up,
    )
    from .errors import (
        ArgumentError,
        BundleError,
        CompileError,
        EntryError,
        FrozenCacheError,
        KCacheError,
        KCacheWarning,
        LaunchConfigError,
        LaunchError,
        LinkError,
        NoDeviceError,
        OptionError,
        SettingsError,
        ToolchainMissingError,
        UncacheableError,
    )
    from .explanation.text import Explanation
    from .kernel import Kernel, cached_kernel
    from .model.event import Event, EventKind
    from .model.reason import Reason, ReasonKind
    from .module import CachedModule, cached_module
    from .numba_hook import install, uninstall
    from .observe.info import CacheInfo
    from .store.report import EntryInfo, Problem
    from .tiers.bundle import BundleReport
    from .warmup.discovery import find_kernels
    from .warmup.pool import WarmUpReport

_HOMES = {
    "cache": (
        "KernelCache", "clear", "configure", "entries", "explain", "export_bundle", "import_bundle", "info",
        "print_info", "prune", "pull", "push", "register_bundle", "subscribe", "verify", "warm_up",
    ),
    "errors": (
        "ArgumentError", "BundleError", "CompileError", "EntryError", "FrozenCacheError", "KCacheError",
        "KCacheWarning", "LaunchConfigError", "LaunchError", "LinkError", "NoDeviceError", "OptionError",
        "SettingsError", "ToolchainMissingError", "UncacheableError",
    ),
    "kernel": ("Kernel", "cached_kernel"),
    "module": ("CachedModule", "cached_module"),
    "numba_hook": ("install", "uninstall"),
    "model.event": ("Event", "EventKind"),
    "model.reason": ("Reason", "ReasonKind"),
    "explanation.text": ("Explanation",),
    "observe.info": ("CacheInfo",),
    "store.report": ("EntryInfo", "Problem"),
    "warmup.discovery": ("find_kernels",),
    "tiers.bundle": ("BundleReport",),
    "warmup.pool": ("WarmUpReport",),
}  # fmt: skip
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__version__ = "0.1.0.dev0"
__all__ = [
    "ArgumentError",
    "BundleError",
    "BundleReport",
    "CacheInfo",
    "CachedModule",
    "CompileError",
    "EntryError",
    "EntryInfo",
    "Event",
    "EventKind",
    "Explanation",
    "FrozenCacheError",
    "KCacheError",
    "KCacheWarning",
    "Kernel",
    "KernelCache",
    "LaunchConfigError",
    "LaunchError",
    "LinkError",
    "NoDeviceError",
    "OptionError",
    "Problem",
    "Reason",
    "ReasonKind",
    "SettingsError",
    "ToolchainMissingError",
    "UncacheableError",
    "WarmUpReport",
    "__version__",
    "cached_kernel",
    "cached_module",
    "clear",
    "configure",
    "entries",
    "explain",
    "export_bundle",
    "find_kernels",
    "import_bundle",
    "info",
    "install",
    "print_info",
    "prune",
    "pull",
    "push",
    "register_bundle",
    "subscribe",
    "uninstall",
    "verify",
    "warm_up",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{home}", __name__), name)
    return value


def __dir__() -> list[str]:
    return __all__


def _install_if_asked() -> None:
    """`NUMBA_KCACHE_INSTALL` takes effect wherever this package is imported."""
    from .settings import install_wanted

    if install_wanted():
        from .frontends.numba.install import install_when_imported

        install_when_imported()


_install_if_asked()
