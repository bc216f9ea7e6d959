"""Run a script in a fresh process whose caches are all in one folder, and read its output.

Promise     A child uses no cache outside `folder`: numba_kcache's, CuPy's, Numba's and Triton's are in it, and the
            driver's own is off. If a child fails, for instance because a peer is not installed, the caller gets the
            last line of its output as text and no exception.
Not here    The measurement, which is the child's: it prints its figures as a JSON object on the last line. `fresh`
            requires `end` among them: the time.time() at which the child was done.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("NUMBA_KCACHE_DIR", "CUPY_CACHE_DIR", "NUMBA_CACHE_DIR", "TRITON_CACHE_DIR", "KC_BENCH_DIR")


def environment(folder: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Make the environment of a child whose caches are all in `folder`."""
    caches = dict.fromkeys(FOLDERS, str(folder))
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "CUDA_CACHE_DISABLE": "1", "PYTHONPATH": path, **caches, **(more or {})}


def start(words: Sequence[str], folder: Path, more: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start a child that runs a script with arguments."""
    return subprocess.Popen(
        [sys.executable, *words], env=environment(folder, more), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def reason(output: str) -> str:
    """The reason why a child failed: the last line that names an error, or the last one."""
    lines = [line.strip() for line in output.strip().splitlines()] or ["it died"]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Interrupt|Exit)\b", line)]
    return (named or lines)[-1][:200]


def answer(child: subprocess.Popen[str], limit_s: float = 240.0) -> dict[str, Any] | str:
    """The object that the child printed last; the reason, as text, if it failed or took longer than `limit_s`."""
    try:
        out, error = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return f"took longer than {limit_s:.0f} s"
    if child.returncode != 0:
        return reason(error or out)
    objects = [line for line in out.splitlines() if line.startswith("{")]  # some packages print at exit
    found: dict[str, Any] | str = json.loads(objects[-1]) if objects else "it said nothing"
    return found


def fresh(words: Sequence[str], folder: Path, more: Mapping[str, str] | None = None) -> dict[str, Any] | str:
    """Run a child; its answer, with the seconds from its start to its result (`result`) and to its end (`process`)."""
    begin = time.time()
    found = answer(start(words, folder, more))
    if isinstance(found, dict):
        found["result"], found["process"] = found.pop("end") - begin, time.time() - begin
    return found


def sample(script: str, system: str, folder: Path, batches: int, launches: int) -> dict[str, Any]:
    """Run a script that uses `read_arguments`; its answer, with the seconds from its start to its end (`process`).

    Args:
        script: The file.
        system: The name of the system that the child measures.
        folder: The folder of the child's caches.
        batches: Batches of launches that the child times; 0 for no launches.
        launches: Launches in a batch.
    """
    words = [script, "--child", system, "--batches", str(batches), "--launches", str(launches)]
    begin = time.perf_counter()
    found = answer(start(words, folder))
    if isinstance(found, str):
        raise SystemExit(f"{system}: {found}")
    return {**found, "process": time.perf_counter() - begin}


def read_arguments(description: str | None) -> argparse.Namespace:
    """Parse the command line: the numbers of measurements, and in a child the system that it measures."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, default=41)
    parser.add_argument("--launches", type=int, default=300)
    parser.add_argument("--within", type=float, default=1e9, help="seconds after which no further round is begun")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child")
    return parser.parse_args()


def say(**found: object) -> None:
    """Print the figures of this child as JSON, with the time at which it is done."""
    print(json.dumps({**found, "end": time.time()}))


def wait_for_the_others() -> bool:
    """If this child is a rank, report that it is ready, wait for the start, and return True.

    A rank has `KC_BENCH_BARRIER`, the folder through which ranks and parent communicate.
    """
    barrier = os.environ.get("KC_BENCH_BARRIER")
    if barrier:
        Path(barrier, str(os.getpid())).touch()
        while not os.path.exists(os.path.join(barrier, "go")):
            time.sleep(0.0005)
    return bool(barrier)


def open_barrier(barrier: Path, children: Sequence[subprocess.Popen[str]], limit_s: float = 120.0) -> float:
    """Start the children when all of them are ready or have ended; return the time of the start."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if all(child.poll() is not None or (barrier / str(child.pid)).exists() for child in children):
            break
        time.sleep(0.001)
    started = time.time()
    (barrier / "go").touch()
    return started


def is_pretended() -> bool:
    """Check whether the driver is the tests' fake one, on which no kernel runs, so that no result can be checked."""
    return bool(os.environ.get("KC_FAKE_DEVICES"))
