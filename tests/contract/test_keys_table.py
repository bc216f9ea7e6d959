"""docs/keys.md agrees with the code: its rows are the components, options change the named ones, named tests exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from numba_kcache import KernelCache, OptionError, cached_kernel, cached_module
from numba_kcache.explanation.diff import diff, kind_of
from numba_kcache.explanation.history import KINDS
from numba_kcache.frontends.numba import fingerprint as python_function
from numba_kcache.frontends.numba.definition import OWN_OPTIONS as NUMBA_OPTIONS
from numba_kcache.frontends.numba.definition import component_kinds
from numba_kcache.frontends.numba.llvm import DECORATOR_OPTIONS
from numba_kcache.frontends.source import OWN_OPTIONS
from numba_kcache.keys import derive
from numba_kcache.model import CompileOptions
from tests.support import numba_server
from tests.support.compiling import ROOT
from tests.support.fake_driver import build, environment, needs_fake_driver
from tests.support.house import HOUSE
from tests.support.resolving import request_of

PAGE = (ROOT / "docs/keys.md").read_text(encoding="utf-8")
OF_MANIFESTS = {"history"}
"""Components that occur only in the names of manifests, in no key."""

PARTS = [name for name in component_kinds() if name.endswith((" ", "["))]
"""How the names of the components of a function's parts start."""

SOURCE = 'extern "C" __global__ void k(int *o) { *o = 1; }'


def table(header: str) -> list[list[str]]:
    """The cells of the table that starts with this header."""
    _, found, rest = PAGE.partition(f"| {header} |")
    assert found, header
    rows = rest.split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]


def first_cells(header: str) -> list[str]:
    return [row[0].strip("| `") for row in table(header)]


@cache
def constants() -> frozenset[str]:
    """The name in each `component("name", ...)` and `components({"name": ...})` of the package."""
    found = set()
    for path, tree in HOUSE.trees.items():
        for node in ast.walk(tree):
            found |= named_values(node)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "component":
                name = node.args[0]
                assert isinstance(name, ast.Constant), f"{HOUSE.name_of(path)}:{node.lineno} computes a name"
                found.add(name.value)
    assert found >= OF_MANIFESTS
    return frozenset(found - OF_MANIFESTS)


def named_values(node: ast.AST) -> set[str]:
    """Text keys of a mapping that is passed to `components`, or that is built up in a variable `values`."""
    mapping: ast.AST | None = None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "components" and node.args:
        mapping = node.args[0]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "values":
        mapping = node.value
    keys = mapping.keys if isinstance(mapping, ast.Dict) else []
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        to = node.targets[0]
        keys = [to.slice] if isinstance(to.value, ast.Name) and to.value.id == "values" else []
    return {each.value for each in keys if isinstance(each, ast.Constant) and isinstance(each.value, str)}


def branches(node: ast.expr) -> list[ast.expr]:
    """The branches of a conditional expression, the members of a tuple; any other expression itself."""
    if isinstance(node, ast.Tuple):
        return [part for each in node.elts for part in branches(each)]
    return [*branches(node.body), *branches(node.orelse)] if isinstance(node, ast.IfExp) else [node]


def starts_of_labels() -> Iterator[str]:
    """Beginnings of the names of the parts of a Numba kernel, from the code that makes them."""
    tree = ast.parse(Path(python_function.__file__).read_text(encoding="utf-8"))
    labels: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            place = {"add": 0, "add_value": 1}.get(node.func.attr)
            labels += node.args[place : place + 1] if place is not None else []
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
            if names & {"label", "word"}:
                labels += branches(node.value)
    for each in labels:
        first = each.values[0] if isinstance(each, ast.JoinedStr) else each
        if isinstance(first, ast.Constant) and isinstance(first.value, str) and first.value.strip():
            yield first.value


def test_docs_and_code_name_the_same_components() -> None:
    """The rows are the names that the code gives to components, and each has a kind of reason."""
    rows = first_cells("component | what it holds | why | test")

    assert (
        sorted(rows)
        == sorted(constants())
        == sorted({*KINDS, *(name for name in component_kinds() if name not in PARTS)})
    )
    assert len(rows) == len(set(rows))


def test_docs_and_code_name_the_same_parts_of_a_function() -> None:
    """The rows are the names in explanations: `global N of module`."""
    rows = first_cells("part of `function` | what it holds | test")

    assert {kind_of(row, component_kinds()) for row in rows} == {component_kinds()[start] for start in PARTS}
    assert len(rows) == len(PARTS)
    assert all(sum(row.startswith(start) for row in rows) >= 1 for start in PARTS)
    starts = list(starts_of_labels())
    assert {"global ", "closure ", "kernel", "depends["} <= set(starts)
    for start in starts:
        assert any(start.startswith(known.rstrip()) for known in PARTS), f"{start!r} is no row"


def test_each_row_names_a_test() -> None:
    """Each row names the test that checks it."""
    for header in (
        "component | what it holds | why | test",
        "part of `function` | what it holds | test",
        "what | why | test",
    ):
        assert all(re.fullmatch(r"`tests/\S+::test_\w+`", row[-1].strip("| ")) for row in table(header)), header


