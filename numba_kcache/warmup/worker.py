"""A process that compiles what it is sent, for a warm-up.

Promise     What goes wrong with one kernel, even an abort of the compiler, is told or ends this process alone. It ends
            when its parent does, after the compile that it is at. Ctrl-C is the parent's.
Method      `python -c` with the parent's path, so that the user's `__main__` is not run again. Kernels arrive pickled
            from the parent, over a socket that nobody else has; nothing that was read from a store is. What the cache
            reports while compiling goes back, and counts there.
Not here    What to compile and who gets it (pool).
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler, recv_handle
from typing import Any

from ..engine.turns import BusyError, turns
from ..errors import KCacheError
from ..headers.precompiled import precompiled
from ..model import Event, EventKind, NamedTuple, Target

IN_PASSING, PATIENTLY = b"p", b"w"
"""First byte of a task: if another process builds it already, pass it over, or wait for that process."""

FORK = b"f"
"""Request of the parent to fork another worker, for which it hands over a connection."""


class Task(NamedTuple):
    """One request of a kernel to compile.

    Args:
        kernel: A kernel or a module, as the parent pickled it.
        target: What to compile for.
        types: Types of a Numba kernel's arguments; None for other kinds.
        key: The key of the request in the parent.
    """

    kernel: Any
    target: Target
    types: tuple[Any, ...] | None
    key: str


class Outcome(NamedTuple):
    """The outcome of a task.

    Args:
        status: `"done"`; `"failed"`; `"unlike"`, where the kernel here is not the one in the parent, or cannot be
            imported; `"busy"`, where another process builds it; `"died"`, which the parent writes for a lost worker.
        seconds: Time that it took.
        error: What was raised.
        events: What the cache reported meanwhile.
    """

    status: str
    seconds: float
    error: BaseException | None
    events: tuple[Event, ...]


def main(fd: int, precompiled_in: str = "") -> None:
    """Serve until the parent closes the connection; never returns.

    Args:
        fd: Of the socket to the parent. What comes first are the settings that it has configured.
        precompiled_in: Folder for headers that are precompiled; "" for none.
    """
    import signal
    import warnings

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore")  # what there is to say, the parent says
    from ..engine.session import configure_process

    connection = Connection(fd)
    if precompiled_in:
        precompiled.begin(precompiled_in)
    try:
        configure_process(connection.recv())
        while True:
            data = connection.recv_bytes()
            if data == FORK:
                connection = _forked(connection)
            else:
                connection.send_bytes(_packed(_serve(data)))
    except (EOFError, OSError):  # the parent is done, or gone
        with suppress(OSError):  # until there are no more
            while True:
                os.wait()  # for forked workers, which end as this one does
        precompiled.end()
        _flush()
        os._exit(0)  # counts were sent to the parent: not to be added again


def _forked(connection: Connection) -> Connection:
    """Fork another worker where precompiled headers are worth it. Returns the connection to serve: in the child the new
    one, here the one that was given."""
    fd, pid = recv_handle(connection), 0
    _flush()
    with suppress(OSError):  # no more processes, or no such system: the parent starts workers then
        if precompiled.are_made() and len(os.listdir("/proc/self/task")) == threading.active_count():
            pid = os.fork()
            if not pid:
                connection.close()
                precompiled.most = 0
                return Connection(fd)
    os.close(fd)
    connection.send(pid)
    return connection


def _flush() -> None:
    """Wait until what was compiled is uploaded to the tiers, where there are any."""
    uploads = sys.modules.get("numba_kcache.tiers.upload_queue")
    if uploads is not None:
        uploads.flush_all()


def pack(task: Task | dict[str, Any]) -> bytes:
    """A task, or settings, as they are sent.

    Raises:
        Exception: It cannot be: whatever the user's objects raise.
    """
    return bytes(ForkingPickler.dumps(task))


def _packed(outcome: Outcome) -> bytes:
    try:
        data = bytes(ForkingPickler.dumps(outcome))
        ForkingPickler.loads(data)  # an exception may pickle and not unpickle
        return data
    except Exception:  # the error is of the user's making and cannot travel: its words can
        error = outcome.error
        told = KCacheError(f"{type(error).__name__}: {error}") if error is not None else None
        return bytes(ForkingPickler.dumps(outcome._replace(error=told, events=())))


def _serve(data: bytes) -> Outcome:
    start = time.perf_counter()
    events: list[Event] = []
    try:
        task = ForkingPickler.loads(data[1:])
        if key_of(task.kernel, task.target, task.types) != task.key:
            return Outcome("unlike", time.perf_counter() - start, None, ())
    except Exception as problem:  # a module that is not importable here, a function that is another one
        return Outcome("unlike", time.perf_counter() - start, problem, ())
    session, turns.waits = task.kernel._session(), data[:1] == PATIENTLY
    end = session.events.subscribe(events.append)
    raised: Exception | None = None
    try:
        compile_request(task.kernel, task.target, task.types)
    except BusyError:
        return Outcome("busy", time.perf_counter() - start, None, ())
    except Exception as problem:  # told in the parent, with those of all other kernels
        raised = problem
    finally:
        end()
    return Outcome("failed" if raised else "done", time.perf_counter() - start, raised, tuple(events))


def compile_request(kernel: Any, target: Target, types: tuple[Any, ...] | None) -> None:
    """Compile one request of a kernel or module, and store it.

    Raises:
        KCacheError: What was compiled could not be stored: no room on the disk, or the entry is above the limit.
    """
    events: list[Event] = []
    end = kernel._session().events.subscribe(events.append)
    try:
        if types is None:
            kernel.compile(target)
        else:
            kernel.compile(target, types)
    finally:
        end()
    kinds = {each.kind for each in events}
    if EventKind.COMPILE_END in kinds and EventKind.STORED not in kinds and kernel._session().store.directory:
        troubles = [str(each.fields["error"]) for each in events if each.kind == EventKind.TROUBLE]
        why = troubles[-1] if troubles else "its directory takes nothing at the moment"
        raise KCacheError(f"cannot store {kernel._label}", why, "`numba-kcache doctor` looks for the cause")


def key_of(kernel: Any, target: Target, types: tuple[Any, ...] | None) -> str:
    """The digest of one request of a kernel or module."""
    return str(kernel.key(target) if types is None else kernel.key(target, types))
