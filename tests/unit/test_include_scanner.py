"""The scanner's findings in a text: every include that NVRTC carries out, and each uncertainty."""

from __future__ import annotations

from pathlib import Path

import pytest

from numba_kcache.headers.scanner import (
    PLAIN,
    Form,
    Include,
    has_line_directive,
    macro_values,
    scan_includes,
    unconditional_includes,
    wrapper_uses,
)
from numba_kcache.headers.search import Search
from tests.support.nvrtc import compile_source

SPELLINGS = [
    '#include "x.h"\n',
    "#include <x.h>\n",
    '  #  include "x.h"\n',
    '#include"x.h"',
    '#include "x.h" // said\n',
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
    """NVRTC accepts the spelling (trigraphs with C++11), so the scanner must find it."""
    (tmp_path / "x.h").write_text("#define VALUE 1\n")
    kernel = 'extern "C" __global__ void k(int *out) { *out = VALUE; }\n'
    made = compile_source(f"{text}\n{kernel}", Search((str(tmp_path),)), options=["--std=c++11"])
    assert made.code, made.log

    assert "x.h" in [name for _form, name in scan_includes(text).includes]


@pytest.mark.parametrize(
    "text",
    [
        "",
        'extern "C" __global__ void k(float *x) { x[threadIdx.x] *= 2; }',
        "// include nothing",
        "int included, include;",
        "#define GLUE(a, b) a##b\nint GLUE(in, clude);",
        "#if defined(__has_include)\n#endif\n#ifndef __has_include\n#define __has_include(x) 0\n#endif",
        "// the first #include of this file, or __has_include(what), at __DATE__\n",
        "const char *s = \"__DATE__ /*\";\nchar c = '\"', d = 1'000;\n",
        "enum { TIME, DATE }; int TIME_, E, P, __date, LATE__LY;",
    ],
)
def test_text_that_asks_nothing_is_plain(text: str) -> None:
    """Most kernels use no header, no clock and no file name."""
    assert scan_includes(text) == PLAIN
    assert not scan_includes(text).asks_files


@pytest.mark.parametrize(
    "text",
    [
        "auto t = __DATE__;",
        "auto t = __TI\\\nME__;",
        "#define G(a, b) a##b\nauto t = G(__DA, TE__);",
        "#define G(a, b) a##b\nauto t = G(_, _TIME__);",
        "auto t = DEFINED_ELSEWHERE(__DA, TE__);",
        "auto t = THREE(__D, AT, E__);",
        "auto t = THREE(__, TIME, __);",
        "auto t = G(__TIMES, TAMP__);",
        'auto s = R"(//)" __DATE__;',
        "#error don't\nauto t = __DATE__; // don't",
        "auto t = 1'000 + f(__DATE__, 'c');",
        "// what??/\nauto t = __DATE__;",
        "// what\rauto t = __DATE__;",
        "#if 0\n#else\nauto t = __DATE__;\n#endif",
        "#if 0\n#if 1\n#elif 1\n#endif\n#elif 1\nauto t = __TIME__;\n#endif",
        "#if 0\n#en\\\ndif\nauto t = __DATE__;",
        "#if 0\n??=endif\nauto t = __DATE__;",
        "#if 0\n#endif(\nauto t = __TIME__;",
        "#if 0 == OTHER\nauto t = __TIME__;\n#endif",
        "/*\n#if 0\n*/ auto t = __DATE__;",
        "#if 0\ndon't /*\n#endif\n*/ auto t = __DATE__;",
        '#if 0\nR"x(\n#endif\n)x"\nauto t = __DATE__;\n#endif',
        'auto s = R"x(\n#if 0\n)x"; auto t = __DATE__; auto u = R"x(\n#endif\n)x";',
        '#define Q R"x(\n#define P __DATE__\n#define W )x"',
        'auto s = R"(a" /* )";\n#if 0\nauto t = __DATE__; /* */\n#endif',
        'auto s = R"x(\\\n)x";\n#if 0\nauto t = __DATE__;\n#endif',
        '#if 0\n"\n#else\nauto t = __DATE__;\n#endif',
        "#define GLUE(a, b, c, d, e) a##b##c##d##e\nauto t = GLUE(_, _, DA, TE, __);",
    ],
)
def test_clock_is_noticed(text: str) -> None:
    """Every spelling counts, also where the text alone does not decide if it is a comment, string or branch."""
    assert scan_includes(text).has_clock


@pytest.mark.parametrize(
    "text",
    [
        "#if 0\nauto t = __DATE__;\n#endif\n",
        "%:if 0 // old\n#ifdef X\n#else\nauto t = __TIME__;\n#endif\nauto u = __TIMESTAMP__;\n# endif",
        "#if 0\n#define G(a, b) a##b\nauto t = G(__DA, TE__);\n#elif 1\n#endif",
        '#if 0\n"without an end\nauto t = __DATE__;\n#endif',
        "#if 0\ndon't\nauto t = __DATE__;\n#endif",
        'auto s = R"x(\n#include "a.h"\n)x";\n#if 0\nauto t = __DATE__;\n#endif',
    ],
)
def test_clock_under_if_0_is_none(text: str) -> None:
    """No header and no macro can make it active, so no compile is needed to decide."""
    assert not scan_includes(text).has_clock


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
    "text",
    [
        "#define H __has_include\n#if H(<x.h>)\n#endif",
        "#define H(x) __has_include(x) + 1\n",
        "#define H(x, y) __has_include(y)\n",
        "#define H(x) __has_include(x.h)\n",
        "#define H(x) __has_include(<x.h>)\n",
        "#define H __has_include(<x.h>)\n",
        "#define H(x) /*\n*/ __has_include(x.h)\n",
        "#if __has_include(X(\n))\n#endif",
        "#define G(a, b) a##b\n#if G(__has_, include)(<x.h>)\n#endif",
        "#if DEFINED_ELSEWHERE(__has_in, clude)(<x.h>)\n#endif",
        "#define G(a, b) a##b\n#if G(_, _has_include)(<x.h>)\n#endif",
    ],
)
def test_hidden_question_is_noticed(text: str) -> None:
    """A `__has_include` whose file name the text does not give."""
    assert scan_includes(text).is_opaque


