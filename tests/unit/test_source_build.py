"""From a request to an artifact: the effect of options on the code, linking, and the error texts."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from numba_kcache import KernelCache, cached_kernel, cached_module
from numba_kcache.errors import CompileError, KCacheError, LinkError, OptionError
from numba_kcache.frontends.source import build as source_build
from numba_kcache.frontends.source.inputs import read_link_inputs
from numba_kcache.model import LinkInput, Origin
from numba_kcache.model.cubin import is_cubin, read_cubin
from numba_kcache.toolchain import nvrtc
from numba_kcache.toolchain.nvrtc import run_nvrtc
from tests.support.compiling import EMPTY, SAXPY, build, compiled, in_python, request, toolkit_dirs
from tests.support.programs import program

DIVIDE = 'extern "C" __global__ void k(float *x) { x[0] = x[1] / sqrtf(x[2]) + sinf(x[3]); }'
CALLS = 'extern "C" __device__ float twice(float); extern "C" __global__ void k(float *x) { *x = twice(*x); }'
TWICE = 'extern "C" __device__ float twice(float a) { return FACTOR * a; }'
HUNGRY = """
extern "C" __global__ void k(float *x) {
    float a[64];
    for (int i = 0; i < 64; i++) a[i] = x[i];
    for (int r = 0; r < 64; r++) for (int i = 0; i < 64; i++) a[i] = a[i] * a[(i + 7) % 64] + a[(i * 5) % 64];
    for (int i = 0; i < 64; i++) x[i] = a[i];
}"""


def test_artifact_holds_cubin_ptx_entry_and_time() -> None:
    """It has all that a launch, an explanation and the statistics need."""
    artifact = build()
    (entry,) = artifact.kernels

    assert is_cubin(artifact.cubin)
    assert read_cubin(artifact.cubin).sm == 90
    assert artifact.ptx.startswith(b"//")
    assert not artifact.ptx.endswith(b"\0")
    assert (artifact.kind, artifact.target.name, artifact.log, artifact.compile_time_s > 0) == (
        "cuda",
        "sm_90",
        "",
        True,
    )
    assert (entry.name, entry.symbol, entry.typed, entry.registers > 0) == ("saxpy", "saxpy", True, True)
    assert [each.code for each in entry.parameters] == ["f4", "*kf4", "*f4", "i4"]


def test_kernel_chosen_by_its_symbol_has_the_names_of_its_parameters() -> None:
    """Messages name the parameters of a kernel as its text does, however `name=` names the kernel."""
    artifact = build("namespace ns { __global__ void k(float *first, int second) {} }", name="_ZN2ns1kEPfi")

    assert [each.name for each in artifact.kernels[0].parameters] == ["first", "second"]


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_120", "sm_120a"])
def test_target_is_built_exactly(target: str) -> None:
    """The cubin is for exactly the target, suffix included; the driver is never left to compile PTX."""
    artifact = build(EMPTY, target=target, keep_ptx=True)

    assert read_cubin(artifact.cubin).sm == int(target[3:].rstrip("a"))
    assert f".target {target}".encode() in artifact.ptx


# -- options reach the code -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_fastmath_reaches_the_code() -> None:
    """Approximate division and square root, flushed denormals."""
    assert b"div.approx.ftz" in build(DIVIDE, fastmath=True).ptx
    assert b"div.approx" not in build(DIVIDE).ptx
    assert build(DIVIDE).cubin != build(DIVIDE, fastmath=True).cubin


def test_defines_reach_the_code() -> None:
    """Macros may have numbers, text, no value, or parameters."""
    source = """
