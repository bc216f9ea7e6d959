"""The package leaves no trace in code: it equals, byte by byte, what NVRTC and nvJitLink make alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cuda.bindings import nvrtc

from numba_kcache.frontends.source.build import build_source
from numba_kcache.frontends.source.module_build import build_module
from numba_kcache.model import Artifact, LinkInput, ModuleKernels, Origin, SourceInput, parse_target
from numba_kcache.model.options import compile_options
from numba_kcache.toolchain import nvrtc as toolchain_nvrtc
from numba_kcache.toolchain.nvjitlink import link
from tests.support.compiling import EMPTY, build, in_python, toolkit_dirs
from tests.support.plain_programs import PROGRAMS, Program

STANDARDS = ("c++03", "c++11", "c++14", "c++17", "c++20")


class Way(NamedTuple):
    """A way to compile: our options, NVRTC's flags for the same, and nvJitLink's where it takes part."""

    options: dict[str, Any]
    flags: tuple[str, ...]
    link: tuple[str, ...] | None = None


WAYS = {
    "default": Way({}, ()),
    **{std: Way({"std": std}, (f"--std={std}",)) for std in STANDARDS},
    "debug": Way({"debug": True}, ("-G",)),
    "lineinfo": Way({"lineinfo": True}, ("-lineinfo",)),
    "fastmath, 32 registers": Way({"fastmath": True, "max_registers": 32}, ("--use_fast_math", "--maxrregcount=32")),
    "lto": Way({"lto": True}, ("-dlto",), ("-O3", "-lto")),
    "relocatable": Way({"options": ["-rdc=true"]}, ("-rdc=true",), ("-O3",)),
    "by default on the device": Way({"options": ["-default-device"]}, ("-default-device",)),
}


class Spy:
    """The names of programs that NVRTC was handed, and how often it compiled, or ran its front end alone."""

    def __init__(self) -> None:
        self.names: list[bytes] = []
        self.compiles = self.front_ends = 0


@contextmanager
def watched() -> Iterator[Spy]:
    """Watch NVRTC."""
    seen, real = Spy(), toolchain_nvrtc.function

    def function(name: str, *returns: Any) -> Any:
        found = real(name, *returns)

        def created(program: Any, source: bytes, name: bytes, *others: Any) -> Any:
            seen.names.append(name)
            return found(program, source, name, *others)

        def compiled(program: Any, count: int, flags: Any) -> Any:
            is_whole = b"--fdevice-syntax-only" not in [*flags]
            seen.compiles, seen.front_ends = seen.compiles + is_whole, seen.front_ends + (not is_whole)
            return found(program, count, flags)

        return {"CreateProgram": created, "CompileProgram": compiled}.get(name, found)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toolchain_nvrtc, "function", function)
        yield seen


@pytest.fixture
def spy() -> Iterator[Spy]:
    """NVRTC, watched."""
    with watched() as seen:
        yield seen


def plain(
    source: bytes, name: bytes, flags: tuple[str, ...], outputs: Sequence[str], expressions: tuple[str, ...] = ()
) -> list[bytes]:
    """Compile a program with NVRTC, called as its guide says, and return these outputs of it."""
    error, program = nvrtc.nvrtcCreateProgram(source, name, 0, [], [])
    assert not error
    for each in expressions:
        assert not nvrtc.nvrtcAddNameExpression(program, each.encode())[0]
    words = [b"-arch=sm_90", b"--no-cache", *(flag.encode() for flag in flags)]
    (error,) = nvrtc.nvrtcCompileProgram(program, len(words), words)
    log = bytes(nvrtc.nvrtcGetProgramLogSize(program)[1])
    nvrtc.nvrtcGetProgramLog(program, log)
    assert not error, log.decode()
    codes = []
    for output in outputs:
        codes.append(bytes(getattr(nvrtc, f"nvrtcGet{output}Size")(program)[1]))
        getattr(nvrtc, f"nvrtcGet{output}")(program, codes[-1])
    nvrtc.nvrtcDestroyProgram(program)
    return codes


def module_of(program: Program, folder: Path, options: dict[str, Any], lazy: bool = False) -> Artifact:
    """The artifact of all kernels of a program, whose headers are in a folder."""
    for name, text in program.headers.items():
        (folder / name).write_text(text)
    request = SourceInput(
        "cuda", "tests.module", program.source, None, None, parse_target("sm_90"),
        compile_options("cuda", options, str(folder) if program.headers else ""), asks_files=bool(program.headers),
        module=ModuleKernels(program.instances, lazy),
    )  # fmt: skip
    return build_module(request._replace(toolkit_dirs=toolkit_dirs()))


class Made(NamedTuple):
    """The compiled code of a program, the folder of its headers, and the calls of NVRTC."""

    artifact: Artifact
    folder: Path
    spy: Spy


@pytest.fixture(scope="module")
def made_by(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Made]:
    """A function that compiles a program in a way, once for all that is stated of it."""

    @cache
    def made(name: str, way: str) -> Made:
        folder = tmp_path_factory.mktemp("program")
        with watched() as spy:
            return Made(module_of(PROGRAMS[name], folder, WAYS[way].options), folder, spy)

    return made


NOT_SHOWN = (
    "macros", "kernels named by macros", "header", "types without names", "namespaces", "inline namespaces",
    "variables in C", "constants", "device functions",
)  # fmt: skip
"""Programs with kernels or variables that a scan of their text does not find in the global scope: their types are asked
of the front end in a second run."""


ALWAYS = ("default", "c++03")


def cases() -> Iterator[tuple[str, str]]:
    """Each program in the ways of `ALWAYS`, and in a third of the others, so that each way meets many programs."""
    others = [way for way in WAYS if way not in ALWAYS]
    for number, (name, program) in enumerate(PROGRAMS.items()):
        old = STANDARDS[: STANDARDS.index(program.needs)]
        yield from ((name, way) for way in (*ALWAYS, *others[number % 3 :: 3]) if way not in old)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "way"), list(cases()))
def test_code_is_what_the_compilers_make_of_the_source(
    name: str, way: str, made_by: Callable[[str, str], Made]
) -> None:
    """Cubin and PTX, under the same program name, from one compile; whatever kernels, types and options there are."""
    program, (_options, flags, linking) = PROGRAMS[name], WAYS[way]

    made, folder, spy = made_by(name, way)

    outputs = ("LTOIR",) if way == "lto" else ("CUBIN", "PTX")
    flags = (*flags, *(f"-I{folder}" for _ in [0] if program.headers))
    expected, *ptx = plain(program.source.encode(), spy.names[0], flags, outputs, program.instances)
    if linking is not None:
        expected = link([(made_input(outputs[0], expected))], "sm_90", linking)[0]
    assert made.cubin == expected
    assert [made.ptx] == [each.rstrip(b"\0") for each in ptx] or way == "lto"
    if way != "c++03":  # which has no decltype: what is asked by it is left out
        assert spy.compiles == (2 if name == "private types" else 1)
        assert bool(spy.front_ends) == (name in NOT_SHOWN)


def made_input(output: str, code: bytes) -> Any:
    """An input of the linker."""
    return LinkInput(output.lower(), "tests", code)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_ltoir_of_a_lazy_module_is_what_the_compiler_makes(name: str, spy: Spy, tmp_path: Path) -> None:
    """The LTO-IR from which each kernel is linked equals that of a plain compile."""
    program = PROGRAMS[name]

    made = module_of(program, tmp_path, {}, lazy=True)

    flags = ("-dlto", f"-I{tmp_path}")
    assert [made.extras["ltoir"]] == plain(program.source.encode(), spy.names[0], flags, ["LTOIR"], program.instances)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "way"), [case for case in cases() if case[1] in ("default", *STANDARDS)])
def test_types_are_told_in_the_compile(name: str, way: str, made_by: Callable[[str, str], Made]) -> None:
    """One compile gives the types of every kernel and variable; in C++03, without decltype, those that the symbol
    shows."""
    program = PROGRAMS[name]

    made = made_by(name, way).artifact

    if not program.instances:
        assert len(made.kernels) == program.kernels
    told = {each.symbol: " ".join(one.code for one in each.parameters) for each in made.kernels}
    untyped = [each.symbol for each in made.kernels if not each.typed]
    if way == "c++03":
        assert all("?" in told[symbol] for symbol in untyped)
    elif name != "private types":
        assert untyped == []
    if way != "c++03" and name != "types without names":
        assert [each.name for each in made.variables if each.code == "o"] == []
    for symbol, codes in program.codes.items():
        assert told[symbol] == codes or (way == "c++03" and symbol in untyped)


def test_programs_have_enough_kernels() -> None:
    """There are at least 150, and each way to write a kernel is among them."""
    assert sum(program.kernels for program in PROGRAMS.values()) >= 150


CORPUS = """
import hashlib, json, sys
from pathlib import Path
from numba_kcache import cached_module, info
from tests.support.plain_programs import PROGRAMS
codes = {}
for name, program in PROGRAMS.items():
    options = {"names": program.instances} if program.instances else {}
    module = cached_module(program.source, arch="sm_90", include_dirs=[sys.argv[1]], **options)
    codes[name] = [hashlib.sha256(module[each].cubin("sm_90")).hexdigest() for each in module]
