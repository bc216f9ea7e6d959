"""Find the key of a request whose texts include files, by the header sets recorded in its manifest.

Promise     A key is returned only if every file that the compile depended on, and every place where none was found,
            is unchanged. The manifest only lists which header sets to try: the key is derived again from the one
            that matches.
Method      ccache's direct mode. The manifest of a family keeps several header sets, so that switching a branch back
            is a hit. Each CUDA C++ text of a request, the kernel's and those that it links, has its own set. Code
            that may contain the path of an include folder is a hit only if the same folder is searched again.
Not here    The contents of a header set (dependencies), comparing it (check), and recording it (compile).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..keys import Component, derive
from ..model import NamedTuple
from .check import Match, check_headers
from .dependencies import HeaderSet, headers_from_json, sets_components, sets_to_json
from .search import Search

if TYPE_CHECKING:
    from ..store.entry import Variant


class Found(NamedTuple):
    """The outcome of a look-up by recorded headers.

    Args:
        key: The key derived from the header sets that match; None if none match.
        renewed: The manifest variant of these sets with newer stats if contents had to be compared.
        variant: The manifest variant of these sets, as it is stored.
    """

    key: str | None
    renewed: Variant | None = None
    variant: Variant | None = None


def find_key(
    variants: Iterable[Variant], components: Sequence[Component], searches: Sequence[Search], *, any_compiler: bool
) -> Found:
    """Find the first variant whose headers are unchanged, and derive its key.

    Args:
        variants: The variants of the family's manifest, newest first.
        components: The components of the request, without headers.
        searches: The folders that are searched for headers, for each text of the request.
        any_compiler: Code of any compiler is accepted; its toolkit's headers then count as part of it.
    """
    request, now_ns = derive(components), time.time_ns()
    for variant in variants:
        if variant.get("request") != request and not any_compiler:
            continue
        try:
            sets = read_header_sets(variant, len(searches))
        except ValueError:
            continue
        paths = variant.get("paths", [])
        if not (isinstance(paths, list) and all(_is_there_still(each, searches) for each in paths)):
            continue
        refreshed = list(sets)
        for index, (headers, search) in enumerate(zip(sets, searches, strict=True)):
            if headers is None:
                continue
            looked_at, where = of_any_compiler(headers, search) if any_compiler else (headers, search)
            outcome = check_headers(looked_at, where, now_ns=now_ns)
            if not isinstance(outcome, Match):
                break
            found = outcome.refreshed or looked_at
            refreshed[index] = found._replace(trees=headers.trees) if any_compiler else found
        else:
            key = str(variant.get("key"))
            if variant.get("request") == request:
                key = derive((*components, *sets_components(sets, paths)))
            renewed = {**variant, "closures": sets_to_json(refreshed)} if refreshed != sets else None
            return Found(key, renewed, variant)
    return Found(None)


def without_stats(variant: Variant) -> Variant:
    """Make the variant for other machines, without inodes and times, which are meaningless there."""
    stored = variant.get("closures")
    if not isinstance(stored, list):
        return variant
    sets = read_header_sets(variant, len(stored))
    return {**variant, "closures": sets_to_json([each and bare(each) for each in sets])}


def bare(headers: HeaderSet) -> HeaderSet:
    """Make the header set without stats, so that all files are compared by content."""
    files = tuple(file._replace(stat=None) for file in headers.files)
    return headers._replace(files=files, trees=tuple(part._replace(stat="") for part in headers.trees))


def _is_there_still(path: object, searches: Sequence[Search]) -> bool:
    """Check whether a folder whose path the code contains has the same number in the search as at compile time."""
    return any(path == each for search in searches for each in located(search))


def located(search: Search) -> list[list[int | str]]:
    """List the folders of a search, each with its number among the user's own; -1 for the toolkit's. The working
    directory is last, with -2."""
    found: list[list[int | str]] = []
    own = 0
    for folder, (tree, _rest) in zip(search.folders, search.layout(), strict=True):
        found.append([own if tree < 0 else -1, folder])
        own += tree < 0
    return [*found, [-2, search.working_folder]]


def read_header_sets(variant: Variant, count: int) -> list[HeaderSet | None]:
    """Read the header sets of a variant, one for each text of the request.

    Raises:
        ValueError: They are not header sets for such a request.
    """
    stored = variant.get("closures")
    if not isinstance(stored, list) or len(stored) != count:
        raise ValueError("not the header sets of this request")
    return [None if each is None else headers_from_json(each) for each in stored]


def of_any_compiler(headers: HeaderSet, search: Search) -> tuple[HeaderSet, Search]:
    """Remove the toolkit's headers from a header set, and adapt the search as if this machine had the same toolkit.

    The toolkit's headers belong to the compiler, and any is accepted; this machine may have other ones, or none.
    """
    own = iter([folder for folder, (tree, _) in zip(search.folders, search.layout(), strict=True) if tree < 0])
    last = max((tree for tree, _ in headers.layout), default=-1)
    trees = tuple(f"/nonexistent/toolkit{index}" for index in range(last + 1))
    folders = [
        os.path.join(trees[tree], "" if rest == "." else rest) if tree >= 0 else next(own, None)
        for tree, rest in headers.layout
    ]
    return headers._replace(trees=()), search._replace(folders=(*filter(None, folders), *own), trees=trees)
