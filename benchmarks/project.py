"""How large are the project's wheel and its dependencies, and how long does it take from a clone to the first result?

Method      sdist and wheel are built from a clone of this commit, and the wheel is installed with each combination of
            extras into its own environment. The size is that of site-packages without bytecode, in MB of 10^6 bytes.
            "clone" is `git clone` of a local checkout. "demo" is `tasks.py demo` in the clone: it makes an environment
            with all developer dependencies, compiles three kernels and serves them from disk. "again" is a second run.
            "suite" comes from a report of pytest (`--junitxml`), passed by `--suite`.
Not shown   The network: packages come from the configured index and cache of pip and uv; other toolkits and Pythons.
"""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

from harness import ROOT, Arguments, Folders, Result, run, seconds

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


def measure(result: Result, arguments: Arguments) -> None:
    result.samples |= {"size_mb": {}, "installed_mb": {}, "first_result_s": {}}

    def keep(part: str, name: str, measured: Callable[[], float]) -> None:
        try:
            result.samples[part][name] = measured()
        except (OSError, ValueError, subprocess.CalledProcessError) as error:  # no network, no uv, no git
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
                folder = folders.root / f"with {extras}"
                keep(
                    "installed_mb", extras,
                    lambda wheel=wheel, extras=extras, folder=folder: installed(wheel, extras, folder),
                )  # fmt: skip


if __name__ == "__main__":
    run(__doc__, measure, suite="")
