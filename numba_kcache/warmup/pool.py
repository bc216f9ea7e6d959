"""`warm_up`: compile many kernels for many targets ahead, in parallel.

Promise     Each request is compiled once, however often it is listed. Failures are raised at the end, after all other
            requests are done. Ctrl-C, or any other early end, leaves no worker and no incomplete entry.
Method      This process keys each request and looks it up; misses go to workers. NVRTC's front end is serialised
            within a process, and delays Ctrl-C until it is done: so workers are processes, each with one kernel at a
            time. A kernel that cannot be pickled, or differs after unpickling, is compiled here. Of the processes of
            a node that warm up one directory, one has workers at a time; the others then find its entries.
Not here    The code of a worker (worker), the processes (workers), finding kernels (discovery).
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

from ..engine import Session
from ..engine.built import watched
from ..errors import CompileError, OptionError, SettingsError, UncacheableError, plain
from ..frontends import named_targets, require_directory
from ..model import NO_TARGET, NamedTuple, Target, tell_wait
from ..observe.text import aligned, counted, preformatted, seconds_text, shows_text
from ..store.locks import KeyLocks
from .discovery import Cached, warmable
from .worker import Task, pack
from .workers import Job, in_workers

LOCK = f"{0:064x}"
"""Name of the lock of a warm-up; never an entry's key, which is a digest."""

_AT_ONCE_S = 0.02

_ERASE_LINE = "\r\x1b[K"

QUOTA = "/sys/fs/cgroup/cpu.max"
"""Quota and period in microseconds, "max" for no quota (cgroups(7)); a container sees its own cgroup as the root."""


class Warmed(NamedTuple):
    """One request of a warm-up.

    Args:
        kernel: Label of the kernel.
        target: Target of the request, `"sm_90"`; `"any"` for an object of another library.
        signature: Argument types of a Numba kernel; "" for others.
        status: `"built"`, `"hit"` or `"failed"`.
        seconds: Time of the look-up or compile.
        error: The error of a failed request; "" for others.
    """

    kernel: str
    target: str
    signature: str
    status: str
    seconds: float
    error: str = ""

    def __str__(self) -> str:
        signature = f" ({self.signature})" if self.signature else ""
        return f"{self.kernel}{signature} for {self.target}"


@shows_text
class WarmUpReport(NamedTuple):
    """Outcome of a warm-up.

    Args:
        results: Each request, in the order in which it was done.
        seconds: Time of the whole warm-up.
        workers: Number of worker processes.
    """

    results: tuple[Warmed, ...]
    seconds: float
    workers: int

    @property
    def built(self) -> tuple[Warmed, ...]:
        """Requests that were compiled."""
        return tuple(each for each in self.results if each.status == "built")

    @property
    def hit(self) -> tuple[Warmed, ...]:
        """Requests that were in the cache."""
        return tuple(each for each in self.results if each.status == "hit")

    @property
    def failed(self) -> tuple[Warmed, ...]:
        """Requests that could not be compiled."""
        return tuple(each for each in self.results if each.status == "failed")

    def table(self) -> tuple[Sequence[str], list[tuple[str, ...]], Sequence[int]]:
        """Names of columns, a row for each request, and the columns that are aligned at their right edge."""
        rows: list[tuple[str, ...]] = [
            (each.kernel, each.signature, each.target, each.status, seconds_text(each.seconds)) for each in self.results
        ]
        columns: tuple[str, ...] = ("kernel", "signature", "target", "state", "took")
        if not any(each.signature for each in self.results):
            rows, columns = [(row[0], *row[2:]) for row in rows], (columns[0], *columns[2:])
        return columns, rows, (len(columns) - 1,)

    def __str__(self) -> str:
        counts = f"{len(self.built)} built, {len(self.hit)} hit, {len(self.failed)} failed"
        return f"{counts} in {seconds_text(self.seconds)}"

    def _repr_html_(self) -> str:
        columns, rows, right = self.table()
        return preformatted("\n".join([*aligned([columns, *rows], right), str(self)]))


