"""The key derived from recorded transcripts: each comparison is needed, and no content of an index makes it fail."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from numba_kcache.headers import lookup as header_lookup
from numba_kcache.headers.lookup import FoundKey, find_key, read_row, without_stats
from numba_kcache.headers.transcript import transcript_components, transcript_to_json
from numba_kcache.keys import Component, component, derive
from tests.support.header_projects import Project, one_header

COMPONENTS = (component("source", "text"), component("compilers", {"nvrtc": "1"}))
OTHERS = (component("source", "text"), component("compilers", {"nvrtc": "2"}))


def row(project: Project, components: tuple[Component, ...] = COMPONENTS, **more: Any) -> dict[str, Any]:
    """A row of an index for the project's source."""
    transcript = transcript_to_json(project.learn())
    return {"key": "0" * 64, "request": derive(components), "transcript": transcript, "paths": [], **more}


class World:
    """An index, and where a look-up now finds headers."""

    def __init__(self, root: Path) -> None:
        self.project = Project(root)
        one_header(self.project)
        self.rows = [row(self.project)]

    def find(self, find: Callable[..., FoundKey] = find_key, *, any_compiler: bool = False) -> FoundKey:
        return find(self.rows, COMPONENTS, self.project.roots, any_compiler=any_compiler)


def other_compiler(world: World) -> None:
    world.rows = [row(world.project, OTHERS)]


def path_in_code(world: World) -> None:
    world.rows = [row(world.project, paths=[[0, "/elsewhere"]])]


def header(world: World) -> None:
    world.project.write("second/header.h", "#define VALUE 2\n")


COMPARISONS: dict[str, tuple[str, str, Callable[[World], None]]] = {
    "request": ('if stored.get("request") != request and not any_compiler:', "if False:", other_compiler),
    "paths": ("if not all(is_there_still(each, roots) for each in row.paths):", "if False:", path_in_code),
    "headers": ("return outcome if isinstance(outcome, Match) else None", "return Match()", header),
}
"""Each comparison of the look-up, what takes it out, and what would then be stale."""


@pytest.mark.parametrize("comparison", COMPARISONS)
def test_lookup_needs_comparison(tmp_path: Path, comparison: str) -> None:
    """Without it, stale code is served."""
    old, new, change = COMPARISONS[comparison]
    source = inspect.getsource(header_lookup)
    assert source.count(old) == 1
    names = {"__name__": header_lookup.__name__, "__package__": header_lookup.__package__}
    exec(source.replace(old, new), names)
    world = World(tmp_path)
    before = world.find().key
    assert before == world.find(names["find_key"]).key is not None

    change(world)

    assert world.find().key is None
    assert world.find(names["find_key"]).key is not None


def test_other_compilers_code_is_named_by_its_own_key(tmp_path: Path) -> None:
    """With toolchain="any" the key in the index is used, since the other compiler's key cannot be derived here."""
    world = World(tmp_path)
    other_compiler(world)

    assert world.find(any_compiler=True).key == "0" * 64


@pytest.mark.parametrize("stored", [None, [], [None], [{}, {}], {}, "xx", {"format": 1}])
def test_row_of_another_shape_is_passed_over(tmp_path: Path, stored: Any) -> None:
    """A row of an older version, or of another request, is a miss and no exception."""
    world = World(tmp_path)
    whole = world.rows[0]

    world.rows = [{**whole, "transcript": stored}, whole]

    assert world.find().key == derive((*COMPONENTS, *transcript_components(read_row(whole).transcript, ())))


def test_row_for_another_machine_has_no_stats(tmp_path: Path) -> None:
    """Inodes and times mean nothing there; the key is the same."""
    world = World(tmp_path)
    bare = without_stats(world.rows[0])
    key = world.find().key
    world.rows = [bare]

    assert read_row(bare).transcript.stats == {}
    assert world.find().key == key
    assert world.find().renewed is not None
