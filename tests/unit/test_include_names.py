"""Header names that macros form: every name under which NVRTC may search."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from numba_kcache.headers.include_names import IncludeNames
from numba_kcache.headers.scanner import Form, Include
from numba_kcache.headers.search import Search
from tests.support.nvrtc import compile_here, in_child, library_path

STR = "#define STR_(x) #x\n#define STR(x) STR_(x)\n"
NAMES: list[tuple[str, str, set[str | None]]] = [
    ("S(a/b.h)", "#define S(x) #x", {"a/b.h"}),
    ("S( a.h )", "#define /* c */ S(x)  # x // c", {"a.h"}),
    ("S(a.h)", "%:define S(x) %:x", {"a.h"}),
    ("S(a.h)", "#define S(x) \\\n #x", {"a.h"}),
    ("S(a.h)", "#define S(...) #__VA_ARGS__", {"a.h"}),
    ("S(a.h, b)", "#define S(x, ...) #x", {"a.h"}),
    ("S(N.h)", "#define S(x) #x\n#define N a", {"N.h"}),
    ("STR(N)", STR + "#define N a.h", {"a.h", "N"}),
    ("STR(N)", STR + "#define N a.h\n#define N b.h", {"a.h", "b.h", "N"}),
    ("STR(N.h)", STR + "#define N a", {"a.h", "N.h"}),
    ("STR(D/N.h)", STR + "#define D sub\n#define N a", {"sub/a.h", "D/a.h", "sub/N.h", "D/N.h"}),
    ("STR(JOIN(a, b).h)", STR + "#define JOIN(x, y) x ## y", {"ab.h", "JOIN(a, b).h"}),
    ("J(a.h)", "#define J(x) <x>", {"a.h"}),
    ("J( a.h )", "#define J(x) < x >", {"a.h", " a.h"}),
    ("J(sub, a)", "#define J(x, y) <x/y.h>", {"sub/a.h"}),
    ("J(, a)", "#define J(x, y) <x##y.h>", {"a.h"}),
    ("J()", "#define J() <a.h>", {"a.h"}),
    ("J J(a.h)", "#define J(x) <x>", set()),
    ("H", '#define H "a.h" more', {"a.h"}),
    ("H", "#define H G\n#define G <a.h>", {"a.h"}),
    ("H(a.h)", "#define H J\n#define J(x) <x>", {"a.h"}),
    ("H", "#define H H", set()),
    ("L a.h >", "#define L <", {" a.h", "a.h"}),
    ("<N.h>", "#define N a", {"a.h", "N.h"}),
    ("ELSEWHERE(a.h)", "", set()),
    ("STR(unix.h)", STR, {None}),
    ("STR(__CUDA_ARCH__.h)", STR, {None}),
    ("STR(_own.h)", STR, {"_own.h"}),
    ("_ELSEWHERE", "", {None}),
    ("STR(__CUDA_ARCH__.h)", STR + "#ifndef __CUDA_ARCH__\n#define __CUDA_ARCH__ 1\n", {None}),
    ("__OURS", "#define __OURS <a.h>", {"a.h"}),
    ("S(a.h)", "#define S(x, y) #x", {None}),
    ('S("a.h")', "#define S(x) #x", {None}),
    ("S(a.h)", "#define S(x) /* on\n */ #x", {None}),
    ("S(a.h)", "#define S(x...) #x", {None}),
    ("J(\\u0061.h)", "#define J(x) <x>", {None}),
    ("A(a.h)", "".join(f"#define {name} {name}{number}\n" for name in "ABCDEFGH" for number in range(9)), set()),
    ("STR(A B C D E F G H)", STR + "".join(f"#define {a} {n}\n" for a in "ABCDEFGH" for n in range(9)), {None}),
]
FILES = ["a.h", "b.h", "sub/a.h", "ab.h", "N.h", " a.h", "_own.h", "a/b.h"]


@pytest.mark.parametrize(("operand", "text", "names"), NAMES)
def test_names_that_macros_form_are_listed(operand: str, text: str, names: set[str | None]) -> None:
    """Names for each definition of each macro, and for it being undefined; None where they cannot be listed."""
    found = IncludeNames(lambda: [text.encode()]).listed(operand)

    assert {each and each.name for each in found} == names


def test_form_of_a_name_is_that_of_the_operand() -> None:
    """Quotes, brackets, or the next file of that name."""
    names = IncludeNames(lambda: [b'#define Q "q.h"\n', b"#define A <a.h>\n"])

    assert names.listed("Q") == {Include(Form.QUOTE, "q.h")}
    assert names.listed("A") == {Include(Form.ANGLE, "a.h")}
    assert names.listed("include_next A") == {Include(Form.NEXT, "a.h")}


@pytest.mark.slow
def test_file_that_nvrtc_includes_is_among_the_names(tmp_path: Path) -> None:
    """Each operand of the table, with only one of the files present."""
    for position, (operand, text, names) in enumerate(NAMES):
        folders = {
            name: tmp_path / f"{position}-{number}" for number, name in enumerate(FILES if None not in names else ())
        }
        for name, folder in folders.items():
            (folder / name).parent.mkdir(parents=True)
            (folder / name).write_text("")
        source = f"{text}\n#include {operand}\n" + 'extern "C" __global__ void k() {}\n'
        assert included(folders, source) <= names, (operand, text)


def included(folders: Mapping[str, Path], source: str) -> set[str | None]:
    """The names whose folder has the header that the source includes; one process tries each, without the toolkit's
    headers."""
    nvrtc = library_path()

    def is_included(folder: Path) -> bool:
        return compile_here(nvrtc, source, Search((str(folder),)), options=["--minimal"]).code is not None

    return in_child(lambda: {name for name, folder in folders.items() if is_included(folder)})
