"""Measure the package: rooms and imports between them, modules and calls of a warm start, size, old names.

Method      `ROOMS`, below, is the only list of the rooms in order. tests/contract/test_architecture.py imports it from
            here, with the functions that find offenders. An import counts anywhere: in a function, under
            `TYPE_CHECKING`, or as the whole name of a module in a string. .ci/warm_calls.py counts a warm start in a
            fresh process on the tests' fake driver, after a first process filled the cache.
Run         python3 .ci/house.py [--json FILE] [--list]    (with the project's environment: tasks.py house)
Ends        With 1 if a figure is above its limit.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]

ROOMS = """
__main__
__init__
cli
cache
doctor
bundles | warmup
numba_hook
module
get_or
kernel
adapters
frontends/numba | frontends/source | frontends/mlir
frontends/python
frontends/base
engine
explanation
headers
tiers | launch
toolchain | store | observe
keys
settings
waiting
model
version | errors
"""
"""The rooms of the package, top to bottom: a module imports its own room and the rooms of lines further down. Rooms in
one line do not import each other. `frontends/base` is the files that are in frontends/ itself."""

LEVELS = {room.strip(): level for level, line in enumerate(ROOMS.strip().split("\n")) for room in line.split("|")}

OLD_NAMES = (
    "rehearsal", "rehearse", "numba_ahead", "read_ahead", "function_seen", "rolls", "explanations", "resolver",
    "behind", "doubt", "usual", "shipping", "launchable", "through", "find_unasked", "stand_ins", "meet_numba",
)  # fmt: skip
"""Names that were given up: no identifier of the package and no file has them, alone or as a part."""

OLD_MODULES = ("misses", "closures", "plans", "jobs", "compiling", "places", "layers", "finding")
"""Names that no file and no function has any more; for values some of them are the right words."""

LIMITS = {
    "rooms without a place in the order": 0,
    "imports that point up or sideways": 0,
    "rooms in cycles": 0,
    "private names imported across rooms": 0,
    "CUDA C++, warm: modules": 30,
    "CUDA C++, warm: calls": 150,
    "CUDA C++, warm: crossings": 30,
    "Numba, warm: modules": 40,
    "lines of code": 26_000,
    "modules above 400 lines": 0,
    "names that were given up": 0,
}
MAX_LINES = 400
STARTS = ("CUDA C++", "CUDA C++ on Numba's arrays", "Numba")


class Import(NamedTuple):
    """One import of a module of this package.

    Args:
        path: The file that it is in.
        line: Its line there.
        module: What is imported, without the package's name: "store.disk"; "" for the package itself.
        name: The name that is taken out of the module; "" for the module itself.
        bound: What the module itself is called from here on; "" if a name is taken out of it.
    """

    path: Path
    line: int
    module: str
    name: str
    bound: str


class House:
    """One tree of the package, read once.

    Args:
        root: The folder that holds `numba_kcache/`.
    """

    def __init__(self, root: Path) -> None:
        self.package = root / "numba_kcache"
        self.paths = sorted(self.package.rglob("*.py"))
        self._modules = {self.module_of(path) for path in self.paths}

    @cached_property
    def trees(self) -> Mapping[Path, ast.Module]:
        return {path: ast.parse(path.read_text(encoding="utf-8")) for path in self.paths}

    def name_of(self, path: Path) -> str:
        return path.relative_to(self.package).as_posix()

    def module_of(self, path: Path) -> str:
        return self.name_of(path).removesuffix(".py").removesuffix("__init__").rstrip("/").replace("/", ".")

    def room_of(self, module: str) -> str:
        """The room of a module, by its name without the package's."""
        first, *others = module.split(".")
        if first != "frontends":
            return first or "__init__"
        kind = f"frontends/{others[0]}" if others else ""
        return kind if (self.package / kind).is_dir() and kind else "frontends/base"

    @cached_property
    def rooms(self) -> list[str]:
        return sorted({self.room_of(self.module_of(path)) for path in self.paths})

    @cached_property
    def imports(self) -> list[Import]:
        """Every import of this package by itself, wherever it is."""
        return [found for path, tree in self.trees.items() for node in ast.walk(tree) for found in self._of(path, node)]

    def _of(self, path: Path, node: ast.AST) -> Iterator[Import]:
        here = ["numba_kcache", *path.relative_to(self.package).with_suffix("").parts]
        if isinstance(node, ast.Import):
            for alias in node.names:
                if (module := self._ours(alias.name)) is not None:
                    yield Import(path, node.lineno, module, "", alias.asname or alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level] if node.level else []
            home = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                if (module := self._ours(f"{home}.{alias.name}")) is not None:
                    yield Import(path, node.lineno, module, "", alias.asname or alias.name)
                elif (module := self._ours(home)) is not None:
                    yield Import(path, node.lineno, module, alias.name, "")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value != "numba_kcache" and (module := self._ours(node.value)) is not None:
                yield Import(path, node.lineno, module, "", "")
        elif isinstance(node, ast.Call) and dotted(node.func).endswith("import_module") and node.args:
            first = node.args[0]
            if isinstance(first, ast.Constant) and str(first.value).startswith("."):
                base = here[: len(here) - (len(first.value) - len(first.value.lstrip(".")))]
                if (module := self._ours(".".join([*base, first.value.lstrip(".")]))) is not None:
                    yield Import(path, node.lineno, module, "", "")

    def _ours(self, dotted_name: str) -> str | None:
        """The module of this package with this name; None for any other name."""
        package, _, module = dotted_name.partition(".")
        return module if package == "numba_kcache" and module in self._modules else None

    def arrows(self) -> Counter[tuple[str, str]]:
        """Number of imports that lead from one room to another."""
        pairs = ((self.room_of(self.module_of(each.path)), self.room_of(each.module)) for each in self.imports)
        return Counter(pair for pair in pairs if pair[0] != pair[1])

    def unplaced(self) -> list[str]:
        return [room for room in self.rooms if room not in LEVELS]

    def not_down(self) -> list[str]:
        """Imports whose room does not stand in a line further down than the room they are in."""
        last = len(LEVELS)
        found = []
        for each in self.imports:
            room, other = self.room_of(self.module_of(each.path)), self.room_of(each.module)
            if room != other and LEVELS.get(room, last) >= LEVELS.get(other, -1):
                found.append(f"{self.name_of(each.path)}:{each.line} ({room}) imports {each.module or '__init__'}")
        return sorted(set(found))

    def cycles(self) -> list[str]:
        """Rooms that reach each other along the imports, a line for each knot of them."""
        ways: dict[str, set[str]] = {}
        for room, other in self.arrows():
            ways.setdefault(room, set()).add(other)
        reached = {room: _reached(room, ways) for room in ways}
        knots = {tuple(sorted(other for other in found if room in reached.get(other, ()))) for room, found in
                 reached.items() if room in found}  # fmt: skip
        return sorted(" ".join(knot) for knot in knots)

    def private_imports(self) -> list[str]:
        """Names with an underscore in front that another room imports, or reads from a module that it imports."""
        found = []
        for path, tree in self.trees.items():
            room, others = self.room_of(self.module_of(path)), {}
            for each in (each for each in self.imports if each.path == path and self.room_of(each.module) != room):
                if each.bound:
                    others[each.bound] = each.module
                if is_private(each.name) or is_private(each.module.rpartition(".")[2]):
                    found.append(f"{self.name_of(path)}:{each.line} imports {each.module}.{each.name}")
            reads = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and is_private(node.attr)]
            found += [f"{self.name_of(path)}:{node.lineno} reads {dotted(node)}" for node in reads
                      if dotted(node.value) in others]  # fmt: skip
        return sorted(found)

    def code_lines(self) -> dict[str, int]:
        """Lines of code of each file, without blank ones, comments and docstrings."""
        return {self.name_of(path): code_lines(path.read_text(encoding="utf-8")) for path in self.paths}

    def long_modules(self) -> list[str]:
        lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in self.paths}
        return [f"{self.name_of(path)}: {length}" for path, length in lengths.items() if length > MAX_LINES]

    def old_names(self) -> list[str]:
        """Files of the package and of its tests, and identifiers of the package, that have a name given up."""
        root, every = self.package.parent, [*OLD_NAMES, *OLD_MODULES]
        tests = [path for path in (root / "tests").rglob("test_*.py") if path.stem.removeprefix("test_") in every]
        ours = [path for path in self.paths if any(_has(part, every) for part in Path(self.name_of(path)).parts)]
        found = {f"{path.relative_to(root)}: file" for path in (*ours, *tests)}
        for path, tree in self.trees.items():
            for node in ast.walk(tree):
                old = every if isinstance(node, ast.FunctionDef) else OLD_NAMES
                found |= {f"numba_kcache/{self.name_of(path)}: {name}" for name in names_in(node) if _has(name, old)}
        return sorted(found)


