"""The operations of the store on disk, one process at a time."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from numba_kcache import store as system
from numba_kcache.model import EventKind
from numba_kcache.store import (
    ENTRY,
    MANIFEST,
    MAX_ROWS,
    StoredEntry,
    Tree,
    decode_entry,
    disk,
    eviction,
    folders,
    writing,
)
from numba_kcache.store.disk import DiskStore
from numba_kcache.store.encoding import encode_entry
from numba_kcache.store.eviction import Limits, begin_pass
from tests.support.compiling import in_python
from tests.support.stores import (
    HOUR_S,
    Clock,
    Events,
    entry_of,
    file_of,
    files_below,
    in_child,
    key_of,
    open_store,
    sealed,
    small_entry,
)

DEAD = f"12345.{'0a' * 8}"
"""The name of a private file, as its writer made it."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The place of a future store; no file is there yet."""
    return tmp_path / "cache"


def test_opening_and_missing_write_nothing(root: Path) -> None:
    """A process that only looks up writes no file."""
    store = open_store(root)

    assert store.get(key_of(1)) is None
    assert store.get_manifest(key_of(1)) == []
    assert list(store.entries()) == [] == store.verify()
    assert store.size()[:2] == (0, 0)
    assert not root.exists()


def test_put_is_found_by_another_store(root: Path) -> None:
    """An entry that one process stores is found by the next, under its key alone."""
    assert open_store(root).put(entry_of(1))

    again = open_store(root)

    assert again.get(key_of(1)) == entry_of(1)
    assert again.get(key_of(2)) is None


def test_put_replaces(root: Path) -> None:
    """The newer entry wins, and is counted once."""
    store = open_store(root)
    store.put(entry_of(1))
    newer = StoredEntry(key_of(1), {"new": True}, {"cubin": b"new"})

    assert store.put(newer)

    assert store.get(key_of(1)) == newer
    assert store.size() == (file_of(store, key_of(1)).stat().st_size, 1)


def test_remove_forgets(root: Path) -> None:
    """Removing an entry returns True once, then False."""
    store = open_store(root)
    store.put(entry_of(1))

    assert store.remove(key_of(1))
    assert not store.remove(key_of(1))
    assert store.get(key_of(1)) is None
    assert store.size()[:2] == (0, 0)


@pytest.mark.parametrize("key", ["../../etc/passwd", "", "AB" * 32])
def test_key_that_is_no_digest_is_an_error(root: Path, key: str) -> None:
    """Such a key is a programming error, and never becomes a path."""
    store = open_store(root)
    for verb in (store.get, store.remove, store.get_manifest, store.building):
        with pytest.raises(ValueError, match="as a key"):
            verb(key)


def test_directories_and_files_are_the_owners_alone(root: Path) -> None:
    """Modes are 0700 and 0600 under any umask."""
    before = os.umask(0)
    try:
        store = open_store(root)
        store.put(entry_of(1))
        store.add_rows(key_of(1), {"key": "a"})
        store.counters.add({"hits": 1})
        modes = {path: path.stat().st_mode & 0o077 for path in (root, root / "v1", root / "v1" / "entries")}
        modes[file_of(store, key_of(1))] = file_of(store, key_of(1)).stat().st_mode & 0o077
    finally:
        os.umask(before)

    assert set(modes.values()) == {0}


def test_directory_is_tagged_as_a_cache(root: Path) -> None:
    """Backups pass over directories with this signature."""
    open_store(root).put(entry_of(1))

    assert (root / "CACHEDIR.TAG").read_bytes().startswith(b"Signature: 8a477f597d28d172789f06886806bc55\n")


def test_directory_with_other_things_in_it_is_not_tagged(root: Path) -> None:
    """Otherwise backups would skip the user's other files."""
    root.mkdir(0o700)
    (root / "thesis.tex").write_text("")

    assert open_store(root).put(entry_of(1))
    assert not (root / "CACHEDIR.TAG").exists()


def test_listing_has_names_size_and_time_of_each_entry(root: Path) -> None:
    """They come from the file and its header."""
    clock = Clock()
    store = open_store(root, clock=clock)
    store.put(entry_of(1, 1000))

    (info,) = store.entries()

    assert info.key == key_of(1)
    assert (info.kernels, info.target, info.compile_time_s) == (("k",), "sm_90", 0.0)
    assert info.size_bytes == file_of(store, key_of(1)).stat().st_size
    assert info.used_s == clock()


# Recency and limits


def test_hit_renews_recency_once_an_hour(root: Path) -> None:
    """A hit within the hour writes nothing, a later one writes the time of the clock."""
    clock = Clock()
    store = open_store(root, clock=clock)
    store.put(small_entry(1))
    stored = clock()

    clock.now_s += HOUR_S - 1
    store.get(key_of(1))
    within = file_of(store, key_of(1)).stat().st_mtime
    clock.now_s += 2
    store.get(key_of(1))

    assert within == stored
    assert file_of(store, key_of(1)).stat().st_mtime == clock()


