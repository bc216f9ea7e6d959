"""How long does a lookup take before anything is loaded, and which caches serve stale code?

Method      Lookup: a fresh process looks up kernels that an earlier process stored, for a named target, so that no code
            is loaded on a device. Six kernels have no includes; the first and the others are measured separately. One
            includes cub/block/block_reduce.cuh, and all headers that it reads are verified. CuPy cannot look up without
            loading: its times include the load. Samples of the systems alternate, one process at a time. Stale code: a
            header is edited, and the next process reports the result of the kernel; these processes run in parallel,
            since no time is measured. Bytecode is compiled before, as pip does. Each part is written when it is done.
Not shown   A cold page cache, a network file system. Systems that are not installed, or that need a missing GPU, are
            listed as left out.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from harness import AT_ONCE, Arguments, Folders, Result, fresh, in_parallel, run, say
from programs import include_dirs

ARCH = "sm_90"
CUB = "cub/block/block_reduce.cuh"
WITH_CUB = f"""#include <{CUB}>
extern "C" __global__ void k(int *o) {{
    using R = cub::BlockReduce<int, 64>; __shared__ R::TempStorage t; *o = R(t).Sum(1);
}}"""
VALUE = """#include "value.h"
#if __has_include("asked.h")
#undef VALUE
#define VALUE 1731100004
#endif
__device__ volatile int value = VALUE;
extern "C" __global__ void k(int *o) { *o = value; }
"""


def plain_source(number: int) -> str:
    """A kernel with a name of its own."""
    return f'extern "C" __global__ void k{number}(float *x) {{ x[threadIdx.x] *= {number}; }}'


def constant(cubin: bytes) -> int:
    """The number that the kernel of `VALUE` writes: an initialised variable of the module."""
    (found,) = (number for number in range(1731100001, 1731100006) if struct.pack("<i", number) in cubin)
    return found


# -- the systems: each makes a function that looks up a source, and says which value it serves ----------


class System(NamedTuple):
    """A cache.

    Args:
        look_up: Gets a source, the name of its kernel and its include folders; returns a function that looks it up.
        value: Gets include folders; returns the number that the kernel of `VALUE` writes.
        with_headers: Whether it looks up sources with headers.
    """

    look_up: Callable[[str, str, list[str]], Callable[[], object]] | None
    value: Callable[[list[str]], int]
    with_headers: bool = True


def ours(source: str, _name: str, folders: list[str], **more: Any) -> Callable[[], bytes]:
    from numba_kcache import cached_kernel

    kernel = cached_kernel(source, arch=ARCH, **more)  # it finds the toolkit's folders itself
    return lambda: kernel.cubin(ARCH)


def core(source: str, _name: str, folders: list[str]) -> Callable[[], bytes]:
    from cuda.core import Program, ProgramOptions
    from cuda.core.utils import FileStreamProgramCache

    cache = FileStreamProgramCache(os.environ["KC_BENCH_DIR"])

    def look_up() -> bytes:
        options = ProgramOptions(arch=ARCH, no_cache=True, include_path=folders or None)
        return bytes(Program(source, "c++", options=options).compile("cubin", cache=cache).code)

    return look_up


def core_value_beside(folders: list[str]) -> int:
    """cuda.core's cache refuses include folders, but NVRTC searches the working directory anyway."""
    os.chdir(folders[-1])
    return constant(core(VALUE, "k", [])())


def cupy(source: str, name: str, folders: list[str]) -> Callable[[], object]:
    import cupy

    cupy.ones(4)
    kernel = cupy.RawKernel(source, name, tuple(f"-I{folder}" for folder in folders), backend="nvrtc")
    return kernel.compile  # type: ignore[no-any-return]


def cupy_value(folders: list[str]) -> int:
    import cupy

    out = cupy.zeros(1, cupy.int32)
    cupy.RawKernel(VALUE, "k", tuple(f"-I{folder}" for folder in folders), backend="nvrtc")((1,), (1,), (out,))
    return int(out[0])


SYSTEMS = {
    "numba_kcache": System(ours, lambda folders: constant(ours(VALUE, "k", [], include_dirs=folders)())),
    "cuda.core FileStreamProgramCache": System(
        core, lambda folders: constant(core(VALUE, "k", folders)()), with_headers=False
    ),
    "cuda.core, headers in the working directory": System(None, core_value_beside),
    "cupy RawKernel": System(cupy, cupy_value),
}