#ifndef FLAG
#error no flag
#endif
extern "C" __global__ void k(int *x) { x[0] = NUMBER; x[1] = TEXT; x[2] = TWICE(21); }"""
    ptx = build(source, defines={"FLAG": None, "NUMBER": 1234567, "TEXT": "7000 + 77", "TWICE(a)": "(2 * a)"}).ptx

    assert b"1234567" in ptx
    assert b"7077" in ptx
    assert b", 42" in ptx


def test_std_reaches_the_code() -> None:
    """The language standard that was asked for is the one in force."""
    source = 'extern "C" __global__ void k(long *x) { *x = __cplusplus; }'

    assert b"201402" in build(source, std="c++14").ptx
    assert b"202002" in build(source, std="c++20").ptx


def test_max_registers_reaches_the_code() -> None:
    """A kernel that would need more registers keeps to the limit."""
    free = build(HUNGRY).kernels[0]
    held = build(HUNGRY, max_registers=32).kernels[0]

    assert free.registers > 32 >= held.registers
    assert held.local_bytes > 0


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"lto": True}, {"through": "compute_80"}])
def test_every_level_is_linked(how: dict[str, Any]) -> None:
    """nvJitLink itself accepts levels 0 and 3; those between are passed to ptxas."""
    codes = [build(HUNGRY, opt=level, **how).cubin for level in range(4)]

    assert len(set(codes)) > 2
    assert build(HUNGRY, **how).cubin == codes[3]


def test_opt_reaches_the_code() -> None:
    """ptxas makes other code at level 0 than at 3, the default."""
    assert build(SAXPY, opt=0).cubin != build(SAXPY).cubin
    assert build(SAXPY, opt=3).cubin == build(SAXPY).cubin


def test_lineinfo_and_debug_reach_the_code(tmp_path: Path) -> None:
    """Line tables name the user's file and line; without them the source's lines are not in the code."""
    path = tmp_path / "user_kernels.py"
    path.write_text(f"\n\n\nsource = r'''{SAXPY}'''\n")
    origin = Origin(str(path), 1)

    with_lines = build(SAXPY, lineinfo=True, origin=origin)
    assert b"user_kernels.py" in with_lines.cubin
    assert str(path).encode() in with_lines.ptx
    assert b"user_kernels.py" in build(SAXPY, debug=True, origin=origin).cubin
    assert b"user_kernels.py" not in build(SAXPY, origin=origin).cubin
    assert b"kernel.cu" not in build(SAXPY, origin=origin).ptx


def test_line_numbers_are_the_source_s_where_no_line_table_is_wanted(tmp_path: Path) -> None:
    """`__LINE__` is in the code: moving a kernel down in its file must not change it."""
    source = 'extern "C" __global__ void k(int *x) { *x = __LINE__ + 7000; }'
    path = tmp_path / "user.py"
    path.write_text("\n" * 50 + source)

    assert b"7001" in build(source, origin=Origin(str(path), 1)).ptx
    assert b"7051" in build(source, origin=Origin(str(path), 1), lineinfo=True).ptx


def test_debug_reaches_the_code() -> None:
    """Device code with debugging information."""
    assert b".debug_info" in build(SAXPY, debug=True).cubin
    assert b".debug_info" not in build(SAXPY).cubin


def test_flags_reach_the_code_in_order() -> None:
    """Raw flags come after ours, the last one counts."""
    source = 'extern "C" __global__ void k(int *x) { *x = N; }'

    assert b"8888" in build(source, options=["-DN=7777", "-UN", "-DN=8888"], opt=3).ptx


def test_include_folders_reach_the_compiler(tmp_path: Path) -> None:
    """Quoted and bracketed includes are found below the given folders, in order."""
    for folder, value in (("one", 1111), ("two", 2222)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "value.h").write_text(f"#define VALUE {value}\n")
    source = '#include "value.h"\nextern "C" __global__ void k(int *x) { *x = VALUE; }'

    assert b"1111" in build(source, include_dirs=[str(tmp_path / "one"), str(tmp_path / "two")]).ptx
    assert b"2222" in build(source, include_dirs=[str(tmp_path / "two"), str(tmp_path / "one")]).ptx


HEADER = 'extern "C" __global__ void k(int {}, int {}) {{}}'


def test_names_of_parameters_are_of_the_header_that_bracketed_includes_find(tmp_path: Path) -> None:
    """A name in angle brackets is not searched for beside the header that includes it."""
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "first.h").write_text("#include <kernel.h>")
    (tmp_path / "deep" / "kernel.h").write_text(HEADER.format("b", "a"))
    (tmp_path / "kernel.h").write_text(HEADER.format("a", "b"))

    kernel = cached_kernel(
        "#include <deep/first.h>", include_dirs=[tmp_path], arch="sm_90", cache=KernelCache(tmp_path / "cache")
    )

    assert [each.name for each in kernel.params] == ["a", "b"]


def test_file_with_another_suffix_keeps_its_name(tmp_path: Path) -> None:
    """NVRTC is given the name of the file, which `__FILE__` puts into the code."""
    sizes = []
    for name in ("k.cu", "k.cuh"):
        (tmp_path / name).write_text('__device__ const char *n = __FILE__;\nextern "C" __global__ void k(int *x) {}\n')
        kernel = cached_kernel(tmp_path / name, kind="cuda", arch="compute_90", cache=KernelCache(tmp_path / "cache"))
        sizes.append(", ".join(map(str, name.encode())) in kernel.ptx("compute_90"))
    assert sizes == [True, True]


def test_header_that_never_ends_is_not_read_in_a_branch_that_is_not_taken(tmp_path: Path) -> None:
    """The scan for declarations reads only regular files; reading a pipe would never end."""
    os.mkfifo(tmp_path / "pipe.h")

    assert build(f'#if 0\n#include "pipe.h"\n#endif\n{EMPTY}', include_dirs=[str(tmp_path)]).kernels[0].name == "k"


def test_source_that_includes_itself_compiles(tmp_path: Path) -> None:
    """NVRTC would read the probe that is appended to the source twice, so such a source is compiled without it."""
    source = f"#ifndef AGAIN\n#define AGAIN\n#include __FILE__\n#else\n{EMPTY}\n#endif\n"
    (tmp_path / "k.cu").write_text(source)
    wanted = request(source)._replace(asks_files=True)
    options = wanted.options._replace(base_dir=str(tmp_path))

    made = source_build.build_source(wanted._replace(options=options))

    assert made.kernels[0].symbol == "k"


def test_toolkit_headers_are_on_the_path() -> None:
    """cuda_fp16.h and CCCL need no include_dirs."""
    source = "#include <cuda_fp16.h>\n#include <cuda/std/cstdint>\n__global__ void k(half *x, cuda::std::uint8_t n) {}"

    assert [each.code for each in build(source).kernels[0].parameters] == ["*f2", "u1"]


def test_keep_ptx_is_a_choice() -> None:
    """Without it the artifact has the cubin only; that of a virtual target always has its PTX."""
    assert build(SAXPY, keep_ptx=False).ptx == b""
    assert build(SAXPY, target="compute_80", keep_ptx=False).ptx != b""


def test_warnings_are_kept_in_the_log() -> None:
    """A compile that succeeds with warnings has them in its log."""
    assert "never referenced" in build('extern "C" __global__ void k() { int unused; }').log


# -- PTX, virtual targets, links ------------------------------------------------------------------------------


def test_virtual_target_is_ptx_with_its_parameters() -> None:
    """`compute_80`: no cubin, but types and resources are known; the driver decides about threads of a block."""
    artifact = build(SAXPY, target="compute_80")
    assert [build(SAXPY, target=each).kernels[0].safe_threads for each in ("compute_80", "sm_80")] == [0, 1024]

    assert artifact.cubin == b""
    assert b".target sm_80" in artifact.ptx
    assert artifact.kernels[0].typed
    assert len(artifact.kernels[0].parameters) == 4


def test_ptx_of_an_older_target_is_linked_for_the_device() -> None:
    """arch="compute_80" on an sm_90: PTX of 8.0, linked to a cubin of 9.0."""
    artifact = build(SAXPY, through="compute_80")

    assert b".target sm_80" in artifact.ptx
    assert read_cubin(artifact.cubin).sm == 90
    assert artifact.kernels[0].typed


def test_ptx_source_is_linked() -> None:
    """PTX becomes a cubin; only sizes are known without a signature."""
    ptx = compiled(SAXPY, "ptx").decode().rstrip("\0")
    artifact = build(ptx, kind="ptx")

    assert artifact.kind == "ptx"
    assert is_cubin(artifact.cubin)
    assert artifact.ptx.decode() == ptx
    assert not artifact.kernels[0].typed
    assert [(each.size, each.code) for each in artifact.kernels[0].parameters] == [
        (4, "?"),
        (8, "?"),
        (8, "?"),
        (4, "?"),
    ]


def test_lto_makes_a_cubin() -> None:
    """Link-time optimisation goes through LTO-IR, and parameter types stay known."""
    artifact = build(SAXPY, lto=True)

    assert is_cubin(artifact.cubin)
    assert artifact.kernels[0].typed
    assert artifact.ptx == b""


@pytest.fixture
def inputs(tmp_path: Path) -> dict[str, Path]:
    """The function `twice` in every form that can be linked."""
    plain = TWICE.replace("FACTOR", "2")
    forms = {
        "cu": plain.encode(),
        "ptx": compiled(plain, "ptx", "sm_90", "-rdc=true").rstrip(b"\0"),
        "ltoir": compiled(plain, "ltoir", "sm_90", "-dlto"),
        "cubin": compiled(plain, "cubin", "sm_90", "-rdc=true"),
    }
    for suffix, data in forms.items():
        (tmp_path / f"twice.{suffix}").write_bytes(data)
    return {suffix: tmp_path / f"twice.{suffix}" for suffix in forms}


@pytest.mark.parametrize("suffix", ["cu", "ptx", "cubin"])
def test_device_code_is_linked(inputs: dict[str, Path], suffix: str) -> None:
    """CUDA C++, PTX and a cubin that define the function the kernel calls."""
    artifact = build(CALLS, link=read_link_inputs([inputs[suffix]], ""))

    assert is_cubin(artifact.cubin)
    assert artifact.kernels[0].typed


def test_linked_cuda_goes_through_the_ptx_target(inputs: dict[str, Path]) -> None:
    """With arch="compute_80" the kernel and what is linked to it are PTX of 8.0, linked for the device."""
    artifact = build(CALLS, through="compute_80", link=read_link_inputs([inputs["cu"]], ""))

    assert b".target sm_80" in artifact.ptx
    assert read_cubin(artifact.cubin).sm == 90


def test_cubin_that_is_called_an_object_is_linked(inputs: dict[str, Path], tmp_path: Path) -> None:
    """If it were passed as an object, nvJitLink would ignore it and miss the function later."""
    inputs["cubin"].rename(tmp_path / "twice.o")

    assert build(CALLS, link=read_link_inputs([tmp_path / "twice.o"], "")).kernels[0].typed


@pytest.mark.slow
@pytest.mark.parametrize("output", ["twice.o", "libtwice.a", "twice.fatbin"])
def test_device_code_of_nvcc_is_linked(tmp_path: Path, output: str) -> None:
    """Objects, archives and fatbins as nvcc makes them."""
    (tmp_path / "twice.cu").write_text(TWICE.replace("FACTOR", "2"))
    form = ["-dc"] if output.endswith(".o") else ["-rdc=true", "-fatbin"]
    if output.endswith(".a"):
        subprocess.run([program("nvcc"), "-arch=sm_90", "-dc", "twice.cu", "-o", "t.o"], cwd=tmp_path, check=True)
        subprocess.run([program("nvcc"), "-lib", "t.o", "-o", output], cwd=tmp_path, check=True)
    else:
        subprocess.run([program("nvcc"), "-arch=sm_90", *form, "twice.cu", "-o", output], cwd=tmp_path, check=True)

    assert build(CALLS, link=read_link_inputs([tmp_path / output], "")).kernels[0].typed


@pytest.mark.parametrize("suffix", ["cu", "ltoir"])
def test_lto_links_device_code_across_files(inputs: dict[str, Path], suffix: str) -> None:
    """With lto=True CUDA C++ is compiled to LTO-IR first, and LTO-IR is used unchanged."""
    artifact = build(CALLS, lto=True, link=read_link_inputs([inputs[suffix]], ""))

    assert {each.symbol for each in read_cubin(artifact.cubin).kernels} == {"k"}


def test_linked_source_has_the_kernel_s_options() -> None:
    """CUDA C++ that is linked is compiled with the kernel's defines."""
    two, three = (
        build(CALLS, link=(LinkInput("cu", "twice.cu", TWICE.encode()),), defines={"FACTOR": n}).cubin for n in (2, 3)
    )

    assert two != three


