"""Events reach every listener; a failing listener, or warnings turned into errors, never reach the user's launch."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import pytest

import numba_kcache
from numba_kcache import KernelCache, cached_kernel
from numba_kcache.engine import Events, Statistics
from numba_kcache.errors import KCacheWarning
from numba_kcache.model import IN_USER_CODE, Counts, Event, EventKind, trouble
from tests.support.compiling import EMPTY, ROOT

pytestmark = pytest.mark.usefixtures("compiled_once")


def test_listener_gets_every_event_until_it_ends() -> None:
    """Events arrive in order until the listener unsubscribes; other listeners stay subscribed."""
    events, first, second = Events(), list[Event](), list[Event]()
    end = events.subscribe(first.append)
    events.subscribe(second.append)
    for kind in (EventKind.HIT, EventKind.STORED):
        events.emit(Event(kind))
    end()
    end()
    events.emit(Event(EventKind.MISS))

    assert [each.kind for each in first] == [EventKind.HIT, EventKind.STORED]
    assert [each.kind for each in second] == [EventKind.HIT, EventKind.STORED, EventKind.MISS]


def test_failing_listener_is_logged_and_the_others_hear(caplog: pytest.LogCaptureFixture) -> None:
    """The exception is logged with its traceback and not raised."""
    events, heard = Events(), list[Event]()

    def fails(event: Event) -> None:
        raise RuntimeError("listener broke")

    events.subscribe(fails)
    events.subscribe(heard.append)
    with caplog.at_level(logging.ERROR, "numba_kcache"):
        events.emit(Event(EventKind.HIT))

    assert len(heard) == 1
    assert "listener broke" in caplog.text


def test_thread_is_in_user_code_while_a_listener_runs_and_no_longer() -> None:
    """Other threads wait a quarter of a second for a thread in user code, and for a compiling thread until it is
    done."""
    events, is_out = Events(), list[bool]()

    def listen(event: Event) -> None:
        is_out.append(threading.get_ident() in IN_USER_CODE)
        if event.kind is EventKind.HIT:
            events.emit(Event(EventKind.MISS))
            is_out.append(threading.get_ident() in IN_USER_CODE)

    events.subscribe(listen)
    events.emit(Event(EventKind.HIT))

    assert is_out == [True, True, True]
    assert threading.get_ident() not in IN_USER_CODE


def test_listener_may_end_itself_and_others_while_it_is_told() -> None:
    """An event goes to the listeners that were subscribed when it was emitted."""
    events, heard = Events(), list[str]()
    ends = []

    def once(event: Event) -> None:
        heard.append("once")
        ends[0]()

    ends.append(events.subscribe(once))
    events.subscribe(lambda event: heard.append("always"))
    events.emit(Event(EventKind.HIT))
    events.emit(Event(EventKind.HIT))

    assert heard == ["once", "always", "always"]


def test_trouble_warns_once_for_each_kind_of_trouble() -> None:
    """A full disk on each of a thousand puts is one line."""
    events = Events()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(5):
            events.emit(trouble("put", "disk full"))
            events.emit(trouble("get", "no access"))

    assert [str(each.message) for each in caught] == [
        "the kernel cache continues after a failure: disk full",
        "the kernel cache continues after a failure: no access",
    ]
    assert {each.category for each in caught} == {KCacheWarning}
    assert {each.filename for each in caught} == {__file__}, "it points at the user's line"


def test_one_cause_of_many_troubles_warns_once() -> None:
    """The cause is the system's error: a full disk makes reads, writes and counters fail alike."""
    events = Events()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for where in ("put", "get", "counters"):
            events.emit(trouble(where, OSError(28, "no space left on device", f"/path/of/{where}")))
        events.emit(trouble("get", OSError(5, "input/output error")))

    assert [str(each.message) for each in caught] == [
        "the kernel cache continues after a failure: [Errno 28] no space left on device: '/path/of/put'",
        "the kernel cache continues after a failure: [Errno 5] input/output error",
    ]


def test_uncacheable_warns_once_for_each_kernel() -> None:
    """The warning has the kernel's name and the reason."""
    events = Events()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for kernel in ("a", "b", "a"):
            events.emit(Event(EventKind.UNCACHEABLE, {"kernel": kernel, "reason": "it includes files"}))

    assert [str(each.message) for each in caught] == [
        "a is not cached: it includes files",
        "b is not cached: it includes files",
    ]


def test_warnings_as_errors_never_reach_the_caller(caplog: pytest.LogCaptureFixture) -> None:
    """Under `-W error` the warning is logged; a launch must not fail by it."""
    events = Events()
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING, "numba_kcache"):
        warnings.simplefilter("error")
        events.emit(trouble("put", "disk full"))
        events.emit(Event(EventKind.DAMAGED, {"key": "00", "reason": "digest"}))

    assert "continues after a failure: disk full" in caplog.text
    assert "damaged cache entry was moved to quarantine" in caplog.text