counts = info("process")
print(json.dumps([counts.compiles, counts.misses, counts.hits, codes]))
"""


@pytest.mark.slow
def test_every_kernel_hits_in_a_second_process(tmp_path: Path) -> None:
    """150 kernels of all programs: the second process compiles nothing, and gets the same code."""
    for program in PROGRAMS.values():
        for name, text in program.headers.items():
            (tmp_path / name).write_text(text)
    first, second = (
        json.loads(in_python(CORPUS, str(tmp_path), NUMBA_KCACHE_DIR=str(tmp_path / "cache"))) for _ in range(2)
    )

    assert first[:2] == [len(PROGRAMS), len(PROGRAMS)]
    assert second[:3] == [0, 0, len(PROGRAMS)]
    assert first[3] == second[3]
    assert sum(map(len, first[3].values())) >= 150


@pytest.mark.parametrize("name", ["saxpy", "ns::k<float>", None])
def test_single_kernel_is_compiled_once(name: str | None, spy: Spy) -> None:
    """A single kernel needs one compile, by its name, as an instance, or as the only one."""
    source = 'extern "C" __global__ void saxpy(float a, const float *x) {}\n'
    source += "namespace ns { template<class T> __global__ void k(T *x) {} }\n"
    entry = build(source, name).kernels[0]

    assert entry.typed
    assert spy.compiles == 1


@pytest.mark.slow
def test_module_with_headers_of_the_toolkit_is_compiled_once(spy: Spy, tmp_path: Path) -> None:
    """Variables of these headers are none of the user's, whose types are asked for."""
    names = ("cuda/std/complex", "cuda/std/atomic", "cuda_fp16.h", "cooperative_groups.h")
    source = "".join(f"#include <{name}>\n" for name in names)
    source += '__constant__ int n;\nextern "C" __global__ void k(int *x) { *x = n; }'
    made = module_of(Program(source), tmp_path, {})

    assert [each.name for each in made.variables] == ["n"]
    assert (spy.compiles, spy.front_ends) == (1, 0)


