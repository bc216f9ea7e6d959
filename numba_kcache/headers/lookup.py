"""Look up texts that include files by the headers on record, and learn the headers of a new compile.

Promise     A key is returned only if every file that the compile depended on, and every place where none was found,
            is as it was. The manifest only lists which header sets to try: the key is derived anew from the one
            that matches. A header that changed while the compiler ran never enters a manifest.
Method      ccache's direct mode. The manifest of a family keeps several header sets, so that switching a branch back
            is a hit. Each CUDA C++ text of a request, the kernel's and those that it links, has a set of its own. Code
            that holds a path of a searched folder is served only where that folder is searched again.
Not here    What a header set is and how it is compared and learned (dependencies, check, learn).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any, NamedTuple

from ..keys import Component, component, derive
from ..model.artifact import Artifact
from ..toolchain import Toolchain
from .check import Match, check_headers
from .dependencies import HeaderSet, headers_from_json, headers_to_json, headers_value
from .search import HeaderQuery, Place, Search, Tree

Variant = dict[str, Any]


class Found(NamedTuple):
    """The outcome of a look-up by the headers on record.

    Args:
        key: The key that the matching header sets lead to; None where none match.
        renewed: Their variant with newer stats, where contents had to be read to know.
        variant: Their variant, as it is stored.
    """

    key: str | None
    renewed: Variant | None = None
    variant: Variant | None = None


class HeadersRead(NamedTuple):
    """The dependencies of a compile beside its request: the headers that were read.

    Args:
        components: Of the key.
        variant: For the manifest.
        untracked: Reason for which they cannot be tracked; "" where they are.
    """

    components: tuple[Component, ...] = ()
    variant: Mapping[str, Any] = {}
    untracked: str = ""


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
    folders = {folder for search in searches for folder in search.folders}
    for variant in variants:
        if variant.get("request") != request and not any_compiler:
            continue
        try:
            sets = read_header_sets(variant, len(searches))
        except ValueError:
            continue
        paths = tuple(str(each) for each in variant.get("paths", ()))
        if not set(paths) <= folders:
            continue
        refreshed = list(sets)
        for index, (headers, search) in enumerate(zip(sets, searches, strict=True)):
            if headers is None:
                continue
            where = with_toolkit_of(headers, search) if any_compiler else search
            outcome = check_headers(headers, where, now_ns=now_ns)
            if not isinstance(outcome, Match):
                break
            refreshed[index] = outcome.refreshed or headers
        else:
            key = str(variant.get("key"))
            if variant.get("request") == request:
                key = derive((*components, *_components(sets, paths)))
            renewed = {**variant, "closures": _to_json(refreshed)} if refreshed != sets else None
            return Found(key, renewed, variant)
    return Found(None)


def compile_and_learn(
    build: Callable[[Any], Artifact], queries: Sequence[HeaderQuery], toolchain: Toolchain
) -> tuple[Artifact, HeadersRead]:
    """Compile texts that include files, and learn what the result depends on.

    Args:
        build: Compiles with a trace.
        queries: The texts and the folders that are searched for files.
        toolchain: The compilers.
    """
    from ..toolchain.nvrtc import nvrtc_version
    from ..toolchain.time_trace import time_trace
    from .learn import find_embedded_paths, learn_headers
    from .open_watch import OpenWatch
    from .survey import Survey
    from .trace import read_trace
    from .tree_scans import save_scans, tree_scans
    from .untrackable import UntrackableError  # a lookup goes without what only a compile needs

    searches = [query.search(toolchain, is_fresh=True) for query in queries]
    now_ns = time.time_ns()
    identities = {tree.identity for search in searches for tree in search.trees}
    scans = {each: tree_scans(each, toolchain.load_record) for each in identities}
    pairs = zip(queries, searches, strict=True)
    surveys = [Survey(query.text, search, now_ns=now_ns, scans=scans) for query, search in pairs]
    sets: list[HeaderSet | None] = []
    with ExitStack() as stack:
        trace = stack.enter_context(time_trace(nvrtc_version()))
        watches = [] if trace else [stack.enter_context(closing(OpenWatch(survey))) for survey in surveys]
        artifact = build(trace)
        unread = [watch.unread() for watch in watches] or [frozenset[Place]()] * len(surveys)
        traces = trace.of if trace else {}
    try:
        for query, survey, unopened in zip(queries, surveys, unread, strict=True):
            if trace is not None and query.of not in traces:  # not needed after all, as Numba's own library
                sets.append(None)
            else:
                read = read_trace(traces[query.of]) if trace else None
                sets.append(learn_headers(survey, read, unopened))
    except UntrackableError as error:
        return artifact, HeadersRead(untracked=str(error))
    save_scans(scans, toolchain.save_record)
    paths = find_embedded_paths(artifact.cubin, (folder for search in searches for folder in search.folders))
    return artifact, HeadersRead(_components(sets, paths), {"closures": _to_json(sets), "paths": list(paths)})


def without_stats(variant: Variant) -> Variant:
    """Make the variant for other machines: without the inodes and times of this one, which mean nothing there."""
    stored = variant.get("closures")
    if not isinstance(stored, list):
        return variant
    sets = read_header_sets(variant, len(stored))
    bare = [each and each._replace(files=tuple(file._replace(stat=None) for file in each.files)) for each in sets]
    return {**variant, "closures": _to_json(bare)}


def _components(sets: Sequence[HeaderSet | None], paths: Sequence[str]) -> tuple[Component, ...]:
    values = [headers and headers_value(headers) for headers in sets]
    found = (component("headers", values[0] if len(values) == 1 else values),)
    return (*found, component("paths", list(paths))) if paths else found


def _to_json(sets: Sequence[HeaderSet | None]) -> list[Any]:
    return [headers and headers_to_json(headers) for headers in sets]


def read_header_sets(variant: Variant, count: int) -> list[HeaderSet | None]:
    """Read the header sets of a variant, one for each text of the request.

    Raises:
        ValueError: They are others than this package writes for such a request.
    """
    stored = variant.get("closures")
    if not isinstance(stored, list) or len(stored) != count:
        raise ValueError("not the header sets of this request")
    return [None if each is None else headers_from_json(each) for each in stored]


def with_toolkit_of(headers: HeaderSet, search: Search) -> Search:
    """Make the search as if the toolkit were the one of the header set, for code that any compiler may have made.

    Its headers went into that compiler's code; on this machine they may be others, or none.
    """
    own = iter([folder for folder, (tree, _) in zip(search.folders, search.layout(), strict=True) if tree < 0])
    identities = dict(headers.trees)
    last = max((tree for tree, _ in headers.layout), default=-1)
    trees = tuple(Tree(f"/nonexistent/toolkit{index}", identities.get(index, "")) for index in range(last + 1))
    folders = [
        os.path.join(trees[tree].root, "" if rest == "." else rest) if tree >= 0 else next(own, None)
        for tree, rest in headers.layout
    ]
    return search._replace(folders=(*filter(None, folders), *own), trees=trees)
