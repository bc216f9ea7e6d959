"""Raw flags: all that a flag depends on is in the key, and an unknown flag makes the request uncacheable."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import pytest

from numba_kcache import KernelCache, cached_kernel
from numba_kcache.errors import KCacheWarning, OptionError, UncacheableError
from numba_kcache.model import Event, EventKind
from numba_kcache.model.cubin import is_relocatable
from numba_kcache.model.flags import read_flags
from numba_kcache.toolchain.nvrtc import run_nvrtc
from tests.support.compiling import EMPTY, SAXPY
from tests.support.keying import key_of, request_of

UNDERSTOOD = (
    "--device-c -dc --device-w -dw -rdc=true --relocatable-device-code=false -ewp --extensible-whole-program -G "
    "--device-debug -lineinfo --generate-line-info -dopt=on --dopt=on -Ofc=min -Xptxas=-v --ptxas-options=-v "
    "-Xptxas=-O1 -Xptxas=--opt-level=2 -Xptxas=-dlcm=cg -Xptxas=-warn-spills -Xptxas=--maxrregcount=32 "
    "-maxrregcount=32 --maxrregcount=32 -ftz=true --ftz=true -prec-sqrt=true --prec-sqrt=false -prec-div=true "
    "--prec-div=false -fmad=false --fmad=false -use_fast_math --use_fast_math -extra-device-vectorization "
    "--extra-device-vectorization -gen-opt-lto --gen-opt-lto --optix-ir --jump-table-density=50 -jtd=50 "
    "-device-stack-protector=true --device-stack-protector=true --no-cache -frandom-seed=1 --frandom-seed=1 -DX=1 "
    "-D=X=1 --define-macro=X=1 -UX -U=X --undefine-macro=X -no-source-include --no-source-include --std=c++17 "
    "-std=c++17 -builtin-move-forward=false --builtin-initializer-list=true -w --disable-warnings -restrict --restrict "
    "-default-device --device-as-default-execution-space -device-int128 --device-int128 -opt-info=inline "
    "--optimization-info=inline -err-no --display-error-number -no-err-no -diag-error=177 --diag-suppress=177 "
    "--diag-warn=177 -brief-diag=true --brief-diagnostics=true -split-compile=2 --split-compile=2 "
    "-fdevice-syntax-only --fdevice-syntax-only -minimal --minimal"
)

IN_TWO = (
    ("-D", "X=1"), ("-U", "X"), ("--define-macro", "X"), ("--undefine-macro", "X"), ("-Xptxas", "-v"), ("-rdc", "true"),
    ("--ptxas-options", "-v"), ("-maxrregcount", "32"), ("-ftz", "true"), ("-diag-suppress", "177"), ("-dopt", "on"),
    ("-Xptxas=--maxrregcount", "-Xptxas=32"), ("-D X=1", "-lineinfo"),
)  # fmt: skip

NOT_UNDERSTOOD: tuple[tuple[str, ...], ...] = (
    ("--no-such-flag",), ("-Xnvvm=-O3",), ("-uumn",), ("--tile-only",), ("-restrict-ewp",), ("--restrict=true",),
    ("-Xptxas=--apply-controls=f",), ("-Xptxas=-knob=1",), ("-Xptxas", "--tool-name=x"), ("-Xptxas=-o", "-Xptxas=out"),
    ("-split-compile=0",), ("--split-compile", "0"), ("-Xptxas=--split-compile=0",), ("-D",), ("-include",),
    ("--no-such", "x"), ("-Xptxas",), ("-Xptxas=--options-file=o",), ("-Xptxas=-optf=o",),
    ("-Xptxas", "--options-file=o"), ("-Xptxas=-optf", "-Xptxas=o"),
)  # fmt: skip


@pytest.mark.slow
def test_understood_flags_are_flags_of_nvrtc() -> None:
    """NVRTC accepts each spelling as it stands: it is no other compiler's flag, nor the value of the flag before it."""
    for flags in [(each,) for each in UNDERSTOOD.split()] + [*IN_TWO]:
        assert read_flags(flags).unknown == ""
        assert run_nvrtc(EMPTY, "k.cu", ["-arch=sm_90", *flags], ()).ok, flags


