"""Compiler messages point at the line of the user's own file, whichever way the source was made from it."""

from __future__ import annotations

import linecache
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import pytest

from numba_kcache.errors import CompileError
from numba_kcache.frontends import Kernel, cached_kernel
from numba_kcache.model import Origin
from numba_kcache.toolchain.diagnostics import MAX_LOG_BYTES, bounded, excerpt, first_line, remap, summary

WRONG = """
extern "C" __global__ void k(float *x) {
    int i = threadIdx.x;
    x[i] = undefined_name;
}"""


def loaded(path: Path, text: str) -> dict[str, Any]:
    """The names of a module written to `path`."""
    path.write_text(text, encoding="utf-8")
    linecache.checkcache()
    names: dict[str, Any] = {"__name__": "user_module"}
    exec(compile(text, str(path), "exec"), names)  # as an import would
    return names


def refused(kernel: Kernel) -> CompileError:
    """The error that compiling the kernel raises."""
    with pytest.raises(CompileError) as caught:
        kernel.compile("sm_90")
    return caught.value


MODULES = {
    "raw": f"def k() -> str:\n    return r'''{WRONG}'''\n",
    "indented": f"if True:\n    def k() -> str:\n        return '''\n{indent(WRONG, ' ' * 12)}'''\n",
    "dedented": f"import textwrap\n\ndef k():\n    return textwrap.dedent('''{indent(WRONG, ' ' * 8)}''')\n",
    "formatted": "N = 3\n\ndef k() -> str:\n    return f'''"
    + WRONG.replace("{", "{{").replace("}", "}}").replace("threadIdx.x", "threadIdx.x + {N}")
    + "'''\n",
    "after another": f"def other() -> str:\n    return '''{WRONG.replace('undefined_name', '1')}'''\n\n"
    f"def k() -> str:\n    return '''{WRONG}'''\n",
    "first line": "def k() -> str:\n    return '''extern \"C\" __global__ void k(float *x) {\n"
    "    *x = undefined_name; }'''\n",
    "concatenated": "def k() -> str:\n    return (\n        'extern \"C\" __global__ void k(float *x) {\\n'\n"
    "        '    *x = undefined_name;\\n'\n        '}\\n'\n    )\n",
    "formatted, most lines with braces": "N = 3\n\ndef k() -> str:\n    return f'''\n"
    "template<class T> __device__ T g(T a) {{ return a + {N}; }}\n"
    'extern "C" __global__ void k(float *x) {{\n    x[{N}] = undefined_name;\n}}\'\'\'\n',
    "several lines in a placeholder": "BODY = 'int a;\\nint b;\\nint c;\\n'\n\ndef k() -> str:\n    return f'''\n"
    "template<class T> __device__ T first(T a) {{ return a; }}\n"
    'extern "C" __global__ void k(float *x) {{\n    {BODY}\n    x[0] = 1;\n    x[1] = undefined_name;\n}}\'\'\'\n',
    "in two parts": "HEAD = '''\n__device__ float f(float a) { return a; }\n__device__ float g(float a) { return a; }\n"
    "'''\n\ndef k() -> str:\n    return HEAD + '''extern \"C\" __global__ void k(float *x) {\n"
    "    x[0] = f(1);\n    x[1] = undefined_name;\n}'''\n",
    "replaced": "def k() -> str:\n    return '''\nextern \"C\" __global__ void k(TYPE *x) {\n"
    "    int i = 0;\n    TYPE a = x[i];\n"
    "    TYPE b = undefined_name;\n    x[i] = a;\n    x[1] = a + b;\n}'''.replace('TYPE', 'float')\n",
    "escaped quotes": 'def k() -> str:\n'
    '    return "extern \\"C\\" __global__ void k(float *x) { *x = undefined_name; }"\n',
    "windows lines": f"def k() -> str:\r\n    return r'''{WRONG}'''\r\n".replace("\r\n", "\n").replace("\n", "\r\n"),
}  # fmt: skip


@pytest.mark.parametrize("form", list(MODULES))
def test_error_names_the_user_s_file_and_line(tmp_path: Path, form: str) -> None:
    """Raw, indented, dedented, formatted, concatenated: the named line contains the mistake."""
    path = tmp_path / "user_module.py"
    error = refused(cached_kernel(loaded(path, MODULES[form])["k"]))
    lines = MODULES[form].splitlines()
    wanted = max(index for index, line in enumerate(lines, 1) if "undefined_name" in line)

    assert f"{path}({wanted}): error: identifier" in error.log
    assert f"{path}({wanted})" in str(error)
    assert "undefined_name" in str(error)


def test_decorator_and_comments_between_do_not_mislead(tmp_path: Path) -> None:
    """The definition starts at the decorator; lines between it and the source are skipped."""
    text = (
        "from numba_kcache import cached_kernel\n\n@cached_kernel(\n    fastmath=True,\n)\ndef k() -> str:\n"
        f"    '''Doc.'''\n    # a comment\n    return r'''{WRONG}'''\n"
    )
    error = refused(loaded(tmp_path / "user.py", text)["k"])

    assert f"user.py({text.splitlines().index('    x[i] = undefined_name;') + 1}): error" in error.log


