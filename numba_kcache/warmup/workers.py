"""Start, feed and end the worker processes of a warm-up.

Promise     No process is left when the warm-up ends, however it ends. A worker that dies loses only its current kernel,
            and is replaced.
Not here    The code of a worker (worker), and the list of kernels (pool).
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait

from ..engine import configured
from ..errors import KCacheError
from ..settings import import_path, worker_environment
from .worker import Outcome, Task, pack

_MAX_EXIT_S = 10.0
"""Longest time that an idle worker may take to exit, in seconds: longer than an upload may wait for a server."""


Job = tuple[Task, bytes]
"""A task, and how it is sent to a worker."""


class Worker:
    """One process, in its own process group, and its current job."""

    def __init__(self) -> None:
        self.job: Job | None = None
        ours, theirs = socket.socketpair()
        start = f"from numba_kcache.warmup.worker import main; main({theirs.fileno()})"
        with ours, theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", f"import sys; sys.path[:] = {import_path()!r}; {start}"],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=worker_environment(),
                start_new_session=True,  # Ctrl-C goes only to this process, which then ends its workers
            )
            self.connection = Connection(ours.detach())
        self.send(pack(configured()))

    def send(self, data: bytes) -> None:
        """Send data. If the process has died, that shows at the next read."""
        with suppress(OSError):
            self.connection.send_bytes(data)

    def begin(self, job: Job) -> None:
        """Send a job."""
        self.job = job
        self.send(job[1])

    def outcome(self) -> tuple[Task, Outcome | None]:
        """Wait for the outcome of the worker's job."""
        assert self.job is not None
        (task, _data), self.job = self.job, None
        try:
            return task, self.connection.recv()
        except (EOFError, OSError):
            code = self.process.wait()
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            why, hint = f"the compiler ended its process by {how}", "what it said last is on standard error"
            return task, Outcome(0.0, KCacheError(f"cannot compile {task.kernel._label}", why, hint), ())

    def kill(self) -> None:
        """Kill the worker: a compiler does not react to gentler signals."""
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Let the worker exit by itself if it is idle, kill it otherwise."""
        self.connection.close()
        try:
            if self.job is None:
                self.process.wait(_MAX_EXIT_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self.kill()
            self.process.wait()


def in_workers(jobs: Sequence[Job], count: int) -> Generator[tuple[Task, Outcome | None], None, None]:
    """Do all jobs in `count` processes, and yield each outcome as it comes; no process is left at the end."""
    waiting = deque(jobs)
    workers: list[Worker] = []
    try:
        while waiting or any(each.job for each in workers):
            idle = [each for each in workers if each.job is None]
            while waiting and (idle or len(workers) < count):
                if not idle:
                    idle.append(Worker())
                    workers.append(idle[-1])
                idle.pop().begin(waiting.popleft())
            busy = {each.connection: each for each in workers if each.job is not None}
            for ready in wait(list(busy)):
                worker = busy[ready]  # type: ignore[index]
                task, outcome = worker.outcome()
                if worker.process.returncode is not None:  # it died
                    workers.remove(worker)
                    worker.end()
                yield task, outcome
    finally:
        for each in workers:
            if each.job is not None:
                each.kill()  # all of them, before the first is waited for
        for each in workers:
            each.connection.close()
        for each in workers:
            each.end()
