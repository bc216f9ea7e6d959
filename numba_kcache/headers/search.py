"""The folders that NVRTC searches for an included file, in its order.

Promise     `candidates` lists every path that NVRTC may try for a name, in the order in which it tries them.
            A path is a `Place`: a folder of the search and what follows it, so that it means the same file in a
            checkout that has moved.
Method      A name among the in-memory headers is taken from there. Quoted: the folder of the including file,
            by the path under which it was found (symlinks not resolved), then the folders given with `-I`. The
            source's own folder is that of its program's name, the working directory if the name has none.
            Angled: these folders alone. Forced (`-include`): the working directory, then the folders.
Not here    Reading the files (survey) and comparing them (check).
Source      strace of NVRTC 13.5.37. `--no-source-include` disables the search in the folder of the including file for
            every file, not only for the source: `has_siblings`. NVRTC treats the working directory as an in-memory
            header's own folder. A directory with the name is skipped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from ..model import NamedTuple
from ..model.request import LinkInput
from ..toolchain import Toolchain
from .scanner import Form, Include

ABSOLUTE, WORKING, SOURCE, MEMORY = -1, -2, -3, -4
"""Bases that are not folders of the search: an absolute path, the working directory, the source, a given text."""


class Place(NamedTuple):
    """A path: the index of a folder of the search, or one of the bases above, and the path relative to it."""

    base: int
    rest: str


class Search(NamedTuple):
    """Everything that the search for headers of one compile depends on.

    Args:
        folders: Absolute folders in the order of `-I`; the source's own first, the toolkit's last.
        trees: Roots of the toolkit's header trees. The files that a compile used in one are recorded as one value
            (tree_parts).
        has_siblings: Whether quoted names are first looked for beside the including file: not so under
            `--no-source-include`.
        forced: Names given to `-include`, in order.
        memory: In-memory headers by name.
        definitions: Macros given with `-D`; None means no value, with which a macro is 1.
        working_folder: The folder that relative names of `forced`, and of in-memory headers' siblings, refer to.
        source_base: The base for quoted names of the source; None if that is the first folder, which is then the
            first for angled names, too.
    """

    folders: tuple[str, ...]
    trees: tuple[str, ...] = ()
    has_siblings: bool = True
    forced: tuple[str, ...] = ()
    memory: Mapping[str, str] = {}
    definitions: tuple[tuple[str, str | None], ...] = ()
    working_folder: str = ""
    source_base: int | None = None

    @property
    def roots(self) -> tuple[str, ...]:
        """The path of each base, arranged so that `roots[place.base]` works for the negative ones too."""
        return (*self.folders, self.working_folder, "")

    def layout(self) -> tuple[tuple[int, str], ...]:
        """For each folder the index of the tree it is in and the path within; (-1, "") for the others."""
        return tuple(map(self._in_tree, self.folders))

    def _in_tree(self, folder: str) -> tuple[int, str]:
        for index, tree in enumerate(self.trees):
            if folder == tree or folder.startswith(tree.rstrip("/") + "/"):
                return index, os.path.relpath(folder, tree)
        return -1, ""


class HeaderQuery(NamedTuple):
    """A text that may include files, and the folders that are searched for them.

    Args:
        text: CUDA C++.
        folders: The user's folders in order, the text's own first, or last if `toolkit` is given.
        of: The link input that it is; None for the kernel's source.
        definitions: Macros given by options; None means no value.
        forced: Files that options include before the text.
        has_siblings: Quoted names are looked for beside the including file.
        toolkit: Record name and finder of the toolkit's folders that are searched before the user's; None for NVRTC's
            own order, where the toolkit comes last.
        has_lines: The code gets line tables, which name each file by its path.
    """

    text: str
    folders: tuple[str, ...]
    of: LinkInput | None = None
    definitions: tuple[tuple[str, str | None], ...] = ()
    forced: tuple[str, ...] = ()
    has_siblings: bool = True
    toolkit: tuple[str, Callable[[], Sequence[str]]] | None = None
    has_lines: bool = False

    def search(self, toolchain: Toolchain | None, *, is_fresh: bool = False) -> Search:
        """List the folders in which the compiler searches for the files that the text includes.

        Args:
            toolchain: Provides the toolkit's folders; None for the user's folders alone, if code of any compiler is
                accepted, whose toolkit's headers belong to it.
            is_fresh: Find the folders of `toolkit` again instead of taking them from the record.
        """
        folders, source_base = self.folders, None
        trees: tuple[str, ...] = ()
        if toolchain is not None:
            trees = toolchain.header_trees()
            if self.toolkit is not None:
                folders = (*toolchain.folders(*self.toolkit, is_fresh=is_fresh), *folders)
                source_base = len(folders) - 1 if self.of and self.of.folder else WORKING
            else:
                source_base = None if folders else WORKING
                folders = (*folders, *toolchain.include_dirs())
        working = os.getcwd()
        return Search(folders, trees, self.has_siblings, self.forced, {}, self.definitions, working, source_base)


def candidates(search: Search, include: Include, includer: Place) -> list[Place]:
    """List every place that may be tried for `include`, in order; none for an in-memory header.

    For `Form.NEXT` these are more than NVRTC tries: it starts after the folder of the including file.
    """
    form, name = include
    if name in search.memory:
        return []
    name = _plain(name)
    if name.startswith("/"):
        return [Place(ABSOLUTE, name)]
    found = [Place(index, name) for index in range(len(search.folders))]
    if form is Form.FORCED:
        first = _working(search, name)
        return [first, *(place for place in found if place != first)]
    if form is Form.ANGLE or not search.has_siblings or (includer.base == SOURCE and search.source_base is None):
        return found
    if includer.base == SOURCE:
        sibling = Place(search.source_base or 0, name)
    elif includer.base == MEMORY:
        sibling = Place(WORKING, name)
    else:
        sibling = Place(includer.base, os.path.join(os.path.dirname(includer.rest), name))
    return [sibling, *(place for place in found if place != sibling)]


def _plain(name: str) -> str:
    """Normalise a relative path: remove `./` and doubled `/`."""
    *folders, last = name.split("/")
    if "." not in folders and "" not in folders[1:]:
        return name
    return "/".join([each for at, each in enumerate(folders) if each != "." and (each or not at)] + [last])


def _working(search: Search, name: str) -> Place:
    """The place of a file in the working directory; if that is one of the user's folders, relative to the folder,
    so that the place does not depend on the working directory."""
    for index, (folder, (tree, _rest)) in enumerate(zip(search.folders, search.layout(), strict=True)):
        if tree < 0 and folder == search.working_folder:
            return Place(index, name)
    return Place(WORKING, name)


def path_of(place: Place, search: Search) -> str:
    """Join the path of a place in this search."""
    return os.path.join(search.roots[place.base], place.rest)