def test_broken_showwarning_never_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Emitting raises nothing where a program replaced `warnings.showwarning` by a function that fails."""

    def fails(*args: object, **options: object) -> None:
        raise RuntimeError("showwarning broke")

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", fails)
        Events().emit(trouble("put", "disk full"))


def test_closed_streams_never_reach_the_caller() -> None:
    """A daemon that closed its streams: neither the warning, nor the line of the log that stands for it, raises."""
    script = """
import logging, sys
from numba_kcache.model import Event, EventKind, trouble
from numba_kcache.engine import Events
if sys.argv[1:]:
    logging.basicConfig(level=logging.INFO)
done = sys.stdin.fileno()
sys.stdout.close()
sys.stderr.close()
events = Events()
events.subscribe(lambda event: 1 / 0)
for kind in EventKind:
    events.emit(Event(kind, {"kernel": "k", "target": "sm_90"}))
events.emit(trouble("put", "disk full"))
import os
os.write(done, b"raised nothing")
"""
    for words in ((), ("with a log",)):
        ours, theirs = os.pipe()
        try:
            command = [sys.executable, "-c", script, *words]
            subprocess.run(command, cwd=ROOT, stdin=theirs, stderr=subprocess.DEVNULL, timeout=60, check=False)
            os.set_blocking(ours, False)
            assert os.read(ours, 100) == b"raised nothing"
        finally:
            os.close(ours)
            os.close(theirs)


def test_filter_that_fails_never_reaches_the_caller(caplog: pytest.LogCaptureFixture) -> None:
    """A logging filter of the program runs outside the part of `logging` that catches exceptions."""

    def fails(record: logging.LogRecord) -> bool:
        raise RuntimeError("filter broke")

    log = logging.getLogger("numba_kcache")
    log.addFilter(fails)
    try:
        with caplog.at_level(logging.INFO, "numba_kcache"), warnings.catch_warnings():
            warnings.simplefilter("error")
            Events().emit(trouble("put", "disk full"))
    finally:
        log.removeFilter(fails)


def test_ordinary_work_is_silent(caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder) -> None:
    """Hits, loads and stores print, warn and log nothing."""
    with caplog.at_level(logging.DEBUG, "numba_kcache"):
        for kind in (EventKind.HIT, EventKind.LOAD, EventKind.STORED, EventKind.COMPILE_BEGIN):
            Events().emit(Event(kind, {"kernel": "k"}))

    assert not caplog.records
    assert not recwarn.list


def test_threads_may_subscribe_and_emit_at_once() -> None:
    """A subscribed listener misses no event, and each subject is warned of once."""
    events, heard = Events(), list[Event]()
    events.subscribe(heard.append)
    begin = threading.Barrier(8)

    def work() -> None:
        begin.wait()
        for _ in range(50):
            events.subscribe(lambda event: None)()
            events.emit(trouble("put", "disk full"))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert len(heard) == 400
    assert len(caught) == 1


# -- statistics -----------------------------------------------------------------------------------------------


def counted(*events: tuple[EventKind, dict[str, object]]) -> Counts:
    statistics = Statistics()
    for kind, fields in events:
        statistics.heard.append(Event(kind, fields))
    return statistics.process


def test_hit_from_a_store_saves_its_compile_time_less_its_load_time() -> None:
    """Reading and loading on the device both count as load time; one load, one hit."""
    counts = counted(
        (EventKind.HIT, {"source": "disk", "compile_time_s": 2.0, "load_time_s": 0.5}),
        (EventKind.LOAD, {"stored": True, "load_time_s": 0.25}),
    )

    assert (counts.hits, counts.loads, counts.load_time_s, counts.time_saved_s) == (1, 1, 0.75, 1.25)


def test_hit_in_memory_saves_nothing() -> None:
    """Another kernel object of the same key is a hit in memory, which no store served."""
    counts = counted(
        (EventKind.HIT, {"source": "memory", "compile_time_s": 2.0}),
        (EventKind.LOAD, {"stored": False, "load_time_s": 0.25}),
    )

    assert (counts.hits, counts.loads, counts.load_time_s, counts.time_saved_s) == (1, 0, 0, 0)


def test_waiting_for_another_s_compile_is_a_hit() -> None:
    """It also counts as `waited`."""
    counts = counted((EventKind.HIT, {"source": "waited", "compile_time_s": 2.0, "load_time_s": 0.5}))

    assert (counts.hits, counts.waited, counts.misses) == (1, 1, 0)


def test_misses_compiles_evictions_and_errors_count() -> None:
    """A compile that failed is a miss without a compile."""
    counts = counted(
        (EventKind.MISS, {}),
        (EventKind.COMPILE_END, {"compile_time_s": 1.5}),
        (EventKind.MISS, {}),
        (EventKind.COMPILE_FAILED, {}),
        (EventKind.EVICTED, {"entries": 3}),
        (EventKind.TROUBLE, {}),
        (EventKind.DAMAGED, {}),
    )

    assert (counts.misses, counts.compiles, counts.compile_time_s, counts.evictions, counts.errors) == (2, 1, 1.5, 3, 2)


def test_unsaved_counts_are_taken_once() -> None:
    """Only counts since the last save are written to the counters beside the store."""
    statistics = Statistics(lambda: 0.0)
    statistics.heard.append(Event(EventKind.MISS))

    assert statistics.take_unsaved() == {"misses": 1, "day/1970-01-01/misses": 1}
    assert statistics.take_unsaved() == {}
    assert statistics.process.misses == 1


def test_counts_of_other_versions_are_left_out() -> None:
    """A counter file may hold names that this version does not know, or lack some."""
    read = Counts.of({"hits": 3.0, "teleports": 7.0}).as_dict()
    assert {name: value for name, value in read.items() if value} == {"hits": 3}


# -- the log --------------------------------------------------------------------------------------------------


def logged(caplog: pytest.LogCaptureFixture, *events: tuple[EventKind, dict[str, object]]) -> list[str]:
    emitter = Events()
    with caplog.at_level(logging.INFO, "numba_kcache"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind, fields in events:
            emitter.emit(Event(kind, fields))
    return [each.getMessage() for each in caplog.records]


KERNEL = {"kernel": "app.saxpy", "target": "sm_90", "key": "00"}


def test_compile_is_one_line_with_the_reason_of_the_miss(caplog: pytest.LogCaptureFixture) -> None:
    """The line has the kernel, the target, the time and the reason of the miss."""
    assert logged(
        caplog,
        (EventKind.MISS, {**KERNEL, "reason": "header a.cuh changed"}),
        (EventKind.COMPILE_BEGIN, KERNEL),
        (EventKind.COMPILE_END, {**KERNEL, "compile_time_s": 0.25}),
        (EventKind.STORED, {"key": "00", "size_bytes": 1}),
    ) == ["compiled app.saxpy for sm_90 in 250.0 ms: header a.cuh changed"]


def test_failed_compile_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """The line has the first line of the error; the exception has the rest."""
    assert logged(
        caplog,
        (EventKind.MISS, {**KERNEL, "reason": "not stored"}),
        (EventKind.COMPILE_BEGIN, KERNEL),
        (EventKind.COMPILE_FAILED, {**KERNEL, "error": "cannot compile: k.cu(1): error\n  x\n  ^"}),
    ) == ["could not compile app.saxpy for sm_90 (not stored): cannot compile: k.cu(1): error"]


@pytest.mark.parametrize(
    ("kind", "fields", "line"),
    [
        (
            EventKind.WAITED,
            {**KERNEL, "waited_s": 2.5},
            "waited 2.5 s for another process's compile of app.saxpy for sm_90",
        ),
        (EventKind.EVICTED, {"entries": 3, "size_bytes": 2048}, "removed 3 entries (2.0 KiB) to keep the limits"),
        (EventKind.UNCACHEABLE, {**KERNEL, "reason": "it uses __TIME__"}, "app.saxpy is not cached: it uses __TIME__"),
        (EventKind.TROUBLE, {"where": "put", "error": "full"}, "the kernel cache continues after a failure: full"),
    ],
)  # fmt: skip
def test_what_is_out_of_the_ordinary_is_a_line(
    kind: EventKind, fields: dict[str, object], line: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each such event is one log line."""
    assert logged(caplog, (kind, fields)) == [line]


