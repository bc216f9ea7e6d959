"""The toolkit's headers are scanned while the compiler runs, once it opens them."""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from numba_kcache.headers.open_watch import OpenWatch
from numba_kcache.headers.scan_beside import ScanBeside
from numba_kcache.headers.tree_scans import TreeScans
from tests.support.compiling import in_python

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="inotify")


def later_ns() -> int:
    """A time so much later that no header counts as young: one that may still change within a tick of the clock."""
    return time.time_ns() + 10**11


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("a.h", "b.h", "cub/c.h"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'#include "{name}x"\n')
    return tmp_path


def scanned_beside(tree: Path, scans: TreeScans, names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Open files of a tree as a compiler would, and wait until the thread has scanned each."""
    looked, look = threading.Semaphore(0), TreeScans.look

    def told(self: TreeScans, *where: object) -> object:
        try:
            return look(self, *where)  # type: ignore[arg-type]
        finally:
            looked.release()

    monkeypatch.setattr(TreeScans, "look", told)
    with closing(OpenWatch((), [str(tree)])) as watch:
        with closing(ScanBeside(watch, {str(tree): scans}, [str(tree)], later_ns())):
            for name in names:
                (tree / name).read_bytes()
                assert looked.acquire(timeout=20)
        watch.stop()
        assert not watch.is_unopened(str(tree / names[0]))
    monkeypatch.undo()


def test_opened_headers_are_scanned_and_no_others(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows have paths below the root; a file whose event the scanning thread has read still counts as opened."""
    scans = TreeScans()
    scanned_beside(tree, scans, ["a.h", "cub/c.h"], monkeypatch)

    assert sorted(scans.rows) == ["a.h", "cub/c.h"]
    assert [each.name for each in scans.rows["a.h"].scan.includes] == ["a.hx"]


def test_header_that_changes_after_its_scan_is_read_again(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row is valid only for the stat that the header had when it was scanned."""
    scans = TreeScans()
    scanned_beside(tree, scans, ["a.h"], monkeypatch)
    (tree / "a.h").write_text('#include "other.h"\n')

    row = scans.look("a.h", str(tree / "a.h"), later_ns())

    assert [each.name for each in row.scan.includes] == ["other.h"]


def test_nothing_opened_ends_at_once(tree: Path) -> None:
    """A compile that opens no header, or fails, leaves neither a thread nor a descriptor."""
    before, scans = set(os.listdir("/proc/self/fd")), TreeScans()
    watch = OpenWatch((), [str(tree)])
    ScanBeside(watch, {str(tree): scans}, [str(tree)], later_ns()).close()
    os.close(watch.fileno())

    assert not scans.rows
    assert set(os.listdir("/proc/self/fd")) <= before
    assert not any(each.name == "numba_kcache headers" for each in threading.enumerate())


def test_no_descriptor_left_scans_nothing(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program at its limit of open files must not fail here: the caller scans after the compile."""

    def refused() -> tuple[int, int]:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(os, "pipe", refused)
    scans = TreeScans()
    with closing(OpenWatch((), [str(tree)])) as watch:
        with closing(ScanBeside(watch, {str(tree): scans}, [str(tree)], later_ns())):
            (tree / "a.h").read_bytes()

    assert not scans.rows


PROGRAM = """
import threading
from numba_kcache import cached_kernel
from numba_kcache.headers import scanner, tree_scans
scans, scan = [], scanner.scan_includes
tree_scans.scan_includes = lambda data: scans.append(threading.current_thread().name) or scan(data)
source = '#include <cuda_fp16.h>\\nextern "C" __global__ void k(__half *x) { *x = __float2half(1.0f); }'
for define in ("A", "B"):
    cached_kernel(source, arch="sm_90", defines={define: "1"}).compile()
    print(*scans)
    scans.clear()
"""


@pytest.mark.slow
def test_first_compile_with_fp16_scans_its_header_beside_the_compiler(tmp_path: Path) -> None:
    """The second compile finds the scans in the cache, and starts no thread. Four caches are tried, since a busy
    machine may run the thread too late."""
    pairs = (in_python(PROGRAM, NUMBA_KCACHE_DIR=str(tmp_path / f"{each}")).splitlines() for each in range(4))

    assert next(first for first, second in pairs if not second and "numba_kcache headers" in first)
