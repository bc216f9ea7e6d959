"""Sources and options of any encoding: bytes reach the compiler unchanged, or an error has the position."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from numba_kcache.errors import OptionError
from numba_kcache.frontends import cached_kernel
from numba_kcache.model.text import check_text, decoded, encoded
from numba_kcache.module import cached_module
from tests.support.compiling import EMPTY, compiled

LATIN = b'// gr\xfc\xdfe\n__device__ const char text[] = "\xe9\xe8";\n'
KERNEL = b'extern "C" __global__ void k(char *x) { *x = text[threadIdx.x]; }\n'
CALLER = 'extern "C" __device__ int one(); extern "C" __global__ void k(int *x) { *x = one(); }'
CALLED = b'// \xe9\nextern "C" __device__ int one() { return sizeof("\xe9\xe8"); }\n'


@pytest.mark.parametrize("data", [b"", b"plain", "größer 大".encode(), b"\xff\xfe\xe9", bytes(range(1, 256))])
def test_bytes_come_back_as_they_were(data: bytes) -> None:
    """Bytes of any encoding, or of none, are the same after conversion to text and back."""
    assert encoded(decoded(data)) == data


@pytest.mark.parametrize(
    ("text", "is_decoded", "says"),
    [
        ("a\0b", False, "character 2 is NUL"),
        ("one\ntwo\0", True, "line 2, column 4 is NUL"),
        ("\udce9", False, r"character 1 is '\\udce9', a lone surrogate"),
        ("x\n\ud800", True, r"line 2, column 1 is '\\ud800', a lone surrogate"),
    ],
)
def test_place_of_what_is_unfit_is_said(text: str, is_decoded: bool, says: str) -> None:
    """The error has line and column, or the index in a single line."""
    with pytest.raises(OptionError, match=f"cannot use it: {says}"):
        check_text(text, "it", is_decoded=is_decoded)


def test_bytes_and_other_scripts_are_fit() -> None:
    """Surrogates that stand for bytes are not the user's own."""
    check_text("größer 大 \U0001f600", "it")
    check_text(decoded(b"\xe9\xff"), "it", is_decoded=True)


@pytest.mark.slow
@pytest.mark.parametrize("given", ["bytes", "path", "function"])
def test_source_of_another_encoding_is_compiled_as_it_is(given: str, tmp_path: Path) -> None:
    """The original bytes are in the code and in the key."""
    source = LATIN + KERNEL
    (tmp_path / "k.cu").write_bytes(source)

    def returned() -> Any:
        return source

    thing: Any = {"bytes": source, "path": tmp_path / "k.cu", "function": returned}[given]
    kernel = cached_kernel(thing, kind="cuda", arch="sm_90")

    assert b"\xe9\xe8" in kernel.cubin()
    assert kernel.key() != cached_kernel(source.replace(b"\xe9", b"\xea"), kind="cuda", arch="sm_90").key()


@pytest.mark.slow
@pytest.mark.parametrize("lto", [False, True])
def test_link_input_of_another_encoding_is_compiled_as_it_is(lto: bool, tmp_path: Path) -> None:
    """The comments and strings of a `.cu` file may be Latin-1."""
    (tmp_path / "one.cu").write_bytes(CALLED)

    assert cached_kernel(CALLER, arch="sm_90", link=[tmp_path / "one.cu"], lto=lto).cubin()


@pytest.mark.slow
def test_change_of_a_source_of_another_encoding_is_explained(tmp_path: Path) -> None:
    """The explanation is printable text."""
    path = tmp_path / "k.cu"
    path.write_bytes(LATIN + KERNEL)
    cached_kernel(path, arch="sm_90").compile()
    path.write_bytes(LATIN.replace(b"\xe9", b"\xea") + KERNEL)

    told = str(cached_kernel(path, arch="sm_90").explain())

    assert "source" in told
    assert told.encode()


