"""Several users of one directory: a team that shares it, and an intruder who may write to its parent."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from numba_kcache.model import EventKind
from numba_kcache.store import ENTRY, encoding, eviction, folders, listing, locks, writing
from numba_kcache.store.disk import DiskStore
from numba_kcache.store.encoding import encode_entry
from numba_kcache.tiers.directory import DirectoryTier
from tests.support.stores import (
    Clock,
    Events,
    children,
    counters_of,
    entry_of,
    file_of,
    in_child,
    key_of,
    open_store,
    small_entry,
)

pytestmark = [
    pytest.mark.usefixtures("alone"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become two users"),
]

ALICE, BOB, STRANGER, TEAM = 54001, 54002, 54003, 54100
LOADED = (encoding, eviction, folders, listing, locks, writing)
"""Loaded before a child becomes a user who may not be able to read them."""


def as_user(user: int, work: Callable[[], object], *groups: int, umask: int = 0o022) -> None:
    """Run `work` in a process of another user."""

    def become() -> None:
        import fcntl  # noqa: F401
        import tempfile  # noqa: F401

        os.setgroups(groups)
        os.setgid(user)
        os.setuid(user)
        os.umask(umask)
        work()

    assert in_child(become) == 0


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that every user can reach, and another for private directories."""
    place = Path("/tmp") / f"kcache-users-{os.getpid()}-{os.urandom(4).hex()}"
    place.mkdir()
    place.chmod(0o755)
    (place / "private").mkdir()
    (place / "private").chmod(0o1777)
    monkeypatch.setattr(folders, "LOCAL_PARENT", str(place / "private"))
    yield place
    shutil.rmtree(place)


@pytest.fixture
def team(place: Path) -> Path:
    """A directory as docs/how-to/team-cache.md makes it: open to the group, closed to all others."""
    root = place / "team"
    root.mkdir()
    os.chown(root, 0, TEAM)
    root.chmod(0o2770)
    return root


def use(store: DiskStore, own: int, others: tuple[int, ...]) -> None:
    """Use the store as a member: others' entries are found, new ones stored, and counts added."""
    for number in others:
        assert store.get(key_of(number)) == small_entry(number)
        assert store.put(small_entry(number))
        assert store.add_rows(key_of(number), {"key": f"of {own}"})
    with store.building(key_of(own)) as turn:
        assert turn.has_turn
        assert store.put(small_entry(own))
    assert store.add_rows(key_of(own), {"key": "a"})
    assert store.counters.add({"hits": 1})
    store.writer.limits.wait()
    store.prune(max_size_bytes=1 << 20)
    assert store.verify() == []


@pytest.mark.slow
def test_umask_without_search_permission_spoils_no_directory(place: Path) -> None:
    """Programs set the umask 0177 while they write a secret file: an entry that is stored under it is found later."""
    root = place / "own" / "cache"
    root.parent.mkdir()
    os.chown(root.parent, ALICE, ALICE)

    def work() -> None:
        events = Events()
        store = open_store(root, emit=events)
        assert store.put(small_entry(1))
        assert open_store(root, emit=Events()).obstacle() == ""
        assert events.of(EventKind.TROUBLE) == []

    def later() -> None:
        store = open_store(root)
        assert store.obstacle() == ""
        assert store.get(key_of(1)) == small_entry(1)

    as_user(ALICE, work, umask=0o177)
    as_user(ALICE, later)


@pytest.mark.parametrize("umask", [0o002, 0o022, 0o077])
def test_members_of_a_group_share_a_directory_without_a_warning(team: Path, umask: int) -> None:
    """Entries, manifests, locks, statistics and evictions work under any umask; no other user may read the
    directory."""
    for number, (user, others) in enumerate(((ALICE, ()), (BOB, (0,)), (ALICE, (0, 1)))):

        def work(number: int = number, others: tuple[int, ...] = others) -> None:
            events = Events()
            use(open_store(team, shared=True, emit=events), number, others)
            assert events.of(EventKind.TROUBLE) == []
            assert open_store(team, shared=True).counters.read() == {"hits": number + 1}

        as_user(user, work, TEAM, umask=umask)

    as_user(BOB, lambda: open_store(team, shared=True).prune(), TEAM)
    as_user(ALICE, lambda: _equal(counters_of(team).read(), {}), TEAM)  # unshared, it is another user's directory
    as_user(ALICE, lambda: _equal(open_store(team, shared=True).counters.read(), {"hits": 3}), TEAM)
    assert all(path.stat().st_mode & 0o007 == 0 and path.stat().st_gid == TEAM for path in (team, *team.rglob("*")))


def _equal(found: object, wanted: object) -> None:
    assert found == wanted


