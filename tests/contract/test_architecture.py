"""Rules of the source code: which room imports which, who does I/O, and what is never done with stored bytes.

Each rule is a function that lists its violations in a tree of the package, as `file:line what`. It is applied to this
tree, and to a small tree with violations: a rule that finds nothing there would always pass.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_driver import needs_fake_driver
from tests.support.house import HOUSE, ROOT, house

FOREIGN_HOMES = {
    "cuda": {"toolchain", "launch", "adapters", "frontends/base", "frontends/source", "frontends/numba"},
    "numba": {"launch", "frontends/numba", "numba_hook"},
    "numba_cuda_mlir": {"frontends/numba"},
    "triton": {"adapters"}, "cupy": {"adapters"},
    "numpy": {"launch", "toolchain", "adapters", "frontends/numba"},
    "zstandard": {"store"}, "xxhash": {"store", "tiers"},
    "obstore": {"tiers"}, "cryptography": {"tiers"},
    "itanium_demangler": {"frontends/source"},
}  # fmt: skip
"""The rooms that may import each foreign package."""

SMALL = {"zstandard", "xxhash"}
"""Packages that every read entry needs; all others are imported inside functions."""

IMPURE = {
    "time", "datetime", "random", "secrets", "uuid", "threading", "asyncio", "multiprocessing", "subprocess",
    "logging", "warnings", "pathlib", "io", "shutil", "tempfile", "glob", "socket", "sys", "linecache", "platform",
}  # fmt: skip
"""Modules that a pure room must not import; of `os` it may use only computations with paths."""

PURE_OS = {
    "os.path.splitext", "os.fspath", "os.PathLike", "os.path.join", "os.path.normpath", "os.path.isabs",
    "os.path.expanduser", "os.path",
}  # fmt: skip

RUNS_BYTES = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "mmap"}
READERS = {"environ", "environb", "getenv", "getenvb", "putenv", "expandvars"}

WARM_MODULES = ROOT / "tests/data/warm_modules.txt"
WRITES = os.environ.get("NUMBA_KCACHE_TEST_WARM_MODULES") == "write"


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


def packages(nodes: Iterator[ast.AST]) -> Iterator[tuple[str, int]]:
    """(top package, line) of every absolute import among nodes."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.split(".")[0], node.lineno


def is_foreign(name: str) -> bool:
    return name not in sys.stdlib_module_names and not name.startswith("_") and name != "numba_kcache"


def each_file(tree: Any) -> Iterator[tuple[str, str, ast.Module]]:
    """File, room and syntax of each module."""
    for path, syntax in tree.trees.items():
        yield tree.name_of(path), tree.room_of(tree.module_of(path)), syntax


# -- rules -------------------------------------------------------------------------------------------------------


def foreign_at_import(tree: Any) -> list[str]:
    return [
        f"{file}:{line} imports {name}"
        for file, _, syntax in each_file(tree)
        for name, line in packages(at_import(syntax))
        if is_foreign(name) and name not in SMALL
    ]


def foreign_elsewhere(tree: Any) -> list[str]:
    return [
        f"{file}:{line} imports {name}"
        for file, room, syntax in each_file(tree)
        for name, line in packages(ast.walk(syntax))
        if is_foreign(name) and room not in FOREIGN_HOMES.get(name, ())
    ]


def readers_of_environment(tree: Any) -> list[str]:
    found = []
    for file, room, syntax in each_file(tree):
        for node in ast.walk(syntax) if room != "settings" else ():
            if isinstance(node, ast.Attribute) and house.dotted(node) in {
                f"{home}.{name}" for home in ("os", "os.path") for name in READERS
            }:
                found.append(f"{file}:{node.lineno} reads {house.dotted(node)}")
            elif isinstance(node, ast.ImportFrom) and node.module in ("os", "os.path"):
                found += [f"{file}:{node.lineno} imports {each.name}" for each in node.names if each.name in READERS]
    return found


def impure(tree: Any) -> list[str]:
    found = []
    for file, room, syntax in each_file(tree):
        if room not in ("model", "keys"):
            continue
        found += [f"{file}:{line} imports {name}" for name, line in packages(ast.walk(syntax)) if name in IMPURE]
        for node in ast.walk(syntax):
            used = house.dotted(node) if isinstance(node, ast.Attribute) else ""
            called = house.dotted(node.func) if isinstance(node, ast.Call) else ""
            if used.startswith("os.") and used not in PURE_OS:
                found.append(f"{file}:{node.lineno} uses {used}")
            if called in {"open", "print", "input", "id", "hash", "globals", "breakpoint"}:
                found.append(f"{file}:{node.lineno} calls {called}")
    return found


