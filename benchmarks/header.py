"""The machine and the commit of a figure, and how results are written."""

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
    """The commit of this checkout, with `+` where files differ from it; COMMIT beside it where there is no git."""
    words = ["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"]
    try:
        said = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        said = ""
    note = ROOT / "COMMIT"
    return said or (note.read_text().strip()[:12] if note.is_file() else "unknown")


def gpu_of() -> dict[str, Any]:
    """The device, or `{"gpu": None}`."""
    try:
        from cuda.bindings import driver

        driver.cuInit(0)
        status, device = driver.cuDeviceGet(0)
        if status:
            return {"gpu": None}
        _, name = driver.cuDeviceGetName(100, device)
        _, number = driver.cuDriverGetVersion()
        return {"gpu": name.partition(b"\0")[0].decode(), "driver_cuda": number, "driver": _driver_release()}
    except (ImportError, RuntimeError, ValueError):
        return {"gpu": None}


def _driver_release() -> str | None:
    """The driver's own release, 580.159.04; None where the kernel does not say."""
    try:
        found = re.search(r"\b\d{3,}\.\d+(?:\.\d+)?\b", Path("/proc/driver/nvidia/version").read_text())
    except OSError:
        return None
    return found[0] if found else None


def write_result(path: Path, question: str, header: dict[str, Any], samples: Any, **notes: object) -> None:
    """One JSON file for one run of one question; `notes` say what was left out or shortened."""
    path.parent.mkdir(parents=True, exist_ok=True)
    result = {"question": question, "machine": header, **notes, "samples": samples}
    path.write_text(json.dumps(result, indent=1) + "\n")
