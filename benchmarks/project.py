"""How large is the project, and how long are the first minutes of a developer and of a user, to the first result?

Method      sdist and wheel are built from a clone of this commit, and the wheel is installed with each combination of
            extras into its own environment. The size is that of site-packages without bytecode, in MB of 10^6 bytes.
            "clone" is `git clone` of a local checkout. "demo" is `tasks.py demo` in the clone: it makes an environment
            with all developer dependencies, compiles three kernels and serves them from disk. "again" is a second run.
            "suite" comes from a report of pytest (`--junitxml`), passed by `--suite`.
            `--part first_minutes`: for each first program of README.md, "environment" is `python -m venv`, "install"
            the `pip install` of the program's heading into it, with `--wheel` in place of the release and without pip's
            cache, and "first" and "second" are two runs of the program as it stands, with an empty cache of kernels
            before the first. Seconds of whole processes; one round. MB are the files of the environment.
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

from harness import ROOT, Arguments, Folders, Result, reason, run, seconds

ERRORS = OSError, ValueError, subprocess.CalledProcessError
"""Those of a machine without network, space, uv or git."""

EXTRAS = ("", "cu13", "cu12", "cu13,numba", "cu13,mlir", "cu13,numba,mlir")


def megabytes(path: Path) -> float:
    """Size of a file, or of the files in a folder without bytecode."""
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file() and not each.is_symlink()]
    return sum(each.stat().st_size for each in files if each.suffix != ".pyc") / 1e6


def installed(wheel: Path, extras: str, folder: Path) -> float:
    """Install the wheel with these extras in a new environment; return the megabytes of its packages."""
    seconds(["uv", "venv", "-q", "--python", sys.executable, folder])
    wanted = f"{wheel}[{extras}]" if extras else wheel
    seconds(["uv", "pip", "install", "-q", "--python", folder / "bin/python", wanted])
    (packages,) = (folder / "lib").glob("python*/site-packages")
    return megabytes(packages)


def built(clone: Path, dist: Path) -> Path:
    """Build the sdist of a clone, and from it the wheel; return the wheel."""
    seconds(["uv", "build", "-q", "--out-dir", dist], cwd=clone)
    (wheel,) = dist.glob("*.whl")
    return wheel


PROGRAM = re.compile(r"^### ([^\n]+)\n\n`pip install ([^`]+)`[^\n]*\n\n```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
"""A heading of the README, what it tells to install, and its program."""


def programs() -> list[tuple[str, list[str], str]]:
    """Each first program of the README: its heading, the words to install, and its text."""
    found = PROGRAM.findall((ROOT / "README.md").read_text())
    return [(heading, shlex.split(words), text) for heading, words, text in found]


def first_minutes(wheel: Path, words: list[str], text: str, folder: Path) -> dict[str, Any]:
    """Make the environment, install, and run the program twice; return the seconds and what the runs printed."""
    python, program = folder / "environment/bin/python", folder / "first.py"
    program.write_text(text)
    install = [each.replace("numba-kcache", str(wheel), 1) if "numba-kcache" in each else each for each in words]
    variables = {"PATH": os.environ["PATH"], "HOME": str(folder), "NUMBA_KCACHE_DIR": str(folder / "cache")}
    variables |= {name: os.environ[name] for name in os.environ if name.startswith("PIP_") or name.endswith("_proxy")}
    steps: dict[str, list[str]] = {
        "environment": [sys.executable, "-m", "venv", str(folder / "environment")],
        "install": [str(python), "-m", "pip", "install", "-q", "--no-cache-dir", *install],
        "first": [str(python), str(program)],
        "second": [str(python), str(program)],
    }
    result: dict[str, Any] = {}
    for step, command in steps.items():
        begin = time.perf_counter()
        done = subprocess.run(command, env=variables, cwd=folder, capture_output=True, text=True, check=False)
        result[f"{step}_s"] = time.perf_counter() - begin
        if done.returncode:
            raise ValueError(f"{step}: {reason(done.stderr)}")
        if step in ("first", "second"):
            (result[f"{step}_hits"],) = (int(each) for each in re.findall(r"hits +(\d+)", done.stdout))
            result["compiled_ahead"] = "no GPU here" in done.stdout
    listed = subprocess.run([str(python), "-m", "pip", "freeze"], capture_output=True, text=True, check=True).stdout
    packages = [each for each in listed.splitlines() if re.match(r"(torch|cupy-cuda1[23]x|numba-cuda)==", each)]
    return result | {"megabytes": megabytes(folder / "environment"), "packages": packages}


def measure_first_minutes(result: Result, arguments: Arguments) -> None:
    for heading, words, text in programs()[: 1 if arguments.quick else None]:
        with Folders() as folders:
            try:
                wheel = Path(arguments.wheel) if arguments.wheel else built(ROOT, folders("dist"))
                result.samples[heading] = first_minutes(wheel.resolve(), words, text, folders("program"))
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
    with Folders() as folders:
        clone, dist, demo = folders.root / "clone", folders.root / "dist", (sys.executable, "tasks.py", "demo")
        keep("first_result_s", "clone", lambda: seconds(["git", "clone", "-q", ROOT, clone]))
        for name in () if arguments.quick else ("demo", "again"):
            keep("first_result_s", name, lambda: seconds(demo, cwd=clone))
        keep("size_mb", "wheel", lambda: megabytes(built(clone, dist)))
        for path in dist.glob("*.tar.gz"):
            keep("size_mb", "sdist", lambda path=path: megabytes(path))
        for wheel in dist.glob("*.whl"):
            for extras in EXTRAS[: 1 if arguments.quick else None]:
                keep("installed_mb", extras, partial(installed, wheel, extras, folders.root / f"with {extras}"))


if __name__ == "__main__":
    parts = {"project": (measure_project, None), "first_minutes": (measure_first_minutes, None)}
    run(__doc__, parts, suite="", wheel="")
