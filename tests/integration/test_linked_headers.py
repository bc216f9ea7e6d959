"""Headers of linked CUDA C++, and of files that options include: no stale hit, for each kind of kernel."""

from __future__ import annotations

import functools
import importlib
import itertools
import os
import re
from pathlib import Path
from typing import Any

import pytest
from numba import cuda

from numba_kcache import KernelCache, cached_kernel
from numba_kcache.errors import KCacheError, UncacheableError
from numba_kcache.frontends.numba import llvm_compile as numba_compile
from numba_kcache.headers import record

pytestmark = pytest.mark.slow

DEVICE = '#include "{header}"\nextern "C" __device__ int external(int *out, int x) {{ *out = x + VALUE; return 0; }}\n'
CALLS = 'extern "C" __device__ int external(int *, int);\nextern "C" __global__ void k(int *o) { external(o, 1); }\n'

external = cuda.declare_device("external", "int32(int32)")


def numba_kernel(out):  # type: ignore[no-untyped-def]
    out[0] = external(out[0])


@functools.cache
def mlir_kernel() -> Any:
    external = importlib.import_module("numba_cuda_mlir.cuda").declare_device("external", "int32(int32)")

    def kernel(out):  # type: ignore[no-untyped-def]
        out[0] = external(out[0])

    return kernel


class Project:
    """`device.cu` in its own folder, which a kernel links."""

    def __init__(self, root: Path, kind: str) -> None:
        self.root, self.kind, self.options = root, kind, dict[str, Any]()
        self.folders = ["first", "second"]
        self.write("own/device.cu", DEVICE.format(header="value.h"))
        self.link: list[Any] = [str(root / "own/device.cu")]
        for folder in self.folders:
            (root / folder).mkdir()

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def in_memory(self, text: str, **more: str) -> Any:
        """A text to link, without a file."""
        home = importlib.import_module("numba_cuda_mlir.cuda") if self.kind == "mlir" else cuda
        return home.CUSource(text, **more)

    def kernel(self, cache: KernelCache) -> Any:
        """The kernel as a new process would define it."""
        if self.kind == "mlir":
            jit = importlib.import_module("numba_cuda_mlir.cuda").jit
            dispatcher = jit(mlir_kernel(), link=self.link, **self.options)
            return cached_kernel(dispatcher, arch="sm_80", signature="void(int32[::1])", cache=cache)
        if self.kind == "numba":
            return cached_kernel(
                cuda.jit(numba_kernel, link=self.link), arch="sm_80", signature="void(int32[::1])", cache=cache
            )
        folders = [self.root / each for each in self.folders]
        return cached_kernel(CALLS, arch="sm_80", link=self.link, include_dirs=folders, cache=cache)

    def resolve(self, **settings: Any) -> tuple[bytes, int]:
        """The code, and how often it had to be compiled."""
        cache = KernelCache(self.root / "cache", **settings)
        kernel = self.kernel(cache)
        kernel.compile()
        (cubin,) = (kernel.cubin(),) if self.kind == "cuda" else kernel.cubin().values()
        cubin = re.sub(rb"B7v1\d{5}", b"B7v100000", cubin)  # Numba's counter of compilations
        return cubin, cache.info("process").compiles

    def is_right(self) -> int:
        """Check the code against a fresh compile's; return the number of compiles that it took."""
        code, compiles = self.resolve()
        assert code == self.resolve(mode="off")[0], "stale"
        return compiles


