"""Look up texts that include files by the headers on record.

Promise     A key is returned only if every file that the compile depended on, and every place where none was found,
            is as it was. The manifest only lists which header sets to try: the key is derived anew from the one
            that matches.
Method      ccache's direct mode. The manifest of a family keeps several header sets, so that switching a branch back
            is a hit. Each CUDA C++ text of a request, the kernel's and those that it links, has a set of its own. Code
            that may hold the path of a searched folder is served only where that folder is searched again.
Not here    What a header set is (dependencies), how it is compared (check), and how one is learned (compile).
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
    """The outcome of a look-up by the headers on record.

    Args:
        key: The key that the matching header sets lead to; None where none match.
        renewed: Their variant with newer stats, where stats differed and contents were compared.
        variant: Their variant, as it is stored.
    """

    key: str | None
    renewed: Variant | None = None
    variant: Variant | None = None


def find_key(
    variants: Iterable[Variant], components: Sequence[Component], searches: Sequence[Search], *, any_compiler: bool
) -> Found:
    """Find the first variant whose headers are as they were, and derive its key.

    Args:
        variants: Of the family's manifest, the newest first.
        components: Of the request, without its headers.
        searches: The folders that are searched for headers, for each text of the request.
        any_compiler: Another compiler's code will do; its headers then count as part of it.
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
    """Make the variant for other machines: without the inodes and times of this one, which mean nothing there."""
    stored = variant.get("closures")
    if not isinstance(stored, list):
        return variant
    sets = read_header_sets(variant, len(stored))
    return {**variant, "closures": sets_to_json([each and bare(each) for each in sets])}


def bare(headers: HeaderSet) -> HeaderSet:
    """Make the header set without stats: all of it is compared by content."""
    files = tuple(file._replace(stat=None) for file in headers.files)
    return headers._replace(files=files, trees=tuple(part._replace(stat="") for part in headers.trees))


def _is_there_still(path: object, searches: Sequence[Search]) -> bool:
    """Check whether a folder that the code holds is the same one of the search as when it was compiled."""
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
        ValueError: They are others than this package writes for such a request.
    """
    stored = variant.get("closures")
    if not isinstance(stored, list) or len(stored) != count:
        raise ValueError("not the header sets of this request")
    return [None if each is None else headers_from_json(each) for each in stored]


def of_any_compiler(headers: HeaderSet, search: Search) -> tuple[HeaderSet, Search]:
    """Make the header set without its toolkit's headers, and the search as if the toolkit were the one of the set.

    The toolkit's headers came with the compiler, which may be any; this machine may have other ones, or none.
    """
    own = iter([folder for folder, (tree, _) in zip(search.folders, search.layout(), strict=True) if tree < 0])
    last = max((tree for tree, _ in headers.layout), default=-1)
    trees = tuple(f"/nonexistent/toolkit{index}" for index in range(last + 1))
    folders = [
        os.path.join(trees[tree], "" if rest == "." else rest) if tree >= 0 else next(own, None)
        for tree, rest in headers.layout
    ]
    return headers._replace(trees=()), search._replace(folders=(*filter(None, folders), *own), trees=trees)