def test_use_by_any_member_keeps_an_entry(team: Path) -> None:
    """A member's hit renews the time of another's file: otherwise entries that only others use would be evicted
    first."""
    clock = Clock()
    as_user(ALICE, lambda: open_store(team, shared=True, clock=clock).put(small_entry(1)), TEAM)
    path = file_of(open_store(team), key_of(1))
    os.utime(path, (1000, 1000))

    as_user(BOB, lambda: _equal(open_store(team, shared=True, clock=clock).get(key_of(1)), small_entry(1)), TEAM)

    assert path.stat().st_mtime > 1_000_000_000


@pytest.mark.slow
def test_entry_of_a_stranger_is_not_believed_where_everybody_writes(place: Path) -> None:
    """`shared` trusts owner and group: if all may write, only one's own entries and the owner's are served."""
    root = place / "open"
    root.mkdir()
    os.chown(root, ALICE, TEAM)
    root.chmod(0o2777)
    as_user(ALICE, lambda: _equal(open_store(root, shared=True).put(small_entry(1)), True), TEAM)
    as_user(BOB, lambda: _equal(open_store(root, shared=True).put(small_entry(2)), True), TEAM)
    events = Events()

    def bob() -> None:
        store = open_store(root, shared=True, emit=events)
        assert store.get(key_of(1)) == small_entry(1)
        assert store.get(key_of(2)) == small_entry(2)

    def alice() -> None:
        events = Events()
        store = open_store(root, shared=True, emit=events)
        assert store.get(key_of(2)) is None
        assert "is not trusted" in events.of(EventKind.TROUBLE)[0].fields["error"]

    def stranger() -> None:
        store = open_store(root, shared=True)
        assert not store.put(small_entry(3)), "it has no rights there"

    as_user(BOB, bob, TEAM)
    as_user(ALICE, alice, TEAM)
    as_user(STRANGER, stranger)
    assert not file_of(open_store(root), key_of(3)).exists()


def test_file_that_everybody_may_write_is_not_believed_in_a_shared_directory(team: Path) -> None:
    """The mode of its folder does not help: any user who reaches the file can have changed its bytes."""
    as_user(ALICE, lambda: open_store(team, shared=True).put(small_entry(1)), TEAM)
    file_of(open_store(team), key_of(1)).chmod(0o666)

    as_user(BOB, lambda: _equal(open_store(team, shared=True).get(key_of(1)), None), TEAM)


def test_shared_directory_below_a_parent_of_everybody_is_refused(place: Path) -> None:
    """Any user could replace the directory; below a parent of the same group it is used."""
    (place / "parent").mkdir()
    root = place / "parent" / "team"
    root.mkdir()
    for path, mode in ((root, 0o2770), (place / "parent", 0o2770)):
        os.chown(path, ALICE, TEAM)
        path.chmod(mode)
    as_user(BOB, lambda: _equal(open_store(root, shared=True).put(small_entry(1)), True), TEAM)
    as_user(ALICE, lambda: _equal(open_store(root, shared=True).get(key_of(1)), small_entry(1)), TEAM)
    (place / "parent").chmod(0o777)

    def refused() -> None:
        events = Events()
        assert open_store(root, shared=True, emit=events).get(key_of(1)) is None
        assert "can be written by others" in events.of(EventKind.TROUBLE)[0].fields["error"]

    as_user(ALICE, refused, TEAM)


def test_directory_of_a_builder_serves_readers_as_a_tier(place: Path) -> None:
    """One account writes, many read: with `shared` they trust its owner; without, another user's directory is
    refused."""
    root = place / "built"
    root.mkdir()
    os.chown(root, ALICE, ALICE)
    root.chmod(0o755)
    as_user(ALICE, lambda: _equal(open_store(root, shared=True).put(small_entry(1)), True))

    def read() -> None:
        assert DirectoryTier(str(root), shared=True).get(ENTRY, key_of(1)) == encode_entry(small_entry(1))
        with pytest.raises(PermissionError, match="belongs to user"):
            DirectoryTier(str(root)).get(ENTRY, key_of(1))

    as_user(BOB, read)