@pytest.fixture(params=["cuda", "numba", "mlir"])
def project(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """One for each kind of kernel. Both Numbas have extra folders for headers, but no `include_dirs`; numba-cuda-mlir
    looks for quoted names in the working directory."""
    made = Project(tmp_path, str(request.param))
    extra = ":".join(str(tmp_path / each) for each in made.folders)
    if request.param == "mlir":
        pytest.importorskip("numba_cuda_mlir")
        monkeypatch.chdir(tmp_path / "own")
        config = importlib.import_module("numba_cuda_mlir.numba_cuda.core.config")
        monkeypatch.setattr(config, "CUDA_NVRTC_EXTRA_SEARCH_PATHS", extra)
        return made
    config = importlib.import_module("numba.cuda.core.config")
    identity = importlib.import_module("numba.cuda.core.bytecode").FunctionIdentity
    monkeypatch.setattr(identity, "_unique_ids", itertools.count(100_000))
    monkeypatch.setattr(config, "CUDA_NVRTC_EXTRA_SEARCH_PATHS", extra)
    return made


def edit_same_size(project: Project) -> None:
    path = project.root / "own/value.h"
    before = path.stat()
    path.write_text("#define VALUE 2\n")
    assert path.stat().st_size == before.st_size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def edit_nested(project: Project) -> None:
    project.write("second/more.h", "#define VALUE 2\n")


def shadow_nested(project: Project) -> None:
    project.write("first/more.h", "#define VALUE 2\n")


def answer(project: Project) -> None:
    project.write("second/asked.h", "")


def delete(project: Project) -> None:
    (project.root / "own/value.h").unlink()


HEADERS = {
    edit_same_size: {"own/value.h": "#define VALUE 1\n"},
    edit_nested: {"own/value.h": "#include <more.h>\n", "second/more.h": "#define VALUE 1\n"},
    shadow_nested: {"own/value.h": "#include <more.h>\n", "second/more.h": "#define VALUE 1\n"},
    answer: {
        "own/value.h": "#if __has_include(<asked.h>)\n#define VALUE 2\n#else\n#define VALUE 1\n#endif\n",
    },
    delete: {"own/value.h": "#define VALUE 1\n", "second/value.h": "#define VALUE 2\n"},
}
"""What can happen to a header, and the headers to which it happens."""


@pytest.mark.parametrize("change", HEADERS)
def test_header_of_a_link_input_counts(project: Project, change: Any) -> None:
    """An edit of the header compiles the kernel again; the reverted header is a hit."""
    for name, text in HEADERS[change].items():
        project.write(name, text)
    before = project.resolve()[0]
    assert project.resolve() == (before, 0)

    change(project)

    after, compiles = project.resolve()
    assert compiles == 1
    assert after != before, "the scenario shows nothing"
    assert project.is_right() == 0
    for path in project.root.rglob("*.h"):
        path.unlink()
    for name, text in HEADERS[change].items():
        project.write(name, text)
    assert project.resolve() == (before, 0)


def test_header_that_is_gone_is_an_error_as_without_a_cache(project: Project) -> None:
    """No other header takes its place: the compiler's error is raised, and no old code is served."""
    project.write("own/value.h", "#define VALUE 1\n")
    project.resolve()

    (project.root / "own/value.h").unlink()

    with pytest.raises(Exception, match=r"value\.h"):
        project.resolve()


def test_quoted_and_angled_names_are_looked_for_where_nvrtc_looks(project: Project) -> None:
    """Beside the link input for quoted names alone: with Numba, its folder comes last for the others; numba-cuda-mlir
    never looks there."""
    project.write("own/device.cu", DEVICE.format(header="value.h").replace('"value.h"', "<value.h>"))
    project.write("second/value.h" if project.kind == "mlir" else "own/value.h", "#define VALUE 1\n")
    project.resolve()

    project.write("first/value.h", "#define VALUE 2\n")

    assert project.is_right() == (0 if project.kind == "cuda" else 1)


@pytest.mark.parametrize("project", ["cuda", "numba"], indirect=True)
def test_each_link_input_has_its_own_headers(project: Project) -> None:
    """Two of them include another file under the same name."""
    project.write("own/value.h", "#define VALUE 1\n")
    project.write("more/device.cu", '#include "value.h"\n__device__ int other = VALUE;\n')
    project.write("more/value.h", "#define VALUE 1\n")
    project.link.append(str(project.root / "more/device.cu"))
    project.resolve()

    project.write("more/value.h", "#define VALUE 5\n")

    assert project.is_right() == 1
    assert project.resolve()[1] == 0


@pytest.mark.parametrize("project", ["numba", "mlir"], indirect=True)
@pytest.mark.parametrize("extra", ["inc", "../there/inc"])
def test_relative_search_path_begins_in_the_working_directory(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, extra: str
) -> None:
    """`CUDA_NVRTC_EXTRA_SEARCH_PATHS` may be relative; from another working directory it leads to other headers."""
    home = "numba_cuda_mlir.numba_cuda" if project.kind == "mlir" else "numba.cuda"
    monkeypatch.setattr(importlib.import_module(f"{home}.core.config"), "CUDA_NVRTC_EXTRA_SEARCH_PATHS", extra)
    for name, value in (("one", 1), ("other", 2)):
        project.write(f"{name}/here/inc/value.h", f"#define VALUE {value}\n")
        project.write(f"{name}/there/inc/value.h", f"#define VALUE {value}\n")
    monkeypatch.chdir(tmp_path / "one/here")
    project.resolve()
    monkeypatch.chdir(tmp_path / "other/here")

    assert project.is_right() == 1
    assert project.resolve()[1] == 0


def test_link_input_in_memory_looks_in_the_working_directory(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`CUSource` has no folder: with Numba, NVRTC starts from the working directory; here, from the kernel's own."""
    work = tmp_path / "work"
    project.write("work/value.h", "#define VALUE 1\n")
    project.write("first/value.h", "#define VALUE 2\n")
    monkeypatch.chdir(work)
    project.link = [project.in_memory(DEVICE.format(header="value.h"))]
    project.resolve()
    assert project.resolve()[1] == 0

    (work / "value.h").unlink()

    assert project.is_right() == (0 if project.kind == "cuda" else 1)


@pytest.mark.parametrize("project", ["cuda", "numba"], indirect=True)
def test_edit_of_a_header_whose_name_is_no_utf8_invalidates_key(project: Project) -> None:
    """The bytes between the quotes name the file, of whatever encoding they are."""
    name = os.fsdecode(b"caf\xe9.h")
    project.write(f"own/{name}", "#define VALUE 1\n")
    device = project.root / "own/device.cu"
    device.write_bytes(os.fsencode(DEVICE.format(header=name)))
    project.resolve()
    assert project.resolve()[1] == 0

    project.write(f"own/{name}", "#define VALUE 2\n")

    assert project.is_right() == 1


def test_link_input_that_includes_from_the_folder_in_its_name_is_refused(project: Project) -> None:
    """NVRTC looks there first for quoted names, and no key holds what it finds; without includes, it is cached."""
    project.link = [project.in_memory(DEVICE.format(header="value.h"), name="own/device.cu")]
    project.write("own/value.h", "#define VALUE 1\n")
    with pytest.raises(UncacheableError, match=r"own/device\.cu includes files from the folder in its name"):
        project.resolve()

    project.link = [project.in_memory(DEVICE.partition("\n")[2].format().replace("VALUE", "1"), name="own/device.cu")]
    project.resolve()

    assert project.resolve()[1] == 0


def test_link_input_that_uses_its_path_is_not_served_elsewhere(tmp_path: Path, project: Project) -> None:
    """The code contains the folder of the link input, although that includes nothing."""
    text = DEVICE.format(header="value.h") + "__device__ const char *where = __FILE__;\n"
    project.write("own/device.cu", text.partition("\n")[2].replace("VALUE", "1"))
    project.resolve()
    assert project.resolve()[1] == 0

    (project.root / "own").rename(project.root / "elsewhere")
    project.link = [str(project.root / "elsewhere/device.cu")]

    assert project.is_right() == (1 if project.kind == "numba" else 0)


@pytest.mark.parametrize("project", ["numba"], indirect=True)
def test_declared_function_brings_headers(project: Project) -> None:
    """`declare_device(link=)` is tracked as `link=` is."""
    project.write("own/value.h", "#define VALUE 1\n")
    declared = cuda.declare_device("external", "int32(int32)", link=project.link)

    def kernel(out):  # type: ignore[no-untyped-def]
        out[0] = declared(out[0])

    def compiles() -> int:
        cache = KernelCache(project.root / "cache")
        cached_kernel(cuda.jit(kernel), arch="sm_80", signature="void(int32[::1])", cache=cache).compile()
        return cache.info("process").compiles

    assert [compiles(), compiles()] == [1, 0]
    project.write("own/value.h", "#define VALUE 2\n")
    assert [compiles(), compiles()] == [1, 0]


@pytest.mark.parametrize("project", ["numba"], indirect=True)
@pytest.mark.parametrize("is_needed", [False, True])
def test_numbas_runtime_is_tracked_where_it_is_linked(
    project: Project, monkeypatch: pytest.MonkeyPatch, is_needed: bool
) -> None:
    """Numba's runtime in CUDA C++ includes headers of the toolkit; only the link shows whether a kernel needs it."""
    config = importlib.import_module("numba.cuda.core.config")
    monkeypatch.setattr(config, "CUDA_ENABLE_NRT", True)
    project.link = [cuda.CUSource(DEVICE.partition("\n")[2].format().replace("VALUE", "1"), nrt=is_needed)]
    learned: list[Any] = []
    real = record.transcript_to_json
    monkeypatch.setattr(record, "transcript_to_json", lambda found: learned.append(found) or real(found))

    code, _ = project.resolve()

    (transcript,) = learned
    read = [*transcript.places, *(transcript.toolkit.places if transcript.toolkit else ())]
    assert any(each.rest.endswith("nrt.cu") for each in read) == is_needed
    assert project.resolve() == (code, 0)


def test_kernel_that_needs_no_runtime_is_cached_where_numbas_is_enabled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVRTC compiles nothing for it, and is not taken for one that cannot be observed."""
    monkeypatch.setattr(importlib.import_module("numba.cuda.core.config"), "CUDA_ENABLE_NRT", True)

    def kernel(x: Any) -> None:
        x[0] = 1

    def compiles() -> int:
        cache = KernelCache(tmp_path)
        cached_kernel(kernel, kind="numba", arch="sm_80", signature="void(int32[::1])", cache=cache).compile()
        return cache.info("process").compiles

    assert [compiles(), compiles()] == [1, 0]


@pytest.mark.parametrize("project", ["numba"], indirect=True)
def test_link_input_edited_while_numba_compiles_is_not_stored(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numba reads it when it links, after the key was derived."""
    project.write("own/value.h", "#define VALUE 1\n")
    real = numba_compile.link_kernel

    def edited(*args: Any) -> Any:
        project.write("own/device.cu", DEVICE.format(header="value.h") + "// more\n")
        return real(*args)

    monkeypatch.setattr(numba_compile, "link_kernel", edited)
    with pytest.raises(KCacheError, match=r"device\.cu .*changed"):
        project.resolve()
    assert KernelCache(project.root / "cache").info().entries == 0


@pytest.mark.parametrize("flag", ["-include=value.h", "--pre-include=value.h"])
def test_file_that_an_option_includes_is_tracked(tmp_path: Path, flag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is searched for in the working directory, then in the folders; an edit is seen, and a new file found
    earlier."""
    source = 'extern "C" __global__ void k(int *out) { *out = VALUE; }\n'
    (tmp_path / "inc").mkdir()
    (tmp_path / "inc/value.h").write_text("#define VALUE 1\n")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")

    def code(**settings: Any) -> tuple[bytes, int]:
        cache = KernelCache(tmp_path / "cache", **settings)
        kernel = cached_kernel(source, arch="sm_80", options=[flag], include_dirs=[tmp_path / "inc"], cache=cache)
        kernel.compile()
        return kernel.cubin(), cache.info("process").compiles

    assert [code()[1], code()[1]] == [1, 0]
    for changed in ("inc/value.h", "work/value.h"):
        (tmp_path / changed).write_text(f"#define VALUE {len(changed)}\n")
        assert code()[1] == 1
        assert code() == (code(mode="off")[0], 0)


def test_folder_that_was_the_working_directory_is_searched_for_what_an_option_includes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that appears in it, beside the source, is found from another working directory, too."""
    work, folder = tmp_path / "work", tmp_path / "inc"
    for each in work, folder:
        each.mkdir()
    (folder / "value.h").write_text("#define VALUE 1\n")
    (source := work / "k.cu").write_text('extern "C" __global__ void k(int *out) { *out = VALUE; }\n')

    def code(**settings: Any) -> tuple[bytes, int]:
        cache, options = KernelCache(tmp_path / "cache", **settings), ["-include=value.h"]
        kernel = cached_kernel(source, arch="sm_80", options=options, include_dirs=[folder], cache=cache)
        kernel.compile()
        return kernel.cubin(), cache.info("process").compiles

    monkeypatch.chdir(work)
    assert code()[1] == 1
    monkeypatch.chdir(tmp_path)
    assert code()[1] == 0
    (work / "value.h").write_text("#define VALUE 2\n")

    assert code() == (code(mode="off")[0], 1)


def test_siblings_are_not_looked_for_where_an_option_says_so(tmp_path: Path) -> None:
    """With `--no-source-include` the folder of the including file is not searched."""
    source = '#include <sub/outer.h>\nextern "C" __global__ void k(int *out) { *out = VALUE; }\n'
    for name, text in {
        "sub/outer.h": '#include "inner.h"',
        "sub/inner.h": "#define VALUE 1",
        "inner.h": "#define VALUE 2",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text + "\n")

    def code(**settings: Any) -> tuple[bytes, int]:
        cache = KernelCache(tmp_path / "cache", **settings)
        options = ["--no-source-include"]
        kernel = cached_kernel(source, arch="sm_80", options=options, include_dirs=[tmp_path], cache=cache)
        kernel.compile()
        return kernel.cubin(), cache.info("process").compiles

    assert [code()[1], code()[1]] == [1, 0]
    (tmp_path / "sub/inner.h").write_text("#define VALUE 3\n")
    assert code()[1] == 0
    (tmp_path / "inner.h").write_text("#define VALUE 4\n")
    assert code()[1] == 1
    assert code() == (code(mode="off")[0], 0)


@pytest.mark.parametrize("project", ["mlir"], indirect=True)
def test_code_is_that_of_numba_cuda_mlir_alone(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code is equal with line tables, with link-time optimisation and with neither; edited text is read again,
    though numba-cuda-mlir keeps files in memory."""
    tools = importlib.import_module("numba_cuda_mlir.tools")
    jit = importlib.import_module("numba_cuda_mlir.cuda").jit
    read = importlib.import_module("numba_cuda_mlir.numba_cuda.utils").cached_file_read
    project.write("own/value.h", "#define VALUE 1\n")
    monkeypatch.setattr(tools, "get_gpu_compute_capability", lambda kind=str: "sm_80" if kind is str else (8, 0))
    for project.options in ({}, {"lto": True}, {"lineinfo": True}):
        counts = []
        for edit in ("", "// longer\n", ""):
            project.write("own/device.cu", edit + DEVICE.format(header="value.h").replace("VALUE;", f"{len(edit)};"))

            found, compiles = project.resolve()

            counts.append(compiles)
            read.cache_clear()
            alone = jit(mlir_kernel(), link=project.link, chip="sm_80", **project.options).compile("void(int32[::1])")
            assert found == alone.metadata["cubin"]
        assert counts == [1, 1, 0]
