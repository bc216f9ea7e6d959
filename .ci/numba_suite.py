"""Run Numba's own CUDA tests without this cache and with every kernel in it, cold and warm, and compare.

Run it on a machine with a device: `python .ci/numba_suite.py [FOLDER [RUN ...]]`, in an environment with the package
and with `filecheck`. FOLDER gets the logs and `numba_suite.json`. RUN is plain, cold or warm; all three by default.
If the plain run is left out, the tests that fail in it are read from the committed result. The exit code is 1 if a test
passes in the plain run and fails with the cache, unless it is in `EXPECTED`.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))

from harness import machine_header

EXPECTED = re.compile(r"test_caching\.|test_cache")
"""Tests that may fail with this cache: those of Numba's own cache."""

PROCESSES = 14
"""More processes are slower: 30 on 32 cores took 240 s, 14 on 16 cores 147 s (they wait for each other's contexts)."""

RESULT = Path(__file__).resolve().parent.parent / "benchmarks/results/numba_suite.json"
TESTS = "numba.cuda.tests.cudapy"
PARTS = 3
"""Number of parts in which the tests run, one after another, each cold and warm: a time limit loses at most one."""

START = "import numba_kcache, runpy, sys; sys.argv = ['numba', *sys.argv[1:]]; runpy.run_module('numba.runtests', run_name='__main__')"  # noqa: E501
"""The parent imports this package; Numba forks its test processes before CUDA starts, so all of them have it."""


def parts() -> list[list[str]]:
    """The modules of Numba's CUDA tests, divided among the parts."""
    (folder,) = find_spec(TESTS).submodule_search_locations  # type: ignore[union-attr,misc]
    names = [f"{TESTS}.{path.stem}" for path in sorted(Path(folder).glob("test_*.py"))]
    return [names[number::PARTS] for number in range(PARTS)]


def run(name: str, log: Path, modules: list[str], **variables: str) -> tuple[dict[str, str], int]:
    """Run test modules; return the failing tests by name (FAIL or ERROR), and how many ran that were not skipped."""
    with log.open("w") as out:
        subprocess.run(
            [sys.executable, "-c", START, "-m", str(PROCESSES), *modules],
            env={**os.environ, **variables}, stdout=out, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
    text = log.read_text(errors="replace")
    last = re.findall(r"^Ran \d+ tests.*$|^(?:OK|FAILED).*$", text, re.MULTILINE)
    print(f"{name}: {' '.join(last)}", flush=True)
    found = {test: kind for kind, test in re.findall(r"^(FAIL|ERROR): (.+)$", text, re.MULTILINE)}
    ran = sum(map(int, re.findall(r"^Ran (\d+) tests", text, re.MULTILINE)))
    skipped = sum(map(int, re.findall(r"^(?:OK|FAILED) .*\bskipped=(\d+)", text, re.MULTILINE)))
    return {re.sub(r" at 0x[0-9a-f]+", "", test): kind for test, kind in found.items()}, ran - skipped


def main() -> int:
    folder = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else RESULT.parent
    runs = sys.argv[2:] or ["plain", "cold", "warm"]
    folder.mkdir(parents=True, exist_ok=True)
    committed = json.loads(RESULT.read_text()) if RESULT.is_file() else {}
    result = {"machine": machine_header(), "failing": {"plain": committed.get("failing", {}).get("plain", [])}}
    with tempfile.TemporaryDirectory() as directory:
        cached = {"NUMBA_KCACHE_INSTALL": "all", "NUMBA_KCACHE_DIR": directory}
        result["ran"] = dict.fromkeys(runs, 0)
        result["failing"] |= {name: [] for name in runs}
        for number, name in itertools.product(range(PARTS), runs):
            install = {"NUMBA_KCACHE_INSTALL": "0"} if name == "plain" else cached
            found, ran = run(name, folder / f"{name}{number}.log", parts()[number], **install)
            result["failing"][name] = sorted([*result["failing"][name], *found])
            result["ran"][name] += ran
            new = {
                each: sorted(set(tests) - set(result["failing"]["plain"])) for each, tests in result["failing"].items()
            }
            result["new"] = new
            (folder / "numba_suite.json").write_text(json.dumps(result, indent=1) + "\n")
    unexpected = {name: [each for each in tests if not EXPECTED.search(each)] for name, tests in new.items()}
    print(json.dumps({"new": new, "unexpected": unexpected}, indent=1))
    return int(any(unexpected.values()))


if __name__ == "__main__":
    raise SystemExit(main())
