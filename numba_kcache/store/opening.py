"""The local store that settings ask for; in memory where there is no place for one.

Promise     Always a store: what keeps it from the disk is told once, as trouble.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..model.event import (
    Emit,
    Event,
    EventKind,
    trouble,
)
from ..settings import Settings
from .disk import DiskStore
from .system import missing

if TYPE_CHECKING:  # most processes have a disk
    from .memory import MemoryStore


def open_store(settings: Settings, directory: str | None, emit: Emit) -> DiskStore | MemoryStore:
    """The store in a directory, or in memory.

    Args:
        settings: The settings in force.
        directory: Where it is; None where no home directory is known.
        emit: Is told what the store notices.
    """
    lacks = "" if directory is None or settings.mode == "off" else missing()
    if lacks:
        error = f"no {lacks} on this system: kernels are kept in memory only, and compiled again by the next process"
        emit(Event(EventKind.TROUBLE, {"where": "directory", "error": error}))
    elif directory is None and settings.mode != "off":
        directory = _homeless(settings, emit)
    if directory is None or settings.mode == "off" or lacks:
        from .memory import MemoryStore

        return MemoryStore(max_size_bytes=settings.max_size_bytes, max_entries=settings.max_entries)
    return DiskStore(
        directory,
        max_size_bytes=settings.max_size_bytes,
        max_entries=settings.max_entries,
        readonly=settings.mode in ("readonly", "frozen"),
        durability=settings.durability,
        shared=settings.shared,
        emit=emit,
    )


def _homeless(settings: Settings, emit: Emit) -> str | None:
    """A private directory for a user without a known home; None where there is none, or where nothing is written."""
    from .directory import private_directory

    path = None if settings.mode in ("readonly", "frozen") else private_directory()
    place = f"kernels are kept in {path or 'memory only'}; set NUMBA_KCACHE_DIR to a better place"
    emit(trouble("directory", f"no home directory is known: {place}"))
    return path
