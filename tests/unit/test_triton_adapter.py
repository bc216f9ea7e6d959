"""Triton's files in this cache: whole groups or none, one compile among all processes, no foreign host code."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import pytest

import numba_kcache
from numba_kcache import FrozenCacheError, KCacheWarning, KernelCache, cached_kernel
from numba_kcache.adapters import turn
from numba_kcache.adapters.triton import CacheManager
from numba_kcache.engine import process_session
from numba_kcache.engine.built import find_or_build
from tests.support import fake_triton
from tests.support.compiling import EMPTY, ROOT

HASH = hashlib.sha256(b"a kernel").hexdigest()
KEY = base64.b32encode(bytes.fromhex(HASH)).decode().rstrip("=")
HOST_ELF = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\0\x3e\0" + bytes(100)
HAS_TRITON = find_spec("triton") is not None
LAUNCHER = "__triton_launcher.cpython-311-x86_64-linux-gnu.so"


@pytest.fixture(autouse=True)
def theirs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """Triton's own manager, with what it is asked to put."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "theirs"))
    for name, each in fake_triton.modules().items():
        monkeypatch.setitem(sys.modules, name, each)
    asked: list[Any] = sys.modules["triton.runtime.cache"].FileCacheManager.asked
    return asked


@cache
def cubin() -> bytes:
    code: bytes = cached_kernel(EMPTY, arch="sm_90", cache=KernelCache(None, mode="off")).cubin()
    return code


def files_of(**changes: Any) -> dict[str, Any]:
    """The files that Triton makes of one kernel."""
    metadata = {"hash": HASH, "name": "k", "target": {"backend": "cuda", "arch": 90, "warp_size": 32}, "shared": 0}
    files = {"k.source": "module", "k.ttir": "module {}", "k.ptx": ".version 8.7", "k.cubin": cubin()}
    return {**files, "k.json": json.dumps({**metadata, **changes.pop("metadata", {})}), **changes}


def compiled(
    make: Callable[[], Mapping[str, Any]] = files_of, key: str = KEY, filename: str = "k.json"
) -> dict[str, str]:
    """Call the manager in the order of `triton.compile`."""
    manager = CacheManager(key)
    group = manager.get_group(filename) or {}
    if filename not in group:
        group = {name: manager.put(data, name) for name, data in make().items()}
        manager.put_group(filename, group)
    return group


def never() -> dict[str, Any]:
    raise AssertionError("it was compiled")


def new_process() -> None:
    """Drop results in memory, as a new process has none."""
    process_session().forget()


def read(group: Mapping[str, str]) -> dict[str, bytes]:
    return {name: Path(path).read_bytes() for name, path in group.items()}


def as_bytes(files: Mapping[str, Any]) -> dict[str, bytes]:
    return {name: data if isinstance(data, bytes) else data.encode() for name, data in files.items()}


# -- groups -----------------------------------------------------------------------------------------------------


def test_group_is_served_as_it_was_put() -> None:
    """Every file comes from the store under its name; the group is listed by the kernel's name, and counted once."""
    first = compiled()
    new_process()
    second = compiled(never)

    assert read(first) == read(second) == as_bytes(files_of())
    assert [Path(path).name for path in second.values()] == list(second)
    assert [each.kernels for each in numba_kcache.entries()] == [("triton:k",)]
    assert (numba_kcache.info("process").misses, numba_kcache.info("process").hits) == (1, 1)


def test_group_of_which_a_file_is_missing_is_not_stored() -> None:
    """A file that Triton announced but a program removed in between: the group is compiled again next time."""
    manager = CacheManager(KEY)
    assert manager.get_group("k.json") is None
    group = {name: manager.put(data, name) for name, data in files_of().items()}
    with pytest.warns(KCacheWarning, match="only 5 of its 6 files were put"):
        manager.put_group("k.json", {**group, "k.llir": "/elsewhere"})

    assert list(numba_kcache.entries()) == []
    assert read(compiled()) == as_bytes(files_of())


def test_group_that_was_put_is_called_by_its_metadata() -> None:
    """Like Triton's own manager, it returns the path of the metadata file."""
    manager = CacheManager(KEY)
    assert manager.get_group("k.json") is None
    group = {name: manager.put(data, name) for name, data in files_of().items()}

    assert manager.put_group("k.json", group) == group["k.json"]


def test_another_key_or_kernel_is_another_group() -> None:
    """A hit is exactly the group that Triton requested."""
    compiled()
    other = hashlib.sha256(b"another").hexdigest()
    found = compiled(lambda: files_of(metadata={"hash": other}), other)

    assert json.loads(Path(found["k.json"]).read_text())["hash"] == other
    assert numba_kcache.info().entries == 2


