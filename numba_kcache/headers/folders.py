"""The include folders that are passed to the compiler: the user's own, or those of a mirror.

Not here    Finding headers: a text that includes none is compiled without the other modules of this package.
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
    """The folders of one compile: here the user's own.

    Args:
        edit: Changes each text before it is compiled, for a compile whose code is only compared.

    Attributes:
        compiled: The texts that were compiled: link inputs, and None for the source.
        made: NVRTC's outputs by kind. For a compile that is only compared, PTX in place of LTO-IR, which contains a
            name made from its text.
        is_visible: The code contains a path that is not the user's.
    """

    is_mirror = False

    def __init__(self, edit: Callable[[bytes], bytes] | None = None) -> None:
        self.edit = edit
        self.compiled: set[LinkInput | None] = set()
        self.made: list[Mapping[str, bytes]] = []
        self.is_visible = False

    def folder(self, path: str) -> str:
        """Return the folder to pass to the compiler in place of one of the user's; a toolkit's is unchanged."""
        return path

    def path(self, place: Place, search: Search) -> str | None:
        """Return the file that replaces the user's file at a place; None if there is no replacement."""
        return None

    def flags(self, flags: Sequence[str]) -> list[str]:
        """Return the raw flags for the compiler, in which files to include may be replaced."""
        return [*flags]

    def map_back(self, text: str) -> str:
        """Replace paths in a message by the user's own."""
        return text

    def edited(self, source: str) -> str:
        """Return the source for the compiler."""
        return decoded(self.edit(encoded(source))) if self.edit else source

    def look_at(self, code: bytes) -> None:
        """Search code for paths that are not the user's, and set `is_visible`."""

    def close(self) -> None:
        """Release what the compile needed."""

    def run(
        self,
        of: LinkInput | None,
        source: str,
        program: str,
        flags: Sequence[str],
        outputs: Sequence[str],
        expressions: Sequence[str] = (),
    ) -> NvrtcResult:
        """Run NVRTC on a text whose program name and flags use these folders; `of` is its link input, if any."""
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
