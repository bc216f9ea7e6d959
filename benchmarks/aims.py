"""Compare the project's aims for speed and memory with the committed results; tables.py writes the table.

A row is computed from one result. Aims that are missed or were not measured have a row too.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from results import NoResult, digits, figure, in_ms, result_of, table

COUNTS = ("0", "1", "2", "4")
Result = Mapping[str, Any]


class Aim(NamedTuple):
    """One aim: a row of the table.

    Args:
        of: The name of the result.
        what: The measured quantity, with its unit.
        limit: The largest value that meets the aim.
        value: The path of a figure in the result (`results.figure`), or of two with ` / ` between, of which the ratio
            counts, or a function of the result.
        cause: The reason, if the aim is missed and the reason is known. A path in braces is a time of the result, one
            with the name of a result and a colon in front a time of that; a function adds words.
        is_least: Whether `limit` is the smallest such value instead.
    """

    of: str
    what: str
    limit: float
    value: str | Callable[[Result], float]
    cause: str | Callable[[Result], str] = ""
    is_least: bool = False

    def measured(self) -> float | None:
        """The value; None if the result lacks it."""
        try:
            result = result_of(self.of)
            if not isinstance(self.value, str):
                return self.value(result)
            over, *under = (figure(result, path) for path in self.value.split(" / "))
            return over / under[0] if under else over
        except (NoResult, KeyError, TypeError, ValueError, ZeroDivisionError):
            return None

    def is_met(self, value: float) -> bool:
        return value >= self.limit if self.is_least else value <= self.limit

    def why(self) -> str:
        """The reason, with its figures; empty if they were not measured."""

        def shown(found: re.Match[str]) -> str:
            return in_ms(result_of(found["other"] or self.of), found["path"])

        try:
            text = self.cause if isinstance(self.cause, str) else self.cause(result_of(self.of))
            return re.sub(r"\{(?:(?P<other>\w+): )?(?P<path>[^}]+)\}", shown, text)
        except (NoResult, KeyError):
            return ""


def to_bare(system: str, *counts: str) -> Callable[[Result], float]:
    """The largest ratio of the launch times of `system` and a bare launch, over these numbers of arguments."""
    bare = "bare cuLaunchKernel, packed before"
    return lambda result: max(figure(result, f"numba_kcache, {system} > {count}") / figure(result, f"{bare} > {count}")
                              for count in counts)  # fmt: skip


def growth(result: Result, part: str, begin: int = 0, end: int = -1) -> float:
    """Bytes by which the host's memory grew from one tenth of a part to another."""
    tenths = result["samples"][part]["tenths"]
    return float(tenths[end][1] - tenths[begin][1])


def kept_of_dropped_kb(result: Result) -> float:
    """KB that a dropped kernel leaves allocated, beyond those that a bare load and unload leaves."""
    ours, bare = (growth(result, part) / (0.9 * result["samples"][part]["count"]) for part in (DROPPED, UNLOADED))
    return (ours - bare) / 1e3


def of_published(result: Result) -> dict[str, float]:
    """Seconds of each public program with this cache filled, as a multiple of those as published."""
    both = {
        name: [each[of]["warm_median"] for of in ("numba_kcache", "plain")] for name, each in result["samples"].items()
    }
    return {name: here / plain for name, (here, plain) in both.items() if here and plain}


def over_memory(result: Result) -> dict[str, float]:
    """Milliseconds that the first result of each algorithm takes longer from the cache than from memory."""
    return {name: row["cache"] - row["memory"] for name, row in result["milliseconds"].items()}


