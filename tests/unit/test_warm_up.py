"""Warm-up: many kernels compiled ahead in worker processes; failures are reported at the end, and nothing is left."""

from __future__ import annotations

import io
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import numba_kcache
from numba_kcache import (
    CompileError,
    EntryError,
    KernelCache,
    OptionError,
    SettingsError,
    UncacheableError,
    cached_kernel,
    cached_module,
    frontends,
    warm_up,
)
from numba_kcache.engine import process_session
from numba_kcache.model import Event, EventKind, Target
from numba_kcache.warmup import pool as warming
from numba_kcache.warmup.discovery import kernels_of
from tests.support import kernels
from tests.support.compiling import EMPTY, ROOT, SAXPY, in_python
from tests.support.doomed import Doomed
from tests.support.resolving import definition_of

BAD = 'extern "C" __global__ void bad() { nope; }'
TWO = 'extern "C" __global__ void one() {}\nextern "C" __global__ void two() {}'


@pytest.fixture
def in_workers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled in this process."""
    monkeypatch.setattr(warming, "_build_here", None)


def statuses(report: Any) -> list[tuple[str, str]]:
    return sorted((each.target, each.status) for each in report.results)


def keys_of(cache: Any) -> set[str]:
    return {each.key for each in cache.entries()}


# -- what is compiled -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_each_kernel_is_built_for_each_target_and_then_a_hit(in_workers_alone: None) -> None:
    """Stored under the keys that this process asks for; events, counts and the report say so."""
    chosen, events = [cached_kernel(SAXPY), cached_kernel(EMPTY)], list[Event]()
    end = numba_kcache.subscribe(events.append)
    report = warm_up(chosen, ["sm_80", "sm_90"], workers=2, progress=False)
    end()

    assert statuses(report) == [("sm_80", "built")] * 2 + [("sm_90", "built")] * 2
    assert report.workers == 2
    assert keys_of(numba_kcache) == {kernel.key(arch) for kernel in chosen for arch in ("sm_80", "sm_90")}
    assert sum(event.kind is EventKind.COMPILE_END for event in events) == numba_kcache.info().compiles == 4
    again = warm_up(chosen, ["sm_80", "sm_90"], progress=False)
    assert (len(again.hit), again.workers) == (4, 0)
    assert str(report).startswith("4 built, 0 hit, 0 failed in ")


@pytest.mark.slow
def test_request_that_is_named_twice_is_built_once(in_workers_alone: None) -> None:
    """The same request may come from two kernel objects, two spellings of a target, or a module and its kernel."""
    module = cached_module(TWO)
    report = warm_up([cached_kernel(EMPTY), cached_kernel(EMPTY)], ["sm_80", (8, 0)], progress=False)
    both = warm_up([module, module.one, module.two], "sm_80", progress=False)

    assert statuses(report) == statuses(both) == [("sm_80", "built")]


@pytest.mark.slow
def test_kernel_s_own_targets_are_taken_where_none_are_named(in_workers_alone: None) -> None:
    """The targets are those of the decorator's arch=."""
    assert statuses(warm_up(cached_kernel(EMPTY, arch=["sm_80", "compute_90"]), progress=False)) == [
        ("compute_90", "built"),
        ("sm_80", "built"),
    ]


@pytest.mark.slow
def test_kernels_go_to_their_own_caches(tmp_path: Path, in_workers_alone: None) -> None:
    """A kernel with the decorator's cache= is stored there; the same kernel in two caches is built for each."""
    caches = [KernelCache(tmp_path / name, durability="none") for name in "ab"]
    report = warm_up([cached_kernel(EMPTY, cache=cache) for cache in caches], "sm_80", progress=False)

    assert len(report.built) == 2
    assert keys_of(caches[0]) == keys_of(caches[1]) != set()


