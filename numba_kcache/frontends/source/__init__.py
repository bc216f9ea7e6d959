"""CUDA C++, PTX, cubin, fatbin and LTO-IR as kernels and modules."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...model.request import SOURCE_KINDS, ModuleEntries
from .definition import SourceDefinition
from .source import Source, define_function, define_path, define_text, returns_source

if TYPE_CHECKING:
    from .module import ModuleDefinition


class SourceFrontEnd:
    """Defines functions that return source, text, bytes of code, and paths."""

    kinds = SOURCE_KINDS

    def claims(self, thing: Any, kind: str | None) -> bool:
        """Tell if it is a source; any function is where `kind` names a kind of source."""
        if isinstance(thing, (str, bytes, Path)) or _is_compiled_ptx(thing):
            return True
        if not callable(thing) or not hasattr(thing, "__code__"):
            return False
        return kind in SOURCE_KINDS if kind is not None else returns_source(thing)

    def define(self, thing: Any, options: Mapping[str, Any], depth: int) -> SourceDefinition:
        """Define a kernel."""
        return SourceDefinition(*self._source_of(thing, options, depth + 1), options)

    def define_module(
        self, thing: Any, options: Mapping[str, Any], entries: ModuleEntries, depth: int
    ) -> ModuleDefinition:
        """Define a module of these entries."""
        from .module import ModuleDefinition

        return ModuleDefinition(*self._source_of(thing, options, depth + 1), options, entries)

    def _source_of(self, thing: Any, options: Mapping[str, Any], depth: int) -> tuple[Any, Source]:
        kind = options.get("kind")
        if _is_compiled_ptx(thing):
            thing, kind = thing[0], "ptx"
        if isinstance(thing, (str, bytes)):
            return thing, define_text(thing, kind, depth + 1)
        if isinstance(thing, Path):
            return thing, define_path(thing, kind, depth + 1)
        return thing, define_function(thing, kind)


def _is_compiled_ptx(thing: Any) -> bool:
    """Tell if it is what `numba.cuda.compile_ptx` returns: PTX and its return type."""
    return isinstance(thing, tuple) and len(thing) == 2 and isinstance(thing[0], (str, bytes))


FRONT_END = SourceFrontEnd()
