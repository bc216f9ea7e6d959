"""Run what needs a GPU: the tests marked gpu, then the benchmarks; write figures with the machine's header.

Run it on a machine with a device, in an environment that has the package and its test extra:
`python .ci/gpu.py [FOLDER]`; FOLDER defaults to benchmarks/results. The exit code is that of the tests.
"""

from __future__ import annotations

import compileall
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from header import machine_header  # noqa: E402

BENCHMARKS = ("import_time.py", "first_launch.py", "launch.py", "numba_first_launch.py", "lookup.py", "modules.py")


def main() -> int:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "benchmarks/results").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests", "--tb=short", "-p", "no:cacheprovider"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    print(tests.stdout[-12000:], tests.stderr[-2000:])
    if tests.returncode == 0:
        result = {"summary": tests.stdout.strip().splitlines()[-1], "commit": commit(), "machine": machine_header()}
        (folder / "gpu_tests.json").write_text(json.dumps(result, indent=1) + "\n")
    compileall.compile_dir(str(ROOT / "numba_kcache"), quiet=2)  # as pip does it for an installed package
    for name in BENCHMARKS:
        script = ROOT / "benchmarks" / name
        target = folder / f"{script.stem}.json"
        done = subprocess.run([sys.executable, str(script), "--json", str(target)], cwd=ROOT, check=False)
        print(f"{name}: exit {done.returncode}")
    return tests.returncode


def commit() -> str:
    """The commit of this checkout; COMMIT beside it where there is no git."""
    said = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    note = ROOT / "COMMIT"
    return said.stdout.strip() or (note.read_text().strip() if note.is_file() else "unknown")


if __name__ == "__main__":
    raise SystemExit(main())
