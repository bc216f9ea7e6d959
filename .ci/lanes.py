"""Run the tests marked `lane` in environments with neither, either and both of the Numbas.

Method      Each lane has its own environment below .venv/lanes. uv makes it from wheels that are downloaded once, and
            updates it with pyproject.toml; it contains none of the project's other extras. numba-cuda-mlir is tested
            with its newest version and, together with numba-cuda, with the oldest supported one. Tests skip what a lane
            lacks, so each lane requires a minimum number of passed tests.
Run         python3 .ci/lanes.py [make | test] [LANE ...]    (with the project's environment: tasks.py lanes)
Ends        With 1 if an environment cannot be made, a test fails, too few pass, or a lane takes too long.
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
"""Seconds of processors that the tests of a lane may take: so a machine that is busy with other things fails none."""

LEFT_OUT = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
"""Of the environment. uv installs no bytecode: that of the first child saves the others half of their imports."""


class Lane(NamedTuple):
    """One environment.

    Args:
        extras: Of this project, beside the toolkit.
        also: Requirements that narrow it.
        least: Tests that pass there at least.
        python: The oldest interpreter that takes them, (3, 12).
        mlir: The version of numba-cuda-mlir that has to be there; "" for the newest, or none.
    """

    extras: tuple[str, ...]
    also: tuple[str, ...]
    least: int
    python: tuple[int, int] = (3, 11)
    mlir: str = ""


LANES = {
    "neither": Lane((), (), 12),
    "numba": Lane(("numba",), (), 20),
    "mlir": Lane(("mlir",), ("numpy>=2.5",), 24, (3, 12)),  # NumPy 2.5 takes no older one
    "both": Lane(("numba", "mlir"), ("numba-cuda-mlir==0.5.4",), 33, mlir="0.5.4"),  # the oldest that is taken
}


def make(name: str) -> None:
    """Make a lane's environment, or bring it up to date."""
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
    """The first interpreter that is no older: this one, or one of this machine; else a request for uv to fetch it."""
    if sys.version_info >= oldest:
        return sys.executable
    minors = range(oldest[1], oldest[1] + 4)
    named = [f"python3.{minor}" for minor in minors]
    managed = [each for minor in minors for each in glob.glob(f"{Path.home()}/.pyenv/versions/3.{minor}.*/bin/python3")]
    for each in (*filter(None, map(shutil.which, named)), *managed):
        if (
            subprocess.run([each, "-c", ""], capture_output=True, check=False).returncode == 0
        ):  # a shim may lead nowhere
            return each
    return f"3.{oldest[1]}"


def run_tests(name: str) -> bool:
    """Run a lane's tests; tell if they pass, are enough, and took no longer than they may."""
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
    is_well = done.returncode == 0 and int(passed) >= LANES[name].least and took_s <= LIMIT_S
    if not is_well:
        print(done.stdout)
    at_least = f"{passed} passed of at least {LANES[name].least}"
    print(f"lane {name}: {at_least}, {took_s:.0f} s of {LIMIT_S:.0f}{'' if is_well else ': FAILED'}", flush=True)
    return is_well


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
