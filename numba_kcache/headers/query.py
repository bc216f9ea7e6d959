"""A text that may include files, and the folders that are searched for them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..model.request import LinkInput
from ..toolchain.libraries import Toolchain

if TYPE_CHECKING:  # a request is made without them
    from .search import Search


class HeaderQuery(NamedTuple):
    """A text that may include files, and where they are looked for.

    Args:
        text: CUDA C++.
        folders: The user's folders in order, the text's own first, or last where `toolkit` is given.
        of: The link input that it is; None for the kernel's source.
        definitions: Macros given by options; None stands for no value.
        forced: Files that options include before the text.
        has_siblings: Whether quoted names are looked for beside the including file.
        toolkit: Record name and finder of the toolkit's folders that are searched before the user's; None for NVRTC's
            own order, where the toolkit comes last.
    """

    text: str
    folders: tuple[str, ...]
    of: LinkInput | None = None
    definitions: tuple[tuple[str, str | None], ...] = ()
    forced: tuple[str, ...] = ()
    has_siblings: bool = True
    toolkit: tuple[str, Callable[[], Sequence[str]]] | None = None

    def search(self, toolchain: Toolchain | None, *, is_fresh: bool = False) -> Search:
        """List the places where the compiler looks for what the text includes.

        Args:
            toolchain: Knows the toolkit's folders; None for the user's alone, for code whose compiler brought its own
                headers.
            is_fresh: Find the folders of `toolkit` anew instead of taking them from the record.
        """
        from .search import WORKING, Search, Tree

        own = self.folders
        if toolchain is None:
            return Search(own, (), self.has_siblings, self.forced, working_folder=os.getcwd())
        source_base: int | None
        if self.toolkit is not None:
            folders = (*toolchain.folders(*self.toolkit, is_fresh=is_fresh), *own)
            source_base = len(folders) - 1 if self.of and self.of.folder else WORKING
        else:
            folders, source_base = (*own, *toolchain.include_dirs()), None if own else WORKING
        return Search(
            folders=folders,
            trees=tuple(Tree(*each) for each in toolchain.header_trees()),
            has_siblings=self.has_siblings,
            forced=self.forced,
            definitions=self.definitions,
            working_folder=os.getcwd(),
            source_base=source_base,
        )
