"""The messages of the public errors, collected in tests/data/messages.txt.

A change of wording shows in that file; NUMBA_KCACHE_TEST_MESSAGES=write rewrites it. The words of a compiler change
with its version: the file has a placeholder for them.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import numba_kcache
from numba_kcache import KernelCache, cached_kernel, errors
from numba_kcache.engine import Events
from numba_kcache.errors import KCacheError
from numba_kcache.launch import DeviceLimits, check_launch, launch_shape
from numba_kcache.launch.failures import launch_error, load_error
from numba_kcache.model import Event, EventKind, Target
from numba_kcache.settings import read_settings
from numba_kcache.toolchain import nvjitlink, nvrtc
from numba_kcache.toolchain.locating import missing
from tests.support.compiling import SAXPY
from tests.support.fake_driver import build, environment, needs_fake_driver
from tests.support.launching import Kernel

SNAPSHOT = Path(__file__).parents[1] / "data" / "messages.txt"
WRITES = os.environ.get("NUMBA_KCACHE_TEST_MESSAGES") == "write"
LIMITS = DeviceLimits((2**31 - 1, 65535, 65535), (1024, 1024, 64), 1024, 232448, 1024)
TWO = 'extern "C" __global__ void one() {}\nextern "C" __global__ void two() {}'
WRONG = 'extern "C" __global__ void k(float *x) {\n    *x = nowhere;\n}'

SCENARIOS: dict[str, Callable[[Path], Any]] = {}


def scenario(title: str) -> Callable[[Callable[[Path], Any]], Callable[[Path], Any]]:
    """A user's mistake, by the snapshot's name; the function makes it in its own folder and fails."""

    def add(function: Callable[[Path], Any]) -> Callable[[Path], Any]:
        SCENARIOS[title] = function
        return function

    return add


def source_kernel(folder: Path, source: str = SAXPY, **options: Any) -> Any:
    return cached_kernel(source, arch="sm_90", cache=KernelCache(folder / "cache", durability="none"), **options)


scenario("SettingsError: unknown setting")(lambda folder: numba_kcache.configure(colour="blue"))
scenario("SettingsError: size in words")(lambda folder: numba_kcache.configure(max_size_bytes="a lot"))
scenario("SettingsError: mode in the environment")(lambda folder: read_settings({}, {"NUMBA_KCACHE_MODE": "fast"}))
scenario("SettingsError: unknown scope")(lambda folder: KernelCache(folder).info("today"))
scenario("OptionError: a path as text")(lambda folder: cached_kernel("kernels/saxpy.cu"))
scenario("OptionError: unknown option")(lambda folder: source_kernel(folder, fast_math=True))
scenario("OptionError: target that is none")(lambda folder: cached_kernel(SAXPY, arch="hopper").compile())
scenario("OptionError: flag that NVRTC does not know")(
    lambda folder: source_kernel(folder, options=["--no-such-flag"], depends=["it"]).compile()
)
scenario("UncacheableError: flag whose effect is not known")(
    lambda folder: source_kernel(folder, options=["--no-such-flag"]).compile()
)
scenario("OptionError: link input that is not there")(lambda folder: source_kernel(folder, link=["no.cu"]).compile())
scenario("OptionError: order of a listing")(lambda folder: KernelCache(folder).listing("colour"))  # type: ignore[arg-type]


scenario("UnknownTargetError: a target of an older compiler")(lambda folder: source_kernel(folder).compile("sm_35"))
scenario("CodeRefusedError: code for another device")(
    lambda folder: fail(load_error(Target(9, 0), 0, "CUDA_ERROR_NO_BINARY_FOR_GPU"))
)
scenario("EntryError: several kernels")(lambda folder: source_kernel(folder, TWO).compile())
scenario("EntryError: no such kernel")(lambda folder: source_kernel(folder, TWO, name="three").compile())
scenario("EntryError: no kernel at all")(lambda folder: source_kernel(folder, "__device__ int x;").compile())
scenario("EntryError: key of nothing")(lambda folder: KernelCache(folder).entry("f00d"))
scenario("CompileError: the user's line")(lambda folder: source_kernel(folder, WRONG).compile())
scenario("CompileError: function that is nowhere")(
    lambda folder: source_kernel(
        folder, 'extern "C" __device__ int f();\nextern "C" __global__ void k(int *x) { *x = f(); }'
    ).compile()
)
scenario("LinkError: PTX that the assembler refuses")(
    lambda folder: source_kernel(
        folder, ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k() {\n  nonsense;\n}"
    ).compile()
)
scenario("ToolchainMissingError: no NVRTC")(lambda folder: fail(missing("compile CUDA C++", "NVRTC")))
scenario("UncacheableError: the time is in the source")(
    lambda folder: source_kernel(folder, f"{SAXPY}\n__device__ const char *t = __TIME__;", strict=True).compile()
)
scenario("FrozenCacheError: a miss")(
    lambda folder: KernelCache(folder, mode="frozen").get_or_compile(SAXPY, "saxpy", arch="sm_90").compile()
)
scenario("OptionError: component of no plain value")(
    lambda folder: KernelCache(folder).get_or_build({"options": {"level": folder}}, lambda: b"code")
)
scenario("OptionError: payload that cannot be a file")(
    lambda folder: KernelCache(folder).get_or_build({"a": 1}, lambda: {"../code": b"code"}, label="toy.saxpy")
)
scenario("FrozenCacheError: something built")(
    lambda folder: KernelCache(folder, mode="frozen").get_or_build({"a": 1}, lambda: b"code", label="toy.saxpy")
)
scenario("ArgumentError: a float for an int")(lambda folder: Kernel().bytes_of(2.0, None, None, 1.5))
scenario("ArgumentError: a number for a pointer")(lambda folder: Kernel().bytes_of(2.0, 4096, None, 7))
scenario("ArgumentError: too few")(lambda folder: Kernel().bytes_of(2.0))
scenario("LaunchConfigError: a float as grid")(lambda folder: launch_shape(2.5, 32))
scenario("LaunchConfigError: a block that is too large")(
    lambda folder: check_launch(launch_shape(1, 2048), LIMITS, kernel="saxpy")
)
scenario("LaunchError: the driver refuses")(lambda folder: fail(launch_error("saxpy", launch_shape(1, 1024), 701)))


def fail(error: Exception) -> None:
    raise error


@scenario("BundleError: nothing to export")
def _(folder: Path) -> None:
    KernelCache(folder / "empty").export_bundle(folder / "out.kcache")


@scenario("BundleError: no bundle")
def _(folder: Path) -> None:
    (folder / "text.kcache").write_text("hello")
    KernelCache(folder / "cache").import_bundle(folder / "text.kcache")


@scenario("NoDeviceError: no device")
def _(folder: Path) -> None:
    code = (
        "from numba_kcache import cached_kernel, KCacheError\n"
        f"try: cached_kernel({SAXPY!r})[1, 1](1.0, None, None, 0)\n"
        "except KCacheError as error: print(type(error).__name__, error.args)"
    )
    run = environment(build(), devices=()) | {"NUMBA_KCACHE_DIR": str(folder / "cache")}
    done = subprocess.run([sys.executable, "-c", code], env=run, capture_output=True, text=True, check=True)
    name, _, arguments = done.stdout.strip().partition(" ")
    raise getattr(errors, name)(*ast.literal_eval(arguments))


WARNINGS = {
    "KCacheWarning: trouble": Event(EventKind.TROUBLE, {"where": "put", "error": "[Errno 28] No space left on device"}),
    "KCacheWarning: damage": Event(EventKind.DAMAGED, {"key": "00", "reason": "the digest differs"}),
    "KCacheWarning: uncacheable": Event(EventKind.UNCACHEABLE, {"kernel": "app.k", "reason": "it uses __TIME__"}),
}


def messages(folder: Path, reworded: Callable[[str], str] = str) -> dict[str, str]:
    """Message of each scenario, with placeholders for folders, lines and the words of compilers."""
    said: dict[str, str] = {}
    for number, (title, function) in enumerate(SCENARIOS.items()):
        own = folder / str(number)
        own.mkdir()
        with compilers(reworded) as logs, pytest.raises(KCacheError) as caught:
            function(own)
        assert type(caught.value).__name__ == title.partition(":")[0], f"{title}: {caught.value!r}"
        said[title] = without_words(neutral(str(caught.value), own), [neutral(each, own) for each in logs])
    for title, event in WARNINGS.items():
        with pytest.warns(errors.KCacheWarning) as warned:
            Events().emit(event)
        said[title] = str(warned[0].message)
    return said


def neutral(text: str, folder: Path) -> str:
    text = text.replace(str(folder), "FOLDER").replace(str(Path(__file__).parent), "HERE")
    text = re.sub(r"compiles for (sm_\d+, )*sm_\d+", "compiles for ...", text)
    text = re.sub(r"\btest_messages:\d+", "test_messages:LINE", text)
    return re.sub(r"test_messages\.py\(\d+\)", "test_messages.py(LINE)", text)


@contextlib.contextmanager
def compilers(reworded: Callable[[str], str]) -> Iterator[list[str]]:
    """Reword the logs of the compilers; return a list to which each log is added."""
    logs: list[str] = []

    def heard(log: str) -> str:
        logs.append(reworded(log))
        return logs[-1]

    def fetch(what: str, program: Any) -> bytes:
        found = fetch_before(what, program)
        return heard(found.rstrip(b"\0").decode()).encode() if what == "ProgramLog" else found

    fetch_before, log_before = nvrtc.fetch, nvjitlink.read_log
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nvrtc, "fetch", fetch)
        patch.setattr(nvjitlink, "read_log", lambda *arguments: heard(log_before(*arguments)))
        yield logs


def without_words(text: str, logs: Iterable[str]) -> str:
    """Replace the words of a compiler in `text`: whole lines of its log, and in other lines the part after `error:`.
    Text in quotes is kept: this package puts the user's file there."""
    lines = dict.fromkeys(line for log in logs for line in log.splitlines() if line.strip())
    for line in lines:
        quoted = '("[^"]*")'.join(map(re.escape, re.split('"[^"]*"', line)))
        text = re.sub(f"(?m)^{quoted}$", lambda match: " ".join(("<line>", *match.groups())), text)
        head = re.match(r".*?\b(?:error|fatal)\s*: (?=.)", line)
        text = text.replace(line[head.end() :], "<words>") if head else text
    return re.sub(r"(?m)^<line>(?:\n+<line>)*", "<lines>", text)


