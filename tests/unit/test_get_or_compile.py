"""`get_or_compile`: one kernel for the same source, name and options, compiled when it is returned."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest

import numba_kcache
from numba_kcache import CompileError, FrozenCacheError, Kernel, KernelCache, OptionError
from numba_kcache.get_or import written
from tests.support.compiling import EMPTY, SAXPY, in_python
from tests.support.fake_driver import build, environment, needs_fake_driver

pytestmark = pytest.mark.usefixtures("compiled_once")

INCLUDING = '#include "size.h"\nextern "C" __global__ void k(int *o) { *o = SIZE; }'


@pytest.fixture
def cache(tmp_path: Path) -> KernelCache:
    return KernelCache(tmp_path / "cache", durability="none")


def counts(cache: KernelCache) -> tuple[int, int, int]:
    """(compiles, hits, misses) of this process."""
    info = cache.info("process")
    return info.compiles, info.hits, info.misses


# -- when ------------------------------------------------------------------------------------------------------------


def test_code_for_a_named_target_is_there_when_it_returns(cache: KernelCache, tmp_path: Path) -> None:
    """The code is compiled or found, and counted once; launches and repeated calls count nothing more."""
    for _ in range(3):
        kernel = cache.get_or_compile(SAXPY, "saxpy", arch="sm_90")
        assert counts(cache) == (1, 0, 1)
    kernel.compile()
    assert counts(cache) == (1, 0, 1)

    again = KernelCache(tmp_path / "cache", durability="none")
    again.get_or_compile(SAXPY, "saxpy", arch="sm_90")
    assert counts(again) == (0, 1, 0)


def test_list_of_targets_is_compiled_for_each(cache: KernelCache) -> None:
    """There is one entry for each target."""
    cache.get_or_compile(SAXPY, arch=["sm_80", "sm_90"])
    assert sorted(each.target for each in cache.entries()) == ["sm_80", "sm_90"]


def test_error_of_the_source_is_raised_there_each_time(cache: KernelCache) -> None:
    """A source that does not compile raises CompileError in this call and in the next."""
    for _ in range(2):
        with pytest.raises(CompileError):
            cache.get_or_compile("nonsense", "k", arch="sm_90")


def test_frozen_cache_refuses_there(tmp_path: Path) -> None:
    """A miss in a frozen cache is raised by the call."""
    with pytest.raises(FrozenCacheError):
        KernelCache(tmp_path, mode="frozen").get_or_compile(SAXPY, arch="sm_90")


def test_without_target_and_device_it_is_lazy_and_imports_nothing(tmp_path: Path) -> None:
    """As for a decorator, nothing is compiled, source errors are not raised and CUDA is not imported; equal calls give
    one kernel."""
    code = """
import sys, numba_kcache
kernel = numba_kcache.get_or_compile("nonsense", "k")
assert kernel is numba_kcache.get_or_compile("nonsense", "k")
print(sorted(name for name in sys.modules if name.startswith(("cuda", "numba."))), numba_kcache.info("process").misses)
"""
    assert in_python(code, NUMBA_KCACHE_DIR=str(tmp_path)).split() == ["[]", "0"]


def test_numba_kernel_is_compiled_where_its_signature_is_known(cache: KernelCache) -> None:
    """With `signature=` it is compiled before it is returned; otherwise at the first launch."""

    def fill(out: Any) -> None:
        out[0] = 1

    cache.get_or_compile(fill, arch="sm_90", kind="numba")
    assert counts(cache) == (0, 0, 0)
    cache.get_or_compile(fill, arch="sm_90", kind="numba", signature="void(float32[::1])")
    assert counts(cache) == (1, 0, 1)


PROGRAM = """
import json, sys
from cuda.bindings import driver
import numba_kcache
counts, kernels = [], []
for step in range(3):
    if step == 1:
        driver.cuInit(0)
        _, context = driver.cuDevicePrimaryCtxRetain(0)
        driver.cuCtxSetCurrent(context)
    kernels.append(numba_kcache.get_or_compile(sys.argv[1]))
    counts.append(numba_kcache.info("process").misses)
