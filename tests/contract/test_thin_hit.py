"""A hit imports few modules: those that a miss, a put or a listing needs are imported only then."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support.compiling import in_python
from tests.support.stores import entry_of, key_of, open_store

HIT = """
import sys
from numba_kcache.settings import read_settings
from numba_kcache.store.disk import open_store

def loaded():
    names = (each.removeprefix("numba_kcache.store.") for each in sys.modules if each.startswith("numba_kcache.store."))
    return " ".join(sorted(names))

store = open_store(read_settings({}), sys.argv[1], print)
assert store.get(sys.argv[2]) is not None
assert store.get_manifest(sys.argv[2])
print(loaded())
store.counters.add({"hits": 1})
print(loaded())
"""


def test_hit_imports_one_module_of_the_store(tmp_path: Path) -> None:
    """A hit imports one module beside the room's own, and at exit those of the counters."""
    store = open_store(tmp_path)
    store.put(entry_of(1))
    store.add_rows(key_of(1), {"key": key_of(1)})
    store.counters.add({"hits": 1})  # as the process that compiled did at its end

    hit, end = in_python(HIT, str(tmp_path), key_of(1)).splitlines()

    assert hit.split() == ["disk"]
    assert set(end.split()) - set(hit.split()) == {"counters", "folders"}


START = """
import atexit, sys
before = set(sys.modules)
from numba_kcache import cached_kernel
source = 'extern "C" __global__ void k(int *x) { *x = 1; }'
calls = []

def count(frame, event, _argument):
    if event == "call" and "numba_kcache" in frame.f_code.co_filename:
        calls.append(frame.f_code.co_name)

def written():
    return source

import numba_kcache.frontends.source  # so that the calls that define its classes are not counted
sys.setprofile(count)
kernel = cached_kernel(source if sys.argv[1] == "text" else written, kind="cuda", arch="sm_90")
kernel.compile()
sys.setprofile(None)
made = len(calls)
atexit._run_exitfuncs()
names = sorted(set(sys.modules) - before)
from numba_kcache import info
print(info("process").compiles, made, *(name for name in names if "." not in name))
print(*(name for name in names if name.startswith("numba_kcache.headers.")))
"""

OF_OTHERS = {
    "__future__", "_ctypes", "_json", "_sha2", "_sha256", "_struct", "ctypes", "gc", "json", "numba_kcache", "struct",
    "threading", "xxhash",
}  # fmt: skip
"""Modules that a start imports beside this package; an interpreter that has some of them imports less."""


@pytest.mark.slow
def test_hit_imports_of_others_no_more_than_these(tmp_path: Path) -> None:
    """From import to exit, a hit loads no compression, inspect, subprocess, NumPy or CUDA package."""
    for compiles in ("1", "0"):
        found, *names = in_python(START, "text", NUMBA_KCACHE_DIR=str(tmp_path / "mine")).split("\n")[0].split()
        assert found == compiles

    assert set(names[1:]) <= OF_OTHERS


@pytest.mark.slow
def test_text_that_includes_nothing_is_found_without_headers(tmp_path: Path) -> None:
    """A hit of a source without includes loads no module that records or compares headers."""
    for start in ("cold", "warm"):
        _, modules = in_python(START, "text", NUMBA_KCACHE_DIR=str(tmp_path / "mine")).splitlines()
        assert bool(modules) == (start == "cold")


@pytest.mark.slow
def test_text_starts_with_no_more_calls_than_a_function(tmp_path: Path) -> None:
    """A hit of a source in a string makes no more calls than one of a function that returns the source."""
    calls = {}
    for how in ("text", "function", "text", "function"):
        compiles, calls[how], *_ = in_python(START, how, NUMBA_KCACHE_DIR=str(tmp_path / "mine")).split()
    assert compiles == "0"

    assert int(calls["text"]) <= int(calls["function"])


WRITES = """
import sys
published = []
sys.addaudithook(lambda event, given: event in ("os.rename", "os.link") and published.append(given[0]))
from numba_kcache import cached_kernel
cached_kernel('extern "C" __global__ void k(int *x) { *x = 1; }', arch="sm_90").compile()
print(len(published))
"""


