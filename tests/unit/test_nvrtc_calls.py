"""NVRTC without the bindings: the same library, and the same answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from numba_kcache.model.text import encoded
from numba_kcache.toolchain import nvrtc
from tests.support.compiling import in_python

PROGRAMS = {
    "kernel": ('extern "C" __global__ void k(float *x) { *x = 1; }', ["-arch=sm_90"], ()),
    "template": ("template<class T> __global__ void k(T *x) { *x = 1; }", ["-arch=sm_90"], ("k<float>", "k<int>")),
    "bytes": ("// \udcff\n__global__ void k() {}", ["-arch=sm_90"], ()),
    "refused": ("__global__ void k() { nothing(); }", ["-arch=sm_90"], ()),
    "flag": ("__global__ void k() {}", ["-arch=sm_1"], ()),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_answers_are_those_of_the_bindings(name: str) -> None:
    """Code, lowered names and log, byte by byte; of what NVRTC refuses too."""
    source, flags, expressions = PROGRAMS[name]
    theirs = by_bindings(encoded(source), [*flags, "--no-cache", "--modify-stack-limit=false"], expressions)

    found = nvrtc.run_nvrtc(source, "k.cu", flags, ("cubin", "ptx"), expressions)
    assert (found.ok, found.log, found.code, found.lowered) == theirs


def by_bindings(
    source: bytes, flags: Sequence[str], expressions: Sequence[str]
) -> tuple[bool, str, dict[str, bytes], dict[str, str]]:
    """Compile by cuda.bindings: success, log, code, and lowered names."""
    bindings = pytest.importorskip("cuda.bindings.nvrtc")
    _status, program = bindings.nvrtcCreateProgram(source, b"k.cu", 0, None, None)
    for each in expressions:
        bindings.nvrtcAddNameExpression(program, each.encode())
    (status,) = bindings.nvrtcCompileProgram(program, len(flags), [each.encode() for each in flags])

    def fetched(what: str) -> bytes:
        size = getattr(bindings, f"nvrtcGet{what}Size")(program)[1]
        getattr(bindings, f"nvrtcGet{what}")(program, data := bytes(size + 1))
        return data[:size]

    log, code, names = fetched("ProgramLog").rstrip(b"\0").decode().rstrip(), {}, {}
    if status == 0:
        code = {"cubin": fetched("CUBIN"), "ptx": fetched("PTX")}
        names = {each: bindings.nvrtcGetLoweredName(program, each.encode())[1].decode() for each in expressions}
    bindings.nvrtcDestroyProgram(program)
    return status == 0, log or (status.name if status else ""), code, names


def test_facts_are_those_of_the_bindings() -> None:
    """The version, and the targets."""
    bindings = pytest.importorskip("cuda.bindings.nvrtc")

    assert (0, *nvrtc.nvrtc_version()) == bindings.nvrtcVersion()
    assert (0, [*nvrtc.supported_targets()]) == bindings.nvrtcGetSupportedArchs()


def test_status_has_its_name() -> None:
    """Error messages have the same names as the bindings."""
    bindings = pytest.importorskip("cuda.bindings.nvrtc")

    assert [nvrtc.name_of(each) for each in range(12)] == [bindings.nvrtcResult(each).name for each in range(12)]


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


SWITCHES = """
import ctypes, sys, types
from numba_kcache import UncacheableError, cached_kernel
from numba_kcache.toolchain import loaded, nvrtc
before = nvrtc.nvrtc_version(), loaded.loaded_library("nvrtc")
bindings = types.ModuleType("cuda.bindings._internal.nvrtc")  # they found another library, which was mapped later
bindings._inspect_function_pointer = lambda name: ctypes.cast(ctypes.CDLL(None).strlen, ctypes.c_void_p).value
sys.modules[bindings.__name__] = bindings
print((nvrtc.nvrtc_version(), loaded.loaded_library("nvrtc")) == before)
for text in "#include <cuda_fp16.h>", "":
    try:
        cached_kernel(text + '\\nextern "C" __global__ void k(int *x) { *x = 1; }', arch="sm_90").compile()
    except UncacheableError as error:
        print("two NVRTCs" in str(error))
"""


def test_library_that_was_called_stays_the_called_one(tmp_path: Path) -> None:
    """Bindings that find another NVRTC later: a program of the first never reaches it. Whose code it is, and which
    headers it has read, is not certain any more: nothing is stored."""
    said = in_python(SWITCHES, NUMBA_KCACHE_DIR=str(tmp_path))

    assert said.splitlines() == ["True"] * 3
