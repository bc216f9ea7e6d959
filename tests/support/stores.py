"""Functions that tests of the store share: entries, forged files, and processes that are killed at a given point."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from xxhash import xxh3_128_digest

from numba_kcache import store as faults
from numba_kcache.model import Emit, Event, EventKind
from numba_kcache.settings import Settings
from numba_kcache.store import PayloadRecord, Payloads, StoredEntry, Tree
from numba_kcache.store.counters import Counters
from numba_kcache.store.disk import DiskStore
from numba_kcache.store.folders import Folder

DIGEST_BYTES = 16
HOUR_S = 3600.0

HEADER: dict[str, Any] = {
    "kind": "cuda", "target": "sm_90", "compile_time_s": 0.0, "attributes": {},
    "entries": [["k", "k", False, [0, 0, 0, 0], []]],
}  # fmt: skip
"""The header of an entry that can be listed."""


class Clock:
    """A clock whose time changes only when a test sets it."""

    def __init__(self, now_s: float = 1_800_000_000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


class Events(list[Event]):
    """An `emit` function that keeps the events."""

    def __call__(self, event: Event) -> None:
        self.append(event)

    def of(self, kind: EventKind) -> list[Event]:
        """List the events of one kind."""
        return [event for event in self if event.kind is kind]


def key_of(number: int) -> str:
    """A key: a digest, like a real one."""
    return hashlib.sha256(b"%d" % number).hexdigest()


def entry_of(number: int, size_bytes: int = 64) -> StoredEntry:
    """An entry whose key and bytes are determined by `number`."""
    pattern = hashlib.sha256(b"payload %d" % number).digest()
    cubin = (pattern * (size_bytes // 32 + 1))[:size_bytes]
    header = {**HEADER, "number": number, "log": "ü\n"}
    return StoredEntry(key_of(number), header, {"cubin": cubin, "ptx": pattern.hex().encode() * 64})


def small_entry(number: int) -> StoredEntry:
    """An entry whose size is the same for every `number` below a million."""
    return StoredEntry(key_of(number), {**HEADER, "number": f"{number:06}"}, {"cubin": b"%06d" % number})


def open_store(
    directory: Path, *, emit: Emit = lambda event: None, clock: Callable[[], float] = time.time, **settings: Any
) -> DiskStore:
    """A store in `directory`, which by default does not wait for the disk."""
    return DiskStore(str(directory), Settings(**settings), emit=emit, clock=clock)


def folder_of(directory: Path, name: str) -> Folder:
    """A folder of the tree below `directory`."""
    return Folder(Tree(str(directory)), name)


def counters_of(directory: Path, **options: Any) -> Counters:
    """The counters in the tree below `directory`."""
    return Counters(Tree(str(directory)), **{"emit": lambda event: None, **options})


def file_of(store: DiskStore, key: str, folder: str = "entries") -> Path:
    """The file in which the store keeps `key`."""
    return Path(store.directory) / "v1" / folder / key[:2] / key[2:]


def payload_records(entry: StoredEntry) -> list[PayloadRecord]:
    """The payload table of a decoded entry."""
    assert isinstance(entry.payloads, Payloads)
    return [record for record, _ in entry.payloads.packed.values()]


def sealed(body: bytes) -> bytes:
    """`body` with a valid digest, as a forger would write it."""
    return body + xxh3_128_digest(body)


def files_below(directory: Path) -> list[Path]:
    """Every file below `directory`."""
    return [path for path in directory.rglob("*") if path.is_file()]


def private_files(directory: Path) -> list[Path]:
    """The files that are written and not renamed yet."""
    return list((directory / "v1").glob("[0-9]*.*"))


def forked(work: Callable[[], object]) -> int:
    """Start `work` in a forked process, which ends with 1 if it fails, and return the process's id."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(status)
    return pid


def in_child(work: Callable[[], object]) -> int:
    """Run `work` in a forked process and return its wait status."""
    return os.waitpid(forked(work), 0)[1]


def killed_at(point: str, work: Callable[[], object], occurrence: int = 1) -> bool:
    """Run `work` in a process that gets SIGKILL at a fault point; return False if it never reached that point."""
    seen = 0

    def hook(name: str) -> None:
        nonlocal seen
        seen += name == point
        if name == point and seen == occurrence:
            os.kill(os.getpid(), signal.SIGKILL)

    def child() -> None:
        faults.hook = hook
        work()

    status = in_child(child)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the child failed by itself"
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


@contextmanager
def children(count: int, work: Callable[[int], object]) -> Iterator[list[int]]:
    """Run `work(0)` to `work(count - 1)`, each in a process; at its end the context checks that none failed."""
    pids = [forked(partial(work, number)) for number in range(count)]
    try:
        yield pids
    finally:
        statuses = [os.waitpid(pid, 0)[1] for pid in pids]
    assert statuses == [0] * count


def use_every_verb(store: DiskStore) -> None:
    """Call every operation once; each result must be right or empty, and an exception fails the test."""
    assert store.get(key_of(1)) in (None, small_entry(1))
    store.put(small_entry(2))
    assert store.get(key_of(2)) in (None, small_entry(2))
    store.add_rows(key_of(1), {"key": "a"})
    assert store.get_manifest(key_of(1)) in ([], [{"key": "a"}])
    store.put_record(key_of(1), {"a": 1})
    assert store.get_record(key_of(1)) in (None, {"a": 1})
    with store.building(key_of(3)) as turn:
        assert turn.found is None
        store.put(small_entry(3))
    assert {info.key for info in store.entries()} <= {key_of(1), key_of(2), key_of(3)}
    store.counters.add({"hits": 1})
    store.counters.read()
    store.size()
    store.verify()
    store.prune(max_size_bytes=100)
    store.remove(key_of(2))
    store.clear()
    store.writer.limits.wait()
