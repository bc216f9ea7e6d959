"""How long does a lookup take before anything is loaded, how long to learn headers, and which caches serve stale code?

Method      Lookup: a fresh process looks up kernels that an earlier process stored, for a named target, so that no code
            is loaded on a device. Six kernels have no includes; the first and the others are measured separately. One
            includes cub/block/block_reduce.cuh, and all headers that it reads are verified. CuPy cannot look up without
            loading: its times include the load. PyCUDA runs nvcc for its version, and to preprocess a source with
            includes. Samples of the systems alternate, one process at a time. Learning: the time of a compile beyond
            NVRTC and the linker, absolute and relative. "first" is on a new
            installation, when the toolkit is identified too; one process runs for every four cores. Stale code: a
            header is edited, and the next process reports the result of the kernel; these processes run in parallel,
            since no time is measured. Bytecode is compiled before, as pip does. Each part is written when it is done.
Not shown   A cold page cache, a network file system. Systems that are not installed, or that need a missing GPU or
            nvcc, are listed as left out.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from fresh import reason

ARCH = "sm_90"
PLAIN = 'extern "C" __global__ void k%d(float *x) { x[threadIdx.x] *= %d; }'
WITH_HEADERS = {
    "cub/block/block_reduce.cuh": "using R = cub::BlockReduce<int, 64>; __shared__ R::TempStorage t; *o = R(t).Sum(1);",
    "cooperative_groups.h": "cooperative_groups::this_thread_block().sync(); *o = 1;",
    "cuda/std/array": "cuda::std::array<int, 3> a{*o, 2, 3}; o[1] = a[0];",
    "cuda_fp16.h": "*o = __half2int_rn(__int2half_rn(*o));",
}
CUB = next(iter(WITH_HEADERS))


def plain_source(number: int) -> str:
    """A kernel with a name of its own."""
    return PLAIN % (number, number)


def source_with(header: str) -> str:
    return f'#include <{header}>\nextern "C" __global__ void k(int *o) {{ {WITH_HEADERS[header]} }}'


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


# -- lookups, each in a fresh process -------------------------------------------------------------------


def lookup_ours(starts_with: str) -> dict[str, float]:
    from numba_kcache import cached_kernel

    plain = [cached_kernel(plain_source(number), arch=ARCH) for number in range(6)]
    cub = cached_kernel(source_with(CUB), arch=ARCH)
    return lookups(starts_with, [lambda kernel=kernel: kernel.cubin(ARCH) for kernel in plain], lambda: cub.cubin(ARCH))


def lookup_cuda_core(starts_with: str) -> dict[str, float]:
    from cuda.core import Program, ProgramOptions
    from cuda.core.utils import FileStreamProgramCache

    cache = FileStreamProgramCache(os.environ["KC_BENCH_DIR"])

    def look_up(source: str) -> bytes:
        options = ProgramOptions(arch=ARCH, no_cache=True)
        return bytes(Program(source, "c++", options=options).compile("cubin", cache=cache).code)

    return lookups(starts_with, [lambda number=number: look_up(plain_source(number)) for number in range(6)], None)


def lookup_cupy(starts_with: str) -> dict[str, float]:
    import cupy

    cupy.ones(4)
    folders = tuple(f"-I{folder}" for folder in toolkit_dirs())
    plain = [cupy.RawKernel(plain_source(number), f"k{number}", backend="nvrtc") for number in range(6)]
    cub = cupy.RawKernel(source_with(CUB), "k", folders, backend="nvrtc")
    return lookups(starts_with, [kernel.compile for kernel in plain], cub.compile)


def lookup_pycuda(starts_with: str) -> dict[str, float]:
    from pycuda.compiler import compile as compile_cubin

    options = {"arch": ARCH, "cache_dir": os.environ["KC_BENCH_DIR"], "no_extern_c": True}
    plain = [lambda number=number: compile_cubin(plain_source(number), **options) for number in range(6)]
    return lookups(starts_with, plain, lambda: compile_cubin(source_with(CUB), **options))


def lookups(starts_with: str, plain: list[Callable[[], object]], cub: Callable[[], object] | None) -> dict[str, float]:
    """Seconds by name: of CUB alone if `starts_with` is "cub", else of the plain kernels and of CUB after them."""
    found = {}
    if cub is not None and starts_with == "cub":
        return {f"{CUB}, first": timed(cub)}
    first, *others = (timed(each) for each in plain)
    found |= {"no includes, first": first, "no includes, after": statistics.median(others)}
    return found if cub is None else {**found, f"{CUB}, after": timed(cub)}


def toolkit_dirs() -> list[str]:
    from numba_kcache.toolchain import installed_include_dirs

    return installed_include_dirs()


# -- learning -------------------------------------------------------------------------------------------


def learn(header: str, _how: str) -> dict[str, float]:
    """Seconds of the compilers, and of the other work of a miss: to find and record the headers that were read."""
    import numba_kcache
    from numba_kcache import cached_kernel
    from numba_kcache.headers import record

    numba_kcache.configure(mode="refresh")
    kernel = cached_kernel(source_with(header), arch=ARCH)
    cached_kernel(plain_source(7), arch=ARCH).compile()  # loads the compilers
    taken: list[tuple[float, float]] = []
    real = record.compile_observed

    def measured(*arguments: Any) -> Any:
        start = time.perf_counter()
        artifact, headers = real(*arguments)
        taken.append((time.perf_counter() - start, artifact.compile_time_s))
        assert not headers.untracked, headers.untracked
        return artifact, headers

    record.compile_observed = measured
    kernel.compile()
    ((whole, compiling),) = taken
    return {"compile": compiling, "learn": whole - compiling}


# -- stale code -----------------------------------------------------------------------------------------

VALUE = """#include "value.h"
#if __has_include("asked.h")
#undef VALUE
#define VALUE 1731100004
#endif
__device__ volatile int value = VALUE;
extern "C" __global__ void k(int *o) { *o = value; }
"""


def edit(folder: Path) -> int:
    (folder / "second/value.h").write_text("#define VALUE 1731100005 // edited\n")
    return 1731100005


def edit_same_size(folder: Path) -> int:
    path = folder / "second/value.h"
    before = path.stat()
    path.write_text("#define VALUE 1731100002\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return 1731100002


def shadow(folder: Path) -> int:
    (folder / "first/value.h").write_text("#define VALUE 1731100003\n")
    return 1731100003


def add_asked_header(folder: Path) -> int:
    (folder / "second/asked.h").write_text("")
    return 1731100004


CHANGES = {
    "header edited": edit,
    "same size and mtime": edit_same_size,
    "header in an earlier folder": shadow,
    "`__has_include` answered": add_asked_header,
}


def value_ours(folders: list[str]) -> int:
    from numba_kcache import cached_kernel

    return constant(cached_kernel(VALUE, arch=ARCH, include_dirs=folders).cubin(ARCH))


def value_cuda_core(folders: list[str]) -> int:
    from cuda.core import Program, ProgramOptions
    from cuda.core.utils import FileStreamProgramCache

    cache = FileStreamProgramCache(os.environ["KC_BENCH_DIR"])
    options = ProgramOptions(arch=ARCH, no_cache=True, include_path=folders or None)
    return constant(bytes(Program(VALUE, "c++", options=options).compile("cubin", cache=cache).code))


def value_cuda_core_beside(folders: list[str]) -> int:
    """cuda.core's cache refuses include folders, but NVRTC searches the working directory anyway."""
    os.chdir(folders[-1])
    return value_cuda_core([])


