"""Start, feed and end the worker processes of a warm-up; some are forked to inherit precompiled headers.

Promise     No process is left when the warm-up ends, however it ends. A worker that dies loses only its current kernel,
            and is replaced.
Method      Where enough kernels begin with the same includes, one process (the source) compiles the first of them, with
            precompiled headers. The workers for the others are forked from the source and inherit the headers; the
            source compiles nothing more, and ends last. If it cannot fork, made no headers, or takes longer than
            `HEAD_START_S`, it is a worker like the others, which are then started as new processes. A kernel whose
            forked worker died is compiled once more in a worker that was started as a new process.
Not here    The code of a worker (worker), and the list of kernels (pool).
Source      NVRTC's precompiled headers contain addresses of the process that made them, which a forked one shares.
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
"""Kernels per worker from which precompiled headers are made: making them takes as long as they save for one kernel."""

HEAD_START_S, LONGEST_HEAD_START_S = 6.0, 60.0
"""Longest wait of the other workers for the source, in seconds: of its CPU time, and of wall time."""

_MAX_EXIT_S = 10.0
"""Longest time that an idle worker may take to exit, in seconds: longer than an upload may wait for a server."""


class Job(NamedTuple):
    """One kernel to compile in a worker.

    Args:
        wanted: The caller's own object, returned with the outcome.
        label: Name of the kernel in messages.
        data: The task, packed for a worker.
        beginning: Equal for kernels that can share precompiled headers; "" for none.
    """

    wanted: Any
    label: str
    data: bytes
    beginning: str


class _Worker:
    """One process, and its current job."""

    def __init__(self, ours: socket.socket) -> None:
        self.connection = Connection(ours.detach())
        self.job: Job | None = None

    def send(self, data: bytes) -> None:
        """Send data. If the process has died, that shows at the next read."""
        with suppress(OSError):
            self.connection.send_bytes(data)

    def begin(self, job: Job, how: bytes) -> None:
        """Send a job; `how` is IN_PASSING or PATIENTLY."""
        self.job = job
        self.send(how + job.data)

    def outcome(self) -> tuple[Job, Outcome]:
        """Wait for the outcome of the worker's job."""
        job, self.job = self.job, None
        assert job is not None
        try:
            return job, self.connection.recv()
        except (EOFError, OSError):
            why, hint = f"the compiler ended its process by {self.fate()}", "what it said last is on standard error"
            return job, Outcome("died", 0.0, KCacheError(f"cannot compile {job.label}", why, hint), ())

    def fate(self) -> str:
        """Wait until the worker has ended; return its exit code or signal in words."""
        raise NotImplementedError

    def kill(self) -> None:
        """Kill the worker and all processes forked from it: a compiler does not react to gentler signals."""
        raise NotImplementedError

    def end(self) -> None:
        """Let the worker exit by itself if it is idle, kill it otherwise."""
        self.connection.close()


class Started(_Worker):
    """A worker started as a new process, in its own process group.

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
                start_new_session=True,  # Ctrl-C goes only to this process, which then ends its workers
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
                self.process.wait(_MAX_EXIT_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self.kill()
            self.process.wait()


class Forked(_Worker):
    """A worker forked from another one.

    Args:
        source: The process to fork, which must be idle.

    Raises:
        OSError, EOFError: The source cannot fork.
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
    """Do all jobs in `count` processes, and yield each outcome as it comes; no process is left at the end."""
    first, waiting = _separated(jobs, count)
    workers: list[_Worker] = []
    source, folder, can_fork = None, "", False
    try:
        if first:
            with suppress(OSError):
                folder = tempfile.mkdtemp(prefix="numba_kcache-warm-")
            source = Started(folder)
            yield from _head_start(source, first, waiting)
            can_fork = source.job is None and not source.connection.closed  # its jobs are done, and it is alive
            workers += [source] if source.job is not None else []
        while waiting or any(each.job for each in workers):
            idle = [each for each in workers if each.job is None]
            while waiting and (idle or len(workers) < count):
                if not idle:
                    idle.append((can_fork and source and _forked(source)) or Started())
                    can_fork = can_fork and isinstance(idle[-1], Forked)
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
                    can_fork = False
                elif outcome.status == "busy":  # another process builds the kernel: wait for that process at the end
                    waiting.append((job, PATIENTLY))
                else:
                    yield job.wanted, outcome
    finally:
        all_workers = [*workers, *([source] if source is not None and source not in workers else [])]
        for each in all_workers:
            if each.job is not None:
                each.kill()  # all of them, before the first is waited for
        for each in all_workers:
            each.connection.close()
        for each in all_workers:
            each.end()
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


def _forked(source: Started) -> Forked | None:
    try:
        return Forked(source)
    except (OSError, EOFError):
        return None


def _separated(jobs: Sequence[Job], count: int) -> tuple[deque[Job], deque[tuple[Job, bytes]]]:
    """Separate the jobs that make precompiled headers from the others."""
    counts = Counter(each.beginning for each in jobs if each.beginning)
    common = {beginning for beginning, number in counts.most_common(MOST) if number >= WORTHWHILE * count}
    first = {each.beginning: each for each in reversed(jobs) if each.beginning in common}
    others = ((each, IN_PASSING) for each in jobs if first.get(each.beginning) is not each)
    return deque(first.values()), deque(others)


def _head_start(
    source: Started, first: deque[Job], waiting: deque[tuple[Job, bytes]]
) -> Generator[tuple[Any, Outcome], None, None]:
    """Compile the jobs that make precompiled headers in the source, before other workers are started."""
    while first:
        source.begin(first.popleft(), IN_PASSING)
        latest_s = time.monotonic() + LONGEST_HEAD_START_S
        while not (has_ended := wait([source.connection], min(0.5, HEAD_START_S))):
            if _cpu_s(source.process.pid) >= HEAD_START_S or time.monotonic() > latest_s:
                break
        if not has_ended:
            break
        job, outcome = source.outcome()
        if outcome.status == "busy":  # another process builds this kernel: take the next one
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
    """CPU time of a process in seconds; proc_pid_stat(5), fields 14 and 15."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return math.inf
