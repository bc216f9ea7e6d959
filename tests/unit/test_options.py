"""Compile options: the values that are accepted, those that are refused, and each error text."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from numba_kcache import cached_kernel, configure
from numba_kcache.errors import OptionError, SettingsError
from numba_kcache.model.options import STANDARDS, CompileOptions, compile_options
from numba_kcache.settings import path_from
from tests.support.compiling import EMPTY


def cuda(**given: Any) -> CompileOptions:
    return compile_options("cuda", given, "/base")


def test_nothing_given_is_the_default() -> None:
    """None means the default, for every option."""
    names = ("fastmath", "std", "defines", "include_dirs", "max_registers", "lineinfo", "debug", "lto", "opt",
             "options", "keep_ptx")  # fmt: skip

    assert cuda() == cuda(**dict.fromkeys(names)) == CompileOptions(base_dir="/base")


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"fastmath": True}, "fastmath", True),
        ({"lineinfo": True}, "lineinfo", True),
        ({"debug": True}, "debug", True),
        ({"lto": True}, "lto", True),
        ({"keep_ptx": False}, "keep_ptx", False),
        *(({"std": std}, "std", std) for std in STANDARDS),
        *(({"opt": level}, "opt", level) for level in (0, 1, 2, 3)),
        *(({"max_registers": count}, "max_registers", count) for count in (16, 255)),
        ({"defines": {"B": 1, "A": "x", "C": None}}, "defines", (("B", "1"), ("A", "x"), ("C", None))),
        ({"defines": MappingProxyType({"N": -3})}, "defines", (("N", "-3"),)),
        ({"defines": {"SQUARE(x)": "((x)*(x))"}}, "defines", (("SQUARE(x)", "((x)*(x))"),)),
        ({"options": ["--restrict", "-DA=1"]}, "flags", ("--restrict", "-DA=1")),
        ({"options": ()}, "flags", ()),
    ],
)
def test_option_is_taken(given: dict[str, Any], field: str, value: object) -> None:
    """Each option's valid values arrive with their meaning and in their order."""
    assert getattr(cuda(**given), field) == value


def test_include_folders_are_absolute() -> None:
    """Relative folders start from the base folder; `~` is resolved, and `..` by a kernel, which looks for links."""
    read = cuda(include_dirs=["include", "../up", "/abs/./x", Path("p"), "~/h"]).include_dirs

    assert [path_from("", each) for each in read[:4]] == ["/base/include", "/up", "/abs/x", "/base/p"]
    assert path_from("/base", "../up") == "/up"
    assert read[4] == str(Path("~/h").expanduser())


