"""mypy and pyright report wrong options, and give a kernel the types of its kind.

`tests/typing/` holds the programs that they read. pyright comes as the package of its name, which fetches what it runs;
where that cannot be had, mypy alone reads them.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import typing
from pathlib import Path

import pytest

from numba_kcache.frontends import BUILT_IN, COMMON_OPTIONS, options
from numba_kcache.frontends.numba.definition import OWN_OPTIONS as OF_NUMBA
from numba_kcache.frontends.numba.llvm import DECORATOR_OPTIONS
from numba_kcache.frontends.numba.mlir import DECORATOR_OPTIONS as OF_MLIR
from numba_kcache.frontends.source import OWN_OPTIONS as OF_SOURCE
from numba_kcache.model.options import STANDARDS, compile_options
from numba_kcache.settings import DURABILITIES, LOG_LEVELS, MODES, TOOLCHAINS, Settings
from tests.support.compiling import ROOT

PROGRAM = Path(ROOT, "tests", "typing", "kernels.py")
WRONG = {
    number for number, line in enumerate(PROGRAM.read_text(encoding="utf-8").splitlines(), 1) if line.endswith("# E")
}


def choices(table: type, name: str) -> set[object]:
    """The values of a keyword's Literal type."""
    found: set[object] = set()
    for each in typing.get_args(typing.get_type_hints(table)[name]):
        found |= set(typing.get_args(each))
    return found


@pytest.mark.slow
def test_mypy_refuses_what_is_wrong_and_nothing_else() -> None:
    """mypy in strict mode reports exactly the lines with `# E`."""
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", str(PROGRAM)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)

    assert {int(each) for each in re.findall(r"(?m)^tests/typing/kernels\.py:(\d+): error", done.stdout)} == WRONG, (
        done.stdout + done.stderr
    )


@pytest.mark.slow
def test_pyright_refuses_what_is_wrong_and_nothing_else(tmp_path: Path) -> None:
    """pyright reports exactly the lines with `# E`."""
    command = shutil.which("pyright", path=str(Path(sys.executable).parent)) or shutil.which("pyright")
    if command is None:
        pytest.skip("pyright is not installed")
    shutil.copy(PROGRAM, tmp_path)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(ROOT)], "pythonVersion": "3.11"}))
    done = subprocess.run(
        [command, "--outputjson", "-p", str(tmp_path)], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    if not done.stdout.startswith("{"):
        pytest.skip(f"pyright cannot be fetched: {done.stderr.strip()[-200:]}")
    found = [each for each in json.loads(done.stdout)["generalDiagnostics"] if each["severity"] == "error"]

    assert {each["range"]["start"]["line"] + 1 for each in found} == WRONG, found


def test_every_option_that_is_taken_has_a_type() -> None:
    """The keywords of the `TypedDict`s are exactly those that the front ends accept."""
    compiling = compile_options_taken()

    assert set(options.SourceOptions.__annotations__) == (OF_SOURCE | compiling) - {"launch_bounds"}
    assert set(options.ModuleOptions.__annotations__) == set(options.SourceOptions.__annotations__) - {
        "name",
        "signature",
    }
    assert set(options.NumbaOptions.__annotations__) == OF_NUMBA | {*DECORATOR_OPTIONS, *OF_MLIR}
    both = {*options.SourceOptions.__annotations__, *options.NumbaOptions.__annotations__}
    assert set(options.KernelOptions.__annotations__) == both
    assert set(options.CallOptions.__annotations__) == both - {"name"}
    assert COMMON_OPTIONS - {"launch_bounds", "carveout"} <= set(options.CommonOptions.__annotations__)


def compile_options_taken() -> set[str]:
    """The compile options of CUDA C++, from the hint of the error about an unknown option."""
    with pytest.raises(TypeError) as caught:
        compile_options("cuda", {"none": 1}, "/")
    return set(re.findall(r"\w+", str(caught.value).partition("it takes ")[2]))


def test_every_setting_has_a_type() -> None:
    """The `TypedDict` has the keywords of `configure`, and the accepted words of those with a fixed list."""
    settings = options.ProcessSettings

    assert set(settings.__annotations__) == set(Settings._fields)
    assert set(options.CacheSettings.__annotations__) == set(Settings._fields) - {"directory", "max_size_bytes"}
    for name, words in (
        ("mode", MODES),
        ("toolchain", TOOLCHAINS),
        ("durability", DURABILITIES),
        ("log_level", LOG_LEVELS),
    ):
        assert choices(settings, name) == set(words)


def test_words_of_options_are_those_that_are_read() -> None:
    """The Literal types have the language standards and the kinds of kernels."""
    assert choices(options.SourceOptions, "std") == set(STANDARDS)
    assert choices(options.CommonOptions, "kind") >= {kind for kinds in BUILT_IN.values() for kind in kinds}
