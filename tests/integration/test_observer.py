"""The observer beside other things in a process: threads that compile at once, forks, other hooks, read-only pages."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from numba_kcache import KernelCache, cached_kernel
from tests.support.compiling import in_python
from tests.support.programs import program
from tests.support.stores import in_child

SOURCE = '#include <value.h>\nextern "C" __global__ void k(long *out) { *out = VALUE; }\n'


def write(folder: Path, value: int) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "value.h").write_text(f"#define VALUE {value}\n")


def compiles(directory: Path, folder: Path) -> int:
    """Request a kernel that includes the folder's header, as a new process would; return the number of compiles."""
    cache = KernelCache(directory)
    cached_kernel(f"// {folder.name}\n{SOURCE}", arch="sm_90", cache=cache, include_dirs=[folder]).compile()
    return cache.info("process").compiles


@pytest.mark.slow
def test_threads_that_compile_at_once_are_recorded_apart(tmp_path: Path) -> None:
    """Each kernel depends on the header that its own thread read, and on no other."""
    folders = [tmp_path / f"of{number}" for number in range(6)]
    for number, folder in enumerate(folders):
        write(folder, number)

    with ThreadPoolExecutor(len(folders)) as threads:
        assert [*threads.map(lambda folder: compiles(tmp_path / "cache", folder), folders)] == [1] * 6
    write(folders[2], 7)

    assert [compiles(tmp_path / "cache", folder) for folder in folders] == [0, 0, 1, 0, 0, 0]


@pytest.mark.slow
def test_forked_child_records_its_own_compiles(tmp_path: Path) -> None:
    """The functions stay replaced in the child, and what it reads is in its own list."""
    for name in ("parent", "child"):
        write(tmp_path / name, 1)
    assert compiles(tmp_path / "cache", tmp_path / "parent") == 1

    def compiles_once() -> None:
        assert compiles(tmp_path / "cache", tmp_path / "child") == 1

    assert in_child(compiles_once) == 0

    assert [compiles(tmp_path / "cache", tmp_path / name) for name in ("parent", "child")] == [0, 0]
    write(tmp_path / "child", 2)
    assert [compiles(tmp_path / "cache", tmp_path / name) for name in ("parent", "child")] == [0, 1]


PAGES = """
import ctypes
from numba_kcache.launch import native
from numba_kcache.toolchain import load_compilers
from numba_kcache.toolchain.loaded import called_library

def pages():
    with open("/proc/self/maps") as maps:
        return [line.split()[:3] for line in maps if "libnvrtc.so" in line]

load_compilers(("nvrtc",))
before = pages()
print([native.observe(called_library("nvrtc")[0]) for _ in range(2)], pages() == before, len(before) > 3)
"""


@pytest.mark.slow
def test_pages_have_the_rights_that_they_had(tmp_path: Path) -> None:
    """A table that the loader has made read-only is so again once its slots are written."""
    assert in_python(PAGES).strip() == "['', ''] True True"


HOOK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
int opened;
FILE *fopen(const char *path, const char *mode) {
    FILE *(*next)(const char *, const char *) = (FILE *(*)(const char *, const char *))dlsym(RTLD_NEXT, "fopen");
    opened += strstr(path, "value.h") != NULL;
    return next(path, mode);
}
"""
HOOKED = """
import ctypes, sys
from pathlib import Path
from numba_kcache import KernelCache, cached_kernel
folder, source = Path(sys.argv[1]), sys.argv[2]
for value in (1, 1, 2):
    (folder / "value.h").write_text(f"#define VALUE {value}")
    cache = KernelCache(folder / "cache")
    cached_kernel(source, arch="sm_90", cache=cache, include_dirs=[folder]).compile()
    print(cache.info("process").compiles, ctypes.c_int.in_dll(ctypes.CDLL(None), "opened").value)
"""


@pytest.mark.slow
def test_hook_that_was_there_before_is_still_called(tmp_path: Path) -> None:
    """A sanitizer or another tool sees each file that NVRTC opens, and so does the observer."""
    (tmp_path / "hook.c").write_text(HOOK)
    hook = tmp_path / "hook.so"
    subprocess.run([program("cc"), "-shared", "-fPIC", str(tmp_path / "hook.c"), "-o", str(hook), "-ldl"], check=True)

    said = in_python(HOOKED, str(tmp_path), SOURCE, LD_PRELOAD=str(hook)).split("\n")

    compiled, opened = zip(*(map(int, line.split()) for line in said if line), strict=True)
    assert compiled == (1, 0, 1)
    assert 0 < opened[0] == opened[1] < opened[2]


IMPORTS = {
    "12.1 to 12.5": "_ITM_RU1 _ITM_RU8 _ITM_addUserCommitAction _ITM_memcpyRnWt _ITM_memcpyRtWn _ZGTtdlPv _ZGTtnam "
    "__isnan bindtextdomain chmod frexpl fstatfs getpwnam getpwuid gettext link rename setlocale setvbuf strncat "
    "strsep symlink usleep wmemcmp",
    "12.6": "__isnan frexpl gettext strncat",
    "12.8": "gettext nextafter",
}
OBSERVED = """
import ctypes, sys
from numba_kcache.launch import native
library = ctypes.CDLL(sys.argv[1], 1)
print(native.observe(ctypes.cast(library.anchor, ctypes.c_void_p).value))
"""


@pytest.mark.parametrize("version", IMPORTS)
def test_functions_that_an_older_nvrtc_imports_are_known(tmp_path: Path, version: str) -> None:
    """PyTorch for CUDA 12.8 and 12.6 brings these; an unknown function would leave kernels with headers uncached."""
    names = IMPORTS[version].split()
    text = "".join(f"extern void {name}(); void call_{name}(void) {{ {name}(); }}\n" for name in (*names, "fopen"))
    (tmp_path / "nvrtc.c").write_text(f"{text}void anchor(void) {{}}\n")
    library = str(tmp_path / "nvrtc.so")
    flags = ["-shared", "-fPIC", "-fno-builtin", "-w", "-std=gnu11", "-Wl,-z,lazy"]
    subprocess.run([program("cc"), *flags, str(tmp_path / "nvrtc.c"), "-o", library], check=True)

    assert in_python(OBSERVED, library) == "\n"
