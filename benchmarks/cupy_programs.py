"""How long do CuPy programs of other authors take, unedited, plainly and under `numba-kcache run`?

Method      Each sample is a whole process: `python PROG.py` or `numba-kcache run PROG.py`, in turn. Cold: both caches
            empty. Warm: after another process. Results are compared twice: what the programs print, without lines that
            state times (each of them checks its own result, too), and every stored cubin, byte by byte, with the one
            that CuPy keeps under the same name. The programs are seven of `examples/` in CuPy's repository, in the
            installed version: `--programs` names that folder. `CUPY_SEED` makes their inputs equal.
Not shown   An edited header (tests/gpu/test_cupy_programs.py), and programs that run for long.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from harness import Folders, Result, environment, reason, rounds, run

PROGRAMS = {
    "complex_struct": ["custom_struct/complex_struct.py"],  # RawKernel
    "packed_matrix": ["custom_struct/packed_matrix.py"],  # RawModule with templates
    "builtin_vectors": ["custom_struct/builtin_vectors.py"],  # RawKernel
    "black_scholes": ["finance/black_scholes.py", "--n-options", "100000"],  # ElementwiseKernel, reductions
    "monte_carlo": ["finance/monte_carlo.py", "--n-options", "100", "--n-samples-per-thread", "100"],
    "elementwise_op": ["jit/elmentwise_op.py"],  # cupyx.jit
    "reduction_simple": ["jit/reduction_simple.py"],  # cupyx.jit
}
SYSTEMS = {"plain": [], "numba_kcache": ["-m", "numba_kcache", "run"]}
TIMED = re.compile(r"\b(?:sec|seconds|ms|s|time)\b", re.IGNORECASE)
DIGITS = 40
"""Length of the digest before each cubin in a file of CuPy's cache."""


def sample(system: str, words: list[str], folder: Path, root: Path) -> tuple[float, str]:
    """Seconds of one process, and what it printed without lines about times.

    Raises:
        RuntimeError: It failed, with its last line.
    """
    program, *rest = words
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *SYSTEMS[system], str(root / program), *rest], env=environment(folder, {"CUPY_SEED": "1"}),
        cwd=(root / program).parent, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    seconds = time.perf_counter() - begin
    if done.returncode:
        raise RuntimeError(reason(done.stderr or done.stdout))
    return seconds, "\n".join(line for line in done.stdout.splitlines() if not TIMED.search(line))


def codes(folder: Path) -> dict[str, bytes]:
    """The code in CuPy's cache, by CuPy's name for it."""
    return {path.name: path.read_bytes()[DIGITS:] for path in folder.glob("*.cubin")}


def codes_here(folder: Path) -> dict[str, bytes]:
    """The code in this package's cache, by CuPy's name for it."""
    from numba_kcache import KernelCache

    cache = KernelCache(folder)
    details = [cache.entry(each.key) for each in cache.entries()]
    named = [({name: value for name, _, value in each.components}, each) for each in details]
    return {parts["component[cupy]"]: each.artifact.cubin for parts, each in named if "component[cupy]" in parts}


def measured(words: list[str], root: Path, count: int) -> dict[str, Any]:
    """Run a program `count` times cold and warm with each system, and compare results."""
    times: dict[str, dict[str, list[float]]] = {system: {"cold": [], "warm": []} for system in SYSTEMS}
    said = set()
    for _ in rounds(count):
        with Folders() as folders:
            for when in ("cold", "warm"):
                for system in SYSTEMS:
                    seconds, text = sample(system, words, folders(system), root)
                    times[system][when].append(seconds)
                    said.add(text)
            plain, ours = codes(folders("plain")), codes_here(folders("numba_kcache"))
    found = {system: {when: median(each) for when, each in rows.items()} for system, rows in times.items()}
    same = bool(ours) and all(plain.get(name) == code for name, code in ours.items())
    is_equal = same and len(said) == 1
    return {
        **found,
        "cold_ratio": found["numba_kcache"]["cold"] / found["plain"]["cold"],
        "warm_more_ms": 1e3 * (found["numba_kcache"]["warm"] - found["plain"]["warm"]),
        "kernels": len(ours),
        "results": "same bits" if is_equal else f"{len(said)} texts, code {'same' if same else 'differs'}",
        "times": times,
    }


def measure(result: Result, arguments: argparse.Namespace) -> None:
    os.umask(0o077)
    for name in arguments.only.split(",") if arguments.only else PROGRAMS:
        try:
            found = measured(PROGRAMS[name], Path(arguments.programs).resolve(), arguments.rounds)
        except (RuntimeError, subprocess.TimeoutExpired, OSError) as error:
            result.leave_out(name, str(error))
            continue
        result.samples[name] = found
        result.write()


if __name__ == "__main__":
    run(__doc__, measure, rounds=(5, 2), programs="build/cupy/examples", only="")
