"""Foreign objects in the tree or in its place: nothing outside is changed, and no foreign bytes are served."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from numba_kcache.errors import BundleError
from numba_kcache.model import EventKind
from numba_kcache.store import ENTRY
from numba_kcache.store.disk import DiskStore
from numba_kcache.store.encoding import encode_entry
from numba_kcache.tiers.directory import DirectoryTier
from numba_kcache.tiers.trust import SIGNATURE
from tests.crash.test_store_damage import use_every_verb
from tests.support.compiling import ROOT
from tests.support.stores import Events, entry_of, file_of, files_below, key_of, open_store, small_entry

IS_ROOT = os.geteuid() == 0
STRANGER = 12345

pytestmark = pytest.mark.usefixtures("alone")

FIXED = ("locks", "quarantine", "entries", "manifests", "records")
"""Folders of the tree that are there once."""

State = dict[str, tuple[int, int, int, bytes]]


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A folder of another user, whose file names would be valid in the store's folders, and a subfolder."""
    folder = tmp_path / "foreign"
    names = (key_of(1)[2:], key_of(1), f"{key_of(1)[2:]}.0a0a0a0a", f"123.{'0a' * 8}", "statistics")
    for below in (folder, folder / key_of(1)[:2], folder / "below"):
        below.mkdir(exist_ok=True)
        for name in (*names, "thesis.tex", "evict.lock"):
            (below / name).write_bytes(b"not yours")
    for path in (folder, *folder.rglob("*")):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    return folder


def state(folder: Path) -> State:
    """Inode, mode, time and bytes of everything below a folder, by its path."""
    found = {}
    for path in (folder, *folder.rglob("*")):
        status = path.lstat()
        data = path.read_bytes() if path.is_file() else b""
        found[str(path)] = status.st_ino, status.st_mode, status.st_mtime_ns, data
    return found


def filled(root: Path) -> DiskStore:
    """A store with an entry, a manifest, a record, counts, a damaged file and an abandoned lock."""
    store = open_store(root)
    for number in (1, 2, 3):
        store.put(small_entry(number))
    store.add_rows(key_of(1), {"key": "a"})
    store.put_record(key_of(1), {"a": 1})
    store.counters.add({"hits": 1})
    file_of(store, key_of(3)).write_bytes(b"torn")
    store.get(key_of(3))
    with store.building(key_of(4)):
        pass
    store.writer.limits.wait()
    return store


def plant(path: Path, target: Path) -> None:
    """Replace the object at this path by a link."""
    if path.exists():
        path.rename(path.with_name(f"{path.name}-away"))
    path.symlink_to(target)


@pytest.mark.parametrize(
    "place", [*FIXED, f"entries/{key_of(1)[:2]}", f"manifests/{key_of(1)[:2]}", f"records/{key_of(1)[:2]}", "."]
)
@pytest.mark.parametrize("was_open", [True, False])
def test_planted_link_leads_nowhere(tmp_path: Path, foreign: Path, place: str, was_open: bool) -> None:
    """A link in place of any folder, made before or while a process runs: no operation changes the foreign files."""
    root = tmp_path / "cache"
    store = filled(root)
    plant(root / "v1" / place if place != "." else root / "v1", foreign)
    before = state(foreign)

    use_every_verb(store if was_open else open_store(root))

    assert state(foreign) == before


@pytest.mark.parametrize("place", FIXED)
def test_planted_link_is_left(tmp_path: Path, foreign: Path, place: str) -> None:
    """The link stays through `verify`, `prune` and `clear`."""
    store = filled(tmp_path / "cache")
    plant(tmp_path / "cache" / "v1" / place, foreign)
    again = open_store(tmp_path / "cache")

    again.verify()
    again.clear()
    again.prune(max_size_bytes=1)
    assert (tmp_path / "cache" / "v1" / place).is_symlink()
    store.writer.limits.wait()


def _link(path: Path, target: Path) -> None:
    path.symlink_to(target / "thesis.tex")


def _hard_link(path: Path, target: Path) -> None:
    os.link(target / "thesis.tex", path)


