"""Change one place of the package at a time and run the tests of its room: a mutant that no test kills shows a gap.

Method      .ci/mutants.json lists the mutants: file, function, kind, text of the place, and which of equal places. So a
            mutant outlives edits elsewhere; one whose text has gone is skipped. The tests run on a copy of the tree.
            First, the quick tests run on a copy that notes which test reaches which place, in any process; those that
            fail on this machine are left out. Then each mutant meets the tests of its room that reach it, and, if it
            survives, the others of their files. The slow tests meet in the same way what the quick ones left. A place
            that runs when a module is imported, or whose result is kept, is reached by all tests of its room.
Run         python3 .ci/mutants.py RESULTS.json [--within SECONDS] [--only N]
            A second run with the same file goes on where the first ended.
            python3 .ci/mutants.py list SEED draws others in place of those whose text has gone.
            Without the second NVRTC of .ci/run (NUMBA_KCACHE_TEST_NVRTC12), mutants of headers survive that it shows.
"""

from __future__ import annotations

import argparse
import ast
import glob
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / ".ci" / "mutants.json"
TO_LIST = 300
SURVIVED = {"not slow": "survived quick tests", "slow": "survived"}
LEFT_OUT = (".git", ".venv", "build", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis")

ROOMS = {
    "keys.py": "property/test_keys contract/test_keys_table unit/test_source unit/test_session unit/test_nearest",
    "store/": "unit/test_store_* unit/test_bombs unit/test_cache_entries unit/test_lease unit/test_modes_on_disk "
    "unit/test_tier_lookup property/test_store_laws crash/test_store_* race/test_store_* race/test_waits "
    "integration/test_poisoned_* integration/test_shutdown",
    "headers/": "unit/test_header_* unit/test_missing_headers unit/test_words unit/test_source_build "
    "unit/test_cupy_adapter unit/test_cuda_core_adapter unit/test_nvrtc_calls race/test_adapters race/test_reentrance "
    "integration/test_*_headers integration/test_header_places integration/test_observer",
    "launch/": "unit/test_arguments unit/test_keywords unit/test_launch_* unit/test_native unit/test_streams "
    "property/test_native_arguments property/test_packing property/test_parameter_layout unit/test_kernel "
    "unit/test_module race/test_loads integration/test_*_on_fake_driver integration/test_without_numba",
    "frontends/numba/": "unit/test_numba_* unit/test_python_* unit/test_code_* unit/test_compiled_code "
    "unit/test_configurations unit/test_copies unit/test_garbage unit/test_mlir* property/test_python_function_laws "
    "property/test_load_order contract/test_numba_equality integration/test_numba_* "
    "integration/test_mlir_* integration/test_stand_in*",
}
"""The mutated rooms of the package, and the tests (below tests/) of each."""

NOTE = """from os import O_APPEND, O_WRONLY, close, environ, open, write
noted = set()
def note(number):
    line = f"{number} {environ.get('PYTEST_CURRENT_TEST', '')}\\n".encode()
    if line not in noted:
        noted.add(line)
        file = open(%r, O_WRONLY | O_APPEND)
        write(file, line)
        close(file)
"""
"""A module of the copy: notes which test, if any, reaches a place, also where tests replace functions of `os`."""

OPPOSITES = ((ast.Eq, ast.NotEq), (ast.Lt, ast.GtE), (ast.Gt, ast.LtE), (ast.Is, ast.IsNot), (ast.In, ast.NotIn))
FLIPPED: dict[Any, Any] = {one: other for pair in OPPOSITES for one, other in (pair, pair[::-1])}


class Mutant(NamedTuple):
    """One change; `nth` counts the places of the function that have this kind and text."""

    file: str
    function: str
    kind: str
    text: str
    nth: int = 0


def change_of(node: ast.AST) -> tuple[str, str]:
    """The kind of change at this node and its new text; "" for none."""
    match node:
        case ast.Expr(value=ast.Call()):
            return "call removed", "pass"
        case ast.Constant(value=bool() as value):
            return "constant", repr(not value)
        case ast.Constant(value=int() as value):
            return "constant", repr(value + 1)
        case ast.Compare(left=left, ops=[how], comparators=others):
            return "comparison", f"({ast.unparse(ast.Compare(left, [FLIPPED[type(how)]()], others))})"
        case ast.Call() | ast.Name() | ast.Attribute() | ast.BoolOp() | ast.UnaryOp() | ast.NamedExpr():
            return "condition", f"(not ({ast.unparse(node)}))"
    return "", ""


def places_of(file: str, tree: ast.AST) -> Iterator[tuple[Mutant, ast.AST, str]]:
    """All mutants of a file, each with the node that it replaces and the new text. Messages and types stay."""
    seen: Counter[Mutant] = Counter()

    def walk(node: ast.AST, function: str, is_condition: bool) -> Iterator[tuple[Mutant, ast.AST, str]]:
        if isinstance(node, ast.Raise) or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            return
        kind, new = change_of(node)
        if kind and (is_condition or kind != "condition"):
            mutant = Mutant(file, function, kind, ast.unparse(node))
            yield mutant._replace(nth=seen[mutant]), node, new
            seen[mutant] += 1
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            function = f"{function}.{node.name}".removeprefix(".")
        for field, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and field not in ("annotation", "returns", "decorator_list"):
                    yield from walk(child, function, field == "test")

    yield from walk(tree, "", is_condition=False)


def mutated(source: str, mutant: Mutant) -> str | None:
    """The file's text with this change; None if the place has gone."""
    for found, node, new in places_of(mutant.file, ast.parse(source)):
        if found == mutant and isinstance(node, ast.expr | ast.stmt):
            lines = [line.encode() for line in source.splitlines(keepends=True)]
            first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
            changed = lines[first][: node.col_offset] + new.encode() + lines[last][node.end_col_offset :]
            return b"".join([*lines[:first], changed, *lines[last + 1 :]]).decode()
    return None


def write_list(seed: int) -> None:
    chance, mutants = random.Random(seed), list[Mutant]()
    listed = {Mutant(*each) for each in json.loads(LIST.read_text(encoding="utf-8"))}
    for number, room in enumerate(ROOMS):
        paths = [path for path in sorted(ROOT.glob("numba_kcache/**/*.py")) if room_of(str(path)) == room]
        trees = [(str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))) for path in paths]
        places = {mutant for name, tree in trees for mutant, _, _ in places_of(name, tree)}
        share = (TO_LIST - len(mutants)) // (len(ROOMS) - number)  # later rooms take what a small one leaves
        kept, others = sorted(places & listed)[:share], sorted(places - listed)
        mutants += sorted(kept + chance.sample(others, min(share - len(kept), len(others))))
    LIST.write_text("[\n" + ",\n".join(json.dumps(each) for each in mutants) + "\n]\n", encoding="utf-8")


