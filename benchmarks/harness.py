"""Measure in fresh processes whose caches are all in one folder, and write each result while it grows.

Promise     A child uses no cache outside its folder: numba_kcache's, CuPy's, Numba's and Triton's are in it, and the
            driver's own is off. If a child fails, for instance because a peer is not installed, its system is left out
            with the reason. A result is written after each sample, completely or not at all, and names machine and
            commit: a time limit loses one sample.
Not here    The programs that are measured (programs.py, and the scripts). A child prints its figures by `say`.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("NUMBA_KCACHE_DIR", "CUPY_CACHE_DIR", "NUMBA_CACHE_DIR", "TRITON_CACHE_DIR", "KC_BENCH_DIR")
Arguments = argparse.Namespace
ALWAYS = 1e9
"""Seconds that no benchmark takes: no time limit."""

LIMIT_S = 240.0
"""Seconds of a child at most."""

AT_ONCE = max(1, (os.cpu_count() or 1) // 2)
"""The number of processes that run in parallel where only their compiles take time, or no time is measured."""


def say(**found: object) -> None:
    """Print the figures of this child as JSON, with the time at which it is done."""
    print(json.dumps({**found, "end": time.time()}))


def require(is_right: object) -> None:
    """Check a result, unless the driver is the tests' fake one, on which no kernel runs."""
    assert is_right or os.environ.get("KC_FAKE_DEVICES"), "a kernel's result is wrong"


def compiles() -> int:
    """The number of kernels that this package has compiled in this process."""
    import numba_kcache

    return numba_kcache.info("process").compiles


def wait_for_the_others() -> None:
    """Report that this child is ready, and wait for the start, if it is a rank: then `KC_BENCH_BARRIER` is the folder
    through which ranks and parent communicate."""
    if barrier := os.environ.get("KC_BENCH_BARRIER"):
        Path(barrier, str(os.getpid())).touch()
        while not os.path.exists(os.path.join(barrier, "go")):
            time.sleep(0.0005)


def start(words: Sequence[object], folder: Path, more: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start a child whose caches are all in `folder`: Python with these arguments."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    caches = dict.fromkeys(FOLDERS, str(folder))
    return subprocess.Popen(
        [sys.executable, *map(str, words)], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "CUDA_CACHE_DISABLE": "1", "PYTHONPATH": path, **caches, **(more or {})},
    )  # fmt: skip


def reason(output: str) -> str:
    """The reason why a child failed: the last line that names an error, or the last one."""
    lines = [line.strip() for line in output.strip().splitlines()] or ["it died"]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Interrupt|Exit)\b", line)]
    return (named or lines)[-1][:200]


def answer(child: subprocess.Popen[str], limit_s: float = LIMIT_S) -> dict[str, Any] | str:
    """The object that the child printed last, or {}; the reason, as text, if it failed or took longer."""
    try:
        out, error = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        return f"took longer than {limit_s:.0f} s"
    if child.returncode != 0:
        return reason(error or out)
    objects = [line for line in out.splitlines() if line.startswith("{")]  # some packages print at exit
    return {**json.loads(objects[-1])} if objects else {}


def fresh(
    words: Sequence[object], folder: Path, more: Mapping[str, str] | None = None, limit_s: float = LIMIT_S
) -> dict[str, Any] | str:
    """Run a child; its answer, with the seconds from its start to its end (`process`) and from its answer to its end
    (`ended`), and those to the time `begin`, if it is in the answer (`python`)."""
    started = time.time()
    found = answer(start(words, folder, more), limit_s)
    if isinstance(found, dict):
        now = time.time()
        found["process"] = now - started
        if "end" in found:
            found["ended"] = now - found.pop("end")
        if "begin" in found:
            found["python"] = found.pop("begin") - started
    return found


def in_parallel(call: Callable[[Any], Any], items: Iterable[Any], at_once: int) -> Iterator[Any]:
    """Call for each item, `at_once` in parallel, and yield the results in order; with 1, a call waits until the result
    before is taken."""
    from concurrent.futures import ThreadPoolExecutor  # here, so that no child imports it before the package

    if at_once == 1:
        yield from map(call, items)
    else:
        with ThreadPoolExecutor(at_once) as pool:
            yield from pool.map(call, items)