def _pipe(path: Path, target: Path) -> None:
    os.mkfifo(path)


def _device(path: Path, target: Path) -> None:
    if not IS_ROOT:
        pytest.skip("only root can make a device")
    os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 7))  # /dev/full


FILES = {
    "first": f"entries/{key_of(1)[:2]}/{key_of(1)[2:]}",
    "entry": f"entries/{key_of(7)[:2]}/{key_of(7)[2:]}",
    "manifest": f"manifests/{key_of(1)[:2]}/{key_of(1)[2:]}",
    "record": f"records/{key_of(1)[:2]}/{key_of(1)[2:]}",
    "lock": f"locks/{key_of(7)}",
    "pass": "evict.lock",
    "counts": "statistics",
    "private": f"1.{'0a' * 8}",
    "damaged": f"quarantine/{key_of(7)[2:]}.0a0a0a0a",
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("planted", [_link, _hard_link, _pipe, _device])
def test_planted_file_is_neither_followed_nor_written(
    tmp_path: Path, foreign: Path, name: str, planted: Callable[[Path, Path], None]
) -> None:
    """A link, hard link, pipe or device in place of any file: no blocking, no error, no foreign byte changed."""
    root = tmp_path / "cache"
    filled(root)
    path = root / "v1" / FILES[name]
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    planted(path, foreign)
    before = state(foreign)
    store = open_store(root)

    with store.building(key_of(7)) as turn:
        assert turn.found is None
    use_every_verb(store)

    assert state(foreign) == before


def test_planted_link_in_place_of_an_entry_is_a_miss_and_stays(tmp_path: Path) -> None:
    """The link is not followed, even to a valid entry; a put takes its place, and its target stays."""
    events = Events()
    store = open_store(tmp_path / "cache", emit=events)
    store.put(small_entry(1))
    path, whole = file_of(store, key_of(1)), tmp_path / "whole"
    path.rename(whole)
    path.symlink_to(whole)

    assert store.get(key_of(1)) is None
    assert path.is_symlink()
    assert [each.kind for each in events if each.kind is not EventKind.STORED] == [EventKind.DAMAGED]
    assert store.put(small_entry(1))
    assert store.get(key_of(1)) == small_entry(1)
    assert whole.read_bytes() == encode_entry(small_entry(1))


def test_files_of_others_are_left(tmp_path: Path) -> None:
    """In each folder `clear`, `prune` and `verify` keep files whose name is not of the store's form."""
    store = filled(tmp_path / "cache")
    theirs = [tmp_path / "cache" / "v1" / folder / "notes.txt" for folder in (*FIXED, f"entries/{key_of(1)[:2]}", ".")]
    for path in theirs:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"theirs")

    assert store.verify() == []
    store.clear()
    store.prune(max_size_bytes=1)
    assert all(path.read_bytes() == b"theirs" for path in theirs)


# The directory itself


def test_swapped_directory_is_not_entered(tmp_path: Path) -> None:
    """A running process keeps using the directory that it has checked."""
    parent = tmp_path / "parent"
    parent.mkdir()
    parent.chmod(0o777)
    store = open_store(parent / "cache")
    store.put(small_entry(1))
    other = open_store(tmp_path / "other")
    other.put(small_entry(2))
    before = state(tmp_path / "other")

    (parent / "cache").rename(parent / "away")
    (parent / "cache").symlink_to(tmp_path / "other")

    assert store.get(key_of(2)) is None
    assert store.get(key_of(1)) == small_entry(1)
    assert store.put(small_entry(3))
    store.clear()
    assert state(tmp_path / "other") == before
    assert open_store(parent / "cache").get(key_of(2)) is None, "the link is followed by a process that begins"