def runs_what_it_reads(tree: Any) -> list[str]:
    found = []
    for file, _, syntax in each_file(tree):
        found += [f"{file}:{line} imports {name}" for name, line in packages(ast.walk(syntax)) if name in RUNS_BYTES]
        allowed = {"compile", "exec"} if file == "launch/generated.py" else set()  # code from checked layouts
        for node in ast.walk(syntax):
            called = house.dotted(node.func).removeprefix("builtins.") if isinstance(node, ast.Call) else ""
            if called in {"eval", "exec", "compile", "__import__"} - allowed:
                found.append(f"{file}:{node.lineno} calls {called}")
    return found


def lost_pointers(tree: Any) -> list[str]:
    """List the names in parentheses after `Not here` that are neither a module of the package nor a name in one."""
    names = {tree.module_of(path): names_of(syntax) for path, syntax in tree.trees.items()}
    found = []
    for path, syntax in tree.trees.items():
        _, _, rest = (ast.get_docstring(syntax) or "").partition("\nNot here ")
        own = re.split(r"^\S", rest, maxsplit=1, flags=re.MULTILINE)[0]
        pointers = ",".join(re.findall(r"\(([^()]*)\)", " ".join(own.split()))).replace(" and ", ",").split(",")
        homes = [".".join(tree.module_of(path).split(".")[:depth]) for depth in range(4)]
        for pointer in filter(re.compile(r"[a-z_]+(\.\w+)*").fullmatch, map(str.strip, pointers)):
            places = [f"{home}.{pointer}".strip(".") for home in homes]
            inside = (each.rpartition(".") for each in places)
            if names.keys().isdisjoint(places) and not any(name in names.get(module, ()) for module, _, name in inside):
                found.append(f"{tree.name_of(path)} sends to {pointer}")
    return found