@pytest.mark.parametrize("flags", NOT_UNDERSTOOD, ids=" ".join)
def test_other_flags_make_it_uncacheable(flags: tuple[str, ...]) -> None:
    """The reason names the flag; with depends= the user vouches for it."""
    request = request_of(SAXPY, options=list(flags))

    assert any(each.removeprefix("-Xptxas=") in request.uncacheable for each in flags)
    assert not request_of(SAXPY, options=list(flags), depends=["vouched"]).uncacheable


def test_vouched_flag_hides_no_other(tmp_path: Path) -> None:
    """depends= vouches for the unknown flag, not for the flags beside it."""
    found = read_flags(["--no-such-flag", "-include", "a.h", "-DA=1", "-G"])

    assert found[1:] == (("a.h",), (("A", "1"),), True)


def test_value_without_a_flag_is_refused() -> None:
    """An element without a dash is a value of the one before it, or none."""
    for flags in (["x"], ["-ftz=true", "x"], ["-D", "A", "b"], ["--restrict", "x"]):
        with pytest.raises(OptionError, match="it is not an NVRTC flag"):
            request_of(SAXPY, options=flags)


@pytest.mark.slow
@pytest.mark.parametrize("word", ["-include", "--pre-include"])
@pytest.mark.parametrize("is_one", [True, False], ids=["one element", "two"])
def test_edit_of_a_file_that_a_flag_includes_invalidates_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str, is_one: bool
) -> None:
    """In both spellings the compiler reads the file that is in the key."""
    monkeypatch.chdir(tmp_path)
    source = 'extern "C" __global__ void k(int *x) { *x = VALUE; }'

    def resolve() -> tuple[bytes, int]:
        cache = KernelCache(tmp_path / "cache", durability="none")
        flags = [f"{word}=value.h"] if is_one else [word, "value.h"]
        kernel = cached_kernel(source, arch="sm_90", options=flags, cache=cache)
        return kernel.cubin(), cache.info("process").compiles

    (tmp_path / "value.h").write_text('#include "more.h"\n')
    (tmp_path / "more.h").write_text("#define VALUE 1\n")
    first, _ = resolve()
    assert resolve() == (first, 0)

    (tmp_path / "more.h").write_text("#define VALUE 2\n")
    second, compiles = resolve()
    assert (compiles, second == first) == (1, False)
    (tmp_path / "value.h").write_text("#define VALUE 3\n")
    third, compiles = resolve()
    assert (compiles, third in (first, second)) == (1, False)


RELOCATABLE: tuple[tuple[str, ...], ...] = (
    ("-dc",), ("--device-c",), ("-rdc=true",), ("-rdc", "true"), ("--relocatable-device-code", "true"),
    ("-Xptxas=-c",), ("-Xptxas", "--compile-only"), ("--ptxas-options", "-c"),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("flags", RELOCATABLE, ids=" ".join)
def test_linker_is_in_the_key_of_what_a_flag_makes_relocatable(flags: tuple[str, ...]) -> None:
    """nvJitLink links relocatable code, however the flag is spelled."""
    assert is_relocatable(run_nvrtc(EMPTY, "k.cu", ["-arch=sm_90", *flags], ("cubin",)).code["cubin"])
    assert "nvJitLink" in request_of(EMPTY, options=list(flags)).libraries


@pytest.mark.parametrize("flags", [("-rdc=false",), ("-rdc", "false"), ("-Xptxas=-O1",), ("-ewp",)], ids=" ".join)
def test_linker_is_not_in_the_key_of_what_is_not_linked(flags: tuple[str, ...]) -> None:
    """Otherwise another nvJitLink would cost a needless compile."""
    assert "nvJitLink" not in request_of(EMPTY, options=list(flags)).libraries


@pytest.mark.parametrize("flag", ["-lineinfo", "--generate-line-info", "-G", "--device-debug"])
def test_raw_flag_for_line_tables_keys_where_the_source_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flag: str
) -> None:
    """As with lineinfo=True and debug=True, the code contains paths."""
    monkeypatch.chdir(tmp_path)
    here = key_of(request_of(SAXPY, options=[flag]))
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")

    assert key_of(request_of(SAXPY, options=[flag])) != here


