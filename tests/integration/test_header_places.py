"""File names and line numbers, those of headers included: in the key where the code contains them, and only there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from numba_kcache import KernelCache, cached_kernel
from tests.support.compiling import in_python

SOURCE = '#include <sub/value.h>\nextern "C" __global__ void k(long *out) { *out = value(); }\n'
PLACES: dict[str, tuple[str, dict[str, Any]]] = {
    "__FILE__": ("return (long)__FILE__[*(volatile long *)0];", {}),
    "assert": ("assert(*(volatile long *)0); return 1;", {}),
    "__builtin_FILE": ("return (long)__builtin_FILE()[*(volatile long *)0];", {}),
    "lineinfo": ("return clock64();", {"lineinfo": True}),
    "debug": ("return clock64();", {"debug": True}),
}
NO_PLACES: dict[str, tuple[str, dict[str, Any]]] = {
    "nothing": ("return 1;", {}),
    "__LINE__": ("return __LINE__;", {}),
    "assert, compiled out": ("assert(*(volatile long *)0); return 1;", {"defines": {"NDEBUG": None}}),
}
"""What a header does, and the kernel's options."""


def header(body: str) -> str:
    return f"#pragma once\n__device__ inline long value() {{ {body} }}\n"


def compiles(root: Path, folder: str, options: dict[str, Any]) -> tuple[int, bytes]:
    """Number of compilations that a new process would need, and its code."""
    cache = KernelCache(root / "cache")
    kernel = cached_kernel(SOURCE, arch="sm_90", include_dirs=[root / folder], cache=cache, **options)
    code = kernel.cubin("sm_90")
    return cache.info("process").compiles, code


@pytest.mark.slow
@pytest.mark.parametrize("what", [*PLACES, *NO_PLACES])
def test_moved_header_costs_a_compile_only_where_its_path_is_in_the_code(tmp_path: Path, what: str) -> None:
    """The same content in another folder has another key only if the code contains the folder's name."""
    body, options = (PLACES | NO_PLACES)[what]
    (tmp_path / "one/sub").mkdir(parents=True)
    (tmp_path / "one/sub/value.h").write_text(header(body))
    before, code = compiles(tmp_path, "one", options)
    assert (before, compiles(tmp_path, "one", options)[0]) == (1, 0)
    assert (str(tmp_path / "one").encode() in code) == (what in PLACES)

    (tmp_path / "one").rename(tmp_path / "other")

    after, moved = compiles(tmp_path, "other", options)
    assert after == (what in PLACES)
    assert (str(tmp_path / "other").encode() in moved) == (what in PLACES)
    assert str(tmp_path / "one").encode() not in moved


@pytest.mark.slow
def test_lines_of_a_header_count_by_its_content(tmp_path: Path) -> None:
    """An added line is other content, and with `__LINE__` other code. Lines count in no other way."""
    (tmp_path / "one/sub").mkdir(parents=True)
    path = tmp_path / "one/sub/value.h"
    path.write_text(header("return __LINE__;"))
    _, code = compiles(tmp_path, "one", {})

    path.write_text("\n" + header("return __LINE__;"))

    after, moved = compiles(tmp_path, "one", {})
    assert after == 1
    assert moved != code


def test_lines_of_the_python_file_count_nowhere_without_line_tables(tmp_path: Path) -> None:
    """The place of the kernel's definition is in no key: the same source from another file and line is found."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/value.h").write_text(header("return __LINE__;"))
    define = "from numba_kcache import cached_kernel\nkernel = cached_kernel(source, arch='sm_90', cache=cache)\n"
    found = []
    for name, text in (("a.py", define), ("b.py", "\n" * 40 + define)):
        (tmp_path / name).write_text(text)
        cache = KernelCache(tmp_path / "cache")
        names: dict[str, Any] = {"source": SOURCE + "__device__ int line = __LINE__;", "cache": cache}
        exec(compile(text, str(tmp_path / name), "exec"), names)
        names["kernel"].compile()
        found.append(cache.info("process").compiles)

    assert found == [1, 0]


NOT_PLAIN = """
import os, sys
from pathlib import Path
from numba_kcache import CompileError, KernelCache, cached_kernel
from numba_kcache.errors import UncacheableError
kind, root = sys.argv[1], Path(sys.argv[2])
path = root / "value.h"
def compiled(**options):
    cache = KernelCache(root / "cache")
    kernel = cached_kernel(root / "k.cu", arch="sm_90", cache=cache, **options)
    try:
        return kernel.cubin(), cache.info("process").compiles, cache.info().entries
    except CompileError as error:
        return "value.h" in str(error), cache.info("process").compiles, cache.info().entries
(root / "k.cu").write_text('#include "value.h"\\n#ifndef VALUE\\n#define VALUE 0\\n#endif\\n'
    'extern "C" __global__ void k(long *out) { *out = VALUE; }\\n')
path.write_text("")
empty = compiled()[0]
path.write_text("#define VALUE 1\\n")
known = compiled()
assert known[0] != empty and compiled() == (known[0], 0, 2)
path.unlink()
if kind == "fifo":
    os.mkfifo(path)
elif kind.startswith("/dev"):
    path.symlink_to(kind)
elif kind == "4 GB":
    path.write_text("#define VALUE 1\\n")
    os.truncate(path, 4 << 30)
else:
    path.mkdir()
import warnings
warnings.simplefilter("ignore")
for _ in range(2):
    code, _compiles, entries = compiled()
    print("error" if code is True else code, entries)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fifo", "/dev/zero", "/dev/null", "4 GB", "a folder"])
def test_header_that_became_no_plain_file_is_an_error_in_time(tmp_path: Path, kind: str) -> None:
    """Nothing waits for the other end of a FIFO or reads a device to its end, no stored code of the file that was there
    is served, and nothing is stored."""
    assert in_python(NOT_PLAIN, kind, str(tmp_path)).splitlines() == ["error 2"] * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"lineinfo": True}, {"debug": True}, {"options": ["-include=sub/value.h"]}], ids=str
)
def test_working_directory_that_was_removed_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """NVRTC compiles there, and finds nothing in it; the second process has a hit."""
    (tmp_path / "inc/sub").mkdir(parents=True)
    (tmp_path / "inc/sub/value.h").write_text(header("return 1;"))
    (tmp_path / "removed").mkdir()
    monkeypatch.chdir(tmp_path / "removed")
    (tmp_path / "removed").rmdir()

    first = compiles(tmp_path, "inc", options)

    assert first[0] == 1
    assert compiles(tmp_path, "inc", options) == (0, first[1])


def test_text_of_no_file_is_defined_in_a_working_directory_that_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text from a prompt has no folder but the working directory."""
    (tmp_path / "removed").mkdir()
    monkeypatch.chdir(tmp_path / "removed")
    (tmp_path / "removed").rmdir()
    names: dict[str, Any] = {"cached_kernel": cached_kernel, "cache": KernelCache(tmp_path / "cache")}

    exec("kernel = cached_kernel('extern \"C\" __global__ void k() {}', arch='sm_90', cache=cache)", names)

    assert names["kernel"].cubin("sm_90")
