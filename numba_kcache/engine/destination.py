"""Require that new entries of a session are written to the configured directory, or at least to some directory."""

from __future__ import annotations

from ..errors import KCacheError
from .lookup import STORING, Lookup


def require_directory(cache: Lookup, what: str, key: str = "", *, is_found: bool = False) -> None:
    """Require that new entries can be written to the configured directory, or that it has the given entry.

    Args:
        cache: The session.
        what: The operation, as in `cannot ...`.
        key: Key of the entry, if it was found or stored; "" if it is not built yet, or its key is not known.
        is_found: Whether the entry was found in some store; then it is enough that the directory can be read.

    Raises:
        KCacheError: A directory was configured and cannot be used.
    """
    is_configured = cache.settings.directory is not None and cache.settings.mode in STORING
    if not is_configured or cache.local.tree is None:
        return
    from ..store.files import is_there

    if key and is_there(cache.local.tree, key):
        return
    if is_found and cache.local.is_usable() and cache.local.tree.status is not None:
        return
    why = cache.local.prepare()
    if why:
        hint = "name a directory that this user can write to: NUMBA_KCACHE_DIR, or configure(directory=...)"
        raise KCacheError(f"cannot {what}", f"{cache.local.directory} cannot be used: {why}", hint)


def require_lasting(cache: Lookup, what: str) -> None:
    """Require that new entries outlive this process.

    Raises:
        KCacheError: New entries would be kept only in memory, and the mode is not off.
    """
    why = cache.local.prepare()
    if not cache.local.place and cache.settings.mode != "off":
        where = f"kernels would be kept in the memory of this process alone{why and f': {why}'}"
        raise KCacheError(f"cannot {what}", where, "name a directory to write to: --directory, or NUMBA_KCACHE_DIR")
