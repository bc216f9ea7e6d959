"""Words that a text may depend on its surroundings by: includes, the time, its own path."""

from __future__ import annotations

from pathlib import Path

import pytest

from numba_kcache.headers.words import (
    certainly_has_clock,
    has_clock,
    has_line_directive,
    has_location,
    hides_clock,
    joined,
    may_ask,
    without_clock,
)
from tests.support.nvrtc import Search, compile_source

SPELLINGS = [
    '#include "x.h"\n',
    "#include <x.h>\n",
    '  #  include "x.h"\n',
    '#include"x.h"',
    '\f#\v include\t"x.h"\r\n',
    '%:include "x.h"\n',
    '??=include "x.h"\n',
    '#inc\\\nlude "x\\\n.h"\n',
    '#inc\\\r\nlude "x.h"\r\n',
    '#inc??/\nlude "x.h"\n',
    '/* a */ # /* b\n c */ include/**/"x.h"\n',
    "#" + " " * 100 + 'include "x.h"\n',
    '#define F(a) a\nF(\n#include "x.h"\n)\n',
    '#include_next "x.h"\n',
]


@pytest.mark.parametrize("text", SPELLINGS)
def test_include_is_seen_in_spelling(tmp_path: Path, text: str) -> None:
    """NVRTC accepts the spelling (trigraphs with C++11), so such a text may ask for files."""
    (tmp_path / "x.h").write_text("#define VALUE 1\n")
    kernel = 'extern "C" __global__ void k(int *out) { *out = VALUE; }\n'
    made = compile_source(f"{text}\n{kernel}", Search((str(tmp_path),)), options=["--std=c++11"])
    assert made.code, made.log

    assert may_ask(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        "",
        'extern "C" __global__ void k(float *x) { x[threadIdx.x] *= 2; }',
        "// include nothing",
        "int included, include;",
        "#define GLUE(a, b) a##b\nint GLUE(in, clude);",
        "enum { TIME, DATE }; int TIME_, E, P, __date, LATE__LY;",
    ],
)
def test_text_that_asks_nothing_is_plain(text: str) -> None:
    """Most kernels use no header, no clock and no file name."""
    assert not may_ask(text.encode())
    assert not has_location(text.encode())
    assert not has_line_directive(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        "auto t = __TI\\\nME__;",
        "#define G(a, b) a##b\nauto t = G(__DA, TE__);",
        "#define G(a, b) a##b\nauto t = G(_, _TIME__);",
        "auto t = DEFINED_ELSEWHERE(__DA, TE__);",
        "auto t = THREE(__D, AT, E__);",
        "auto t = THREE(__, TIME, __);",
        "auto t = G(__TIMES, TAMP__);",
        "#define GLUE(a, b, c, d, e) a##b##c##d##e\nauto t = GLUE(_, _, DA, TE, __);",
    ],
)
def test_clock_in_pieces_is_hidden(text: str) -> None:
    """The macro that joins the pieces may be in another text."""
    assert hides_clock(text.encode())


def test_clock_in_one_piece_is_not_hidden() -> None:
    """Such words can be left out of a second compile, also in comments and in branches that are not taken."""
    text = b"// at __DATE__\n#if 0\nauto t = __TIMESTAMP__;\n#endif\n"

    assert has_clock(text)
    assert not hides_clock(text)
    assert not has_clock(without_clock(text))
    assert len(without_clock(text)) == len(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("auto t = __DATE__;", True),
        ("#define NOW __TIME__\nauto t = NOW[0];", True),
        ("#define NOW __TIME__\n", False),
        ('// __DATE__\nconst char *s = "__DATE__";', False),
        ("#ifdef X\nauto t = __DATE__;\n#endif", False),
    ],
)
def test_clock_is_certain_only_in_code_without_conditions(text: str, expected: bool) -> None:
    """Such a text is refused before it is compiled; for others a second compile decides."""
    assert certainly_has_clock(text.encode()) is expected


@pytest.mark.parametrize(
    "text",
    [
        "#define H __has_include\n#if H(<x.h>)\n#endif",
        "#define G(a, b) a##b\n#if G(__has_, include)(<x.h>)\n#endif",
        "#define G(a, b) a##b\n#if G(_, _has_include)(<x.h>)\n#endif",
    ],
)
def test_hidden_question_may_ask(text: str) -> None:
    """A `__has_include` that the text does not show in one piece."""
    assert may_ask(text.encode())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('#include "a.h"\nint f(int x) { return x % 2; }', False),
        ('%:include "a.h"\n??=define X 1', False),
        ('#/* a\n*/include/* b */"a.h"', False),
        ('#/* a\n*/ /**/line/* b */3 "gen.cu"', True),
        ('%:line 3 "gen.cu"', True),
        ('%\\\n:line 3 "gen.cu"', True),
        ('??=line 3 "gen.cu"', True),
        ('# 3 "gen.cu"', True),
    ],
)
def test_line_directive_is_noticed_in_each_spelling(text: str, expected: bool) -> None:
    """A digraph alone is no line directive, since other directives are written with it too."""
    assert has_line_directive(text.encode()) is expected


@pytest.mark.parametrize(
    "word", ["__FILE__", "__builtin_FILE()", "std::source_location", "__FI\\\nLE__", "G(__FI, LE__)", "_FILE__"]
)
def test_location_is_noticed(word: str) -> None:
    """Words that put a file's name into the code are noticed; line numbers depend on the content only."""
    assert has_location(f"int x = {word};".encode())
    assert not has_location(b"int x = __LINE__;")


def test_joined_lines_are_those_of_the_language() -> None:
    """A backslash, or its trigraph, at the end of a line; NVRTC ignores blanks after it."""
    assert joined(b"a\\\nb\\\r\nc??/\nd\\ \ne\\f") == b"abcde\\f"