def value_cupy(folders: list[str]) -> int:
    import cupy

    out = cupy.zeros(1, cupy.int32)
    cupy.RawKernel(VALUE, "k", tuple(f"-I{folder}" for folder in folders), backend="nvrtc")((1,), (1,), (out,))
    return int(out[0])


def value_pycuda(folders: list[str]) -> int:
    import numpy as np
    import pycuda.autoprimaryctx
    from pycuda import driver
    from pycuda.compiler import SourceModule

    assert pycuda.autoprimaryctx
    out = np.zeros(1, np.int32)
    module = SourceModule(VALUE, include_dirs=folders, cache_dir=os.environ["KC_BENCH_DIR"], no_extern_c=True)
    module.get_function("k")(driver.Out(out), block=(1, 1, 1), grid=(1, 1))
    return int(out[0])


def constant(cubin: bytes) -> int:
    """The number that the kernel writes: an initialised variable of the module."""
    (found,) = (number for number in range(1731100001, 1731100006) if struct.pack("<i", number) in cubin)
    return found


SYSTEMS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "numba_kcache": (lookup_ours, value_ours),
    "cuda.core FileStreamProgramCache": (lookup_cuda_core, value_cuda_core),
    "cuda.core, headers in the working directory": (lookup_cuda_core, value_cuda_core_beside),
    "cupy RawKernel": (lookup_cupy, value_cupy),
    "pycuda (nvcc --preprocess)": (lookup_pycuda, value_pycuda),
}
LOOKED_UP = [system for system in SYSTEMS if "working directory" not in system]
"""The systems whose lookups are measured: headers in the working directory make no difference to a lookup."""

MARK = "answer: "
"""The beginning of the line with a child's answer, since some packages print too."""

STARTS = ("plain", "cub")
"""The kind of kernel that a process looks up first."""

CORES = os.cpu_count() or 1


