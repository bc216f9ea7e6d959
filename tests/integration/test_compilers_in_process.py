"""The compilers of a key are those that ran, or on a look-up the installed ones, whatever others have mapped."""

from __future__ import annotations

import json
import os
import shutil
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.support import fake_driver, numba_server
from tests.support.compiling import in_python
from tests.support.nvrtc_copies import IGNORED, copy_of, with_runpath

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="looks at what Linux has mapped")]

PROGRAM = """
import ctypes, json, os, sys
{before}
import numba_kcache
from numba_kcache import cached_kernel
found = []
def use(source, **options):
    kernel = cached_kernel(source, **options)
    kernel.compile("sm_90")
    found.append(kernel.key("sm_90"))
{middle}
use('extern "C" __global__ void one(float *x) {{ x[0] = 1; }}', **{options!r})
info = numba_kcache.info("process")
print(json.dumps([found[-1], info.compiles, info.hits]))
"""


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another build of NVRTC, with builtins beside it."""
    return copy_of("nvrtc", tmp_path_factory.mktemp("other"), beside="nvrtc-builtins")


def run(
    cache: Path, before: str = "", middle: str = "", options: dict[str, Any] | None = None, **variables: str
) -> tuple[str, int, int]:
    """Run the program; return (key, compiles, hits)."""
    code = PROGRAM.format(before=before, middle=middle, options=options or {})
    key, compiles, hits = json.loads(in_python(code, NUMBA_KCACHE_DIR=str(cache), **variables))
    return key, compiles, hits


@pytest.mark.parametrize("mode", ["RTLD_LOCAL", "RTLD_GLOBAL"])
def test_code_is_stored_under_the_nvrtc_that_made_it(tmp_path: Path, other: Path, mode: str) -> None:
    """Another package has loaded its NVRTC, which then compiles; a process without it gets no code of it, in any
    order."""
    load = f"ctypes.CDLL({str(other)!r}, ctypes.{mode})"
    foreign = run(tmp_path, before=load)
    clean = run(tmp_path)

    assert foreign[0] != clean[0]
    assert foreign[1:] == clean[1:] == (1, 0)


def test_nvrtc_that_another_package_has_mapped_keeps_key(tmp_path: Path, other: Path) -> None:
    """A look-up uses the installed compilers until the process compiles: what else is mapped decides no hit."""
    clean = run(tmp_path)

    assert run(tmp_path, before=f"ctypes.CDLL({str(other)!r})") == (clean[0], 0, 1)


def test_code_of_a_mapped_nvrtc_is_found_before_it_is_compiled_again(tmp_path: Path, other: Path) -> None:
    """What the installed compilers did not make is looked up under the mapped ones that are about to run."""
    load = f"ctypes.CDLL({str(other)!r})"
    foreign = run(tmp_path, before=load)

    assert run(tmp_path, before=load) == (foreign[0], 0, 1)


def test_nvrtc_that_a_process_called_is_that_of_its_later_look_ups(tmp_path: Path, other: Path) -> None:
    """After a compile the running NVRTC is known: later kernels are looked up under it at once."""
    load, first = f"ctypes.CDLL({str(other)!r})", "use('__global__ void zero() {}')"
    clean = run(tmp_path)
    mixed = run(tmp_path, before=load, middle=first)

    assert mixed[0] != clean[0]
    assert mixed[1:] == (2, 0)
    assert run(tmp_path, before=load, middle=first)[1:] == (0, 2)


def test_nvrtc_that_is_loaded_between_two_kernels_makes_and_keys_the_second(tmp_path: Path, other: Path) -> None:
    """The first kernel is a hit, so no NVRTC is in the process until the program loads the other one."""
    first = "use('__global__ void zero() {}')"
    run(tmp_path, middle=f"{first}; sys.exit(print('[0,0,0]'))")
    foreign = run(tmp_path, middle=f"{first}; ctypes.CDLL({str(other)!r})")

    assert foreign[1:] == (1, 1)
    assert run(tmp_path)[1:] == (1, 0)


def test_nvrtc_that_comes_after_the_bindings_have_theirs_keeps_key(tmp_path: Path, other: Path) -> None:
    """Of two NVRTC libraries in a process, the one whose functions the bindings call is keyed."""
    clean = run(tmp_path)
    bound = "from cuda.bindings import nvrtc; nvrtc.nvrtcVersion()"

    assert run(tmp_path, before=f"{bound}; ctypes.CDLL({str(other)!r}, ctypes.RTLD_GLOBAL)") == (clean[0], 0, 1)


@pytest.mark.parametrize("nvrtc", ["from cuda.bindings import nvrtc; nvrtc.nvrtcVersion()", ""])
def test_builtins_that_are_mapped_under_the_name_are_those_of_the_key(tmp_path: Path, nvrtc: str) -> None:
    """NVRTC opens its builtins by name, and gets the library mapped under that name, be it mapped before or after
    NVRTC."""
    builtins = copy_of("nvrtc-builtins", tmp_path / "other")
    load = f"{nvrtc}; ctypes.CDLL({str(builtins)!r})".removeprefix("; ")
    foreign = run(tmp_path / "cache", before=load)

    assert foreign[1:] == (1, 0)
    assert run(tmp_path / "cache", before=load) == (foreign[0], 0, 1)
    assert run(tmp_path / "clean")[0] != foreign[0]


def test_builtins_beside_nvrtc_are_those_of_the_key_where_the_library_path_has_others(tmp_path: Path) -> None:
    """Some wheels have an NVRTC with a DT_RUNPATH, and the loader searches LD_LIBRARY_PATH before that: it would open
    others than a look-up can know before the compile, and no process would have a hit."""
    other, builtins = copy_of("nvrtc", tmp_path, beside="nvrtc-builtins"), copy_of("nvrtc-builtins", tmp_path / "path")
    with_runpath(other)
    load, path = f"ctypes.CDLL({str(other)!r})", {"LD_LIBRARY_PATH": str(builtins.parent)}
    foreign = run(tmp_path / "cache", before=load, **path)

    assert foreign[1:] == (1, 0)
    assert run(tmp_path / "cache", before=load, **path) == (foreign[0], 0, 1)
    assert run(tmp_path / "cache", before=load) == (foreign[0], 0, 1)


def test_builtins_beside_an_nvrtc_without_a_path_to_them_are_found(tmp_path: Path) -> None:
    """The wheels of NVRTC 13.0 have neither DT_RPATH nor DT_RUNPATH, and the bindings map their builtins."""
    other = copy_of("nvrtc", tmp_path / "other", beside="nvrtc-builtins")
    with_runpath(other, IGNORED)
    load = f"ctypes.CDLL({str(other)!r})"
    call = "nvrtc.run_nvrtc('__global__ void k() {}', 'k.cu', ['-arch=sm_90'], ['cubin']).ok"

    assert run(tmp_path / "cache", before=load)[1:] == (1, 0)
    assert run(tmp_path / "cache", before=load)[1:] == (0, 1)
    assert in_python(f"import ctypes; {load}; from numba_kcache.toolchain import nvrtc; print({call})") == "True\n"


@pytest.mark.parametrize("variable", ["LD_PRELOAD", "LD_LIBRARY_PATH"])
def test_library_of_the_loader_s_variables_counts_by_its_build(tmp_path: Path, other: Path, variable: str) -> None:
    """LD_PRELOAD maps another NVRTC; LD_LIBRARY_PATH does not where the installed one is found first."""
    value = str(other) if variable == "LD_PRELOAD" else str(other.parent)
    found = run(tmp_path, **{variable: value})

    assert run(tmp_path)[1:] == ((1, 0) if variable == "LD_PRELOAD" else (0, 1))
    assert found[1:] == (1, 0)


def test_code_is_stored_under_the_linker_that_made_it(tmp_path: Path) -> None:
    """The linker's build counts where it takes part, and nowhere else."""
    linker = copy_of("nvJitLink", tmp_path / "other")
    load, lto = f"ctypes.CDLL({str(linker)!r})", {"lto": True}
    plain, foreign = run(tmp_path / "cache"), run(tmp_path / "cache", before=load, options=lto)

    assert run(tmp_path / "cache", options=lto)[1:] == (1, 0)
    assert run(tmp_path / "cache", before=load, options=lto)[1:] == (0, 1)
    assert run(tmp_path / "cache", before=load) == (plain[0], 0, 1)
    assert foreign[1:] == (1, 0)


