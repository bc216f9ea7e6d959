"""Measure the package: rooms and imports between them, modules and calls of a warm start, weight, old names.

Method      `ROOMS`, below, is the only list of the rooms in order. tests/contract/test_architecture.py imports this
            module and fails if one of its checks finds an offender. An import counts anywhere: in a function, under
            `TYPE_CHECKING`, or as a string that is a module's full name. For a warm start, .ci/warm_calls.py counts
            modules and calls in a fresh process on the tests' fake driver, after another process filled the cache.
            Weight is tokens, since lines can be made dense and tokens cannot.
Run         python3 .ci/house.py [--json FILE] [--list]    (with the project's environment: tasks.py house)
Ends        With exit code 1 if a figure is above its limit.
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
import tomllib
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
mlir
cuda
adapters
frontends/numba | frontends/source
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
one line do not import each other. `frontends/base` consists of the files directly in frontends/."""

LEVELS = {room.strip(): level for level, line in enumerate(ROOMS.strip().split("\n")) for room in line.split("|")}

OLD_NAMES = (
    "rehearsal", "rehearse", "numba_ahead", "read_ahead", "function_seen", "rolls", "explanations", "resolver",
    "behind", "doubt", "usual", "shipping", "launchable", "through", "find_unasked", "stand_ins", "meet_numba",
)  # fmt: skip
"""Retired words: no identifier of the package and no file name consists of one or contains it."""

OLD_MODULES = ("misses", "closures", "plans", "jobs", "compiling", "places", "layers", "finding")
"""Words that are retired for files and functions only: some of them are the right names for values."""

LIMITS = {
    "rooms without a place in the order": 0,
    "imports that point up or sideways": 0,
    "rooms in cycles": 0,
    "private names imported across rooms": 0,
    "private names reached from tests": 17,
    "modules in circles inside a room": 0,
    "imports of our own inside functions": 188,
    "CUDA C++, warm: modules": 14,
    "CUDA C++, warm: calls": 145,
    "CUDA C++, warm: crossings": 27,
    "Numba, warm: modules": 18,
    "Numba, warm: calls": 434,
    "tokens": 208_829,
    "tokens of C": 13_500,
    "modules": 149,
    "runtime dependencies": 5,
    "settings": 14,
    "public names": 51,
    "suppressions": 24,
    "columns of a line": 120,
    "names that were given up": 0,
}
"""The highest figure of each kind that CI accepts. A commit may lower a limit; none raises one."""

SUPPRESSION = re.compile(r"#.*\b(type: ignore|noqa|pyright: ignore)\b")
C_TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/|(?P<token>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|\w+(?:\.\w+)*"""
    r"""|\.\.\.|<<=|>>=|->|\+\+|--|<<|>>|&&|\|\||\#\#|[-+*/%&|^<>=!]=|[^\s\\])""",
    re.DOTALL,
)
STARTS = ("CUDA C++", "CUDA C++ on Numba's arrays", "Numba")


