"""Machines without a place for a cache: launches go on, and what should have been stored for later is an error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from numba_kcache import KCacheWarning, KernelCache, cached_kernel
from numba_kcache.errors import KCacheError
from tests.support.compiling import EMPTY, ROOT, SAXPY
from tests.support.fake_driver import build, environment, needs_fake_driver
from tests.support.programs import program
from tests.support.stores import file_of, open_store

MODULE = f"""
from numba_kcache import cached_kernel
kernel = cached_kernel({EMPTY!r}, arch="sm_90")
"""

NOWHERE = """
import os, sys
for name in ("HOME", "XDG_CACHE_HOME", "TMPDIR", "TEMP", "TMP"):
    os.environ.pop(name, None)
import pwd, tempfile
def nobody(uid): raise KeyError(uid)
pwd.getpwuid = nobody
def no_folder(): raise FileNotFoundError(2, "No usable temporary directory found")
tempfile.gettempdir = no_folder
"""
"""A read-only container: no home, nobody in the password file, no folder for temporary files."""

CLOSED = """
for fd in (0, 1, 2):
    os.close(fd)
sys.stdin = sys.stdout = sys.stderr = None
"""

LAUNCH = """
import json, warnings
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    from cuda.bindings import driver
    from numba_kcache import KCacheWarning, cached_kernel, info
    driver.cuInit(0)
    _, context = driver.cuDevicePrimaryCtxRetain(0)
    driver.cuCtxSetCurrent(context)
    kernel = cached_kernel(sys.argv[2])
    for _ in range(3):
        kernel[1, 32]()
    counts = info("process")
said = [str(each.message) for each in said if issubclass(each.category, KCacheWarning)]
with open(sys.argv[1], "w") as file:
    json.dump([counts.compiles, counts.directory, said], file)
