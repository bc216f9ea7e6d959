"""The folders of headers as the compiler is told of them: the user's own, or what stands in their place (mirror).

Not here    Looking for headers: a text that includes none is compiled without any of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..model.request import LinkInput

if TYPE_CHECKING:
    from ..toolchain.nvrtc import NvrtcResult
    from .search import Place, Search


class Folders:
    """Folders that are named to the compiler: here the user's own.

    Attributes:
        compiled: The texts that were compiled: of link inputs; None for the source.
        is_visible: A path that is not the user's stands in the code.
    """

    is_mirror = False

    def __init__(self) -> None:
        self.compiled: set[LinkInput | None] = set()
        self.is_visible = False

    def folder(self, path: str) -> str:
        """Return the folder to name to the compiler in place of one of the user's; a toolkit's as it is."""
        return path

    def path(self, place: Place, search: Search) -> str | None:
        """Return the file that stands for a place of the user's; None where that is the user's own."""
        return None

    def flags(self, flags: Sequence[str]) -> list[str]:
        """Return raw flags as the compiler gets them: they may name files to include."""
        return [*flags]

    def map_back(self, text: str) -> str:
        """Have a message name the user's own paths."""
        return text

    def edited(self, source: str) -> str:
        """Return a source as the compiler gets it."""
        return source

    def look_at(self, code: bytes) -> None:
        """Look for paths in code."""

    def close(self) -> None:
        """End the compile."""

    def run(
        self,
        of: LinkInput | None,
        source: str,
        program: str,
        flags: Sequence[str],
        outputs: Sequence[str],
        expressions: Sequence[str] = (),
    ) -> NvrtcResult:
        """Run NVRTC on a text whose program name and flags name these folders; `of` says which text it is."""
        from ..toolchain.nvrtc import run_nvrtc

        self.compiled.add(of)
        result = run_nvrtc(self.edited(source), program, flags, outputs, expressions)
        for kind in ("cubin", "ptx"):
            self.look_at(result.code.get(kind, b""))
        return result._replace(log=self.map_back(result.log))