def test_linked_source_finds_headers_beside_it(tmp_path: Path) -> None:
    """Quoted includes of a link input start from its own folder."""
    (tmp_path / "factor.h").write_text("#define FACTOR 2\n")
    (tmp_path / "twice.cu").write_text('#include "factor.h"\n' + TWICE)

    assert build(CALLS, link=read_link_inputs([tmp_path / "twice.cu"], "")).kernels


def test_real_object_of_nvcc_s_format_is_refused_plainly(tmp_path: Path) -> None:
    """A host object without device code is a LinkError or an unresolved function, and never a crash."""
    (tmp_path / "host.c").write_text("int host(void) { return 1; }\n")
    subprocess.run([program("cc"), "-c", "host.c", "-o", "host.o"], cwd=tmp_path, check=True)

    with pytest.raises((LinkError, CompileError)):
        build(CALLS, link=read_link_inputs([tmp_path / "host.o"], ""))


# -- refusals -------------------------------------------------------------------------------------------------


def test_source_that_does_not_compile() -> None:
    """The message has the first lines of the log, `.log` all of it."""
    said = r"cannot compile tests\.kernel for sm_90: line 1 of the source of tests\.kernel: error"
    with pytest.raises(CompileError, match=said) as caught:
        build('extern "C" __global__ void k(nothing a) {}')

    assert 'identifier "nothing" is undefined' in caught.value.log
    assert "numba_kcache_prototype" not in caught.value.log


