"""What machine a figure was measured on, and how results are written."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

DISTRIBUTIONS = (
    "numba", "numba-cuda", "cuda-core", "cuda-bindings", "cupy-cuda13x", "torch", "triton", "pycuda", "warp-lang",
    "numpy",
)  # fmt: skip


def machine_header() -> dict[str, Any]:
    """GPU, driver, processor, versions, load and time."""
    versions = {}
    for name in DISTRIBUTIONS:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "versions": versions,
        **gpu_of(),
    }


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