@pytest.mark.slow
def test_headers_are_tracked_in_workers(tmp_path: Path, in_workers_alone: None) -> None:
    """A kernel that includes is a hit here afterwards, and built again when the header changes."""
    (tmp_path / "mine.h").write_text("#define TWO 2\n")
    source = '#include "mine.h"\nextern "C" __global__ void k(int *x) { *x = TWO; }'
    found = []
    for text in ("", "", "#define TWO 3\n"):
        if text:
            (tmp_path / "mine.h").write_text(text)
        found += warm_up(cached_kernel(source, include_dirs=[str(tmp_path)]), "sm_80", progress=False).results

    assert [each.status for each in found] == ["built", "hit", "built"]


@pytest.mark.slow
def test_lazy_module_is_built_kernel_by_kernel(in_workers_alone: None) -> None:
    """The LTO-IR and each kernel are built; afterwards all are hits."""
    module = cached_module(TWO, lazy=True)
    first = warm_up(module, "sm_80", progress=False)
    assert len(keys_of(numba_kcache)) == 3
    again = warm_up(cached_module(TWO, lazy=True), "sm_80", progress=False)

    assert (statuses(first), statuses(again)) == ([("sm_80", "built")], [("sm_80", "hit")])
    assert numba_kcache.export_bundle(os.environ["NUMBA_KCACHE_DIR"] + ".kcache", module).entries == 3
    (linked, *_) = [entry.key for entry in numba_kcache.entries() if entry.key != module.key("sm_80")]
    process_session().store.remove(linked)
    assert statuses(warm_up(cached_module(TWO, lazy=True), "sm_80", progress=False)) == [("sm_80", "built")]


@pytest.mark.slow
def test_what_was_evicted_is_built_again(in_workers_alone: None) -> None:
    """The artifact is in this process's memory, but no longer on disk."""
    kernel = cached_kernel(EMPTY, arch="sm_80")
    kernel.compile()
    numba_kcache.prune(older_than=0)

    assert statuses(warm_up(kernel, progress=False)) == [("sm_80", "built")]


# -- Numba kernels ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_numba_kernels_are_built_for_each_signature(in_workers_alone: None) -> None:
    """A worker imports the kernel if possible; a nested function with a closure, as here, is sent by value."""
    pytest.importorskip("numba.cuda")
    factor = 3

    def scale(x: Any) -> None:
        x[0] = x[0] * factor

    nested = cached_kernel(scale, signature=["void(float32[::1])", "void(int32[::1])"])
    report = warm_up([nested, kernels.numba_add], "sm_80", workers=1, progress=False)

    assert statuses(report) == [("sm_80", "built")] * 3
    assert {each.signature for each in report.results} >= {"array(float32, 1d, C)", "array(int32, 1d, C)"}
    assert len(warm_up([nested, kernels.numba_add], "sm_80", progress=False).hit) == 3


def test_numba_kernel_without_a_signature_is_told(in_workers_alone: None) -> None:
    """Such a kernel has no types to compile for."""
    with pytest.raises(OptionError, match="it has no signature"):
        warm_up(cached_kernel(lambda x: None, kind="numba"), "sm_80", progress=False)


@pytest.mark.slow
def test_numba_kernel_without_a_signature_does_not_keep_others_from_being_built() -> None:
    """The error comes at the end and says what to write; the other kernels are stored."""
    chosen = [cached_kernel(lambda x: None, kind="numba"), cached_kernel(EMPTY)]
    with pytest.raises(CompileError, match="the other one is stored") as caught:
        warm_up(chosen, "sm_80", workers=1, progress=False)
    report = caught.value.report  # type: ignore[attr-defined]

    assert (len(report.built), len(report.failed)) == (1, 1)
    assert 'write signature="void(float32[::1], int64)"' in caught.value.log


@pytest.mark.slow
def test_numba_kernel_is_not_compiled_to_ptx_alone(in_workers_alone: None) -> None:
    """Numba links its code, so a real target is needed, and the message names one."""
    with pytest.raises(CompileError, match="its code is linked for a device") as caught:
        warm_up(kernels.numba_add, ["compute_80", "sm_80"], workers=1, progress=False)

    assert "name the device: 'sm_80'" in caught.value.log
    assert statuses(caught.value.report) == [("compute_80", "failed"), ("sm_80", "built")]  # type: ignore[attr-defined]