"""


def launched(tmp_path: Path, code: str, **variables: str) -> tuple[int, str, list[str]]:
    """Compiles, directory and warnings of a program that launches a kernel on the tests' driver."""
    plain = {name: value for name, value in environment(build()).items() if not name.startswith("NUMBA_KCACHE_")}
    command = [sys.executable, "-c", code, str(tmp_path / "out"), EMPTY]
    done = subprocess.run(command, env={**plain, **variables}, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    compiles, directory, said = json.loads((tmp_path / "out").read_text())
    return compiles, directory, said


@needs_fake_driver
@pytest.mark.slow
@pytest.mark.parametrize("closed", ["", CLOSED])
def test_launch_without_any_place_works_from_memory_with_one_warning(tmp_path: Path, closed: str) -> None:
    """The warning names the setting; closed standard streams make no difference."""
    compiles, directory, said = launched(tmp_path, NOWHERE + closed + LAUNCH)

    assert (compiles, directory) == (1, "")
    assert len(said) == 1, said
    assert "memory only" in said[0]
    for part in ("no home directory", "NUMBA_KCACHE_DIR"):
        assert part in said[0]


@needs_fake_driver
@pytest.mark.slow
def test_launch_goes_on_where_the_directory_cannot_be_used(tmp_path: Path) -> None:
    """One warning, which names the directory and the reason."""
    compiles, directory, said = launched(tmp_path, "import os, sys\n" + LAUNCH, NUMBA_KCACHE_DIR="/proc/no/such/place")

    assert (compiles, directory) == (1, "/proc/no/such/place")
    assert len(said) == 1, said
    for part in ("/proc/no/such/place", "No such file"):
        assert part in said[0]


# What is for later


@pytest.fixture
def module(tmp_path: Path) -> Path:
    """A module with one kernel."""
    path = tmp_path / "shapes.py"
    path.write_text(MODULE)
    return path


def shell(directory: str, *words: str, code: str = "import os, sys") -> subprocess.CompletedProcess[str]:
    """One command line in a process of its own."""
    code += "\nfrom numba_kcache.cli import main\nsys.exit(main(sys.argv[1:]))"
    plain = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_KCACHE_")}
    variables = {"PYTHONPATH": str(ROOT), **({"NUMBA_KCACHE_DIR": directory} if directory else {})}
    command = [sys.executable, "-W", "ignore", "-c", code, *words]
    return subprocess.run(command, env={**plain, **variables}, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle with one entry."""
    cache = KernelCache(tmp_path / "full", durability="none")
    cached_kernel(EMPTY, arch="sm_90", cache=cache).compile()
    cache.export_bundle(tmp_path / "one.kcache")
    return tmp_path / "one.kcache"


@pytest.mark.slow
def test_what_stores_for_later_fails_where_the_directory_cannot_be_used(
    tmp_path: Path, module: Path, bundle: Path
) -> None:
    """`warm`, `import` and `pull` end with 1 and say why; `list` and `info` say it and end with 0."""
    bad = "/proc/no/such/place"
    for words in (["warm", str(module)], ["import", str(bundle)], ["pull", str(tmp_path / "full")]):
        done = shell(bad, *words)
        assert done.returncode == 1, (words, done)
        assert f"{bad} cannot be used" in done.stdout + done.stderr
    for verb in ("list", "info"):
        done = shell(bad, verb)
        assert done.returncode == 0
        assert "cannot be used" in done.stdout
    assert shell(bad, "doctor").returncode == 1


@pytest.mark.slow
def test_what_stores_for_later_fails_where_there_is_memory_only(tmp_path: Path, module: Path, bundle: Path) -> None:
    """Without a configured or default directory, stored entries would be lost at the end of the command, so it
    fails."""
    for words in (["warm", str(module)], ["import", str(bundle)], ["pull", str(tmp_path / "full")]):
        done = shell("", *words, code=NOWHERE)
        assert done.returncode == 1, (words, done)
        assert "memory of this process alone" in done.stderr
    assert "in memory" in shell("", "list", code=NOWHERE).stdout


@pytest.mark.slow
def test_warm_without_standard_streams_stores(tmp_path: Path, module: Path) -> None:
    """Under a daemon with closed standard streams, files do not take descriptors 0 to 2, and workers get their
    streams."""
    done = shell(str(tmp_path / "cache"), "warm", str(module), code=f"import os, sys\n{CLOSED}")

    assert done.returncode == 0, done
    assert open_store(tmp_path / "cache").size().entries == 1


def test_compile_and_warm_up_raise_where_the_directory_cannot_be_used(tmp_path: Path) -> None:
    """Import and pull raise too; launches, and calls that only need the code, work."""
    (tmp_path / "file").write_bytes(b"")
    cache = KernelCache(tmp_path / "file", durability="none")
    kernel = cached_kernel(EMPTY, arch="sm_90", cache=cache)
    with pytest.warns(KCacheWarning, match="cannot use"):
        assert kernel.cubin()
    full = KernelCache(tmp_path / "full", durability="none")
    cached_kernel(SAXPY, arch="sm_90", cache=full).compile()
    full.export_bundle(tmp_path / "one.kcache")

    for work in (
        kernel.compile,
        lambda: cache.warm_up(kernel, progress=False),
        lambda: cache.import_bundle(tmp_path / "one.kcache"),
        lambda: cache.pull(str(tmp_path / "full")),
    ):
        with pytest.raises(KCacheError, match="cannot be used"):
            work()
    assert "cannot be used" in str(cache.info())
    assert cache.info().obstacle


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_readonly_directory_that_holds_the_kernel_is_enough(tmp_path: Path) -> None:
    """An image's cache: `.compile()` and `warm_up` of what is there succeed, of what is not they fail."""
    cache = KernelCache(tmp_path / "cache", durability="none")
    cached_kernel(EMPTY, arch="sm_90", cache=cache).compile()
    point = tmp_path / "mounted"
    point.mkdir()
    for words in (["--bind", str(tmp_path / "cache"), str(point)], ["-o", "remount,bind,ro", str(point)]):
        if subprocess.run([program("mount"), *words], capture_output=True, check=False).returncode:
            pytest.skip("cannot mount here")
    try:
        image = KernelCache(point)
        there = cached_kernel(EMPTY, arch="sm_90", cache=image)
        there.compile()
        assert image.warm_up(there, progress=False).hit
        with pytest.warns(KCacheWarning, match="cannot use"), pytest.raises(KCacheError, match="cannot be used"):
            cached_kernel(SAXPY, arch="sm_90", cache=image).compile()
        there.compile()
    finally:
        subprocess.run([program("umount"), "-l", str(point)], check=True)
    assert file_of(open_store(tmp_path / "cache"), there.key()).exists()