def in_process(directory: Path, *arguments: str) -> Any:
    """Answer of a fresh process of this script; the reason, as text, if it failed."""
    variables = dict.fromkeys(("NUMBA_KCACHE_DIR", "CUPY_CACHE_DIR", "KC_BENCH_DIR"), str(directory))
    environment = {**os.environ, "CUDA_CACHE_DISABLE": "1", **variables}
    command = [sys.executable, str(Path(__file__).resolve()), "--child", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return reason(done.stderr)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    return json.loads(line.removeprefix(MARK))


def side_by_side(calls: list[Callable[[], Any]], limit: int) -> list[Any]:
    """Run the calls in parallel, a limited number at a time, and return their results."""
    with ThreadPoolExecutor(max(1, limit)) as pool:
        return [each.result() for each in [pool.submit(call) for call in calls]]


def measure_lookups(rounds: int) -> dict[str, dict[str, list[float]] | str]:
    """Seconds by system and kind of source; the reason, as text, for a system that cannot run here."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as parent:
        directories = {system: Path(parent, re.sub(r"\W", "_", system)) for system in LOOKED_UP}
        for directory in directories.values():
            directory.mkdir()

        def filled(system: str) -> list[Any]:
            return [in_process(directories[system], "lookup", system, starts_with) for starts_with in STARTS]

        for system, answers in zip(
            LOOKED_UP, side_by_side([partial(filled, each) for each in LOOKED_UP], CORES), strict=True
        ):
            refusal = next((each for each in answers if isinstance(each, str)), None)
            found[system] = {} if refusal is None else refusal
        for _ in range(rounds):
            for system in [system for system in LOOKED_UP if not isinstance(found[system], str)]:
                for starts_with in STARTS:
                    for name, seconds in in_process(directories[system], "lookup", system, starts_with).items():
                        found[system].setdefault(name, []).append(seconds)
    return found


def measure_learning(rounds: int) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Seconds of compiling and learning by header, "first" or "later"."""
    found: dict[str, Any] = {}
    cases = [(header, how) for header in WITH_HEADERS for how in ("observed",)]

    def pair(header: str, how: str) -> list[Any]:
        with tempfile.TemporaryDirectory() as directory:
            return [in_process(Path(directory), "learn", header, how) for _ in ("first", "later")]

    for _ in range(rounds):
        for (header, how), answers in zip(
            cases, side_by_side([partial(pair, *each) for each in cases], CORES // 4), strict=True
        ):
            for when, times in zip(("first", "later"), answers, strict=True):
                assert isinstance(times, dict), times
                rows = found.setdefault(header, {}).setdefault(f"{how}, {when}", {})
                for name, seconds in times.items():
                    rows.setdefault(name, []).append(seconds)
    return found


def measure_stale(cannot: set[str]) -> dict[str, dict[str, str]]:
    """Map system and change to "right", "stale", or the system's own message.

    Args:
        cannot: Systems that cannot run here.
    """
    pairs = [(system, name) for system in SYSTEMS if system not in cannot for name in CHANGES]
    outcomes = side_by_side([partial(outcome_of, *each) for each in pairs], CORES)
    found: dict[str, dict[str, str]] = {}
    for (system, name), outcome in zip(pairs, outcomes, strict=True):
        found.setdefault(system, {})[name] = outcome
    return found


def outcome_of(system: str, name: str) -> str:
    """Outcome of one system after one change; "–" if the change does not apply to it."""
    change = CHANGES[name]
    if "working directory" in system and change is shadow:
        return "–"
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent)
        for each in ("first", "second", "cache"):
            (folder / each).mkdir()
        (folder / "second/value.h").write_text("#define VALUE 1731100001\n")
        ask = (folder / "cache", "value", system, str(folder / "first"), str(folder / "second"))
        before = in_process(*ask)
        if before != 1731100001:
            return str(before)
        wanted = change(folder)
        seen = in_process(*ask)
        return "right" if seen == wanted else "stale" if seen == 1731100001 else str(seen)


def report(samples: dict[str, Any]) -> None:
    for system, rows in samples.get("lookup", {}).items():
        cells = rows.items() if isinstance(rows, dict) else ()
        shown = [f"{name} {statistics.median(times) * 1e6:.0f} us" for name, times in cells]
        print(f"{system}: {'; '.join(shown) or rows}")
    for header, rows in samples.get("learning", {}).items():
        for how, times in rows.items():
            compiling, learning = (statistics.median(times[name]) for name in ("compile", "learn"))
            print(f"{header}, {how}: {learning * 1e3:.1f} ms of {compiling * 1e3:.0f} ({learning / compiling:.1%})")
    for system, outcomes in samples.get("stale", {}).items():
        print(f"{system}: " + "; ".join(f"{name}: {outcome}" for name, outcome in outcomes.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--child", nargs="+")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.child:
        what, system, *more = arguments.child
        call = learn if what == "learn" else SYSTEMS[system][what == "value"]
        answer = call(system, *more) if what == "learn" else call(more) if what == "value" else call(*more)
        print(MARK + json.dumps(answer))
        return
    from header import Result

    compileall.compile_dir(str(Path(__file__).resolve().parent.parent / "numba_kcache"), quiet=2)
    samples: dict[str, Any] = {}
    result = Result(arguments.json, "lookup")

    def done(part: str, found: Any) -> None:
        samples[part] = found
        report({part: found})
        result.write(samples)

    done("lookup", measure_lookups(arguments.rounds))
    done("stale", measure_stale({system for system, rows in samples["lookup"].items() if isinstance(rows, str)}))
    done("learning", measure_learning(max(1, arguments.rounds // 3)))


if __name__ == "__main__":
    main()
