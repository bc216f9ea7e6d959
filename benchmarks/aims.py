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
COUNTS = ("0", "1", "2", "4")


class Aim(NamedTuple):
    """One aim: a row of the table.

    Args:
        of: The name of the result.
        what: The measured quantity, with its unit.
        limit: The largest value that meets the aim.
        value: Computes the value from the result.
        is_least: Whether `limit` is the smallest such value instead.
        cause: The reason, if the aim is missed and the reason is known.
    """

    of: str
    what: str
    limit: float
    value: Callable[[Mapping[str, Any]], float]
    is_least: bool = False
    cause: str = ""

    def measured(self) -> float | None:
        """The value; None if the result lacks it."""
        try:
            return self.value(result_of(self.of))
        except (NoResult, KeyError, TypeError, ValueError, ZeroDivisionError):
            return None

    def is_met(self, value: float) -> bool:
        return value >= self.limit if self.is_least else value <= self.limit


def added(name: str) -> Callable[[Mapping[str, Any]], float]:
    return lambda result: float(result["added"][name]["added_ms"])


def ratio_to_other(name: str) -> Callable[[Mapping[str, Any]], float]:
    """The median of our side of a pair, as a multiple of the median of the other side."""

    def value(result: Mapping[str, Any]) -> float:
        sides = result["samples"][name]
        return median(sides["ours"]) / median(sides["other"])

    return value


def ratio(*path: str, to: tuple[str, ...]) -> Callable[[Mapping[str, Any]], float]:
    """The median at the keys `path` of a result, as a multiple of the median at the keys `to`."""
    return lambda result: middle(result["samples"], *path) / middle(result["samples"], *to)


def middle(samples: Any, *path: str) -> float:
    for name in path:
        samples = samples[name]
    return median(samples)


def to_bare(system: str, counts: tuple[str, ...]) -> Any:
    """The largest ratio of the launch times of `system` and a bare launch, over these numbers of arguments."""
    bare = "bare cuLaunchKernel, packed before"
    return lambda result: max(
        middle(result["samples"], system, count) / middle(result["samples"], bare, count) for count in counts
    )


def more_memory(part: str, result: Mapping[str, Any], index: int = 1) -> float:
    """Growth from the first tenth of a part to its last, in bytes of the host's memory; `index=2`: of the device's."""
    first, *_, last = result["samples"][part]["tenths"]
    return float(last[index] - first[index])


def kept_of_dropped_kb(result: Mapping[str, Any]) -> float:
    """KB that a dropped kernel leaves allocated, beyond those that a bare load and unload leaves."""
    parts = "numba_kcache, dropped", "cuModuleLoadData, dropped"
    ours, bare = (more_memory(part, result) / (0.9 * result["samples"][part]["count"]) for part in parts)
    return (ours - bare) / 1e3


def most_over_memory_ms(result: Mapping[str, Any]) -> float:
    """Milliseconds that a first result takes longer from the cache than from memory, for the slowest algorithm."""
    return max(row["cache"] - row["memory"] for row in result["milliseconds"].values())


def slowest_launch_us(result: Mapping[str, Any]) -> float:
    """Microseconds of a launch of ours, with the arrays that take the longest."""
    return max(middle(result["samples"], OURS, f"launch {of}") for of in ("own", "cupy", "torch")) * 1e6


def saved_process_ms(result: Mapping[str, Any]) -> float:
    """Milliseconds by which our warm process is shorter than that with numba-cuda-mlir's own cache."""
    samples = result["samples"]
    return (middle(samples, THEIRS, "warm process") - middle(samples, OURS, "warm process")) * 1e3


