"""Every system call may fail with any error: the store reports it once and continues."""

from __future__ import annotations

import errno
import gc
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from numba_kcache.model import EventKind
from numba_kcache.store import eviction, folders, writing
from tests.support.programs import program
from tests.support.stores import (
    Clock,
    Events,
    entry_of,
    in_child,
    key_of,
    open_store,
    private_files,
    small_entry,
    use_every_verb,
)

pytestmark = pytest.mark.usefixtures("alone")

CALLS = (
    "open",
    "read",
    "write",
    "fdatasync",
    "rename",
    "unlink",
    "lstat",
    "stat",
    "fstat",
    "mkdir",
    "utime",
    "scandir",
)
ERRORS = ("EIO", "ENOSPC", "EDQUOT", "EROFS", "EACCES", "ESTALE", "EINTR", "EMFILE", "ENOENT", "ENOLCK")
IS_ROOT = os.geteuid() == 0


@pytest.fixture(autouse=True)
def _private_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "LOCAL_PARENT", str(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("every", [1, 2, 5])
def test_failing_call_never_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, error: str, every: int
) -> None:
    """Each call fails with each error, always or now and then; afterwards the store works again."""
    clock = Clock()
    root = tmp_path / "cache"
    store = open_store(root, durability="data")
    store.put(small_entry(1))
    real, number, count = getattr(os, call), getattr(errno, error), 0

    def failing(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        if count % every == 0:
            raise OSError(number, os.strerror(number))
        return real(*args, **kwargs)

    events = Events()
    victim = open_store(root, durability="data", emit=events, clock=clock)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing)
        use_every_verb(victim)

    clock.now_s += 2 * writing.PAUSE_S
    healed = open_store(root, clock=clock)
    assert healed.put(small_entry(4))
    assert healed.get(key_of(4)) == small_entry(4)
    assert healed.verify() == []


@pytest.mark.slow
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("call", CALLS)
def test_store_recovers_from_a_fault_at_the_first_call_of_each_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, error: str
) -> None:
    """The first call of a kind in the life of a store fails, in a new directory: the same store works afterwards. A
    read-only filesystem alone is final, for writes."""
    clock, left = Clock(), [1]
    store = open_store(tmp_path / "cache", durability="data", clock=clock)
    real, number = getattr(os, call), getattr(errno, error)

    def failing(*args: Any, **kwargs: Any) -> Any:
        if left:
            left.clear()
            raise OSError(number, os.strerror(number))
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing)
        use_every_verb(store)
    assert not left, f"no operation calls {call}"

    clock.now_s += 2 * writing.PAUSE_S
    assert store.is_written() or error == "EROFS"
    if store.is_written():
        assert store.put(small_entry(4))
        assert store.get(key_of(4)) == small_entry(4)
        assert store.put_record(key_of(4), {"a": 1})
        with store.building(key_of(5)) as turn:
            assert turn.has_turn
    assert store.verify() == []


