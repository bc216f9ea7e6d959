"""How long does a lookup take before anything is loaded, and which caches serve stale code?

Method      Lookup: a fresh process looks up kernels that an earlier process stored, for a named target, so that no
            code is loaded on a device: six without includes, and one that includes cub/block/block_reduce.cuh, all of
            whose headers are verified. CuPy's times include the load. Samples of the systems alternate in `--rounds`
            rounds, one process at a time. Stale code: a header is edited, and the next process reports the result of
            the kernel; these processes run in parallel, once for each change.
Not shown   A cold page cache, a network file system. Systems that are not installed, or that need a missing GPU, are
            listed as left out.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from harness import AT_ONCE, Arguments, Result, fresh, in_parallel, run, say, temporary_folders
from programs import include_dirs

ARCH = "sm_90"
CUB = "cub/block/block_reduce.cuh"
WITH_CUB = f"""#include <{CUB}>
extern "C" __global__ void k(int *o) {{
    using R = cub::BlockReduce<int, 64>; __shared__ R::TempStorage t; *o = R(t).Sum(1);
}}"""
PLAIN = 'extern "C" __global__ void k%d(float *x) { x[threadIdx.x] *= %d; }'
VALUE = """#include "value.h"
#if __has_include("asked.h")
#undef VALUE
#define VALUE 1731100004
#endif
__device__ volatile int value = VALUE;
extern "C" __global__ void k(int *o) { *o = value; }
"""


def constant(cubin: bytes) -> int:
    """The number that the kernel of `VALUE` writes: an initialised variable of the module."""
    (found,) = (number for number in range(1731100001, 1731100006) if struct.pack("<i", number) in cubin)
    return found


LookUp = Callable[[str, str, list[str]], Callable[[], Any]]


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


CORE = "cuda.core FileStreamProgramCache"
SYSTEMS: dict[str, tuple[LookUp | None, Callable[[list[str]], int]]] = {
    "numba_kcache": (ours, lambda folders: constant(ours(VALUE, "k", [], include_dirs=folders)())),
    CORE: (core, lambda folders: constant(core(VALUE, "k", folders)())),
    "cuda.core, headers in the working directory": (None, core_value_beside),
    "cupy RawKernel": (cupy, cupy_value),
}
"""For each system what looks up a source; and what gets include folders, and returns the number that the kernel of
`VALUE` writes."""


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def look_up(name: str, starts_with: str) -> dict[str, float]:
    """Seconds by name: of CUB alone if `starts_with` is "cub", else of the plain kernels and of CUB after them."""
    of, _ = SYSTEMS[name]
    assert of
    plain = [of(PLAIN % (number, number), f"k{number}", []) for number in range(6)]
    cub = [of(WITH_CUB, "k", include_dirs())] if name != CORE else []  # it refuses headers
    if starts_with == "cub":
        return {f"{CUB}, first": timed(cub[0])}
    first, *others = map(timed, plain)
    found = {"no includes, first": first, "no includes, after": median(others)}
    return {**found, **{f"{CUB}, after": timed(each) for each in cub}}


def child(what: str, *words: str) -> None:
    if what == "value":
        system, *folders = words
        say(value=SYSTEMS[system][1](folders))
    else:
        say(times=look_up(*words))


CHANGES = {
    "header edited": ("second/value.h", 1731100005, "#define VALUE 1731100005 // edited\n"),
    "same size and mtime": ("second/value.h", 1731100002, "#define VALUE 1731100002\n"),
    "header in an earlier folder": ("first/value.h", 1731100003, "#define VALUE 1731100003\n"),
    "`__has_include` answered": ("second/asked.h", 1731100004, ""),
}
"""The file that is written, the number that the kernel of `VALUE` then writes, and the file's text."""


def outcome_of(system: str, change: str) -> str:
    """Say "right", "stale" or the system's own message after one change; "–" if the change does not apply to it."""
    path, value, content = CHANGES[change]
    if "working directory" in system and path.startswith("first"):
        return "–"
    with temporary_folders() as folders:
        searched = folders("first"), folders("second")
        (folders("second") / "value.h").write_text("#define VALUE 1731100001\n")

        def served() -> Any:
            found = fresh([__file__, "--child", "value", system, *searched], folders("cache"))
            return found["value"] if isinstance(found, dict) else found

        before, changed = served(), folders() / path
        if before != 1731100001:
            return str(before)
        times = changed.stat() if change == "same size and mtime" else None
        changed.write_text(content)
        if times:
            os.utime(changed, ns=(times.st_atime_ns, times.st_mtime_ns))
        after = served()
        return "right" if after == value else "stale" if after == before else str(after)


def measure(result: Result, arguments: Arguments) -> None:
    """Look-ups by system and kind of source, with the reason for a system that cannot run here; then the changes."""
    systems = [name for name, (of, _) in SYSTEMS.items() if of]
    result.samples["lookup"] = {name: {} for name in systems}
    starts = [(name, start) for name in systems for start in ("plain", "cub") if (name, start) != (CORE, "cub")]
    rows = {f"{name}, {start}": ("lookup", name, start) for name, start in starts}  # what a process looks up first
    with temporary_folders() as folders:
        for row, found in result.sampled(rows, lambda row: folders(rows[row][1]), arguments.rounds):
            result.add("lookup", rows[row][1], **found["times"])
    result.left_out = {rows[row][1]: why for row, why in result.left_out.items()}
    result.samples["lookup"] |= result.left_out
    pairs = [(system, change) for system in SYSTEMS if system not in result.left_out for change in CHANGES]
    outcomes = in_parallel(lambda pair: "not run" if result.is_over() else outcome_of(*pair), pairs, 2 * AT_ONCE)
    for (system, change), outcome in zip(pairs, outcomes, strict=True):
        result.samples.setdefault("stale", {}).setdefault(system, {})[change] = outcome
        result.write()


if __name__ == "__main__":
    run(__doc__, {"lookup": (measure, child)}, rounds=(5, 3))