@pytest.mark.slow
def test_first_compile_publishes_four_files(tmp_path: Path) -> None:
    """A compile publishes entry, manifest, history, and once the record of the compilers; a hit publishes nothing."""
    counts = [in_python(WRITES, NUMBA_KCACHE_DIR=str(tmp_path / "mine")).strip() for _ in ("cold", "warm")]

    assert counts == ["4", "0"]


def test_warm_start_makes_no_class_by_typing() -> None:
    """Modules of a warm start use `model.NamedTuple` and `model.Protocol`: typing's take three times as long."""
    root = Path(__file__).parents[2]
    names = {line for line in (root / "tests/data/warm_modules.txt").read_text().split() if line.startswith("numba_k")}
    files = [root / f"{name.replace('.', '/')}{end}" for name in names for end in (".py", "/__init__.py")]
    found = [
        path
        for path in files
        if path.is_file() and path != root / "numba_kcache/model/__init__.py"
        for tree in [ast.parse(path.read_text())]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "typing"
        for each in node.names
        if each.name == "NamedTuple" or (each.name == "Protocol" and node in tree.body)
    ]

    assert not found


CONSTRUCTORS = """
import sys
from numba_kcache import cached_kernel
found = [value for name, module in list(sys.modules.items()) if name.startswith("numba_kcache.")
    for value in vars(module).values() if isinstance(value, type) and hasattr(value, "_field_defaults")]
from numba_kcache.model import NamedTuple
print(len(found) > 20, [each.__name__ for each in found if each.__new__ is not NamedTuple.__new__])
"""


def test_warm_start_compiles_no_constructor() -> None:
    """The named tuples of a warm start share one constructor."""
    assert in_python(CONSTRUCTORS).split(maxsplit=1) == ["True", "[]\n"]


FIRST_COMPILE = """
import sys
from numba_kcache import cached_kernel
cached_kernel('extern "C" __global__ void k(int *x) { *x = 1; }', arch="sm_90").compile()
print(*(each.removeprefix("numba_kcache.") for each in sys.modules if each.startswith("numba_kcache.")))
"""


@pytest.mark.slow
def test_first_compile_imports_nothing_for_what_did_not_happen(tmp_path: Path) -> None:
    """A first compile does not import the modules for explanations, logs or descriptions of errors."""
    modules = set(in_python(FIRST_COMPILE, NUMBA_KCACHE_DIR=str(tmp_path / "mine")).split())

    begins = ("explanation.", "store.", "observe.", "toolchain.", "headers.")
    assert {each for each in modules if each.startswith(begins)} <= {
        "explanation.history", "headers.observer",
        "store.disk", "store.encoding", "store.eviction", "store.folders", "store.locks",
        "store.writing",
        "toolchain.loaded", "toolchain.locating", "toolchain.nvrtc",
        "toolchain.packages",
    }  # fmt: skip


PATTERNS = """
import re, sys
from numba_kcache import cached_kernel
kernel = cached_kernel('extern "C" __global__ void k(const int *x, int *y) { y[0] = x[0]; }', arch="sm_90")
re.purge()
ours, compile_pattern = [], re._compiler.compile

def record(pattern, flags=0):
    frame = sys._getframe(1)
    while frame.f_globals["__name__"] in ("re", "functools"):
        frame = frame.f_back
    if frame.f_globals["__name__"].startswith("numba_kcache."):
        ours.append(pattern)
    return compile_pattern(pattern, flags)

re._compiler.compile = record
kernel.compile()
print(len(ours))
"""


@pytest.mark.slow
def test_first_compile_compiles_two_patterns(tmp_path: Path) -> None:
    """A compile compiles few regular expressions: each takes 0.1 to 0.3 ms."""
    assert in_python(PATTERNS, NUMBA_KCACHE_DIR=str(tmp_path / "mine")).strip() == "2"


OPENS = """
import sys
opened = []
sys.addaudithook(lambda event, given: event in ("open", "os.scandir", "os.listdir") and opened.append(given[0]))
from numba_kcache import cached_kernel
for number in range(3):
    opened.clear()
    cached_kernel(f'extern "C" __global__ void k(int *x) {{ *x = {number}; }}', arch="sm_90").compile()
print(len(opened))
"""


@pytest.mark.slow
def test_compile_opens_few_folders(tmp_path: Path) -> None:
    """With look-up, reasons, locks, entry, manifest and history; a process opens each folder of a kind once."""
    assert int(in_python(OPENS, NUMBA_KCACHE_DIR=str(tmp_path / "mine"))) <= 30