def test_recency_from_the_future_is_set_back(root: Path) -> None:
    """A clock that was ahead does not keep an entry for ever."""
    clock = Clock()
    store = open_store(root, clock=clock)
    store.put(small_entry(1))
    clock.now_s -= 365 * 24 * HOUR_S

    assert store.get(key_of(1)) == small_entry(1)
    assert file_of(store, key_of(1)).stat().st_mtime == clock()


@pytest.mark.parametrize("years", [-1, 1])
def test_clock_that_jumps_a_year_loses_nothing(root: Path, years: int) -> None:
    """Entries, manifests, locks and counters keep working; what is stored after the jump is found too."""
    clock = Clock()
    store = open_store(root, clock=clock)
    store.put(small_entry(1))
    store.add_rows(key_of(1), {"key": "a"})
    clock.now_s += years * 365 * 24 * HOUR_S
    with store.building(key_of(2)) as turn:
        assert turn.has_turn
        assert store.put(small_entry(2))
    store.writer.limits.wait()

    assert store.get(key_of(1)) == small_entry(1)
    assert store.get_manifest(key_of(1)) == [{"key": "a"}]
    clock.now_s -= years * 365 * 24 * HOUR_S
    assert store.put(small_entry(3))
    store.writer.limits.wait()
    assert {info.key for info in store.entries()} == {key_of(number) for number in (1, 2, 3)}


def test_times_of_a_clock_that_was_ahead_do_not_keep_entries(root: Path) -> None:
    """Entries stored while the clock was 20 years ahead are evicted first; else all that is stored later would be."""
    clock = Clock(Clock().now_s + 20 * 365 * 24 * HOUR_S)
    store = open_store(root, clock=clock, max_entries=20)
    for number in range(20):
        store.put(small_entry(number))
        store.writer.limits.wait()
    clock.now_s = Clock().now_s
    for number in range(100, 140):
        clock.now_s += 2 * HOUR_S
        store.put(small_entry(number))
        store.writer.limits.wait()

    assert all(store.get(key_of(number)) is not None for number in range(125, 140))


