"""Sources that include files: the key that a closure seen before leads to, and the closure of a new compile.

Promise     A key is returned only if every file that the compile depended on, and every place where none was found,
            is as it was. The manifest is only asked which closures to try: the key is derived anew from the one
            that holds. A header that changed while the compiler ran never enters a manifest.
Method      ccache's direct mode. The manifest of a family keeps several closures, so that switching a branch back is a
            hit. Code that holds a path of a searched folder is served only where that folder is searched again.
Not here    What a closure is and how it is compared and learned (inputs.closure, closure_check, headers).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from .inputs.closure import Closure, Uncapturable, closure_from_json, closure_to_json, closure_value
from .inputs.closure_check import Match, check_closure
from .inputs.header_trace import read_trace
from .inputs.headers import find_embedded_paths, learn_closure, survey_headers
from .inputs.include_search import Search, Tree
from .jobs import HeaderQuestion, Learned
from .keys.components import Component, component, derive
from .model.artifact import Artifact
from .toolchain.libraries import Toolchain
from .toolchain.time_trace import time_trace

Variant = dict[str, Any]


class Found(NamedTuple):
    """What the closures seen lead to.

    Args:
        key: The key of the one that holds; None where none does.
        renewed: Its variant with newer stats, where contents had to be read to know.
        reasons: Why each of the others does not hold.
    """

    key: str | None
    renewed: Variant | None = None
    reasons: tuple[str, ...] = ()


def find_key(
    variants: Iterable[Variant], components: Sequence[Component], search: Search, *, any_compiler: bool
) -> Found:
    """The key that one of the closures seen leads to now.

    Args:
        variants: Of the family's manifest, the newest first.
        components: Of the job, without its headers.
        search: Where headers are looked for.
        any_compiler: Whether another compiler's code will do; its headers then count as part of it.
    """
    request, reasons = derive(components), []
    for variant in variants:
        if variant.get("request") != request and not any_compiler:
            continue
        try:
            closure = closure_from_json(variant.get("closure"))
        except ValueError:
            continue
        paths = tuple(str(each) for each in variant.get("paths", ()))
        if not set(paths) <= set(search.folders):
            reasons.append(f"its code holds the path {paths[0]}, which is not searched now")
            continue
        where = _with_toolkit_of(closure, search) if any_compiler else search
        outcome = check_closure(closure, where, now_ns=time.time_ns())
        if not isinstance(outcome, Match):
            reasons.append(f"{outcome.change} {outcome.path}: {outcome.old} is now {outcome.new}")
            continue
        key = str(variant.get("key"))
        if variant.get("request") == request:
            key = derive((*components, *_components(closure, paths)))
        renewed = {**variant, "closure": closure_to_json(outcome.refreshed)} if outcome.refreshed else None
        return Found(key, renewed, tuple(reasons))
    return Found(None, None, tuple(reasons))


def compile_and_learn(
    build: Callable[[Any], Artifact], question: HeaderQuestion, toolchain: Toolchain
) -> tuple[Artifact, Learned]:
    """Compile a source that includes files, and learn what the result depends on.

    Args:
        build: Compiles with a trace.
        question: The source and where it looks for files.
        toolchain: The compilers.
    """
    from .toolchain.nvrtc import nvrtc_version

    search = question.search(toolchain)
    survey = survey_headers(question.text, search, now_ns=time.time_ns())
    with time_trace(nvrtc_version()) as trace:
        artifact = build(trace)
        closure = learn_closure(survey, read_trace(trace.read()) if trace else None)
    if isinstance(closure, Uncapturable):
        where = f" in {closure.path}" if closure.path else ""
        return artifact, Learned(doubt=f"its headers cannot be captured: {closure.doubt}{where}")
    paths = find_embedded_paths(artifact.cubin, search.folders)
    variant = {"closure": closure_to_json(closure), "paths": list(paths)}
    return artifact, Learned(_components(closure, paths), variant)


def _components(closure: Closure, paths: Sequence[str]) -> tuple[Component, ...]:
    found = (component("headers", closure_value(closure)),)
    return (*found, component("paths", list(paths))) if paths else found


def _with_toolkit_of(closure: Closure, search: Search) -> Search:
    """The search as if the toolkit were the one of the closure, for code that any compiler may have made.

    Its headers went into that compiler's code; on this machine they may be others, or none.
    """
    own = search.folders[: len(search.folders) - sum(tree >= 0 for tree, _ in search.layout())]
    identities = dict(closure.trees)
    trees = tuple(
        Tree(f"/nonexistent/toolkit{index}", identities.get(index, ""))
        for index in range(max((tree for tree, _ in closure.layout), default=-1) + 1)
    )
    toolkit = tuple(
        trees[tree].root if rest in ("", ".") else f"{trees[tree].root}/{rest}"
        for tree, rest in closure.layout
        if tree >= 0
    )
    return search._replace(folders=(*own, *toolkit), trees=trees)