@needs_fake_driver
def test_every_error_says_what_the_snapshot_has(tmp_path: Path) -> None:
    """Each message is that of the snapshot, word for word."""
    said = "\n\n".join(f"# {title}\n{text}" for title, text in messages(tmp_path).items()) + "\n"
    if WRITES:
        SNAPSHOT.write_text(said, encoding="utf-8")

    assert said == SNAPSHOT.read_text(encoding="utf-8")


@pytest.mark.slow
@needs_fake_driver
def test_snapshot_holds_with_another_compiler_s_words(tmp_path: Path) -> None:
    """Another wording of the compilers, as a next version may have, gives the same snapshot."""
    words = {"is undefined": "was never seen", "detected in the compilation": "came up in the build",
             "unrecognized option": "what is", "Not a name of any known instruction": "No such instruction",
             "aborted due to errors": "was given up", "JIT the PTX": "while assembling"}  # fmt: skip

    def reworded(log: str) -> str:
        for old, new in words.items():
            log = log.replace(old, new)
        return re.sub(r"(?m)^ +\^$", "  ~~~~~~\n  see there\n", log)

    other = messages(tmp_path, reworded)
    said = "\n\n".join(f"# {title}\n{text}" for title, text in other.items()) + "\n"

    assert said == SNAPSHOT.read_text(encoding="utf-8")


