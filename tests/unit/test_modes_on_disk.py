"""The effect of each mode on the files of a cache."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from numba_kcache import KCacheWarning, KernelCache, cached_kernel
from numba_kcache.errors import FrozenCacheError
from tests.support.compiling import EMPTY
from tests.support.stores import file_of, open_store

pytestmark = pytest.mark.usefixtures("compiled_once")

OTHER = 'extern "C" __global__ void other(int a) {}'
State = dict[str, tuple[int, int, bytes]]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A cache with one kernel that was last used long ago, so that any use shows; no pass of its limits is due, whose
    thread would make a file for a moment."""
    use(tmp_path / "cache", EMPTY)
    for path in (tmp_path / "cache").rglob("*"):
        if path.name != "evict.lock":
            os.utime(path, (1_700_000_000, 1_700_000_000))
    return tmp_path / "cache"


def use(directory: Path, source: str, **settings: Any) -> str:
    """Resolve a kernel in a new cache object, as another process would; return the key of its entry."""
    cache = KernelCache(directory, durability="none", **settings)
    kernel = cached_kernel(source, arch="sm_90", cache=cache)
    kernel.compile()
    cache.info()
    return kernel.key()


def files(directory: Path, folder: str = "") -> State:
    """Inode, time and bytes of every file, by its path."""
    below = directory / "v1" / folder if folder else directory
    return {
        str(path.relative_to(directory)): (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes())
        for path in below.rglob("*")
        if path.is_file()
    }


def entry_file(directory: Path, key: str) -> Path:
    return file_of(open_store(directory), key)


@pytest.mark.parametrize("mode", ["readonly", "frozen", "off"])
def test_mode_that_does_not_write_leaves_every_byte_and_time(directory: Path, mode: str) -> None:
    """After a hit, a miss and a report, all files have the same bytes, inodes and times, and none is new."""
    before = files(directory)
    use(directory, EMPTY, mode=mode)
    with pytest.raises(FrozenCacheError) if mode == "frozen" else nullcontext():
        use(directory, OTHER, mode=mode)

    assert files(directory) == before


@pytest.mark.parametrize("mode", ["readonly", "frozen"])
def test_mode_that_does_not_write_leaves_damage_where_it_is(directory: Path, mode: str) -> None:
    """A damaged entry is a miss; its file is neither moved nor repaired."""
    path = next(iter((directory / "v1" / "entries").rglob("*/*")))
    path.write_bytes(path.read_bytes()[:-1])
    before = files(directory)
    refused = pytest.raises(FrozenCacheError) if mode == "frozen" else nullcontext()
    with refused, pytest.warns(KCacheWarning, match="damaged"):
        use(directory, EMPTY, mode=mode)

    assert files(directory) == before


@pytest.mark.parametrize("mode", ["readonly", "frozen"])
def test_clear_and_prune_of_a_mode_that_does_not_write_remove_nothing(directory: Path, mode: str) -> None:
    """Both return 0."""
    before = files(directory)
    cache = KernelCache(directory, mode=mode)

    assert (cache.clear(), cache.prune(max_size_bytes=1)) == (0, 0)
    assert files(directory) == before


def test_readwrite_renews_recency_alone(directory: Path) -> None:
    """A hit moves the time of the one file that it read, and changes no byte of any entry."""
    before = files(directory, "entries")
    use(directory, EMPTY)
    after = files(directory, "entries")

    assert {name: (inode, data) for name, (inode, _, data) in after.items()} == {
        name: (inode, data) for name, (inode, _, data) in before.items()
    }
    assert [after[name][1] > before[name][1] for name in after] == [True]


@pytest.mark.parametrize("mode", ["refresh", "verify"])
def test_mode_that_compiles_always_replaces_the_file(directory: Path, mode: str) -> None:
    """The entry's file is replaced by a whole one; no second entry, private file or lock is left."""
    before = files(directory, "entries")
    key = use(directory, EMPTY, mode=mode)
    after = files(directory, "entries")

    assert set(after) == set(before) == {str(entry_file(directory, key).relative_to(directory))}
    assert [after[name][0] != before[name][0] for name in after] == [True]
    assert files(directory, "tmp") == files(directory, "locks") == {}
    assert open_store(directory).verify() == []


@pytest.mark.parametrize("mode", ["refresh", "verify"])
def test_mode_that_compiles_always_heals_a_damaged_file(directory: Path, mode: str) -> None:
    """The look-up before the build finds the damage and reports it once; the compile writes a whole file in its
    place."""
    (path,) = [path for path in (directory / "v1" / "entries").rglob("*") if path.is_file()]
    path.write_bytes(b"")
    with pytest.warns(KCacheWarning, match="damaged"):
        use(directory, EMPTY, mode=mode)

    assert open_store(directory).verify() == []
    assert path.stat().st_size > 0
    use(directory, EMPTY, mode="frozen")


def test_verify_replaces_other_code_by_what_the_compilers_make(directory: Path) -> None:
    """The file that differed is overwritten, so that the next process runs the right code."""
    key = use(directory, EMPTY, mode="frozen")
    store = open_store(directory)
    stored = store.get(key)
    assert stored is not None
    right = stored.payloads["cubin"]
    store.put(type(stored)(key, stored.header, {"cubin": right[:-1] + bytes([right[-1] ^ 1])}))
    with pytest.warns(KCacheWarning, match="is not what the compilers make now"):
        use(directory, EMPTY, mode="verify")

    now = open_store(directory).get(key)
    assert now is not None
    assert now.payloads["cubin"] == right