def room_of(file: str) -> str:
    return next((room for room in ROOMS if f"numba_kcache/{room}" in file), "")


def noting(source: str, numbers: dict[Mutant, int]) -> tuple[str, list[Mutant]]:
    """The text of a file that notes each statement of a function that has one of these mutants, and which those are."""
    tree, noted = ast.parse(source), list[Mutant]()
    places = {node: each for each, node, _ in places_of(next(iter(numbers)).file, tree) if each in numbers}

    def own(node: ast.AST) -> Iterator[ast.AST]:
        yield node
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.stmt):
                yield from own(child)

    def visit(node: ast.AST, is_within: bool) -> None:
        if isinstance(node, ast.FunctionDef):
            is_within = not any("cache" in ast.unparse(each) for each in node.decorator_list)
        for _, value in ast.iter_fields(node):
            children = value if isinstance(value, list) else [value]
            for child in [each for each in children if isinstance(each, ast.AST)]:
                visit(child, is_within)
                if is_within and isinstance(child, ast.stmt):
                    here = [places[part] for part in own(child) if part in places]
                    calls = [f"__import__('numba_kcache.noted').noted.note({numbers[each]})" for each in here]
                    at = children.index(child)
                    children[at:at] = ast.parse("\n".join(calls)).body
                    noted.extend(here)

    visit(tree, is_within=False)
    return ast.unparse(tree), noted


