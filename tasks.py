"""The project's tasks. Needs Python alone: it makes its own environment in .venv and runs the task there.

    python3 tasks.py demo     compile three kernels, serve them from disk to a second process
    python3 tasks.py test     run the test suite (GPU tests where there is a GPU)
    python3 tasks.py quick    run the tests that are not marked slow: a minute
    python3 tasks.py bare     the tests that start servers and tools, where there are none: they skip
    python3 tasks.py check    formatting, lint, types
    python3 tasks.py docs     run the code blocks of README and docs, and the examples
    python3 tasks.py site     build the documentation into build/site, warnings being errors
    python3 tasks.py differential [--steps N] [--seed S] [--processes P]  random programs and edits, checked
    python3 tasks.py house    measure rooms, warm starts and weight against their limits; --list for those above
    python3 tasks.py lanes    run the tests marked `lane` with neither, either and both of the Numbas
    python3 tasks.py storm    10,000 signals, 10,000 forks and a handler at 10,000 lines; an argument sets the number
    python3 tasks.py fuzz     a million mutated entries, manifests, records and bundles; --count, --seed, --processes
    python3 tasks.py chaos    60 processes for 10 minutes, killed and stopped, and links planted in the store; as root
    python3 tasks.py wheel    build a wheel for this machine into dist/, with the compiled module
    python3 tasks.py gpu      tests and benchmarks that need a GPU; figures go to benchmarks/results
    python3 tasks.py all      check, docs and test, as CI does

NUMBA_KCACHE_CUDA=cu12 in the environment takes the CUDA 12 toolkit instead of 13.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin/python"
EXTRAS = "numba,mlir,object-store,sign"
PARALLEL = ("-n", str((os.cpu_count() or 1) + 2), "--dist", "worksteal")
"""Two processes more than cores, since tests wait for children, locks and servers. Tests take from 1 ms to 10 s: with
`worksteal` a process that has finished takes over tests of another."""


def make_environment() -> None:
    """Make .venv, or bring it up to date with pyproject.toml and the compiled module."""
    toolkit = os.environ.get("NUMBA_KCACHE_CUDA", "cu13")
    read = [ROOT / "pyproject.toml", ROOT / ".ci/native_build.py", *sorted(ROOT.glob("numba_kcache/*/*.[ch]"))]
    wanted = hashlib.sha256(b"\0".join([*(each.read_bytes() for each in read), toolkit.encode()])).hexdigest()
    stamp = VENV / "stamp"
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    if importlib.util.find_spec("ensurepip") is None:
        raise SystemExit("cannot make an environment: this Python has no ensurepip (Debian: apt install python3-venv)")
    if not PYTHON.is_file():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    extras = f"{toolkit},{EXTRAS}"
    print(f"installing numba-kcache[{extras}] and the group dev into {VENV}", flush=True)
    pip = ("-m", "pip", "install", "-q", "--disable-pip-version-check")
    run(*pip, "pip>=25.1")  # the first that knows dependency groups
    run(*pip, "-e", f".[{extras}]", "--group", "dev")
    stamp.write_text(wanted)


def run(*arguments: str) -> None:
    """Run the environment's Python; end with its exit code if it fails."""
    done = subprocess.run([str(PYTHON), *arguments], cwd=ROOT, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)


def has_gpu() -> bool:
    """Check if the CUDA driver finds a device."""
    script = "from cuda.bindings import driver as d; d.cuInit(0); import sys; sys.exit(not d.cuDeviceGetCount()[1])"
    return subprocess.run([str(PYTHON), "-c", script], capture_output=True, check=False).returncode == 0


def demo() -> None:
    run("examples/first_kernels.py")


def test() -> None:
    where = [] if has_gpu() else ["-m", "not gpu", *PARALLEL]  # with a device, in one process
    run("-m", "pytest", "-q", *where, *sys.argv[2:])


def quick() -> None:
    run("-m", "pytest", "-q", "-m", "not slow and not gpu", *PARALLEL, *sys.argv[2:])


def bare() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for each in ("sh", "chmod", "head", "true"):  # a shell and coreutils, which every Linux has
            Path(folder, each).symlink_to(f"/bin/{each}")
        os.environ["PATH"] = folder
        run("-m", "pytest", "-q", "-m", "program and not gpu", *sys.argv[2:])  # few run: one process collects them


def check() -> None:
    run("-m", "ruff", "format", "--check", ".")
    run("-m", "ruff", "check", ".")
    run("-m", "mypy")


def docs() -> None:
    run("-m", "pytest", "-q", "tests/contract/test_docs.py")


def site() -> None:
    run("-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "docs", "build/site")


def house() -> None:
    run(".ci/house.py", *sys.argv[2:])


def lanes() -> None:
    run(".ci/lanes.py", *sys.argv[2:])


def storm() -> None:
    count, processes = (*sys.argv[2:3], "10000")[0], str(os.cpu_count())
    with tempfile.TemporaryDirectory() as folder:
        run("-m", "tests.support.storm", "all", count, folder, "0", processes)


def fuzz() -> None:
    run("-m", "tests.fuzz.fuzz_decoded", *(sys.argv[2:] or ("--count", "1000000")))


def chaos() -> None:
    with tempfile.TemporaryDirectory() as folder:
        run("-m", "tests.support.chaos", (*sys.argv[2:3], "600")[0], folder, *sys.argv[3:])


def differential() -> None:
    run("-m", "tests.differential", *sys.argv[2:])


def wheel() -> None:
    run("-m", "pip", "wheel", "-q", "--disable-pip-version-check", "--no-deps", "-w", "dist", ".")


def gpu() -> None:
    run(".ci/gpu.py")


def all_() -> None:
    check()
    house()
    docs()
    site()
    lanes()
    test()


NAMED = (demo, test, quick, bare, check, docs, site, differential, house, lanes, storm, fuzz, chaos, wheel, gpu, all_)
TASKS = {each.__name__.strip("_"): each for each in NAMED}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in TASKS:
        raise SystemExit(__doc__)
    make_environment()
    TASKS[sys.argv[1]]()