@pytest.mark.parametrize("planted", ["link", "link above", "not closed", "of a stranger"])
def test_below_a_parent_that_others_may_write_only_an_own_closed_directory_is_used(
    tmp_path: Path, planted: str
) -> None:
    """The parent has no sticky bit, so any user with write access can replace the directory."""
    parent = tmp_path / "parent"
    open_store(tmp_path / "theirs" / "cache").put(small_entry(1))
    parent.mkdir()
    parent.chmod(0o777)
    root = parent / "above" / "cache"
    if planted == "link above":
        (parent / "above").symlink_to(tmp_path / "theirs")
    else:
        (parent / "above").mkdir()
        (parent / "above").chmod(0o777)
        if planted == "link":
            root.symlink_to(tmp_path / "theirs" / "cache")
        else:
            (tmp_path / "theirs" / "cache").rename(root)
            if planted == "of a stranger":
                if not IS_ROOT:
                    pytest.skip("only root can give a directory away")
                os.chown(root, STRANGER, -1)
            else:
                root.chmod(0o755)
    events = Events()
    store = open_store(root, emit=events)

    assert store.get(key_of(1)) is None
    assert not store.put(small_entry(2))
    assert store.get(key_of(2)) is None
    assert not [each for place in (tmp_path / "theirs", parent) for each in place.rglob(key_of(2)[2:])]
    (trouble,) = events.of(EventKind.TROUBLE)
    assert str(root) in trouble.fields["error"]


def test_own_closed_directory_below_such_a_parent_is_used(tmp_path: Path) -> None:
    """For an emptyDir of Kubernetes, or a home that a group may write to: the store makes its directory with mode 700
    and uses it."""
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume").chmod(0o777)
    events = Events()
    store = open_store(tmp_path / "volume" / "mine" / "cache", emit=events)

    assert store.put(small_entry(1))
    assert open_store(tmp_path / "volume" / "mine" / "cache").get(key_of(1)) == small_entry(1)
    assert events.of(EventKind.TROUBLE) == []


def test_own_link_to_the_directory_is_followed_where_nobody_else_writes(tmp_path: Path) -> None:
    """`~/.cache/numba_kcache` may be a link to a larger disk."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    store = open_store(tmp_path / "link" / "cache")
    assert store.put(small_entry(1))
    (tmp_path / "other").symlink_to(tmp_path / "link" / "cache")

    assert open_store(tmp_path / "other").get(key_of(1)) == small_entry(1)


@pytest.mark.skipif(not IS_ROOT, reason="only root can give a link away")
def test_stranger_s_link_in_a_sticky_folder_is_not_followed(tmp_path: Path) -> None:
    """In a folder like /tmp any user may make a link, and no one else can remove it."""
    open_store(tmp_path / "mine").put(small_entry(1))
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    for name, owner in (("own", 0), ("theirs", STRANGER)):
        (tmp_path / "tmp" / name).symlink_to(tmp_path / "mine")
        os.lchown(tmp_path / "tmp" / name, owner, owner)

    assert open_store(tmp_path / "tmp" / "own").get(key_of(1)) == small_entry(1)
    assert open_store(tmp_path / "tmp" / "theirs").get(key_of(1)) is None


def test_writable_folder_inside_an_open_directory_is_not_believed(tmp_path: Path) -> None:
    """An unpacked copy with modes 0755 outside and 0777 inside can be written to by all users."""
    root = tmp_path / "cache"
    open_store(root).put(small_entry(1))
    root.chmod(0o755)
    for path in (root / "v1", root / "v1" / "entries", file_of(open_store(root), key_of(1)).parent):
        path.chmod(0o777)
        events = Events()
        assert open_store(root, emit=events).get(key_of(1)) is None
        assert len(events.of(EventKind.TROUBLE)) >= 1
        path.chmod(0o755)
    assert open_store(root).get(key_of(1)) == small_entry(1)
    file_of(open_store(root), key_of(1)).chmod(0o666)
    assert open_store(root).get(key_of(1)) is None


# Descriptors


DAEMON = """
import os, sys
from tests.support.stores import files_below, key_of, open_store, small_entry
from pathlib import Path

root = Path(sys.argv[1])
store = open_store(root / "cache")
store.put(small_entry(1))
other = open_store(root / "other")
other.put(small_entry(2))

