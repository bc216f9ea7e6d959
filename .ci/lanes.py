"""Run the tests marked `lane` in environments with neither, either and both of the Numbas.

Method      Each lane has its own environment below .venv/lanes. uv makes it from wheels that are downloaded once, and
            recreates it when pyproject.toml changes; it contains none of the project's other extras. numba-cuda-mlir
            is tested in its newest version and, together with numba-cuda, in the oldest supported one. Tests are
            skipped if a lane lacks a package that they need, so each lane requires a minimum number of passed tests.
Run         python3 .ci/lanes.py [make | test] [LANE ...]    (with the project's environment: tasks.py lanes)
Ends        With exit code 1 if an environment cannot be made, a test fails, too few pass, or a lane takes too long.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / ".venv" / "lanes"
LIMIT_S = 90.0
"""CPU seconds that the tests of a lane may take; wall time would depend on the machine's other load."""

LEFT_OUT = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
"""Environment variables that the tests do not get. uv installs no bytecode, so the first process that imports a package
has to write it: that halves the import time of all later ones."""


class Lane(NamedTuple):
    """One environment.

    Args:
        extras: The project's extras that are installed, in addition to that of the toolkit.
        also: Further requirements, which narrow the versions.
        least: Minimum number of tests that have to pass.
        python: The oldest Python version that these packages support: (3, 12).
        mlir: The version of numba-cuda-mlir that the tests have to find; "" if it is the newest, or not installed.
    """

    extras: tuple[str, ...]
    also: tuple[str, ...]
    least: int
    python: tuple[int, int] = (3, 11)
    mlir: str = ""


LANES = {
    "neither": Lane((), (), 12),
    "numba": Lane(("numba",), (), 20),
    "mlir": Lane(("mlir",), ("numpy>=2.5",), 24, (3, 12)),  # NumPy 2.5 needs Python 3.12
    "both": Lane(("numba", "mlir"), ("numba-cuda-mlir==0.5.4",), 33, mlir="0.5.4"),  # the oldest supported version
}


def make(name: str) -> None:
    """Make a lane's environment, unless it is up to date."""
    lane, home = LANES[name], HOME / name
    toolkit = os.environ.get("NUMBA_KCACHE_CUDA", "cu13")
    wanted = [f".[{','.join((toolkit, *lane.extras))}]", *lane.also, "pytest>=8", "pytest-xdist>=3.5"]
    stamp = hashlib.sha256((ROOT / "pyproject.toml").read_bytes() + repr(wanted).encode()).hexdigest()
    if (home / "stamp").is_file() and (home / "stamp").read_text() == stamp:
        return
    shutil.rmtree(home, ignore_errors=True)
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "-q", "--python", _python(lane.python), str(home)], check=True)
    python = str(home / "bin" / "python")
    subprocess.run([*uv, "pip", "install", "-q", "--python", python, "-e", *wanted], cwd=ROOT, check=True)
    (home / "stamp").write_text(stamp)


def _python(oldest: tuple[int, int]) -> str:
    """Find an interpreter of at least this version: this one or another of this machine; otherwise uv fetches one."""
    if sys.version_info >= oldest:
        return sys.executable
    minors = range(oldest[1], oldest[1] + 4)
    named = [f"python3.{minor}" for minor in minors]
    managed = [each for minor in minors for each in glob.glob(f"{Path.home()}/.pyenv/versions/3.{minor}.*/bin/python3")]
    for each in (*filter(None, map(shutil.which, named)), *managed):
        # pyenv has a command for a version that only some of its environments contain: it may fail
        if subprocess.run([each, "-c", ""], capture_output=True, check=False).returncode == 0:
            return each
    return f"3.{oldest[1]}"


def run_tests(name: str) -> bool:
    """Run a lane's tests; return True if none fails, enough of them pass, and they stay within the time limit."""
    environment = {key: value for key, value in os.environ.items() if key not in LEFT_OUT}
    environment |= {"NUMBA_KCACHE_TEST_MLIR": LANES[name].mlir} if LANES[name].mlir else {}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [str(HOME / name / "bin" / "python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "lane"]
    done = subprocess.run(
        [*command, "-n", "2"], cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    took_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    (passed,) = re.findall(r"(\d+) passed", done.stdout)[-1:] or ("0",)
    is_successful = done.returncode == 0 and int(passed) >= LANES[name].least and took_s <= LIMIT_S
    if not is_successful:
        print(done.stdout)
    count = f"{passed} passed of at least {LANES[name].least}"
    print(f"lane {name}: {count}, {took_s:.0f} s of {LIMIT_S:.0f}{'' if is_successful else ': FAILED'}", flush=True)
    return is_successful


def main() -> None:
    arguments = sys.argv[1:]
    step = arguments.pop(0) if arguments[:1] in (["make"], ["test"]) else "all"
    names = arguments or list(LANES)
    for name in names if step != "test" else ():
        make(name)
    if step != "make" and False in [run_tests(name) for name in names]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