@pytest.mark.slow
def test_kernels_of_a_script_are_built_without_running_it_again(tmp_path: Path) -> None:
    """A script without a guard around warm_up: C++ and Numba kernels of `__main__` are sent by value."""
    script = tmp_path / "script.py"
    script.write_text("""
from numba_kcache import cached_kernel, warm_up
from numba_kcache.warmup import pool as warming
from numba_kcache.warmup.discovery import kernels_of
from numba_kcache.warmup import workers
print("run")
SCALE = 2.0
@cached_kernel
def k():
    return 'extern "C" __global__ void k() {}'
@cached_kernel(signature="void(float32[::1])")
def scale(x):
    x[0] *= SCALE
warming._build_here = None  # compiled here, it fails
print(sorted(each.status for each in warm_up([k, scale], "sm_80", workers=1, progress=False).results))
""")
    done = run(script, tmp_path)

    assert (done.stdout, done.stderr) == ("run\n['built', 'built']\n", "")


# -- which kernels ----------------------------------------------------------------------------------------------


def test_every_kernel_of_a_module_is_found() -> None:
    """Kernels are found under names of modules, classes and cached modules, each once."""
    found = kernels_of(kernels)

    assert [each.__name__ for each in found if isinstance(each, numba_kcache.Kernel)] == [
        "saxpy", "plain", "saxpy", "numba_add",
    ]  # fmt: skip
    assert kernels.many in found
    assert len({id(each) for each in found}) == len(found)
    assert found == kernels_of("tests.support.kernels") == kernels_of(Path(kernels.__file__))


@pytest.mark.slow
def test_entries_of_the_import_path_that_python_ignores_are_ignored(tmp_path: Path) -> None:
    """A program may have put a `Path` there, or "" for a working directory that is gone: the cache works as before."""
    code = f"""
import os, sys
from pathlib import Path
sys.path[:] = [Path("lib"), *sys.path, ""]
os.mkdir("gone"), os.chdir("gone"), os.rmdir(os.getcwd())
from numba_kcache import cached_kernel, warm_up
@cached_kernel(signature="void(float32[::1])")
def one(x):
    x[0] = 1
print(warm_up([one, cached_kernel({EMPTY!r})], arch="sm_90", workers=1, progress=False))
cached_kernel({EMPTY!r} + "//").compile("sm_90")
"""
    done = in_python(code, cwd=str(tmp_path), NUMBA_KCACHE_DIR=str(tmp_path / "cache"))

    assert done.startswith("2 built, 0 hit, 0 failed")


@pytest.mark.slow
def test_file_is_imported_under_its_stem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder is on the path, as for a script, but it is not `__main__`; its exceptions are raised."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "beside_it.py").write_text(f"SOURCE = {EMPTY!r}")
    file = tmp_path / "my_kernels_1.py"
    file.write_text(
        "import beside_it\nfrom numba_kcache import cached_kernel\nassert __name__ == 'my_kernels_1'\n"
        "@cached_kernel\ndef k() -> str:\n    return beside_it.SOURCE\n"
    )
    (kernel,) = kernels_of(str(file))
    assert statuses(warm_up(file, "sm_80", progress=False)) == [("sm_80", "built")]
    assert kernels_of(file) == [kernel]
    (tmp_path / "broken_1.py").write_text("import no_such_thing")
    with pytest.raises(ModuleNotFoundError, match="no_such_thing"):
        kernels_of(tmp_path / "broken_1.py")
    assert "broken_1" not in sys.modules


@pytest.mark.parametrize("given", ["no.such.module", "no_such.py", "/no/such/dir/x.py", "json"])
def test_what_has_no_kernels_is_told(given: str) -> None:
    """A misspelled name is an error, not an empty warm-up."""
    with pytest.raises(EntryError, match=r"cannot (import|find a kernel in)"):
        warm_up(given, "sm_80", progress=False)


