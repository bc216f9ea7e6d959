"""NVRTC without the bindings: the same library, and the same answers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from numba_kcache.toolchain import nvrtc
from numba_kcache.toolchain.loaded import mapped_handle
from numba_kcache.toolchain.nvrtc import NvrtcCalls
from tests.support.compiling import in_python

PROGRAMS = {
    "kernel": ('extern "C" __global__ void k(float *x) { *x = 1; }', ["-arch=sm_90"], ()),
    "template": ("template<class T> __global__ void k(T *x) { *x = 1; }", ["-arch=sm_90"], ("k<float>", "k<int>")),
    "bytes": ("// \udcff\n__global__ void k() {}", ["-arch=sm_90"], ()),
    "refused": ("__global__ void k() { nothing(); }", ["-arch=sm_90"], ()),
    "flag": ("__global__ void k() {}", ["-arch=sm_1"], ()),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_answers_are_those_of_the_bindings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code, lowered names and log, byte by byte; of what NVRTC refuses too."""
    source, flags, expressions = PROGRAMS[name]
    given = source, "k.cu", flags, ("cubin", "ptx"), expressions
    ours = pytest.importorskip("cuda.bindings.nvrtc")
    ours.nvrtcVersion()  # maps it
    theirs = nvrtc.run_nvrtc(*given)
    facts = nvrtc.nvrtc_version(), nvrtc.supported_targets()

    monkeypatch.delitem(sys.modules, "cuda.bindings.nvrtc")

    assert nvrtc.run_nvrtc(*given) == theirs
    assert (nvrtc.nvrtc_version(), nvrtc.supported_targets()) == facts
    assert "cuda.bindings.nvrtc" not in sys.modules


def test_status_has_its_name() -> None:
    """Error messages have the same names as the bindings."""
    pytest.importorskip("cuda.bindings.nvrtc").nvrtcVersion()

    calls = NvrtcCalls(mapped_handle("nvrtc"))
    _status, program = calls.nvrtcCreateProgram(b"", b"k.cu", 0, None, None)
    status, _symbol = calls.nvrtcGetLoweredName(program, b"k")
    calls.nvrtcDestroyProgram(program)

    assert status != 0
    assert status.name.startswith("NVRTC_ERROR_")


COMPILES = """
import sys
from numba_kcache import cached_kernel, info
cached_kernel('extern "C" __global__ void k(int *x) { *x = 1; }', arch="sm_90").compile()
print(info("process").compiles, any(name.startswith("cuda.bindings") for name in sys.modules))
import cuda.bindings.nvrtc
from numba_kcache.toolchain.loaded import loaded_library
before = loaded_library("nvrtc")
cuda.bindings.nvrtc.nvrtcVersion()
print(loaded_library("nvrtc") == before)
"""


@pytest.mark.slow
def test_first_compile_imports_no_bindings(tmp_path: Path) -> None:
    """Code that imports the bindings later gets the library that has compiled."""
    said = in_python(COMPILES, NUMBA_KCACHE_DIR=str(tmp_path))

    assert said.split() == ["1", "False", "True"]
