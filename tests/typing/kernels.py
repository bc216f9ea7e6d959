"""Uses of kernels, modules and caches with their types: read by mypy and pyright, never run.

A comment `# E` ends each line that must be an error; all other lines must be none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, assert_type

import numba_kcache
from numba_kcache import Kernel, KernelCache, cached_kernel, cached_module, configure, get_or_compile, warm_up
from numba_kcache.frontends.typed import NumbaKernel, SourceKernel

CUDA = 'extern "C" __global__ void k(float *x) {}'

# -- the right options ------------------------------------------------------------------------------

assert_type(cached_kernel(CUDA), SourceKernel)
assert_type(cached_kernel(CUDA.encode(), kind="cuda"), SourceKernel)
assert_type(cached_kernel(Path("k.cu"), arch="sm_90", std="c++17", defines={"TILE": 32, "FAST": None}), SourceKernel)
cached_kernel(CUDA, arch=(9, 0), include_dirs=["include", Path("more")], options=["--restrict"], opt=3)
cached_kernel(CUDA, arch=["sm_80", "sm_90"], max_registers=64, lineinfo=True, debug=False)
cached_kernel(CUDA, name="k", signature="float*", cache=KernelCache("/tmp/cache", "512MB", mode="frozen"))
cached_kernel(CUDA, cooperative=True, cluster=(2, 1), max_dynamic_shared=65536, carveout=50, strided=True, strict=True)
cached_kernel(CUDA, link=["more.cu"], depends=[Path("table.bin")], keep_ptx=False, lto=True, fastmath=True)
cached_module(CUDA, ["k"], lazy=True, arch="sm_90", fastmath=True)
configure(max_size_bytes="1GB", mode="readonly", directory=Path("/tmp"), tiers=["redis://host"], log_level="off")
KernelCache(max_size_bytes=2**30, build_wait_s=10, trusted_keys={"ci": "AAAA"})
assert_type(get_or_compile(CUDA, "k", arch="sm_90", fastmath=True), Kernel)
warm_up(["package.kernels"], arch=["sm_80", "sm_90"], workers=2, progress=False)


@cached_kernel
def source() -> str:
    return CUDA


@cached_kernel(arch="auto", fastmath=True)
def template(T: str = "float", n: int = 4) -> str:
    return CUDA


@cached_kernel
def numba(x: Any, out: Any) -> None: ...


@cached_kernel(arch="sm_90", fastmath=True, launch_bounds=(128, 2), signature="void(float32[::1])")
def numba_with_options(x: Any, out: Any) -> None: ...


@cached_kernel(arch="auto")
def unannotated():  # type: ignore[no-untyped-def]
    return CUDA


assert_type(source, SourceKernel)
assert_type(template, SourceKernel)
assert_type(numba, NumbaKernel)
assert_type(numba_with_options, NumbaKernel)

# -- what is the same for all arguments, and what depends on their types ------------------------------

assert_type(source.regs_per_thread, int)
assert_type(source.cubin("sm_90"), bytes)
assert_type(source.ptx(), str)
assert_type(numba.regs_per_thread, dict[Any, int])
assert_type(template.instantiate(T="double").key("sm_90"), str)
assert_type(source.occupancy(256, sharedmem=1024), int)
assert_type(source.suggested_block(), int)
assert_type(source.attributes, dict[str, int])
assert_type(source.time(8, (32, 4), None, repeats=3), float)
source[1, 32](None)
source[1, 32](x=None)
source[(1, 1), (32, 1, 1), 0, 1024](None)
numba.forall(100)(None, None)
kernel: Kernel = source
kernel = numba
unannotated[1, 32](None)

# -- the wrong ones -----------------------------------------------------------------------------------

cached_kernel("x", fastmth=True)  # E
cached_kernel(fast_math=True)  # E
cached_kernel(CUDA, fastmath="yes")  # E
cached_kernel(CUDA, opt=4)  # E
cached_kernel(CUDA, std="c++99")  # E
cached_kernel(CUDA, kind="opencl")  # E
cached_kernel(CUDA, defines=["TILE=32"])  # E
cached_kernel(CUDA, arch=90)  # E
cached_kernel(CUDA, cache="/tmp/cache")  # E
cached_kernel(CUDA, launch_bounds=128)  # E
cached_kernel(42)  # E
cached_module(CUDA, name="k")  # E
cached_module(CUDA, fastmth=True)  # E
cached_module(CUDA, signature="float*")  # E
configure(max_size="1GB")  # E
configure(mode="fast")  # E
configure(progress=3.5)  # E
KernelCache(size="1GB")  # E
KernelCache(max_size_bytes=1.5)  # E
get_or_compile(CUDA, fastmth=True)  # E
numba_kcache.get_or_compile(CUDA, 3)  # E
warm_up("package.kernels", archs=["sm_80"])  # E
warm_up("package.kernels", workers="2")  # E
source.cubin("sm_90", signature="float*")  # E
source.compile(90)  # E


@cached_kernel(fastmth=True)  # E
def misspelt() -> str:
    return CUDA


@cached_kernel  # E
def returns_a_number() -> int:
    return 1