# -- failures ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_one_failure_does_not_lose_the_rest(in_workers_alone: None) -> None:
    """All failures are reported at the end, with kernel, target, line and log; the other kernels are stored."""

    def broken() -> str:
        raise RuntimeError("no source today")

    chosen = [cached_kernel(BAD), cached_kernel(broken), cached_kernel(EMPTY), cached_kernel("__DATE__" + EMPTY)]
    with pytest.raises(CompileError) as caught:
        warm_up(chosen, ["sm_80", "sm_90"], workers=2, progress=False)
    text, report = str(caught.value), caught.value.report  # type: ignore[attr-defined]

    assert text.startswith("cannot compile 6 of 8 kernels: the others are stored")
    assert text.count('identifier "nope" is undefined') == 2
    assert "no source today" in text
    assert "it uses __DATE__ or __TIME__" in text
    assert caught.value.log.count('error: identifier "nope" is undefined') == 2
    assert (len(report.built), len(report.hit), len(report.failed)) == (2, 0, 6)
    assert keys_of(numba_kcache) == {cached_kernel(EMPTY).key(arch) for arch in ("sm_80", "sm_90")}


def test_native_is_the_target_of_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not the kernel's own, as on the command line; so in an export."""
    monkeypatch.setattr(frontends, "current_device", lambda: SimpleNamespace(target=Target(9, 0, "a")))
    kernel = cached_kernel(EMPTY, arch="sm_80")
    kernel.compile()

    assert statuses(warm_up(kernel, "native", progress=False)) == [("sm_90a", "built")]
    assert numba_kcache.export_bundle(tmp_path / "k.kcache", arch="native").targets == ("sm_90a",)


def test_kernel_that_cannot_be_keyed_is_an_uncacheable_error() -> None:
    """As in `.compile()`, where nothing else failed; it can be pickled."""
    with pytest.raises(UncacheableError, match="none is stored") as caught:
        warm_up(cached_kernel("__DATE__" + EMPTY), "sm_80", progress=False)
    copied: Any = pickle.loads(pickle.dumps(caught.value))

    assert str(copied) == str(caught.value)
    assert statuses(copied.report) == [("sm_80", "failed")]
    assert "it uses __DATE__ or __TIME__" in copied.log


@pytest.mark.slow
def test_compiler_that_dies_costs_one_kernel(in_workers_alone: None) -> None:
    """A crash ends one worker, and another takes its place."""
    with pytest.raises(CompileError, match="the compiler ended its process by signal 9") as caught:
        warm_up([Doomed("killed"), cached_kernel(EMPTY), cached_kernel(SAXPY)], "sm_90", workers=1, progress=False)

    assert len(caught.value.report.built) == 2  # type: ignore[attr-defined]


def test_error_that_cannot_travel_is_told_in_words() -> None:
    """Exceptions of Numba and of the user may fail to unpickle, so their text is sent."""
    with pytest.raises(CompileError, match="Unpicklable"):
        warm_up(Doomed("raises"), "sm_90", progress=False)


def test_kernel_that_is_another_one_in_a_worker_is_built_here(tmp_path: Path) -> None:
    """A worker compares keys, and never stores another kernel than the requested one."""
    report = warm_up(Doomed("unlike", str(tmp_path / "who")), "sm_90", progress=False)

    assert statuses(report) == [("sm_90", "built")]
    assert (tmp_path / "who").read_text() == str(os.getpid())


@pytest.mark.parametrize("mode", ["off", "readonly", "frozen"])
def test_mode_that_stores_nothing_is_refused(mode: str) -> None:
    """The results would be lost."""
    numba_kcache.configure(mode=mode)
    with pytest.raises(SettingsError, match=f"its cache stores nothing: mode='{mode}'"):
        warm_up(cached_kernel(EMPTY), "sm_80", progress=False)