def test_words_that_no_compiler_said_stay() -> None:
    """Normalisation removes only the compilers' words: a change of our own words shows in the snapshot."""
    log = 'k.cu(2): error: x is undefined\n  *x;\n   ^\n\n1 error in "k.cu".'

    assert without_words('why: HERE.py(7): error: x is undefined\n  *x;\n   ^\n\n1 error in "HERE.py".', [log]) == (
        'why: HERE.py(7): error: <words>\n<lines> "HERE.py"'
    )
    for text in ("error: x is undef", "error:", "why\n  *y;", "why\n *x;"):
        assert without_words(text, [log]) == text


def test_every_class_of_error_is_in_the_snapshot() -> None:
    """Each public error and warning has an example; the root `KCacheError` and mere bases have none."""
    classes = {
        name for name, value in vars(errors).items() if isinstance(value, type) and value is not KCacheError
    } & set(numba_kcache.__all__)

    assert {title.partition(":")[0] for title in (*SCENARIOS, *WARNINGS)} == classes


def test_every_message_has_the_three_parts() -> None:
    """A message begins with what could not be done, in lower case and without a full stop; a hint has its own line."""
    blocks = SNAPSHOT.read_text(encoding="utf-8").split("\n\n# ")
    for block in blocks:
        title, _, text = block.removeprefix("# ").partition("\n")
        first, *others = text.strip().split("\n")
        if title.startswith("KCacheWarning"):
            continue
        assert first.startswith("cannot "), title
        assert ": " in first, title
        assert not text.rstrip().endswith(".") or title.startswith("CompileError"), title  # the compiler's own words
        assert len(text.splitlines()) <= 24, title
        assert [line for line in others if "hint:" in line] == [line for line in others if line.startswith("  hint: ")]
