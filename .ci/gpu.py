"""Run everything that needs a GPU: the tests marked gpu, then benchmarks/run.py.

Run it on a machine with a device, in an environment that has the package and the group `test`:
`python .ci/gpu.py [FOLDER] [ARGUMENT OF run.py ...]`; FOLDER, for the results, defaults to benchmarks/results. The exit
code is that of the tests.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from harness import commit, machine_header  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "benchmarks/results", metavar="FOLDER")
    arguments, further = parser.parse_known_args()
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests", "--tb=short", "-p", "no:cacheprovider"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    print(tests.stdout[-12000:], tests.stderr[-2000:])
    if tests.returncode == 0:
        result = {"summary": tests.stdout.strip().splitlines()[-1], "commit": commit(), "machine": machine_header()}
        (folder / "gpu_tests.json").write_text(json.dumps(result, indent=1) + "\n")
    words = [str(ROOT / "benchmarks/run.py"), str(folder), *further]
    subprocess.run([sys.executable, *words], cwd=ROOT, check=False)
    return tests.returncode


if __name__ == "__main__":
    raise SystemExit(main())
