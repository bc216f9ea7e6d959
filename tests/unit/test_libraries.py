"""The build of each compiler: read from its file, and remembered while nothing has changed."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from numba_kcache import KernelCache, cached_module
from numba_kcache import toolchain as libraries
from numba_kcache.settings import TOOLCHAIN_VARIABLES, variables
from numba_kcache.toolchain import Library, Toolchain, installed_include_dirs, loaded, locating
from numba_kcache.toolchain.locating import loaded_path
from tests.support.compiling import EMPTY, in_python
from tests.support.programs import program

NAMES = ("nvrtc", "nvrtc-builtins", "nvJitLink")


class Records(dict[str, dict[str, Any]]):
    """Stored records, with the number of times that one was saved."""

    saves = 0

    def save(self, name: str, record: dict[str, Any]) -> None:
        self.saves += 1
        self[name] = json.loads(json.dumps(record))

    def toolchain(self) -> Toolchain:
        return Toolchain(self.get, self.save)


@pytest.fixture
def located(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Made-up libraries; each search for one is counted under its name in `asked`."""
    files = {}
    for name in NAMES:
        files[name] = tmp_path / f"lib{name}.so.13"
        files[name].write_bytes(name.encode())
    monkeypatch.setattr(locating, "locate", lambda name, _library: str(files[name]) if name in files else None)
    monkeypatch.setattr(libraries, "called", set())
    found_by = lambda: ((str(tmp_path),), variables(TOOLCHAIN_VARIABLES))  # noqa: E731
    monkeypatch.setattr(libraries, "toolchain_surroundings", found_by)
    return files


def never(*_args: object) -> Any:
    raise AssertionError("asked where a library is, which loads it")


