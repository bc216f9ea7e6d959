"""Run every benchmark that this machine can run: without a GPU, those that need none.

Method      One process for each result, one after another, with a time limit. Results written before the limit are
            kept. `--quick` takes few samples, which the result states.
Output      A line for each script, and FOLDER/NAME.json with the machine's header. benchmarks/tables.py and
            benchmarks/plots.py make the documents from the committed results.
Not shown   See each script.
Run         python benchmarks/run.py [FOLDER] [--quick] [--only NAME,NAME] [--limit SECONDS] [--within SECONDS]
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from harness import ROOT, gpu_of
from results import MEASUREMENTS, script_of


def run(name: str, folder: Path, limit_s: float, *further: str) -> str:
    """Run one script and return a line that says how it ended."""
    script, *part = script_of(name).split()
    words = [sys.executable, str(ROOT / "benchmarks" / script), *part, "--json", str(folder / f"{name}.json")]
    words += ["--within", f"{0.9 * limit_s:.0f}", *further]  # what is written is complete before the limit
    start = time.monotonic()
    child = subprocess.Popen(words, cwd=ROOT, start_new_session=True)
    try:
        code = child.wait(limit_s)
        end = "done" if code == 0 else f"failed with {code}"
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)  # with its children
        child.wait()
        end = f"stopped at its limit of {limit_s:.0f} s"
    return f"{name}: {end}, {time.monotonic() - start:.0f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "benchmarks/results")
    parser.add_argument("--only", default=",".join(MEASUREMENTS), help="names of results, with commas between")
    parser.add_argument("--quick", action="store_true", help="few samples")
    parser.add_argument("--limit", type=float, help="seconds for a script; default 600, with --quick 150")
    parser.add_argument("--within", type=float, default=float("inf"), help="seconds for all of them")
    arguments = parser.parse_args()
    wanted = set(arguments.only.split(","))
    if unknown := wanted - {*MEASUREMENTS}:
        parser.error(f"no result is called {', '.join(sorted(unknown))}")
    folder, has_device = arguments.folder.resolve(), gpu_of()["gpu"] is not None
    limit_s, lines = arguments.limit or (150 if arguments.quick else 600), []
    end = time.monotonic() + arguments.within
    for name, (_, needs_device) in MEASUREMENTS.items():
        if name not in wanted:
            continue
        left_s = min(limit_s, end - time.monotonic())
        if needs_device and not has_device:
            lines.append(f"{name}: left out, it needs a GPU")
        elif left_s < 1:
            lines.append(f"{name}: left out, the time is over")
        else:
            lines.append(run(name, folder, left_s, *["--quick"] * arguments.quick))
        print(f"== {lines[-1]}", flush=True)
    print("\n".join(lines))
    return int(any("failed" in line for line in lines))


if __name__ == "__main__":
    raise SystemExit(main())