kernels[0][1, 32]()
counts.append(numba_kcache.info("process").misses)
print(json.dumps([counts, len(set(map(id, kernels)))]))
"""


@needs_fake_driver
@pytest.mark.slow
def test_code_for_a_current_device_is_there_when_it_returns(tmp_path: Path) -> None:
    """Without a current device the call compiles nothing; with one it compiles for that device."""
    plain = {name: value for name, value in environment(build()).items() if not name.startswith("NUMBA_KCACHE_")}
    command, env = [sys.executable, "-c", PROGRAM, EMPTY], {**plain, "NUMBA_KCACHE_DIR": str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[0, 1, 1, 1], 1]


# -- the same kernel -------------------------------------------------------------------------------------------------


def test_same_call_gives_the_same_kernel(cache: KernelCache) -> None:
    """This holds for any order of options, by position or keyword, with equal lists and mappings, from any file and
    thread."""
    defines, folders = {"A": 1, "B": None}, ["/nowhere"]
    first = cache.get_or_compile(SAXPY, "saxpy", arch="sm_90", opt=3, defines=defines)
    found = [
        cache.get_or_compile(SAXPY, name="saxpy", opt=3, defines={"B": None, "A": 1}, arch="sm_90"),
        cache.get_or_compile("".join(SAXPY), "saxpy", defines=dict(defines), arch="sm_90", opt=3),
    ]
    elsewhere = compile(
        "found.append(cache.get_or_compile(S, 'saxpy', arch='sm_90', opt=3, defines=d))", "/a/b.py", "exec"
    )
    exec(elsewhere, {"found": found, "cache": cache, "S": SAXPY, "d": defines})
    thread = threading.Thread(target=lambda: found.append(
        cache.get_or_compile(SAXPY, "saxpy", arch="sm_90", opt=3, defines=defines)))  # fmt: skip
    thread.start()
    thread.join()

    assert [each is first for each in found] == [True] * 4
    with_folders = cache.get_or_compile(SAXPY, arch="sm_90", include_dirs=folders)
    assert with_folders is cache.get_or_compile(SAXPY, arch="sm_90", include_dirs=["/nowhere"])
    assert numba_kcache.get_or_compile(EMPTY) is numba_kcache.get_or_compile(EMPTY)


def test_options_that_differ_give_other_kernels(cache: KernelCache) -> None:
    """Values that are equal in Python but of other types, and lists and mappings that differ in one member, are other
    calls."""
    calls: list[dict[str, Any]] = [
        {},
        {"lineinfo": False},
        {"defines": {"A": 1}},
        {"defines": {"A": "1"}},
        {"defines": {"A": None}},
        {"defines": {"A": 1, "B": 2}},
        {"defines": {"A": 1, "A(x)": 2}},
        {"defines": {"A(x)": 2, "A": 1}},
        {"include_dirs": ["/a", "/b"]},
        {"include_dirs": ["/b", "/a"]},
        {"include_dirs": ["/a"], "options": ["-DB"]},
        {"include_dirs": ["/a", "-DB"], "options": []},
        {"depends": [1]},
        {"depends": [True]},
        {"depends": [1.0]},
        {"depends": [0.0]},
        {"depends": [-0.0]},
        {"depends": [[1], 2]},
        {"depends": [[1, 2]]},
    ]
    kernels = [cache.get_or_compile(SAXPY, **options) for options in calls]
    kernels += [cache.get_or_compile(SAXPY.encode()), cache.get_or_compile(SAXPY, "saxpy")]

    assert len(set(map(id, kernels))) == len(kernels)
    assert [cache.get_or_compile(SAXPY, **options) for options in calls] == kernels[: len(calls)]


def test_no_two_calls_are_written_alike() -> None:
    """The names of calls differ wherever a value, its type, or its place in a list, mapping or option differs."""
    values: list[Any] = [
        0, 1, True, False, "1", b"1", None, [], {}, [1], [True], [1, True], [True, 1], ["1", None], {"1": None},
        {"a": 1}, {"a": True}, {"a": 1, "b": None}, ["a", 1],
    ]  # fmt: skip
    calls = [{"a": each} for each in values] + [{"a": one, "b": other} for one in values for other in values]

    assert len({written("", None, "", each) for each in calls}) == len(calls)
    assert all(written("", None, "", {"a": each}) is None for each in ([[1]], {"a": {}}, 1.0, (1,), Path("a"), [int]))


def test_arch_of_another_type_is_no_known_call(cache: KernelCache) -> None:
    """(9.0, 0.0) equals (9, 0), but is no valid target."""
    cache.get_or_compile(SAXPY, arch=(9, 0))
    with pytest.raises(OptionError):
        cache.get_or_compile(SAXPY, arch=(9.0, 0.0))


def test_list_that_the_caller_changes_is_another_call(cache: KernelCache) -> None:
    """The content of a list or mapping at the time of the call counts, and the kernel keeps its own."""
    defines: dict[str, Any] = {"SIZE": 1}
    source = 'extern "C" __global__ void k(int *o) { *o = SIZE; }'
    first = cache.get_or_compile(source, arch="sm_90", defines=defines)
    defines["SIZE"] = 2
    second = cache.get_or_compile(source, arch="sm_90", defines=defines)

    assert first.key() != second.key()
    assert first.key() == cache.get_or_compile(source, arch="sm_90", defines={"SIZE": 1}).key()


def test_quoted_include_is_that_of_the_callers_folder(cache: KernelCache, tmp_path: Path) -> None:
    """The same text from two files that each have a header beside them is two kernels."""
    cubins = []
    for size in (1, 2):
        folder = tmp_path / str(size)
        folder.mkdir()
        (folder / "size.h").write_text(f"#define SIZE {size}")
        program = folder / "program.py"
        program.write_text("kernel = cache.get_or_compile(S, arch='sm_90')")
        names: dict[str, Any] = {"cache": cache, "S": INCLUDING, "__name__": "program"}
        exec(compile(program.read_text(), str(program), "exec"), names)
        cubins.append(names["kernel"].cubin())
    assert cubins[0] != cubins[1]


@pytest.mark.parametrize("cell", ["<stdin>", "/nowhere/ipykernel_1/2.py"])
def test_relative_path_in_a_notebook_is_that_of_the_working_directory(
    cache: KernelCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cell: str
) -> None:
    """In code of no file a repeated call sees that the working directory is another, and that a file was edited."""
    names: dict[str, Any] = {"cache": cache, "S": INCLUDING, "P": Path("k.cu"), "__name__": "program"}
    exec(compile("def get(of): return cache.get_or_compile(of, arch='sm_90').cubin()", cell, "exec"), names)
    texts, files = [], []
    for folder, size in (("a", 1), ("a", 2), ("b", 3)):
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / folder)
        (tmp_path / folder / "k.cu").write_text(INCLUDING.replace("SIZE;", f"{size};"))
        (tmp_path / folder / "size.h").write_text(f"#define SIZE {ord(folder)}")
        files.append(names["get"](names["P"]))
        texts.append(names["get"](names["S"]))

    assert len({*files}) == 3
    assert texts[0] == texts[1] != texts[2]


def test_threads_that_ask_at_once_get_one_kernel_compiled_once(cache: KernelCache) -> None:
    """Twelve threads get one kernel object, with one compile."""
    barrier, found = threading.Barrier(12), list[Kernel]()

    def ask() -> None:
        barrier.wait()
        found.append(cache.get_or_compile(SAXPY, "saxpy", arch="sm_90"))

    threads = [threading.Thread(target=ask) for _ in range(12)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert (len(found), len(set(map(id, found))), counts(cache)) == (12, 1, (1, 0, 1))


@pytest.mark.slow
def test_kernels_that_are_kept_are_bounded(cache: KernelCache) -> None:
    """After five thousand sources the first kernels are dropped; one that was called for repeatedly is kept."""
    used, alive = cache.get_or_compile(EMPTY), list[Any]()
    for number in range(5000):
        alive.append(weakref.ref(cache.get_or_compile(f"// {number}\n{EMPTY}")))
        assert cache.get_or_compile(EMPTY) is used
    gc.collect()
    assert 512 <= sum(each() is not None for each in alive) <= 2048


def test_clear_has_the_next_call_compile(cache: KernelCache) -> None:
    """The next call returns the same kernel object, resolved again."""
    kernel = cache.get_or_compile(SAXPY, arch="sm_90")
    cache.clear()
    assert cache.get_or_compile(SAXPY, arch="sm_90") is kernel
    assert counts(cache) == (2, 0, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"defines": {"N": 4, "REAL": "float"}, "options": ["-DA"]}], ids=["plain", "lists"]
)
def test_repeated_call_is_a_look_up(cache: KernelCache, options: dict[str, Any]) -> None:
    """It takes two microseconds, also with lists and mappings among the options; twice that on a busy machine is
    accepted."""
    cache.get_or_compile(SAXPY, "saxpy", arch="sm_90", **options)
    times = []
    for _ in range(300):
        start = time.perf_counter()
        for _ in range(100):
            cache.get_or_compile(SAXPY, "saxpy", arch="sm_90", **options)
        times.append((time.perf_counter() - start) / 100)
    assert min(times) < 4e-6


def test_kernel_is_of_the_cache_that_is_in_force(tmp_path: Path) -> None:
    """After `configure` the next call finds or compiles in the process's new cache."""
    for folder in ("one", "two"):
        numba_kcache.configure(directory=str(tmp_path / folder))
        numba_kcache.get_or_compile(EMPTY, arch="sm_90")
        assert numba_kcache.info().entries == 1