# -- what a child does ----------------------------------------------------------------------------------


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def look_up(name: str, starts_with: str) -> dict[str, float]:
    """Seconds by name: of CUB alone if `starts_with` is "cub", else of the plain kernels and of CUB after them."""
    system = SYSTEMS[name]
    assert system.look_up
    plain = [system.look_up(plain_source(number), f"k{number}", []) for number in range(6)]
    cub = [system.look_up(WITH_CUB, "k", include_dirs())] if system.with_headers else []
    if starts_with == "cub":
        return {f"{CUB}, first": timed(each) for each in cub} or look_up(name, "plain")
    first, *others = map(timed, plain)
    found = {"no includes, first": first, "no includes, after": median(others)}
    return {**found, **{f"{CUB}, after": timed(each) for each in cub}}


def child(what: str, *words: str) -> None:
    if what == "value":
        system, *folders = words
        say(value=SYSTEMS[system].value(folders))
    else:
        say(**look_up(*words))


STARTS = ("plain", "cub")
"""The kind of kernel that a process looks up first."""


def measure_lookups(result: Result, count: int) -> None:
    """Seconds by system and kind of source; the reason, as text, for a system that cannot run here."""
    systems = [name for name, system in SYSTEMS.items() if system.look_up]
    result.samples["lookup"] = {name: {} for name in systems}
    words = {start: {name: ("lookup", name, start) for name in systems} for start in STARTS}
    with Folders() as folders:
        for start in STARTS:
            dict(result.take_all(words[start], folders, AT_ONCE))
        for _ in result.rounds(count):
            for start in STARTS:
                for name, found in result.take_all(words[start], folders):
                    result.add("lookup", name, **{what: time for what, time in found.items() if ", " in what})
    result.samples["lookup"] |= result.left_out


# -- stale code -----------------------------------------------------------------------------------------


class Change(NamedTuple):
    """A file that is written, and the number that the kernel of `VALUE` then writes.

    Args:
        path: The file.
        value: The number.
        text: The file's new content.
        keeps_time: Whether the file gets its old times.
    """

    path: str
    value: int
    text: str
    keeps_time: bool = False

    def make(self, folder: Path) -> None:
        path = folder / self.path
        before = path.stat() if self.keeps_time else None
        path.write_text(self.text)
        if before:
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES = {
    "header edited": Change("second/value.h", 1731100005, "#define VALUE 1731100005 // edited\n"),
    "same size and mtime": Change("second/value.h", 1731100002, "#define VALUE 1731100002\n", keeps_time=True),
    "header in an earlier folder": Change("first/value.h", 1731100003, "#define VALUE 1731100003\n"),
    "`__has_include` answered": Change("second/asked.h", 1731100004, ""),
}


def outcome_of(system: str, name: str) -> str:
    """Say "right", "stale" or the system's own message after one change; "–" if the change does not apply to it."""
    change = CHANGES[name]
    if "working directory" in system and change.path.startswith("first"):
        return "–"
    with Folders() as folders:
        searched = folders("first"), folders("second")
        (folders("second") / "value.h").write_text("#define VALUE 1731100001\n")

        def served() -> Any:
            found = fresh([__file__, "--child", "value", system, *searched], folders("cache"))
            return found["value"] if isinstance(found, dict) else found

        before = served()
        if before != 1731100001:
            return str(before)
        change.make(folders.root)
        after = served()
        return "right" if after == change.value else "stale" if after == before else str(after)


def measure(result: Result, arguments: Arguments) -> None:
    measure_lookups(result, arguments.rounds)
    pairs = [(system, change) for system in SYSTEMS if system not in result.left_out for change in CHANGES]
    outcomes = in_parallel(lambda pair: "not run" if result.is_over() else outcome_of(*pair), pairs, 2 * AT_ONCE)
    for (system, change), outcome in zip(pairs, outcomes, strict=True):
        result.samples.setdefault("stale", {}).setdefault(system, {})[change] = outcome
        result.write()


if __name__ == "__main__":
    run(__doc__, measure, child, rounds=(11, 3))
