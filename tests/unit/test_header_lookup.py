"""The key derived from recorded headers: each comparison is needed, and no content of a manifest makes it fail."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from numba_kcache.headers import lookup as header_lookup
from numba_kcache.headers.dependencies import headers_to_json, sets_components
from numba_kcache.headers.lookup import Found, find_key
from numba_kcache.headers.search import Search
from numba_kcache.keys import Component, component, derive
from tests.support.header_projects import Project, one_header

COMPONENTS = (component("source", "text"), component("compilers", {"nvrtc": "1"}))
OTHERS = (component("source", "text"), component("compilers", {"nvrtc": "2"}))


def variant(project: Project, components: tuple[Component, ...] = COMPONENTS, **more: Any) -> dict[str, Any]:
    """A manifest's content for a job that has the project's source twice, as its kernel's and as a linked text."""
    headers = headers_to_json(project.learn())
    return {"key": "0" * 64, "request": derive(components), "closures": [headers, headers], "paths": [], **more}


class World:
    """A manifest and where a lookup now finds headers for the two texts."""

    def __init__(self, root: Path) -> None:
        self.first, self.second = Project(root / "a"), Project(root / "b")
        for project in (self.first, self.second):
            one_header(project)
        self.variants = [variant(self.first)]

    def find(self, find: Callable[..., Found] = find_key, *, any_compiler: bool = False) -> Found:
        searches: list[Search] = [self.first.search, self.second.search]
        return find(self.variants, COMPONENTS, searches, any_compiler=any_compiler)


def other_compiler(world: World) -> None:
    world.variants = [variant(world.first, OTHERS)]


def path_in_code(world: World) -> None:
    world.variants = [variant(world.first, paths=[[0, "/elsewhere"]])]


def first_text(world: World) -> None:
    world.first.write("second/header.h", "#define VALUE 2\n")


def second_text(world: World) -> None:
    world.second.write("second/header.h", "#define VALUE 2\n")


COMPARISONS: dict[str, tuple[str, str, Callable[[World], None]]] = {
    "request": ('if variant.get("request") != request and not any_compiler:', "if False:", other_compiler),
    "paths": ("if not (isinstance(paths, list) and all(", "if not (True or all(", path_in_code),
    "headers": ("if not isinstance(outcome, Match):", "if not (outcome := Match()):", first_text),
    "headers of each text": ("zip(sets, searches, strict=True)", "zip(sets[:1], searches)", second_text),
}
"""Each comparison of the lookup, what takes it out, and what would then be stale."""


@pytest.mark.parametrize("comparison", COMPARISONS)
def test_lookup_needs_comparison(tmp_path: Path, comparison: str) -> None:
    """Without it, stale code is served."""
    old, new, change = COMPARISONS[comparison]
    source = inspect.getsource(find_key)
    assert source.count(old) == 1
    names = dict(vars(header_lookup))
    exec(source.replace(old, new), names)
    world = World(tmp_path)
    before = world.find().key
    assert before == world.find(names["find_key"]).key is not None

    change(world)

    assert world.find().key is None
    stale = world.find(names["find_key"])
    assert stale.key is not None


def test_every_way_on_is_taken_out_once() -> None:
    """The list above has every comparison of the look-up; an unreadable variant has a test below."""
    source = inspect.getsource(find_key)

    assert source.count("continue") + source.count("break") == len(COMPARISONS) - 1 + 2  # not read; not compiled


def test_other_compilers_code_is_named_by_its_own_key(tmp_path: Path) -> None:
    """With toolchain="any" the key in the manifest is used, since the other compiler's key cannot be derived here."""
    world = World(tmp_path)
    other_compiler(world)

    assert world.find(any_compiler=True).key == "0" * 64


@pytest.mark.parametrize("stored", [None, [], [None], [{}, {}], [None, {}], "xx", {"0": None, "1": None}])
def test_variant_of_another_shape_is_passed_over(tmp_path: Path, stored: Any) -> None:
    """A variant of an older version, or of another request, is a miss and no exception."""
    world = World(tmp_path)
    whole = world.variants[0]

    world.variants = [{**whole, "closures": stored}, whole]

    assert world.find().key == derive((*COMPONENTS, *sets_components(header_lookup.read_header_sets(whole, 2), ())))


def test_text_that_was_not_compiled_has_no_header_set(tmp_path: Path) -> None:
    """Numba's own runtime is not compiled for a kernel that does not need it, so it cannot make the code stale."""
    world = World(tmp_path)
    world.variants[0]["closures"][1] = None
    key = world.find().key
    second_text(world)

    assert world.find().key == key is not None
