"""Systems other than Linux: missing features are reported once, and kernels are kept in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from numba_kcache.store import MISSING
from tests.support.compiling import EMPTY, in_python

WITHOUT_POSIX = """
import os, sys
sys.modules["fcntl"] = None
for name in ("O_NOFOLLOW", "O_DIRECTORY", "O_CLOEXEC", "O_NONBLOCK", "fdatasync", "geteuid", "pread",
             "register_at_fork", "memfd_create"):
    delattr(os, name)
"""

ONE_KERNEL_TWICE = """
import warnings
from numba_kcache import cached_kernel, clear, entries, info, prune, verify
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    first, second = (cached_kernel(sys.argv[1], arch="sm_90") for _ in range(2))
    first.compile()
    second.compile()
    assert first.cubin() == second.cubin()
    third = cached_kernel(sys.argv[1] + " ", arch="sm_90")
    third.compile()
counts = info("process")
print(counts.compiles, counts.hits, len(list(entries())), verify(), prune(), clear())
print(*(str(each.message) for each in said), sep="\\n")
"""


@pytest.mark.slow
def test_without_posix_kernels_are_kept_in_memory_with_one_warning(tmp_path: Path) -> None:
    """Without fcntl, O_NOFOLLOW and fork the package imports, compiles, hits, lists and clears, and writes no file."""
    printed = in_python(WITHOUT_POSIX + ONE_KERNEL_TWICE, EMPTY, NUMBA_KCACHE_DIR=str(tmp_path / "cache"))
    counts, *warned = printed.strip().splitlines()

    assert counts == "2 1 2 [] 0 2"
    assert len(warned) == 1
    assert "no os.O_CLOEXEC on this system: new kernels are kept in memory only" in warned[0]
    assert list(tmp_path.iterdir()) == []


EVERY_MODULE = """
import importlib, pkgutil, numba_kcache
for each in pkgutil.walk_packages(numba_kcache.__path__, "numba_kcache."):
    if not each.name.endswith("__main__"):
        importlib.import_module(each.name)
"""


@pytest.mark.slow
def test_every_module_can_be_imported_without_posix() -> None:
    """Each module can be the first that a program imports, without fcntl, pwd and resource."""
    in_python(WITHOUT_POSIX + EVERY_MODULE)


STORE_AND_READ = """
from numba_kcache.store.disk import DiskStore
from tests.support.stores import entry_of, key_of
for durability in ("data", "full"):
    store = DiskStore(sys.argv[1] + durability, durability=durability)
    with store.building(key_of(1)) as turn:
        assert turn.found is None
        assert store.put(entry_of(1))
    assert DiskStore(sys.argv[1] + durability).get(key_of(1)) == entry_of(1)
    store.counters.add({"hits": 1})
    assert store.counters.read() == {"hits": 1}
    assert store.prune(max_size_bytes=1).entries == 1
"""


@pytest.mark.parametrize("lacks", ["del os.fdatasync", "sys.modules['fcntl'] = None"])
def test_store_keeps_files_without_a_linux_call(tmp_path: Path, lacks: str) -> None:
    """macOS has fsync in place of fdatasync; without fcntl only the locks are missing."""
    in_python(f"import os, sys\n{lacks}\n{STORE_AND_READ}", str(tmp_path / "cache"))


def test_this_system_lacks_nothing() -> None:
    """On Linux kernels are stored in files."""
    assert MISSING == ""
