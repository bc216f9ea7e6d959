"""How long are the first minutes of a user: from no environment to the first result of each program of the README?

Method      For each first program of README.md: "environment" is `python -m venv`, "install" the `pip install` of the
            program's heading into it, with `--wheel` in place of the release and without pip's cache, and "first" and
            "second" are two runs of the program as it stands, with an empty cache of kernels before the first. Seconds
            of whole processes; one round. MB are the files of the environment, of 10^6 bytes.
Not shown   A slow network: "install" is mostly the download of CUDA, CuPy and PyTorch, from the indexes that pip is
            configured for. The time to read the page.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from harness import ROOT, Arguments, Folders, Result, reason, run
from project import built, megabytes

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


def measure(result: Result, arguments: Arguments) -> None:
    with Folders() as folders:
        for heading, words, text in programs()[: 1 if arguments.quick else None]:
            with Folders() as own:
                try:
                    arguments.wheel = arguments.wheel or str(built(ROOT, folders.root / "dist"))
                    result.samples[heading] = first_minutes(Path(arguments.wheel).resolve(), words, text, own())
                except (OSError, ValueError, subprocess.CalledProcessError) as error:  # no network, no uv, no space
                    result.leave_out(heading, str(error)[:200])
            result.write()


if __name__ == "__main__":
    run(__doc__, measure, wheel="")