@pytest.mark.parametrize(
    ("files", "why"),
    [
        (lambda: files_of(metadata={"hash": "0" * 64}), "its metadata has another key"),
        (lambda: files_of(metadata={"name": "other"}), "its cubin has no kernel other"),
        (lambda: files_of(metadata={"target": {"backend": "cuda", "arch": 80}}), "its cubin is for sm_90"),
        (lambda: {**files_of(), "k.json": "[]"}, "its metadata lacks the hash, name or target"),
        (lambda: {**files_of(), "k.json": "{"}, "it cannot be read"),
        (lambda: {**files_of(), "k.cubin": b"rubbish"}, "it cannot be read: not a 64-bit CUDA ELF"),
        (lambda: {**files_of(), "stub.so": b"anything"}, "its file stub.so is code for the host"),
        (lambda: {**files_of(), "k.ptx": HOST_ELF}, "its file k.ptx is code for the host"),
        (lambda: {**files_of(), "run": b"#!/bin/sh\n"}, "its file run is code for the host"),
        (lambda: {**files_of(), "__grp__k.json": '{"child_paths": {"k.json": "/x"}}'}, "__grp__k.json lists files"),
    ],
)
def test_stored_group_that_is_not_what_was_asked_for_is_set_aside(files: Callable[[], Any], why: str) -> None:
    """Someone with write access stored it under valid digests; Triton compiles, and its result is stored."""
    given = {"compiler": "triton", "key": KEY, "group": "k.json"}
    forged = as_bytes(files())
    find_or_build(process_session(), given, lambda: forged, label="k", depends=(), meta=None, caller="")
    new_process()
    with pytest.warns(KCacheWarning, match=why):
        assert read(compiled()) == as_bytes(files_of())
    new_process()

    assert read(compiled(never)) == as_bytes(files_of())


def test_group_with_code_for_the_host_is_not_stored() -> None:
    """Host code is recognised by name and by content, and used on the machine that built it."""
    with pytest.warns(KCacheWarning, match="is code for the host"):
        group = compiled(lambda: {**files_of(), "k.bin": HOST_ELF})

    assert Path(group["k.bin"]).read_bytes() == HOST_ELF
    assert list(numba_kcache.entries()) == []


def test_bundle_carries_groups(tmp_path: Path) -> None:
    """A machine with a frozen cache and no compiler is served from the bundle."""
    compiled()
    numba_kcache.export_bundle(tmp_path / "all.kcache")
    numba_kcache.configure(directory=tmp_path / "elsewhere", mode="frozen")
    numba_kcache.register_bundle(tmp_path / "all.kcache")

    assert read(compiled(never)) == as_bytes(files_of())


def test_frozen_cache_refuses_what_it_does_not_hold() -> None:
    """The error has the kernel's name, and is raised at Triton's look-up."""
    numba_kcache.configure(mode="frozen")
    with pytest.raises(FrozenCacheError, match="triton:k"):
        compiled(never)


def test_trouble_of_the_cache_leaves_triton_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """It warns once, and the look-up is a miss."""
    monkeypatch.setattr(turn.Wanted, "turn", lambda *_: (_ for _ in ()).throw(RuntimeError("no turn")))
    with pytest.warns(KCacheWarning, match="cannot look for triton:k: "):
        assert read(compiled()) == as_bytes(files_of())


# -- turns ------------------------------------------------------------------------------------------------------


def test_one_of_many_threads_compiles() -> None:
    """The others get its result."""
    count: list[int] = []

    def make() -> dict[str, Any]:
        count.append(1)
        return files_of()

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: read(compiled(make)), range(8)))

    assert len(count) == 1
    assert all(each == as_bytes(files_of()) for each in found)


RANK = """
import json, os, sys
from tests.support import fake_triton
from tests.unit.test_triton_adapter import compiled, files_of
fake_triton.add()
def make():
    with open(sys.argv[1], "a") as file: file.write("x")
    return json.loads(sys.argv[2], object_hook=lambda o: o) | {"k.cubin": open(sys.argv[3], "rb").read()}
print(len(compiled(make)))
"""


@pytest.mark.slow
def test_eight_ranks_compile_each_kernel_once(tmp_path: Path) -> None:
    """The processes start at once on an empty cache."""
    (tmp_path / "k.cubin").write_bytes(cubin())
    texts = json.dumps({name: text for name, text in files_of().items() if isinstance(text, str)})
    command = [sys.executable, "-c", RANK, str(tmp_path / "count"), texts, str(tmp_path / "k.cubin")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    ranks = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(8)]

    assert [rank.communicate()[0].strip() for rank in ranks] == ["5"] * 8
    assert (tmp_path / "count").read_text() == "x"


def fails() -> dict[str, Any]:
    raise SyntaxError("no such operator")


def failed() -> BaseException:
    """A failed compile's error, whose traceback keeps the manager and the function that called it."""
    with pytest.raises(SyntaxError) as caught:
        compiled(fails)
    return caught.value