class Runs:
    """The run that notes what tests reach, then the mutants in random order, with their results in one file."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self.tree, self.path = folder / ROOT.name, Path(arguments.results)
        self.end = time.monotonic() + arguments.within
        self.results: dict[str, Any] = json.loads(self.path.read_text()) if self.path.is_file() else {}
        self.mutants = [Mutant(*each) for each in json.loads(LIST.read_text(encoding="utf-8"))]
        shutil.copytree(ROOT, self.tree, ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=True)
        self.files = {
            room: [path for each in tests.split() for path in glob.glob(f"tests/{each}.py", root_dir=self.tree)]
            for room, tests in ROOMS.items()
        }

    def test(self, tests: list[str], *more: str, limit_s: float = 1e9) -> tuple[int, str] | None:
        """Exit code and output of these tests in the tree; -9 past the limit, None when time is over."""
        (listed := self.tree.with_suffix(".tests")).write_text("\n".join(tests), encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-rfE", "--tb=no"]
        command += [f"--basetemp={self.tree}.tmp", *more, f"@{listed}"]
        env, until = {**os.environ, "PYTHONPATH": str(self.tree)}, min(self.end, time.monotonic() + limit_s)
        with tempfile.TemporaryFile("w+") as output:
            streams: dict[str, Any] = {"stdout": output, "stderr": output}
            ran = subprocess.Popen(command, cwd=self.tree, env=env, start_new_session=True, **streams)
            try:
                ran.wait(max(until - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                os.killpg(ran.pid, signal.SIGKILL)
            output.seek(0)
            return None if ran.wait() == -signal.SIGKILL and until == self.end else (ran.returncode, output.read())

    def note_reached(self, marks: str, mutants: list[Mutant]) -> bool:
        """Whether the results have what each test takes, which fail unchanged, and which reach each mutant's place."""
        if marks in self.results or not mutants:
            return marks in self.results
        sources = {file: (self.tree / file).read_text(encoding="utf-8") for file in {each.file for each in mutants}}
        note, reached = self.tree / "numba_kcache/noted.py", self.tree.with_suffix(".reached")
        note.write_text(NOTE % str(reached), encoding="utf-8")
        reached.write_text("", encoding="utf-8")
        by_place: dict[str, set[str]] = {}
        for file, source in sources.items():
            new, noted = noting(source, {each: at for at, each in enumerate(mutants) if each.file == file})
            (self.tree / file).write_text(new, encoding="utf-8")
            by_place |= {json.dumps(each): set() for each in noted}
        tests = sorted({file for each in mutants for file in self.files[room_of(each.file)]})
        done = self.test(tests, "-m", f"{marks} and not gpu", "--durations=0", "--durations-min=0")
        for file, source in sources.items():
            (self.tree / file).write_text(source, encoding="utf-8")
        note.unlink()
        failed = failures(done[1]) if done else []
        again = self.test(failed) if failed else (0, "")
        if done is None or again is None:
            return False
        takes_s = Counter[str]()
        for seconds, test in re.findall(r"^([\d.]+)s (?:setup|call|teardown) +(\S.*)$", done[1], re.MULTILINE):
            takes_s[test] += float(seconds)
        for line in reached.read_text(encoding="utf-8").splitlines():
            number, _, test = line.partition(" ")
            by_place[json.dumps(mutants[int(number)])].add(test.rpartition(" ")[0])
        self.results[marks] = {"takes_s": takes_s, "left out": failures(again[1])}
        self.results[marks]["reached"] = {place: sorted(tests) for place, tests in by_place.items()}
        self.path.write_text(json.dumps(self.results, indent=1), encoding="utf-8")
        return True

    def run_mutant(self, mutant: Mutant, marks: str) -> None:
        path, place, found = self.tree / mutant.file, json.dumps(mutant), self.results[marks]
        source = path.read_text(encoding="utf-8") if path.is_file() else ""
        new, reached = mutated(source, mutant), {*found["reached"].get(place, [""])}
        files = {*self.files[room_of(mutant.file)]}
        if "" not in reached:
            files &= {test.partition("::")[0] for test in reached}
        takes_s, by_file = dict[str, float](), Counter[str]()
        for test, seconds in found["takes_s"].items():
            file = test.partition("::")[0]
            if file in files and not {test, file} & {*found["left out"]}:
                takes_s[test], by_file[file] = seconds, by_file[file] + seconds
        tests = sorted(takes_s, key=lambda test: (test not in reached, by_file[test.partition("::")[0]]))
        result = SURVIVED[marks] if new else "gone"
        if new and tests:
            path.write_text(new, encoding="utf-8")
            try:
                done = self.test(tests, "-x", limit_s=60 + 4 * sum(takes_s.values()))
            finally:
                path.write_text(source, encoding="utf-8")
            if done is None:
                return
            if done[0]:
                result = f"killed by {(*failures(done[1]), f'exit code {done[0]}')[0]}"
        self.results[place] = result
        self.path.write_text(json.dumps(self.results, indent=1), encoding="utf-8")

    def all(self, only: int | None) -> None:
        drawn = random.Random(0).sample(self.mutants, len(self.mutants))[:only]
        for before, marks in zip((None, SURVIVED["not slow"]), SURVIVED, strict=True):
            ends = {each: self.results.get(json.dumps(each)) for each in self.mutants}
            is_noted = self.note_reached(marks, [each for each, end in ends.items() if end in (None, before)])
            for mutant in drawn if is_noted else ():
                if ends[mutant] == before and time.monotonic() < self.end:
                    self.run_mutant(mutant, marks)
        ended = [(json.loads(each)[0], end) for each, end in self.results.items() if each.startswith("[")]
        counts = Counter((room_of(file), end.partition(" by")[0]) for file, end in ended)
        print(*(f"{room} {end}: {count}" for (room, end), count in sorted(counts.items())), sep="\n")


def failures(output: str) -> list[str]:
    return re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results")
    parser.add_argument("--within", type=float, default=1e9, metavar="SECONDS")
    parser.add_argument("--only", type=int, help="the number of mutants, drawn at random")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        Runs(arguments, Path(folder)).all(arguments.only)


if __name__ == "__main__":
    main() if sys.argv[1:2] != ["list"] else write_list(int(sys.argv[2]))
