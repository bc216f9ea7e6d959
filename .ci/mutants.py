"""Change one place of the package at a time and run the tests of its room: a mutant that no test kills shows a gap.

Method      .ci/mutants.json lists the mutants: file, function, kind, text of the place, and which of equal places. So a
            mutant outlives edits elsewhere; one whose text has gone is skipped. Each worker mutates a copy of the tree.
            A room's tests are first run unchanged, and those that fail on this machine are left out; then each mutant
            is tried against the quick ones and, if it survives, against the slow ones.
Run         python3 .ci/mutants.py RESULTS.json [--workers N] [--within SECONDS] [--only N]
            A second run with the same file goes on where the first ended.
            python3 .ci/mutants.py list SEED writes .ci/mutants.json anew.
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
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / ".ci" / "mutants.json"
TO_LIST = 300
MARKS = ("not slow", "slow")
LEFT_OUT = (".git", ".venv", "build", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis")

ROOMS = {
    "keys.py": "property/test_keys contract/test_keys_table unit/test_source unit/test_session unit/test_nearest",
    "store/": "unit/test_store_* unit/test_bombs unit/test_cache_entries unit/test_lease unit/test_modes_on_disk "
    "unit/test_tier_lookup property/test_store_laws crash/test_store_* race/test_store_* integration/test_poisoned_*",
    "headers/": "unit/test_header_* unit/test_missing_headers unit/test_words unit/test_source_build "
    "integration/test_*_headers integration/test_header_places integration/test_observer",
    "launch/": "unit/test_arguments unit/test_keywords unit/test_launch_* unit/test_native unit/test_streams "
    "property/test_native_arguments property/test_packing property/test_parameter_layout unit/test_kernel "
    "integration/test_*_on_fake_driver",
    "frontends/numba/": "unit/test_numba_* unit/test_python_* unit/test_code_* unit/test_compiled_code "
    "unit/test_configurations unit/test_copies unit/test_mlir* property/test_python_function_laws "
    "property/test_load_order contract/test_numba_equality integration/test_numba_* "
    "integration/test_mlir_* integration/test_stand_in*",
}
"""The mutated rooms of the package, and the tests (below tests/) of each."""

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


def places_of(file: str, source: str) -> Iterator[tuple[Mutant, ast.AST, str]]:
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

    yield from walk(ast.parse(source), "", is_condition=False)


def mutated(source: str, mutant: Mutant) -> str | None:
    """The file's text with this change; None if the place has gone."""
    for found, node, new in places_of(mutant.file, source):
        if found == mutant and isinstance(node, ast.expr | ast.stmt):
            lines = [line.encode() for line in source.splitlines(keepends=True)]
            first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
            changed = lines[first][: node.col_offset] + new.encode() + lines[last][node.end_col_offset :]
            return b"".join([*lines[:first], changed, *lines[last + 1 :]]).decode()
    return None


