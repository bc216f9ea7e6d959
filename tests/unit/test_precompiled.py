"""Precompiled headers of a worker: the same code as without them, and never stale headers."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from numba_kcache.headers import precompiled as room
from numba_kcache.headers.open_watch import OpenWatch
from numba_kcache.headers.precompiled import Precompiled
from tests.support.compiling import in_python

COMPILE = """
import hashlib, json, os
from numba_kcache import KernelCache, cached_kernel
from numba_kcache.headers.precompiled import precompiled

folder, how = {folder!r}, {how!r}
if how == "precompiled":
    precompiled.begin(folder + "/pch")
    precompiled.most = 20
cache = KernelCache(folder + "/" + how.replace("again", "precompiled"), durability="none")
found = []

def compiled(source, **options):
    kernel = cached_kernel(source, arch="sm_90", include_dirs=[folder], cache=cache, **options)
    kernel.compile()
    digest = hashlib.sha256(kernel.cubin() + kernel.ptx().encode()).hexdigest()
    found.append([digest, kernel.log, cache.info("process").compiles if how == "again" else 0])

{work}
assert how != "precompiled" or any(files for _, _, files in os.walk(precompiled.root)), "there are none"
precompiled.end()
assert not os.path.exists(folder + "/pch") or not os.listdir(folder + "/pch")
print(json.dumps(found))
"""


def compiled(folder: Path, how: str, work: str) -> list[list[object]]:
    """Digest of the code, log, and number of kernels compiled a second time, after each kernel of a process."""
    (folder / "pch").mkdir(exist_ok=True)
    if how != "again":
        (folder / "mine.h").write_text("#define N 1\n")
    found: list[list[object]] = json.loads(in_python(COMPILE.format(folder=str(folder), how=how, work=work)))
    return found


VARIETY = """
head = '#include <cuda_fp16.h>\\n#include "mine.h"\\n'
tail = 'template <int M> __global__ void t(__half *x) { x[0] = __half(M + N); }\\n'
tail += 'extern "C" __global__ void k(__half *x) { x[1] += x[0]; }'
for options in ({}, {"debug": True}, {"lineinfo": True}, {"std": "c++17"}, {"std": "c++20"}, {"options": ["-G"]}):
    for name in ("k", "t<3>", "t<4>"):
        compiled(head + tail, name=name, **options)
compiled(head + 'extern "C" __global__ void k(int *x) { *x = __LINE__ + __FILE__[0]; }')
for number, begin in enumerate(("#define WITH\\n", "")):
    conditional = begin + '#include <cuda_fp16.h>\\n#ifdef WITH\\n#include "mine.h"\\n#endif\\n'
    compiled(conditional + 'extern "C" __global__ void k(int *x) { *x = %d; }' % number)
"""


@pytest.mark.slow
def test_precompiled_headers_change_no_code_or_log(tmp_path: Path) -> None:
    """Debug code, line tables, standards, templates, places and warnings; a process without precompiled headers gets
    hits for all."""
    found = compiled(tmp_path, "precompiled", VARIETY)

    assert found == compiled(tmp_path, "plain", VARIETY)
    assert found == compiled(tmp_path, "again", VARIETY)


EDITED = """
from numba_kcache.toolchain import nvrtc
import os
text = '#include <cuda_fp16.h>\\n#include "mine.h"\\nextern "C" __global__ void k(int *x) { *x = N + %d; }'
compiled(text % 1)
compiled(text % 2)
open(folder + "/mine.h", "w").write("#define N 3\\n")
compiled(text % 1)
compiled(text % 3)
"""


@pytest.mark.slow
def test_edited_header_is_read_again(tmp_path: Path) -> None:
    """NVRTC itself does not check a header that is in a precompiled one."""
    found = compiled(tmp_path, "precompiled", EDITED)

    assert found == compiled(tmp_path, "plain", EDITED)
    assert len({digest for digest, *_ in found}) == 4  # each edit changes the code


def test_precompiled_headers_are_left_alone_once_a_file_is_another(tmp_path: Path) -> None:
    """They are not used after a file of the toolkit was edited or removed, or another one appears before it."""
    for change in ("edit", "remove", "shadow", "nothing"):
        first, second = tmp_path / change / "first", tmp_path / change / "second"
        for each in (first / "cub", second / "cub"):
            each.mkdir(parents=True)
        (header := second / "cub" / "a.h").write_text("1")
        made = Precompiled()
        made.root = str(tmp_path / change)
        watch = OpenWatch((), [str(second)])
        folder = made.folder("mirror", "#include <cub/a.h>")
        header.read_text()
        made.learn(folder, [watch], [str(first), str(second)], 1 << 62)
        watch.close()
        assert made.folder("mirror", "#include <cub/a.h>") == folder
        if change == "edit":
            header.write_text("22")
        elif change == "remove":
            header.unlink()
        elif change == "shadow":
            (first / "cub" / "a.h").write_text("1")

        assert made.folder("mirror", "#include <cub/a.h>") == (folder if change == "nothing" else "")


def test_file_that_may_have_been_written_meanwhile_is_never_taken_as_it_was(tmp_path: Path) -> None:
    """Its bytes may have changed while its stat is the same."""
    (tmp_path / "tree").mkdir()
    (header := tmp_path / "tree" / "a.h").write_text("1")
    made = Precompiled()
    made.root = str(tmp_path)
    watch = OpenWatch([str(header)])
    folder = made.folder("mirror", "#include <a.h>")
    header.read_text()
    made.learn(folder, [watch], (), os.stat(header).st_mtime_ns)
    watch.close()

    assert made.folder("mirror", "#include <a.h>") == ""


def test_texts_that_begin_otherwise_share_nothing(tmp_path: Path) -> None:
    """Under another macro or option, other headers may be included: texts share only equal beginnings."""
    made = Precompiled()
    made.root = str(tmp_path)

    folder = made.folder("mirror", "#define A\n#include <a.h>\nint x;", ["-std=c++17"])
    assert folder == made.folder("mirror", "#define A\n#include <a.h>\nint y;", ["-std=c++17"])
    assert folder != made.folder("mirror", "#define B\n#include <a.h>\nint x;", ["-std=c++17"])
    assert folder != made.folder("mirror", "#define A\n#include <a.h>\nint x;", ["-std=c++20"])
    assert made.folder("mirror", "int x;") == ""


def test_forked_process_makes_no_new_ones(tmp_path: Path) -> None:
    """It does not remove its parent's either."""
    made = Precompiled()
    made.root = str(tmp_path)
    folder = made.folder("mirror", "#include <a.h>")
    watch = OpenWatch(())
    made.learn(folder, [watch], (), 0)
    made.most = 0
    made.end()

    assert made.folder("mirror", "#include <a.h>") == folder
    assert made.folder("mirror", "#include <b.h>") == ""
    assert os.path.isdir(folder)


def test_lists_of_includes_are_bounded(tmp_path: Path) -> None:
    """The precompiled headers of each list take hundreds of megabytes."""
    made = Precompiled()
    made.root = str(tmp_path)
    watch = OpenWatch(())
    for number in range(room.MOST):
        folder = made.folder("mirror", f"#include <{number}.h>")
        assert folder
        made.learn(folder, [watch], (), 0)

    assert made.folder("mirror", "#include <more.h>") == ""