REFUSALS = [
    ("fastmat", True, "cannot use option 'fastmat' here", "fastmath"),
    ("cooperative", True, "cannot use option 'cooperative' here", "does not take it"),
    ("fastmath", 1, "fastmath=1: it is a int", "write True or False"),
    ("lto", "yes", "lto='yes': it is a str", "write True or False"),
    ("keep_ptx", 0, "keep_ptx=0: it is a int", "write True or False"),
    ("std", "c++18", "std='c++18': NVRTC does not know it", "c++17"),
    ("std", 17, "std=17", "c++17"),
    ("std", ["c++17"], "std=['c++17']", "c++17"),
    ("defines", ["A"], "defines=['A']: it is not a mapping", "defines={'TILE': 32"),
    ("defines", "A=1", "it is not a mapping", "defines={"),
    ("defines", {"": 1}, "'' is not the name of a macro", ""),
    ("defines", {" ": 1}, "is not the name of a macro", ""),
    ("defines", {3: 1}, "3 is not the name of a macro", ""),
    ("defines", {"A=1": None}, "'A=1' is not the name of a macro", ""),
    ("defines", {"A B": None}, "'A B' is not the name of a macro", ""),
    ("defines", {"9A": None}, "'9A' is not the name of a macro", ""),
    ("defines", {"A\n": None}, "is not the name of a macro", ""),
    ("defines", {"A": 1.5}, "A is a float", "give str, int or None"),
    ("defines", {"A": True}, "A is a bool", "give str, int or None"),
    ("defines", {"A": b"1"}, "A is a bytes", "give str, int or None"),
    ("include_dirs", "include", "include_dirs='include': it is not a list", "include_dirs=['include']"),
    ("include_dirs", b"include", "it is not a list", ""),
    ("include_dirs", {"include"}, "it is not a list", ""),
    ("include_dirs", [5], "5 is not a path", "include_dirs=['include']"),
    ("include_dirs", [b"inc"], "b'inc' is not a path", ""),
    ("max_registers", 15, "max_registers=15: registers per thread are 16 to 255", ""),
    ("max_registers", 256, "max_registers=256", "16 to 255"),
    ("max_registers", 32.0, "max_registers=32.0", "16 to 255"),
    ("max_registers", True, "max_registers=True", "16 to 255"),
    ("opt", 4, "opt=4: optimisation levels are 0, 1, 2 and 3", ""),
    ("opt", -1, "opt=-1", "levels"),
    ("opt", "3", "opt='3'", "levels"),
    ("opt", True, "opt=True", "levels"),
    ("options", "--restrict", "options='--restrict': it is not a list of flags", "options=['--restrict']"),
    ("options", {"--restrict"}, "it is not a list of flags", ""),
    ("options", ["restrict"], "options='restrict': it is not an NVRTC flag", ""),
    ("options", [3], "options=3: it is not an NVRTC flag", ""),
    ("options", ["-arch=sm_90"], "'-arch=sm_90': this flag is not accepted", "use arch="),
    ("options", ["--gpu-architecture=sm_90"], "this flag is not accepted", "use arch="),
    ("options", ["--gpu-architecture sm_90"], "this flag is not accepted", "use arch="),
    ("options", ["-I"], "this flag is not accepted", "name a folder"),
    ("options", ["--include-path="], "this flag is not accepted", "name a folder"),
    ("options", ["-gencode=arch=compute_80,code=sm_80"], "this flag is not accepted", "use arch="),
    ("options", ["-Xcompiler", "-fPIC"], "this flag is not accepted", "leave it out"),
    ("options", ["-lcudadevrt"], "this flag is not accepted", "use link="),
    ("options", ["-G", "-lcudadevrt"], "this flag is not accepted", "use link="),
    ("options", "-DA -DB=2", "it is not a list of flags", "options=['-DA', '-DB=2']"),
    ("opt", False, "opt=False", "write opt=0"),
    ("enable_cooperative_groups", True, "does not take it", "write cooperative=True"),
    ("name_expressions", ("k",), "does not take it", "names=[...]"),
    ("backend", "nvrtc", "does not take it", "NVRTC compiles"),
    ("jitify", True, "does not take it", "CCCL are found"),
    ("translate_cucomplex", True, "does not take it", "cuComplex.h"),
    ("no_extern_c", True, "does not take it", "nothing is added"),
    ("cache_dir", "x", "does not take it", "NUMBA_KCACHE_DIR"),
    ("maxrregcount", 32, "does not take it", "max_registers="),
    ("device", True, "does not take it", "functions in Python"),
    ("options", ["-dlto"], "this flag is not accepted", "use lto=True"),
    ("options", ["--dlink-time-opt"], "this flag is not accepted", "use lto=True"),
    ("options", ["--time=x.csv"], "this flag is not accepted", "writes a file"),
    ("options", ["--fdevice-time-trace=t"], "this flag is not accepted", "writes a file"),
    ("options", ["--pch"], "this flag is not accepted", "precompiled"),
    ("options", ["-use-pch=x"], "this flag is not accepted", "precompiled"),
    ("options", ["--create-pch=x"], "this flag is not accepted", "precompiled"),
    ("options", ["--pch-dir=x"], "this flag is not accepted", "precompiled"),
    ("options", ["--modify-stack-limit=true"], "this flag is not accepted", "whole process"),
]


