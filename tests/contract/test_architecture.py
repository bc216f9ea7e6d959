"""Who may import whom, who may touch the world, and what is never done with stored bytes: read from the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import numba_kcache

PACKAGE = Path(numba_kcache.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))

RANKS = {
    "errors": 0,
    "model": 1,
    "keys": 2, "settings": 2,
    "inputs": 3, "toolchain": 3, "store": 3, "observe": 3,
    "launch": 4, "tiers": 4,
    "plans": 5, "jobs": 5, "numba_jobs": 5, "closures": 5, "ahead": 5, "lookup": 5,
    "rolls": 5, "misses": 5, "explanations": 5, "compiling": 5, "resolver": 5, "process_cache": 5,
    "launchable": 6, "kernel": 6, "rehearsal": 6, "module": 6,
    "numba_ahead": 6, "numba_cache": 6, "numba_kernel": 6, "numba_hook": 6,
    "finding": 6, "shipping": 6, "warming": 6, "worker": 6, "doctor": 6,
    "cache": 7,
    "cli": 8, "__init__": 8, "__main__": 8,
}  # fmt: skip
"""Each room of the package; a module imports its own room and rooms of lower rank."""

SAME_SUBJECT = {
    ("jobs", "plans"), ("closures", "jobs"), ("lookup", "jobs"), ("lookup", "closures"), ("lookup", "ahead"),
    ("lookup", "rolls"), ("rolls", "jobs"), ("misses", "rolls"), ("misses", "jobs"), ("misses", "closures"),
    ("explanations", "lookup"), ("explanations", "rolls"), ("explanations", "misses"), ("explanations", "jobs"),
    ("explanations", "closures"), ("compiling", "lookup"), ("compiling", "rolls"), ("compiling", "jobs"),
    ("compiling", "closures"), ("resolver", "lookup"), ("resolver", "compiling"), ("resolver", "misses"),
    ("resolver", "explanations"), ("resolver", "jobs"), ("resolver", "ahead"), ("process_cache", "resolver"),
    ("kernel", "rehearsal"), ("__main__", "cli"), ("cli", "__init__"),
    ("numba_jobs", "jobs"), ("kernel", "numba_kernel"), ("numba_kernel", "numba_cache"), ("numba_hook", "numba_cache"),
    ("numba_cache", "numba_ahead"),
    ("kernel", "launchable"), ("finding", "launchable"), ("finding", "module"), ("warming", "finding"),
    ("warming", "worker"), ("module", "launchable"), ("numba_kernel", "launchable"), ("numba_kernel", "rehearsal"),
    ("module", "kernel"),
}  # fmt: skip
"""Modules of one rank that stand beside each other at the top of the package, and which of them imports which."""

FOREIGN_ROOMS = {"toolchain", "launch", "numba_hook"}
"""The only rooms that import CUDA or Numba, and only inside functions."""

HEAVY = {"numpy", "numba", "cuda", "cupy", "torch"}
"""Never imported by importing one of our modules."""

IMPURE = {
    "time", "datetime", "random", "secrets", "uuid", "threading", "asyncio", "multiprocessing", "subprocess",
    "logging", "warnings", "pathlib", "io", "shutil", "tempfile", "glob", "socket", "sys", "linecache", "platform",
}  # fmt: skip
"""What a pure room does not import; of `os` it may use what only computes with paths."""

PURE_OS = {
    "os.path.splitext",
    "os.fspath",
    "os.PathLike",
    "os.path.join",
    "os.path.normpath",
    "os.path.isabs",
    "os.path.expanduser",
}

RUNS_BYTES = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "mmap"}


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def at_import(tree: ast.Module) -> Iterator[ast.AST]:
    """Nodes that run when the module is imported: not function bodies, not `if TYPE_CHECKING`."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                continue
            if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
                continue
            waiting.append(child)


