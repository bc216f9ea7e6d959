"""What machine a figure was measured on, and how results are written."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

DISTRIBUTIONS = ("numba", "numba-cuda", "cuda-core", "cuda-bindings", "cupy-cuda13x", "torch", "triton", "numpy")


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
        **_gpu(),
    }


def _gpu() -> dict[str, Any]:
    try:
        from cuda.bindings import driver

        driver.cuInit(0)
        _, device = driver.cuDeviceGet(0)
        _, name = driver.cuDeviceGetName(100, device)
        _, number = driver.cuDriverGetVersion()
        return {"gpu": name.partition(b"\0")[0].decode(), "driver_cuda": number, "driver": _driver_release()}
    except (ImportError, RuntimeError, ValueError):
        return {"gpu": None}


def _driver_release() -> str | None:
    try:
        return Path("/proc/driver/nvidia/version").read_text().split("Module")[1].split()[0]
    except (OSError, IndexError):
        return None


def write_result(path: Path, question: str, header: dict[str, Any], samples: Any) -> None:
    """One JSON file for one run of one question."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"question": question, "machine": header, "samples": samples}, indent=1) + "\n")