def test_compile_that_fails_lets_its_turn_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends soon after the function that began it, or when the same thread asks again, whatever a traceback keeps."""
    monkeypatch.setattr(turn, "LOOK_S", 0.01)
    kept = failed()
    with ThreadPoolExecutor(1) as pool:
        assert read(pool.submit(compiled).result(30)) == as_bytes(files_of())
    new_process()
    assert read(compiled()) == as_bytes(files_of())
    assert kept.__traceback__ is not None


def test_nobody_waits_for_a_build_that_cannot_be_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """While no thread can be started to watch a compile, another thread compiles beside it; both are stored."""
    begun: list[dict[str, str]] = []

    def refuses(**_given: Any) -> NoReturn:
        raise RuntimeError("can't start new thread")

    def make() -> dict[str, Any]:
        with ThreadPoolExecutor(1) as pool:
            begun.append(pool.submit(compiled).result(30))
        return files_of()

    threads = types.SimpleNamespace(Thread=refuses, get_ident=threading.get_ident)
    monkeypatch.setattr(turn, "threading", threads)
    assert read(compiled(make)) == as_bytes(files_of())
    assert read(begun[0]) == as_bytes(files_of())
    new_process()
    assert read(compiled(never)) == as_bytes(files_of())


def test_forked_child_ends_no_build_of_its_parent(tmp_path: Path) -> None:
    """It neither counts nor stores a build that its parent has begun."""
    report = tmp_path / "report"
    manager = CacheManager(KEY)
    assert manager.get_group("k.json") is None
    child = os.fork()
    if child == 0:
        events = list[Any]()
        numba_kcache.subscribe(events.append)
        manager.put_group("k.json", {name: manager.put(data, name) for name, data in files_of().items()})
        report.write_text(f"events: {events}")
        os._exit(0)
    os.waitpid(child, 0)
    manager.put_group("k.json", {name: manager.put(data, name) for name, data in files_of().items()})

    assert report.read_text() == "events: []"
    new_process()
    assert read(compiled(never)) == as_bytes(files_of())


# -- files ------------------------------------------------------------------------------------------------------


def test_code_for_the_host_is_triton_s_own(theirs: list[Any]) -> None:
    """Triton keeps a launcher; the store, its tiers and bundles do not contain it."""
    assert Path(CacheManager("module").put(HOST_ELF, LAUNCHER)).read_bytes() == HOST_ELF
    assert CacheManager("module").has_file(LAUNCHER)
    assert theirs == [("module", False, False, LAUNCHER, HOST_ELF)]
    assert list(numba_kcache.entries()) == []


def test_files_are_where_triton_itself_has_them(tmp_path: Path, theirs: list[Any]) -> None:
    """PyTorch's launcher opens a cubin by Triton's folder and key. A hit writes there what differs."""
    folder = tmp_path / "theirs" / KEY
    for content in (None, cubin(), b"other"):
        if content is not None:
            (folder / "k.cubin").write_bytes(content)
        theirs.clear()
        found = compiled(never if content else files_of)
        assert {Path(each) for each in found.values()} == {folder / name for name in files_of()}
        assert read(found) == as_bytes(files_of())
        assert [each[3] for each in theirs] == {None: [*files_of()], b"other": ["k.cubin"]}.get(content, [])
        new_process()


def test_overrides_and_dumps_are_triton_s_own(theirs: list[Any]) -> None:
    """Users work with these folders themselves."""
    assert CacheManager("a", override=True).made == ("a", True, False)
    CacheManager("b", dump=True).put("x", "k.ptx")
    assert theirs == [("b", False, True, "k.ptx", "x")]


# -- Triton -----------------------------------------------------------------------------------------------------


COMPILE = """
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
import numba_kcache

@triton.jit
def twice(x, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at) * 2)

for arch in (80, 90):
    source = ASTSource(twice, signature={"x": "*fp32", "BLOCK": "constexpr"}, constexprs={"BLOCK": 128})
    kernel = triton.compile(source, target=GPUTarget("cuda", arch, 32))
    assert kernel.asm["cubin"][:4] == b"\\x7fELF" and ".target sm_%d" % arch in kernel.asm["ptx"]
counts = numba_kcache.info("process")
print(counts.misses, counts.hits, counts.errors)
"""


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")
def test_triton_itself_finds_what_it_compiled(tmp_path: Path) -> None:
    """This holds for two targets, without a GPU; the second process compiles nothing, and finds its files again when
    Triton's own folder is gone."""
    (tmp_path / "program.py").write_text(COMPILE)
    environment = {
        **os.environ, "TRITON_CACHE_MANAGER": "numba_kcache.adapters.triton:CacheManager",
        "TRITON_CACHE_DIR": str(tmp_path / "theirs"),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }  # fmt: skip
    command = [sys.executable, str(tmp_path / "program.py")]
    said = []
    for _ in range(2):
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        said.append(done.stdout.strip())
        assert len([*(tmp_path / "theirs").rglob("twice.cubin")]) == 2
        shutil.rmtree(tmp_path / "theirs")

    assert said == ["2 0 0", "0 2 0"]