def write_list(seed: int) -> None:
    chance, mutants = random.Random(seed), list[Mutant]()
    for number, room in enumerate(ROOMS):
        paths = [path for path in sorted(ROOT.glob("numba_kcache/**/*.py")) if room_of(str(path)) == room]
        sources = [(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")) for path in paths]
        places = [mutant for name, source in sources for mutant, _, _ in places_of(name, source)]
        share = (TO_LIST - len(mutants)) // (len(ROOMS) - number)  # later rooms take what a small one leaves
        mutants += sorted(chance.sample(places, min(share, len(places))))
    LIST.write_text("[\n" + ",\n".join(json.dumps(each) for each in mutants) + "\n]\n", encoding="utf-8")


def room_of(file: str) -> str:
    return next((room for room in ROOMS if f"numba_kcache/{room}" in file), "")


class Runs:
    """Baselines and mutants, spread over workers, with their results in one file."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self.arguments, self.folder, self.path = arguments, folder, Path(arguments.results)
        self.end, self.lock = time.monotonic() + arguments.within, threading.Lock()
        self.results: dict[str, Any] = json.loads(self.path.read_text()) if self.path.is_file() else {}

    def test(self, room: str, marks: str, *more: str, limit_s: float = 1e9) -> tuple[int, list[str]] | None:
        """Exit code and failed tests of a room in this worker's tree; -9 past the limit, None when time is over."""
        tree = self.tree()
        files = [f for each in ROOMS[room].split() for f in sorted(glob.glob(f"tests/{each}.py", root_dir=tree))]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-rfE"]
        command += ["--tb=no", f"--basetemp={tree}.tmp", "-m", f"{marks} and not gpu", *more, *files]
        env = {**os.environ, "PYTHONPATH": str(tree)}
        until = min(self.end, time.monotonic() + limit_s)
        with tempfile.TemporaryFile("w+") as output:
            ran = subprocess.Popen(command, cwd=tree, env=env, stdout=output, stderr=output, start_new_session=True)
            try:
                ran.wait(max(until - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                os.killpg(ran.pid, signal.SIGKILL)
            output.seek(0)
            failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output.read(), re.MULTILINE)
        return None if ran.wait() == -signal.SIGKILL and until == self.end else (ran.returncode, failed)

    def tree(self) -> Path:
        """This worker's copy of the repository."""
        tree = self.folder / threading.current_thread().name / ROOT.name
        if not tree.is_dir():
            shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=True)
        return tree

    def run_unchanged(self, part: tuple[str, str]) -> None:
        room, marks = part
        start = time.monotonic()
        if f"{room} {marks}" not in self.results and (done := self.test(room, marks)) is not None:
            self.keep(f"{room} {marks}", {"took_s": round(time.monotonic() - start), "left out": done[1]})

    def run_mutant(self, mutant: Mutant) -> None:
        if json.dumps(mutant) in self.results or time.monotonic() >= self.end:
            return
        path, room = self.tree() / mutant.file, room_of(mutant.file)
        source = path.read_text(encoding="utf-8") if path.is_file() else ""
        new = mutated(source, mutant)
        result = "survived" if new else "gone"
        for marks in MARKS if new else ():
            plain = self.results[f"{room} {marks}"]
            left_out = [f"--{'deselect' if '::' in each else 'ignore'}={each}" for each in plain["left out"]]
            path.write_text(new or "", encoding="utf-8")
            try:
                done = self.test(room, marks, "-x", *left_out, limit_s=60 + 4 * plain["took_s"])
            finally:
                path.write_text(source, encoding="utf-8")
            if done is None:
                return
            if done[0] not in (0, 5):  # 5: no test has these marks
                result = f"killed by {(*done[1], f'exit code {done[0]}')[0]}"
                break
        self.keep(json.dumps(mutant), result)

    def keep(self, name: str, result: object) -> None:
        with self.lock:
            self.results[name] = result
            self.path.write_text(json.dumps(self.results, indent=1), encoding="utf-8")

    def all(self) -> None:
        mutants = [Mutant(*each) for each in json.loads(LIST.read_text(encoding="utf-8"))]
        mutants = random.Random(0).sample(mutants, self.arguments.only or len(mutants))
        unchanged = [(room, marks) for room in ROOMS for marks in MARKS]
        with ThreadPoolExecutor(self.arguments.workers) as workers:
            list(workers.map(self.run_unchanged, unchanged))
            list(workers.map(self.run_mutant, mutants))
        ended = [(json.loads(each)[0], end) for each, end in self.results.items() if each.startswith("[")]
        counts = Counter((room_of(file), end.split()[0]) for file, end in ended)
        print(*(f"{room} {end}: {count}" for (room, end), count in sorted(counts.items())), sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--within", type=float, default=1e9, metavar="SECONDS")
    parser.add_argument("--only", type=int, help="the number of mutants, drawn at random")
    with tempfile.TemporaryDirectory() as folder:
        Runs(parser.parse_args(), Path(folder)).all()


if __name__ == "__main__":
    main() if sys.argv[1:2] != ["list"] else write_list(int(sys.argv[2]))
