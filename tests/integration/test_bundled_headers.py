"""Headers that NVRTC 13.3 and later hold themselves serve where no toolkit's are installed."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

from numba_kcache.toolchain import load_compilers
from numba_kcache.toolchain.loaded import called_handle
from tests.support.compiling import in_python

PROGRAM = """
import sys
from numba_kcache import CompileError, KernelCache, cached_kernel
from numba_kcache.toolchain import locating
if sys.argv[2] == "none":
    locating.header_folders = lambda nvrtc: []
cache = KernelCache(sys.argv[1], **({"mode": sys.argv[4]} if sys.argv[4:] else {}))
source = f'#include <{sys.argv[3]}>\\nextern "C" __global__ void k() {{}}'
try:
    cached_kernel(source, arch="sm_90", cache=cache).cubin()
    print(cache.info("process").compiles, cache.info("process").hits)
except CompileError as error:
    print(sys.argv[3] in str(error))
"""


def has_headers() -> bool:
    """Check whether the installed NVRTC holds headers."""
    load_compilers(("nvrtc",))
    return hasattr(ctypes.CDLL("", handle=called_handle("nvrtc")), "nvrtcInstallBundledHeaders")


pytestmark = [pytest.mark.slow, pytest.mark.skipif(not has_headers(), reason="this NVRTC holds no headers")]


def run(root: Path, header: str = "cuda_fp16.h", installed: str = "none", *mode: str) -> str:
    """Compile a kernel with this header in a fresh process, and return what it says."""
    return in_python(PROGRAM, str(root), installed, header, *mode).strip()


def extracted(root: Path) -> list[Path]:
    return [*(root / "headers").iterdir()] if (root / "headers").is_dir() else []


def test_headers_of_nvrtc_are_extracted_once_and_keyed_like_any(tmp_path: Path) -> None:
    """The second process hits; an edit of an extracted header is noticed, and one that was not read is not. What a
    killed process left and the headers of another build are removed, files of others are not."""
    for name in ("new-of-a-killed-process", "0123" * 8, "of-somebody"):
        (tmp_path / "headers" / name).mkdir(parents=True)
        os.utime(tmp_path / "headers" / name, ns=(1, 1))
    assert [run(tmp_path) for _ in range(2)] == ["1 0", "0 1"]
    (tmp_path / "headers/of-somebody").rmdir()
    (folder,) = extracted(tmp_path)
    assert run(tmp_path, "cub/block/block_reduce.cuh") == "1 0"

    with (folder / "cuda_fp8.h").open("a") as file:
        file.write("// edited\n")
    assert run(tmp_path) == "0 1"
    with (folder / "cuda_fp16.h").open("a") as file:
        file.write("// edited\n")
    assert run(tmp_path) == "1 0"
    assert extracted(tmp_path) == [folder]


def test_clear_removes_extracted_headers(tmp_path: Path) -> None:
    """Nothing of a cache stays that a user has cleared, but files of others and what links lead to; the next compile
    extracts the headers again."""
    from numba_kcache import KernelCache

    assert run(tmp_path) == "1 0"
    (folder,) = extracted(tmp_path)
    (tmp_path / "headers/of-somebody").mkdir()
    (tmp_path / "kept/folder").mkdir(parents=True)
    for name in ("new-link", "0123" * 8):
        (tmp_path / "headers" / name).symlink_to(tmp_path / "kept")
    KernelCache(tmp_path).clear()

    assert (tmp_path / "kept/folder").is_dir()
    assert sorted(each.name for each in extracted(tmp_path)) == ["0123" * 8, "new-link", "of-somebody"]
    (tmp_path / "headers" / ("0123" * 8)).unlink()
    assert KernelCache(tmp_path).info().size_bytes == 0
    assert run(tmp_path) == "1 0"
    assert folder in extracted(tmp_path)


def test_headers_that_were_removed_are_extracted_again(tmp_path: Path) -> None:
    """The record of the folder does not outlive the folder."""
    assert run(tmp_path) == "1 0"
    (folder,) = extracted(tmp_path)
    folder.rename(tmp_path / "away")

    assert run(tmp_path, "cuda_bf16.h") == "1 0"
    assert extracted(tmp_path) == [folder]


@pytest.mark.parametrize(
    ("header", "more"), [("cuda_fp16.h", ["some"]), ("missing.h", ["some"]), ("cuda_fp16.h", ["none", "off"])]
)
def test_nothing_is_extracted_that_is_not_needed_or_cannot_be_kept(
    tmp_path: Path, header: str, more: list[str]
) -> None:
    """Nothing is written where the toolkit's headers are installed, nor with mode="off"."""
    said = run(tmp_path, header, *more)

    assert extracted(tmp_path) == []
    assert said == ("1 0" if (header, more) == ("cuda_fp16.h", ["some"]) else "True")