def test_library_whose_file_was_replaced_counts_as_it_is_mapped(tmp_path: Path) -> None:
    """An upgrade under a running process: the build is read from memory, and differs from that of the new file."""
    old = copy_of("nvrtc", tmp_path / "old", beside="nvrtc-builtins")
    new = copy_of("nvrtc", tmp_path / "new", byte=0x0F)
    (tmp_path / "kept").mkdir()
    for each in old.parent.iterdir():
        os.link(each, tmp_path / "kept" / each.name)
    kept, load = f"ctypes.CDLL({str(tmp_path / 'kept' / old.name)!r})", f"ctypes.CDLL({str(old)!r})"
    mapped = run(tmp_path / "cache", before=load, middle=f"os.replace({str(new)!r}, {str(old)!r})")

    assert run(tmp_path / "cache", before=load)[1:] == (1, 0)
    assert run(tmp_path / "cache", before=kept) == (mapped[0], 0, 1)


# -- packages -------------------------------------------------------------------------------------------------------

NUMBA_PROGRAM = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
{before}
from numba import cuda
sys.path.insert(0, {folder!r})
for each in {after!r}:
    child = os.fork()
    if not child:
        exec(each)
        import numba_kcache
        from program import kernel
        kernel.compile("sm_90")
        info = numba_kcache.info("process")
        print(json.dumps([kernel.key("sm_90"), info.compiles, info.hits]), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program with a Numba kernel."""
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "program.py").write_text(
        "from numba_kcache import cached_kernel\n"
        "@cached_kernel(signature='void(float32[::1])')\n"
        "def kernel(x):\n    x[0] = 1\n"
    )
    return folder


def run_numba(program: Path, before: str = "", *after: str) -> list[tuple[str, int, int]]:
    """Run the program with the Numba kernel, in a fork of a process with the installed Numba if nothing else is to be
    imported; return (key, compiles, hits) of a fork for each text that is run after the import."""
    code = NUMBA_PROGRAM.format(before=before, after=after or ("",), folder=str(program))
    cache = program.parent / "cache"
    if before:
        said = in_python(code, NUMBA_KCACHE_DIR=str(cache))
    else:
        env = {**fake_driver.environment(fake_driver.build()), "NUMBA_KCACHE_DIR": str(cache)}
        said = numba_server.output(["-c", code], env, way="later" if cache.exists() else "first")
    return [tuple(json.loads(line)) for line in said.splitlines()]


def installed_folder() -> Path:
    import numba_cuda

    return Path(str(numba_cuda.__file__)).parent


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of numba-cuda of the installed version, in a folder for `PYTHONPATH`."""
    shutil.copytree(installed_folder(), tmp_path / "checkout" / "numba_cuda")  # with bytecode, which does not count
    return tmp_path / "checkout"


def on_path(folder: Path) -> str:
    return f"sys.path.insert(0, {str(folder)!r}); sys.meta_path[0].__init__()"


def test_checkout_on_the_path_counts_by_content(program: Path, checkout: Path) -> None:
    """A checkout of the same version is another numba-cuda, and an edit of any file of it counts."""
    (installed,) = run_numba(program)
    first, again = run_numba(program, on_path(checkout), "", "")
    assert first[0] != installed[0]
    assert again == (first[0], 0, 1)

    with (checkout / "numba_cuda" / "numba" / "cuda" / "libdevicefuncs.py").open("a") as file:
        file.write("# edited\n")

    assert run_numba(program, on_path(checkout))[0][1:] == (1, 0)
    assert run_numba(program) == [(installed[0], 0, 1)]


def test_version_that_is_imported_counts_not_the_one_on_disk(program: Path, checkout: Path) -> None:
    """After an upgrade between import and compile, the imported code is not that of the files, and its key is found by
    no other process."""
    swap = f"open({str(checkout / 'numba_cuda' / 'VERSION')!r}, 'w').write('0.30.5')"
    (torn,) = run_numba(program, on_path(checkout), swap)

    assert torn[1:] == (1, 0)
    assert run_numba(program, on_path(checkout))[0][1:] == (1, 0)


def test_version_in_the_metadata_counts_with_times_put_back(tmp_path: Path) -> None:
    """The version of Numba in a key of CUDA C++ is read again, although the metadata's mtime was restored."""
    metadata = tmp_path / "lib" / "site-packages" / f"numba-{version('numba')}.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    folders = metadata.parents[1], metadata.parent
    times = []

    def write(text: str) -> None:
        metadata.write_text(f"Metadata-Version: 2.1\nName: numba\nVersion: {text}\n")
        times.append([(each, each.stat()) for each in (*folders, metadata)])
        for each, stat in times[0]:
            os.utime(each, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    write("0.68.1")
    before = f"sys.path.insert(0, {str(folders[0])!r})"
    first = run(tmp_path / "cache", before=before)
    assert run(tmp_path / "cache", before=before) == (first[0], 0, 1)

    write("0.67.0")

    assert run(tmp_path / "cache", before=before)[0] != first[0]
