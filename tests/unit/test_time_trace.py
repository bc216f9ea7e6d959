"""The trace of a compile: written where it cannot fail, and leaving nothing behind in NVRTC."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest

from numba_kcache import CompileError, KernelCache, cached_kernel
from numba_kcache.toolchain.nvrtc import nvrtc_version, run_nvrtc
from numba_kcache.toolchain.time_trace import time_trace

SOURCE = 'extern "C" __global__ void k(float *x) { *x = 1; }'
FLAGS = ["-arch=sm_90"]


def test_trace_is_a_file_in_memory_that_names_the_headers(tmp_path: Path) -> None:
    """Nothing of it is on disk when the block is left."""
    (tmp_path / "one.h").write_text("#define ONE 1\n")
    with time_trace(nvrtc_version()) as trace:
        assert trace is not None
        trace.clear()
        assert run_nvrtc('#include "one.h"\n' + SOURCE, "k.cu", [*FLAGS, f"-I{tmp_path}", trace.flag], ()).ok
        events = json.loads(trace.read())["traceEvents"]
        folder = Path(trace.flag.partition("=")[2]).parent

    assert any(str(tmp_path / "one.h") == each.get("args", {}).get("detail") for each in events)
    assert not folder.exists()


def test_nvrtc_12_gets_no_trace() -> None:
    """It lists no headers, or fails the compile."""
    with time_trace((12, 9)) as trace:
        assert trace is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "source", ['#include "missing.h"\n', '#include "k.h"\nint broken(', '#include "k.h"\n#error no\n']
)
def test_failed_compile_leaves_no_trace_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    """NVRTC would write `.json` into the working directory at the next compile of the thread."""
    (tmp_path / "k.h").write_text("")
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    kernel = cached_kernel(source + SOURCE, arch="sm_90", include_dirs=[tmp_path], cache=KernelCache(tmp_path / "c"))
    with pytest.raises(CompileError):
        kernel.compile()

    assert run_nvrtc(SOURCE, "k.cu", FLAGS, ()).ok
    assert list(work.iterdir()) == []


def no_memory(*_arguments: object, **_options: object) -> int:
    raise OSError(24, "too many open files")


@pytest.mark.parametrize("lacks", ["memfd_create", "mkdtemp", "symlink", "proc", "unicode"])
def test_where_a_trace_cannot_be_written_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    """LLVM would abort the process; the compile goes on, the scanner tells the headers, and nothing is left behind."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if lacks == "proc":  # as where it is not mounted
        monkeypatch.setattr(os, "symlink", lambda _target, link, real=os.symlink: real("/nowhere/fd/9", link))
    elif lacks == "unicode":
        (tmp_path / os.fsdecode(b"\xff")).mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / os.fsdecode(b"\xff")))
    else:
        monkeypatch.setattr(tempfile if lacks == "mkdtemp" else os, lacks, no_memory)

    with time_trace((13, 0)) as trace:
        assert trace is None
    (tmp_path / "k.h").write_text("")
    cache = KernelCache(tmp_path / "cache")
    cached_kernel('#include "k.h"\n' + SOURCE, arch="sm_90", include_dirs=[tmp_path], cache=cache).compile()

    assert cache.info("process").compiles == cache.info().entries == 1
    assert list(tmp_path.rglob("numba_kcache_*")) == []
