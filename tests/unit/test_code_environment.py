"""Numba's configuration as a component of the key."""

from __future__ import annotations

from pathlib import Path

import pytest
from numba import cuda
from numba.cuda.core import config

from numba_kcache import cached_kernel
from numba_kcache.frontends.numba import code_variables
from numba_kcache.frontends.numba.llvm import NUMBA
from tests.support import numba_server
from tests.support.compiling import in_python
from tests.support.fake_driver import build, environment, needs_fake_driver


def digest(*, has_lines: bool = False) -> str:
    return NUMBA.code_environment(has_lines=has_lines)[0].digest


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NUMBA_FORCE_CUDA_CC", "8.0"),
        ("NUMBA_CUDA_DEBUGINFO", "1"),
        ("NUMBA_OF_THE_FUTURE", "1"),
        ("LLVMLITE_ENABLE_IR_LAYER_TYPED_POINTERS", "0"),
        ("LLVMLITE_OF_THE_FUTURE", "1"),
        ("NUMBA_DEBUG_JIT", "1"),
    ],
)
def test_variable_changes_digest(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """Numba's cache lacks these in its key, and serves an unoptimised or sm_80 kernel to a normal run."""
    before = digest()

    monkeypatch.setenv(name, value)
    changed = digest()
    monkeypatch.undo()

    assert changed != before
    assert digest() == before


@pytest.mark.parametrize("name", ["CUDA_ENABLE_NRT", "CUDA_NVRTC_EXTRA_SEARCH_PATHS", "OF_THE_FUTURE"])
def test_value_set_by_the_program_changes_digest(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Settings made in Python, not in the environment, count as well."""
    before = digest()

    monkeypatch.setattr(
        config, name, "/other" if "PATHS" in name else 1 - int(bool(getattr(config, name, 0))), raising=False
    )

    assert digest() != before


def test_form_of_debug_information_counts_with_line_tables_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its default depends on the CUDA runtime that is installed; other code does not depend on it."""
    before = digest(), digest(has_lines=True)

    monkeypatch.setattr(config, "CUDA_DEBUG_POLY", not config.CUDA_DEBUG_POLY)

    assert digest() == before[0]
    assert digest(has_lines=True) != before[1]


def test_settings_that_only_print_keep_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dumps and warnings change no code."""
    before = digest()

    monkeypatch.setenv("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0")
    monkeypatch.setenv("NUMBA_DISABLE_PERFORMANCE_WARNINGS", "1")

    assert digest() == before


def test_level_of_optimisation_counts_where_the_code_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the decorator's option, and in line tables, which say whether the code is optimised: on or off."""

    def body(x):  # type: ignore[no-untyped-def]
        x[0] = 1

    def key(kernel: object) -> str:
        return cached_kernel(kernel).key("sm_90", "void(float32[::1])")  # type: ignore[call-overload, no-any-return]

    decorated = cuda.jit(body)
    before, plain = key(decorated), key(body)
    lines, without = digest(has_lines=True), digest()
    monkeypatch.setattr(config, "OPT", 1)
    assert (key(decorated), key(body), digest(has_lines=True)) == (before, plain, lines)
    monkeypatch.setattr(config, "OPT", 0)
    assert (key(decorated), digest()) == (before, without)
    assert key(body) != plain
    assert digest(has_lines=True) != lines


@pytest.mark.slow
def test_setting_that_llvmlite_read_when_it_was_loaded_counts() -> None:
    """The variable is gone, and the setting is in force."""
    script = (
        "import os\nos.environ['LLVMLITE_ENABLE_IR_LAYER_TYPED_POINTERS'] = {!r}\nfrom numba import cuda\n"
        "del os.environ['LLVMLITE_ENABLE_IR_LAYER_TYPED_POINTERS']\n"
        "from numba_kcache.frontends.numba.llvm import NUMBA\nread = NUMBA.code_environment\n"
        "print(read(has_lines=False)[0].digest)"
    )

    assert in_python(script.format("0")) != in_python(script.format("1"))


KEY = """
from numba import cuda
from numba_kcache import cached_kernel
def kernel(x):
    x[0] = 1
print(cached_kernel(kernel).key("sm_90", "void(float32[::1])"))
"""


@needs_fake_driver
@pytest.mark.slow
@pytest.mark.parametrize(("of", "package"), [("numba", "numba"), ("mlir", "numba_cuda_mlir")])
def test_two_machines_have_one_key(of: str, package: str, tmp_path: Path) -> None:
    """They differ in cores, CPU, home and CUDA's folder, and in settings of this package."""
    program = KEY.replace("from numba ", f"from {package} ")
    (tmp_path / "include").mkdir()
    other = {
        "NUMBA_NUM_THREADS": "7", "NUMBA_CPU_NAME": "znver9", "NUMBA_CPU_FEATURES": "+avx", "HOME": str(tmp_path),
        "CUDA_HOME": str(tmp_path), "CUDA_PATH": str(tmp_path), "NUMBA_CACHE_DIR": str(tmp_path),
        "NUMBA_ENABLE_AVX": "0", "NUMBA_KCACHE_LOG": "error", "NUMBA_THREADING_LAYER": "omp",
    }  # fmt: skip

    assert in_python(program, **other) == numba_server.output(["-c", program], environment(build()), of, way="early")


RELOADED = """
import os
from numba import cuda
from numba_kcache.frontends.numba.llvm import NUMBA
read = NUMBA.code_environment
before = read(has_lines=True)
os.environ["NUMBA_SHOW_HELP"] = "0"
assert read(has_lines=True) == before, (read(has_lines=True), before)
"""


@pytest.mark.slow
@pytest.mark.parametrize("package", ["numba", "numba_cuda_mlir"])
def test_reload_of_the_configuration_keeps_digest(package: str) -> None:
    """Numba then resets what its own import had set: the default target of PTX, which no kernel uses."""
    program = RELOADED.replace("from numba ", f"from {package} ")
    if package != "numba":
        program = program.replace("llvm import NUMBA", "mlir import MLIR as NUMBA")
    in_python(program)


def test_variables_of_this_package_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither do those whose value a configuration has."""
    monkeypatch.setenv("NUMBA_KCACHE_LOG", "info")
    monkeypatch.setenv("NUMBA_BOUNDSCHECK", "1")

    assert code_variables({"BOUNDSCHECK": 1}) == {}
    assert code_variables({}) == {"NUMBA_BOUNDSCHECK": "1"}
