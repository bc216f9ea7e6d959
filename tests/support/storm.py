"""Interrupt a program at any instant: by signals whose handlers use the package, and by forks whose children use it.

Run     python -m tests.support.storm all COUNT FOLDER [SEED [PROCESSES]], or one of the kinds below in place of `all`.
        Each process takes its share of COUNT and has its own cache. A process that hangs prints the stacks of all
        threads and ends.
        lines    COUNT launches of new kernels; in each, one call of `calls` is made at a random line of the package.
        signals  The same calls in handlers of a timer's signals, COUNT of them.
        forks    COUNT children, forked while threads launch and clear: each looks up, compiles and counts.
"""

from __future__ import annotations

import faulthandler
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import numba_kcache
from numba_kcache import LaunchError, cached_kernel
from tests.support.fake_driver import build, environment

HANG_S = 20
KNOWN = 4
"""Number of kernels that are launched repeatedly; all other kernels are launched once."""


_revisions = itertools.count()


def new_kernel(revision: int | None = None) -> Any:
    """A kernel with another key than all earlier ones."""
    from tests.support.toy_kind import Toy  # here, so that importing this module registers no toy kind

    return cached_kernel(Toy("scale"), revision=next(_revisions) if revision is None else revision)


def launch(kernel: Any) -> None:
    kernel[1, 32](None, 7)


def calls(kernel: Any) -> list[Callable[[], object]]:
    """The calls of the package that a handler may make."""
    return [
        lambda: launch(kernel),
        lambda: launch(kernel),
        lambda: launch(new_kernel()),
        lambda: kernel.compile("sm_90"),
        lambda: kernel.explain("sm_90"),
        lambda: numba_kcache.info("process"),
        numba_kcache.info,
        lambda: numba_kcache.subscribe(lambda event: None)(),
        lambda: numba_kcache.configure(max_size_bytes=1 << 30),
        numba_kcache.clear,
        lambda: list(numba_kcache.entries()),
    ]


def lines(count: int, dice: random.Random) -> None:
    """Launch new kernels; in each launch make one of the calls at a random line of the package."""
    most = 400
    for _ in range(count):
        kernel, left = new_kernel(), dice.randrange(most)
        call = dice.choice(calls(kernel))

        def trace(frame: FrameType, event: str, _argument: object, call: Callable[[], object] = call) -> Any:
            nonlocal left
            if "numba_kcache" not in frame.f_code.co_filename:
                return None
            if event == "line":
                left -= 1
                if left == 0:
                    sys.settrace(None)
                    call()
            return trace

        sys.settrace(trace)
        try:
            launch(kernel)
        finally:
            sys.settrace(None)
        most = max(200, most - left if left > 0 else most + 50)


def signals(count: int, dice: random.Random) -> None:
    """Interrupt launches by a timer whose handler makes one of the calls; the handler may be interrupted once."""
    kernel, done, depth = new_kernel(), 0, 0

    def handle(_number: int, _frame: object) -> None:
        nonlocal done, depth
        done, depth = done + 1, depth + 1
        if depth == 2:
            signal.setitimer(signal.ITIMER_REAL, 0)
        dice.choice(calls(kernel))()
        depth -= 1

    signal.signal(signal.SIGALRM, handle)
    while done < count:
        kernel = new_kernel()
        signal.setitimer(signal.ITIMER_REAL, dice.uniform(1e-5, 4e-3), dice.choice((0, 1e-3)))
        launch(kernel)
        launch(kernel)
        signal.setitimer(signal.ITIMER_REAL, 0)


def forks(count: int, dice: random.Random) -> None:
    """Fork while other threads launch, load, clear and count."""
    stop, failed = threading.Event(), list[BaseException]()
    known = [new_kernel() for _ in range(KNOWN)]

    def work() -> None:
        try:
            while not stop.is_set():
                launch(new_kernel())
                for each in known:
                    launch(each)
                numba_kcache.info()
                if random.random() < 0.1:
                    numba_kcache.clear()
        except BaseException as error:
            failed.append(error)

    def child() -> None:
        signal.alarm(HANG_S)
        for each in (*known, new_kernel(-os.getpid())):  # the last is new in this child
            each.compile("sm_90")
        assert numba_kcache.info("process").misses >= 1
        with pytest.raises(LaunchError, match="spawn"):
            launch(known[0])

    threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(count):
        time.sleep(dice.uniform(0, 2e-3))
        pid = os.fork()
        if pid == 0:
            try:
                child()
                os._exit(0)
            except BaseException:
                import traceback

                traceback.print_exc()
                os._exit(1)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status == 0, f"a child ended with {status}"
        assert not failed, failed
    stop.set()
    for thread in threads:
        thread.join()


SOURCE = 'extern "C" __global__ void scale(float *x, int n) { if (threadIdx.x < n) x[threadIdx.x] *= 2; }'


def prepared(root: Path) -> dict[str, str]:
    """The environment of a process on the fake driver, with its own cache and a table of one toy kernel."""
    compiled = cached_kernel(SOURCE, arch="sm_90")
    (root / "scale.cubin").write_bytes(compiled.cubin())
    row = {"version": 1, "parameters": [list(each) for each in compiled.params]}
    (root / "table.json").write_text(json.dumps({"scale": row}))
    settings = {"NUMBA_KCACHE_DIR": str(root / "cache"), "NUMBA_KCACHE_DURABILITY": "none", "TOY_TABLE": str(root)}
    return environment(build()) | settings


def start(kinds: Sequence[str], count: int, root: Path, seed: int, processes: int) -> int:
    """Run each kind of storm in several processes; return the number of processes that failed."""
    environs = []
    for number in range(processes):
        (folder := root / f"{number}").mkdir()
        environs.append(prepared(folder))
    failed = 0
    for kind in kinds:
        start_s, command = time.monotonic(), (sys.executable, "-m", "tests.support.storm", f"-{kind}")
        share = str(-(-count // processes))
        running = [
            subprocess.Popen([*command, share, str(seed + number)], env=environ)
            for number, environ in enumerate(environs)
        ]
        ended = [each.wait() for each in running]
        failed += len(ended) - ended.count(0)
        print(f"{kind}: {processes} x {share} in {time.monotonic() - start_s:.0f} s, ended with {ended}", flush=True)
    return failed


def main() -> None:
    kind, count = sys.argv[1], int(sys.argv[2])
    if not kind.startswith("-"):
        kinds = ("lines", "signals", "forks") if kind == "all" else (kind,)
        seed, processes = (int(each) for each in (*sys.argv[4:], *("0", "1")[len(sys.argv) - 4 :]))
        sys.exit(min(start(kinds, count, Path(sys.argv[3]), seed, processes), 1))
    kind, seed = kind[1:], int(sys.argv[3])
    if kind == "forks":
        warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of forks beside threads
        faulthandler.register(signal.SIGALRM, chain=True)  # dump_traceback_later ends with a fork
    else:
        faulthandler.dump_traceback_later(max(HANG_S, count), exit=True)
    for call in calls(kernel := new_kernel()):
        call()  # imports all modules: a handler cannot use one whose import it interrupts
    launch(kernel)
    {"lines": lines, "signals": signals, "forks": forks}[kind](count, random.Random(seed))
    print(f"{kind}: {count} done")


if __name__ == "__main__":
    main()