@pytest.mark.parametrize("workers", [0, -1, True, 1.5, "2"])
def test_workers_is_a_number(workers: Any) -> None:
    """The number is at least one."""
    with pytest.raises(SettingsError, match="cannot use workers="):
        warm_up(cached_kernel(EMPTY), "sm_80", workers=workers)


# -- what is shown ----------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.slow
def test_lines_are_told_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Each kernel has a line on standard error; with progress=False there is none."""
    kernel = cached_kernel(EMPTY)
    kernel.compile("sm_80")
    warm_up(kernel, ["sm_80", "sm_90"])
    said, label = capsys.readouterr(), definition_of(kernel).label
    warm_up(kernel, ["sm_80", "sm_90"], progress=False)

    assert said.out == ""
    assert [line.split(" in ")[0] for line in said.err.splitlines()] == [
        f"numba_kcache: 1 of 2: {label} for sm_80: hit",
        f"numba_kcache: 2 of 2: {label} for sm_90: built",
    ]
    assert capsys.readouterr() == ("", "")


def test_one_line_is_live_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the number of finished kernels, the total, and the current kernel, and is erased at the end."""
    monkeypatch.setattr(sys, "stderr", Terminal())
    kernel = cached_kernel(EMPTY, arch="sm_80")
    kernel.compile()
    warm_up([kernel])

    erase = "\r\x1b[K"
    label = definition_of(kernel).label
    assert sys.stderr.getvalue() == f"{erase}numba_kcache: 1 of 1: {label} for sm_80: hit{erase}"  # type: ignore[attr-defined]


@pytest.mark.slow
def test_worker_says_nothing_itself(capfd: pytest.CaptureFixture[str]) -> None:
    """This process shows progress, log and warnings of the workers: here only the error."""
    numba_kcache.configure(log_level="error")
    with pytest.raises(CompileError):
        warm_up(cached_kernel("#include <no_such.h>\n" + EMPTY), ["sm_80", "sm_90"], workers=1, progress=False)

    assert capfd.readouterr() == ("", "")


# -- ends -------------------------------------------------------------------------------------------------------


def run(script: Path, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_KCACHE_DIR": str(tmp_path / "cache")}
    return subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)


def started(tmp_path: Path, *sources: str) -> tuple[subprocess.Popen[str], socket.socket]:
    """A warm-up in its own process, and a connection to its worker, which is in the middle of a compile."""
    code = """
import signal, sys
from numba_kcache import cached_kernel, warm_up
from tests.support.doomed import Doomed
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job inherits that it is ignored
held = Doomed("held", port=int(sys.argv[1]))
warm_up([*map(cached_kernel, sys.argv[2:]), held], "sm_90", workers=1, progress=False)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_KCACHE_DIR": str(tmp_path / "cache")}
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        arguments = [sys.executable, "-c", code, str(server.getsockname()[1]), *sources]
        process = subprocess.Popen(arguments, env=environment, stderr=subprocess.PIPE, text=True)
        worker, _ = server.accept()
    worker.settimeout(60)
    assert worker.recv(6) == b"begun "
    return process, worker


@pytest.mark.slow
def test_ctrl_c_leaves_no_worker_and_no_torn_entry(tmp_path: Path) -> None:
    """Ctrl-C interrupts a compile that never ends; earlier entries are complete."""
    process, worker = started(tmp_path, EMPTY)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)

    assert "KeyboardInterrupt" in said
    with worker:
        assert worker.recv(1) == b""  # the worker has ended
    cache = KernelCache(tmp_path / "cache")
    assert cache.verify() == []
    assert len(keys_of(cache)) == 1


@pytest.mark.slow
def test_worker_ends_with_its_parent(tmp_path: Path) -> None:
    """The worker finishes its compile after the parent has ended, and then ends."""
    process, worker = started(tmp_path, EMPTY)
    process.kill()
    process.wait()
    with process, worker, worker.makefile("rb") as sent:
        worker.sendall(b"!")  # the compile ends after the worker's parent
        assert sent.read() == b"done"  # read() returns when the worker's process has ended


def test_worker_without_a_parent_exits_with_zero() -> None:
    """The parent closed the connection before it sent anything."""
    code = """