def names_of(syntax: ast.Module) -> set[str]:
    """List the names that a module defines at its top level."""
    found = {node.name for node in syntax.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    stored = (each for node in syntax.body if isinstance(node, ast.Assign | ast.AnnAssign) for each in ast.walk(node))
    return found | {each.id for each in stored if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}


# -- this tree ---------------------------------------------------------------------------------------------------


def test_imports_point_down() -> None:
    """A module imports only its own room and rooms further down, inside functions too."""
    assert not HOUSE.unplaced(), "a room is missing in ROOMS"
    assert not HOUSE.not_down()


def test_rooms_have_no_cycle_and_keep_what_is_private() -> None:
    """No room imports itself through others, and no private name is used outside its room."""
    assert not HOUSE.cycles()
    assert not HOUSE.private_imports()


def test_foreign_packages_stay_in_their_rooms_and_in_functions() -> None:
    """Importing a module of the package imports no CUDA, Numba or NumPy, and only a few rooms import them at all."""
    assert not foreign_at_import(HOUSE)
    assert not foreign_elsewhere(HOUSE)


def test_environment_is_read_by_settings_alone() -> None:
    """Only settings.py reads the environment, so that every variable is documented and can be keyed."""
    assert not readers_of_environment(HOUSE)


LINUX_ALONE = re.compile(
    r"\bfcntl\b|dir_fd\b|\bO_(CLOEXEC|DIRECTORY|NOFOLLOW|NONBLOCK|NOCTTY|PATH|TMPFILE)\b|fdatasync|memfd_create|/proc/"
)


def test_calls_that_linux_alone_has_are_in_one_module_of_the_store() -> None:
    """The modules of store and tiers, and those above that use the store, call them through `store/__init__.py`."""
    users = ("store", "tiers", "engine", "bundles", "warmup", "adapters", "cli", "doctor", "cache", "waiting")
    found = {
        HOUSE.name_of(path)
        for path, tree in HOUSE.trees.items()
        if HOUSE.name_of(path).removesuffix(".py").partition("/")[0] in users
        and any(LINUX_ALONE.search(word) for node in ast.walk(tree) for word in words_of(node))
    }

    assert found == {"store/__init__.py"}


def words_of(node: ast.AST) -> tuple[str, ...]:
    """The names in a node of a syntax tree, and the texts, but those of several words."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
        return (node.value,)
    named = [getattr(node, field, None) for field in ("id", "attr", "arg", "name", "module")]
    return tuple(each for each in named if isinstance(each, str))


def test_pure_rooms_have_no_file_clock_chance_thread_or_log() -> None:
    """The functions of model/ and keys/ depend on their arguments alone, on every machine and at every time."""
    assert not impure(HOUSE)


def test_nothing_that_is_read_becomes_code_in_this_process() -> None:
    """No pickle, marshal or eval anywhere; code is generated from checked layouts in one module alone."""
    assert not runs_what_it_reads(HOUSE)


def test_modules_send_readers_to_modules_that_are_there() -> None:
    """Every module that a header names under `Not here` exists under that name."""
    assert not lost_pointers(HOUSE)


@pytest.mark.slow
@needs_fake_driver
def test_warm_start_imports_the_modules_on_the_list() -> None:
    """A hit imports exactly these modules; NUMBA_KCACHE_TEST_WARM_MODULES=write rewrites the list."""
    found = {kind: house.warm_start(kind)["modules"] for kind in ("CUDA C++", "Numba")}
    text = "\n\n".join("\n".join([f"# {kind}", *names]) for kind, names in found.items()) + "\n"
    if WRITES:
        WARM_MODULES.write_text(text, encoding="utf-8")

    assert text == WARM_MODULES.read_text(encoding="utf-8")
    for kind, names in found.items():
        assert len(names) <= house.LIMITS[f"{kind}, warm: modules"], kind


# -- trees with violations ------------------------------------------------------------------------------------------

OFFENDERS: list[tuple[Callable[[Any], list[str]], dict[str, str], list[str]]] = [
    (house.House.unplaced, {"attic/x.py": ""}, ["attic"]),
    (
        house.House.not_down,
        {"store/disk.py": "def f():\n    from ..engine import lookup\n",
         "engine/lookup.py": "from ..store import disk\n"},
        ["store/disk.py:2 (store) imports engine.lookup"],
    ),
    (
        house.House.not_down,
        {"tiers/redis.py": "from ..launch.launcher import load\nfrom .breaker import read\n", "launch/launcher.py": "",
         "tiers/breaker.py": ""},
        ["tiers/redis.py:1 (tiers) imports launch.launcher"],
    ),
    (
        house.House.not_down,
        {"cli.py": "if TYPE_CHECKING:\n    from . import __version__\n"},
        ["cli.py:2 (cli) imports __init__"],
    ),
    (
        house.House.not_down,
        {"keys/a.py": "import_module('..store.disk', __package__)\nsys.modules['numba_kcache.store.disk']\n",
         "store/disk.py": "'.disk'\n"},
        ["keys/a.py:1 (keys) imports store.disk", "keys/a.py:2 (keys) imports store.disk"],
    ),
    (
        house.House.not_down,
        {"frontends/base.py": "from .numba.kernel import k\n",
         "frontends/numba/kernel.py": "from ..base import FrontEnd\n"},
        ["frontends/base.py:1 (frontends/base) imports frontends.numba.kernel"],
    ),
    (
        house.House.cycles,
        {"keys/a.py": "from ..model import b", "model/b.py": "from ..settings import c",
         "settings.py": "from .keys.a import d", "cli.py": "from .settings import c"},
        ["keys model settings"],
    ),
    (
        house.House.private_imports,
        {"keys/a.py": "from ..model.b import _c, __doc__, d\nfrom ..model import b as e\ne._f\nfrom .g import _h\n",
         "keys/g.py": "", "model/b.py": ""},
        ["keys/a.py:1 imports model.b._c", "keys/a.py:3 reads e._f"],
    ),
    (
        house.House.private_reaches,
        {"store/a.py": "_B = 1\ndef _c(): self._d, other._e = _B\nclass F(NamedTuple): ...\n",
         "../tests/test_a.py": "from numba_kcache.store.a import _B, g\na._c(b._e, self._d, f._replace(g=1))\n"
                               "patch.setattr(a, '_B', b._d)\nf._repr_html_()\n"},
        ["tests/test_a.py:1 _B", "tests/test_a.py:2 _c", "tests/test_a.py:3 _B", "tests/test_a.py:3 _d"],
    ),
    (
        foreign_at_import,
        {"launch/a.py": "import numpy\nimport xxhash\ndef f():\n    import cuda\nclass C:\n    import numba\n"},
        ["launch/a.py:1 imports numpy", "launch/a.py:6 imports numba"],
    ),
    (
        foreign_elsewhere,
        {"store/a.py": "def f():\n    from cuda.bindings import nvrtc\n    import pandas, json\n",
         "launch/b.py": "import cuda"},
        ["store/a.py:2 imports cuda", "store/a.py:3 imports pandas"],
    ),
    (
        readers_of_environment,
        {"store/a.py": "import os\nos.environ['A']\nfrom os import getenv\nos.path.expandvars(b)\n",
         "settings.py": "os.environ"},
        ["store/a.py:2 reads os.environ", "store/a.py:3 imports getenv", "store/a.py:4 reads os.path.expandvars"],
    ),
    (
        impure,
        {"keys/a.py": "import time\nopen(b)\nos.stat(c)\nos.path.join(d)\n", "store/a.py": "import time\n"},
        ["keys/a.py:1 imports time", "keys/a.py:2 calls open", "keys/a.py:3 uses os.stat"],
    ),
    (
        runs_what_it_reads,
        {"store/a.py": "import pickle\nexec(b)\nre.compile(c)\n", "launch/generated.py": "exec(compile(a))\neval(b)\n"},
        ["launch/generated.py:2 calls eval", "store/a.py:1 imports pickle", "store/a.py:2 calls exec"],
    ),
    (
        house.House.old_names,
        {"engine/resolver.py": "def plans(): ...\ndef f(plans): ...\nclass ThroughPut: ...\nthrough = employers\n"},
        ["numba_kcache/engine/resolver.py: file", "numba_kcache/engine/resolver.py: ThroughPut",
         "numba_kcache/engine/resolver.py: plans", "numba_kcache/engine/resolver.py: through"],
    ),
    (
        lost_pointers,
        {"store/disk.py": '"""A.\n\nNot here    B (entry, memory), C (tiers, the caller)\n    and D (tiers.chain.E).\n'
                          'Source      F (g)."""',
         "store/entry.py": '"""A.\n\nNot here    B (C; d), E (disk, tiers.chain.Gone), F (`g`)."""',
         "tiers/__init__.py": "", "tiers/chain.py": "class E: ..."},
        ["store/disk.py sends to memory", "store/entry.py sends to tiers.chain.Gone"],
    ),
    (
        house.House.circles,
        {"keys/a.py": "from .b import c", "keys/b.py": "def f():\n    from .d import e\n",
         "keys/d.py": "from . import a\nif TYPE_CHECKING:\n    from .g import h\n", "keys/g.py": "from .a import i"},
        ["keys.a: keys.a keys.b keys.d", "keys.b: keys.a keys.b keys.d", "keys.d: keys.a keys.b keys.d"],
    ),
    (
        house.House.inner_imports,
        {"cli.py": "def f():\n    from .keys import a, b\n    import os\n    class C:\n        from . import keys\n"
                   "import numba_kcache.keys\ng = lambda: import_module('.keys', __name__)\n", "keys.py": ""},
        ["cli.py:2", "cli.py:5", "cli.py:7"],
    ),
    (
        house.House.suppressions,
        {"cli.py": "a = b  # type: ignore[misc]\nc = 'noqa'\nd = e  # noqa: F401\n# no noise\n"},
        ["cli.py:1", "cli.py:3"],
    ),
]  # fmt: skip