@pytest.mark.parametrize("call", ["write", "fdatasync", "rename"])
def test_failed_put_is_one_event_and_no_leftover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """It returns False and emits TROUBLE with the system's error, and the private file is removed."""
    events = Events()
    store = open_store(tmp_path / "cache", durability="data", emit=events)
    store.put(small_entry(1))
    events.clear()

    def failing(*args: Any, **kwargs: Any) -> Any:
        raise OSError(errno.EIO, "input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing)
        assert not store.put(small_entry(2))

    assert [event.kind for event in events] == [EventKind.TROUBLE]
    assert "input/output error" in events[0].fields["error"]
    assert private_files(tmp_path / "cache") == []


def test_short_write_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may write a part of the bytes without an error; the published file has all of them."""
    store = open_store(tmp_path / "cache")
    store.put(small_entry(1))
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: write(fd, data[:7]) if len(data) > 24 else write(fd, data))
        assert store.put(small_entry(2))

    assert store.get(key_of(2)) == small_entry(2)


def test_without_locks_everyone_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ENOLCK processes build the same key several times; everything else works."""
    import fcntl

    def no_locks(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    store = open_store(tmp_path / "cache")
    with store.building(key_of(1)) as turn:
        assert turn.found is None
        assert not turn.has_turn
        assert store.put(small_entry(1))
    assert store.add_rows(key_of(1), {"key": "a"})
    assert store.prune() == (0, 0)


def test_full_disk_stops_writing_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one event, not one for each kernel; a minute later the store tries again."""
    clock, events = Clock(), Events()
    store = open_store(tmp_path / "cache", emit=events, clock=clock)
    store.put(small_entry(1))
    events.clear()
    real = writing.write

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(writing, "write", full)
    for number in range(5):
        assert not store.put(small_entry(number + 2))
    store.writer.limits.wait()
    assert [event.kind for event in events] == [EventKind.TROUBLE]

    monkeypatch.setattr(writing, "write", real)
    assert not store.put(small_entry(2))
    clock.now_s += writing.PAUSE_S
    assert store.put(small_entry(2))


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mount something below the test's directory; unmounted afterwards."""
    if not IS_ROOT:
        pytest.skip("only root can mount")
    points: list[Path] = []

    def mount(*arguments: str, at: str = "mnt") -> Path:
        point = tmp_path / at
        point.mkdir(exist_ok=True)
        done = subprocess.run([program("mount"), *arguments, str(point)], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"cannot mount here: {done.stderr.strip()}")
        points.append(point)
        return point

    yield mount
    for point in reversed(points):
        subprocess.run([program("umount"), "-l", str(point)], check=True)


@pytest.mark.parametrize("size", ["2m", "40m"])
def test_last_room_of_a_filesystem_is_left_to_others(mounted: Callable[..., Path], size: str) -> None:
    """A twentieth of a small one stays free; hits work, and a minute after there is more room, puts do."""
    point = mounted("-t", "tmpfs", "-o", f"size={size}", "none")
    clock, events = Clock(), Events()
    store = open_store(point / "cache", emit=events, clock=clock)
    assert store.put(small_entry(1))
    total = shutil.disk_usage(point).total
    other = point / "other"
    other.write_bytes(bytes(shutil.disk_usage(point).free - total // 20 - 100_000))
    events.clear()
    for number in range(2, 50):
        store.put(entry_of(number, 60_000))
    store.writer.limits.wait()

    assert shutil.disk_usage(point).free >= total // 20
    assert len(events.of(EventKind.STORED)) == 1
    (trouble,) = events.of(EventKind.TROUBLE)
    assert f"of which {total // 20} are left to others" in trouble.fields["error"]
    assert store.get(key_of(1)) == small_entry(1)
    assert store.get(key_of(2)) == entry_of(2, 60_000)
    other.unlink()
    assert not store.put(small_entry(60))
    clock.now_s += writing.PAUSE_S
    assert store.put(small_entry(60))


def test_half_a_gibibyte_of_a_large_filesystem_stays_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds for manifests too; on a file system that does not report its size, entries are stored."""
    events, free = Events(), (512 << 20) + 2000
    store = open_store(tmp_path / "cache", emit=events, clock=Clock())
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=free, f_frsize=1, f_blocks=1 << 40))

    assert store.put(small_entry(1))
    assert store.add_rows(key_of(1), {"key": "a"})
    assert not store.put(entry_of(2, 2000))
    assert not store.add_rows(key_of(2), {"key": "a"})
    assert len(events.of(EventKind.TROUBLE)) == 1

    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=0, f_frsize=4096, f_blocks=0))
    assert open_store(tmp_path / "cache").put(small_entry(3))


def test_full_filesystem_keeps_what_is_whole(mounted: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """On two megabytes of tmpfs some entries are stored, others are not, and none is torn."""
    monkeypatch.setattr(eviction, "LEFT_FREE_BYTES", -(1 << 40))
    point = mounted("-t", "tmpfs", "-o", "size=2m", "none")
    clock, events = Clock(), Events()
    store = open_store(point / "cache", emit=events, clock=clock)
    stored = set()
    for number in range(60):
        clock.now_s += 2 * writing.PAUSE_S
        if store.put(entry_of(number, 60_000)):
            stored.add(number)
    store.writer.limits.wait()

    assert 10 < len(stored) < 60
    assert events.of(EventKind.TROUBLE)
    assert store.verify() == []
    for number in range(60):
        assert store.get(key_of(number)) in (None, entry_of(number, 60_000))
    assert private_files(point / "cache") == []


def test_mounted_volume_itself_is_the_directory(mounted: Callable[..., Path]) -> None:
    """A container volume was made by others, belongs to the user, has other files, and is a file system of its own: no
    file is moved out of it."""
    point = mounted("-t", "tmpfs", "-o", "size=40m,mode=0700", "none")
    (point / "lost+found").mkdir()
    events = Events()
    store = open_store(point, emit=events, durability="full")
    use_every_verb(store)
    assert store.put(small_entry(1))

    assert open_store(point).get(key_of(1)) == small_entry(1)
    assert (point / "lost+found").exists()
    assert events.of(EventKind.TROUBLE) == []


def test_filesystem_without_room_for_a_directory(mounted: Callable[..., Path]) -> None:
    """The tree cannot be made: nothing is stored, with one kind of event."""
    point = mounted("-t", "tmpfs", "-o", "size=4k,nr_inodes=2", "none")
    (point / "file").write_bytes(b"")
    events = Events()
    store = open_store(point / "cache", emit=events)

    use_every_verb(store)
    assert not store.put(small_entry(9))
    assert {event.fields.get("errno") for event in events} == {errno.ENOSPC}


def test_readonly_mount_is_read_and_not_written_to(mounted: Callable[..., Path], tmp_path: Path) -> None:
    """An image layer: hits come from it, new entries are not stored, with one event for the life of the process."""
    open_store(tmp_path / "real").put(small_entry(1))
    point = mounted("--bind", str(tmp_path / "real"))
    subprocess.run([program("mount"), "-o", "remount,bind,ro", str(point)], check=True)
    events = Events()
    store = open_store(point, emit=events)

    assert store.get(key_of(1)) == small_entry(1)
    assert events == []
    assert not store.put(small_entry(2))
    assert not store.put(small_entry(3))
    use_every_verb(store)
    assert [event.fields["errno"] for event in events.of(EventKind.TROUBLE)] == [errno.EROFS]


def test_remount_readonly_in_the_middle(mounted: Callable[..., Path], tmp_path: Path) -> None:
    """A file system becomes read-only after an error: stored entries are still served."""
    (tmp_path / "real").mkdir(0o700)
    point = mounted("--bind", str(tmp_path / "real"))
    store = open_store(point)
    assert store.put(small_entry(1))
    store.writer.limits.wait()
    subprocess.run([program("mount"), "-o", "remount,bind,ro", str(point)], check=True)

    assert store.get(key_of(1)) == small_entry(1)
    assert not store.put(small_entry(2))
    use_every_verb(store)


def test_directory_removed_while_in_use(tmp_path: Path) -> None:
    """`rm -rf` of the cache under a running program: misses, then a new tree."""
    root = tmp_path / "cache"
    store = open_store(root)
    store.put(small_entry(1))
    store.add_rows(key_of(1), {"key": "a"})
    store.writer.limits.wait()
    for number in range(2, 5):
        shutil.rmtree(root)

        assert store.get(key_of(1)) is None
        assert store.get_manifest(key_of(1)) == []
        with store.building(key_of(number)) as turn:
            assert turn.has_turn
            assert store.put(small_entry(number))
        assert store.get(key_of(number)) == small_entry(number)
        assert store.counters.add({"hits": 1})
        store.writer.limits.wait()


def test_file_size_limit_is_a_put_that_fails(tmp_path: Path) -> None:
    """RLIMIT_FSIZE, as some batch systems set it."""

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
        events = Events()
        store = open_store(tmp_path / "cache", emit=events)
        assert store.put(small_entry(1))
        assert not store.put(entry_of(2, 50_000))
        assert len(events.of(EventKind.TROUBLE)) == 1
        assert store.get(key_of(1)) == small_entry(1)
        assert private_files(tmp_path / "cache") == []

    assert in_child(work) == 0


def test_no_file_descriptor_left_is_a_miss(tmp_path: Path) -> None:
    """If the program is at its limit (EMFILE), the launch must not fail."""
    open_store(tmp_path / "cache").put(small_entry(1))

    def work() -> None:
        events = Events()
        store = open_store(tmp_path / "cache", emit=events)
        assert store.get(key_of(1)) == small_entry(1)
        soft = max(int(name) for name in os.listdir("/proc/self/fd")) + 1
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, soft))
        gc.collect()
        gc.disable()  # a collection could close a file, and so free a descriptor
        held = []
        try:
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
        assert store.get(key_of(1)) is None
        assert not store.put(small_entry(2))
        assert store.get_manifest(key_of(1)) == []
        with store.building(key_of(3)) as turn:
            assert turn.found is None
        for fd in held:
            os.close(fd)
        assert store.get(key_of(1)) == small_entry(1)
        assert events.of(EventKind.TROUBLE)

    assert in_child(work) == 0