def test_unresolved_function_says_to_link() -> None:
    """No input defines the device function: the message names it and link=."""
    with pytest.raises(CompileError) as caught:
        build(CALLS)

    assert "twice" in str(caught.value)
    assert "link=" in caught.value.hint


def test_link_input_that_does_not_define_it() -> None:
    """The message has the linker's own words, with the function's name."""
    with pytest.raises(LinkError, match="twice"):
        build(CALLS, link=(LinkInput("cu", "other.cu", b"__device__ int other;"),))


@pytest.mark.slow
def test_linker_s_message_names_the_input() -> None:
    """The bindings free an input's name before the linker reads it; the message names the right input all the same."""
    for number in range(8):
        name = f"input {number} with a name that is quite long.ptx"
        code = compiled("__device__ int unused;", "ptx", "sm_90", "-rdc=true").rstrip(b"\0")
        with pytest.raises(LinkError) as caught:
            build(CALLS, link=(LinkInput("ptx", name, code),))
        quoted = set(re.findall(r" in '([^']*)'", str(caught.value) + caught.value.log))
        assert quoted == {"tests.kernel.cubin"}


def test_link_input_that_does_not_compile() -> None:
    """The message names the input, not the kernel."""
    with pytest.raises(CompileError, match=r"cannot compile the link input twice\.cu: .*twice\.cu\(1\): error"):
        build(CALLS, link=(LinkInput("cu", "twice.cu", TWICE.encode()),))


