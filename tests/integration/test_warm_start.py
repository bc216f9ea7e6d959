"""Files, libraries and driver calls of a warm start, from the import to the first launch, on the fake driver."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import numba_server
from tests.support.fake_driver import build, environment, needs_fake_driver, read_log, run

pytestmark = [needs_fake_driver, pytest.mark.slow]

PROGRAM = """
import json, os, sys, warnings
from pathlib import Path
warnings.simplefilter("ignore")
import numpy as np
{first}
opened = []
sys.addaudithook(lambda name, args: name == "open" and opened.append(str(args[0])))
import numba_kcache
from numba_kcache import cached_kernel

{kernel}

from numba import cuda
from numba.cuda.descriptor import cuda_target
x, y = cuda.to_device(np.ones(64, np.float32)), cuda.to_device(np.ones(64, np.float32))
cuda.synchronize()
before = set(sys.modules)
kernel[2, 32](2.0, x, y)
of_numba = sorted(each for each in set(sys.modules) - before if each.startswith("numba."))
cuda.synchronize()
names = [each for each in opened if len(each) == 62 and not each.strip("0123456789abcdef")]
counted = [path.parts[-3] for each in names for path in Path(os.environ["NUMBA_KCACHE_DIR"]).glob(f"v1/*/*/{{each}}")]
mapped = open("/proc/self/maps").read()
info = numba_kcache.info("process")
print(json.dumps(dict(
    opened=counted, of_numba=of_numba, compiles=info.compiles, hits=info.hits, misses=info.misses,
    contexts=(cuda_target._typingctx, cuda_target._targetctx) != (None, None),
    compilers=[each for each in ("libnvrtc", "libnvvm", "libnvJitLink") if each in mapped],
)))
"""

KERNELS = {
    "CUDA C++": (
        "",
        '''
SOURCE = r"""extern "C" __global__ void kernel(float a, const float *x, float *y) { y[0] = a * x[0]; }"""
@cached_kernel
def kernel():
    return SOURCE
''',
    ),
    "Numba": (
        "from numba import cuda",
        """
FACTOR = 2.0
@cached_kernel
def kernel(a, x, y):
    i = cuda.grid(1)
    if i < y.size:
        y[i] = a * x[0] * FACTOR
""",
    ),
    "Numba, its dispatcher": (
        "from numba import cuda",
        """
@cached_kernel
@cuda.jit(fastmath=True)
def kernel(a, x, y):
    y[0] = a * x[0]
""",
    ),
}

INSTALLED = (
    "from numba import cuda",
    """
numba_kcache.install()
@cuda.jit(cache=True)
def kernel(a, x, y):
    y[0] = a * x[0]
""",
)

TWO_FILES = ["records", "entries"]
"""The kinds of the files of the cache that are opened, in their order."""


def start(folder: Path, kind: str, *, is_cold: bool = False, **settings: str) -> dict[str, Any]:
    """Counts of a process with this kernel, forked from one with Numba if it is to compile, from one that hides it if
    there are settings; the driver's events are in `folder/log`."""
    program = folder / "program.py"
    first, kernel = KERNELS.get(kind, INSTALLED)
    program.write_text(PROGRAM.format(first=first, kernel=kernel))
    (folder / "log").unlink(missing_ok=True)
    environ = environment(build(), log=folder / "log") | {"NUMBA_KCACHE_DIR": str(folder / "cache"), **settings}
    if is_cold or settings:
        said = numba_server.output([str(program)], environ, way="first" if is_cold else "fresh")
    else:
        said = run(program, env=environ).stdout
    counted: dict[str, Any] = json.loads(said)
    return counted


@pytest.mark.parametrize("kind", KERNELS)
def test_warm_start_opens_two_files_and_builds_nothing(tmp_path: Path, kind: str) -> None:
    """The files are the entry, and the record of compilers that the key needs. No compiler library is mapped, and Numba
    imports nothing for the launch and makes no typing or target context: types come from the arguments, the key from
    the function's code."""
    cold = start(tmp_path, kind, is_cold=True)
    assert (cold["compiles"], cold["misses"], cold["hits"]) == (1, 1, 0)
    own = kind == "Numba, its dispatcher"  # what `cuda.jit` itself makes and loads is Numba's

    warm = start(tmp_path, kind)

    by_numba = {"contexts": own, "compilers": ["libnvJitLink"] * own}
    assert warm == {"opened": TWO_FILES, "of_numba": [], "compiles": 0, "hits": 1, "misses": 0, **by_numba}
    calls = [each["event"] for each in read_log(tmp_path / "log", "load", "get_kernel", "launch", "set_attribute")]
    assert calls == ["load", "get_kernel", "launch"], "nor is the driver asked for more than a launch needs"
    assert start(tmp_path, kind, NUMBA_KCACHE_MODE="readonly") == warm, "nor without write access"


def test_installed_cache_opens_two_files_at_a_warm_start(tmp_path: Path) -> None:
    """A kernel with `cache=True` opens the same files as a `cached_kernel`."""
    cold, warm = (start(tmp_path, "installed", is_cold=is_cold) for is_cold in (True, False))

    assert (cold["compiles"], cold["hits"]) == (1, 0)
    assert (warm["opened"], warm["compiles"], warm["hits"], warm["misses"]) == (TWO_FILES, 0, 1, 0)