class _Run:
    """The results of one warm-up so far, each of which is shown: in one live line on a terminal, in lines elsewhere.

    Attributes:
        total: Number of results at the end; 0 while it is not known, and nothing is shown.
    """

    def __init__(self, is_shown: bool) -> None:
        self.results: list[Warmed] = []
        self.errors: list[BaseException] = []
        self.total = self._shown = 0
        self._stream = sys.stderr if is_shown else None
        self._is_live = self._stream is not None and self._stream.isatty()

    def add(self, result: Warmed, error: BaseException | None = None) -> None:
        """Add a result that is not of a task."""
        self.results.append(result._replace(error=str(error) if error else ""))
        if error is not None:
            self.errors.append(error)

    def done(self, task: Task, status: str, seconds: float, error: BaseException | None = None) -> None:
        """Add the result of a task, and show it."""
        signature = "" if task.types is None else ", ".join(map(str, task.types))
        self.add(Warmed(task.kernel._label, task.target.name, signature, status, seconds), error)
        self.show()

    def show(self) -> None:
        """Show the results that were not shown yet."""
        for each in self.results[self._shown :] if self._stream is not None else ():
            self._shown += 1
            took = f" in {seconds_text(each.seconds)}" if each.status != "hit" else ""
            text = plain(f"numba_kcache: {self._shown} of {self.total}: {each}: {each.status}{took}")
            live = _ERASE_LINE + text[: shutil.get_terminal_size().columns - 1]
            print(live if self._is_live else text, end="" if self._is_live else "\n", file=self._stream, flush=True)

    def end(self) -> None:
        """Clear the live line."""
        if self._shown and self._is_live:
            print(end=_ERASE_LINE, file=self._stream, flush=True)


def warm_up(kernels: Any, arch: Any = None, *, workers: int | None = None, progress: bool = True) -> WarmUpReport:
    """Implement `KernelCache.warm_up`, which documents it."""
    start = time.perf_counter()
    if workers is not None and (type(workers) is not int or workers < 1):
        raise SettingsError(
            f"cannot use workers={workers!r}",
            "it must be a whole number of at least 1",
            "leave it out: one for each core",
        )
    targets, run = named_targets(arch), _Run(progress)
    remaining = _build_ahead(run, kernels, targets)
    tasks = list(_tasks(run, remaining, targets))
    run.total = len(run.results) + len(tasks)
    run.show()  # what other libraries built, or was refused for the want of a signature
    jobs: list[Job] = []
    for task in tasks:
        begin, session = time.perf_counter(), task.kernel._session()
        try:
            is_stored = task.kernel._count_if_stored(task.target, task.types)
            require_directory(session, f"store {task.kernel._label}", is_found=is_stored)
            data = None if is_stored else _packed(task)
        except Exception as error:  # of this kernel: raised by its source function, by Numba or by this package
            run.done(task, "failed", time.perf_counter() - begin, error)
            continue
        if is_stored:
            run.done(task, "hit", time.perf_counter() - begin)
        elif data is None:
            _build_here(run, task)
        else:
            jobs.append((task, data))
    with ExitStack() as stack:
        if workers is None and jobs:
            waited_s = stack.enter_context(_only_warm_up(jobs[0][0].kernel._session()))
            jobs = [each for each in jobs if not (waited_s > _AT_ONCE_S and _is_hit(run, each[0]))]
        count = min(len(jobs), workers or cores())
        for task, outcome in stack.enter_context(closing(in_workers(jobs, count))):
            if outcome is None:  # the worker derived another key from the unpickled kernel
                _build_here(run, task)
                continue
            for event in outcome.events:
                task.kernel._session().events.emit(event)
            run.done(task, "failed" if outcome.error else "built", outcome.seconds, outcome.error)
    _record_facts([task.kernel for task in tasks if task.types is not None])
    run.end()
    report = WarmUpReport(tuple(run.results), time.perf_counter() - start, count)
    if run.errors:
        raise _failure(report, run.errors)
    return report


def _build_ahead(run: _Run, kernels: Any, targets: Sequence[Target] | None) -> list[Cached]:
    """Build other libraries' objects in this process, and return the kernels that remain to be compiled.

    Results that modules build during their import are included.
    """
    names = [each.name for each in targets] if targets else None
    with watched() as reported:
        things = warmable(kernels, reported)
        for each in things:
            if isinstance(each, Cached):
                continue
            begin = time.perf_counter()
            try:
                each.__warm_up__(names)
            except Exception as error:  # raised by the other library
                run.add(Warmed(repr(each), NO_TARGET.name, "", "failed", time.perf_counter() - begin), error)
        for first in {each.key: each for each in reported[::-1]}.values():  # the first result of each key
            status, seconds = ("built", first.seconds) if first.source == "compiled" else ("hit", 0.0)
            run.add(Warmed(first.label, NO_TARGET.name, "", status, seconds))
    return [each for each in things if isinstance(each, Cached)]