@pytest.mark.slow
def test_intruder_who_swaps_the_directory_gets_nothing_touched_and_nothing_served(place: Path) -> None:
    """For three seconds a second user replaces our directories by links and directories of their own, under six
    processes."""
    parent, precious, poisoned = place / "parent", place / "precious", place / "poisoned"
    parent.mkdir()
    parent.chmod(0o777)

    def prepare() -> None:
        store = open_store(precious)
        for number in range(4):
            store.put(entry_of(number))

    precious.mkdir()
    os.chown(precious, ALICE, ALICE)
    as_user(ALICE, prepare)
    poisoned.mkdir()
    os.chown(poisoned, STRANGER, STRANGER)
    as_user(STRANGER, lambda: [open_store(poisoned).put(entry_of(number)) for number in range(4)])
    os.rename(poisoned, parent / "poisoned")
    before = {path: (path.lstat().st_mtime_ns, path.lstat().st_ino) for path in (precious, *precious.rglob("*"))}
    end = time.monotonic() + 3

    def intrude() -> None:
        root = parent / "cache"
        while time.monotonic() < end:
            for step in (
                lambda: os.rename(root, parent / f"away-{os.urandom(4).hex()}"),
                lambda: os.symlink(precious, root),
                lambda: os.unlink(root),
                lambda: os.rename(parent / "poisoned", root),
                lambda: os.rename(root, parent / "poisoned"),
            ):
                try:
                    step()
                except OSError:
                    continue

    def work() -> None:
        rounds = 0
        while time.monotonic() < end:
            store = open_store(parent / "cache")
            for number in range(4):
                assert store.get(key_of(number)) in (None, small_entry(number)), "the intruder's code was served"
                store.put(small_entry(number))
            store.add_rows(key_of(1), {"key": "a"})
            store.counters.add({"hits": 1})
            with store.building(key_of(5)) as turn:
                assert turn.found is None
            store.verify()
            store.prune(max_size_bytes=1)
            store.clear()
            rounds += 1
        assert rounds > 3

    def user(number: int) -> None:
        as_user(STRANGER if number == 0 else ALICE, intrude if number == 0 else work)

    with children(7, user):
        pass
    assert {
        path: (path.lstat().st_mtime_ns, path.lstat().st_ino) for path in (precious, *precious.rglob("*"))
    } == before


def test_directory_of_root_is_believed_as_a_tier_and_not_where_others_write(place: Path) -> None:
    """An image layer belongs to root: it serves a user, unless a mode in it lets others write."""
    root = place / "layer"
    open_store(root).put(small_entry(1))
    for path in (root, *root.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)

    def served() -> None:
        assert DirectoryTier(str(root)).get(ENTRY, key_of(1)) == encode_entry(small_entry(1))

    def refused() -> None:
        with pytest.raises(PermissionError, match=r"written by others|can write to it"):
            DirectoryTier(str(root)).get(ENTRY, key_of(1))

    as_user(BOB, served)
    for path in (root, root / "v1", root / "v1" / "entries", file_of(open_store(root), key_of(1))):
        mode = path.stat().st_mode
        path.chmod(mode | 0o022)
        as_user(BOB, refused)
        path.chmod(mode)
    as_user(BOB, served)


@pytest.mark.slow
def test_member_who_plants_links_in_a_shared_directory_gets_nothing_touched(team: Path, place: Path) -> None:
    """For three seconds a member replaces folders and files by links and hard links to another member's files."""
    precious = place / "precious"
    precious.mkdir()
    named = (key_of(1)[2:], f"{key_of(1)[2:]}.0a0a0a0a", f"7.{'0a' * 8}", key_of(5), "total", "evict.lock")
    for folder in (precious, precious / "below"):
        folder.mkdir(exist_ok=True)
        for name in (*named, "thesis.tex"):
            (folder / name).write_bytes(b"not yours")
    for path in (precious, *precious.rglob("*")):
        os.chown(path, ALICE, TEAM)
    before = {
        path: (path.lstat().st_mtime_ns, path.lstat().st_ino, path.is_file() and path.read_bytes())
        for path in (precious, *precious.rglob("*"))
    }
    as_user(ALICE, lambda: use(open_store(team, shared=True), 0, ()), TEAM)
    end = time.monotonic() + 3

    def intrude() -> None:
        dice = random.Random(1)
        while time.monotonic() < end:
            inside = [path for path in (team / "v1").rglob("*") if not path.is_symlink()]
            if not inside:
                continue
            path = dice.choice(inside)
            try:
                os.rename(path, team / f"away-{os.urandom(4).hex()}")
                os.symlink(dice.choice((precious, precious / "below", precious / "thesis.tex")), path)
                if dice.random() < 0.8:
                    os.unlink(path)
            except OSError:
                continue

    def work() -> None:
        while time.monotonic() < end:
            store = open_store(team, shared=True)
            for number in range(4):
                assert store.get(key_of(number)) in (None, small_entry(number))
                store.put(small_entry(number))
            store.add_rows(key_of(1), {"key": "a"})
            store.counters.add({"hits": 1})
            with store.building(key_of(5)) as turn:
                assert turn.found is None
            store.verify()
            store.prune(max_size_bytes=1)
            store.clear()

    def user(number: int) -> None:
        as_user(BOB if number == 0 else ALICE, intrude if number == 0 else work, TEAM)

    with children(6, user):
        pass
    after = {
        path: (path.lstat().st_mtime_ns, path.lstat().st_ino, path.is_file() and path.read_bytes())
        for path in (precious, *precious.rglob("*"))
    }
    assert after == before