def test_string_in_a_module_is_found(tmp_path: Path) -> None:
    """`cached_kernel(SOURCE)`: the text stands above or below the call in the same file."""
    text = f"from numba_kcache import cached_kernel\nSOURCE = '''{WRONG}'''\n\nkernel = cached_kernel(SOURCE)\n"

    assert f"user.py({text.splitlines().index('    x[i] = undefined_name;') + 1}): error" in (
        refused(loaded(tmp_path / "user.py", text)["kernel"]).log
    )


def test_cu_file_is_its_own_source(tmp_path: Path) -> None:
    """Errors in a `.cu` file name that file and its own line."""
    (tmp_path / "k.cu").write_text(WRONG)

    assert f"{tmp_path}/k.cu(4): error" in refused(cached_kernel(tmp_path / "k.cu")).log


def test_source_without_a_file_is_named_with_its_line() -> None:
    """With exec, stdin or `-c`, the message has the line of the source and no name of a missing file."""
    names: dict[str, Any] = {"__name__": "nowhere"}
    exec(f"def k() -> str:\n    return '''{WRONG}'''\n", names)

    assert "line 4 of the source of nowhere.k: error: identifier" in refused(cached_kernel(names["k"])).log


def test_cell_of_a_notebook_is_named_with_its_line() -> None:
    """The name is that of Python's tracebacks. It is in no key, even with `lineinfo`, since it differs in each
    session."""
    keys = []
    for name in ("/tmp/ipykernel_1/2345.py", "/tmp/ipykernel_2/99.py"):
        text = MODULES["raw"]
        linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(text, name, "exec"), names)
        try:
            kernel = cached_kernel(names["k"], arch="sm_90", lineinfo=True)
            assert f"{name}(5): error: identifier" in refused(kernel).log
            keys.append(kernel.key())
        finally:
            del linecache.cache[name]

    assert keys[0] == keys[1]


def test_source_that_its_file_does_not_show_is_named_with_its_line(tmp_path: Path) -> None:
    """For a generated source no line of the file is named, since none contains its text."""
    text = "def k() -> str:\n    return '\\n'.join(chr(ord(c)) for c in [])\n"
    kernel = loaded(tmp_path / "user.py", text.replace("[]", repr(["~"])))["k"]
    error = refused(cached_kernel(kernel))

    assert "user.py(" not in error.log
    assert "line 1 of the source of user_module.k: error" in error.log


def test_error_in_included_text_is_left_alone(tmp_path: Path) -> None:
    """A position in a header stays as it is."""
    (tmp_path / "bad.h").write_text("int f( { }\n")
    (tmp_path / "k.cu").write_text('#include "bad.h"\nextern "C" __global__ void k() {}\n')
    kernel = cached_kernel(tmp_path / "k.cu", strict=False)

    with pytest.raises(CompileError, match=r"bad\.h\(1\)"):
        kernel.compile("sm_90")


ORIGIN_TEXT = "a = 1\nb = 2\ncode = '''\n  one();\n  two();\n  three();\n'''\n"


@pytest.mark.parametrize(
    ("source", "line", "found"),
    [
        ("\n  one();\n  two();\n  three();\n", 1, 3),
        ("one();\ntwo();\nthree();\n", 1, 4),
        ("one();\nTWO();\nthree();\n", 1, 4),
        ("one();\nTWO();\nTHREE();\n", 1, None),
        ("two();\n", 1, 5),
        ("one();", 5, None),
        ("", 1, None),
        ("\n \n", 1, None),
    ],
)
def test_first_line_is_where_most_lines_agree(tmp_path: Path, source: str, line: int, found: int | None) -> None:
    """At least half of the lines must agree, from the definition on; otherwise no position is given."""
    path = tmp_path / "user.py"
    path.write_text(ORIGIN_TEXT)
    linecache.checkcache()

    assert first_line(source, Origin(str(path), line)) == found


def test_remap_touches_nothing_but_positions(tmp_path: Path) -> None:
    """Words that look like the program's name, and positions in other files, are unchanged."""
    path = tmp_path / "user.py"
    path.write_text(ORIGIN_TEXT)
    linecache.checkcache()
    log = 'k.cu(2): error in "k.cu"\nxk.cu(2): no\n/usr/k.cu(2): no\nh.h(3): see k.cu(1)\n2 errors in k.cu'

    assert remap(log, "k.cu", "one();\ntwo();\nthree();", Origin(str(path), 1)) == (
        f'{path}(5): error in "{path}"\nxk.cu(2): no\n/usr/k.cu(2): no\nh.h(3): see {path}(4)\n2 errors in k.cu'
    )
    assert remap(log, "k.cu", "one();", Origin()) == log