import os, socket, sys
from numba_kcache.warmup import worker
ours, theirs = socket.socketpair()
if os.fork() == 0:
    ours.close()
    worker.main(theirs.detach())
theirs.close()
ours.close()
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    assert in_python(code).strip() == "0"


# -- what other libraries build ----------------------------------------------------------------------------------


class Toy:
    """A kernel of another library."""

    def __init__(self, name: str) -> None:
        self.name = name

    def code(self, arch: str) -> numba_kcache.Built:
        return numba_kcache.get_or_build({"toy": self.name, "arch": arch}, self.build, label=f"toy.{self.name}")

    def build(self) -> bytes:
        if self.name == "broken":
            raise ValueError("a toy is broken")
        return self.name.encode()

    def __warm_up__(self, targets: list[str] | None) -> None:
        for arch in targets or ["own"]:
            self.code(arch)


@pytest.mark.slow
def test_what_another_library_builds_is_in_the_report_by_its_label() -> None:
    """Each target of its `__warm_up__` is listed beside kernels; stored results are hits."""
    toy, kernel = Toy("saxpy"), cached_kernel(EMPTY)
    first = warm_up([toy, kernel], ["sm_80", "sm_90"], progress=False)
    again = warm_up([toy, toy, kernel], ["sm_80", "sm_90"], progress=False)

    assert (len(first.built), len(again.hit), again.built) == (4, 4, ())
    assert [(each.kernel, each.target) for each in first.built[:2]] == [("toy.saxpy", "any")] * 2
    assert toy.code("sm_80").source == "memory"
    assert statuses(warm_up(toy, progress=False)) == [("any", "built")]


def test_what_another_library_cannot_build_is_told_at_the_end() -> None:
    """The error is part of the one CompileError; kernels and other objects are built."""
    with pytest.raises(CompileError, match="a toy is broken") as raised:
        warm_up([Toy("broken"), Toy("sound"), cached_kernel(EMPTY)], ["sm_80"], progress=False)
    assert sorted(each.status for each in raised.value.report.results) == ["built", "built", "failed"]  # type: ignore[attr-defined]


@pytest.mark.slow
def test_module_may_build_while_it_is_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`warm FILE` reports such a result, also if the file has no kernel; the next process finds it."""
    program = tmp_path / "toys.py"
    program.write_text("""
import numba_kcache
numba_kcache.get_or_build({"toy": "imported"}, lambda: b"code", label="toy.imported")
class Toy:
    def __warm_up__(self, targets):
        numba_kcache.get_or_build({"toy": "object", "for": list(targets or [])}, lambda: b"more", label="toy.object")
class Holder:
    toy = Toy()
""")
    code = "import sys; from numba_kcache.cli import main; sys.exit(main(['warm', sys.argv[1], '--arch', 'sm_90']))"
    said = [in_python(code, str(program), NUMBA_KCACHE_DIR=str(tmp_path / "cache")) for _ in range(2)]
    assert [text.rpartition(" in ")[0] for text in said] == ["2 built, 0 hit, 0 failed", "0 built, 2 hit, 0 failed"]


def test_progress_counts_every_kernel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A kernel that is refused at once counts as one too, and a failure is told once."""
    cache = KernelCache(tmp_path)

    def numba_kernel(x):  # type: ignore[no-untyped-def]
        x[0] = 1

    kernels = [
        cached_kernel(EMPTY, cache=cache),
        cached_kernel(numba_kernel, cache=cache),
        cached_kernel(BAD, cache=cache),
    ]
    with pytest.raises(CompileError) as caught:
        warm_up(kernels, "sm_90", workers=1)
    lines = capsys.readouterr().err.splitlines()

    assert [re.search(r"(\d) of (\d)", line)[0] for line in lines] == ["1 of 3", "2 of 3", "3 of 3"]  # type: ignore[index]
    assert caught.value.what == "cannot compile 2 of 3 kernels"
