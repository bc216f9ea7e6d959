"""A decorated kernel works while the C library itself fails below the cache's directory, and says so once.

Method      A child per call, under the fake driver and with tests/support/failing_calls.c preloaded: what fails is
            the call of the real process, whichever way Python takes to it. For each error: a store that holds one
            kernel; then, armed, a fresh cache launches that kernel and another one that it must compile and store;
            then, disarmed, the store must heal.
Source      An interrupted call that would be interrupted for ever is repeated by Python for ever (PEP 475), so EINTR
            comes every other time.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.compiling import SAXPY
from tests.support.fake_driver import build, compiler, environment, needs_fake_driver, read_log, run

pytestmark = [needs_fake_driver, pytest.mark.slow]

CALLS = ("open", "read", "write", "fdatasync", "rename", "unlink", "stat", "mkdir")
ERRORS = ("EIO", "ENOSPC", "EDQUOT", "EROFS", "EACCES", "ESTALE", "EINTR", "EMFILE")

CHILD = f"""
import ctypes, errno, json, os, shutil, sys, warnings
base, call, errors = sys.argv[1], int(sys.argv[2]), sys.argv[3].split(",")
from numba_kcache import KernelCache, cached_kernel
from numba_kcache.frontends.source import build
from numba_kcache.store import folders
from tests.support.compiling import run_nvrtc_once
build.run_nvrtc, folders.LOCAL_PARENT = run_nvrtc_once, base
libc = ctypes.CDLL(None)
STORED, NEW = {SAXPY!r}, {SAXPY.replace("saxpy", "other")!r}

def launch(cache):
    for source in (STORED, NEW):
        cached_kernel(source, cache=cache)[1, 32](2.0, None, None, 0)

def make(root):
    os.mkdir(os.path.dirname(root))
    if not os.path.exists(base + "/first"):
        cached_kernel(STORED, cache=KernelCache(base + "/first")).compile("sm_90a")
    shutil.copytree(base + "/first", root)
    os.chmod(root, 0o700)

for name in errors:
    root = f"{{base}}/{{name}}/cache"
    if call != {CALLS.index("mkdir")}:
        make(root)
    cache = KernelCache(root)
    libc.fail_calls(root.encode(), call, getattr(errno, name), 2 if name == "EINTR" else 1)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        launch(cache)
        info = cache.info()
        cache.session.local.writer.limits.wait()
    failed = libc.failed_calls()
    libc.fail_calls(b"", -1, 0, 1)
    again = KernelCache(root)
    launch(again)
    healed = [len(list(again.entries())), len(again.verify())]
    said = [str(each.message) for each in said]
    print(json.dumps([name, failed, said, cache.info("process").errors, healed]), flush=True)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The preloaded library, whose calls fail on demand."""
    source = Path(__file__).parents[1] / "support" / "failing_calls.c"
    made = tmp_path_factory.mktemp("failing") / "failing_calls.so"
    command = [str(compiler()), "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(made), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return made


@pytest.mark.parametrize("call", CALLS)
def test_kernel_works_while_a_call_fails(tmp_path: Path, library: Path, call: str) -> None:
    """Both kernels launch with at most one warning for all failures, and the store is intact afterwards."""
    log = tmp_path / "log"
    env = environment(build(), log=log) | {"LD_PRELOAD": str(library), "NUMBA_KCACHE_DURABILITY": "data"}
    done = run(["-c", CHILD, str(tmp_path), str(CALLS.index(call)), ",".join(ERRORS)], env=env)
    rows = {row[0]: row[1:] for row in map(json.loads, done.stdout.splitlines())}
    launches = read_log(log, "launch")

    assert list(rows) == list(ERRORS)
    assert [each["result"] for each in launches] == [0] * 4 * len(ERRORS)
    assert [each["kernel"] for each in launches] == ["saxpy", "other"] * 2 * len(ERRORS)
    for error, (failed, said, errors, healed) in rows.items():
        is_repeated = error == "EINTR" and call in ("open", "read", "write", "fdatasync")
        is_needless = call == "unlink"  # a lock file that stays is removed later, like that of a process that has ended
        assert failed > 0, error
        assert len(said) == (0 if is_repeated or is_needless else 1), (error, said)
        assert errors >= len(said)
        assert healed == [2, 0], error