@pytest.mark.slow
def test_single_kernel_of_many_is_the_code_of_all(spy: Spy) -> None:
    """One kernel is requested, and the cubin has all kernels of the source, as with NVRTC alone."""
    program = PROGRAMS["scalars in C"]
    made = build(program.source, "copied_3")

    assert [made.cubin] == plain(program.source.encode(), spy.names[0], (), ["CUBIN"])
    assert spy.compiles == 1


def test_signature_is_read_in_the_compile(spy: Spy) -> None:
    """Reading the signature needs no second compile, and does not change the code."""
    source = "struct Box { int a; };\n" + 'extern "C" __global__ void k(float a, Box *b) {}'
    made = build(source, signature="float, Box*")

    assert spy.compiles == 1
    assert [made.cubin] == plain(source.encode(), spy.names[0], (), ["CUBIN"])


def test_refused_source_is_compiled_once(spy: Spy) -> None:
    """If no error is about the names that the package asked for, the log is shown to the user as it is."""
    with pytest.raises(Exception, match="undefined"):
        build('extern "C" __global__ void k(float *x) { *x = missing; }')

    assert spy.compiles == 1


@pytest.mark.parametrize("flag", ["-rdc=true", "--relocatable-device-code=true", "-dc", "--device-c"])
def test_relocatable_code_is_linked(flag: str) -> None:
    """A relocatable object is not stored as a cubin."""
    made = build(EMPTY, options=[flag]).cubin

    assert made[16:18] == b"\2\0"  # ET_EXEC
    (code,) = plain(EMPTY.encode(), b"kernel.cu", (flag,), ["CUBIN"])
    assert made == link([made_input("CUBIN", code)], "sm_90", ["-O3"])[0]


def test_relocatable_code_that_lacks_a_function_is_refused() -> None:
    """The error has the linker's message."""
    with pytest.raises(Exception, match="gone"):
        build('extern "C" __device__ int gone(int);\nextern "C" __global__ void k(int *x) { *x = gone(1); }',
              options=["-rdc=true"])  # fmt: skip


@pytest.mark.parametrize("how", ["lineinfo", "debug"])
def test_line_table_of_a_file_is_that_of_the_file(how: str, tmp_path: Path) -> None:
    """A source in a file of its own is compiled under the file's name, without an added `#line`."""
    path = tmp_path / "k.cu"
    path.write_text('extern "C" __global__ void k(int *x) {\n  *x = __LINE__;\n}\n')
    request = SourceInput(
        "cuda", "k", path.read_text(), None, "k", parse_target("sm_90"),
        compile_options("cuda", {how: True}, str(tmp_path)), origin=Origin(str(path), 1, is_whole_file=True),
    )  # fmt: skip
    flag = {"lineinfo": "-lineinfo", "debug": "-G"}[how]

    expected = plain(path.read_bytes(), str(path).encode(), (flag,), ["CUBIN"])
    assert [build_source(request._replace(toolkit_dirs=toolkit_dirs())).cubin] == expected