def own_imports(path: Path) -> Iterator[tuple[str, int]]:
    """(room, line) of every import of this package, wherever it stands."""
    here = ("numba_kcache", *path.relative_to(PACKAGE).with_suffix("").parts)
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level] if node.level else ()
            start = ".".join((*base, *([node.module] if node.module else [])))
            named = [f"{start}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in named:
            parts = name.split(".")
            if parts[0] == "numba_kcache":
                yield (parts[1] if len(parts) > 1 and parts[1] in RANKS else "__init__"), node.lineno


def foreign_imports(nodes: Iterator[ast.AST]) -> Iterator[tuple[str, int]]:
    """(top package, line) of every absolute import among nodes."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.split(".")[0], node.lineno


def dotted(node: ast.AST) -> str:
    """`a.b.c` of an attribute chain; "" for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        start = dotted(node.value)
        return f"{start}.{node.attr}" if start else ""
    return ""


each_module = pytest.mark.parametrize("path", MODULES, ids=name_of)


@each_module
def test_module_is_in_a_ranked_room(path: Path) -> None:
    """A new room has to be given its rank before anything can be said about its imports."""
    assert room_of(path) in RANKS


@each_module
def test_imports_point_down(path: Path) -> None:
    """A module imports its own room and rooms of lower rank, inside functions too; never up, never sideways."""
    room = room_of(path)
    wrong = [
        f"{name_of(path)}:{line} imports {other}"
        for other, line in own_imports(path)
        if other != room and RANKS[other] >= RANKS[room] and (room, other) not in SAME_SUBJECT
    ]
    if room == "__init__":
        wrong = [each for each in wrong if not each.endswith(("__init__", "cli"))]

    assert not wrong


@each_module
def test_cuda_and_numba_are_imported_inside_functions_of_their_rooms(path: Path) -> None:
    """Importing a module never imports CUDA, Numba or NumPy; only toolchain, launch and the hook ever do."""
    tree = tree_of(path)
    early = [each for each in foreign_imports(at_import(tree)) if each[0] in HEAVY]
    strange = [each for each in foreign_imports(ast.walk(tree)) if each[0] in {"cuda", "numba", "cupy", "torch"}]

    assert not early
    assert not strange or room_of(path) in FOREIGN_ROOMS


@each_module
def test_environment_is_read_by_settings_alone(path: Path) -> None:
    """`os.environ` and its kin stand in settings.py; what is read elsewhere cannot be documented or keyed."""
    readers = {"os.environ", "os.environb", "os.getenv", "os.getenvb", "os.putenv", "os.path.expandvars"}
    found = {dotted(node) for node in ast.walk(tree_of(path)) if isinstance(node, ast.Attribute)} & readers
    named = [
        alias.name
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ImportFrom) and node.module in ("os", "os.path")
        for alias in node.names
        if f"{node.module}.{alias.name}" in readers
    ]

    assert not (found or named) or room_of(path) == "settings"


@pytest.mark.parametrize("path", [each for each in MODULES if room_of(each) in ("model", "keys")], ids=name_of)
def test_pure_room_has_no_file_clock_chance_thread_or_log(path: Path) -> None:
    """model/ and keys/ are functions of their arguments: the same on every machine and at every time."""
    tree = tree_of(path)
    imported = {name for name, _ in foreign_imports(ast.walk(tree))}
    used = {dotted(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    called = {dotted(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}

    assert not imported & IMPURE
    assert {name for name in used if name.startswith("os.")} - {"os.path"} <= PURE_OS
    assert not called & {"open", "print", "input", "id", "hash", "globals", "breakpoint"}


@each_module
def test_nothing_that_is_read_becomes_code_in_this_process(path: Path) -> None:
    """No pickle, marshal or eval anywhere; code is generated from checked layouts in one module alone."""
    tree = tree_of(path)
    imported = {name for name, _ in foreign_imports(ast.walk(tree))}
    called = {dotted(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    runs = called & {"eval", "exec", "compile", "__import__", "builtins.exec", "builtins.eval"}

    assert not imported & RUNS_BYTES
    assert not runs or (name_of(path) == "launch/generated.py" and runs <= {"compile", "exec"})


def test_the_rules_see_what_they_are_for() -> None:
    """Each rule finds its offender in a module made for it; a rule that sees nothing would pass for ever."""
    tree = ast.parse("import os\nimport numpy\ndef f():\n    from cuda.bindings import nvrtc\n    os.environ['A']\n")

    assert [name for name, _ in foreign_imports(at_import(tree)) if name in HEAVY] == ["numpy"]
    assert ("cuda", 4) in set(foreign_imports(ast.walk(tree)))
    assert "os.environ" in {dotted(node) for node in ast.walk(tree)}
    assert {other for other, _ in own_imports(PACKAGE / "resolver.py")} >= {"errors", "keys", "launch", "store"}
    assert {other for other, _ in own_imports(PACKAGE / "launch" / "loader.py")} == {"errors", "launch", "model"}