def dotted(node: ast.AST) -> str:
    """`a.b.c` of an attribute chain; "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        start = dotted(node.value)
        return f"{start}.{node.attr}" if start else ""
    return ""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def names_in(node: ast.AST) -> Iterable[str]:
    """Identifiers that this node itself has."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    found = [getattr(node, field, None) for field in ("id", "attr", "arg")]
    return [each for each in found if isinstance(each, str)]


def _has(name: str, old: Iterable[str]) -> bool:
    """Check whether a name has one of these as a whole word: `Resolver` and `_read_rolls` have, `employer` has not."""
    words = "_".join(re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)).lower()
    return any(f"_{each}_" in f"_{words}_" for each in old)


def _reached(start: str, ways: Mapping[str, set[str]]) -> set[str]:
    """List everything that can be reached from here in one step or more."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        more = ways.get(waiting.pop(), set()) - found
        found |= more
        waiting += more
    return found


def code_lines(text: str) -> int:
    """Lines that hold code: no blank line, no comment, no docstring, and no string that is a statement by itself."""
    prose: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            prose.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in silent:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - prose)


def warm_start(kind: str) -> dict[str, Any]:
    """Modules of this package, and calls of our functions by caller and callee, in a fresh process whose cache is warm.

    Returns:
        `modules`, by name, and `calls`: caller ("" for the program), callee, function and how often.
    """
    sys.path.insert(0, str(ROOT))
    from tests.support.fake_driver import build, environment

    plain = {name: value for name, value in environment(build()).items() if not name.startswith("NUMBA_KCACHE_")}
    command = [sys.executable, str(ROOT / ".ci/warm_calls.py"), kind]
    with tempfile.TemporaryDirectory() as folder:
        env = {**plain, "NUMBA_KCACHE_DIR": folder}
        for _ in ("cold", "warm"):
            done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    assert found.pop("compiles") == 0
    return found


def measure() -> tuple[dict[str, int], dict[str, list[str]]]:
    """Each figure by its name, and what it is the number of, one by one."""
    house = House(ROOT)
    lines = sorted(house.code_lines().items(), key=lambda item: -item[1])
    items = {
        "modules": [house.name_of(path) for path in house.paths],
        "rooms": house.rooms,
        "arrows between rooms": [f"{room} -> {other}: {n}" for (room, other), n in sorted(house.arrows().items())],
        "rooms without a place in the order": house.unplaced(),
        "imports that point up or sideways": house.not_down(),
        "rooms in cycles": [room for knot in house.cycles() for room in knot.split()],
        "private names imported across rooms": house.private_imports(),
    }
    for kind in STARTS:
        start = warm_start(kind)
        each = [(room_pair(house, *call[:2]), f"{call[0] or 'the program'} -> {call[1]}.{call[2]}") for call in
                start["calls"] for _ in range(call[3])]  # fmt: skip
        items[f"{kind}, warm: modules"] = start["modules"]
        items[f"{kind}, warm: calls"] = [said for _, said in each]
        items[f"{kind}, warm: crossings"] = [f"{' -> '.join(rooms)}: {said}" for rooms, said in each if rooms]
    items["lines of code"] = [f"{name}: {count}" for name, count in lines]
    items["modules above 400 lines"] = house.long_modules()
    items["names that were given up"] = house.old_names()
    figures = {name: len(found) for name, found in items.items()}
    return {**figures, "lines of code": sum(count for _, count in lines)}, items


def room_pair(house: House, caller: str, callee: str) -> tuple[str, ...]:
    """The rooms that a call leads from and to; none where it stays in one, or comes from the program."""
    rooms = house.room_of(caller), house.room_of(callee)
    return rooms if caller and rooms[0] != rooms[1] else ()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write figures, limits and what is behind each figure")
    parser.add_argument("--list", action="store_true", help="list what is behind each figure above its limit")
    arguments = parser.parse_args()
    figures, items = measure()
    above = [name for name, now in figures.items() if now > LIMITS.get(name, now)]
    print(f"{'':43}{'now':>8} / limit")
    for name, now in figures.items():
        limit = f" / {LIMITS[name]:,}" if name in LIMITS else ""
        print(f"{name:43}{now:8,}{limit}{'  above' if name in above else ''}")
    print("largest modules, in lines of code:", ", ".join(items["lines of code"][:8]))
    for name in above if arguments.list else ():
        print(f"\n{name}:", *(f"{count:4} {item}" for item, count in Counter(items[name]).items()), sep="\n")
    if arguments.json:
        report = {"figures": figures, "limits": LIMITS, "items": items}
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return int(bool(above))


if __name__ == "__main__":
    raise SystemExit(main())