def test_edited_file_is_another_source(cache: KernelCache, tmp_path: Path) -> None:
    """A repeated call for a file sees an edit that keeps its size and times, in the same process."""
    path = tmp_path / "k.cu"
    cubins = []
    for value in (1, 2, 1):
        path.write_text(f'extern "C" __global__ void k(int *o) {{ *o = {value}; }}')
        kernel = cache.get_or_compile(path, arch="sm_90")
        assert cache.get_or_compile(path, arch="sm_90") is kernel
        cubins.append(kernel.cubin("sm_90"))

    assert cubins[0] == cubins[2] != cubins[1]
    assert counts(cache)[0] == 2


def test_file_whose_other_inputs_are_gone_is_the_same_kernel(cache: KernelCache, tmp_path: Path) -> None:
    """Only the file and its headers are read at each call."""
    (tmp_path / "value.h").write_text("#define VALUE 1")
    (tmp_path / "linked.cu").write_text("__device__ int linked() { return 1; }")
    path = tmp_path / "k.cu"
    path.write_text('#include "value.h"\nextern "C" __global__ void k(int *o) { *o = VALUE; }')
    kernel = cache.get_or_compile(path, arch="sm_90", link=["linked.cu"])
    (tmp_path / "linked.cu").unlink()

    assert cache.get_or_compile(path, arch="sm_90", link=["linked.cu"]) is kernel


@pytest.mark.parametrize("mode", ["readwrite", "off"])
def test_file_whose_header_was_edited_is_another_source(tmp_path: Path, mode: Any) -> None:
    """A repeated call sees an edit of a header, and a header that appears before it, in the same process; a kernel that
    was returned before keeps its code."""
    cache, path, header = KernelCache(tmp_path / "cache", mode=mode), tmp_path / "k.cu", tmp_path / "far" / "value.h"
    path.write_text('#include "value.h"\nextern "C" __global__ void k(int *o) { *o = VALUE; }')
    header.parent.mkdir()

    def kernel() -> Any:
        found = cache.get_or_compile(path, arch="sm_90", include_dirs=["far"])
        assert cache.get_or_compile(path, arch="sm_90", include_dirs=["far"]) is found
        return found

    kernels = []
    for value in (1, 2, 1):
        header.write_text(f"#define VALUE {value}")
        kernels.append(kernel())
    (tmp_path / "value.h").write_text("#define VALUE 3")
    kernels.append(kernel())
    cubins = [each.cubin("sm_90") for each in kernels]

    assert cubins[0] == cubins[2] != cubins[1]
    assert cubins[3] not in cubins[:3]
    if mode == "readwrite":
        assert counts(cache)[0] == 3