def _tasks(run: _Run, kernels: Sequence[Cached], targets: Sequence[Target] | None) -> Iterator[Task]:
    """Yield each request once. Of several kernels, those without a signature are results."""
    seen: set[tuple[int, str]] = set()
    for kernel in kernels:
        cache = kernel._session()
        if not cache.stores:
            why = f"its cache stores nothing: mode={cache.settings.mode!r}"
            raise SettingsError(f"cannot warm up {kernel._label}", why, "set mode='readwrite'")
        try:
            requests = kernel._requests(list(targets) if targets else None)
        except OptionError as error:  # a Numba kernel without a signature
            if len(kernels) == 1:
                raise
            run.add(Warmed(kernel._label, ", ".join(each.name for each in targets or ()), "", "failed", 0.0), error)
            continue
        for target, types in requests:
            task, identity = Task(kernel, target, types), (id(kernel), f"{target} {types}")
            with suppress(Exception):  # raised again, and reported, when the request is looked up
                task = task._replace(key=task.key_here())
                identity = id(cache), task.key
            if identity not in seen:
                seen.add(identity)
                yield task


def _packed(task: Task) -> bytes | None:
    """Pack a task for a worker; None if it has to be compiled here."""
    if not task.kernel._session().local.directory:
        return None  # a cache in memory: it is not shared with workers
    try:
        return pack(task._replace(kernel=task.kernel._to_send()))
    except Exception:  # for a lambda, or an open file among the options; user objects may raise anything
        return None


@contextmanager
def _only_warm_up(session: Session) -> Iterator[float]:
    """Wait for a limited time until no other process of the node warms up this directory; yields the seconds waited."""
    locks = KeyLocks(session.local.locks.folder)  # apart from those of keys: threads exclude each other by the file
    with locks.turn(LOCK, lambda: None, session.settings.build_wait_s, builds=True, has_keys=True) as (_, waited_s, _):
        tell_wait(session.events.emit, "another process that warms up the same directory", waited_s)
        yield waited_s


def cores() -> int:
    """Count the cores of the process's affinity, or of the cgroup's quota if that is less; at least 1."""
    found = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError, ZeroDivisionError), open(QUOTA, encoding="ascii") as file:
        quota, period = map(int, file.read().split())
        found = min(found, -(-quota // period))
    return max(1, found)


def _is_hit(run: _Run, task: Task) -> bool:
    """Check whether another process has stored the entry meanwhile, and count a hit."""
    begin, is_stored = time.perf_counter(), False
    with suppress(Exception):  # raised again, and reported, when it is compiled
        is_stored = task.kernel._count_if_stored(task.target, task.types)
    if is_stored:
        run.done(task, "hit", time.perf_counter() - begin)
    return is_stored


def _build_here(run: _Run, task: Task) -> None:
    begin = time.perf_counter()
    try:
        task.compile([])
        run.done(task, "built", time.perf_counter() - begin)
    except Exception as error:  # user code may raise anything, as in a worker
        run.done(task, "failed", time.perf_counter() - begin, error)


def _record_facts(kernels: Sequence[Any]) -> None:
    """Store what processes without Numba have to know of it, for the stores of these kernels."""
    sessions = {id(session := each._session()): (session, each._definition.kind) for each in kernels}
    for session, kind in sessions.values():
        from ..frontends.numba.learning import record

        record(session, (kind,))


def _failure(report: WarmUpReport, errors: list[BaseException]) -> Any:
    failed = list(zip(report.failed, errors, strict=True))
    log = "\n\n".join(f"{each}\n{getattr(error, 'log', '') or error}" for each, error in failed)
    stored = len(report.built) + len(report.hit)
    why = "none is stored" if not stored else "the other one is stored" if stored == 1 else "the others are stored"
    lines = [
        f"  {each}: {(getattr(error, 'why', '') or str(error) or repr(error)).splitlines()[0]}"
        for each, error in failed[:10]
    ]
    if len(failed) > 10:
        lines.append(f"  and {len(failed) - 10} more")
    what = f"cannot compile {len(failed)} of {counted(len(report.results), 'kernel')}"
    kind = UncacheableError if all(isinstance(each, UncacheableError) for each in errors) else CompileError
    raised: Any = kind(what, "\n".join([why, *lines]), ".log has all that the compilers said")
    raised.log, raised.report = log, report
    return raised
