"""Adapters that let other packages' compilers store code in this cache. Each imports its package on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cuda_core import Programs as ProgramCache

__all__ = ["ProgramCache"]


def __getattr__(name: str) -> Any:
    if name == "ProgramCache":
        from .cuda_core import program_cache

        return program_cache()
    if name in ("cuda_compute", "triton"):
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