def test_questions_and_computed_includes_are_listed() -> None:
    """The list has what the search needs: the form and the name, or the operand."""
    scan = scan_includes(
        '#if defined(__has_include) && __has_include( /* is it */ <a.h> ) || __has_include("b.h")\n'
        "#include HEADER /* of ours */\n#include STRING(x.h)\n#include_next HEADER\n"
        "#elif __has_include(WHICH) && __has_include_next( NAMED(x, (y)) ) // __has_include(NONE)\n#endif\n"
    )

    assert scan.has_includes == (Include(Form.ANGLE, "a.h"), Include(Form.QUOTE, "b.h"))
    assert scan.computed == ("HEADER", "STRING(x.h)", "include_next HEADER")
    assert scan.asked == ("WHICH", "include_next NAMED(x, (y))")
    assert not scan.is_opaque


def test_uses_of_a_wrapped_question_are_listed() -> None:
    """The macro is written as in CCCL of CUDA 12; a use without a file name, or in another macro, is uncertain."""
    text = b"#ifdef __has_include\n#  define ASK(_X) __has_include(_X)\n#else\n#  define ASK(_X) 0\n#endif\n"
    scan = scan_includes(text)
    assert scan.wrappers == ("ASK",)
    assert scan_includes("#define ASK(x) /* ask */ __has_include(x)\n").wrappers == ("ASK",)
    assert not scan.is_opaque
    asks = frozenset({"ASK"})

    assert wrapper_uses(text, asks) == (set(), False)
    assert wrapper_uses(b'#if ASK(<a.h>) && !defined(ASK)\n#endif // ASK or ASK("b.h")\n', asks) == (
        {Include(Form.ANGLE, "a.h"), Include(Form.QUOTE, "b.h")},
        False,
    )
    assert wrapper_uses(b"#define MORE ASK\n", asks) == (set(), True)
    assert wrapper_uses(b"#if ASK(WHICH)\n", asks) == (set(), True)
    assert wrapper_uses(b"#if TASK(WHICH) || ASKED\n", asks) == (set(), False)


@pytest.mark.parametrize(
    "word",
    ["__FILE__", "__BASE_FILE__", "__builtin_FILE()", "std::source_location", "__FI\\\nLE__", "P(__FI##LE__)",
     "P(__##FILE##__)"],
)  # fmt: skip
def test_location_is_noticed(word: str) -> None:
    """Words that put a file's name into the code are noticed; line numbers depend on the content only."""
    assert scan_includes(f"int x = {word};").has_location
    assert not scan_includes("int x = __LINE__ + __builtin_LINE();").has_location


def test_assert_is_noticed() -> None:
    """An active `assert` puts the file's name into the code."""
    assert scan_includes("assert(x);").has_assert
    assert not scan_includes("static_assert(true); my_assert(1);").has_assert


def test_unconditional_includes_are_those_under_no_condition() -> None:
    """Literal ones outside of every `#if`, comments left out."""
    text = '#include "a.h"\n#if 1\n#include "b.h"\n#endif\n// #include "c.h"\n/*\n#include "d.h"\n*/\n# include <e.h>\n'

    assert unconditional_includes(text) == (Include(Form.QUOTE, "a.h"), Include(Form.ANGLE, "e.h"))
    assert unconditional_includes("#error don't\n" + text) == ()


def test_macro_values_are_file_names_or_unknown() -> None:
    """Every definition in any branch counts; one that is no file name means that further names are possible."""
    text = b'#define H "a.h"\n# define H <b.h> // second\n#define HH "c.h"\n#define F(x) <x>\n#define \\\nH OTHER\n'

    assert macro_values(text, frozenset({"H", "F"})) == {
        "H": {Include(Form.QUOTE, "a.h"), Include(Form.ANGLE, "b.h"), None},
        "F": {None},
    }


def test_names_are_listed_by_their_bytes() -> None:
    """A text that stands for bytes in Latin-1 names the file that those bytes name."""
    wanted = scan_includes(b'#include "l\xe4nge.h"\n#include STRING(l\xe4nge.h)')

    assert scan_includes('#include "l\udce4nge.h"\n#include STRING(l\udce4nge.h)') == wanted
    assert wanted.includes == (Include(Form.QUOTE, "l\udce4nge.h"),)