def test_summary_is_the_first_error() -> None:
    """Warnings before it are passed over; a log without one gives its first line; an empty one says so."""
    assert summary("k.cu(1): warning: w\n  k.cu(2): error: e\nk.cu(3): error: f") == "k.cu(2): error: e"
    assert summary("\n\nsomething\nelse") == "something"
    assert summary("") == "the compiler gave no reason"


def test_excerpt_is_a_screenful() -> None:
    """An excerpt of a long log says how many lines it leaves out."""
    log = dedent("\n".join(f"line {n}" for n in range(50)))

    assert excerpt("short\nlog") == "short\nlog"
    assert excerpt(log).splitlines()[-1] == "... 30 more lines in .log"
    assert len(excerpt(log).splitlines()) == 21


def test_positions_in_words_are_the_user_s_too(tmp_path: Path) -> None:
    """`at line N`, for the place of a template's instantiation, becomes the user's line with its file."""
    text = (
        "# a comment\n\ndef k() -> str:\n    return f'''\n"
        "template<class T> __device__ T g(T a) {{ return a.missing; }}\n"
        "extern \"C\" __global__ void k(float *x) {{\n    *x = g(1.0f);\n}}'''\n"
    )
    path = tmp_path / "user.py"
    log = refused(cached_kernel(loaded(path, text)["k"])).log

    assert f"{path}(5): error: expression must have class type" in log
    assert f'at line 7 of "{path}"' in log


def test_lines_that_a_placeholder_brought_are_the_source_s(tmp_path: Path) -> None:
    """A line of the file is named only if it contains the text."""
    text = (
        "BODY = '\\n'.join(chr(105) + f'nt a{n} = undefined_{n}' + ';' for n in range(3))\n\ndef k() -> str:\n"
        "    return f'''\ntemplate<class T> __device__ T first(T a) {{ return a; }}\n"
        "extern \"C\" __global__ void k(float *x) {{\n    {BODY}\n    x[0] = first(1);\n}}'''\n"
    )
    log = refused(cached_kernel(loaded(tmp_path / "user.py", text)["k"])).log

    assert [f"line {line} of the source of user_module.k: error" in log for line in (4, 5, 6)] == [True] * 3
    assert "user.py(" not in log


def test_error_in_ptx_names_the_user_s_line_and_shows_it(tmp_path: Path) -> None:
    """The assembler's `line 6` is a line of the Python file."""
    text = (
        "def k() -> str:\n    return '''\n.version 8.0\n.target sm_80\n.address_size 64\n"
        ".visible .entry k(.param .u64 x) {\n  mov.u32 %missing, 5;\n  ret;\n}\n'''\n"
    )
    path = tmp_path / "user.py"
    error = refused(cached_kernel(loaded(path, text)["k"], kind="ptx"))

    assert f"{path}(7): error: " in str(error)
    assert "mov.u32 %missing, 5;" in str(error)


def test_ptx_taken_for_cuda_is_told(tmp_path: Path) -> None:
    """A function returns PTX: the hint says how to declare it."""
    error = refused(cached_kernel(loaded(tmp_path / "u.py", "def k() -> str:\n    return '.version 8.0'\n")["k"]))

    assert error.hint == "this is PTX: say kind='ptx'"


def test_link_input_s_error_names_its_path(tmp_path: Path) -> None:
    """The error has the path of the linked file."""
    (tmp_path / "device.cu").write_text("__device__ int f() {\n  return nowhere; }\n")
    error = refused(cached_kernel('extern "C" __global__ void k() {}', link=[tmp_path / "device.cu"]))

    assert f"{tmp_path}/device.cu(2): error" in str(error)


def test_excerpt_shows_errors_before_warnings_where_room_is_short() -> None:
    """Thirty warnings before the error do not push it off the screen."""
    warnings = "\n\n".join(f"k.cu({n}): warning: w\n  code\n  ^" for n in range(30))
    log = f"{warnings}\n\nk.cu(99): error: {'e' * 500}\n  code\n  ^\n\n1 error detected"
    shown = excerpt(log).splitlines()

    assert shown[0] == f"k.cu(99): error: {'e' * 500}"
    assert len(shown) == 21


def test_message_has_no_colours(tmp_path: Path) -> None:
    """Escape sequences are removed: exceptions are also written to files and notebooks."""
    error = refused(cached_kernel(loaded(tmp_path / "u.py", MODULES["raw"])["k"]))

    assert "\x1b" not in str(error) + error.log


def test_log_is_kept_with_its_head_and_tail() -> None:
    """A template error can take hundreds of MB, more than an entry holds."""
    log = b"first error\n" + b"x" * (3 << 20) + b"\nlast error"

    kept = bounded(log)

    assert kept.startswith(b"first error\n")
    assert kept.endswith(b"\nlast error")
    assert b"bytes left out" in kept
    assert len(kept) < MAX_LOG_BYTES + 100
    assert bounded(b"short") == b"short"
