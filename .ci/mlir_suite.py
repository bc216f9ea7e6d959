"""Run numba-cuda-mlir's own tests without this cache and with every kernel in it, cold and warm, and compare.

numba-cuda-mlir's wheel does not contain them: `python .ci/mlir_suite.py TESTS [FOLDER [RUN ...]]`, where TESTS is a
folder of tests from its repository, or several separated by commas. FOLDER gets the logs and `mlir_suite.json`. RUN is
plain, cold or warm; all three by default. On a machine without a device, `--fake` uses the fake driver of this
project's tests: tests that compare numbers then fail in the plain run, and are not counted. The exit code is 1 if a
test passes in the plain run and fails with the cache, unless it is in `EXPECTED`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

EXPECTED = re.compile(r"test_cach|persistent_cache_save|lto_dump_assembly_warn")
"""Tests that may fail with this cache: those of numba-cuda-mlir's own cache, and one that expects a dump of the linked
code (a hit links nothing)."""

START = "import numba_kcache, pytest, sys; raise SystemExit(pytest.main(sys.argv[1:]))"
LIMIT_S = 3000


def outcomes_of(name: str, report: Path) -> dict[str, str]:
    """Print the counts of a JUnit report; return the outcome of each test by name: passed, skipped, failure, error."""
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        outcome = next((each.tag for each in case if each.tag in ("failure", "error", "skipped")), "passed")
        found[re.sub(r" at 0x[0-9a-f]+", "", f"{case.get('classname')}::{case.get('name')}")] = outcome
    print(name, {word: list(found.values()).count(word) for word in sorted(set(found.values()))}, flush=True)
    return found


def run(name: str, tests: Iterable[str], folder: Path, variables: dict[str, str]) -> dict[str, str]:
    """Run the tests once; return the outcome of each by name: passed, skipped, failure or error."""
    report = folder / f"{name}.xml"
    report.unlink(missing_ok=True)
    words = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--junitxml={report}", "-x", "--maxfail=100000", *tests]
    with (folder / f"{name}.log").open("w") as out:
        subprocess.run(
            [sys.executable, "-c", START, *words], env={**os.environ, **variables}, stdout=out,
            stderr=subprocess.STDOUT, check=False, timeout=LIMIT_S,
        )  # fmt: skip
    return outcomes_of(name, report)


def main() -> int:
    words = [each for each in sys.argv[1:] if each != "--fake"]
    tests, folder = words[0].split(","), Path(words[1] if len(words) > 1 else ".").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    variables: dict[str, str] = {}
    if "--fake" in sys.argv:
        from tests.support.fake_driver import build, environment

        variables = environment(build())
    outcomes: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as directory:
        cached = {"NUMBA_KCACHE_INSTALL": "all", "NUMBA_KCACHE_DIR": directory}
        for name in words[2:] or ["plain", "cold", "warm"]:
            outcomes[name] = run(
                name, tests, folder, variables | ({"NUMBA_KCACHE_INSTALL": "0"} if name == "plain" else cached)
            )
    plain = outcomes.get("plain", {})
    new = {
        name: sorted(
            test for test, outcome in found.items() if outcome in ("failure", "error") and plain.get(test) == "passed"
        )
        for name, found in outcomes.items()
    }
    unexpected = {name: [each for each in tests if not EXPECTED.search(each)] for name, tests in new.items()}
    (folder / "mlir_suite.json").write_text(json.dumps({"new": new, "outcomes": outcomes}, indent=1) + "\n")
    print(json.dumps({"new": new, "unexpected": unexpected}, indent=1))
    return int(any(unexpected.values()))


if __name__ == "__main__":
    raise SystemExit(main())
