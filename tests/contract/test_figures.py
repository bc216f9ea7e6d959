"""The figures of the documents are those of the committed results, and no others."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.programs import program

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
    """tables.py changes nothing: no table was edited by hand, and no result was committed without its table."""
    tables = load("tables")

    for name, (document, _make) in tables.TABLES.items():
        text = (ROOT / document).read_text()
        assert f"<!-- table: {name} -->" in text, f"{document} has no place for {name}"
        assert tables.written(name, text) == text, f"run benchmarks/tables.py: {name} in {document} is not its result"


def test_every_picture_is_drawn_from_the_committed_result(load) -> None:  # type: ignore[no-untyped-def]
    """Each picture, light and dark, names the digest of the committed result."""
    plots = load("plots")

    for name in plots.PICTURES:
        if not (BENCHMARKS / f"results/{plots.RESULT_OF.get(name, name)}.json").is_file():
            continue
        for page in plots.PAGES:
            text = (ROOT / f"docs/img/{name}-{page}.svg").read_text()
            assert plots.source_of(name) in text, f"run benchmarks/plots.py: {name}-{page}.svg is of other figures"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_every_script_says_what_it_does_not_show(script: Path) -> None:
    """A script's docstring begins with its question and has `Not shown`."""
    said = ast.get_docstring(ast.parse(script.read_text())) or ""

    assert "\nNot shown   " in said
    assert said.splitlines()[0].endswith("?")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_every_script_stands_on_a_page(script: Path) -> None:
    """Each script is named on one of the pages about speed, or on that about keys."""
    pages = [*(ROOT / "docs").glob("performance*.md"), ROOT / "docs/keys.md"]

    assert any(f"benchmarks/{script.name}" in page.read_text() for page in pages)


def test_every_table_says_what_it_does_not_show(load) -> None:  # type: ignore[no-untyped-def]
    """Below each table about speed is what its benchmark does not show, in the words of the script."""
    tables, of_several_results = load("tables"), {"gains", "run", "added", "aims"}

    for name, make in tables.DOCUMENTS["docs/performance.md"].items():
        if name in of_several_results:
            continue
        try:
            made = make()
        except sys.modules["results"].NoResult:
            continue
        assert made.splitlines()[-1].startswith("Does not show: "), name


def test_tables_and_pictures_show_rows_that_the_scripts_measure(load) -> None:  # type: ignore[no-untyped-def]
    """The names of systems in tables and pictures are those of the scripts, so that a new result fills them."""
    added, first_launch = load("added"), load("first_launch")
    measured = {
        "first_launch": first_launch.SYSTEMS,
        "launch": load("launch").SYSTEMS,
        "warm_steps": first_launch.STEPS,
    }

    for name, shown in load("plots").SHOWN.items():
        assert {*shown} <= {*measured[name]}, name
    for _program, _over, pair, system in load("tables").ADDED:
        assert {pair, f"cold {pair}"} & {*added.PAIRS}, pair
        assert not system or f"numba_kcache, {system}" in first_launch.STEPS, system


def test_one_entry_runs_every_script(load) -> None:  # type: ignore[no-untyped-def]
    """run.py lists every script."""
    run = load("run")

    assert {run.script_of(name).split()[0] for name in run.MEASUREMENTS} == {path.name for path in SCRIPTS}


def test_every_result_names_its_machine() -> None:
    """Each result names the machine on which it was measured."""
    for path in (BENCHMARKS / "results").glob("*.json"):
        assert json.loads(path.read_text())["machine"], path.name


def test_result_of_another_commit_than_most_names_it_below_its_table(load, tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """If results are of two commits, the page names both, and each table its own."""
    tables, results = load("tables"), sys.modules["results"]
    machine = {"gpu": None, "cores": 2, "python": "3.12.3", "time": "2026-01-02T03:04:05Z"}
    of = {"first_launch": "aaaaaaaaaaaa", "launch": "aaaaaaaaaaaa", "modules": "bbbbbbbbbbbb"}
    for name, commit in of.items():
        result = {"machine": {"commit": commit, **machine}, "samples": {}}
        (tmp_path / f"{name}.json").write_text(json.dumps(result))
    monkeypatch.setattr(results, "RESULTS", tmp_path)

    assert tables.run() == "2 of 3 results are of commit `aaaaaaaaaaaa`; the others: `bbbbbbbbbbbb`: modules."
    assert results.machine_of(results.result_of("launch")).endswith("2026-01-02.")
    assert results.machine_of(results.result_of("modules")).endswith("Commit `bbbbbbbbbbbb`.")


def test_result_names_the_commit_it_was_taken_at(load) -> None:  # type: ignore[no-untyped-def]
    """The machine's header has the commit, with a `+` if a file differs from it."""
    commit = load("harness").machine_header()["commit"]

    assert re.fullmatch(r"[0-9a-f]{12}\+?|unknown", commit)


def test_note_beside_a_copy_names_its_commit_whatever_repository_it_lies_in(load, tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """A copy of the tree inside another repository does not get that repository's commit."""
    harness = load("harness")
    (tmp_path / "COMMIT").write_text("0123456789abcdef0123456789abcdef01234567\n")
    as_someone = [program("git"), "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "another"]):
        subprocess.run([*as_someone, *words], check=True)
    monkeypatch.setattr(harness, "ROOT", tmp_path)

    assert harness.commit() == "0123456789ab"


def test_result_of_a_script_that_is_stopped_while_it_writes_is_the_one_before(load, tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """A result is written after each part, and always complete."""
    result = load("harness").Result(tmp_path / "there/some.json", "some")
    result.add(first=1)
    monkeypatch.setattr(Path, "replace", lambda *_: pytest.fail("stopped"))

    with pytest.raises(pytest.fail.Exception):
        result.add(second=2)

    assert json.loads((tmp_path / "there/some.json").read_text())["samples"] == {"first": [1]}


STOPPED = """
import os, signal, harness
def measure(result, arguments):
    result.add("some", first=0.5)
    os.kill(os.getpid(), signal.SIGKILL)
harness.run("How?", {"some": (measure, None)})
"""


def test_script_that_is_killed_leaves_its_samples_and_a_note(tmp_path: Path) -> None:
    """A benchmark that its limit kills has written what it measured, how long it took, and that it was cut."""
    path = tmp_path / "some.json"
    variables = {**os.environ, "PYTHONPATH": str(BENCHMARKS)}

    done = subprocess.run([sys.executable, "-c", STOPPED, "--json", str(path)], env=variables, check=False)

    found = json.loads(path.read_text())
    assert done.returncode == -signal.SIGKILL
    assert (found["is_cut"], found["samples"]) == (True, {"some": {"first": [0.5]}})
    assert found["took_s"] >= 0


def test_aim_is_met_missed_or_not_measured_as_its_result_says(load, tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """The table has a row for missed aims, and for those whose result is missing or incomplete."""
    aims = load("aims")
    monkeypatch.setattr(sys.modules["results"], "RESULTS", tmp_path)

    def result(name: str, **found: object) -> None:
        (tmp_path / f"{name}.json").write_text(json.dumps({"machine": {}, **found}))

    result("cuda_compute", milliseconds={"scan": {"cache": 12.0, "memory": 9.0}})
    result("compile_overhead", summary={"sources": 149})
    result("triton_kernels", found={"own": "it died"})

    rows = {aim.of: line for aim, line in zip(aims.AIMS, aims.aims().splitlines()[2:], strict=False)}

    assert "| 3 | met |" in rows["cuda_compute"]
    assert "| 149 | **missed** |" in rows["compile_overhead"]
    assert "| – | not measured |" in rows["triton_kernels"]
