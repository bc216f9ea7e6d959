"""Run every benchmark that this machine can run: without a GPU, those that need none.

Method      One process for each script, one after another, with a time limit. Results written before the limit are
            kept. `--quick` takes few samples, which the result states.
Output      A line for each script, and FOLDER/NAME.json with the machine's header. benchmarks/tables.py and
            benchmarks/plots.py make the documents from the committed results.
Not shown   See each script.
Run         python benchmarks/run.py [FOLDER] [--quick] [--only NAME,NAME] [--limit SECONDS] [--within SECONDS]
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from header import gpu_of

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks/results"


class Script(NamedTuple):
    """One benchmark.

    Args:
        name: The name of the script and of its result.
        needs_device: Whether it needs a GPU.
        quick: Arguments that `--quick` adds.
    """

    name: str
    needs_device: bool
    quick: tuple[str, ...]


SCRIPTS = (
    Script("first_launch", True, ("--quick",)),
    Script("warm_steps", True, ("--rounds", "2")),
    Script("added", True, ("--pairs", "5", "--cold", "1")),
    Script("launch", True, ("--batches", "11")),
    Script("numba_first_launch", True, ("--rounds", "4", "--batches", "11")),
    Script("mlir", True, ("--rounds", "4", "--batches", "11")),
    Script("import_time", False, ("--rounds", "7")),
    Script("modules", True, ("--cold", "1", "--warm", "3", "--many", "3")),
    Script("lookup", True, ("--rounds", "3")),
    Script("whole_process", True, ("--rounds", "3")),
    Script("workloads", True, ("--quick",)),
    Script("processes", True, ("--quick",)),
    Script("growth", True, ("--quick",)),
    Script("cuda_compute", True, ("--samples", "3")),
    Script("triton_kernels", True, ("--samples", "3")),
    Script("program_cache", False, ("--samples", "3")),
    Script("real_programs", True, ("--warm", "1")),
    Script("cupy_programs", True, ("--rounds", "2")),
    Script("warm_up", False, ("--kernels", "16")),
    Script("numba_fingerprint", False, ("--rounds", "5")),
    Script("compile_overhead", False, ("--rounds", "1", "--limit", "40")),
    Script("cli", False, ("--entries", "0,1,2000", "--rounds", "3")),
    Script("store", False, ("--entries", "10", "--processes", "1")),
    Script("nodes", False, ("--nodes", "4", "--ranks", "2", "--kernels", "4", "--rounds", "1")),
    Script("fleet", False, ("--nodes", "200", "--kernels", "5")),
    Script("project", False, ("--quick",)),
    Script("first_minutes", False, ("--quick",)),
)
"""The results that README shows come first: a limit of the whole time leaves out the last ones."""


def run(script: Script, folder: Path, limit_s: float, *, is_quick: bool) -> str:
    """Run one script and return a line that says how it ended."""
    words = [str(ROOT / f"benchmarks/{script.name}.py"), "--json", str(folder / f"{script.name}.json")]
    start, begin = time.monotonic(), time.time()
    words += script.quick if is_quick else ()
    child = subprocess.Popen([sys.executable, *words], cwd=ROOT, start_new_session=True)
    try:
        code = child.wait(limit_s)
        end = "done" if code == 0 else f"failed with {code}"
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)  # with its children
        child.wait()
        end = f"stopped at its limit of {limit_s:.0f} s"
    written = folder / f"{script.name}.json"
    if is_quick and written.is_file() and written.stat().st_mtime >= begin:
        written.write_text(json.dumps({"quick": True, **json.loads(written.read_text())}, indent=1) + "\n")
    return f"{script.name}: {end}, {time.monotonic() - start:.0f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=RESULTS)
    parser.add_argument("--only", help="names of scripts, with commas between")
    parser.add_argument("--quick", action="store_true", help="few samples")
    parser.add_argument("--limit", type=float, help="seconds for a script; default 600, with --quick 150")
    parser.add_argument("--within", type=float, default=float("inf"), help="seconds for all of them")
    arguments = parser.parse_args()
    wanted = set(arguments.only.split(",")) if arguments.only else {script.name for script in SCRIPTS}
    if unknown := wanted - {script.name for script in SCRIPTS}:
        parser.error(f"no script is called {', '.join(sorted(unknown))}")
    folder, has_device = arguments.folder.resolve(), gpu_of()["gpu"] is not None
    folder.mkdir(parents=True, exist_ok=True)
    compileall.compile_dir(str(ROOT / "numba_kcache"), quiet=2)  # as pip does it for an installed package
    limit_s, lines = arguments.limit or (150 if arguments.quick else 600), []
    end = time.monotonic() + arguments.within
    for script in SCRIPTS:
        if script.name in wanted:
            left_s = min(limit_s, end - time.monotonic())
            if script.needs_device and not has_device:
                lines.append(f"{script.name}: left out, it needs a GPU")
            elif left_s < 1:
                lines.append(f"{script.name}: left out, the time is over")
            else:
                lines.append(run(script, folder, left_s, is_quick=arguments.quick))
            print(f"== {lines[-1]}", flush=True)
    print("\n".join(lines))
    return int(any("failed" in line for line in lines))


if __name__ == "__main__":
    raise SystemExit(main())
