"""The processes of a warm-up: started anew, or forked from the one that has precompiled what many kernels include.

Promise     No process is left at the end, however it comes. One that dies costs what it was at, and another takes its
            place.
Method      Where enough kernels begin with the same files, one process compiles the first of them, with precompiled
            headers; those that compile the others are forked from it, and inherit them. It compiles nothing more: it
            forks, and ends last. Where it cannot fork, has none, or needs longer than `HEAD_START_S`, it is one worker
            among others, which are started anew. What a forked one died of is tried once more in one of those.
Not here    The work itself (worker), and what there is to do (pool).
Ground      NVRTC's precompiled headers hold addresses of the process that made them, which a forked one shares.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Generator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import send_handle
from typing import Any

from ..engine.session import configured
from ..errors import KCacheError
from ..headers.precompiled import MOST
from ..model import NamedTuple
from ..settings import worker_environment
from .worker import FORK, IN_PASSING, PATIENTLY, Outcome, pack

WORTHWHILE = 3
"""Kernels of each worker from which on precompiled headers are made: one takes as long as they save for another."""

HEAD_START_S, LONGEST_HEAD_START_S = 6.0, 60.0
"""Seconds that others wait for the one that makes them: by what it has had of the cores, and at most."""

_PATIENCE_S = 10.0
"""Seconds that a worker with nothing to do may take to end by itself: longer than a server may keep it waiting."""


class Job(NamedTuple):
    """One thing to have done.

    Args:
        wanted: Who asked for what.
        label: What people call it.
        data: As a worker gets it.
        beginning: What it has in common with others that can share precompiled headers; "" for nothing.
    """

    wanted: Any
    label: str
    data: bytes
    beginning: str


class _Worker:
    """One process, and what it is at."""

    def __init__(self, ours: socket.socket) -> None:
        self.connection = Connection(ours.detach())
        self.job: Job | None = None

    def send(self, data: bytes) -> None:
        """Send, though it may have died meanwhile: that is found by the next reading."""
        with suppress(OSError):
            self.connection.send_bytes(data)

    def begin(self, job: Job, how: bytes) -> None:
        """Have a job done."""
        self.job = job
        self.send(how + job.data)

    def outcome(self) -> tuple[Job, Outcome]:
        """Await the end of its job."""
        job, self.job = self.job, None
        assert job is not None
        try:
            return job, self.connection.recv()
        except (EOFError, OSError):
            why, hint = f"the compiler ended its process by {self.fate()}", "what it said last is on standard error"
            return job, Outcome("died", 0.0, KCacheError(f"cannot compile {job.label}", why, hint), ())

    def fate(self) -> str:
        """Await its end, and say how it ended."""
        raise NotImplementedError

    def kill(self) -> None:
        """End it, and all that were forked from it: a compiler does not listen to anything gentler."""
        raise NotImplementedError

    def end(self) -> None:
        """End it by itself if it has nothing to do, at once otherwise."""
        self.connection.close()


class Started(_Worker):
    """A process of its own, and a group of processes.

    Args:
        precompiled_in: Folder for precompiled headers; "" for none.
    """

    def __init__(self, precompiled_in: str = "") -> None:
        ours, theirs = socket.socketpair()
        path = [each or os.getcwd() for each in sys.path]
        start = f"from numba_kcache.warmup.worker import main; main({theirs.fileno()}, {precompiled_in!r})"
        with ours, theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", f"import sys; sys.path[:] = {path!r}; {start}"],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=worker_environment(),
                start_new_session=True,  # Ctrl-C goes to this process alone, which then ends its workers
            )
            super().__init__(ours)
        self.send(pack(configured()))

    def fate(self) -> str:
        code = self.process.wait()
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def kill(self) -> None:
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def end(self) -> None:
        super().end()
        try:
            if self.job is None:
                self.process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self.kill()
            self.process.wait()


class Forked(_Worker):
    """A process that another has forked.

    Args:
        source: That one; it has nothing to do.

    Raises:
        OSError, EOFError: It cannot.
    """

    def __init__(self, source: Started) -> None:
        self.source = source
        ours, theirs = socket.socketpair()
        with ours, theirs:
            source.connection.send_bytes(FORK)
            send_handle(source.connection, theirs.fileno(), source.process.pid)
            if not source.connection.recv():
                raise OSError("it has no precompiled headers, or threads that do not survive a fork")
            super().__init__(ours)

    def fate(self) -> str:
        return "itself"

    def kill(self) -> None:
        self.source.kill()


def in_workers(jobs: Sequence[Job], count: int) -> Generator[tuple[Any, Outcome], None, None]:
    """Have all done by `count` processes, and yield each outcome as it comes; no process is left at the end."""
    first, waiting = _sorted(jobs, count)
    workers: list[_Worker] = []
    source, folder, forks = None, "", False
    try:
        if first:
            with suppress(OSError):
                folder = tempfile.mkdtemp(prefix="numba_kcache-warm-")
            source = Started(folder)
            yield from _head_start(source, first, waiting)
            forks = source.job is None and not source.connection.closed  # it takes not too long, and has not died
            workers += [source] if source.job is not None else []
        while waiting or any(each.job for each in workers):
            idle = [each for each in workers if each.job is None]
            while waiting and (idle or len(workers) < count):
                if not idle:
                    idle.append((forks and source and _forked(source)) or Started())
                    forks = forks and isinstance(idle[-1], Forked)
                    workers.append(idle[-1])
                idle.pop().begin(*waiting.popleft())
            busy = {each.connection: each for each in workers if each.job is not None}
            for ready in wait(list(busy)):
                worker = busy[ready]  # type: ignore[index]
                job, outcome = worker.outcome()
                if outcome.status == "died":
                    workers.remove(worker)
                    worker.end()
                if outcome.status == "died" and isinstance(worker, Forked):
                    waiting.appendleft((job, IN_PASSING))
                    forks = False
                elif outcome.status == "busy":  # another process builds it: its result is looked for at the end
                    waiting.append((job, PATIENTLY))
                else:
                    yield job.wanted, outcome
    finally:
        every = [*workers, *([source] if source is not None and source not in workers else [])]
        for each in every:
            if each.job is not None:
                each.kill()  # first all of them
        for each in every:
            each.connection.close()
        for each in every:
            each.end()
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


def _forked(source: Started) -> Forked | None:
    try:
        return Forked(source)
    except (OSError, EOFError):
        return None


def _sorted(jobs: Sequence[Job], count: int) -> tuple[deque[Job], deque[tuple[Job, bytes]]]:
    """Tell those that make precompiled headers from the others."""
    counts = Counter(each.beginning for each in jobs if each.beginning)
    common = {beginning for beginning, number in counts.most_common(MOST) if number >= WORTHWHILE * count}
    first = {each.beginning: each for each in reversed(jobs) if each.beginning in common}
    others = ((each, IN_PASSING) for each in jobs if first.get(each.beginning) is not each)
    return deque(first.values()), deque(others)


def _head_start(
    source: Started, first: deque[Job], waiting: deque[tuple[Job, bytes]]
) -> Generator[tuple[Any, Outcome], None, None]:
    """Have one process compile what makes precompiled headers, before there are others."""
    while first:
        source.begin(first.popleft(), IN_PASSING)
        latest_s = time.monotonic() + LONGEST_HEAD_START_S
        while not (has_ended := wait([source.connection], min(0.5, HEAD_START_S))):
            if _cpu_s(source.process.pid) >= HEAD_START_S or time.monotonic() > latest_s:
                break
        if not has_ended:
            break
        job, outcome = source.outcome()
        if outcome.status == "busy":  # another process builds this one: then the next
            waiting.append((job, PATIENTLY))
            alike = (each for each in waiting if each[0].beginning == job.beginning and each[1] is IN_PASSING)
            following = next(alike, None)
            if following is not None:
                waiting.remove(following)
                first.append(following[0])
            continue
        yield job.wanted, outcome
        if outcome.status == "died":
            source.end()
            break
    waiting.extendleft((each, IN_PASSING) for each in first)


def _cpu_s(pid: int) -> float:
    """Give the seconds that a process has had of the cores; proc_pid_stat(5): fields 14 and 15."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return math.inf