def test_clock_set_back_does_not_prolong_the_pause_after_a_full_disk(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a full disk nothing is stored for a while; with the clock set back a year, that pause ends at once."""
    clock = Clock()
    store = open_store(root, clock=clock)
    with monkeypatch.context() as patch:
        patch.setattr(writing, "write", Mock(side_effect=OSError(errno.ENOSPC, "full")))
        assert not store.put(small_entry(1))
    assert not store.put(small_entry(2))
    clock.now_s -= 365 * 24 * HOUR_S

    assert store.put(small_entry(3))


@pytest.mark.parametrize("limit", ["entries", "bytes"])
def test_used_longest_ago_goes_first(root: Path, limit: str) -> None:
    """Above a limit, eviction goes down to 85 % of it, beginning with the entry used longest ago."""
    clock = Clock()
    size = len(encode_entry(small_entry(0)))
    limits = {"max_entries": 20} if limit == "entries" else {"max_size_bytes": 20 * size + size // 2}
    store = open_store(root, clock=clock, **limits)
    for number in range(20):
        store.put(small_entry(number))
        store.writer.limits.wait()
        clock.now_s += 2 * HOUR_S
    store.get(key_of(0))

    store.put(small_entry(20))
    store.writer.limits.wait()

    kept = {number for number in range(21) if store.get(key_of(number)) is not None}
    assert kept == {0, *range(5, 21)}
    assert store.size()[:2] == (17 * size, 17)


def test_eviction_is_reported(root: Path) -> None:
    """The event has the removed entries and bytes."""
    events = Events()
    store = open_store(root, emit=events, max_entries=2)
    for number in range(3):
        store.put(small_entry(number))
        store.writer.limits.wait()

    (event,) = events.of(EventKind.EVICTED)
    assert event.fields["entries"] == 2
    assert event.fields["size_bytes"] > 0


def test_entry_above_the_limit_is_not_stored(root: Path) -> None:
    """Storing it would evict all others, and then itself."""
    events = Events()
    store = open_store(root, emit=events, max_size_bytes=100)

    assert not store.put(entry_of(1, 1000))
    assert [event.kind for event in events] == [EventKind.TROUBLE]
    assert files_below(root) == []


def test_manifests_are_limited_as_entries_are(root: Path) -> None:
    """A store whose requests all differ does not grow without bound by manifests."""
    store = open_store(root, max_entries=10)
    for number in range(30):
        store.add_rows(key_of(number), {"key": "a"})
    store.prune()

    assert len(files_below(root / "v1" / "manifests")) <= 10


def test_prune_by_age(root: Path) -> None:
    """Entries unused for longer than the age are removed; others stay."""
    clock = Clock()
    store = open_store(root, clock=clock)
    store.put(small_entry(1))
    clock.now_s += 10 * HOUR_S
    store.put(small_entry(2))

    removed = store.prune(older_than=5 * HOUR_S)

    assert removed.entries == 1
    assert store.get(key_of(1)) is None
    assert store.get(key_of(2)) == small_entry(2)


def test_prune_by_size(root: Path) -> None:
    """Down to exactly the limit that was requested."""
    clock = Clock()
    store = open_store(root, clock=clock)
    for number in range(10):
        store.put(small_entry(number))
        clock.now_s += 1
    size = len(encode_entry(small_entry(0)))

    assert store.prune(max_size_bytes=4 * size) == (6 * size, 6)
    assert store.size()[:2] == (4 * size, 4)
    assert store.get(key_of(9)) is not None


def test_pass_of_another_process_is_reported_and_replaced_after_a_minute(root: Path) -> None:
    """`prune` says that another process holds the lock; a process that stopped in its pass does not turn limits off."""
    clock, events = Clock(), Events()
    for number in range(4):
        open_store(root, clock=clock).put(small_entry(number))
    other = begin_pass(Tree(str(root)), clock())
    assert other is not None
    store = open_store(root, clock=clock, emit=events)

    assert store.prune(max_size_bytes=0) == (0, 0)
    (event,) = events
    assert "another process holds evict.lock" in event.fields["error"]
    clock.now_s += 61
    assert store.prune(max_size_bytes=0).entries == 4
    other.close()


def test_clear_leaves_statistics(root: Path) -> None:
    """Entries, manifests and damaged files are removed; statistics stay."""
    store = open_store(root)
    store.put(small_entry(1))
    store.add_rows(key_of(1), {"key": "a"})
    store.counters.add({"hits": 3})
    file_of(store, key_of(1)).write_bytes(b"damaged")
    store.get(key_of(1))
    store.put(small_entry(2))

    assert store.clear().entries == 1
    assert store.get(key_of(2)) is None
    assert store.get_manifest(key_of(1)) == []
    assert store.size()[:2] == (0, 0)
    assert list((root / "v1" / "quarantine").iterdir()) == []
    assert open_store(root).counters.read() == {"hits": 3}


def test_size_is_that_of_the_files(root: Path) -> None:
    """Files that others removed do not count; files with other names are no entries."""
    store = open_store(root)
    for number in range(5):
        store.put(small_entry(number))
    store.add_rows(key_of(9), {"key": "a"})
    file_of(store, key_of(0)).unlink()
    (file_of(store, key_of(1)).parent / "README").write_text("hello")

    files = [file_of(store, key_of(number)) for number in range(1, 5)] + [file_of(store, key_of(9), "manifests")]
    assert store.size() == (sum(path.stat().st_size for path in files), 4)


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["entries", "bytes"])
def test_every_process_finds_that_a_limit_is_exceeded(root: Path, limit: str) -> None:
    """Many processes each add one entry without knowing of the others: the sum stays within the limit."""
    size = len(encode_entry(small_entry(0)))
    limits = {"max_entries": 400} if limit == "entries" else {"max_size_bytes": 400 * size}
    earlier = open_store(root)
    for number in range(360):
        earlier.put(small_entry(number))
    for number in range(360, 600):
        store = open_store(root, **limits)
        store.put(small_entry(number))
        store.writer.limits.wait()

    assert 340 <= store.size().entries <= 408


def test_pass_that_cannot_start_is_trouble_and_no_exception(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that cannot start a thread still stores, and one event says that nothing is evicted."""

    def no_thread(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    events = Events()
    store = open_store(root, max_entries=1, emit=events)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        assert store.put(entry_of(1))
        assert store.put(entry_of(2))

    said = {(each.fields["where"], each.fields["error"]) for each in events.of(EventKind.TROUBLE)}
    assert said == {("evict", "can't start new thread")}


def test_a_pass_runs_once_a_day(root: Path) -> None:
    """The first put after a day starts a pass, so leftovers are removed even if no limit is near."""
    clock = Clock(time.time())
    store = open_store(root, clock=clock)
    store.put(small_entry(1))
    store.writer.limits.wait()
    dead = root / "v1" / DEAD
    dead.write_bytes(b"x")
    clock.now_s += 23 * HOUR_S
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(eviction, "STALE_S", -10)
        store.put(small_entry(2))
        store.writer.limits.wait()
        assert dead.exists()
        clock.now_s += 2 * HOUR_S

        store.put(small_entry(3))
        store.writer.limits.wait()

    assert not dead.exists()


ENDS = """
import atexit, sys, threading
from numba_kcache import store
from tests.support.stores import Path, open_store
begun, ended, over = threading.Event(), threading.Event(), []
def hook(point):
    if point == "eviction.walked":
        begun.set()
        over.append(ended.wait(10))
store.hook = hook
open_store(Path(sys.argv[1])).writer.limits.start()
assert begun.wait(10)
atexit.register(lambda: print(len(over)))
"""


def test_end_of_the_program_waits_for_no_pass(root: Path) -> None:
    """A pass that hangs is left behind."""
    open_store(root).put(entry_of(1))

    assert in_python(ENDS, str(root)).split() == ["0"]


def test_eviction_passes_over_what_changed_since_the_walk(root: Path) -> None:
    """A file that was used or replaced after it was listed stays."""
    store = open_store(root, clock=Clock())
    store.put(small_entry(1))
    (found,) = Tree(str(root)).walk(1)
    os.utime(file_of(store, key_of(1)), ns=(1, 1))

    assert not eviction.remove(found, unchanged=True)
    assert store.get(key_of(1)) is not None


def test_leftovers_of_the_dead_are_reaped_by_age(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Private files and unheld lock files are removed after an hour; held locks and other files stay."""
    store = open_store(root)
    store.put(small_entry(1))
    store.writer.limits.wait()
    (root / "v1" / DEAD).write_bytes(b"x")
    (root / "v1" / "notes").write_bytes(b"x")
    with store.building(key_of(2)):
        (root / "v1" / "locks" / key_of(3)).write_bytes(b"")
        store.prune()
        young = {path.name for path in files_below(root / "v1")}
        monkeypatch.setattr(eviction, "STALE_S", -10)
        store.prune()
        old = {path.name for path in files_below(root / "v1")}

    assert young - old == {DEAD, key_of(3)}
    assert key_of(2) in old


def test_tree_of_another_format_is_left_alone(root: Path) -> None:
    """Nothing beside the tree of this format is removed, however old it is."""
    store = open_store(root)
    store.put(small_entry(1))
    store.writer.limits.wait()
    others = [root / name / "entries" / "00" / ("a" * 62) for name in ("v0", "v9", "v00x", "notes")]
    for other in others:
        other.parent.mkdir(parents=True)
        other.write_bytes(b"x")
        os.utime(other, (0, 0))

    store.prune(max_size_bytes=0)
    store.clear()

    assert [other.read_bytes() for other in others] == [b"x"] * 4


# Manifests


def test_rows_come_newest_first_and_once(root: Path) -> None:
    """A key that is added again moves to the front with its newer content."""
    store = open_store(root)
    family = key_of(1)
    for variant in ({"key": "a"}, {"key": "b"}, {"key": "a", "new": 1}):
        assert store.add_rows(family, variant)

    assert open_store(root).get_manifest(family) == [{"key": "a", "new": 1}, {"key": "b"}]


def test_row_used_longest_ago_goes_beyond_64(root: Path) -> None:
    """A family's manifest has at most 64 variants."""
    store = open_store(root)
    family = key_of(1)
    for number in range(MAX_ROWS + 2):
        store.add_rows(family, {"key": str(number)})

    assert [each["key"] for each in store.get_manifest(family)] == [
        str(number) for number in range(MAX_ROWS + 1, 1, -1)
    ]


@pytest.mark.parametrize(
    "header",
    [{}, {"variants": {}}, {"variants": [1]}, {"variants": [{}]}, {"variants": [{"key": 1}]}],
)
def test_manifest_without_rows_is_damaged(root: Path, header: dict[str, object]) -> None:
    """A sound file with other content is moved aside, and the family starts again."""
    events = Events()
    store = open_store(root, emit=events)
    family = key_of(1)
    store.add_rows(family, {"key": "a"})
    file_of(store, family, "manifests").write_bytes(encode_entry(StoredEntry(family, header, {}), MANIFEST))

    assert store.get_manifest(family) == []
    assert [event.kind for event in events] == [EventKind.DAMAGED]
    assert store.add_rows(family, {"key": "b"})
    assert store.get_manifest(family) == [{"key": "b"}]


# Records


def test_record_is_replaced_as_a_whole_and_beside_others_of_its_name(root: Path) -> None:
    """An entry, a manifest and a record of one name are three files."""
    store = open_store(root)
    store.put(small_entry(1))
    store.add_rows(key_of(1), {"key": "a"})

    assert store.get_record(key_of(1)) is None
    assert store.put_record(key_of(1), {"old": 1, "path": "\udcff"})
    assert store.put_record(key_of(1), {"new": [2]})
    assert open_store(root).get_record(key_of(1)) == open_store(root).peeking.get_record(key_of(1)) == {"new": [2]}
    assert (store.get(key_of(1)), store.get_manifest(key_of(1))) == (small_entry(1), [{"key": "a"}])
    assert store.clear().entries == 1
    assert store.get_record(key_of(1)) is None


def test_damaged_record_is_moved_aside(root: Path) -> None:
    """Bytes of another kind under the name of a record are damage; looking without touching leaves them there."""
    store = open_store(root, emit=(events := Events()))
    store.put_record(key_of(1), {"a": 1})
    path = file_of(store, key_of(1), "records")
    path.write_bytes(encode_entry(small_entry(1)))

    assert store.peeking.get_record(key_of(1)) is None
    assert not events
    assert store.get_record(key_of(1)) is None
    assert [event.kind for event in events] == [EventKind.DAMAGED]
    assert not path.exists()


def test_record_above_its_limit_is_not_stored(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one before it stays."""
    store = open_store(root)
    store.put_record(key_of(1), {"a": 1})
    monkeypatch.setattr(disk, "MAX_MANIFEST_BYTES", 200)

    assert not store.put_record(key_of(1), {"a": "x" * 200})
    assert store.get_record(key_of(1)) == {"a": 1}


# Damage


def test_damaged_entry_is_moved_aside_and_healed(root: Path) -> None:
    """A look-up is a miss with an event, the bytes are kept for inspection, and the next put makes it a hit again."""
    events = Events()
    store = open_store(root, emit=events)
    store.put(entry_of(1))
    path = file_of(store, key_of(1))
    path.write_bytes(b"torn")
    events.clear()

    assert store.get(key_of(1)) is None

    (event,) = events
    assert event.kind is EventKind.DAMAGED
    assert event.fields["key"] == key_of(1)
    assert [kept.read_bytes() for kept in (root / "v1" / "quarantine").iterdir()] == [b"torn"]
    assert not path.exists()
    assert store.put(entry_of(1))
    assert store.get(key_of(1)) == entry_of(1)


def test_sound_file_that_replaced_a_damaged_one_stays(root: Path) -> None:
    """Another process stores the entry again after the damaged one was read, and before it is moved. Nobody finds it
    missing meanwhile, which would be a second compile."""
    store, other = open_store(root), open_store(root)
    store.put(entry_of(1))
    file_of(store, key_of(1)).write_bytes(b"torn")

    def decode(data: bytes, key: str) -> StoredEntry:
        if data == b"torn":
            other.put(entry_of(1))
        assert file_of(store, key_of(1)).exists()
        return decode_entry(data, key)

    assert store.read(ENTRY, key_of(1), decode) is None
    assert store.get(key_of(1)) == entry_of(1)
    assert list((root / "v1" / "quarantine").iterdir()) == []


def test_listings_of_two_threads_are_whole(root: Path) -> None:
    """A thread that lists a folder does not move the place at which another one reads it."""
    store = open_store(root)
    for number in range(5):
        store.put(entry_of(number))
    with store.tree.opened("entries") as first, store.tree.opened("entries") as second, os.scandir(first) as listing:
        next(listing)
        assert len(os.listdir(second)) == 5


def test_quarantine_is_bounded(root: Path) -> None:
    """At most twenty damaged files are kept."""
    store = open_store(root)
    for number in range(writing.MAX_QUARANTINED + 5):
        store.put(entry_of(number))
        file_of(store, key_of(number)).write_bytes(b"")
        assert store.get(key_of(number)) is None

    assert len(list((root / "v1" / "quarantine").iterdir())) == writing.MAX_QUARANTINED


def test_verify_reads_everything_and_says_what_is_wrong(root: Path) -> None:
    """It also checks parts that hits do not unpack, and moves damaged files aside."""
    store = open_store(root)
    for number in range(4):
        store.put(entry_of(number, 1000))
    store.add_rows(key_of(8), {"key": "a"})
    data = encode_entry(entry_of(1, 1000))[:-16]
    file_of(store, key_of(0)).write_bytes(b"short")
    file_of(store, key_of(1)).write_bytes(sealed(data[:-1] + bytes([data[-1] ^ 1])))
    file_of(store, key_of(8), "manifests").write_bytes(b"short")

    problems = store.verify()

    assert {problem.key for problem in problems} == {key_of(0), key_of(1), key_of(8)}
    assert all(problem.reason for problem in problems)
    assert store.verify() == []
    assert {info.key for info in store.entries()} == {key_of(2), key_of(3)}


def test_name_that_is_no_key_is_passed_over(root: Path) -> None:
    """Foreign files in the directory are no entries, and no damage."""
    store = open_store(root)
    store.put(entry_of(1))
    (file_of(store, key_of(1)).parent / "README").write_text("hello")

    assert [info.key for info in store.entries()] == [key_of(1)]
    assert store.verify() == []


# Directories


def test_readonly_store_writes_nothing(root: Path) -> None:
    """Hits work; no put, time of use, lock, quarantine or counter is written."""
    clock = Clock()
    open_store(root, clock=clock).put(entry_of(1))
    open_store(root, clock=clock).put(entry_of(2))
    file_of(open_store(root), key_of(2)).write_bytes(b"torn")
    clock.now_s += 100 * HOUR_S
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    store = open_store(root, clock=clock, mode="readonly")

    assert store.get(key_of(1)) == entry_of(1)
    assert store.get(key_of(2)) is None
    assert not store.put(entry_of(3))
    assert not store.add_rows(key_of(3), {"key": "a"})
    assert not store.remove(key_of(1))
    assert not store.counters.add({"hits": 1})
    assert store.prune(max_size_bytes=0) == store.clear() == (0, 0)
    assert len(store.verify()) == 1
    with store.building(key_of(3)) as turn:
        assert turn.found is None
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


def is_unused(store: DiskStore, number: int) -> bool:
    """Use every operation of a store; True if none found or stored anything."""
    key = key_of(number)
    found = [store.get(key), store.put(entry_of(number)), store.add_rows(key, {"key": key}), store.remove(key)]
    found += [store.get_manifest(key), store.get_encoded(key), store.size().entries, list(store.entries())]
    found += [store.prune(max_size_bytes=0).entries, store.clear().entries, store.verify()]
    store.set_aside(key)
    with store.building(key) as turn:
        found.append(turn.found)
    return not any(found)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_directory_of_another_user_is_refused(root: Path) -> None:
    """Its owner could have put any code there; nothing in it is read, written or removed, which is reported once."""
    open_store(root).put(entry_of(1))
    os.chown(root, 12345, -1)
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    events = Events()
    store = open_store(root, emit=events)

    assert is_unused(store, 1)
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before
    (event,) = events
    assert "12345" in event.fields["error"]
    assert "in memory only" in event.fields["error"]
    assert (store.place, "12345" in store.obstacle()) == ("", True)


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_directory_that_others_may_write_is_refused(root: Path, mode: int) -> None:
    """One event has the next step; the directory stays as it is, also if it is closed to others later."""
    open_store(root).put(entry_of(1))
    (root / "v1" / "quarantine").mkdir()
    (root / "v1" / "quarantine" / "evidence").write_bytes(b"")
    root.chmod(mode)
    before = files_below(root)
    events = Events()
    store = open_store(root, emit=events)

    assert is_unused(store, 1)
    root.chmod(0o700)
    assert is_unused(store, 1)
    assert files_below(root) == before
    (event,) = events
    assert "shared=True" in event.fields["error"]


def test_refused_directory_keeps_the_counts_of_the_process(root: Path) -> None:
    """`info()` has this process's counts, though they are not saved."""
    root.mkdir()
    root.chmod(0o777)
    store = open_store(root)

    assert store.get(key_of(1)) is None
    assert not store.counters.add({"hits": 1})
    assert store.counters.read() == {"hits": 1}
    assert files_below(root) == []


def test_shared_directory_is_trusted_when_asked(root: Path) -> None:
    """Other members can read and replace the entries."""
    root.mkdir()
    root.chmod(0o777)
    before = os.umask(0o002)
    try:
        store = open_store(root, shared=True)
        assert store.put(entry_of(1))
        assert store.get(key_of(1)) == entry_of(1)
        assert file_of(store, key_of(1)).stat().st_mode & 0o777 == 0o664
        assert (root / "v1" / "entries").stat().st_mode & 0o777 == 0o775
    finally:
        os.umask(before)


_TRANSIENT = ("EMFILE", "ENFILE", "ENOMEM", "EIO", "ESTALE", "EINTR", "ETIMEDOUT", "EACCES", "ENOSPC")


@pytest.mark.parametrize("error", _TRANSIENT)
@pytest.mark.parametrize("call", ["open", "fstat", "lstat"])
def test_first_call_that_fails_is_tried_again_at_the_next_use(
    root: Path, monkeypatch: pytest.MonkeyPatch, error: str, call: str
) -> None:
    """The first opening of the directory fails once or for a time: that look-up and put are nothing, the next ones
    work."""
    open_store(root).put(entry_of(1))
    events, real, number = Events(), getattr(os, call), getattr(errno, error)
    store = open_store(root, emit=events)

    def failing(path: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(path, int) or str(path).startswith(str(root)):
            raise OSError(number, os.strerror(number), path if isinstance(path, str) else None)
        return real(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing)
        assert store.get(key_of(1)) is None
        assert not store.put(entry_of(2))
        assert store.size().entries == 0
    assert {event.kind for event in events} == {EventKind.TROUBLE}

    assert store.get(key_of(1)) == entry_of(1)
    store.clear()  # ends the pause after ENOSPC
    assert store.put(entry_of(2))
    assert store.get(key_of(2)) == entry_of(2)
    assert store.obstacle() == ""


def test_removal_ends_the_pause_after_a_full_disk(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`clear()` makes room: the next entry is stored at once."""
    store = open_store(root)
    monkeypatch.setattr(Limits, "shortage", lambda limits, size: "full")
    assert not store.put(entry_of(1))
    monkeypatch.setattr(Limits, "shortage", lambda limits, size: "")
    assert not store.put(entry_of(1))

    store.clear()

    assert store.put(entry_of(1))


def test_full_disk_starts_a_pass(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry for which there is no room has the leftovers of killed processes removed."""
    store = open_store(root)
    store.put(entry_of(1))
    store.writer.limits.wait()
    (dead := root / "v1" / DEAD).write_bytes(b"x")
    monkeypatch.setattr(eviction, "STALE_S", -10)
    monkeypatch.setattr(Limits, "shortage", lambda limits, size: "full")

    assert not store.put(entry_of(2))
    store.writer.limits.wait()

    assert not dead.exists()


@pytest.mark.parametrize("below", ["", "below/it"])
def test_file_in_place_of_the_directory_is_not_used(root: Path, below: str) -> None:
    """HOME=/dev/null and its like: one kind of event, and the store works once the file is gone."""
    root.write_bytes(b"")
    events = Events()
    store = open_store(root / below, emit=events)

    assert is_unused(store, 1)
    assert {event.kind for event in events} == {EventKind.TROUBLE}
    root.unlink()
    assert store.put(entry_of(1))
    assert store.get(key_of(1)) == entry_of(1)


@pytest.mark.skipif(os.geteuid() != 0, reason="root must become somebody else to be refused by the mode")
def test_unwritable_tree_is_read(tmp_path: Path) -> None:
    """An image's cache in a home that cannot be written to: hits come from it, new entries are not stored."""
    other = 12345
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "cache"
        Path(name).chmod(0o755)
        open_store(root).put(entry_of(1))
        for path in (root, *root.rglob("*")):
            os.chown(path, other, other)
            path.chmod(0o500 if path.is_dir() else 0o400)

        def work() -> None:
            os.setgid(other)
            os.setuid(other)
            events = Events()
            store = open_store(root, emit=events)
            assert store.get(key_of(1)) == entry_of(1)
            assert events == []
            with store.building(key_of(2)) as turn:
                assert turn.found is None
                assert not store.put(entry_of(2))
            assert {event.kind for event in events} == {EventKind.TROUBLE}
            assert store.get(key_of(1)) == entry_of(1)

        assert in_child(work) == 0


@pytest.mark.parametrize("planted", ["file", "open", "foreign"])
def test_planted_private_directory_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: str) -> None:
    """The name of the directory for host files can be guessed, so its owner and mode are checked."""
    monkeypatch.setattr(folders, "LOCAL_PARENT", str(tmp_path))
    place = Path(folders.local_directory("files"))
    if planted == "file":
        place.rmdir()
        place.write_bytes(b"")
    elif planted == "open":
        place.chmod(0o777)
    else:
        if os.geteuid() != 0:
            pytest.skip("only root can give a directory away")
        os.chown(place, 12345, -1)

    with pytest.raises(OSError, match=str(tmp_path)):
        folders.local_directory("files")


def test_private_directory_is_made_for_this_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its mode is 0700, also with umask 0; the same purpose leads to it again, another one to another."""
    monkeypatch.setattr(folders, "LOCAL_PARENT", str(tmp_path))
    before = os.umask(0)
    try:
        path = folders.local_directory("a")
    finally:
        os.umask(before)

    assert path.startswith(f"{tmp_path}/numba_kcache-{os.geteuid()}/")
    assert folders.local_directory("a") == path != folders.local_directory("b")
    assert {os.stat(each).st_mode & 0o777 for each in (path, os.path.dirname(path))} == {0o700}


@pytest.mark.parametrize("umask", [0, 0o177])
def test_missing_folders_are_made_for_this_user_alone(root: Path, umask: int) -> None:
    """A missing `~/.cache` gets mode 0700, and so does the folder for extracted headers, whatever the umask."""
    before = os.umask(umask)
    try:
        store = open_store(root / ".cache" / "numba_kcache")
        assert store.put(entry_of(1))
        assert store.header_folder()
    finally:
        os.umask(before)

    assert {path.stat().st_mode & 0o777 for path in (root, *root.rglob("*")) if path.is_dir()} == {0o700}


def test_missing_folders_above_a_shared_directory_have_the_rights_of_the_umask(root: Path) -> None:
    """Other members can reach it."""
    before = os.umask(0o027)
    try:
        assert open_store(root / "team" / "numba_kcache", shared=True).put(entry_of(1))
    finally:
        os.umask(before)

    assert (root / "team").stat().st_mode & 0o7777 == 0o750


def test_link_to_another_disk_is_followed(root: Path) -> None:
    """`~/.cache` is often a link to a scratch directory."""
    (root.parent / "scratch").mkdir()
    (root.parent / "home").mkdir()
    (root.parent / "home" / ".cache").symlink_to("../scratch/me")
    (root.parent / "scratch" / "me").mkdir()
    events = Events()
    store = open_store(root.parent / "home" / ".cache" / "numba_kcache", emit=events)

    assert store.put(entry_of(1))
    assert store.get(key_of(1)) == entry_of(1)
    assert not events.of(EventKind.TROUBLE)
    assert (root.parent / "scratch" / "me" / "numba_kcache" / "v1").is_dir()


MOUNTS = r"""22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
30 22 0:25 / /home rw,nosuid shared:5 - nfs4 server:/home rw,vers=4.2
31 30 0:26 / /home/me/local rw - tmpfs tmpfs rw
32 22 0:27 / /scratch rw - lustre 10.0.0.1@o2ib:/scratch rw
33 22 0:28 / /mnt/with\040space rw - fuse.sshfs me@host:/ rw
34 22 0:29 / /homework rw - overlay overlay rw
"""


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ((254, 1), False),
        ((0, 25), True),
        ((0, 26), False),
        ((0, 27), True),
        ((0, 28), True),
        ((0, 29), False),
        ((0, 9), False),
    ],
)
def test_network_filesystem_is_known_by_its_type(
    device: tuple[int, int], expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The filesystem of a folder is the mount with the number of its device; an unknown one counts as local."""
    (tmp_path / "mounts").write_text(MOUNTS)
    monkeypatch.setattr(system, "MOUNTS", str(tmp_path / "mounts"))
    status: Any = SimpleNamespace(st_dev=os.makedev(*device))

    assert system.is_network(status) is expected


def test_network_directory_has_its_locks_on_a_local_disk(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries are read from it and written to it; a put walks and locks nothing there, and prune acts on it."""
    first = open_store(root)
    first.put(entry_of(1))
    first.writer.limits.wait()
    (root / "v1" / "evict.lock").unlink()
    monkeypatch.setattr(system, "is_network", lambda status: True)
    store = open_store(root)

    assert store.get(key_of(1)) == entry_of(1)
    with store.building(key_of(2)) as turn:
        assert turn.has_turn
        assert store.put(entry_of(2))
        assert files_below(root / "v1" / "locks") == []
        assert key_of(2) in {path.name for path in files_below(Path(folders.LOCAL_PARENT))}
    store.writer.limits.wait()
    assert not (root / "v1" / "evict.lock").exists()
    assert store.prune(max_size_bytes=0).entries == 2


def test_recency_on_the_network_is_renewed_once_a_day(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand ranks that hit one entry write its time once."""
    clock = Clock()
    open_store(root, clock=clock).put(entry_of(1))
    stored = clock()
    monkeypatch.setattr(system, "is_network", lambda status: True)
    clock.now_s += 23 * HOUR_S
    assert open_store(root, clock=clock).get(key_of(1)) == entry_of(1)
    assert file_of(open_store(root), key_of(1)).stat().st_mtime == stored
    clock.now_s += 2 * HOUR_S

    assert open_store(root, clock=clock).get(key_of(1)) == entry_of(1)
    assert file_of(open_store(root), key_of(1)).stat().st_mtime == clock()


def test_stale_handle_is_read_once_more(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS says ESTALE when another machine replaced the file between open and read."""
    store = open_store(root)
    store.put(entry_of(1))
    read, calls = os.read, []

    def stale_once(fd: int, size: int) -> bytes:
        calls.append(fd)
        if len(calls) == 1:
            raise OSError(errno.ESTALE, "stale file handle")
        return read(fd, size)

    monkeypatch.setattr(os, "read", stale_once)

    assert store.get(key_of(1)) == entry_of(1)


def test_directory_that_the_file_server_replaced_is_opened_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is opened below descriptors of the old one is ESTALE, at each try."""
    store = open_store(root)
    store.put(entry_of(1))
    opened, is_stale = os.open, [True]

    def of_server(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        is_stale[0] = is_stale[0] and dir_fd is not None
        if is_stale[0]:
            raise OSError(errno.ESTALE, "stale file handle")
        return opened(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", of_server)

    assert store.get(key_of(1)) == entry_of(1)


def test_read_in_parts_is_put_together(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system may return fewer bytes than requested."""
    store = open_store(root)
    store.put(entry_of(1, 5000))
    read = os.read
    monkeypatch.setattr(os, "read", lambda fd, size: read(fd, min(size, 700)))

    assert store.get(key_of(1)) == entry_of(1, 5000)


def test_threads_unpack_at_once(root: Path) -> None:
    """Each decompression context serves one thread at a time."""
    from concurrent.futures import ThreadPoolExecutor

    store = open_store(root)
    for number in range(8):
        store.put(entry_of(number, 300_000))

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda number: store.get(key_of(number % 8)), range(200)))

    assert all(entry == entry_of(number % 8, 300_000) for number, entry in enumerate(found))


def test_importing_the_room_brings_in_no_heavy_module() -> None:
    """Logging, inspect, dataclasses, pathlib, hashlib and tempfile are imported only when an entry is stored."""
    code = (
        "import sys; before = set(sys.modules); import numba_kcache.store.disk;"
        "print(*sorted({'logging','inspect','dataclasses','pathlib','hashlib','tempfile','subprocess'}"
        " & (set(sys.modules) - before)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert out.split() == []


def test_obstacle_is_found_without_a_trace(root: Path) -> None:
    """`info` and `doctor` leave no file in a directory that does not exist, or cannot be made."""
    store = open_store(root)
    nowhere = open_store(Path("/proc/no/such/place"))

    assert store.obstacle() == ""
    assert "/proc cannot be written to" in nowhere.obstacle()
    assert list(root.parent.iterdir()) == []
    store.put(small_entry(1))
    assert store.obstacle() == ""


def test_folder_that_another_process_makes_first_is_used(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process makes each folder, parents included, between the check and the mkdir: no entry goes elsewhere."""
    events, real = Events(), os.mkdir

    def raced(path: str, mode: int = 0o777, **options: Any) -> None:
        real(path, mode, **options)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", raced)
        store = open_store(root / "a" / "b" / "cache", emit=events)
        assert store.put(small_entry(1))

    assert events.of(EventKind.TROUBLE) == []
    assert open_store(root / "a" / "b" / "cache").get(key_of(1)) == small_entry(1)


def test_directory_in_a_loop_of_links_is_a_failure_and_no_damaged_entry(tmp_path: Path) -> None:
    """The directory itself cannot be reached; nothing in it is called damaged."""
    (tmp_path / "one").symlink_to("other")
    (tmp_path / "other").symlink_to("one")
    store = open_store(tmp_path / "one", emit=(events := Events()))
    assert store.get(key_of(1)) is None
    assert not events.of(EventKind.DAMAGED)
    assert f"{tmp_path / 'one'} is a loop of links" in str(events.of(EventKind.TROUBLE))
