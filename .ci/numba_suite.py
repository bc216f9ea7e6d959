"""Run Numba's own CUDA tests plain, then with every kernel led through this cache, cold and warm; list what differs.

Run it on a machine with a device: `python .ci/numba_suite.py [FOLDER]`, in an environment with the package and with
`filecheck`. FOLDER keeps the logs and `numba_suite.json`. The exit code is 1 where a test that passes plainly fails
under the cache, unless it is among `EXPECTED`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

EXPECTED = re.compile(r"test_caching\.|test_cache")
"""Tests that look at the files of Numba's own cache, or at what it does with them."""

PROCESSES = max(2, (os.cpu_count() or 2) - 2)
TESTS = "numba.cuda.tests.cudapy"
START = "import numba_kcache, runpy, sys; sys.argv = ['numba', *sys.argv[1:]]; runpy.run_module('numba.runtests', run_name='__main__')"  # noqa: E501
"""The workers are forked before CUDA starts, so that importing the package here is enough for all of them."""


def run(name: str, folder: Path, **variables: str) -> dict[str, str]:
    """Failing tests of one run, by name: FAIL or ERROR."""
    log = folder / f"{name}.log"
    with log.open("w") as out:
        subprocess.run(
            [sys.executable, "-c", START, "-m", str(PROCESSES), TESTS],
            env={**os.environ, **variables}, stdout=out, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
    text = log.read_text(errors="replace")
    last = re.findall(r"^Ran \d+ tests.*$|^(?:OK|FAILED).*$", text, re.MULTILINE)
    print(f"{name}: {' '.join(last)}", flush=True)
    return {test: kind for kind, test in re.findall(r"^(FAIL|ERROR): (.+)$", text, re.MULTILINE)}


def main() -> int:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "benchmarks/results").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    plain = run("plain", folder, NUMBA_KCACHE_INSTALL="0")
    with tempfile.TemporaryDirectory() as directory:
        cached = {"NUMBA_KCACHE_INSTALL": "all", "NUMBA_KCACHE_DIR": directory}
        cold, warm = run("cold", folder, **cached), run("warm", folder, **cached)
    new = {name: sorted(found.keys() - plain.keys()) for name, found in (("cold", cold), ("warm", warm))}
    unexpected = {name: [each for each in tests if not EXPECTED.search(each)] for name, tests in new.items()}
    result = {"plain": sorted(plain), "new": new, "unexpected": unexpected}
    (folder / "numba_suite.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({"new": new, "unexpected": unexpected}, indent=1))
    return int(any(unexpected.values()))


if __name__ == "__main__":
    raise SystemExit(main())
