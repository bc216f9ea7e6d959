"""Hints for a missing header or name: what to write or to install."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from numba_kcache import CompileError, KernelCache, cached_kernel
from numba_kcache.frontends.source.refusals import hint_of

KERNEL = 'extern "C" __global__ void k(int *x) { *x = 1; }'
CU13, CU12 = "/env/nvidia/cu13/include", "/env/nvidia/cuda_runtime/include"


def refused(folder: Path, source: str, **options: object) -> CompileError:
    kernel = cached_kernel(source, name="k", arch="sm_90", cache=KernelCache(folder / "cache"), **options)  # type: ignore[call-overload]
    with pytest.raises(CompileError) as caught:
        kernel.compile()
    return caught.value


def log_of(name: str, asker: str = "k.cu", quotes: str = "<>") -> str:
    return (
        f'{asker}(1): catastrophic error: cannot open source file "{name}"\n'
        f"  #include {quotes[0]}{name}{quotes[-1]}\n           ^\n\n1 catastrophic error"
    )


@pytest.mark.slow
def test_standard_header_is_answered_by_the_one_that_works(tmp_path: Path) -> None:
    """The header in the hint is found without an option, and compiles."""
    works = {
        "cstdint": "cuda/std/cstdint",
        "stdint.h": "cuda/std/cstdint",
        "type_traits": "cuda/std/type_traits",
        "limits": "cuda/std/limits",
        "limits.h": "cuda/std/climits",
        "math.h": "cuda/std/cmath",
        "float.h": "cuda/std/cfloat",
        "complex": "cuda/std/complex",
        "assert.h": "cuda/std/cassert",
    }
    for header, other in works.items():
        assert f"#include <{other}>" in refused(tmp_path, f"#include <{header}>\n{KERNEL}").hint

    named = "".join(f"#include <{each}>\n" for each in works.values())
    cached_kernel(f"{named}{KERNEL}", arch="sm_90", cache=KernelCache(tmp_path / "cache")).compile()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("texture<float, 2> t;", "cudaTextureObject_t"),
        ("texture<float, cudaTextureType1D, cudaReadModeElementType> t;", "cudaTextureObject_t"),
        ('extern "C" __global__ void j({{ type }} *x) {}', "{{ type }} is of a template"),
        ('extern "C" __global__ void j($REAL *x) {}', "$REAL is of a template"),
        ('extern "C" __global__ void j(${dtype} *x) {}', "${dtype} is of a template"),
        ('extern "C" __global__ void j(%(type)s *x) {}', "%(type)s is of a template"),
        ('extern "C" __global__ void j({dtype} *x) {}', "{dtype} is of a template"),
        ("#include <pycuda-complex.hpp>", "cuda::std::complex<float>"),
        ("int j[] = {nope};", "__device__ or __constant__ before the variable"),
        ("__constant__ int j[1][1] = {{1}, {nope}};", "correct the line"),
    ],
)
def test_line_of_another_library_is_answered(tmp_path: Path, line: str, hint: str) -> None:
    """An old construct, or a template of text that nobody rendered; other mistakes keep their hint."""
    assert hint in refused(tmp_path, f"{line}\n{KERNEL}").hint


def test_headers_of_cupy_are_found_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not imported; an edited header is a miss. Elsewhere the hint names the package."""
    folder = tmp_path / "cupy/_core/include/cupy"
    source = f"#include <cupy/complex.cuh>\n{KERNEL.replace('1', 'ONE')}"
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert "cupy-cuda13x" in refused(tmp_path, source).hint
    monkeypatch.delitem(sys.modules, "cupy")
    folder.mkdir(parents=True)
    (tmp_path / "cupy/__init__.py").write_text("raise RuntimeError")
    monkeypatch.syspath_prepend(tmp_path)
    keys = []
    for value in (1, 2):
        (folder / "complex.cuh").write_text(f"#define ONE {value}\n")
        kernel = cached_kernel(source, "k", arch="sm_90", cache=KernelCache(tmp_path / "cache"))
        kernel.compile()
        keys.append(kernel.explain().key)

    assert keys[0] != keys[1]


@pytest.mark.parametrize(
    ("header", "word"),
    [("stdio.h", "printf"), ("cstdio", "printf"), ("stdbool.h", "bool"), ("iostream", "host"), ("vector", "host"),
     ("unistd.h", "host"), ("cublas_v2.h", "host")],
)  # fmt: skip
def test_header_of_the_host_is_to_be_left_out(tmp_path: Path, header: str, word: str) -> None:
    """Its names are built in, or are not for device code."""
    hint = hint_of(log_of(header), [], [cccl(tmp_path)])

    assert hint.startswith("leave the line out")
    assert word in hint


def cccl(folder: Path) -> str:
    """A toolkit's folder with the part of CCCL that is looked for."""
    (folder / "cuda" / "std").mkdir(parents=True)
    (folder / "cuda" / "std" / "cstdint").write_text("")
    return str(folder)


@pytest.mark.parametrize(
    ("header", "package", "package_12"),
    [
        ("crt/mma.h", "nvidia-cuda-crt", "nvidia-cuda-nvcc-cu12"),
        ("curand_kernel.h", "nvidia-curand", "nvidia-curand-cu12"),
        ("cub/cub.cuh", "nvidia-cuda-cccl", "nvidia-cuda-cccl-cu12"),
        ("cuda/std/cstdint", "nvidia-cuda-cccl", "nvidia-cuda-cccl-cu12"),
        ("cuda_fp16.h", "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12"),
        ("cstdint", "nvidia-cuda-cccl", "nvidia-cuda-cccl-cu12"),
    ],
)
def test_header_of_nvidia_is_answered_by_its_package(header: str, package: str, package_12: str) -> None:
    """The hint names the package for the CUDA version whose headers are installed."""
    assert hint_of(log_of(header), [], [CU13]).partition(",")[0] == f"pip install {package}"
    assert hint_of(log_of(header), [], [CU12]).partition(",")[0] == f"pip install {package_12}"


