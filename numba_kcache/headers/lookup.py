"""Texts that include files: the key that closures seen before lead to, and the closures of a new compile.

Promise     A key is returned only if every file that the compile depended on, and every place where none was found,
            is as it was. The manifest is only asked which closures to try: the key is derived anew from the one
            that holds. A header that changed while the compiler ran never enters a manifest.
Method      ccache's direct mode. The manifest of a family keeps several closures, so that switching a branch back is a
            hit. Each CUDA C++ text of a job, the kernel's and those that it links, has a closure of its own. Code
            that holds a path of a searched folder is served only where that folder is searched again.
Not here    What a closure is and how it is compared and learned (inputs.closure, closure_check, headers).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ..keys.components import Component, component, derive
from ..model.artifact import Artifact
from ..toolchain.libraries import Toolchain
from .check import Match, check_closure
from .dependencies import Closure, closure_from_json, closure_to_json, closure_value
from .query import HeaderQuery
from .search import Place, Search, Tree

Variant = dict[str, Any]


class Found(NamedTuple):
    """What the closures seen lead to.

    Args:
        key: The key of the one that holds; None where none does.
        renewed: Its variant with newer stats, where contents had to be read to know.
        variant: The one that holds, as it is stored.
    """

    key: str | None
    renewed: Variant | None = None
    variant: Variant | None = None


class HeadersRead(NamedTuple):
    """What the result of a compile depends on beside its request: the headers that were read.

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
    """The key that one of the closures seen leads to now.

    Args:
        variants: Of the family's manifest, the newest first.
        components: Of the job, without its headers.
        searches: Where headers are looked for, for each text of the job.
        any_compiler: Whether another compiler's code will do; its headers then count as part of it.
    """
    request, now_ns = derive(components), time.time_ns()
    folders = {folder for search in searches for folder in search.folders}
    for variant in variants:
        if variant.get("request") != request and not any_compiler:
            continue
        try:
            closures = read_closures(variant, len(searches))
        except ValueError:
            continue
        paths = tuple(str(each) for each in variant.get("paths", ()))
        if not set(paths) <= folders:
            continue
        refreshed = list(closures)
        for index, (closure, search) in enumerate(zip(closures, searches, strict=True)):
            if closure is None:
                continue
            where = with_toolkit_of(closure, search) if any_compiler else search
            outcome = check_closure(closure, where, now_ns=now_ns)
            if not isinstance(outcome, Match):
                break
            refreshed[index] = outcome.refreshed or closure
        else:
            key = str(variant.get("key"))
            if variant.get("request") == request:
                key = derive((*components, *_components(closures, paths)))
            renewed = {**variant, "closures": _to_json(refreshed)} if refreshed != closures else None
            return Found(key, renewed, variant)
    return Found(None)


def compile_and_learn(
    build: Callable[[Any], Artifact], queries: Sequence[HeaderQuery], toolchain: Toolchain
) -> tuple[Artifact, HeadersRead]:
    """Compile texts that include files, and learn what the result depends on.

    Args:
        build: Compiles with a trace.
        queries: The texts and where each looks for files.
        toolchain: The compilers.
    """
    from ..toolchain.nvrtc import nvrtc_version
    from ..toolchain.time_trace import time_trace
    from .learn import find_embedded_paths, learn_closure, survey_headers
    from .open_watch import OpenWatch
    from .trace import read_trace
    from .tree_scans import save_scans, tree_scans
    from .untrackable import Uncapturable  # a lookup goes without what only a compile needs

    searches = [query.search(toolchain, is_fresh=True) for query in queries]
    now_ns = time.time_ns()
    identities = {tree.identity for search in searches for tree in search.trees}
    scans = {each: tree_scans(each, toolchain.load_record) for each in identities}
    surveys = [
        survey_headers(query.text, search, now_ns=now_ns, scans=scans)
        for query, search in zip(queries, searches, strict=True)
    ]
    closures: list[Closure | None] = []
    with time_trace(nvrtc_version()) as trace:
        watches = [] if trace else [OpenWatch(survey) for survey in surveys]
        try:
            artifact = build(trace)
            unread = [watch.unread() for watch in watches] or [frozenset[Place]()] * len(surveys)
        finally:
            for watch in watches:
                watch.close()
        for query, survey, unopened in zip(queries, surveys, unread, strict=True):
            if trace is not None and query.of not in trace.of:  # not needed after all, as Numba's own library
                closures.append(None)
                continue
            closure = learn_closure(survey, read_trace(trace.of[query.of]) if trace else None, unopened)
            if isinstance(closure, Uncapturable):
                where = f" in {closure.path}" if closure.path else ""
                return artifact, HeadersRead(untracked=f"its headers cannot be captured: {closure.doubt}{where}")
            closures.append(closure)
    save_scans(scans, toolchain.save_record)
    paths = find_embedded_paths(artifact.cubin, (folder for search in searches for folder in search.folders))
    variant = {"closures": _to_json(closures), "paths": list(paths)}
    return artifact, HeadersRead(_components(closures, paths), variant)


def without_stats(variant: Variant) -> Variant:
    """The variant for other machines: without the inodes and times of this one, which say nothing there."""
    closures = variant.get("closures")
    if not isinstance(closures, list):
        return variant
    read = [None if each is None else closure_from_json(each) for each in closures]
    bare = [each and each._replace(files=tuple(file._replace(stat=None) for file in each.files)) for each in read]
    return {**variant, "closures": _to_json(bare)}


def _components(closures: Sequence[Closure | None], paths: Sequence[str]) -> tuple[Component, ...]:
    values = [closure and closure_value(closure) for closure in closures]
    found = (component("headers", values[0] if len(values) == 1 else values),)
    return (*found, component("paths", list(paths))) if paths else found


def _to_json(closures: Sequence[Closure | None]) -> list[Any]:
    return [closure and closure_to_json(closure) for closure in closures]


def read_closures(variant: Variant, count: int) -> list[Closure | None]:
    """The closures of a variant, one for each text of the job.

    Raises:
        ValueError: They are others than this package writes for such a job.
    """
    stored = variant.get("closures")
    if not isinstance(stored, list) or len(stored) != count:
        raise ValueError("not the closures of this job")
    return [None if each is None else closure_from_json(each) for each in stored]


def with_toolkit_of(closure: Closure, search: Search) -> Search:
    """The search as if the toolkit were the one of the closure, for code that any compiler may have made.

    Its headers went into that compiler's code; on this machine they may be others, or none.
    """
    own = [folder for folder, (tree, _) in zip(search.folders, search.layout(), strict=True) if tree < 0]
    identities = dict(closure.trees)
    trees = tuple(
        Tree(f"/nonexistent/toolkit{index}", identities.get(index, ""))
        for index in range(max((tree for tree, _ in closure.layout), default=-1) + 1)
    )
    folders: list[str] = []
    for tree, rest in closure.layout:
        if tree < 0:
            folders += own[:1]
            own = own[1:]
        else:
            folders.append(trees[tree].root if rest in ("", ".") else f"{trees[tree].root}/{rest}")
    return search._replace(folders=(*folders, *own), trees=trees)