@pytest.mark.parametrize(("name", "value", "says", "hints"), REFUSALS, ids=lambda each: str(each)[:24])
def test_refusal_names_option_value_and_reason(name: str, value: object, says: str, hints: str) -> None:
    """A meaningless option is refused at decoration, with its value and the reason."""
    with pytest.raises(OptionError) as caught:
        cuda(**{name: value})

    assert str(caught.value).startswith("cannot use ")
    assert says in str(caught.value)
    assert hints in str(caught.value)


@pytest.mark.parametrize(
    "flags", [["-Iinc", "-I", "/x"], ("--include-path=inc", "-I=/x"), ["-include-path", "inc", "--include-path", "/x"]]
)
def test_folders_of_raw_flags_are_include_folders(flags: Any) -> None:
    """As RawKernel and SourceModule take them; behind those of `include_dirs`, in their order."""
    found = cuda(options=[*flags, "-DA"], include_dirs=["first"])

    assert found.include_dirs == ("/base/first", "/base/inc", "/x")
    assert found.flags == ("-DA",)


@pytest.mark.parametrize(("given", "opt"), [({}, 2), ({"opt": 1}, 1)])
def test_level_of_raw_flags_is_the_option(given: dict[str, Any], opt: int) -> None:
    """NVRTC knows no `-O`; the keyword is stronger."""
    found = cuda(options=["-O1", "-O2"], **given)

    assert (found.opt, found.flags) == (opt, ())


@pytest.mark.parametrize("kind", ["cuda", "ptx", "ltoir"])
def test_optimised_code_with_debug_information_is_refused(kind: str) -> None:
    """ptxas of CUDA 12.0, 12.9 and 13.5 stops there: "Optimized debugging not supported". The default is not meant."""
    for level in (1, 2):
        with pytest.raises(OptionError, match=f"cannot use opt={level}: ptxas .* debug=True") as caught:
            compile_options(kind, {"debug": True, "opt": level}, "")
        assert caught.value.hint == "leave out opt"

    assert [compile_options(kind, {"debug": True, "opt": level}, "").opt for level in (0, 3)] == [0, 3]


def test_optimised_code_with_limited_debug_information_is_compiled() -> None:
    """NVRTC's own flag `-dopt=on` asks for it."""
    kernel = cached_kernel(EMPTY, debug=True, opt=2, options=["-dopt=on"])

    kernel.compile("sm_90")


@pytest.mark.parametrize("name", ["fastmath", "std", "defines", "include_dirs", "lto", "options"])
def test_ptx_does_not_take_source_options(name: str) -> None:
    """PTX is not compiled from source: an option without effect is an error that lists the effective ones."""
    with pytest.raises(OptionError, match="kind 'ptx' does not take it") as caught:
        compile_options("ptx", {name: None}, "")

    assert caught.value.hint == "it takes debug, keep_ptx, lineinfo, max_registers, opt"


def test_misspelt_option_is_answered_by_the_one_that_is_meant() -> None:
    """This holds for options of CUDA C++ and of Numba kernels and for settings; a dissimilar name gets only the
    list."""

    def numba(x, y):  # type: ignore[no-untyped-def]
        y[0] = x[0]

    for thing in (EMPTY, numba):
        with pytest.raises(OptionError) as caught:
            cached_kernel(thing, fast_math=True)  # type: ignore[call-overload]
        assert caught.value.hint.startswith("did you mean fastmath? it takes ")
    with pytest.raises(OptionError) as caught:
        cached_kernel(EMPTY, colour="blue")  # type: ignore[call-overload]
    assert caught.value.hint.startswith("it takes ")
    with pytest.raises(SettingsError, match=r"did you mean max_size_bytes\?"):
        configure(max_size="1GB")  # type: ignore[call-arg]
