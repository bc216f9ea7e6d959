"""The figures of the documents are those of the committed results, and no others."""

from __future__ import annotations

import ast
import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
ABOUT_RESULTS = {"plots", "run", "tables"}
SCRIPTS = sorted(
    path for path in BENCHMARKS.glob("*.py") if "__main__" in path.read_text() and path.stem not in ABOUT_RESULTS
)


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Import a module of benchmarks/ by name, as its scripts do."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))

    def module(name: str) -> ModuleType:
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    return module


def test_every_table_is_what_its_result_says(load) -> None:  # type: ignore[no-untyped-def]
    """tables.py changes nothing: neither was a table edited by hand, nor a result committed without its table."""
    tables = load("tables")

    for name, (document, _make) in tables.TABLES.items():
        text = (ROOT / document).read_text()
        assert f"<!-- table: {name} -->" in text, f"{document} has no place for {name}"
        assert tables.written(name, text) == text, f"run benchmarks/tables.py: {name} in {document} is not its result"
    for path in tables.ILLUSTRATED:
        page = (ROOT / path).read_text()
        assert tables.with_pictures(page) == page, "run benchmarks/tables.py: a picture was drawn or taken away"


def test_every_picture_is_drawn_from_the_committed_result(load) -> None:  # type: ignore[no-untyped-def]
    """It names the digest of the result that it was drawn from, on light pages and on dark ones."""
    plots = load("plots")

    for name in plots.PICTURES:
        if not (BENCHMARKS / f"results/{plots.RESULT_OF.get(name, name)}.json").is_file():
            continue
        for page in plots.PAGES:
            text = (ROOT / f"docs/img/{name}-{page}.svg").read_text()
            assert plots.source_of(name) in text, f"run benchmarks/plots.py: {name}-{page}.svg is of other figures"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_every_script_says_what_it_does_not_show(script: Path) -> None:
    """In its docstring, and it begins with its question."""
    said = ast.get_docstring(ast.parse(script.read_text())) or ""

    assert "\nShows not   " in said
    assert said.splitlines()[0].endswith("?")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_every_script_stands_on_a_page(script: Path) -> None:
    """One of the pages about speed, or that about keys, names it."""
    pages = [*(ROOT / "docs").glob("performance*.md"), ROOT / "docs/keys.md"]

    assert any(f"benchmarks/{script.name}" in page.read_text() for page in pages)


def test_every_table_says_what_it_does_not_show(load) -> None:  # type: ignore[no-untyped-def]
    """Below it, in the words of its script, where there is a result."""
    performance = load("performance")

    for name, make in performance.PERFORMANCE.items():
        try:
            made = make()
        except performance.NoResult:
            continue
        assert made.splitlines()[-1].startswith("Does not show: "), name


def test_one_entry_runs_every_script(load) -> None:  # type: ignore[no-untyped-def]
    """None is forgotten where all are run."""
    assert {script.name for script in load("run").SCRIPTS} == {path.stem for path in SCRIPTS}


def test_every_result_names_its_machine() -> None:
    """A figure without the machine it was taken on is none."""
    for path in (BENCHMARKS / "results").glob("*.json"):
        assert json.loads(path.read_text())["machine"], path.name
