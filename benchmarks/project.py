"""How large is the project, and how long are the first minutes of a developer and of a user, to the first result?

Method      sdist and wheel are built from a clone of this commit, and the wheel is installed with each combination of
            extras into its own environment. The size is that of site-packages without bytecode, in MB of 10^6 bytes.
            "demo" is `tasks.py demo` in the clone: it makes an environment with all developer dependencies, compiles
            three kernels and serves them from disk; "again" is a second run. "suite" is from a report of pytest
            (`--suite`).
            `--part first_minutes`: for each first program of README.md, "environment" is `python -m venv`, "install"
            the `pip install` of its heading, with `--wheel` in place of the release and without pip's cache, and
            "first" and "second" are two runs of the program, with an empty cache before the first. One round. MB are
            the files of the environment.
Not shown   The network: packages come from the configured index and cache of pip and uv; other toolkits and Pythons.
Not shown of first_minutes   A slow network: "install" is mostly the download of CUDA, CuPy and PyTorch, from the
            indexes that pip is configured for. The time to read the page.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from harness import ROOT, Arguments, Result, reason, run, temporary_folders

ERRORS = OSError, ValueError  # without network, space, uv or git
EXTRAS = ("", "cu13", "cu12", "cu13,numba", "cu13,mlir", "cu13,numba,mlir")


def megabytes(path: Path) -> float:
    """Size of a file, or of the files in a folder without bytecode."""
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file() and not each.is_symlink()]
    return sum(each.stat().st_size for each in files if each.suffix != ".pyc") / 1e6


def installed(wheel: Path, extras: str, folder: Path) -> float:
    """Install the wheel with these extras in a new environment; return the megabytes of its packages."""
    timed("uv", "venv", "-q", "--python", sys.executable, folder)
    wanted = f"{wheel}[{extras}]" if extras else wheel
    timed("uv", "pip", "install", "-q", "--python", folder / "bin/python", wanted)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    return megabytes(packages)


def timed(*words: object, **more: Any) -> tuple[float, str]:
    """Seconds of a whole process, and what it prints.

    Raises:
        ValueError: It failed, with the reason.
    """
    begin = time.perf_counter()
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False, **more)
    if done.returncode:
        raise ValueError(reason(done.stderr or done.stdout))
    return time.perf_counter() - begin, done.stdout


def built(clone: Path, dist: Path) -> Path:
    """Build the sdist of a clone, and from it the wheel; return the wheel."""
    timed("uv", "build", "-q", "--out-dir", dist, cwd=clone)
    (wheel,) = dist.glob("*.whl")
    return wheel


PROGRAM = re.compile(r"^### ([^\n]+)\n\n`pip install ([^`]+)`[^\n]*\n\n```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
"""A heading of the README, what it tells to install, and its program."""


def first_minutes(wheel: Path, words: list[str], text: str, folder: Path) -> dict[str, Any]:
    """Make the environment, install, and run the program twice; return the seconds and what the runs printed."""
    python, program = folder / "environment/bin/python", folder / "first.py"
    program.write_text(text)
    install = [each.replace("numba-kcache", str(wheel), 1) if "numba-kcache" in each else each for each in words]
    variables = {"PATH": os.environ["PATH"], "HOME": str(folder), "NUMBA_KCACHE_DIR": str(folder / "cache")}
    variables |= {name: os.environ[name] for name in os.environ if name.startswith("PIP_") or name.endswith("_proxy")}
    result: dict[str, Any] = {}
    for step, command in {
        "environment": (sys.executable, "-m", "venv", folder / "environment"),
        "install": (python, "-m", "pip", "install", "-q", "--no-cache-dir", *install),
        "first": (python, program),
        "second": (python, program),
    }.items():
        result[f"{step}_s"], _ = timed(*command, env=variables, cwd=folder)
    listed = timed(python, "-m", "pip", "freeze")[1].splitlines()
    packages = [each for each in listed if re.match(r"(torch|cupy-cuda1[23]x|numba-cuda)==", each)]
    return result | {"megabytes": megabytes(folder / "environment"), "packages": packages}


def measure_first_minutes(result: Result, arguments: Arguments) -> None:
    found = PROGRAM.findall((ROOT / "README.md").read_text())
    for heading, words, text in found[: 1 if arguments.quick else None]:
        with temporary_folders() as folders:
            try:
                wheel = Path(arguments.wheel) if arguments.wheel else built(ROOT, folders("dist"))
                result.samples[heading] = first_minutes(wheel.resolve(), shlex.split(words), text, folders("program"))
            except ERRORS as error:
                result.leave_out(heading, str(error)[:200])
        result.write()


def measure_project(result: Result, arguments: Arguments) -> None:
    result.samples |= {"size_mb": {}, "installed_mb": {}, "first_result_s": {}}

    def keep(part: str, name: str, measured: Callable[[], float]) -> None:
        try:
            result.samples[part][name] = measured()
        except ERRORS as error:
            result.leave_out(f"{part} {name}", str(error)[:200])
        result.write()

    if arguments.suite:
        (found,) = ElementTree.parse(arguments.suite).iter("testsuite")
        result.samples["suite"] = {"tests": int(found.get("tests", 0)), "seconds": float(found.get("time", 0))}
    with temporary_folders() as folders:
        clone, dist, demo = folders() / "clone", folders() / "dist", (sys.executable, "tasks.py", "demo")
        keep("first_result_s", "clone", lambda: timed("git", "clone", "-q", ROOT, clone)[0])
        for name in () if arguments.quick else ("demo", "again"):
            keep("first_result_s", name, lambda: timed(*demo, cwd=clone)[0])
        keep("size_mb", "wheel", lambda: megabytes(built(clone, dist)))
        for path in dist.glob("*.tar.gz"):
            keep("size_mb", "sdist", lambda path=path: megabytes(path))
        for wheel in dist.glob("*.whl"):
            for extras in EXTRAS[: 1 if arguments.quick else None]:
                keep("installed_mb", extras, partial(installed, wheel, extras, folders() / f"with {extras}"))


if __name__ == "__main__":
    parts = {"project": (measure_project, None), "first_minutes": (measure_first_minutes, None)}
    run(__doc__, parts, suite="", wheel="")
