"""Describe the machine and the commit of a measurement, and write results."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DISTRIBUTIONS = (
    "numba", "numba-cuda", "cuda-core", "cuda-bindings", "cupy-cuda13x", "torch", "triton", "pycuda", "warp-lang",
    "numpy",
)  # fmt: skip


def machine_header() -> dict[str, Any]:
    """Commit, GPU, driver, processor, versions, load and time."""
    versions = {}
    for name in DISTRIBUTIONS:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "commit": commit(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "versions": versions,
        **gpu_of(),
    }


def commit() -> str:
    """The commit of this tree. A copy that is no git checkout names it in the file COMMIT in its root; for a checkout,
    git names it, with `+` if files differ from the commit."""
    note = ROOT / "COMMIT"
    if note.is_file():
        return note.read_text().strip()[:12]
    words = ["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"]
    try:
        output = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        output = ""
    return output or "unknown"


GPU = """
from cuda.bindings import driver
driver.cuInit(0)
status, device = driver.cuDeviceGet(0)
assert not status
print(driver.cuDeviceGetName(100, device)[1].partition(b"\\0")[0].decode(), driver.cuDriverGetVersion()[1], sep="\\n")
"""


def gpu_of() -> dict[str, Any]:
    """Name the device; `{"gpu": None}` without one. A child asks the driver, so that this process opens no device."""
    done = subprocess.run([sys.executable, "-c", GPU], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return {"gpu": None}
    name, number = done.stdout.splitlines()[-2:]
    return {"gpu": name, "driver_cuda": int(number), "driver": _driver_release()}


def _driver_release() -> str | None:
    """The release of the driver, such as 580.159.04; None if /proc does not name it."""
    try:
        found = re.search(r"\b\d{3,}\.\d+(?:\.\d+)?\b", Path("/proc/driver/nvidia/version").read_text())
    except OSError:
        return None
    return found[0] if found else None


def write_result(path: Path, question: str, header: dict[str, Any], samples: Any, **notes: object) -> None:
    """Write the JSON file of one run of a benchmark; `notes` are further members of the object, such as the
    parts left out."""
    write_json(path, {"question": question, "machine": header, **notes, "samples": samples})


def write_json(path: Path, result: object) -> None:
    """Write a JSON file completely or not at all: an interrupted write leaves the old file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    private = path.with_name(f"{path.name}.{os.getpid()}")
    private.write_text(json.dumps(result, indent=1) + "\n")
    private.replace(path)


class Result:
    """The result of a script, written again after each of its parts: a time limit loses at most one part.

    Args:
        path: The file to write; None to write nothing.
        question: The question of the script, or the script's name.
        **notes: Facts about the whole run.
    """

    def __init__(self, path: Path | None, question: str, **notes: object) -> None:
        self.path, self.question, self.notes = path, question, notes
        self.header = machine_header() if path else {}

    def write(self, samples: Any, **notes: object) -> None:
        """Write the samples collected so far."""
        if self.path:
            write_result(self.path, self.question, self.header, samples, **self.notes, **notes)