@pytest.mark.parametrize("kind", ["ptx", "ltoir", "cubin", "object", "fatbin", "library"])
def test_link_input_that_is_rubbish(kind: str) -> None:
    """The linker refuses it, and the process goes on."""
    with pytest.raises(LinkError, match=r"rubbish\.bin"):
        build(CALLS, link=(LinkInput(kind, "rubbish.bin", b"rubbish"),))


def test_ptx_that_is_rubbish() -> None:
    """The message is that of ptxas, with its line."""
    with pytest.raises(LinkError, match=r"tests\.kernel") as caught:
        build(".version 8.0\n.target sm_80\n.address_size 64\nrubbish\n", kind="ptx")

    assert "line 4" in caught.value.log


@pytest.mark.parametrize(("target", "older"), [("sm_70", True), ("sm_50", True), ("sm_91", False), ("sm_200", False)])
def test_target_that_the_toolkit_does_not_know(target: str, older: bool) -> None:
    """The error lists the targets of the installed NVRTC, and says what to install for others."""
    with pytest.raises(
        OptionError, match=rf"cannot compile for {target}: the installed NVRTC compiles for sm_75, sm_80"
    ):
        build(EMPTY, target=target)


def test_suffix_that_the_target_has_not() -> None:
    """sm_80a does not exist: NVRTC's error is reported for the option, not for the source."""
    with pytest.raises(OptionError, match="sm_80a"):
        build(EMPTY, target="sm_80a")


@pytest.mark.parametrize("flag", ["--nonsense", "-std=c++99", "--maxrregcount=none"])
def test_flag_that_nvrtc_does_not_know(flag: str) -> None:
    """A raw flag is the user's: OptionError with NVRTC's words."""
    with pytest.raises(OptionError, match=r"cannot compile tests\.kernel for sm_90: "):
        build(EMPTY, options=[flag])


def test_source_of_another_script_compiles() -> None:
    """UTF-8 in comments and strings is fine."""
    assert build("// größer 大 \U0001f600\n" + EMPTY).kernels


# -- signature ------------------------------------------------------------------------------------------------