def test_functions_import_modules_at_named_seams_alone() -> None:
    """The table of seams in docs/architecture.md has each module that a function imports, or its room with a slash, and
    nothing else."""
    text = (house.ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    table = text.partition("\n## Seams\n")[2].partition("\n## ")[0]
    named = {name for row in table.splitlines() if row.startswith("| ") for name in re.findall(r"`([\w./]+)`", row)}
    late = {each.module for each in HOUSE.imports if each.when == "call"}

    assert {each for each in late if each not in named and f"{each.partition('.')[0]}/" not in named} == set()
    assert {
        each for each in named if not any(f"{one}/".replace(".", "/").startswith(each) or one == each for one in late)
    } == set()


@pytest.mark.parametrize(("rule", "files", "found"), OFFENDERS)
def test_rule_sees_its_offender(
    tmp_path: Path, rule: Callable[[Any], list[str]], files: dict[str, str], found: list[str]
) -> None:
    """Each rule finds the violations in a tree made for it, and nothing else there."""
    for name, text in {"__init__.py": "", **files}.items():
        path = tmp_path / "numba_kcache" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    assert sorted(rule(house.House(tmp_path))) == sorted(found)


def test_tokens_are_without_comments_and_docstrings() -> None:
    """A string counts as one if it is a value, and not if it is a statement; layout does not count."""
    text = (
        '"""Doc."""\n\n# comment\nx = """a\nb"""  # why\n"""An x."""\ndef f():\n    """Do\n    it."""\n    return 1\n'
    )

    assert house.tokens(text) == len(["x", "=", '"""', "def", "f", "(", ")", ":", "return", "1"])


def test_tokens_of_c_are_without_comments() -> None:
    """An operator, a number and a string are one token each, and a quote or comment sign inside them begins nothing."""
    text = (
        "/* it's */ int *a = b->c ? 1.5e3 : 0x1f; // \"no\nputs(\"/* \\\" */\"), d >>= '\\'', e == f;\n#define G(h) #h"
    )

    assert house.tokens_of_c(text) == len(
        ["int", "*", "a", "=", "b", "->", "c", "?", "1.5e3", ":", "0x1f", ";", "puts", "(", "/*", ")", ",", "d", ">>=",
         "'", ",", "e", "==", "f", ";", "#", "define", "G", "(", "h", ")", "#", "h"]
    )  # fmt: skip