# -- options -----------------------------------------------------------------------------------------------------

OPTIONS = {row[0].strip("| `"): row for row in table("option | CUDA C++ | Numba | why")}


def test_each_option_of_the_contract_is_a_row() -> None:
    """The rows are the options of `cached_kernel`, for both kinds, and of `cached_module`."""
    compiling = {"options" if name == "flags" else name for name in CompileOptions._fields} - {"base_dir"}

    assert OPTIONS.keys() == {*compiling, *OWN_OPTIONS, *NUMBA_OPTIONS, *DECORATOR_OPTIONS, "names", "lazy"}


def body(o):  # type: ignore[no-untyped-def]
    o[0] = 1


def values(folder: Path) -> dict[str, tuple[Any, Any]]:
    """For each option a value other than the default, for a CUDA C++ and a Numba kernel."""
    (folder / "a.cu").write_text("__device__ int one() { return 1; }")
    same = {
        "arch": "sm_80", "fastmath": True, "std": "c++17", "defines": {"A": 1}, "include_dirs": [folder],
        "max_registers": 32, "lineinfo": True, "debug": True, "options": ["-ewp"],
        "link": [str(folder / "a.cu")], "cooperative": True, "cluster": 2, "max_dynamic_shared": 1024, "carveout": 50,
        "launch_bounds": 64, "inline": "always", "forceinline": True, "shared_memory_carveout": 50, "extensions": [],
        "keep_ptx": False, "strict": True, "strided": True, "depends": [3], "cache": KernelCache(folder / "other"),
        "name": "k",
    }  # fmt: skip
    return {
        **{name: (value, value) for name, value in same.items()},
        "kind": ("ptx", "numba"),
        "lto": (True, False),
        "opt": (1, 0),
        "signature": ("int*", "void(int64[::1])"),
    }


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> KernelCache:
    """A cache that looks for the compilers once."""
    return KernelCache(tmp_path_factory.mktemp("shared"))


def components(way: str, **options: Any) -> list[tuple[str, str, Any]]:
    """The components of a kernel with these options, as records."""
    options = {"arch": "sm_90", **options}
    if way == "Numba":
        kernel: Any = cached_kernel(body, **{"signature": "void(int32[::1])", **options})
    else:
        kernel = cached_kernel(SOURCE, **options)
    job = request_of(kernel)
    assert not job.uncacheable
    found = options["cache"].session.components(job)
    assert kernel.key() == derive(found)
    return [each.record() for each in found]


@pytest.mark.parametrize("way", ["CUDA C++", "Numba"])
@pytest.mark.parametrize("option", sorted(OPTIONS.keys() - {"names", "lazy"}))
def test_option_is_where_its_row_says(tmp_path: Path, shared: KernelCache, option: str, way: str) -> None:
    """An option set alone changes the component in its row; with "no" the key stays, with "–" it is refused."""
    cell = OPTIONS[option][1 if way == "CUDA C++" else 2].strip("`")
    value = values(tmp_path)[option][way == "Numba"]
    before = components(way, cache=shared)
    if cell == "–":
        with pytest.raises(OptionError, match=option):
            components(way, **{"cache": shared, option: value})
        return
    changed = [each.name for each in diff(before, components(way, **{"cache": shared, option: value}))]

    assert changed == [] if cell == "no" else cell in changed


@pytest.mark.parametrize(("option", "value"), [("names", ["k"]), ("lazy", True)])
def test_option_of_a_module_is_where_its_row_says(tmp_path: Path, option: str, value: Any) -> None:
    """Eager and lazy modules of one source have different keys."""
    cache = KernelCache(tmp_path / "cache")
    modules = [cached_module(SOURCE, arch="sm_90", cache=cache, **given) for given in ({}, {option: value})]
    before, after = ([each.record() for each in request_of(module).components] for module in modules)

    assert OPTIONS[option][1:3] == ["`entry`", "–"]
    assert [each.name for each in diff(before, after)] == ["entry"]


KEY = f"""
import sys
from numba import cuda
from numba_kcache import KernelCache, cached_kernel
def body(o):
    o[0] = 1
cuda.select_device(int(sys.argv[2]))
cache = KernelCache(sys.argv[1])
print(cached_kernel({SOURCE!r}, cache=cache).key())
print(cached_kernel(body, cache=cache, signature="void(int32[::1])").key())
"""


@pytest.mark.slow
@needs_fake_driver
def test_device_number_and_driver_version_keep_the_key(tmp_path: Path) -> None:
    """The key is the same for every device of an architecture, and under every driver."""
    keys = set()
    for device, version in (("0", 13000), ("1", 13000), ("0", 13020)):
        surroundings = environment(build(), devices=(90, 90), driver_version=version)
        keys.add(numba_server.output(["-c", KEY, str(tmp_path / "cache"), device], surroundings))

    assert len(keys) == 1
    assert len(keys.pop().split()) == 2