def test_signature_gives_ptx_its_types() -> None:
    """The signature is compared with the sizes in the cubin; then arguments are checked by it."""
    ptx = compiled(SAXPY, "ptx").decode().rstrip("\0")
    entry = build(ptx, kind="ptx", signature="float, const float*, float*, int").kernels[0]

    assert entry.typed
    assert [each.code for each in entry.parameters] == ["f4", "*kf4", "*f4", "i4"]


def test_signature_knows_the_toolkit_s_number_types() -> None:
    """half, bfloat16 and fp8 need no include by the user."""
    ptx = compiled('extern "C" __global__ void k(void *a, void *b, void *c, float4 d) {}', "ptx").decode().rstrip("\0")
    entry = build(ptx, kind="ptx", signature="half*, const __nv_bfloat16*, __nv_fp8_e4m3*, float4").kernels[0]

    assert [each.code for each in entry.parameters] == ["*f2", "*kbf", "*e4", "v4f4"]


def test_header_beside_the_ptx_gives_its_signature_no_types(tmp_path: Path) -> None:
    """A signature may use types of the toolkit's headers, but not of the user's, which no key would hold."""
    (tmp_path / "cuda_fp16.h").write_text("typedef short half;\n")
    ptx = compiled('extern "C" __global__ void k(void *a) {}', "ptx").decode().rstrip("\0")
    wanted = request(ptx, kind="ptx", signature="half*")
    wanted = wanted._replace(options=wanted.options._replace(base_dir=str(tmp_path)), toolkit_dirs=toolkit_dirs())

    entry = source_build.build_source(wanted).kernels[0]

    assert [each.code for each in entry.parameters] == ["*f2"]


def test_signature_that_agrees_with_the_source() -> None:
    """Typedefs, spaces and spelling do not matter, since the compiler reads the signature."""
    source = f"typedef float real; struct Box {{ int a; }};\n{SAXPY}"

    assert build(source, signature="real,const  real *, real*,int").kernels[0].typed


@pytest.mark.parametrize(
    "signature",
    ["float, const float*, float*", "float, const float*, float*, int, int", "double, const float*, float*, int",
     "float, float*, float*, int", "float, const float*, float*, unsigned", "float, const int*, float*, int", ""],
)  # fmt: skip
def test_signature_that_contradicts_the_source(signature: str) -> None:
    """Number, size, constness, signedness and pointee are compared with the compiled types; the error shows these."""
    with pytest.raises(OptionError, match=r"the kernel takes \(float, float const\*, float\*, int\)"):
        build(signature=signature)


@pytest.mark.parametrize(
    "signature", ["float, const float*", "double, void*, void*, int", "float, void*, void*, short"]
)
def test_signature_that_contradicts_the_ptx(signature: str) -> None:
    """Only sizes can be compared."""
    ptx = compiled(SAXPY, "ptx").decode().rstrip("\0")

    with pytest.raises(OptionError, match="the kernel takes"):
        build(ptx, kind="ptx", signature=signature)


@pytest.mark.parametrize("signature", ["flaot", "float, ", "float)(", "int a; evil("])
def test_signature_that_is_none(signature: str) -> None:
    """A text that is no list of types is an OptionError that says what to write."""
    with pytest.raises(OptionError, match=r"cannot (read|use) signature="):
        build(signature=signature)


# -- the compiler itself ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [(12, 9), (12, 8)])
def test_compiler_is_told_to_keep_no_cache_and_no_stack_limit(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, int]
) -> None:
    """`--no-cache` avoids cuInit and NVRTC's own cache, which came with 12.9: an earlier NVRTC refuses the flag.
    `--modify-stack-limit=false` leaves the host process's limit alone."""
    told: list[list[bytes]] = []
    real = nvrtc.function

    def function(name: str, *returns: Any) -> Any:
        def listening(program: object, count: int, words: list[bytes]) -> object:
            told.append(list(words))
            return real(name)(program, count, words)

        return listening if name == "CompileProgram" else real(name, *returns)

    monkeypatch.setattr(nvrtc, "function", function)
    monkeypatch.setattr(nvrtc, "nvrtc_version", lambda: version)
    build(EMPTY)

    assert told
    assert all({b"--modify-stack-limit=false", b"-arch=sm_90"} <= set(words) for words in told)
    assert {b"--no-cache" in words for words in told} == {version == (12, 9)}


AFTER_A_FAILURE = """
import sys
from numba_kcache import CompileError, cached_kernel
from numba_kcache.toolchain.nvrtc import run_nvrtc
for source in sys.argv[1:]:
    try:
        cached_kernel(source, arch="sm_90").compile()
    except CompileError:
        print("refused")
    print(run_nvrtc("", "other.cu", ["-arch=sm_90"], ()).ok)
"""