class Import(NamedTuple):
    """One import of a module of this package.

    Args:
        path: The file that contains the import.
        line: Its line in that file.
        module: The imported module, without the package's name: "store.disk"; "" for the package itself.
        name: The name imported from the module; "" if the module itself is imported.
        bound: The name that the module itself is bound to; "" if a name is imported from it.
        when: "import": with the module; "call": inside a function; "never": for type checkers alone.
    """

    path: Path
    line: int
    module: str
    name: str
    bound: str
    when: str = "import"


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
        """The room of a module, given without the package's name: `store.disk`."""
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
        """All imports of the package's modules in the package's files."""
        nodes = ((path, *each) for path, tree in self.trees.items() for each in timed(tree))
        return [found._replace(when=when) for path, node, when in nodes for found in self._imports_in(path, node)]

    def _imports_in(self, path: Path, node: ast.AST) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if (module := self._module_named(alias.name)) is not None:
                    yield Import(path, node.lineno, module, "", alias.asname or alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = self._above(path, node.level) if node.level else []
            home = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                if (module := self._module_named(f"{home}.{alias.name}")) is not None:
                    yield Import(path, node.lineno, module, "", alias.asname or alias.name)
                elif (module := self._module_named(home)) is not None:
                    yield Import(path, node.lineno, module, alias.name, "")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value != "numba_kcache" and (module := self._module_named(node.value)) is not None:
                yield Import(path, node.lineno, module, "", "")
        elif isinstance(node, ast.Call) and dotted(node.func).endswith("import_module") and node.args:
            first = node.args[0]
            if isinstance(first, ast.Constant) and str(first.value).startswith("."):
                base = self._above(path, len(first.value) - len(first.value.lstrip(".")))
                if (module := self._module_named(".".join([*base, first.value.lstrip(".")]))) is not None:
                    yield Import(path, node.lineno, module, "", "")

    def _above(self, path: Path, level: int) -> list[str]:
        """The parts of the name of the package that is this many levels above a file."""
        return ["numba_kcache", *path.relative_to(self.package).with_suffix("").parts][:-level]

    def _module_named(self, dotted_name: str) -> str | None:
        """The name without the package's, if it is a module of this package; otherwise None."""
        package, _, module = dotted_name.partition(".")
        return module if package == "numba_kcache" and module in self._modules else None

    def arrows(self) -> Counter[tuple[str, str]]:
        """Number of imports that lead from one room to another."""
        pairs = ((self.room_of(self.module_of(each.path)), self.room_of(each.module)) for each in self.imports)
        return Counter(pair for pair in pairs if pair[0] != pair[1])

    def unplaced(self) -> list[str]:
        return [room for room in self.rooms if room not in LEVELS]

    def not_down(self) -> list[str]:
        """Imports of a room that is not on a line further down than the importing module's room."""
        last = len(LEVELS)
        found = []
        for each in self.imports:
            room, other = self.room_of(self.module_of(each.path)), self.room_of(each.module)
            if room != other and LEVELS.get(room, last) >= LEVELS.get(other, -1):
                found.append(f"{self.name_of(each.path)}:{each.line} ({room}) imports {each.module or '__init__'}")
        return sorted(set(found))

    def cycles(self) -> list[str]:
        """Groups of rooms that import each other directly or indirectly, one line for each group."""
        imported: dict[str, set[str]] = {}
        for room, other in self.arrows():
            imported.setdefault(room, set()).add(other)
        return sorted({" ".join(group) for group in knots(imported).values()})

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

    def circles(self) -> list[str]:
        """Modules that import themselves through others of their room, each with those others."""
        imported: dict[str, set[str]] = {}
        for each in (each for each in self.imports if each.when != "never"):
            if self.room_of(here := self.module_of(each.path)) == self.room_of(each.module) and here != each.module:
                imported.setdefault(here, set()).add(each.module)
        return [f"{name or '__init__'}: {' '.join(others)}" for name, others in sorted(knots(imported).items())]

    def inner_imports(self) -> list[str]:
        """Lines inside functions that import modules of this package."""
        return sorted({f"{self.name_of(each.path)}:{each.line}" for each in self.imports if each.when == "call"})

    def tokens(self) -> dict[Path, int]:
        return {path: tokens(path.read_text(encoding="utf-8")) for path in self.paths}

    def suppressions(self) -> list[str]:
        """Comments that silence a checker."""
        lines = ((path, number, line) for path in self.paths for number, line in
                 enumerate(path.read_text(encoding="utf-8").splitlines(), start=1))  # fmt: skip
        return [f"{self.name_of(path)}:{number}" for path, number, line in lines if SUPPRESSION.search(line)]

    def rows_of(self, module: str, name: str) -> list[str]:
        """The items, as text, of a list or tuple that a module assigns to `name`."""
        for node in self.trees[self.package / module].body:
            if isinstance(node, ast.Assign) and name in map(dotted, node.targets):
                assert isinstance(node.value, ast.List | ast.Tuple)
                return [ast.unparse(each) for each in node.value.elts]
        raise LookupError(f"no {name} in {module}")

    def old_names(self) -> list[str]:
        """Files of the package and of its tests, and identifiers of the package, that contain a retired word."""
        root, every = self.package.parent, [*OLD_NAMES, *OLD_MODULES]
        tests = [path for path in (root / "tests").rglob("test_*.py") if path.stem.removeprefix("test_") in every]
        ours = [path for path in self.paths if any(_has(part, every) for part in Path(self.name_of(path)).parts)]
        found = {f"{path.relative_to(root)}: file" for path in (*ours, *tests)}
        for path, tree in self.trees.items():
            for node in ast.walk(tree):
                old = every if isinstance(node, ast.FunctionDef) else OLD_NAMES
                found |= {f"numba_kcache/{self.name_of(path)}: {name}" for name in names_in(node) if _has(name, old)}
        return sorted(found)

    def private_reaches(self) -> list[str]:
        """Lines of tests/ that reach a private name of this package: read it, set it, or import it."""
        nodes = [node for tree in self.trees.values() for node in ast.walk(tree)]
        ours = {name for node in nodes for name in names_made(node) if is_private(name)} - set(dir(NamedTuple("_", [])))
        found = set()
        for path in (self.package.parent / "tests").rglob("*.py"):
            file = path.relative_to(self.package.parent).as_posix()
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                reached = {each for name in names_reached(node) for each in name.split(".")} & ours
                found |= {f"{file}:{node.lineno} {name}" for name in reached}
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
    return name.startswith("_") and not name.endswith("_")


def names_made(node: ast.AST) -> Iterable[str]:
    """Names that this node gives to a function, a class, a variable, or an attribute of `self`."""
    if isinstance(node, ast.Attribute):
        return [node.attr] if isinstance(node.ctx, ast.Store) and dotted(node.value) in ("self", "cls") else []
    if isinstance(node, ast.Name):
        return [node.id] if isinstance(node.ctx, ast.Store) else []
    return [node.name] if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else []


def names_reached(node: ast.AST) -> Iterable[str]:
    """Names that this node takes from another object: an attribute, an import, or a text given to `setattr`."""
    if isinstance(node, ast.Attribute):
        owner = node.value.func if isinstance(node.value, ast.Call) else node.value
        return [] if dotted(owner) in ("self", "cls", "super") else [node.attr]
    if isinstance(node, ast.ImportFrom):
        return [*(node.module or "").split("."), *(each.name for each in node.names)]
    if isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] in ("setattr", "getattr", "delattr"):
        return [each.value for each in node.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return []


def names_in(node: ast.AST) -> Iterable[str]:
    """Identifiers in this node, without those in its children."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    found = [getattr(node, field, None) for field in ("id", "attr", "arg")]
    return [each for each in found if isinstance(each, str)]


def _has(name: str, old: Iterable[str]) -> bool:
    """Check whether a name contains one of `old` as a whole word: `rolls` is in `_read_rolls`, not in `Scrolls`."""
    words = "_".join(re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)).lower()
    return any(f"_{each}_" in f"_{words}_" for each in old)


def knots(imported: Mapping[str, set[str]]) -> dict[str, tuple[str, ...]]:
    """Those that import themselves, directly or through others, each with all that it is in a circle with."""
    reached = {each: _reached(each, imported) for each in imported}
    return {each: tuple(sorted(other for other in found if each in reached.get(other, ())))
            for each, found in reached.items() if each in found}  # fmt: skip


def _reached(start: str, imported: Mapping[str, set[str]]) -> set[str]:
    """List what `start` imports, directly or through others."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        more = imported.get(waiting.pop(), set()) - found
        found |= more
        waiting += more
    return found


def timed(node: ast.AST, when: str = "import") -> Iterator[tuple[ast.AST, str]]:
    """Each node below this one, and when it runs: see `Import.when`."""
    waiting = [(node, when)]
    while waiting:
        each, when = waiting.pop()
        if each is not node:
            yield each, when
        inner, unless = when, []
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and when == "import":
            inner = "call"
        elif isinstance(each, ast.If) and dotted(each.test) == "TYPE_CHECKING":
            unless = each.body
        below = [(child, "never" if child in unless else inner) for child in ast.iter_child_nodes(each)]
        waiting += reversed(below)


def tokens(text: str) -> int:
    """Number of names, operators, numbers and strings, without docstrings and other strings that are statements."""
    prose: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            prose.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    counted = (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING)
    found = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(each.type in counted and each.start[0] not in prose for each in found)


def tokens_of_c(text: str) -> int:
    """Number of names, operators, numbers and strings in C, without comments."""
    return sum(each.lastgroup == "token" for each in C_TOKEN.finditer(text))


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
    """Each figure by its name, and the list of items that it counts."""
    house = House(ROOT)
    items = {
        "modules": [house.name_of(path) for path in house.paths],
        "rooms": house.rooms,
        "arrows between rooms": [f"{room} -> {other}: {n}" for (room, other), n in sorted(house.arrows().items())],
        "rooms without a place in the order": house.unplaced(),
        "imports that point up or sideways": house.not_down(),
        "rooms in cycles": [room for knot in house.cycles() for room in knot.split()],
        "private names imported across rooms": house.private_imports(),
        "private names reached from tests": house.private_reaches(),
        "modules in circles inside a room": house.circles(),
        "imports of our own inside functions": house.inner_imports(),
    }
    for kind in STARTS:
        start = warm_start(kind)
        calls = [(room_pair(house, *call[:2]), f"{call[0] or 'the program'} -> {call[1]}.{call[2]}") for call in
                 start["calls"] for _ in range(call[3])]  # fmt: skip
        items[f"{kind}, warm: modules"] = start["modules"]
        items[f"{kind}, warm: calls"] = [text for _, text in calls]
        items[f"{kind}, warm: crossings"] = [f"{' -> '.join(rooms)}: {text}" for rooms, text in calls if rooms]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    weight: Counter[str] = Counter()
    for path, count in house.tokens().items():
        weight[house.room_of(house.module_of(path))] += count
    c_files = {path: tokens_of_c(path.read_text(encoding="utf-8")) for path in sorted(house.package.rglob("*.[ch]"))}
    items |= {
        "tokens": [f"{room}: {count}" for room, count in weight.most_common()],
        "tokens of C": [f"{house.name_of(path)}: {count}" for path, count in c_files.items()],
        "runtime dependencies": project["project"]["dependencies"],
        "settings": house.rows_of("settings.py", "SETTINGS"),
        "public names": house.rows_of("__init__.py", "__all__"),
        "suppressions": house.suppressions(),
        "names that were given up": house.old_names(),
    }
    figures = {name: len(found) for name, found in items.items()}
    figures |= {"tokens": weight.total(), "tokens of C": sum(c_files.values())}
    figures["columns of a line"] = project["tool"]["ruff"]["line-length"]
    return figures, items


def room_pair(house: House, caller: str, callee: str) -> tuple[str, ...]:
    """The rooms of caller and callee; empty if they are the same or the program itself is the caller."""
    rooms = house.room_of(caller), house.room_of(callee)
    return rooms if caller and rooms[0] != rooms[1] else ()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write figures, limits and the items of each figure")
    parser.add_argument("--list", action="store_true", help="list the items of each figure above its limit")
    arguments = parser.parse_args()
    figures, items = measure()
    above = [name for name, now in figures.items() if now > LIMITS.get(name, now)]
    print(f"{'':43}{'now':>8} / limit")
    for name, now in figures.items():
        limit = f" / {LIMITS[name]:,}" if name in LIMITS else ""
        print(f"{name:43}{now:8,}{limit}{'  above' if name in above else ''}")
    print("\ntokens by room")
    for room, count in (each.rsplit(": ", 1) for each in (*items["tokens"], *items["tokens of C"])):
        print(f"{room:43}{int(count):8,}")
    for name in above if arguments.list else ():
        print(f"\n{name}:", *(f"{count:4} {item}" for item, count in Counter(items[name]).items()), sep="\n")
    if arguments.json:
        report = {"figures": figures, "limits": LIMITS, "items": items}
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return int(bool(above))


if __name__ == "__main__":
    raise SystemExit(main())