DROPPED, UNLOADED = "numba_kcache, dropped", "cuModuleLoadData, dropped"
CPP, STAND_IN = "numba_kcache, CUDA C++", "Numba without import, CUDA C++"
JOB, THEIRS = "20 Numba kernels, 8 processes", "numba-cuda-mlir cache=True"
THEIR_JOB = f"{JOB} > Numba cache=True > cold all"
ARRAYS = ("Numba arrays", "CuPy arrays", "PyTorch tensors", "Numba-typed, Numba arrays")
AIMS = (
    Aim("added", "added by a CUDA C++ kernel to a bare cubin's process, ms", 9, "added > cubin > added_ms",
        f"import, decoration, first launch and exit sum to {{warm_steps: {CPP} > warm > sum}} (`warm_steps`). The "
        "rest is the end of the interpreter, which frees the package's classes and functions: a process that ends by "
        "`os._exit` lacks it"),
    Aim("added", "added to CuPy's `RawKernel`, ms", 9, "added > RawKernel > added_ms",
        f"the same; the sum is {{warm_steps: {CPP} on CuPy arrays > warm > sum}} here, "
        "{warm_steps: CuPy RawKernel > warm > sum} for `RawKernel`"),
    Aim("added", "the same with `cuda_fp16.h`, ms", 12, "added > fp16 > added_ms",
        f"the same, and of first launch {{warm_steps: {CPP} with cuda_fp16.h > warm > first}}, in which the headers "
        "are compared with their recorded state"),
    Aim("added", "added by a Numba kernel to a program without one, ms", 12, "added > Numba > added_ms",
        "its steps sum to {warm_steps: numba_kcache, Numba kernel > warm > sum}, "
        "{warm_steps: numba_kcache, Numba kernel > warm > import} of it import. The interval of the pairs is wide: "
        "see the first table"),
    Aim("added", "added by a stored Numba kernel under `numba_kcache.cuda`, CuPy arrays, to none, ms",
        15, "added > Numba without import, CuPy > added_ms"),
    Aim("added", "the same on the driver's memory, whole process, times a cached CUDA C++ kernel's",
        1.1, f"{STAND_IN} > ours / {STAND_IN} > other"),
    Aim("added", "nothing stored, CuPy arrays: added to `RawKernel`, ms", -75, "added > cold RawKernel > added_ms",
        "a kernel of CuPy's has loaded NVRTC for both, so that all of CuPy's first launch takes "
        "{warm_steps: CuPy RawKernel > cold > first}, and nothing can take 75 ms less; here it takes "
        f"{{warm_steps: {CPP} on CuPy arrays > cold > first}}: a first compile imports 40 modules and identifies the "
        "compilers"),
    Aim("added", "the same with `cuda_fp16.h`, ms", 0, "added > cold fp16 > added_ms",
        "as above, and the headers and their folders are recorded"),
    *(
        Aim("added", f"nothing stored, {count} kernels of a module, times `RawModule`", 1.0,
            f"cold {count} of a module > ours / cold {count} of a module > other", "as above")
        for count in (31, 300)
    ),
    Aim("compile_overhead", "CPU time of a compile, median of all sources, times NVRTC's", 1.03, "summary > median",
        "key, look-up, locks and three files take {summary > more, ms} ms, whatever NVRTC takes for the source"),
    Aim("compile_overhead", "sources above 1.15 times NVRTC's", 0, "summary > above 1.15", "the same"),
    Aim("compile_overhead", "sources", 150, "summary > sources", "the sources of this tree and kernels with headers",
        is_least=True),
    Aim("modules", "300 kernels of a module, all launched, times `RawModule`", 1.5,
        "300 of a module, ours > all / 300 of a module, cupy > all",
        "until the first kernel {300 of a module, ours > first}, CuPy {300 of a module, cupy > first}; for each "
        "further one {300 of a module, ours > further}, CuPy {300 of a module, cupy > further}"),
    Aim("modules", "31 kernels in 31 sources, times `RawKernel`s", 1.0,
        "31 sources, ours > all / 31 sources, cupy > all",
        "each source has its own key, look-up and file: {31 sources, ours > further}, in CuPy "
        "{31 sources, cupy > further}"),
    Aim("workloads", "20 Numba kernels in 8 processes, nothing stored, times Numba's", 1.0,
        f"{JOB} > numba_kcache > cold all / {THEIR_JOB}"),
    Aim("workloads", "the same, signatures given", 0.5,
        f"{JOB} > numba_kcache, signatures given > cold all / {THEIR_JOB}",
        f"{{{JOB} > numba_kcache, signatures given > cold all}}, Numba's {{{THEIR_JOB}}}"),
    Aim("workloads", "compiles of these 20 kernels", 20, f"{JOB} > numba_kcache > cold compiles"),
    Aim("mlir", "numba-cuda-mlir, warm first launch, ms", 2,
        lambda of: figure(of, "numba_kcache > warm first") * 1e3,
        "reading the function, its look-up, options and device, and loading the cubin"),
    Aim("mlir", "its whole warm process, ms shorter than with `cache=True`", 400,
        lambda of: (figure(of, f"{THEIRS} > warm process") - figure(of, "numba_kcache > warm process")) * 1e3,
        is_least=True),
    Aim("mlir", "a launch with its arrays, CuPy's or torch's, us", 7,
        lambda of: max(figure(of, f"numba_kcache > launch {arrays}") for arrays in ("own", "cupy", "torch")) * 1e6),
    Aim("mlir", "nothing stored, unedited: first launch, times `cache=True`", 1.05,
        f"numba_kcache.install() > cold first / {THEIRS} > cold first",
        f"{{numba_kcache.install() > cold first}}, its own {{{THEIRS} > cold first}}"),
    *(Aim("launch", f"a launch, {of}, at most 4 arguments, times the bare call", 1.0, to_bare(of, *COUNTS))
      for of in ARRAYS),
    *(Aim("launch", f"the same, {of}, 16 arguments", 1.2, to_bare(of, "16"),
          "a typed kernel takes an array of Numba's as several words, others as a pointer") for of in ARRAYS),
    Aim("launch", "the same, `c_void_p`, any number", 1.2, to_bare("ctypes.c_void_p", *COUNTS, "8", "16")),
    Aim("launch", "the same, any array interface", 1.5, to_bare("any array interface", *COUNTS, "8", "16")),
    Aim("growth", "growth of memory in 10,000,000 launches, KB", 100, lambda of: growth(of, "launches") / 1e3),
    Aim("growth", "memory that a dropped kernel leaves, KB beyond a bare load and unload", 2, kept_of_dropped_kb,
        lambda of: f"from the first tenth of the kernels to the fifth {growth(of, DROPPED, 0, 4) / 1e6:+.1f} MB, "
        f"from it to the last {growth(of, DROPPED, 4) / 1e6:+.1f}"),
    Aim("cuda_compute", "first result after a hit, ms longer than with the object in memory", 5,
        lambda of: max(over_memory(of).values()),
        lambda of: ", ".join(f"{name} {more:+.1f}" for name, more in over_memory(of).items())),
    Aim("program_cache", "cuda.core's `compile(cache=)`, first hit, times its file backend's", 1.0,
        "microseconds > numba_kcache > first / microseconds > file backend > first",
        "directories and file are opened without following links, and the digest of all bytes is checked; the file "
        "backend checks nothing"),
    Aim("program_cache", "the same, hits after the first", 1.0,
        "microseconds > numba_kcache > again / microseconds > file backend > again"),
    Aim("program_cache", "`get_or_build` of 50 KB after the first, us", 100, "microseconds > built > again"),
    Aim("triton_kernels", "Triton, warm first launch, times its own directory's", 1.0,
        "found > cache > first_ms / found > own > first_ms",
        "{found > cache > first_ms} and {found > own > first_ms} ms; its own directory is read without a check of the "
        "content"),
    Aim("real_programs", "public programs, cache filled: whole process, times as published, the largest", 1.0,
        lambda of: max(of_published(of).values()),
        lambda of: "these take longer than as published: "
        + ", ".join(f"{name} ({ratio:.2f})" for name, ratio in of_published(of).items() if ratio > 1)),
    Aim("real_programs", "public programs whose results differ from the published program's", 0,
        lambda of: sum(each["results"] != "same bits" for each in of["samples"].values())),
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
        if how == "**missed**" and (why := aim.why()):
            causes += textwrap.wrap(f"- {aim.what}: {why}.", 119, subsequent_indent="  ")
    total = f"{counts['met']} met, {counts['**missed**']} missed, {counts['not measured']} not measured."
    return "\n".join([*table("aim | limit | measured |  | result", rows), "", total, *[""] * bool(causes), *causes])