@pytest.mark.parametrize("ending", ["", "\0", "\0\0"])
def test_ptx_may_end_as_compilers_end_it(ending: str) -> None:
    """PTX may end with a NUL, as text and as bytes; other NULs are refused."""
    text = compiled(EMPTY, "ptx").decode().rstrip("\0")

    assert cached_kernel(text + ending, arch="sm_90").key() == cached_kernel(text.encode(), arch="sm_90").key()
    assert cached_kernel(text.encode() + ending.encode(), arch="sm_90").cubin()
    with pytest.raises(OptionError, match="is NUL"):
        cached_kernel(f"{text}\0// more", arch="sm_90")


def source_with_nul() -> str:
    return f"{EMPTY}\n\0 nothing of this is compiled"


@pytest.mark.parametrize("given", ["text", "bytes", "function", "path", "link", "linkable"])
def test_nul_in_a_source_is_an_error_that_says_where(given: str, tmp_path: Path) -> None:
    """NVRTC would drop the rest of the source without a word."""
    text = source_with_nul()
    (tmp_path / "k.cu").write_text(text)
    linkable = type("CUSource", (), {"name": "k.cu", "data": text})()
    options: dict[str, Any] = {"link": [tmp_path / "k.cu"], "linkable": [linkable]}
    thing: Any = {"text": text, "bytes": text.encode(), "function": source_with_nul, "path": tmp_path / "k.cu"}

    with pytest.raises(OptionError, match="line 2, column 1 is NUL"):
        cached_kernel(thing.get(given, EMPTY), arch="sm_90", link=options.get(given, [])).compile()


BAD = {"NUL": "\0", "surrogate": "\ud800", "escape": chr(0xDCE9)}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize(
    "make",
    [
        lambda bad: {"defines": {"A": f"x{bad}"}},
        lambda bad: {"options": [f"-DA=x{bad}"]},
        lambda bad: {"name": f"k{bad}"},
        lambda bad: {"signature": f"int{bad}"},
    ],
)
def test_option_that_is_no_text_is_an_error_that_says_where(make: Any, bad: str) -> None:
    """The error is raised at decoration."""
    with pytest.raises(OptionError, match=r"character \d+ is (NUL|'\\ud\w+', a lone surrogate)"):
        cached_kernel(EMPTY, **make(BAD[bad]))


@pytest.mark.parametrize("which", ["NUL", "surrogate"])
def test_name_and_path_that_is_no_text_is_an_error(which: str, tmp_path: Path) -> None:
    """Kernels, folders, link inputs and dependencies with such names raise the documented error and no other."""
    bad = BAD[which]
    for wrong in ({"include_dirs": [f"/x{bad}"]}, {"link": [f"/x{bad}.cu"]}, {"depends": [tmp_path / f"x{bad}"]}):
        with pytest.raises(OptionError):
            cached_kernel(EMPTY, arch="sm_90", **wrong).compile()
    with pytest.raises(OptionError, match="names="):
        cached_module(EMPTY, names=[f"k{bad}"])


def test_surrogate_in_a_text_is_an_error_that_says_where() -> None:
    """Even a surrogate that represents a byte is refused in text, also in that of a `LinkableCode` object."""
    for bad in (BAD["surrogate"], BAD["escape"]):
        with pytest.raises(OptionError, match=r"line 1, column 4 is '.*', a lone surrogate"):
            cached_kernel(f"// {bad}\n{EMPTY}")
    linkable = type("CUSource", (SimpleNamespace,), {"name": "k.cu", "data": "\ud800"})()
    with pytest.raises(OptionError, match="character 1"):
        cached_kernel(EMPTY, arch="sm_90", link=[linkable]).compile()


@pytest.mark.slow
def test_folder_whose_name_is_no_utf_8_is_searched(tmp_path: Path) -> None:
    """Paths are bytes too."""
    folder = tmp_path / "d\udce9"
    folder.mkdir()
    (folder / "h.h").write_text("#define V 3\n")
    source = '#include "h.h"\nextern "C" __global__ void k(int *x) { *x = V; }'

    assert cached_kernel(source, arch="sm_90", include_dirs=[folder]).cubin()
