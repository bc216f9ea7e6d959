"""Run CuPy's own tests of raw, elementwise, reduction, fused and jit kernels plain and under `install(cupy=True)`.

CuPy's wheel does not contain its tests: `python .ci/cupy_suite.py TESTS [FOLDER [FILE ...]]`, where TESTS is the
folder `tests` of CuPy's repository, in the installed version, and FILE one of `FILES` by its path in there; all by
default. Needs a device. FOLDER gets the logs and `cupy_suite.json`. pytest loads this module as a plugin, which
installs the cache. Tests of CuPy's own cache are left out. The exit code is 1 if a test passes in the plain run and
fails with the cache.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from mlir_suite import outcomes_of

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

FILES = (
    "cupy_tests/core_tests/test_raw.py",
    "cupy_tests/core_tests/test_elementwise.py",
    "cupy_tests/core_tests/test_userkernel.py",
    "cupy_tests/core_tests/test_reduction.py",
    "cupy_tests/core_tests/fusion_tests/test_kernel_cache.py",
    "cupyx_tests/jit_tests/test_raw.py",
    "cupyx_tests/jit_tests/test_device_function.py",
    "cupyx_tests/jit_tests/test_cooperative_groups.py",
)
LEFT_OUT = (
    "-m",
    "not slow",
    "-k",
    "not CachePayload and not NameExpressionCache and not RawJitify and not test_compile_",
)
"""Tests of CuPy's own cache, and two that read the log of a compile: as in CuPy, a hit makes none."""


def pytest_configure() -> None:
    """Install the cache: pytest calls this function of its plugins. Tests that make a cache of CuPy's get this one."""
    from cupy.cuda import _compiler_cache, compiler

    import numba_kcache

    numba_kcache.install(cupy=True)
    installed = compiler._kernel_cache_backend
    plain = _compiler_cache.DiskKernelCacheBackend

    class Given(plain):  # type: ignore[misc, valid-type]
        """The installed cache; a class, since one test inherits from it."""

        def __new__(cls, *_folder: object) -> object:
            return installed if cls is Given else object.__new__(cls)

    _compiler_cache.DiskKernelCacheBackend = Given


def pytest_unconfigure() -> None:
    """Print the counts of this run."""
    import numba_kcache

    print(numba_kcache.info("process"))


def run(
    name: str, tests: Path, files: list[str], folder: Path, plugin: tuple[str, ...], variables: dict[str, str]
) -> dict[str, str]:
    """Run the tests once; return the outcome of each by name: passed, skipped, failure or error."""
    report, settings = folder / f"{name}.xml", folder / "pytest.ini"
    settings.write_text("[pytest]\n")
    words = ["-q", "-c", str(settings), "-p", "no:cacheprovider", *plugin, *LEFT_OUT, f"--junitxml={report}"]
    given = [str(tests / each) for each in files if (tests / each).is_file()]
    path = os.pathsep.join([str(ROOT / ".ci"), str(ROOT), str(tests), os.environ.get("PYTHONPATH", "")])
    with (folder / f"{name}.log").open("w") as out:
        subprocess.run(
            [sys.executable, "-m", "pytest", *words, *given], env={**os.environ, "PYTHONPATH": path, **variables},
            stdout=out, stderr=subprocess.STDOUT, check=False, timeout=1800,
        )  # fmt: skip
    return outcomes_of(name, report)


def main() -> int:
    from harness import machine_header

    tests, folder = Path(sys.argv[1]).resolve(), Path(sys.argv[2] if len(sys.argv) > 2 else ".").resolve()
    files = sys.argv[3:] or list(FILES)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryDirectory() as own:
        plugin, cached = ("-p", "cupy_suite"), {"NUMBA_KCACHE_DIR": directory, "CUPY_CACHE_DIR": f"{own}/left"}
        outcomes = {
            "plain": run("plain", tests, files, folder, (), {"CUPY_CACHE_DIR": f"{own}/plain"}),
            "cold": run("cold", tests, files, folder, plugin, cached),
            "warm": run("warm", tests, files, folder, plugin, cached),
        }
    passed = {test for test, outcome in outcomes["plain"].items() if outcome == "passed"}
    new = {name: sorted(test for test in passed if outcomes[name].get(test) != "passed") for name in ("cold", "warm")}
    counts = {
        name: {word: list(found.values()).count(word) for word in set(found.values())}
        for name, found in outcomes.items()
    }
    result = {"machine": machine_header(), "counts": counts, "passed": sorted(passed), "new": new}
    (folder / "cupy_suite.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(new, indent=1))
    return int(any(new.values()))


if __name__ == "__main__":
    raise SystemExit(main())