@pytest.mark.slow
def test_failed_compile_leaves_nvrtc_as_it_was(tmp_path: Path) -> None:
    """The next compile in this thread neither writes a .json into the working directory nor is aborted."""
    (tmp_path / "cwd").mkdir()
    sources = ['#include "no_such_header.h"', "#include <cuda_fp16.h>\nnonsense"]

    for cwd in (str(tmp_path / "cwd"), "/proc"):
        said = in_python(AFTER_A_FAILURE, *sources, cwd=cwd, NUMBA_KCACHE_DIR=str(tmp_path / "cache"))
        assert said.split() == ["refused", "True"] * 2
    assert not list((tmp_path / "cwd").iterdir())


def test_stack_limit_of_the_process_is_untouched() -> None:
    """NVRTC would raise it by itself."""
    import resource

    before = resource.getrlimit(resource.RLIMIT_STACK)
    run_nvrtc(EMPTY, "k.cu", ["-arch=sm_90"], ("cubin",))

    assert resource.getrlimit(resource.RLIMIT_STACK) == before


def test_link_and_compile_flags_of_every_option() -> None:
    """Each option becomes a flag of NVRTC, and of the linker if it affects linking."""
    asked, debug = request(fastmath=True, max_registers=40, lineinfo=True, opt=1, std="c++20"), request(debug=True)

    assert {"--use_fast_math", "--maxrregcount=40", "--generate-line-info", "--ptxas-options=-O1",
            "--std=c++20"} <= set(source_build.nvrtc_flags(asked))  # fmt: skip
    assert "--device-debug" in source_build.nvrtc_flags(debug)
    assert source_build.link_flags(asked.options) == ["-Xptxas=-O1", "-maxrregcount=40", "-lineinfo"]
    assert source_build.link_flags(debug.options)[-1] == "-g"
    assert set(source_build.link_flags(asked.options, True)) >= {"-lto", "-ftz=1", "-prec-div=0", "-prec-sqrt=0"}


# -- a source that fails -----------------------------------------------------------------------------------------

TOO_MUCH = "__shared__ char a[1 << 20]; a[threadIdx.x] = 1; *x = a[threadIdx.x + 1];"
WRONG = {
    "in the source": 'extern "C" __global__ void k(float *x) { *x = nowhere; }',
    "in a header": '#include "wrong.h"\nextern "C" __global__ void k(float *x) { *x = 1; }',
    "in a missing header": '#include "missing.h"\nextern "C" __global__ void k(float *x) { *x = 1; }',
    "in the source, beside a type without a name": 'struct { int a; } static v; extern "C" __global__ void k(float *x)'
    " { *x = nowhere; }",
    "in the assembler": f'extern "C" __global__ void k(char *x) {{ {TOO_MUCH} }}',
    "in the assembler, after a type without a name": "typedef struct { int a; } *Unnamed;\n__device__ Unnamed v;\n"
    f'extern "C" __global__ void k(char *x) {{ v = 0; {TOO_MUCH} }}',
    "in an instance": "template<class T> __global__ void k(T *x) { *x = T::nowhere; }",
}


@pytest.mark.parametrize("is_module", [False, True], ids=["kernel", "module"])
@pytest.mark.parametrize("place", WRONG)
def test_failing_source_runs_nvrtc_at_most_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, is_module: bool
) -> None:
    """Large headers take seconds each time: it runs with the questions about types, and without them if these may be at
    fault."""
    runs = list[str]()
    real = source_build.run_nvrtc
    monkeypatch.setattr(source_build, "run_nvrtc", lambda text, *given: runs.append(text) or real(text, *given))
    (tmp_path / "wrong.h").write_text("int f( { }\n")
    options: dict[str, Any] = {"include_dirs": [tmp_path], "arch": "sm_90", "cache": KernelCache(tmp_path / "cache")}
    name = "k<float>" if "instance" in place else "k"
    thing: Any = cached_kernel(WRONG[place], name=name, **options)
    if is_module:
        thing = cached_module(WRONG[place], **options, **({"names": [name]} if "<" in name else {}))

    with pytest.raises(KCacheError):
        thing.compile()

    assert 1 <= len(runs) <= 2
