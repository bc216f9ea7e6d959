"""The folders of headers as the compiler is told of them: the user's own, or what stands in their place (mirror).

Not here    Looking for headers: a text that includes none is compiled without any of that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..model.request import LinkInput
from ..model.text import decoded, encoded

if TYPE_CHECKING:
    from ..toolchain.nvrtc import NvrtcResult
    from .search import Place, Search


class Folders:
    """Folders that are named to the compiler: here the user's own.

    Args:
        edit: Changes each text, for a compile whose code is only compared.

    Attributes:
        compiled: The texts that were compiled: of link inputs; None for the source.
        made: What NVRTC made of them, by its kind; PTX of what is only compared, for LTO-IR is named by its text.
        is_visible: A path that is not the user's stands in the code.
    """

    is_mirror = False

    def __init__(self, edit: Callable[[bytes], bytes] | None = None) -> None:
        self.edit = edit
        self.compiled: set[LinkInput | None] = set()
        self.made: list[Mapping[str, bytes]] = []
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
        return decoded(self.edit(encoded(source))) if self.edit else source

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
        result = run_nvrtc(text := self.edited(source), program, flags, outputs, expressions)
        self.made.append(result.code)
        if self.edit and "ltoir" in outputs:
            flags = [flag for flag in flags if flag != "--dlink-time-opt"]
            self.made[-1] = run_nvrtc(text, program, flags, ("ptx",), expressions).code
        for kind in ("cubin", "ptx"):
            self.look_at(result.code.get(kind, b""))
        return result._replace(log=self.map_back(result.log))
