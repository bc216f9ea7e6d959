"""Kernels that were warmed without a GPU, moved, and run here: right results, nothing compiled."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from numba_kcache import FrozenCacheError, KernelCache, cached_kernel, warm_up
from tests.support.compiling import in_python

pytestmark = pytest.mark.gpu

TARGETS = ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"]

PROGRAM = """
from numba_kcache import cached_kernel

@cached_kernel(include_dirs=["include"])
def scale() -> str:
    return '#include "factor.h"\\nextern "C" __global__ void scale(float *x) { x[threadIdx.x] *= FACTOR; }'

@cached_kernel(signature="void(float32[::1], float32)")
def shift(x, by):
    i = cuda.threadIdx.x
    x[i] += by

from numba import cuda
"""

WARM = """
import sys, numba_kcache
numba_kcache.warm_up(sys.argv[1], sys.argv[3:], progress=False)
numba_kcache.export_bundle(sys.argv[2])
"""

RUN = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import numba_kcache
from numba import cuda
from numba_kcache.toolchain import Toolchain
found = Toolchain.identify
def of_another_patch(self, libraries, distributions, *, looks=True):
    here = found(self, libraries, distributions, looks=looks)
    return here and ({name: f"{build}-another patch" for name, build in here[0].items()}, here[1])
Toolchain.identify = of_another_patch
if sys.argv[2:]:
    numba_kcache.register_bundle(sys.argv[2])
import program
x = cuda.to_device(np.arange(32, dtype=np.float32))
program.scale[1, 32](x)
program.shift[1, 32](x, np.float32(0.5))
assert np.array_equal(x.copy_to_host(), np.arange(32, dtype=np.float32) * 3 + np.float32(0.5))
info = numba_kcache.info("process")
print(info.compiles, info.misses, info.hits)
"""


@pytest.fixture(scope="module")
def warmed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with its cache and bundle, made by a process that sees no device."""
    folder = tmp_path_factory.mktemp("warmed")
    project = folder / "project"
    (project / "include").mkdir(parents=True)
    (project / "include" / "factor.h").write_text("#define FACTOR 3.0f\n")
    (project / "program.py").write_text(PROGRAM)
    in_python(
        WARM, str(project / "program.py"), str(folder / "all.kcache"), *TARGETS,
        NUMBA_KCACHE_DIR=str(folder / "cache"), CUDA_VISIBLE_DEVICES="",
    )  # fmt: skip
    return folder


@pytest.mark.parametrize("way", ["moved directory", "bundle", "frozen bundle", "image layer"])
def test_warmed_cache_serves_this_device(warmed: Path, tmp_path: Path, way: str) -> None:
    """At another path, in another checkout and with another patch release of NVRTC there are no compiles, and results
    are right."""
    project = shutil.copytree(warmed / "project", tmp_path / "elsewhere" / "checkout")
    given: list[str] = []
    settings: dict[str, Any] = {"NUMBA_KCACHE_DIR": str(tmp_path / "new")}
    if way == "moved directory":
        shutil.copytree(warmed / "cache", tmp_path / "new")
        settings["NUMBA_KCACHE_TOOLCHAIN"] = "any"
    elif way == "image layer":
        settings["NUMBA_KCACHE_TIERS"] = str(shutil.copytree(warmed / "cache", tmp_path / "image"))
    else:
        given.append(str(shutil.copy(warmed / "all.kcache", tmp_path / "moved.kcache")))
    if way == "frozen bundle":
        settings["NUMBA_KCACHE_MODE"] = "frozen"

    assert in_python(RUN, str(project), *given, **settings).split() == ["0", "0", "2"]


@pytest.mark.parametrize("arch", ["compute_75", "sm_80"])
def test_stand_ins_run(tmp_path: Path, arch: str) -> None:
    """The driver compiles stored PTX; code of another major is not served."""
    from numba import cuda

    if arch == "sm_80" and cuda.get_current_device().compute_capability[0] == 8:
        pytest.skip("this device runs code for sm_80")
    builder, user = KernelCache(tmp_path / "1"), KernelCache(tmp_path / "2", mode="frozen")
    source = 'extern "C" __global__ void add(int *x) { atomicAdd(x, 2); }'
    warm_up(cached_kernel(source, cache=builder), arch, progress=False)
    user.register_bundle(builder.export_bundle(tmp_path / "b.kcache").path)
    kernel, x = cached_kernel(source, cache=user), cuda.to_device(np.zeros(1, dtype=np.int32))
    if arch == "sm_80":
        with pytest.raises(FrozenCacheError):
            kernel[1, 1](x)
        return
    kernel[4, 32](x)

    assert x.copy_to_host()[0] == 256
