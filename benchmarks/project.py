"""How large are the project's wheel and its dependencies, and how long does it take from a clone to the first result?

Method      sdist and wheel are built from a clone of this commit, and the wheel is installed with each combination of
            extras into its own environment. The size is that of site-packages without bytecode, in MB of 10^6 bytes.
            "clone" is `git clone` of a local checkout. "demo" is `tasks.py demo` in the clone: it makes an environment
            with all developer dependencies, compiles three kernels and serves them from disk. "again" is a second run.
            "suite" comes from a report of pytest (`--junitxml`), passed by `--suite`.
Not shown   The network: packages come from the configured index and cache of pip and uv; other toolkits and Pythons.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from header import ROOT, machine_header, write_result

EXTRAS = ("", "cu13", "cu12", "cu13,numba", "cu13,mlir", "cu13,numba,mlir")
QUICK = ("",)


def run(*words: object, cwd: Path = ROOT) -> str:
    """Run a command; its output."""
    done = subprocess.run([*map(str, words)], cwd=cwd, check=True, capture_output=True, text=True)
    return done.stdout


def megabytes(path: Path) -> float:
    """Size of a file, or of the files in a folder without bytecode."""
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file() and not each.is_symlink()]
    return sum(each.stat().st_size for each in files if each.suffix != ".pyc") / 1e6


def installed(wheel: Path, extras: str, folder: Path) -> float:
    """Install the wheel with these extras in a new environment; return the megabytes of its packages."""
    run("uv", "venv", "-q", "--python", sys.executable, folder)
    wanted = f"{wheel}[{extras}]" if extras else wheel
    run("uv", "pip", "install", "-q", "--python", folder / "bin/python", wanted)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    return megabytes(packages)


def suite(report: Path) -> dict[str, float]:
    """Tests of a report and the seconds they took."""
    (found,) = ElementTree.parse(report).iter("testsuite")
    return {"tests": int(found.get("tests", 0)), "seconds": float(found.get("time", 0))}


def seconds(*words: object, cwd: Path = ROOT) -> float:
    """Time of a command."""
    begin = time.perf_counter()
    run(*words, cwd=cwd)
    return time.perf_counter() - begin


def built(clone: Path, dist: Path) -> Path:
    """Build the sdist of a clone, and from it the wheel; return the wheel."""
    run("uv", "build", "-q", "--out-dir", dist, cwd=clone)
    (wheel,) = dist.glob("*.whl")
    return wheel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the wheel, installed without extras")
    parser.add_argument("--suite", type=Path, help="a report of pytest")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    samples: dict[str, Any] = {"size_mb": {}, "installed_mb": {}, "first_result_s": {}}
    left_out: dict[str, str] = {}

    def keep(part: str, name: str, measure: Callable[[], float]) -> None:
        try:
            samples[part][name] = measure()
            print(f"{part} {name}: {samples[part][name]:.4g}", flush=True)
        except (OSError, ValueError, subprocess.CalledProcessError) as error:  # no network, no uv, no git
            message = getattr(error, "stderr", "") or str(error)
            left_out[f"{part} {name}"] = message.strip().splitlines()[-1][:200]
        if arguments.json:
            write_result(arguments.json, "project", machine_header(), samples, left_out=left_out)

    if arguments.suite:
        samples["suite"] = suite(arguments.suite)
    with tempfile.TemporaryDirectory() as parent:
        clone, dist, demo = Path(parent, "clone"), Path(parent, "dist"), (sys.executable, "tasks.py", "demo")
        keep("first_result_s", "clone", lambda: seconds("git", "clone", "-q", ROOT, clone))
        if not arguments.quick:
            keep("first_result_s", "demo", lambda: seconds(*demo, cwd=clone))
            keep("first_result_s", "again", lambda: seconds(*demo, cwd=clone))
        keep("size_mb", "wheel", lambda: megabytes(built(clone, dist)))
        for path in dist.glob("*.tar.gz"):
            keep("size_mb", "sdist", partial(megabytes, path))
        for wheel in dist.glob("*.whl"):
            for number, extras in enumerate(QUICK if arguments.quick else EXTRAS):
                folder = Path(parent, str(number))
                keep("installed_mb", extras, partial(installed, wheel, extras, folder))


if __name__ == "__main__":
    main()