def test_own_header_is_answered_by_where_it_was_looked_for(tmp_path: Path) -> None:
    """The hint lists the folder of the kernel's file and those of `include_dirs`, and marks a missing folder."""
    (tmp_path / "inc").mkdir()
    error = refused(tmp_path, f'#include "mine.h"\n{KERNEL}', include_dirs=[tmp_path / "inc", tmp_path / "no"])

    assert "include_dirs=" in error.hint
    for folder in (Path(__file__).parent, tmp_path / "inc", f"{tmp_path}/no (there is no such folder)"):
        assert str(folder) in error.hint


def test_header_in_quotes_is_looked_for_beside_the_one_that_asks() -> None:
    """The includer's folder is listed first; for angle brackets it is not searched."""
    assert "in /lib/deep, /own and" in hint_of(log_of("x.h", "/lib/deep/a.h", '""'), ["/own"], [CU13]).replace(
        " (there is no such folder)", ""
    )
    assert "/lib/deep" not in hint_of(log_of("x.h", "/lib/deep/a.h"), ["/own"], [CU13])


@pytest.mark.parametrize(
    ("statement", "hint"),
    [
        ("uint32_t y = 1;", "#include <cuda/std/cstdint>"),
        ("int y = INT_MAX;", "#include <cuda/std/climits>"),
        ("float y = INFINITY;", "#include <cuda/std/cmath>"),
        ("std::size_t y = 1;", "cuda::std::size_t"),
    ],
)
def test_name_of_a_header_is_answered_by_that(tmp_path: Path, statement: str, hint: str) -> None:
    """For a name that host compilers know without an include, the hint names the header."""
    assert hint in refused(tmp_path, KERNEL.replace("*x = 1;", statement)).hint


@pytest.mark.slow
def test_thrust_is_answered_by_what_compiles(tmp_path: Path) -> None:
    """`thrust/complex.h` needs nvcc; the hint names a header that NVRTC compiles."""
    assert "cuda/std/complex" in refused(tmp_path, f"#include <thrust/complex.h>\n{KERNEL}").hint


def test_other_errors_have_no_hint() -> None:
    """A syntax error has nothing to do with headers."""
    assert hint_of('k.cu(1): error: expected a ";"\n  x\n   ^\n', ["/own"], [CU13]) == ""


UNDECLARED = [
    ("half *p", "<cuda_fp16.h>"), ("__half2 *p", "<cuda_fp16.h>"), ("__nv_bfloat16 *p", "<cuda_bf16.h>"),
    ("bfloat16 *p", "__nv_bfloat16 for bfloat16"), ("__nv_fp8_e4m3 *p", "<cuda_fp8.h>"),
    ("int32_t *p", "<cuda/std/cstdint>"), ("uint8 *p", "uint8_t for uint8"), ("cuFloatComplex c", "<cuComplex.h>"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("parameter", "words"), UNDECLARED)
def test_type_without_its_header_is_answered_by_the_header(tmp_path: Path, parameter: str, words: str) -> None:
    """As the type of a parameter, where the compiler's first error is about `__global__`."""
    assert words in refused(tmp_path, f"__global__ void k({parameter}) {{}}").hint


BODIES = [
    ("*x = __half2float(__float2half(1.f));", "<cuda_fp16.h>"), ("*x = M_PI;", "CUDART_PI for M_PI"),
    ("cooperative_groups::this_grid().sync();", "<cooperative_groups.h>"),
    ("cub::BlockReduce<int, 32> r;", "<cub/cub.cuh>"),
    ("std::cout << x;", "printf"), ("complex<float> c;", "cuda::std::complex"), ("cudaMalloc(&x, 4);", "from Python"),
    ("*x = blockidx.x;", "did you mean blockIdx?"), ("*x = __shfl(*x, 0);", "__shfl_sync"),
    ("k<<<1, 1>>>(x);", "from Python"),
    ("int n = 8; __shared__ int s[n]; *x = s[0];", "defines={'N': 1024}"), ('asm("nonsense;");', "asm statement"),
    ("__shared__ int s[100000]; s[threadIdx.x] = *x; __syncthreads(); *x = s[1];", "extern __shared__"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("body", "words"), BODIES)
def test_line_that_device_code_cannot_have_is_answered(tmp_path: Path, body: str, words: str) -> None:
    """The hint names the header or what to write; no hint tells to correct a line that is not shown."""
    assert words in refused(tmp_path, f"__global__ void k(int *x) {{ {body} }}").hint


def test_sizes_are_decimal_numbers(tmp_path: Path) -> None:
    """The assembler writes 0x61a80 bytes."""
    error = refused(tmp_path, "__global__ void k(int *x) { __shared__ int s[100000]; s[*x] = 1; *x = s[1]; }")

    assert "400000 bytes, 49152 max" in error.why


def test_text_that_is_no_kernel_is_answered_by_a_kernel(tmp_path: Path) -> None:
    """A function without `__global__`, or a name, is no kernel: the hint has one."""
    for source in ("void k(int *x) {}", "saxpy"):
        assert "__global__ void name(" in refused(tmp_path, source).hint