os.closerange(3, 256)
held = [os.open(root / "other" / "v1", os.O_RDONLY) for _ in range(40)]
assert store.get(key_of(2)) is None
assert store.get(key_of(1)) == small_entry(1)
assert store.put(small_entry(3))
for fd in held:
    assert os.path.samestat(os.fstat(fd), os.stat(root / "other" / "v1"))
assert len(files_below(root / "other" / "v1" / "entries")) == 1
"""
"""A program of its own: a child of the tests would hold what other tests opened, and close the numbers of it, too."""


def test_descriptor_that_the_program_closed_and_reused_is_not_used(tmp_path: Path) -> None:
    """A daemon closes all descriptors and opens its own files under the numbers: the store neither reads nor closes
    these."""
    words = [sys.executable, "-c", DAEMON, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False)

    assert (done.returncode, done.stderr) == (0, "")


def test_descriptor_is_closed_with_its_store(tmp_path: Path) -> None:
    """A program that opens many caches does not run out of descriptors."""
    open_store(tmp_path / "cache").put(small_entry(1))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        assert open_store(tmp_path / "cache").get(key_of(1)) == small_entry(1)

    assert len(os.listdir("/proc/self/fd")) <= before + 2


def test_directory_that_was_removed_is_made_and_checked_again(tmp_path: Path) -> None:
    """After `rm -rf` another user makes a directory of that name first: it is not used."""
    import shutil

    root = tmp_path / "cache"
    store = open_store(root)
    store.put(small_entry(1))
    store.writer.limits.wait()
    shutil.rmtree(root)
    assert store.get(key_of(1)) is None
    root.mkdir()
    root.chmod(0o777)

    assert store.get(key_of(1)) is None
    assert not store.put(small_entry(2))
    assert files_below(root) == []


# Tiers and bundles


@pytest.mark.parametrize(
    "place", ["v1", "v1/entries", f"v1/entries/{key_of(1)[:2]}", f"v1/{FILES['first']}", "signatures"]
)
def test_tier_that_carries_a_link_hands_over_nothing(tmp_path: Path, place: str) -> None:
    """In an unpacked copy that is a read-only tier, no link is followed either."""
    for name in ("tier", "theirs", "theirs/signatures"):
        open_store(tmp_path / name).put(small_entry(1))
    path = tmp_path / "tier" / place
    if path.exists():
        path.rename(tmp_path / "away")
    path.symlink_to(tmp_path / "theirs" / place)

    tier, kind = DirectoryTier(str(tmp_path / "tier")), ENTRY + SIGNATURE if place == "signatures" else ENTRY
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        tier.get(kind, key_of(1))


@pytest.mark.parametrize("planted", ["link", "dangling link", "pipe", "folder", "device"])
def test_export_replaces_a_regular_file_or_nothing(tmp_path: Path, planted: str) -> None:
    """Any other object at the path is an error and stays, and no file is left beside it."""

    from numba_kcache.keys import sha256
    from numba_kcache.tiers.bundle import BundledFile, assemble, write_bundle

    folder = tmp_path / "out"
    folder.mkdir()
    path, data = folder / "kernels.kcache", encode_entry(entry_of(1))
    files = [BundledFile(key_of(1), len(data), sha256(data).hexdigest(), "sm_90", ("saxpy",))]
    (tmp_path / "target").write_bytes(b"theirs")
    if planted == "folder":
        path.mkdir()
    elif planted == "pipe":
        os.mkfifo(path)
    elif planted == "device":
        if not IS_ROOT:
            pytest.skip("only root can make a device")
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    else:
        path.symlink_to(tmp_path / ("target" if planted == "link" else "absent"))
    before = path.lstat()

    with pytest.raises(BundleError, match="only regular files are replaced"):
        write_bundle(assemble(str(path), files, {}, lambda key: data))

    assert (path.lstat().st_ino, path.lstat().st_mode) == (before.st_ino, before.st_mode)
    assert (tmp_path / "target").read_bytes() == b"theirs"
    assert list(folder.iterdir()) == [path]
    if planted != "folder":
        path.unlink()
        write_bundle(assemble(str(path), files, {}, lambda key: data))
        write_bundle(assemble(str(path), files, {}, lambda key: data))
        assert path.is_file()
