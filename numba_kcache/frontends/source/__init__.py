"""CUDA C++, PTX, cubin, fatbin and LTO-IR as kernels and modules."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import OptionError
from ...model.request import SOURCE_KINDS, ModuleEntries
from .definition import SourceDefinition
from .source import Source, define_function, define_path, define_text, returns_source

if TYPE_CHECKING:
    from .module import ModuleDefinition


class SourceFrontEnd:
    """Defines functions that return source, text, bytes of code, and paths."""

    kinds = SOURCE_KINDS

    def define(self, thing: Any, options: Mapping[str, Any], depth: int) -> SourceDefinition | None:
        """Define a kernel; any function is a source where `kind` names a kind of source."""
        source = _source_of(thing, options.get("kind"), depth + 1)
        return source and SourceDefinition(thing, source, options)


def define_module(thing: Any, options: Mapping[str, Any], entries: ModuleEntries, depth: int) -> ModuleDefinition:
    """Define a module of these entries; `depth` as for a front end.

    Raises:
        OptionError: The thing is no source, or it or an option cannot be used.
    """
    from .module import ModuleDefinition

    source = _source_of(thing, options.get("kind"), depth + 1)
    if source is None:
        raise OptionError(
            f"cannot make a module of {thing!r}", "it is no source", "decorate a Numba kernel with cached_kernel"
        )
    return ModuleDefinition(thing, source, options, entries)


def _source_of(thing: Any, kind: str | None, depth: int) -> Source | None:
    """The source that a thing stands for; None for none."""
    if isinstance(thing, tuple) and len(thing) == 2 and isinstance(thing[0], (str, bytes)):
        thing, kind = thing[0], "ptx"  # of `numba.cuda.compile_ptx`, with its return type
    if isinstance(thing, (str, bytes)):
        return define_text(thing, kind, depth + 1)
    if isinstance(thing, Path):
        return define_path(thing, kind, depth + 1)
    if not callable(thing) or not hasattr(thing, "__code__"):
        return None
    is_source = kind in SOURCE_KINDS if kind is not None else returns_source(thing)
    return define_function(thing, kind) if is_source else None


FRONT_END = SourceFrontEnd()
