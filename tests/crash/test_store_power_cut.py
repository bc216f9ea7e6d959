"""The plug is pulled: on a real filesystem, by the ioctl that shuts it down without writing its journal.

SIGKILL cannot show what a missing sync does, because the page cache outlives the process. Needs root, a loop
device and mkfs; skipped with the reason where one of them is missing.
`NUMBA_KCACHE_TEST_CUTS=100` cuts as often as it should be done once before a release.
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from numba_kcache import KernelCache, cached_kernel
from numba_kcache.model import EventKind
from tests.support.programs import program
from tests.support.stores import Events, entry_of, in_child, key_of, open_store, small_entry

GOING_DOWN = 0x8004587D  # _IOR('X', 125, __u32): the same for ext4 and XFS
WITHOUT_JOURNAL = 2
PUTS = 100
CUTS = int(os.environ.get("NUMBA_KCACHE_TEST_CUTS", "1"))


class Disk:
    """A filesystem in a file, mounted by loop."""

    def __init__(self, image: Path, point: Path) -> None:
        self.image, self.point = image, point

    def mount(self) -> None:
        """Mount, replaying the journal."""
        done = subprocess.run(
            [program("mount"), "-o", "loop", str(self.image), str(self.point)], capture_output=True, text=True
        )
        if done.returncode:
            pytest.skip(f"cannot mount a loop device here: {done.stderr.strip()}")

    def unmount(self) -> None:
        """Unmount, for which nobody may have a file open."""
        subprocess.run([program("umount"), str(self.point)], check=True, capture_output=True)

    def cut(self) -> None:
        """Pull the plug and start again."""
        fd = os.open(self.point, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, GOING_DOWN, struct.pack("I", WITHOUT_JOURNAL))
        except OSError as error:
            pytest.skip(f"this filesystem cannot be shut down: {error}")
        finally:
            os.close(fd)
        self.unmount()
        self.mount()


@pytest.fixture(params=["ext4", "xfs"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    """A fresh filesystem."""
    kind = request.param
    if os.geteuid() != 0:
        pytest.skip("only root can mount")
    make = program(f"mkfs.{kind}")
    image, point = tmp_path / "image", tmp_path / "mnt"
    point.mkdir()
    with image.open("wb") as file:
        file.truncate(320 << 20 if kind == "xfs" else 64 << 20)
    subprocess.run([make, "-q", str(image)], check=True, capture_output=True)
    made = Disk(image, point)
    made.mount()
    yield made
    while subprocess.run([program("umount"), "-l", str(point)], capture_output=True).returncode == 0:
        pass  # os.path.ismount cannot decide it: stat fails while the filesystem is down


def read_after_cut(disk: Disk, durability: str) -> tuple[int, int]:
    """Put, pull the plug, read: how many are there, and how many were damaged."""
    store = open_store(disk.point / "cache", durability=durability)
    store.clear()
    for number in range(PUTS):
        assert store.put(entry_of(number, 5000))
    store.writer.limits.wait()
    store.tree.forget()  # a process that dies with its machine has no folder open
    disk.cut()

    events = Events()
    again = open_store(disk.point / "cache", emit=events)
    found = [again.get(key_of(number)) for number in range(PUTS)]
    for number, entry in enumerate(found):
        assert entry is None or entry == entry_of(number, 5000)
    assert again.put(small_entry(PUTS))
    assert again.get(key_of(PUTS)) == small_entry(PUTS)
    again.tree.forget()
    return sum(entry is not None for entry in found), len(events.of(EventKind.DAMAGED))


@pytest.mark.slow
def test_synced_entries_survive_a_power_cut(disk: Disk) -> None:
    """With `data` no entry is ever damaged, and all but the last few have their names."""
    for _ in range(CUTS):
        there, damaged = read_after_cut(disk, "data")

        assert damaged == 0
        assert there >= PUTS - 2


@pytest.mark.slow
def test_no_entry_is_lost_with_full_durability(disk: Disk) -> None:
    """With `full` every entry whose put returned is present."""
    for _ in range(CUTS):
        assert read_after_cut(disk, "full") == (PUTS, 0)


@pytest.mark.slow
def test_unsynced_entries_are_never_wrong(disk: Disk) -> None:
    """With `none` they may be gone or empty, and then they are misses; this is what a sync is for."""
    there, _ = read_after_cut(disk, "none")

    assert there < PUTS


def _swapped(path: Path, others: list[Path]) -> bytes:
    return others[(others.index(path) + 1) % len(others)].read_bytes()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:a damaged cache entry")
@pytest.mark.parametrize(
    "left",
    [
        lambda path, others: b"",
        lambda path, others: path.read_bytes()[:-1],
        lambda path, others: path.read_bytes()[: path.stat().st_size // 2],
        lambda path, others: b"\0" * path.stat().st_size,
        lambda path, others: path.read_bytes()[:512].ljust(path.stat().st_size, b"\0"),
        _swapped,
    ],
    ids=["empty", "cut by a byte", "cut by half", "zeros", "zeros behind a block", "bytes of another file"],
)
def test_what_a_cut_leaves_of_unsynced_files_is_a_miss_that_heals(
    tmp_path: Path, left: Callable[[Path, list[Path]], bytes]
) -> None:
    """Entry, manifest, history and records of a kernel with headers, all damaged at once: one compile, then hits."""
    (tmp_path / "twice.h").write_text("__device__ inline float twice(float x) { return 2 * x; }\n")
    source = '#include "twice.h"\nextern "C" __global__ void k(float *x) { *x = twice(*x); }'

    def compiled() -> tuple[int, bytes]:
        cache = KernelCache(tmp_path / "cache")
        kernel = cached_kernel(source, arch="sm_90", cache=cache, include_dirs=[str(tmp_path)])
        kernel.compile()
        return cache.info("process").compiles, bytes(kernel.cubin())

    first = compiled()
    files = [each for each in sorted((tmp_path / "cache" / "v1").rglob("*")) if len(each.name) == 62 and each.is_file()]
    remains = {path: left(path, files) for path in files}
    for path, data in remains.items():
        path.write_bytes(data)

    assert len(files) >= 4
    assert first[0] == 1
    assert compiled() == first
    assert compiled() == (0, first[1])


@pytest.mark.slow
def test_shut_down_filesystem_is_a_miss(disk: Disk) -> None:
    """Every call fails with EIO while it is down; nothing raises."""
    store = open_store(disk.point / "cache")
    store.put(small_entry(1))
    fd = os.open(disk.point, os.O_RDONLY)
    fcntl.ioctl(fd, GOING_DOWN, struct.pack("I", WITHOUT_JOURNAL))
    os.close(fd)

    def work() -> None:
        events = Events()
        down = open_store(disk.point / "cache", emit=events)
        assert down.get(key_of(2)) is None
        assert not store.put(small_entry(2))
        assert store.get_manifest(key_of(1)) == []

    assert in_child(work) == 0