JOB = "20 Numba kernels, 8 processes"
AIMS = (
    Aim("added", "added by a CUDA C++ kernel to a bare cubin's process, ms", 12, added("cubin"),
        cause="import, decoration, first launch and exit sum to 12 ms in the steps of warm_steps.py. The rest is the "
        "end of the interpreter, which frees the package's classes and functions: a process that ends by `os._exit` "
        "lacks it"),
    Aim("added", "added to CuPy's `RawKernel`, ms", 12, added("RawKernel"), cause="the same"),
    Aim("added", "the same with `cuda_fp16.h`, ms", 12, added("fp16"),
        cause="the same, and 5 ms of first launch, in which the headers are compared with their recorded state"),
    Aim("added", "added by a Numba kernel to a program without one, ms", 12, added("Numba"),
        cause="its steps sum to 20 ms in warm_steps.py, half of it import. The interval of the pairs is wide: see the "
        "first table"),
    Aim("added", "nothing stored, CuPy arrays: added to `RawKernel`, ms", -75, added("cold RawKernel"),
        cause="a kernel of CuPy's has loaded NVRTC for both, so all of CuPy's first launch takes 26 ms, and nothing "
        "can take 75 ms less. Here a first compile imports 40 modules and identifies the compilers besides"),
    Aim("added", "the same with `cuda_fp16.h`, ms", 0, added("cold fp16"),
        cause="as above, and the headers and their folders are recorded"),
    Aim("added", "nothing stored, 31 kernels of a module, times `RawModule`", 1.0,
        ratio_to_other("cold 31 of a module"),
        cause="as above"),
    Aim("added", "nothing stored, 300 kernels of a module, times `RawModule`", 1.0,
        ratio_to_other("cold 300 of a module"), cause="as above"),
    Aim("compile_overhead", "CPU time of a compile, median of all sources, times NVRTC's", 1.03,
        lambda of: of["summary"]["median"],
        cause="key, look-up, locks and three files take about 5 ms, whatever NVRTC takes for the source"),
    Aim("compile_overhead", "sources above 1.15 times NVRTC's", 0, lambda of: of["summary"]["above 1.15"],
        cause="the same"),
    Aim("compile_overhead", "sources", 150, lambda of: of["summary"]["sources"], is_least=True,
        cause="the sources of this tree; more can be given as files"),
    Aim("modules", "300 kernels of a module, all launched, times `RawModule`", 1.5,
        ratio("300 of a module, ours", "all", to=("300 of a module, cupy", "all")),
        cause="6.9 ms until the first kernel (CuPy: 2.1), and 0.028 ms of Python for each further one (0.015)"),
    Aim("modules", "31 kernels in 31 sources, times `RawKernel`s", 1.0,
        ratio("31 sources, ours", "all", to=("31 sources, cupy", "all")),
        cause="each source has its own key, look-up and file: 0.36 ms each, 0.22 in CuPy"),
    Aim("workloads", "20 Numba kernels in 8 processes, nothing stored, times Numba's", 1.0,
        ratio(JOB, OURS, "cold all", to=(JOB, "Numba cache=True", "cold all"))),
    Aim("workloads", "the same, signatures given", 0.5,
        ratio(JOB, f"{OURS}, signatures given", "cold all", to=(JOB, "Numba cache=True", "cold all")),
        cause="one sample of each, 1,061 and 2,095 ms"),
    Aim("workloads", "compiles of these 20 kernels", 20, lambda of: middle(of["samples"], JOB, OURS, "cold compiles")),
    Aim("mlir", "numba-cuda-mlir, warm first launch, ms", 2,
        lambda of: middle(of["samples"], OURS, "warm first") * 1e3,
        cause="reading the function takes about 1 ms, its look-up 1, options and device 1, loading the cubin the "
        "rest"),
    Aim("mlir", "its whole warm process, ms shorter than with `cache=True`", 400, saved_process_ms, is_least=True),
    Aim("mlir", "a launch with its arrays, CuPy's or torch's, us", 7, slowest_launch_us),
    Aim("mlir", "nothing stored, unedited: first launch, times `cache=True`", 1.05,
        ratio(INSTALLED, "cold first", to=(THEIRS, "cold first")),
        cause="two samples of each: 466 and 707 ms, and 514 and 507"),
    *(
        Aim("launch", f"a launch, {of}, at most 4 arguments, times the bare call", 1.0,
            to_bare(f"{OURS}, {of}", COUNTS))
        for of in ("Numba arrays", "CuPy arrays", "PyTorch tensors", "Numba-typed, Numba arrays")
    ),
    *(
        Aim("launch", f"the same, {of}, 16 arguments", 1.2, to_bare(f"{OURS}, {of}", ("16",)),
            cause="a typed kernel takes an array of Numba's as several words, others as a pointer")
        for of in ("Numba arrays", "CuPy arrays", "PyTorch tensors", "Numba-typed, Numba arrays")
    ),
    Aim("launch", "the same, `c_void_p`, any number", 1.2, to_bare(f"{OURS}, ctypes.c_void_p", (*COUNTS, "8", "16"))),
    Aim("launch", "the same, any array interface", 1.5, to_bare(f"{OURS}, any array interface", (*COUNTS, "8", "16"))),
    Aim("growth", "growth of memory in 10,000,000 launches, KB", 100, lambda of: more_memory("launches", of) / 1e3),
    Aim("growth", "memory that a dropped kernel leaves, KB beyond a bare load and unload", 2, kept_of_dropped_kb,
        cause="the memory grows by 23 MB over the first 1,600 kernels and by 0.2 KB for each later one"),
    Aim("cuda_compute", "first result after a hit, ms longer than with the object in memory", 5, most_over_memory_ms,
        cause="the radix sort; the other three algorithms stay below"),
    Aim("program_cache", "cuda.core's `compile(cache=)`, first hit, times its file backend's", 1.0,
        lambda of: of["microseconds"][OURS]["first"] / of["microseconds"]["file backend"]["first"],
        cause="directories and file are opened without following links, and the digest of all bytes is checked, in 30 "
        "to 50 us; the file backend checks nothing"),
    Aim("program_cache", "the same, hits after the first", 1.0,
        lambda of: of["microseconds"][OURS]["again"] / of["microseconds"]["file backend"]["again"]),
    Aim("program_cache", "`get_or_build` of 50 KB after the first, us", 100,
        lambda of: of["microseconds"]["built"]["again"]),
    Aim("triton_kernels", "Triton, warm first launch, times its own directory's", 1.0,
        lambda of: of["found"]["cache"]["first_ms"] / of["found"]["own"]["first_ms"],
        cause="one sample of each, 428 and 412 ms; its own directory is read without a check of the content"),
)  # fmt: skip


def aims() -> str:
    """Tabulate each aim with its limit and its measured value; below the table, the known causes of misses."""
    rows, causes, counts = list[str](), list[str](), Counter[str]()
    for aim in AIMS:
        value = aim.measured()
        how = "not measured" if value is None else "met" if aim.is_met(value) else "**missed**"
        counts[how] += 1
        shown = "–" if value is None else digits(value) if value else "0"
        rows.append(f"{aim.what} | {'≥' if aim.is_least else '≤'} {aim.limit:g} | {shown} | {how} | `{aim.of}`")
        if how == "**missed**" and aim.cause:
            causes += textwrap.wrap(f"- {aim.what}: {aim.cause}.", 119, subsequent_indent="  ")
    total = f"{counts['met']} met, {counts['**missed**']} missed, {counts['not measured']} not measured."
    return "\n".join([*table("aim | limit | measured |  | result", rows), "", total, *[""] * bool(causes), *causes])