@pytest.mark.slow
def test_level_that_was_asked_for_is_seen_without_any_setup() -> None:
    """`NUMBA_KCACHE_LOG=info` in a program that does not use logging: each line appears once on standard error."""
    code = """
import sys
from numba_kcache import cached_kernel
cached_kernel('extern "C" __global__ void k() {}', arch="sm_90").compile()
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_KCACHE_LOG": "info"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stderr.count("numba_kcache: compiled ") == 1


def test_listener_of_the_process_survives_configure(tmp_path: Path) -> None:
    """`configure` makes another resolver and keeps the listeners; subscribing alone makes no cache."""
    heard = list[Event]()
    end = numba_kcache.subscribe(heard.append)
    for name in ("a", "b"):
        numba_kcache.configure(directory=tmp_path / name)
        cached_kernel(EMPTY, arch="sm_90").compile()
    end()
    cached_kernel(EMPTY + " ", arch="sm_90").compile()

    assert [each.kind for each in heard].count(EventKind.COMPILE_END) == 2


def test_numba_s_own_error_ends_the_compile(tmp_path: Path) -> None:
    """COMPILE_BEGIN is followed by COMPILE_END or COMPILE_FAILED, whatever is raised."""
    cache, heard = KernelCache(tmp_path, durability="none"), list[Event]()
    cache.subscribe(heard.append)

    def broken(x):  # type: ignore[no-untyped-def]
        x[0] = no_such_name  # type: ignore[name-defined] # noqa: F821

    with pytest.raises(Exception, match="no_such_name"):
        cached_kernel(broken, kind="numba", cache=cache).compile("sm_90", signature="void(float32[:])")

    kinds = [each.kind for each in heard]
    assert kinds.count(EventKind.COMPILE_BEGIN) == kinds.count(EventKind.COMPILE_FAILED) == 1
