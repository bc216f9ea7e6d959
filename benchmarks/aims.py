"""Compare the project's aims for speed and memory with the committed results; tables.py writes the table.

A row is computed from one result. Aims that are missed or were not measured have a row too.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any, NamedTuple

from results import NoResult, digits, result_of, table

OURS, INSTALLED, THEIRS = "numba_kcache", "numba_kcache.install()", "numba-cuda-mlir cache=True"
BARE = "bare cuLaunchKernel, packed before"
COUNTS = ("0", "1", "2", "4")
Result = Mapping[str, Any]
Value = Callable[[Result], float]


class Aim(NamedTuple):
    """One aim: a row of the table.

    Args:
        of: The names of the results that may have the value; the first that has it counts.
        what: The measured quantity, with its unit.
        limit: The largest value that meets the aim.
        value: Computes the value from the result.
        is_least: Whether `limit` is the smallest such value instead.
        cause: The reason, if the aim is missed and the reason is known; a function takes its figures from the result.
    """

    of: str
    what: str
    limit: float
    value: Value
    is_least: bool = False
    cause: str | Callable[[Result], str] = ""

    def measured(self) -> tuple[str, float | None]:
        """The result and the value; None if no result has it."""
        for name in self.of.split(", "):
            try:
                return name, self.value(result_of(name))
            except (NoResult, KeyError, TypeError, ValueError, ZeroDivisionError):
                continue
        return self.of.split(", ")[0], None

    def is_met(self, value: float) -> bool:
        return value >= self.limit if self.is_least else value <= self.limit

    def why(self, of: str) -> str:
        """The reason, with its figures; empty if they were not measured."""
        try:
            return self.cause if isinstance(self.cause, str) else self.cause(result_of(of))
        except (NoResult, KeyError):
            return ""


def added(name: str) -> Value:
    return lambda result: float(result["added"][name]["added_ms"])


def ratio(*path: str, to: tuple[str, ...]) -> Value:
    """The median at the keys `path` of a result, as a multiple of the median at the keys `to`."""
    return lambda result: middle(result["samples"], *path) / middle(result["samples"], *to)


def to_other(pair: str) -> Value:
    """The median of our side of a pair, as a multiple of the median of the other side."""
    return ratio(pair, "ours", to=(pair, "other"))


def middle(samples: Any, *path: str) -> float:
    for name in path:
        samples = samples[name]
    return median(samples)


def in_ms(samples: Any, *path: str) -> str:
    """The median in milliseconds, and the number of samples."""
    for name in path[:-1]:
        samples = samples[name]
    return f"{digits(middle(samples, path[-1]) * 1e3)} ms ({len(samples[path[-1]])})"


def of_step(system: str, part: str = "sum", state: str = "warm") -> str:
    """Milliseconds of a part of a start, as warm_steps.py measured it."""
    return f"{digits(middle(result_of('warm_steps')['samples'], system, state, part) * 1e3)} ms"


def to_bare(system: str, counts: tuple[str, ...]) -> Value:
    """The largest ratio of the launch times of `system` and a bare launch, over these numbers of arguments."""
    return lambda result: max(ratio(system, count, to=(BARE, count))(result) for count in counts)


def more_memory(part: str, result: Result, index: int = 1) -> float:
    """Growth from the first tenth of a part to its last, in bytes of the host's memory; `index=2`: of the device's."""
    first, *_, last = result["samples"][part]["tenths"]
    return float(last[index] - first[index])


def kept_of_dropped_kb(result: Result) -> float:
    """KB that a dropped kernel leaves allocated, beyond those that a bare load and unload leaves."""
    parts = "numba_kcache, dropped", "cuModuleLoadData, dropped"
    ours, bare = (more_memory(part, result) / (0.9 * result["samples"][part]["count"]) for part in parts)
    return (ours - bare) / 1e3


def of_halves_mb(result: Result) -> tuple[float, float]:
    """Growth of the host's memory over the first half of the dropped kernels and over the second."""
    first, middle, last = (result["samples"]["numba_kcache, dropped"]["tenths"][index][1] for index in (0, 4, -1))
    return (middle - first) / 1e6, (last - middle) / 1e6


def most_over_memory_ms(result: Result) -> float:
    """Milliseconds that a first result takes longer from the cache than from memory, for the slowest algorithm."""
    return max(row["cache"] - row["memory"] for row in result["milliseconds"].values())


def slowest_launch_us(result: Result) -> float:
    """Microseconds of a launch of ours, with the arrays that take the longest."""
    return max(middle(result["samples"], OURS, f"launch {of}") for of in ("own", "cupy", "torch")) * 1e6


def saved_process_ms(result: Result) -> float:
    """Milliseconds by which our warm process is shorter than that with numba-cuda-mlir's own cache."""
    samples = result["samples"]
    return (middle(samples, THEIRS, "warm process") - middle(samples, OURS, "warm process")) * 1e3