@pytest.mark.parametrize(("directive", "counts"), [("", False), ('#line 3 "x.h"\n', True)], ids=["none", "#line"])
def test_line_directive_keys_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, directive: str, counts: bool
) -> None:
    """A relative name in a `#line` is stored in the line table with the working directory."""
    keys = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        source = f'#include "a.h"\n{directive}{SAXPY}'
        keys.append(key_of(request_of(source, lineinfo=True, base_dir=str(tmp_path))))

    assert (keys[0] != keys[1]) == counts


@pytest.mark.parametrize("options", [{"debug": True}, {"lineinfo": True}, {"options": ["-G"]}])
def test_folder_of_line_tables_is_the_one_that_nvrtc_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """NVRTC writes the working directory as PWD spells it, if that leads there: a link in it is another key."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path / "real")
    keys = []
    for named in (None, tmp_path / "real", tmp_path / "link", tmp_path, "link", ""):
        if named is None:
            monkeypatch.delenv("PWD", raising=False)
        else:
            monkeypatch.setenv("PWD", str(named))
        keys.append(key_of(request_of(SAXPY, **options)))

    assert [key == keys[0] for key in keys] == [True, True, False, True, True, True]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["real", "link", "elsewhere"])
def test_folder_is_what_the_code_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The keyed folder is compared with the one in code compiled with -G."""
    from numba_kcache.frontends.source.surroundings import working_folder

    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path / "real")
    monkeypatch.setenv("PWD", str(tmp_path / name))
    ptx = run_nvrtc(SAXPY, "k.cu", ["-arch=sm_90", "-G"], ("ptx",)).code["ptx"].decode()

    assert f'"{working_folder()}/k.cu"' in ptx


def test_included_file_in_an_element_of_its_own_is_asked_for() -> None:
    """-include and its file in two elements mean what they mean in one."""
    one, two = (request_of(SAXPY, options=each) for each in (["-include=a.h"], ["-include", "a.h"]))

    assert not two.uncacheable
    assert one.headers == two.headers
    assert one.headers is not None
    assert one.headers.forced == ("a.h",)


@pytest.mark.parametrize("change", ["write", "replace", "write and back", "remove", "through a mapping"])
def test_file_of_depends_that_changes_during_the_compile_stores_nothing(change: str, tmp_path: Path) -> None:
    """A flag that depends= vouches for may have read either content."""
    file, other = tmp_path / "flags.txt", tmp_path / "other.txt"
    file.write_text("1")
    other.write_text("2")
    cache = KernelCache(tmp_path / "cache")

    def meanwhile(event: Event) -> None:
        if event.kind is not EventKind.COMPILE_BEGIN:
            return
        if change == "replace":
            other.replace(file)
        elif change == "remove":
            file.unlink()
        elif change == "through a mapping":
            page[0:1] = b"2"
        else:
            file.write_text("2")
            if change == "write and back":
                file.write_text("1")

    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as page:
        page[0:1] = b"1"
        cache.subscribe(meanwhile)
        kernel = cached_kernel(EMPTY, arch="sm_90", cache=cache, depends=[file])
        with pytest.warns(KCacheWarning), pytest.raises(UncacheableError, match="changed while it was compiled"):
            kernel.compile()

    assert cache.info().entries == 0


def test_folder_of_depends_counts_by_its_files(tmp_path: Path) -> None:
    """Each file in it counts by its relative name and content, as for `get_or_build`."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.bin").write_bytes(b"1")
    keys = [cached_kernel(EMPTY, arch="sm_90", depends=[tmp_path / "data"]).key()]
    for name, content in (("a.bin", b"2"), ("b.bin", b"")):
        (tmp_path / "data" / name).write_bytes(content)
        keys.append(cached_kernel(EMPTY, arch="sm_90", depends=[tmp_path / "data"]).key())

    assert len(set(keys)) == 3
