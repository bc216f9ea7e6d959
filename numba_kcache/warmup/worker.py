"""The code of a worker process, which compiles the kernels that a warm-up sends it.

Promise     An error with one kernel is reported; an abort of the compiler ends only the worker. A worker ends when its
            parent does, after the current compile. The parent handles Ctrl-C.
Method      `python -c` with the parent's path, so that the user's `__main__` is not run again. Kernels arrive pickled
            from the parent, over a private socket; nothing read from a store is unpickled. The cache's events during
            the compile are sent back to the parent, which counts them.
Not here    The choice of kernels and of the worker for each (pool, workers).
"""

from __future__ import annotations

import os
import sys
import time
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from ..errors import KCacheError
from ..model import Event, EventKind, NamedTuple, Target


class Task(NamedTuple):
    """One request of a kernel to compile.

    Args:
        kernel: A kernel or a module.
        target: The target to compile for.
        types: Types of a Numba kernel's arguments; None for other kinds.
        key: The key of the request in the parent; "" if that cannot be derived.
    """

    kernel: Any
    target: Target
    types: Any
    key: str = ""

    def compile(self, events: list[Event]) -> None:
        """Compile the request, and store it.

        Args:
            events: The events of its cache meanwhile are added.

        Raises:
            KCacheError: The artifact could not be stored: no space on the disk, or the entry is above the limit.
        """
        kernel = self.kernel
        end = kernel._session().events.subscribe(events.append)
        try:
            kernel.compile(self.target, *self._signature)
        finally:
            end()
        kinds = {each.kind for each in events}
        if EventKind.COMPILE_END in kinds and EventKind.STORED not in kinds and kernel._session().local.directory:
            troubles = [str(each.fields["error"]) for each in events if each.kind == EventKind.TROUBLE]
            why = troubles[-1] if troubles else "its directory cannot be written to at present"
            raise KCacheError(f"cannot store {kernel._label}", why, "`numba-kcache doctor` looks for the cause")

    def key_here(self) -> str:
        """The key of the request in this process."""
        return str(self.kernel.key(self.target, *self._signature))

    @property
    def _signature(self) -> tuple[Any, ...]:
        return () if self.types is None else (self.types,)


class Outcome(NamedTuple):
    """The outcome of a task.

    Args:
        seconds: Time of the task.
        error: The exception of a failed task.
        events: The events of the cache during the task.
    """

    seconds: float
    error: BaseException | None
    events: tuple[Event, ...]


def main(fd: int) -> None:
    """Serve until the parent closes the connection; never returns.

    Args:
        fd: Descriptor of the socket to the parent, which first sends its configured settings.
    """
    import signal
    import warnings

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore")  # the parent warns
    from ..engine import configure_process

    connection = Connection(fd)
    try:
        configure_process(connection.recv())
        while True:
            connection.send_bytes(_packed(_serve(connection.recv_bytes())))
    except (EOFError, OSError):  # the parent has finished or died
        uploads = sys.modules.get("numba_kcache.tiers.upload_queue")
        if uploads is not None:
            uploads.flush_all()  # until the compiled entries are in the tiers, where there are any
        os._exit(0)  # without exit handlers, which would count the events that the parent counts


def pack(task: Task | dict[str, Any]) -> bytes:
    """Pickle a task, or settings, to send.

    Raises:
        Exception: It cannot be pickled; user objects may raise anything.
    """
    return bytes(ForkingPickler.dumps(task))


def _packed(outcome: Outcome | None) -> bytes:
    try:
        data = bytes(ForkingPickler.dumps(outcome))
        ForkingPickler.loads(data)  # an exception may pickle and not unpickle
        return data
    except Exception:  # a user's exception that cannot be pickled: send its text
        assert outcome is not None
        error = outcome.error
        as_text = KCacheError(f"{type(error).__name__}: {error}") if error is not None else None
        return bytes(ForkingPickler.dumps(outcome._replace(error=as_text, events=())))


def _serve(data: bytes) -> Outcome | None:
    """Do a task; None if the kernel has another key here than in the parent, or cannot be imported."""
    start, events, raised = time.perf_counter(), list[Event](), None
    try:
        task: Task = ForkingPickler.loads(data)
        if task.key_here() != task.key:
            return None
    except Exception:  # a module that cannot be imported here, or a function that differs
        return None
    try:
        task.compile(events)
    except Exception as problem:  # reported by the parent, with the errors of all other kernels
        raised = problem
    return Outcome(time.perf_counter() - start, raised, tuple(events))