def of_published(result: Result) -> dict[str, float]:
    """Seconds of each public program with this cache filled, as a multiple of those as published."""
    rows = {name: (each[OURS]["warm_median"], each["plain"]["warm_median"]) for name, each in result["samples"].items()}
    return {name: here / plain for name, (here, plain) in rows.items() if here and plain}


def slowest_programs(result: Result) -> str:
    slower = [f"{name} ({ratio:.2f})" for name, ratio in of_published(result).items() if ratio > 1]
    return f"these take longer than as published: {', '.join(slower)}"


STAND_IN, FUNCTION, ON_CUPY = (
    "Numba without import",
    "numba_kcache, Numba kernel",
    "numba_kcache, CUDA C++ on CuPy arrays",
)
JOB, THEIR_JOB = "20 Numba kernels, 8 processes", "Numba cache=True"
GIVEN = f"{OURS}, signatures given"
ARRAYS = ("Numba arrays", "CuPy arrays", "PyTorch tensors", "Numba-typed, Numba arrays")
AIMS = (
    Aim("added", "added by a CUDA C++ kernel to a bare cubin's process, ms", 9, added("cubin"),
        cause=lambda of: f"import, decoration, first launch and exit sum to {of_step('numba_kcache, CUDA C++')} in "
        "warm_steps.py. The rest is the end of the interpreter, which frees the package's classes and functions: a "
        "process that ends by `os._exit` lacks it"),
    Aim("added", "added to CuPy's `RawKernel`, ms", 9, added("RawKernel"),
        cause=lambda of: f"the same; the sum is {of_step(ON_CUPY)} here, {of_step('CuPy RawKernel')} for `RawKernel`"),
    Aim("added", "the same with `cuda_fp16.h`, ms", 12, added("fp16"),
        cause=lambda of: "the same, and of first launch "
        f"{of_step('numba_kcache, CUDA C++ with cuda_fp16.h', 'first')}, in which the "
        "headers are compared with their recorded state"),
    Aim("added", "added by a Numba kernel to a program without one, ms", 12, added("Numba"),
        cause=lambda of: f"its steps sum to {of_step(FUNCTION)} in warm_steps.py, {of_step(FUNCTION, 'import')} of it "
        "import. The interval of the pairs is wide: see the first table"),
    Aim("added, added_by_import", "added by a stored Numba kernel under `numba_kcache.cuda`, CuPy arrays, to none, ms",
        15, added(f"{STAND_IN}, CuPy")),
    Aim("added, added_by_import", "the same on the driver's memory, whole process, times a cached CUDA C++ kernel's",
        1.1, to_other(f"{STAND_IN}, CUDA C++")),
    Aim("added", "nothing stored, CuPy arrays: added to `RawKernel`, ms", -75, added("cold RawKernel"),
        cause=lambda of: "a kernel of CuPy's has loaded NVRTC for both, so that all of CuPy's first launch takes "
        f"{of_step('CuPy RawKernel', 'first', 'cold')}, and nothing can take 75 ms less; here it takes "
        f"{of_step(ON_CUPY, 'first', 'cold')}: a first compile imports 40 modules and identifies the compilers"),
    Aim("added", "the same with `cuda_fp16.h`, ms", 0, added("cold fp16"),
        cause="as above, and the headers and their folders are recorded"),
    *(
        Aim("added", f"nothing stored, {count} kernels of a module, times `RawModule`", 1.0,
            to_other(f"cold {count} of a module"), cause="as above")
        for count in (31, 300)
    ),
    Aim("compile_overhead", "CPU time of a compile, median of all sources, times NVRTC's", 1.03,
        lambda of: of["summary"]["median"],
        cause=lambda of: f"key, look-up, locks and three files take {of['summary']['more, ms']:.1f} ms, whatever NVRTC "
        "takes for the source"),
    Aim("compile_overhead", "sources above 1.15 times NVRTC's", 0, lambda of: of["summary"]["above 1.15"],
        cause="the same"),
    Aim("compile_overhead", "sources", 150, lambda of: of["summary"]["sources"], is_least=True,
        cause="the sources of this tree; more can be given as files"),
    Aim("modules", "300 kernels of a module, all launched, times `RawModule`", 1.5,
        ratio("300 of a module, ours", "all", to=("300 of a module, cupy", "all")),
        cause=lambda of: "until the first kernel {}, CuPy {}; for each further one {}, CuPy {}".format(*(
            in_ms(of["samples"], f"300 of a module, {side}", part)
            for part in ("first", "further") for side in ("ours", "cupy")))),
    Aim("modules", "31 kernels in 31 sources, times `RawKernel`s", 1.0,
        ratio("31 sources, ours", "all", to=("31 sources, cupy", "all")),
        cause=lambda of: "each source has its own key, look-up and file: {}, in CuPy {}".format(*(
            in_ms(of["samples"], f"31 sources, {side}", "further") for side in ("ours", "cupy")))),
    Aim("workloads", "20 Numba kernels in 8 processes, nothing stored, times Numba's", 1.0,
        ratio(JOB, OURS, "cold all", to=(JOB, THEIR_JOB, "cold all"))),
    Aim("workloads", "the same, signatures given", 0.5,
        ratio(JOB, GIVEN, "cold all", to=(JOB, THEIR_JOB, "cold all")),
        cause=lambda of: f"{in_ms(of['samples'], JOB, GIVEN, 'cold all')}, Numba's "
        f"{in_ms(of['samples'], JOB, THEIR_JOB, 'cold all')}"),
    Aim("workloads", "compiles of these 20 kernels", 20, lambda of: middle(of["samples"], JOB, OURS, "cold compiles")),
    Aim("mlir", "numba-cuda-mlir, warm first launch, ms", 2,
        lambda of: middle(of["samples"], OURS, "warm first") * 1e3,
        cause="reading the function, its look-up, options and device, and loading the cubin"),
    Aim("mlir", "its whole warm process, ms shorter than with `cache=True`", 400, saved_process_ms, is_least=True),
    Aim("mlir", "a launch with its arrays, CuPy's or torch's, us", 7, slowest_launch_us),
    Aim("mlir", "nothing stored, unedited: first launch, times `cache=True`", 1.05,
        ratio(INSTALLED, "cold first", to=(THEIRS, "cold first")),
        cause=lambda of: f"{in_ms(of['samples'], INSTALLED, 'cold first')}, its own "
        f"{in_ms(of['samples'], THEIRS, 'cold first')}"),
    *(
        Aim("launch", f"a launch, {of}, at most 4 arguments, times the bare call", 1.0,
            to_bare(f"{OURS}, {of}", COUNTS))
        for of in ARRAYS
    ),
    *(
        Aim("launch", f"the same, {of}, 16 arguments", 1.2, to_bare(f"{OURS}, {of}", ("16",)),
            cause="a typed kernel takes an array of Numba's as several words, others as a pointer")
        for of in ARRAYS
    ),
    Aim("launch", "the same, `c_void_p`, any number", 1.2, to_bare(f"{OURS}, ctypes.c_void_p", (*COUNTS, "8", "16"))),
    Aim("launch", "the same, any array interface", 1.5, to_bare(f"{OURS}, any array interface", (*COUNTS, "8", "16"))),
    Aim("growth", "growth of memory in 10,000,000 launches, KB", 100, lambda of: more_memory("launches", of) / 1e3),
    Aim("growth", "memory that a dropped kernel leaves, KB beyond a bare load and unload", 2, kept_of_dropped_kb,
        cause=lambda of: "from the first tenth of the kernels to the fifth {:+.1f} MB, from it to the last "
        "{:+.1f}".format(*of_halves_mb(of))),
    Aim("cuda_compute", "first result after a hit, ms longer than with the object in memory", 5, most_over_memory_ms,
        cause=lambda of: ", ".join(
            f"{name} {each['cache'] - each['memory']:+.1f}" for name, each in of["milliseconds"].items())),
    Aim("program_cache", "cuda.core's `compile(cache=)`, first hit, times its file backend's", 1.0,
        lambda of: of["microseconds"][OURS]["first"] / of["microseconds"]["file backend"]["first"],
        cause="directories and file are opened without following links, and the digest of all bytes is checked; the "
        "file backend checks nothing"),
    Aim("program_cache", "the same, hits after the first", 1.0,
        lambda of: of["microseconds"][OURS]["again"] / of["microseconds"]["file backend"]["again"]),
    Aim("program_cache", "`get_or_build` of 50 KB after the first, us", 100,
        lambda of: of["microseconds"]["built"]["again"]),
    Aim("triton_kernels", "Triton, warm first launch, times its own directory's", 1.0,
        lambda of: of["found"]["cache"]["first_ms"] / of["found"]["own"]["first_ms"],
        cause=lambda of: f"{of['found']['cache']['first_ms']:.0f} and {of['found']['own']['first_ms']:.0f} ms; its own "
        "directory is read without a check of the content"),
    Aim("real_programs", "public programs, cache filled: whole process, times as published, the largest", 1.0,
        lambda of: max(of_published(of).values()), cause=slowest_programs),
    Aim("real_programs", "public programs whose results differ from the published program's", 0,
        lambda of: sum(each["results"] != "same bits" for each in of["samples"].values())),
)  # fmt: skip


def aims() -> str:
    """Tabulate each aim with its limit and its measured value; below the table, the known causes of misses."""
    rows, causes, counts = list[str](), list[str](), Counter[str]()
    for aim in AIMS:
        of, value = aim.measured()
        how = "not measured" if value is None else "met" if aim.is_met(value) else "**missed**"
        counts[how] += 1
        shown = "–" if value is None else digits(value) if value else "0"
        rows.append(f"{aim.what} | {'≥' if aim.is_least else '≤'} {aim.limit:g} | {shown} | {how} | `{of}`")
        if how == "**missed**" and (why := aim.why(of)):
            causes += textwrap.wrap(f"- {aim.what}: {why}.", 119, subsequent_indent="  ")
    total = f"{counts['met']} met, {counts['**missed**']} missed, {counts['not measured']} not measured."
    return "\n".join([*table("aim | limit | measured |  | result", rows), "", total, *[""] * bool(causes), *causes])