def test_record_answers_without_a_look_at_the_libraries(
    located: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second process with the record loads and hashes no library."""
    records = Records()
    first = records.toolchain()
    found = [first.library(name) for name in NAMES]
    first.settle()
    monkeypatch.setattr(locating, "locate", never)
    monkeypatch.setattr(locating, "build_of", never)
    again = records.toolchain()

    assert again.identify(NAMES, (), looks=False)
    assert [again.library(name) for name in NAMES] == found
    build = f"sha256:{hashlib.sha256(b'nvrtc').hexdigest()}"
    assert found[0] == Library("nvrtc", str(located["nvrtc"]), build)


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"!")


def touch(path: Path) -> None:
    os.utime(path, ns=(1, 1))


def replace_in_place(path: Path) -> None:
    """Write another file of the same size and time: only the inode differs."""
    stat = path.stat()
    other = path.with_suffix(".new")
    other.write_bytes(b"x" * stat.st_size)
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    folder = path.parent.stat()
    other.replace(path)
    os.utime(path.parent, ns=(folder.st_atime_ns, folder.st_mtime_ns))


def install_beside(path: Path) -> None:
    (path.parent / "new_package").mkdir()
    os.utime(path.parent, ns=(5, 5))


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("variable", ["CUDA_HOME", "LD_LIBRARY_PATH"])
def test_link_to_another_toolkit_makes_the_record_void(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """An upgrade turns the link `/usr/local/cuda`, and may leave the toolkit that it led to, with its headers."""
    monkeypatch.setattr(libraries, "called", set())
    monkeypatch.setattr(libraries, "toolchain_surroundings", lambda: ((), variables(TOOLCHAIN_VARIABLES)))
    link, home = tmp_path / "cuda", lambda: str((tmp_path / "cuda").resolve())
    for version in ("13.0", "13.5"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "libnvrtc.so.13").write_text(version)
    monkeypatch.setattr(locating, "locate", lambda name, _library: f"{home()}/libnvrtc.so.13")
    monkeypatch.setattr(locating, "header_folders", lambda _nvrtc: [f"{home()}/include"])
    monkeypatch.setenv(variable, str(link))
    records = Records()
    for version in ("13.0", "13.5", "13.0"):
        link.unlink(missing_ok=True)
        link.symlink_to(version)
        toolchain = records.toolchain()

        builds, _versions = toolchain.identify(["nvrtc"], ()) or ({}, {})
        assert builds == {"nvrtc": f"sha256:{hashlib.sha256(version.encode()).hexdigest()}"}
        assert toolchain.include_dirs() == (str(tmp_path / version / "include"),)
        toolchain.settle()


def test_headers_are_searched_again_with_another_nvrtc(
    located: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The toolkit's headers are found beside its NVRTC, by links that only the system's loader follows."""
    records, found = Records(), ["/usr/local/cuda-13.0/include"]
    monkeypatch.setattr(locating, "header_folders", lambda _nvrtc: list(found))
    first = records.toolchain()
    assert first.include_dirs() == tuple(found)
    first.settle()
    found[:] = ["/usr/local/cuda-13.5/include"]
    grow(located["nvrtc"])
    again = records.toolchain()
    again.identify(NAMES, ())

    assert again.include_dirs() == tuple(found)


@pytest.mark.parametrize("change", [grow, touch, replace_in_place, install_beside])
def test_change_of_any_file_or_folder_makes_the_record_void(
    located: dict[str, Path], change: Callable[[Path], None]
) -> None:
    """Size, mtime and inode of files count, and the folders in which packages are installed."""
    records = Records()
    first = records.toolchain()
    first.identify(NAMES, ())
    first.settle()
    assert records.toolchain().identify(NAMES, (), looks=False)

    change(located["nvJitLink"])

    assert not records.toolchain().identify(NAMES, (), looks=False)
    content = located["nvJitLink"].read_bytes()
    found = records.toolchain().library("nvJitLink")
    assert found is not None
    assert found.build == f"sha256:{hashlib.sha256(content).hexdigest()}"


def test_change_beside_the_compilers_is_looked_at_once(
    located: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the installation of another package, the first process searches, and the next ones do not, even if none of
    them compiles anything."""
    records = Records()
    for change in (install_beside, str):
        toolchain = records.toolchain()
        toolchain.identify(NAMES, ())
        toolchain.settle()
        change(located["nvrtc"])
    monkeypatch.setattr(locating, "locate", never)

    assert records.toolchain().identify(NAMES, (), looks=False)


def test_library_that_is_gone_is_not_remembered(located: dict[str, Path]) -> None:
    """After an uninstall the record is void and the library is absent."""
    records = Records()
    first = records.toolchain()
    first.library("nvJitLink")
    first.settle()
    remove(located["nvJitLink"])

    assert records.toolchain().library("nvJitLink") is None


def test_absence_is_not_remembered(located: dict[str, Path]) -> None:
    """A library that is installed later is found by the next process, also in a folder that the record does not
    watch."""
    records = Records()
    path = located.pop("nvrtc")
    assert records.toolchain().library("nvrtc") is None
    located["nvrtc"] = path

    assert records.toolchain().library("nvrtc") is not None


@pytest.mark.parametrize("variable", ["CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH", "CONDA_PREFIX"])
def test_record_made_elsewhere_is_not_read(
    located: dict[str, Path], monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """Environment variables and interpreter decide where libraries are found, so they are in the record's name."""
    records = Records()
    first = records.toolchain()
    first.library("nvrtc")
    first.settle()
    monkeypatch.setenv(variable, "/elsewhere")

    assert not records.toolchain().identify(("nvrtc",), (), looks=False)


def test_each_question_looks_at_the_files_again(located: dict[str, Path]) -> None:
    """An upgrade under a running process counts at once: a build is remembered only with its file's identity."""
    toolchain = Records().toolchain()
    before = toolchain.identify(("nvrtc",), ())
    grow(located["nvrtc"])

    assert toolchain.identify(("nvrtc",), ()) != before


@pytest.mark.parametrize(
    "damage",
    [
        {}, {"watch": 3}, {"files": []}, {"files": {"nvrtc": []}}, {"files": {"nvrtc": [1, 2, 3, 4, 5]}},
        {"files": {"nvrtc": "abcde"}}, {"files": None}, {"files": {"numba": []}},
        {"folders": 3}, {"folders": {"": 3}}, {"folders": {"": [3]}},
        {"folders": {"": "/usr"}},
    ],
)  # fmt: skip
def test_record_of_another_shape_does_not_hold(located: dict[str, Path], damage: dict[str, Any]) -> None:
    """A record of another version, or a forged one, is replaced without an error."""
    records = Records()
    toolchain = records.toolchain()
    right = toolchain.library("nvrtc"), toolchain.identify((), ("numba",)), toolchain.include_dirs()
    for name, record in records.items():
        records[name] = {**record, **damage} if damage else {}
    again = records.toolchain()

    assert not again.identify(("nvrtc", "nvJitLink"), ("numba", "none"), looks=False)
    assert (again.library("nvrtc"), again.identify((), ("numba",)), again.include_dirs()) == right


# -- real libraries -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real() -> dict[str, Library]:
    toolchain = Records().toolchain()
    found = {name: toolchain.library(name) for name in NAMES}
    assert all(found.values())
    return found  # type: ignore[return-value]


@pytest.mark.parametrize("name", NAMES)
def test_build_id_is_what_readelf_says(real: dict[str, Library], name: str) -> None:
    """Installed compilers have readelf's build-id; a library without one has the digest of its content."""
    command = [program("readelf"), "-n", real[name].path]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    ids = re.findall(r"Build ID: ([0-9a-f]+)", said)
    digest = hashlib.sha256(Path(real[name].path).read_bytes()).hexdigest()

    assert real[name].build == (f"build-id:{ids[0]}" if ids else f"sha256:{digest}")


def test_builtins_are_those_beside_nvrtc(real: dict[str, Library]) -> None:
    """An NVRTC with a DT_RPATH, such as that of the wheels of CUDA 13, loads the builtins in its own folder."""
    assert Path(real["nvrtc-builtins"].path).parent == Path(real["nvrtc"].path).resolve().parent


@pytest.mark.skipif(sys.platform != "linux", reason="looks at what Linux has mapped")
@pytest.mark.parametrize("name", NAMES)
def test_build_in_memory_is_the_file_s(real: dict[str, Library], name: str) -> None:
    """A library that was called has the same build as the file that it was mapped from."""
    libraries.load_compilers(NAMES)

    path = os.path.realpath(real[name].path)
    assert loaded.loaded_library(name) == (path, locating.build_of(path))


def test_library_that_is_called_is_found_each_time() -> None:
    """The builtins count with NVRTC; a search that failed under one name does not make later searches fail."""
    libraries.load_compilers(("nvrtc",))

    assert {"nvrtc", "nvrtc-builtins"} <= libraries.called
    assert len({loaded.loaded_library("nvrtc") for _ in range(3)} - {None}) == 1


LOOKED_UP = """
import sys
from numba_kcache import cached_kernel, info
kernel = cached_kernel('extern "C" __global__ void k() {}', arch="sm_90")
kernel.compile()
asked = []
sys.addaudithook(lambda event, given: asked.append(given) if event in ("ctypes.dlopen", "ctypes.dlsym") else None)
other = cached_kernel('extern "C" __global__ void l() {}', arch="sm_90")
other.compile()
print(asked, info("process").compiles)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks at what Linux has loaded")
def test_hit_asks_the_dynamic_linker_for_nothing(tmp_path: Path) -> None:
    """A look-up trusts the record: it searches for no mapped library."""
    in_python(LOOKED_UP, NUMBA_KCACHE_DIR=str(tmp_path))

    assert in_python(LOOKED_UP, NUMBA_KCACHE_DIR=str(tmp_path)).strip() == "[] 0"


def test_compilers_are_loaded_when_the_thread_that_maps_them_is_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the bindings could search for the library while it is being mapped, and load another one."""
    may_end, was_mapped = threading.Event(), list[bytes]()

    class Noted(threading.Thread):
        def join(self, timeout: float | None = None) -> None:
            may_end.set()
            super().join(timeout)

    def dlopen(path: bytes, mode: int) -> None:
        may_end.wait(30)
        was_mapped.append(path)

    with monkeypatch.context() as patch:
        patch.setattr(loaded, "mapped_handle", lambda name: 0)
        patch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(dlopen=dlopen))
        patch.setattr(threading, "Thread", Noted)
        loaded.begin_loading(("nvrtc",), lambda name: Library(name, "/nowhere/libnvrtc.so", "build"))
    loaded.load(())
    was_done = bool(was_mapped)
    may_end.set()

    assert was_done
    assert was_mapped == [b"/nowhere/libnvrtc.so"]


def test_library_is_loaded_from_where_the_bindings_take_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuda.pathfinder gives the path, also that of libdevice, which is no library; None for what it does not find."""
    finders = SimpleNamespace(
        find_bitcode_lib=lambda name: f"/nowhere/lib{name}.bc",
        load_nvidia_dynamic_lib=lambda name: SimpleNamespace(abs_path=f"/nowhere/lib{name}.so"),
    )
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", finders)
    assert [loaded_path(name) for name in ("nvrtc", "libdevice")] == ["/nowhere/libnvrtc.so", "/nowhere/libdevice.bc"]

    def absent(name: str) -> NoReturn:
        raise RuntimeError("no such library")

    finders.load_nvidia_dynamic_lib = absent
    assert loaded_path("nvrtc") is None


def test_file_without_a_build_id_is_known_by_its_content(tmp_path: Path) -> None:
    """No ELF, an ELF without notes, a cut ELF: the digest, and no exception."""
    head = b"\x7fELF\x02\x01" + bytes(26) + struct.pack("<Q", 64) + bytes(14) + struct.pack("<HH", 56, 3) + bytes(6)
    for number, content in enumerate((b"", b"text", head, head + bytes(30), head[:50], head + b"\xff" * 168)):
        path = tmp_path / f"{number}.so"
        path.write_bytes(content)

        assert locating.build_of(str(path)) == f"sha256:{hashlib.sha256(content).hexdigest()}"


@pytest.mark.skipif(sys.platform != "linux", reason="looks at what Linux has mapped")
def test_build_id_that_only_a_section_has_is_found_in_file_and_memory(tmp_path: Path, real: dict[str, Library]) -> None:
    """As in NVRTC 12.8 of PyPI, which patchelf has changed: its 100 MB are not hashed at each start."""
    content = bytearray(Path(real["nvrtc-builtins"].path).read_bytes())
    (table,), (count,) = struct.unpack_from("<Q", content, 32), struct.unpack_from("<H", content, 56)
    segments = [table + 56 * number for number in range(count)]
    notes = [at for at in segments if struct.unpack_from("<I", content, at) == (4,)]
    for at in notes:
        struct.pack_into("<I", content, at, 0)
    path = tmp_path / "libnvrtc-builtins.so"
    path.write_bytes(content)
    code = """
import ctypes, sys
from numba_kcache.toolchain.locating import build_at
base = ctypes.c_void_p.from_address(ctypes.CDLL(sys.argv[1])._handle).value  # the first of its struct link_map
print(build_at(base, sys.argv[1]))
"""

    assert notes
    assert locating.build_of(str(path)) == real["nvrtc-builtins"].build
    assert in_python(code, str(path)).strip() == real["nvrtc-builtins"].build


def test_headers_are_cccl_then_toolkit() -> None:
    """Both folders exist; CCCL's is first, as in nvcc."""
    folders = Records().toolchain().include_dirs()

    assert (Path(folders[-1]) / "cuda_fp16.h").is_file()
    assert any((Path(folder) / "cuda" / "std" / "complex").is_file() for folder in folders)


def test_headers_of_a_system_s_toolkit_are_found_without_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Headers that no package has are NVRTC's own; cuda.pathfinder would start Python to look for the toolkit."""
    headers = pytest.importorskip("cuda.pathfinder._headers.find_nvidia_headers")
    canary = pytest.importorskip("cuda.pathfinder._dynamic_libs.load_nvidia_dynamic_lib")
    for name in ("lib64/libnvrtc.so.13", "include/cuda_runtime.h", "include/cccl/cuda/std/version"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    steps = tuple(each for each in headers.FIND_STEPS if each is headers.find_via_ctk_root_canary)
    monkeypatch.setattr(headers, "FIND_STEPS", steps)
    monkeypatch.setattr(canary, "_resolve_system_loaded_abs_path_in_subprocess", pytest.fail)
    monkeypatch.setattr(headers, "_resolve_system_loaded_abs_path_in_subprocess", pytest.fail)

    found = installed_include_dirs(str(tmp_path / "lib64/libnvrtc.so.13"))

    assert found == [str(tmp_path / "include/cccl"), str(tmp_path / "include")]


def test_source_that_includes_nothing_is_compiled_without_a_look_for_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search for the toolkit's headers may take longer than the compile."""
    monkeypatch.setattr(libraries, "installed_include_dirs", pytest.fail)
    cache = KernelCache(tmp_path)

    cached_module(EMPTY, arch="sm_90", cache=cache).compile()

    assert cache.info().compiles == 1


IS = metadata.version("numba")


def identity_of(distribution: str) -> str | None:
    """Version and build of a distribution in a process without a record."""
    found = Records().toolchain().identify((), (distribution,))
    return found and found[1][distribution]


@pytest.mark.parametrize(("said", "is_known"), [(IS, True), (IS.replace(".", "", 1), True), ("0.1", False)])
def test_imported_package_counts_by_its_content_if_another_version_is_installed(
    monkeypatch: pytest.MonkeyPatch, said: str, is_known: bool
) -> None:
    """An installer may have replaced it since it was imported; versions are compared without their dots."""
    import numba

    installed = identity_of("numba")
    monkeypatch.setattr(numba, "__version__", said)

    assert (identity_of("numba") == installed) == is_known


def test_versions_are_the_installed_ones() -> None:
    """Versions of distributions, None for absent ones, are cached like the libraries."""
    import numba.cuda  # noqa: F401  # what is imported counts, under the version of its metadata

    records = Records()
    toolchain = records.toolchain()

    _, found = toolchain.identify((), ("numba-cuda", "itanium-demangler", "no-such-distribution")) or ({}, {})
    for name in ("numba-cuda", "itanium-demangler"):
        assert str(found[name]).partition(" ")[0] == metadata.version(name)
    assert found["no-such-distribution"] is None
    toolchain.settle()
    assert records.toolchain().identify((), ("numba-cuda",), looks=False)


def test_build_that_was_installed_since_the_start_is_not_the_imported_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have replaced one of the same version, which the process has imported and which no file tells any more."""
    site = tmp_path / "site-packages"
    (site / "imaginary-3.dist-info").mkdir(parents=True)
    (site / "imaginary-3.dist-info" / "METADATA").write_text("Version: 3\n")
    (site / "imaginary").mkdir()
    (site / "imaginary" / "__init__.py").write_text("__version__ = '3'\n")
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    installed = identity_of("imaginary")
    monkeypatch.setitem(sys.modules, "imaginary", __import__("imaginary"))

    assert installed == "3"
    assert str(identity_of("imaginary")).startswith("3 unknown:")


def test_installed_package_is_known_to_a_program_whose_clock_is_behind() -> None:
    """As under freezegun and time-machine: the process is as old as the kernel says, whose clock its files have."""
    program = """
import time
time.time = time.time_ns = time.clock_gettime_ns = lambda *clock: 10**9
import pluggy
from numba_kcache.toolchain import Toolchain
print(Toolchain(lambda name: None, lambda name, record: None).identify((), ("pluggy",))[1])
"""

    assert " sha256:" in in_python(program)


def test_package_whose_files_got_links_is_still_the_imported_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by `uv`, which links the files of its cache into each environment: it changes their ctime, and nothing else. A
    process that began before knows them from the record."""
    site, records = tmp_path / "site-packages", Records()
    (site / "linked-3.dist-info").mkdir(parents=True)
    file = site / "linked-3.dist-info" / "METADATA"
    file.write_text("Version: 3\n")
    (site / "linked").mkdir()
    (site / "linked" / "__init__.py").write_text("__version__ = '3'\n")
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    earlier = records.toolchain()
    assert earlier.identify((), ("linked",)) == ({}, {"linked": "3"})
    earlier.settle()
    before = file.stat().st_ctime_ns
    monkeypatch.setattr(libraries, "_BEGAN_NS", before + 1)
    while file.stat().st_ctime_ns == before:
        os.link(file, tmp_path / "link")
        os.unlink(tmp_path / "link")
    monkeypatch.setitem(sys.modules, "linked", __import__("linked"))

    assert records.toolchain().identify((), ("linked",)) == ({}, {"linked": "3"})
    os.utime(file)
    assert str((records.toolchain().identify((), ("linked",)) or ({}, {}))[1]["linked"]).startswith("3 unknown:")


# -- nothing installed ----------------------------------------------------------------------------------------

WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.startswith({blocked!r}):
            raise ModuleNotFoundError("No module named " + repr(name), name=name)
sys.meta_path.insert(0, Absent())
from numba_kcache import cached_kernel, KernelCache, ToolchainMissingError
kernel = cached_kernel({source!r}, **{options!r})
print(len(kernel.key("sm_90")))
try:
    kernel.compile("sm_90")
except ToolchainMissingError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("blocked", "options", "says"),
    [
        (("cuda",), {}, "cannot compile CUDA C++: the NVRTC library is not installed"),
        (("cuda.bindings.nvjitlink",), {"lto": True}, "cannot link PTX or LTO-IR: the nvJitLink library is not"),
    ],
)
def test_missing_package_names_the_extra_to_install(
    tmp_path: Path, blocked: tuple[str, ...], options: dict[str, Any], says: str
) -> None:
    """Without the bindings a key can be derived; a compile raises an error that says what to install."""
    code = WITHOUT.format(blocked=blocked, source=EMPTY, options=options)
    said = in_python(code, NUMBA_KCACHE_DIR=str(tmp_path))

    assert said.startswith("64\n")
    assert says in said
    assert "pip install 'numba-kcache[cu13]'" in said


@pytest.mark.slow
@pytest.mark.parametrize("blocked", [("cuda.bindings",), ("cuda.bindings.nvrtc",)])
def test_nvrtc_compiles_without_its_bindings(tmp_path: Path, blocked: tuple[str, ...]) -> None:
    """The library is found and called without them."""
    code = WITHOUT.format(blocked=blocked, source=EMPTY, options={})

    assert in_python(code, NUMBA_KCACHE_DIR=str(tmp_path)) == "64\n"


ABSENT = """
import cuda.pathfinder as pathfinder
from cuda.pathfinder import DynamicLibNotFoundError
from cuda.pathfinder._dynamic_libs import search_steps
real = pathfinder.load_nvidia_dynamic_lib
def absent(name):
    if name in {names!r}:
        raise DynamicLibNotFoundError(name)
    return real(name)
pathfinder.load_nvidia_dynamic_lib = absent
search_steps.run_find_steps = lambda *_asked: None
import cuda.bindings.nvrtc, cuda.bindings.nvjitlink
from numba_kcache import cached_kernel, ToolchainMissingError
from numba_kcache.engine import process_session
print([process_session().toolchain.library(name) for name in {names!r}])
"""


def test_missing_library_is_none(tmp_path: Path) -> None:
    """With the bindings but without the library the result is None, not an exception."""
    names = ("nvrtc", "nvJitLink", "nvvm")

    assert in_python(ABSENT.format(names=names), NUMBA_KCACHE_DIR=str(tmp_path)).strip() == "[None, None, None]"


def test_missing_library_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bindings raise RuntimeError where the library cannot be loaded."""
    from cuda.bindings import nvjitlink, nvrtc

    from numba_kcache.errors import ToolchainMissingError
    from numba_kcache.toolchain.nvjitlink import link
    from numba_kcache.toolchain.nvrtc import run_nvrtc, supported_targets

    def absent() -> None:
        raise RuntimeError("Function not found: the library is not there")

    monkeypatch.setattr(nvrtc, "nvrtcVersion", absent)
    monkeypatch.setattr("numba_kcache.toolchain.nvrtc.called_handle", lambda _name: 0)
    monkeypatch.setattr(nvjitlink, "version", absent)
    calls: list[Callable[[], object]] = [
        lambda: run_nvrtc(EMPTY, "k.cu", (), ()), supported_targets, lambda: link((), "sm_90", ()),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(ToolchainMissingError, match=r"numba-kcache\[cu13\]"):
            call()
