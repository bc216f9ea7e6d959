"""The folders in which NVRTC searches for headers, and places relative to them.

Promise     A path that NVRTC formed from a folder of the search is a place in that folder: it means the same file in a
            checkout that has moved, as long as the folders lie within each other as they did (`layout`).
Not here    The files themselves (record, check).
Source      NVRTC 12.9.86, 13.0.88 and 13.5.37 join a name to the folder's own text, and resolve neither links nor `..`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..model import Artifact, NamedTuple
from ..settings import working_directory
from ..toolchain import Toolchain

if TYPE_CHECKING:
    from . import HeadersRead

ABSOLUTE, WORKING = -1, -2
"""Roots that are not folders of the search: an absolute path, and the working directory for a relative one."""


class Place(NamedTuple):
    """A path: the index of a folder of the search, or one of the roots above, and the path relative to it."""

    root: int
    rest: str


class Roots(NamedTuple):
    """The folders of one request.

    Args:
        own: The user's folders, in order.
        toolkit: The toolkit's folders, whose indices follow.
        working: The working directory, which is also the last of `own`, if names may refer to it; "" if not.
    """

    own: tuple[str, ...]
    toolkit: tuple[str, ...] = ()
    working: str = ""

    @property
    def folders(self) -> tuple[str, ...]:
        """All folders, by their indices."""
        return *self.own, *self.toolkit

    def with_working(self) -> Roots:
        """Add the working directory, as the last of the user's folders."""
        working = working_directory()
        return Roots((*self.own, working), self.toolkit, working)

    def beginnings(self) -> list[str]:
        """The beginning of the paths of places, by their root; those of `WORKING` and `ABSOLUTE` are last."""
        return [*(folder.rstrip("/") + "/" for folder in self.folders), working_directory() + "/", ""]

    def layout(self) -> tuple[tuple[int, str], ...]:
        """For each folder the one that it is in, or is equal to, and the path within; (-1, "") for the others."""
        found = []
        for index, folder in enumerate(self.folders):
            outer = placing([*self.folders[:index], "\0", *self.folders[index + 1 :]])(folder)
            found.append((outer.root, outer.rest) if outer.root >= 0 else (-1, ""))
        return tuple(found)


def placing(folders: Sequence[str], working: str = "") -> Callable[[str], Place]:
    """Make the function that returns the place of a path that NVRTC asked for: in the innermost folder, of equal ones
    the last.

    Args:
        folders: The folders of the search.
        working: As in `Roots`.
    """
    innermost = [(folder, folder.rstrip("/") + "/", index) for index, folder in enumerate(folders)]
    innermost.sort(key=lambda each: (len(each[0]), each[2]), reverse=True)

    def place(path: str) -> Place:
        if not path.startswith("/"):
            if not working:
                return Place(WORKING, path)
            path = os.path.join(working, path)
        for folder, within, index in innermost:
            if path.startswith(within) or path == folder:
                return Place(index, path[len(folder) :].removeprefix("/"))
        return Place(ABSOLUTE, path)

    return place


class HeaderSearch(NamedTuple):
    """The texts of a request that may ask for files, and the folders that are searched for them.

    Args:
        texts: The texts, and the values of macros.
        folders: The user's folders as NVRTC searches them: in order, with repetitions.
        toolkit: Record name and finder of the toolkit's folders; None for NVRTC's own.
        forced: Names given to `-include`, which are searched for in the working directory first.
        is_working: Whether other names may refer to the working directory.
        has_lines: Whether the code gets line tables, which name each file by its path.
        is_edited: Whether the texts are compiled by `run_nvrtc`, which can leave out the time.
        complete: Completes the artifact by the texts that were compiled, the user's headers included.
        read: Where another library compiles, between two of its calls: returns the headers that it read. Its code is
            always stored under a transcript.
    """

    texts: tuple[bytes, ...]
    folders: tuple[str, ...]
    toolkit: tuple[str, Callable[[], Sequence[str]]] | None = None
    forced: tuple[str, ...] = ()
    is_working: bool = False
    has_lines: bool = False
    is_edited: bool = True
    complete: Callable[[Artifact, Sequence[bytes]], Artifact] | None = None
    read: Callable[[], HeadersRead] | None = None

    def roots(self, toolchain: Toolchain | None, *, is_fresh: bool = False) -> Roots:
        """List the folders of the search.

        Args:
            toolchain: Provides the toolkit's folders; None for the user's folders alone.
            is_fresh: Find the folders of `toolkit` again instead of taking them from the record.
        """
        toolkit: tuple[str, ...] = ()
        if toolchain is not None:
            named = self.toolkit
            toolkit = toolchain.folders(*named, is_fresh=is_fresh) if named else toolchain.include_dirs()
        found = Roots(self.folders, toolkit)
        return found.with_working() if self.is_working else found


def located(roots: Roots) -> list[tuple[int, str]]:
    """List the folders of a search, each with its number among the user's own; -1 for the toolkit's. The working
    directory is last, with -2: NVRTC calls what it finds there by a relative name."""
    named = roots.own[:-1] if roots.working else roots.own
    own = [(number, folder) for number, folder in enumerate(named) if folder not in roots.toolkit]
    return [*own, *((-1, folder) for folder in roots.toolkit), (-2, working_directory())]