@contextlib.contextmanager
def temporary_folders() -> Iterator[Callable[..., Path]]:
    """A function that makes a folder for each name; they are removed at the end of the `with` block."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root:

        def folder(*names: object) -> Path:
            path = Path(root, *(re.sub(r"\W", "_", str(name)) for name in names))
            path.mkdir(parents=True, exist_ok=True)
            return path

        yield folder


DISTRIBUTIONS = (
    "numba", "numba-cuda", "numba_cuda_mlir", "cuda-core", "cuda-bindings", "cupy-cuda13x", "torch", "triton", "numpy",
)  # fmt: skip


def machine_header() -> dict[str, Any]:
    """Commit, GPU, driver, processor, versions, load and time."""
    import platform
    from importlib.metadata import distributions  # here, so that no child imports it before the package

    versions = {each.name: each.version for each in distributions() if each.name in DISTRIBUTIONS}
    return {
        "commit": commit(), "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(), "platform": platform.platform(), "cores": os.cpu_count(),
        "load": os.getloadavg(), "versions": versions, **gpu_of(),
    }  # fmt: skip


def commit() -> str:
    """The commit of this tree: as the file COMMIT of a copy names it, or git, with `+` if files differ from it."""
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
    try:
        release = re.search(r"\b\d{3,}\.\d+(?:\.\d+)?\b", Path("/proc/driver/nvidia/version").read_text())
    except OSError:
        release = None
    return {"gpu": name, "driver_cuda": int(number), "driver": release[0] if release else None}


class Result:
    """The result of a script, or of the part of it that was asked, written to a file again after each of its samples.
    A script that is stopped leaves the samples so far, with `is_cut`. Nothing is begun after `within_s` seconds, and a
    child that still runs is stopped."""

    def __init__(self, path: Path | None, question: str, within_s: float = ALWAYS) -> None:
        self.path, self.question, self.notes = path, question, dict[str, object](is_cut=True)
        self.begin_s, self.within_s, self.is_cut = time.monotonic(), within_s, False
        self.machine = machine_header() if path else {}
        self.samples: dict[str, Any] = {}
        self.left_out: dict[str, str] = {}

    def left_s(self) -> float:
        return self.begin_s + self.within_s - time.monotonic()

    def is_over(self) -> bool:
        """Check whether the time is over; a script asks only before it measures more, so its result is cut then."""
        self.is_cut = self.is_cut or self.left_s() < 0
        return self.is_cut

    def rounds(self, count: int, fills: int = 0) -> Iterator[int]:
        """Number the rounds of a measurement until the time is over. The first `fills` are negative, not counted."""
        return itertools.takewhile(lambda _: not self.is_over(), range(-fills, count))

    def write(self, **notes: object) -> None:
        """Write what was found so far, completely or not at all; `notes` are further members of the object."""
        self.notes |= {"took_s": round(time.monotonic() - self.begin_s, 1), **notes}
        if not self.path:
            return
        kept = {"machine": self.machine, "left_out": self.left_out, **self.notes, "samples": self.samples}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        private = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        private.write_text(json.dumps({"question": self.question, **kept}, indent=1) + "\n")
        private.replace(self.path)

    def add(self, *names: str, prefix: str = "", **figures: Any) -> None:
        """Append each figure to the samples under these names, and write the result."""
        rows = self.samples
        for name in names:
            rows = rows.setdefault(name, {})
        for what, value in figures.items():
            rows.setdefault(f"{prefix}{what}", []).append(value)
        self.write()

    def leave_out(self, name: str, why: str) -> None:
        if name not in self.left_out:
            print(f"{name}: {why}", file=sys.stderr, flush=True)
        self.left_out[name] = why

    def take(self, name: str, *words: object, folder: Path, more: Mapping[str, str] | None = None) -> Any:
        """Run a child of this script; its answer, or None if it failed: then what it measures is left out."""
        if name in self.left_out or self.is_over():
            return None
        return self.kept(name, fresh(self.command(*words), folder, more, min(LIMIT_S, self.left_s())))

    def command(self, *words: object) -> list[object]:
        """The words for Python that run a child of this script."""
        return [sys.argv[0], "--part", self.question, "--child", *words]

    def kept(self, name: str, found: Any) -> Any:
        """The answer of a child; None for a reason, and then it is left out, unless the time is over."""
        if isinstance(found, str) and not self.is_over():
            self.leave_out(name, found)
        return None if isinstance(found, str) else found

    def ranks(
        self, name: str, commands: Sequence[tuple[Sequence[object], Path]], more: Mapping[str, str] | None = None
    ) -> Any:
        """Run children, each with its words and folder, that begin to work at the same time; None if one failed.

        Returns:
            Their answers, and the seconds from their common start to the last result (`last`) and to the last end
            (`ended`), and from the first process to the last end (`all`).
        """
        if self.is_over():
            return None
        with tempfile.TemporaryDirectory() as barrier:
            begin, variables = time.time(), {"KC_BENCH_BARRIER": barrier, **(more or {})}
            children = [start(self.command(*words), folder, variables) for words, folder in commands]
            while time.time() < begin + 120 and not all(
                child.poll() is not None or Path(barrier, str(child.pid)).exists() for child in children
            ):
                time.sleep(0.001)
            started = time.time()
            Path(barrier, "go").touch()
            found = [self.kept(name, answer(child, min(LIMIT_S, self.left_s()))) for child in children]
            ended = time.time()
        if None in found:
            return None
        last = max(each["end"] for each in found)
        return {"answers": found, "last": last - started, "ended": ended - started, "all": ended - begin}

    def take_all(
        self, rows: Mapping[str, Sequence[object]], folder: Callable[[str], Path], at_once: int = 1, **more: Any
    ) -> Iterator[tuple[str, Any]]:
        """Run a child for each name, with its words and its folder, `at_once` in parallel; yield names and answers."""
        found = in_parallel(lambda name: self.take(name, *rows[name], folder=folder(name), **more), rows, at_once)
        yield from ((name, each) for name, each in zip(rows, found, strict=True) if each)

    def sampled(
        self,
        rows: Mapping[str, Sequence[object]],
        folder: Callable[[str], Path],
        count: int,
        fills: int = 1,
        **more: Any,
    ) -> Iterator[tuple[str, Any]]:
        """Run a child for each name `count` times, one after another in alternating order; yield names and answers.
        Before, all are run `fills` times in parallel, to fill the caches; these answers are not yielded."""
        for number in self.rounds(count, fills):
            now = {name: rows[name] for name in alternated([*rows], number)}
            for name, found in self.take_all(now, folder, AT_ONCE if number < 0 else 1, **more):
                if number >= 0:
                    yield name, found


def alternated(systems: Sequence[Any], number: int) -> list[Any]:
    """The systems in the order of a round: that of every second one is reversed."""
    return [*(reversed(systems) if number % 2 else systems)]


Part = tuple[Callable[[Result, Arguments], object], Callable[..., object] | None]


def run(doc: str | None, parts: Mapping[str, Part], **options: tuple[int, int] | str) -> None:
    """Run a script: the child that gets the words of `--child`, or the measurement, which fills and writes the result.

    `parts` has both by the result's name. `options` are further arguments, each a number with its default and that of
    `--quick`, or a text with its default.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="the file of the result")
    parser.add_argument("--quick", action="store_true", help="few samples")
    parser.add_argument("--within", type=float, default=ALWAYS, help="seconds after which the script stops")
    parser.add_argument("--part", choices=[*parts], default=next(iter(parts)), help="the result to measure")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    for name, default in options.items():
        if isinstance(default, str):
            parser.add_argument(f"--{name}", default=default, help=f"default: {default or 'none'}")
        else:
            parser.add_argument(f"--{name}", type=int, help="default: {}; with --quick: {}".format(*default))
    arguments = parser.parse_args()
    measure, child = parts[arguments.part]
    if arguments.child:
        assert child
        child(*arguments.child)
        return
    for name, default in options.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, default[arguments.quick])
    compileall.compile_dir(str(ROOT / "numba_kcache"), quiet=2)  # as pip does it for an installed package
    result = Result(arguments.json, arguments.part, arguments.within)
    result.notes |= {"quick": True} if arguments.quick else {}
    measure(result, arguments)
    result.write(is_cut=result.is_cut)
    if not arguments.json:
        print(json.dumps(result.notes | result.samples, indent=1))
