"""Write the tables of the documents from the committed results; no figure is typed by hand.

Method      If the result of a table is not committed, the table states this.
Run         python benchmarks/tables.py [NAME ...]
Not here    The pictures (plots).
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from aims import aims
from results import (
    RESULTS,
    NoResult,
    cells,
    commits,
    digits,
    footer,
    machine_of,
    of_commit,
    paragraph,
    result_of,
    script_and_machine,
    table,
)

ROOT = Path(__file__).resolve().parent.parent
Row = tuple[str, Sequence[str]]


def text(*parts: Iterable[str]) -> str:
    """The lines of tables and paragraphs, without an empty one before the first."""
    lines = [line for part in parts for line in part]
    return "\n".join(lines if lines[0] else lines[1:])


def between(times_s: Sequence[float], scale: float = 1e6) -> str:
    """`126 (114–131)`."""
    middle, low, high = (f"{each(times_s) * scale:.0f}" for each in (median, min, max))
    return f"{middle} ({low}–{high})"


# -- the README -----------------------------------------------------------------------------------------


class Program(NamedTuple):
    """A row of the README's table: one program, and the keys of its figures in a result.

    Args:
        name: The program and the interval that is timed.
        of: The name of the result.
        case: The workload or the number of kernels; empty if the result has only one.
        figure: The figure: "warm first".
        systems: For each column of the table, the name of the system in the result.
        other: A system without a column: its name in the result, and in the table.
    """

    name: str
    of: str
    case: str
    figure: str
    systems: Mapping[str, str]
    other: tuple[str, str] = ("", "")


COLUMNS = ("here", "CuPy", "cuda.core", "Numba `cache=True`")
OURS, CUPY, CORE, NUMBA = "numba_kcache", "cupy RawKernel", "cuda.core FileStreamProgramCache", "Numba cache=True"
OF_FIRST_LAUNCH = {"here": OURS, "CuPy": CUPY, "cuda.core": CORE}
OF_WORKLOADS = {"here": OURS, "CuPy": "cupy", "cuda.core": CORE}
OF_NUMBA = {"here": OURS, "Numba `cache=True`": NUMBA}
TRITON = ("Triton", "Triton")
EIGHT = "20 Numba kernels, 8 processes"
PROGRAMS = (
    Program("Numba kernel, first launch", "numba_first_launch", "", "warm first", OF_NUMBA),
    Program("20 Numba kernels in four files, whole process", "workloads", "20 Numba kernels in four files",
            "warm process", OF_NUMBA),
    Program("CUDA C++ with CUB's headers, first launch", "workloads", "block sum with CUB", "warm first", OF_WORKLOADS,
            ("torch _compile_kernel", "`torch.cuda._compile_kernel`")),
    Program("CUDA C++ with `cuda_fp16.h`, first launch", "first_launch", "1, cuda_fp16.h", "warm first",
            OF_FIRST_LAUNCH),
    Program("31 large kernels of one source, first launch", "workloads", "31 kernels of one source", "warm first",
            OF_WORKLOADS),
    Program("small CUDA C++ kernel, first launch", "first_launch", "1", "warm first", OF_FIRST_LAUNCH, TRITON),
    Program("the same, whole process, no array library here", "first_launch", "1", "warm process", OF_FIRST_LAUNCH,
            TRITON),
    Program("the same, on CuPy's arrays, whole process", "first_launch", "1", "warm process",
            {"here": f"{OURS}, CuPy arrays", "CuPy": CUPY}),
    Program("the same, nothing stored yet, first launch", "first_launch", "1", "cold first", OF_FIRST_LAUNCH, TRITON),
    Program("8 processes, 20 Numba kernels, nothing stored yet", "workloads", EIGHT, "cold all", OF_NUMBA),
)  # fmt: skip


def programs() -> str:
    """Median milliseconds of each program by system, the least of a row in bold."""
    rows = []
    for each in PROGRAMS:
        samples = result_of(each.of)["samples"]
        by_system = samples.get(each.case, {}) if each.case else samples
        found = {
            column: median(by_system[system][each.figure]) * 1e3
            for column, system in {**each.systems, each.other[1]: each.other[0]}.items()
            if each.figure in by_system.get(system, {})
        }
        rows.append((each.name, _of_row(found, each.other[1], each.of)))
    compute = result_of("cuda_compute")["milliseconds"]["reduction"]
    found = {"here": compute["cache"], "no cache": compute["build"]}
    rows.append(("`cuda.compute` reduction, first result", _of_row(found, "no cache", "cuda_compute")))
    sentences = [
        "Medians; bold is the least of a row. A first launch begins after imports and ends when the result is there.",
        "Caches are filled where no row says otherwise.",
    ]
    if eight := result_of("workloads")["samples"].get(EIGHT):
        ours, theirs = (median(eight[system]["cold compiles"]) for system in (OURS, NUMBA))
        sentences.append(f"The 8 processes compile {ours:.0f} kernels here, and {theirs:.0f} with Numba's cache.")
    pair, machine = result_of("added")["added"]["RawKernel"], result_of("first_launch")["machine"]
    sentences += [
        f"In pairs of whole processes that import CuPy anyway, a small kernel costs {pair['added_ms']:+.0f} ms",
        f"compared with `RawKernel` ({pair['low_ms']:.0f} to {pair['high_ms']:.0f}; `benchmarks/added.py`).",
        f"{machine['gpu']}, driver {machine['driver']}, Python {machine['python']}.",
    ]
    head = " | ".join(("ms, in a fresh process", *COLUMNS, "other", "`benchmarks/`"))
    return text(table(head, rows), [""], paragraph(*sentences))


def _of_row(found: Mapping[str, float], other: str, of: str) -> list[str]:
    """The cells of one program: `**4.7**`, `439 (Triton)` or a dash, and the benchmark."""
    shown = {column: digits(value) for column, value in found.items()}
    shown |= {column: f"**{shown[column]}**" for column, value in found.items() if value == min(found.values())}
    last = f"{shown[other]} ({other})" if other in shown else "–"
    return [*(shown.get(column, "–") for column in COLUMNS), last, f"`{of}`"]


# -- tables whose rows are the systems or the figures of a result ----------------------------------------

Result = dict[str, Any]
Rows = Callable[[Result], Iterable[Row]]
Foot = Callable[[Result], list[str]]


def of(name: str, head: str, rows: Rows, foot: Foot = footer) -> Callable[[], str]:
    """A table of one result: the names of its columns, its rows and the lines below it."""

    def make() -> str:
        result = result_of(name)
        return text(table(head, rows(result)), foot(result))

    return make


def of_systems(name: str, head: str) -> Callable[[], str]:
    """A table with a row for each system of a result whose samples are by system and column; for each system of each
    case, if they are by case first."""
    columns = head.split(" | ")[1:]

    def rows(result: Result) -> Iterable[Row]:
        for system, by_name in result["samples"].items():
            if isinstance(next(iter(by_name.values())), dict):
                yield from ((f"{system}: {each}", cells(found, columns)) for each, found in by_name.items())
            else:
                yield system, cells(by_name, columns)

    return of(name, head, rows)


# -- first launches and whole processes -----------------------------------------------------------------


def cold_warm() -> str:
    """Tabulate all kernels of a process, cold and warm, by their number."""
    result = result_of("first_launch")
    columns = ("warm first", "cold first", "warm process", "cold process")
    lines = []
    for case, systems in result["samples"].items():
        kernels, _, header = case.partition(", ")
        many = "one kernel" if kernels == "1" else f"{kernels} kernels"
        lines += ["", f"{many}{f', including {header}' if header else ''}:".capitalize(), ""]
        lines += table(" | ".join(("", *columns)), [(system, cells(rows, columns)) for system, rows in systems.items()])
    return text(lines, footer(result))


LEAST = "bare cuda.bindings, a cubin from a file"


def warm_steps() -> str:
    """Tabulate the parts of a start, warm and cold, in milliseconds, and whole processes as multiples of the least."""
    result = result_of("warm_steps")
    samples = result["samples"]
    least = median(samples[LEAST]["warm"]["all"])
    order = ("sum", "import", "decoration", "first", "exit", "python", "packages", "arrays", "result", "end", "all")
    lines = []
    for state in ("warm", "cold"):
        found = {system: states[state] for system, states in samples.items() if state in states}
        rows = [
            (system, [*cells(parts, order), f"{median(parts['all']) / least:.2f}"]) for system, parts in found.items()
        ]
        lines += ["", *table(" | ".join((state, *order, "all, of the least")), rows)]
    return text(lines, footer(result))


class Added(NamedTuple):
    """A row: a program, with its names in the results of benchmarks/added.py and benchmarks/warm_steps.py.

    Args:
        program: The program, in the words of the table.
        over: The program that it is compared with.
        pair: The name of its warm pair in added.py; the name of the cold pair has "cold" before it.
        steps: Its name in warm_steps.py; empty if its parts were not measured.
    """

    program: str
    over: str
    pair: str
    steps: str = ""


CUBIN, NONE = "a bare cubin", "no kernel"
ADDED = (
    Added("CUDA C++ in a function, bare memory", CUBIN, "cubin", "numba_kcache, CUDA C++"),
    Added("CUDA C++ as a text, bare memory", CUBIN, "cubin of a text"),
    Added("CUDA C++, CuPy arrays", "`RawKernel`", "RawKernel", "numba_kcache, CUDA C++ on CuPy arrays"),
    Added("the same, arrays copied from the host", "`RawKernel`", "RawKernel, copied"),
    Added("CUDA C++ with `cuda_fp16.h`, CuPy arrays", "`RawKernel`", "fp16",
          "numba_kcache, CUDA C++ with cuda_fp16.h"),
    Added("31 kernels of a module, CuPy arrays", "`RawModule`", "31 of a module",
          "numba_kcache, 31 kernels of a module"),
    Added("300 kernels of a module, CuPy arrays", "`RawModule`", "300 of a module"),
    Added("31 kernels of 31 sources, CuPy arrays", "31 `RawKernel`", "31 sources"),
    Added("CUDA C++, PyTorch tensors", NONE, "torch", "numba_kcache, CUDA C++ on PyTorch tensors"),
    Added("Numba kernel", NONE, "Numba", "numba_kcache, Numba kernel"),
    Added("Numba kernel under Numba's `cache=True`, without this package", NONE, "Numba cache=True"),
    Added("numba-cuda-mlir kernel", NONE, "numba-cuda-mlir", "numba_kcache, numba-cuda-mlir kernel"),
    Added("numba-cuda-mlir kernel under its own `cache=True`", NONE, "numba-cuda-mlir cache=True"),
    Added("`cuda.compute` reduction, CuPy arrays", "none", "cuda.compute", "numba_kcache, cuda.compute reduction"),
)  # fmt: skip
PARTS = ("import", "decoration", "first", "exit")


def added() -> str:
    """Tabulate the milliseconds that whole programs take longer, warm and cold, and the parts of a warm start."""
    result, steps = result_of("added"), result_of("warm_steps")
    pairs, rows = result["added"], list[Row]()
    for each in ADDED:
        both = [pairs.get(name) for name in (each.pair, f"cold {each.pair}")]
        shown = [
            f"{pair['added_ms']:+,.0f} ({pair['low_ms']:+,.0f} to {pair['high_ms']:+,.0f})" if pair else "–"
            for pair in both
        ]
        parts = steps["samples"].get(each.steps, {}).get("warm", {})
        of_parts = [digits(median(parts[name]) * 1e3) if name in parts else "–" for name in PARTS]
        if any(both):
            rows.append((each.program, [each.over, *shown, *of_parts]))
    counts = [each["pairs"] for each in pairs.values()]
    note = (
        "Medians of pairs of whole processes, and the 95 % confidence interval of each; "
        f"{min(counts)} to {max(counts)} pairs of a row. The last four columns are parts of a warm start, in ms, "
        "of another run of processes (`benchmarks/warm_steps.py`, bare memory with the header and with 31 kernels)."
    )
    head = " | ".join(("program", "compared with", "added, ms", "with nothing stored, ms", *PARTS))
    return text(table(head, rows), [""], paragraph(note), footer(result)[:-2])


ARGUMENTS = ("0", "2", "4", "8", "16")


def launch(result: Result) -> Iterable[Row]:
    """The median microseconds of one launch by number of arguments."""
    for system, by_count in result["samples"].items():
        yield system, [f"{median(by_count[count]):.2f}" if by_count.get(count) else "–" for count in ARGUMENTS]


# -- many processes, kernels and compiles ---------------------------------------------------------------


def growth() -> str:
    """Tabulate the memory and time of each kernel, kept and dropped; then those of many launches."""
    result = result_of("growth")
    rows: dict[bool, list[Row]] = {False: [], True: []}
    for part, each in result["samples"].items():
        early, late, tenth = each["tenths"][0], each["tenths"][-1], each["count"] // 10
        is_launches = part == "launches"
        took = [row[0] / tenth * (1e6 if is_launches else 1e3) for row in (early, late)]
        if is_launches:
            memory = [early[1] / 1e6, late[1] / 1e6, (late[2] - early[2]) / 1e6]
        else:
            memory = [(late[index] - early[index]) / (each["count"] - tenth) / 1e3 for index in (1, 2)]
        shown = [f"{each['count']:,}", *map(digits, (*memory, *took))]
        rows[is_launches].append((shown[0], shown[1:]) if is_launches else (part, shown))
    head = "warm, one after another | kernels | KB of host memory for each | KB of device memory"
    lines = table(f"{head} | ms for each of the first tenth | of the last tenth", rows[False])
    head = "launches | MB resident after a tenth | at the end | growth of device memory, MB"
    more = table(f"{head} | us for each of the first tenth | of the last tenth", rows[True])
    return text(lines, ["", *more] if rows[True] else [], footer(result))


def compile_overhead() -> str:
    """Tabulate the CPU time of compiles after a process's first, as a multiple of that of NVRTC alone."""
    result = result_of("compile_overhead")
    summary = result["summary"]
    names = {"all": "all sources together", "median": "median", "90 %": "90 % are below", "worst": "worst"}
    rows = [(label, [f"{summary[name]:.3f}"]) for name, label in names.items()]
    rows.append(("above 1.15", [f"{summary['above 1.15']}"]))
    kinds = [
        (kind, [f"{of['sources']}", f"{of['alone, ms']:.1f}", f"{of['more, ms']:.1f}", f"{of['median']:.3f}"])
        for kind, of in summary.get("kinds", {}).items()
    ]
    whole = table(f"{summary['sources']} sources | of NVRTC alone", rows)
    head = "medians, by what is included | sources | NVRTC alone, ms | more, ms | of NVRTC alone"
    return text(whole, [""], table(head, kinds), footer(result))


# -- the store and the fleet ----------------------------------------------------------------------------


def store() -> str:
    """Tabulate hits and publishes of the stores: the median and, in brackets, its multiple of a bare read or write."""
    result = result_of("store")
    systems = list(dict.fromkeys(row["system"] for row in result["rows"]))
    lines = []
    for verb in ("hit", "put"):
        columns: dict[str, dict[str, float]] = {}
        for row in result["rows"]:
            if row["verb"] == verb:
                name = f"{row['size']}, {row['entries']:,}, {row['processes']}"
                columns.setdefault(name, {})[row["system"]] = row["p50_us"]
        lines += [f"\n## {verb.capitalize()}, median in us (multiple of the bare call)\n"]
        rows = [
            (name, [f"{found[each]:.3g} ({found[each] / found[systems[0]]:.1f}x)" for each in systems])
            for name, found in columns.items()
        ]
        lines += table(" | ".join(("size, entries, processes", *systems)), rows)
    fresh, machine = result["fresh_process"], result["machine"]
    large = [
        f"{name} {each['hit_us'] / 1e3:.1f} ms ({each['stored_bytes'] / 1e6:.1f} MB in the file, a bare read of all "
        f"the bytes {each['bare_us'] / 1e3:.1f} ms)"
        for name, each in result["large_first_hit"].items()
    ]
    versions = ", ".join(f"{name} {machine[name]}" for name in ("sqlite", "lmdb", "diskcache", "cuda-core"))
    lines += [
        "",
        f"A fresh process: import {fresh['import_ms']:.1f} ms, first hit of 50 KB {fresh['first_hit_ms']:.2f} ms.",
        f"Its first hit of 5 MB: {', '.join(large)}.",
        "",
        f"{machine['cpu']}, {machine['cpus']} cores, no GPU, {machine['filesystem']}, Linux {machine['kernel']},",
        f"Python {machine['python']}, {versions}; load at the end {machine['load']:.1f};",
        f"{machine['date']}.{of_commit(result)}",
    ]
    return text(lines).strip()


def nodes() -> str:
    """Tabulate nodes with one server: seconds until the last rank has its kernels, and the number of compiles."""
    result = result_of("nodes")
    rows = []
    for system, each in result["samples"].items():
        names = ("cold last", "cold ended", "warm last")
        seconds = [f"{digits(median(each[name]))} s" if name in each else "–" for name in names]
        compiles = [f"{max(of(run) for run in each['cold compiles'])}" for of in (sum, max)]
        rows.append((system, [*seconds, *compiles]))
    head = f"{result['nodes']} nodes of {result['ranks']} ranks, {result['kernels']} kernels | cold"
    head += " | until all have ended | warm server, new directories | compiles | compiles of one kernel, at most"
    return text(table(head, rows), footer(result))


OPERATIONS = {
    "miss_us": "read, not there", "hit_us": "read, 20 KB", "claim_us": "claim a lease",
    "put_us": "write, 20 KB, behind the launch",
}  # fmt: skip
FIRSTS = {
    "local": "from the local directory",
    "redis": "from Redis; the directory knows the compilers",
    "redis, new directory": "from Redis; a new directory",
}


def fleet_operations() -> str:
    """Tabulate the time of each operation of the tier, and the requests per second that the server answers."""
    result = result_of("fleet")
    found = result["samples"]["operations"]
    rows = [(name, [f"{found[key][p]:.0f} us" for p in ("p50", "p99")]) for key, name in OPERATIONS.items()]
    small, large = found["get_3b_per_s"], found["get_20kb_per_s"]
    sentence = f"`redis-benchmark` gets {small:,.0f} small and {large:,.0f} 20 KB answers per second from that server."
    load = f"Load of the machine before: {result['machine']['load'][0]:.1f}."
    return text(table("operation | median | p99", rows), ["", sentence], footer(result), [load])


def fleet_first() -> str:
    """Tabulate the first resolution in a fresh process, by the store that has the entry."""
    found = result_of("fleet")["samples"]["first_resolution"]
    cells_of = (("made_ms", "p50"), ("resolved_ms", "p50"), ("resolved_ms", "p90"))
    rows = [(name, [f"{digits(found[key][what][p])} ms" for what, p in cells_of]) for key, name in FIRSTS.items()]
    made, resolved = (found["redis"][what]["p50"] - found["local"][what]["p50"] for what in ("made_ms", "resolved_ms"))
    sentences = [
        f"From Redis the first resolution takes {resolved:.1f} ms longer than from the local directory (medians), and",
        f"making a cache with tiers {made:.1f} ms longer.",
    ]
    head = "first resolution of a kernel in a fresh process | cache made | resolved, median | p90"
    return text(table(head, rows), ["", *sentences])


def fleet(result: Result) -> Iterable[Row]:
    """The simulated fleets."""
    for each in result["samples"]["fleet"]:
        if each["warm"]:
            start = "warm, back-fill" if each["back_fill"] else "warm, no back-fill"
        else:
            start = "cold, lease and back-fill" if each["leases"] else "cold, no lease"
        numbers = (f"{each[name]:,}" for name in ("requests", "busiest_second"))
        more = (f"{each['gigabytes']:.2f} GB", f"{each['compiles']:,}", f"{each['last_rank_s']:.1f} s")
        yield f"{each['nodes']:,}", [start, *numbers, *more]


# -- keys -----------------------------------------------------------------------------------------------

LOOKUPS = (
    "no includes, first", "no includes, after", "cub/block/block_reduce.cuh, first",
    "cub/block/block_reduce.cuh, after",
)  # fmt: skip


def lookup() -> str:
    """Tabulate lookups and which systems serve stale code; the cost of learning headers; the outcome of each change."""
    result = result_of("lookup")
    samples = result["samples"]
    looked_up, stale = samples.get("lookup", {}), samples.get("stale", {})
    able = {system: rows for system, rows in looked_up.items() if isinstance(rows, dict)}
    columns = [name for name in LOOKUPS if any(name in rows for rows in able.values())]
    rows = []
    for system in dict.fromkeys([*looked_up, *stale]):
        times = able.get(system, {})
        shown = [between(times[name]) if name in times else "–" for name in columns]
        rows.append((system, [*shown, verdict(list(stale.get(system, {}).values()))]))
    lines = table(" | ".join(("lookup before load, us", *columns, "serves stale code")), rows)
    if stale:
        changes = list(next(iter(stale.values())))
        outcomes = [(system, [served(each) for each in found.values()]) for system, found in stale.items()]
        lines += ["", *table(" | ".join(("after the change", *changes)), outcomes)]
    unable = {system: rows for system, rows in looked_up.items() if system not in able}
    return text(lines, footer({**result, "left_out": unable}))


def verdict(outcomes: list[str]) -> str:
    """Say whether a system serves stale code, after how many of the changes, or that it refuses headers."""
    words = [served(each) for each in outcomes if each != "–"]
    if not words or "not run" in words:
        return "not run"
    if "stale" in words:
        return f"**yes**, after {words.count('stale')} of {len(words)} changes"
    return "no" if set(words) == {"right"} else "no: refuses headers"


def served(outcome: str) -> str:
    """Outcome of one change in a word: right or stale code, "refuses", or "not run" on that machine."""
    return outcome if outcome in ("right", "stale", "–") else "refuses" if "refuses" in outcome else "not run"


def header_corpus() -> str:
    """By NVRTC: changes to trees of headers, and how many led to a stale hit or a needless miss."""
    rows, results = [], [result_of("header_corpus"), result_of("header_corpus_12")]
    for result in results:
        trees, nvrtc = result["samples"].values(), result["machine"]["nvrtc"]
        steps = sum(sum(tree["steps"].values()) for tree in trees)
        changing = sum(sum(tree["changing"].values()) for tree in trees)
        special = sum(tree["steps"].get(kind, 0) for tree in trees for kind in ("same-size edit", "shadow", "answer"))
        stale, needless, not_learned = (
            sum(len(tree[what]) for tree in trees) for what in ("stale", "needless", "not learned")
        )
        shown = (steps, special, f"{changing} ({changing / steps:.0%})", stale,
                 f"{needless} ({needless / steps:.1%})", not_learned)  # fmt: skip
        rows.append((f"NVRTC {'13.5' if nvrtc == 'installed' else nvrtc}", [f"{each}" for each in shown]))
    head = "| changes | special | changing the code | stale | needless | not learned"
    return text(table(head, rows), ["", *dict.fromkeys(map(machine_of, results))])


# -- adapters and programs of others --------------------------------------------------------------------


def cuda_compute(result: Result) -> Iterable[Row]:
    """Milliseconds to the first result of each algorithm."""
    for name, times in result["milliseconds"].items():
        yield name, [digits(times.get(way, "not taken")) for way in ("build", "cache", "memory", "again")]


def triton_kernels() -> str:
    """Tabulate the milliseconds to the first launches with Triton's own directory and with this cache."""
    result = result_of("triton_kernels")
    found, names = result["found"], {"own": "Triton's directory", "cache": "this cache"}
    rows = [
        (name, [digits(found[way][figure]) for figure in ("cold_ms", "first_ms", "second_ms")])
        for way, name in names.items()
        if isinstance(found.get(way), dict)
    ]
    head = "first launch | both, nothing stored, ms | first kernel, ms | second kernel, ms"
    ranks = f"Eight processes at once on an empty cache compiled {found['ranks']['misses']} kernels for all."
    return text(table(head, rows or [("not taken", ["–"] * 3)]), ["", ranks], script_and_machine(result))


def program_cache(result: Result) -> Iterable[Row]:
    """Microseconds of a hit of cuda.core's file backend and of this cache."""
    for way, times in result["microseconds"].items():
        if isinstance(times, dict):
            name = "get_or_build of 50 KB, numba_kcache" if way == "built" else f"compile(cache=), {way}"
            yield name, [digits(times[each]) for each in ("opening", "first", "again")]


MLIR = (("cold first", 1e3), ("warm first", 1e3), ("warm process", 1e3), ("launch own", 1e6), ("launch cupy", 1e6),
        ("launch torch", 1e6))  # fmt: skip


def mlir(result: Result) -> Iterable[Row]:
    """First launches, whole processes and launches of numba-cuda-mlir alone, with its cache and with this."""
    for name, figures in result["samples"].items():
        found = ([each for each in figures.get(figure) or () if isinstance(each, float)] for figure, _ in MLIR)
        yield (
            name,
            [digits(median(each) * scale) if each else "-" for each, (_, scale) in zip(found, MLIR, strict=True)],
        )


def real_programs(result: Result) -> Iterable[Row]:
    """Seconds of the whole process of public programs, as published and with this cache."""
    for name, found in result["samples"].items():
        times = [found[way][when] for when in ("cold", "warm_median") for way in ("plain", "numba_kcache")]
        shown = [f"{each:.2f}" if isinstance(each, float) else "-" for each in times]
        yield name, [found["what"], found["kind"], *shown, found["results"]]


SUITES = {
    "numba_suite": "numba-cuda's, under `install(all=True)`",
    "mlir_suite": "numba-cuda-mlir's, under `install(all=True)`",
    "cupy_suite": "CuPy's of raw, elementwise, reduction, fused and jit kernels, under `install(cupy=True)`",
    "program_cache_suite": "cuda.core's of its program caches, over `ProgramCache`",
}


def suites() -> str:
    """Tabulate other packages' own tests: how many pass without this cache, and which of those fail with it."""
    rows = []
    for name, of in SUITES.items():
        try:
            result = result_of(name)
        except NoResult:
            rows.append((of, ["not run"] * 4))
            continue
        new = result.get("new") or {"cold": [*result.get("failed", ())], "warm": [*result.get("failed", ())]}
        if name == "numba_suite":
            ran = min(result.get("ran", {}).values(), default=0)  # cold or warm may have been cut
            passes = f"{ran - len(result['failing']['plain']):,}" if ran else "–"
        elif name == "program_cache_suite":
            passes = f"{len(result['passed']) + len(result['failed'])}"
        else:
            passes = f"{result['counts']['plain']['passed']:,}"
        names = sorted({test.rpartition("::")[2].split(" ")[0].split("[")[0] for each in new.values() for test in each})
        rows.append((of, [passes, *(f"{len(new[when])}" for when in ("cold", "warm")), ", ".join(names) or "none"]))
    machines = [machine_of(result_of(name)) for name in SUITES if (RESULTS / f"{name}.json").is_file()]
    return text(
        table("tests | pass plainly | fail here, cold | fail here, warm | which", rows), ["", *dict.fromkeys(machines)]
    )


# -- the project itself ---------------------------------------------------------------------------------


def run() -> str:
    """A sentence with the commit of most results, and with the results of other commits."""
    (commit, names), *others = commits().items()
    many = len(names) + sum(len(each) for _, each in others)
    if not others:
        return f"All {many} results are of one commit, `{commit}`." if commit else "No result names its commit."
    of = f"of commit `{commit}`" if commit else "of commits that they do not name"
    rest = "; ".join(f"`{each or 'not named'}`: {', '.join(sorted(those))}" for each, those in others)
    return text(paragraph(f"{len(names)} of {many} results are {of}; the others: {rest}."))


def sizes(result: Result) -> Iterable[Row]:
    """Megabytes of an environment, by extras."""
    for extras, megabytes in result["samples"]["installed_mb"].items():
        yield f"`numba-kcache[{extras}]`" if extras else "`numba-kcache`", [f"{megabytes:,.0f}"]


def first_minutes(result: Result) -> Iterable[Row]:
    """Seconds from no environment to the results of each first program of the README."""
    for heading, each in result["samples"].items():
        seconds = [f"{each[f'{step}_s']:.1f}" for step in ("environment", "install", "first", "second")]
        yield heading, [*seconds, f"{each['megabytes']:,.0f}", ", ".join(each["packages"])]


def project(result: Result) -> Iterable[Row]:
    """The project itself: distributions, tests, and the time to a first result."""
    found = result["samples"]
    yield from ((name, [f"{megabytes:.2f} MB"]) for name, megabytes in found["size_mb"].items())
    if "suite" in found:
        yield f"suite of {found['suite']['tests']:,} tests", [f"{found['suite']['seconds']:,.0f} s"]
    names = {
        "clone": "`git clone`, without a network",
        "demo": "`python3 tasks.py demo`, the first: all that developers use is installed",
        "again": "`python3 tasks.py demo`, again",
    }
    yield from ((names[name], [f"{seconds:,.0f} s"]) for name, seconds in found["first_result_s"].items())


# -- the documents --------------------------------------------------------------------------------------

ALONE = script_and_machine
DOCUMENTS: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {"programs": programs},
    "docs/performance.md": {
        "gains": programs, "run": run, "added": added, "aims": aims, "cold_warm": cold_warm, "warm_steps": warm_steps,
        "modules": of_systems("modules", "warm | all | first | further | process"),
        "growth": growth,
        "compile_overhead": compile_overhead,
        "project": of("project", "the project itself | ", project),
        "first_minutes": of(
            "first_minutes",
            "the first program of | `venv`, s | `pip install`, s | first run, s | second run, s | MB | with",
            first_minutes),
        "launches": of("launch", " | ".join(("arguments", *ARGUMENTS)), launch),
        "numba_first_launch": of_systems("numba_first_launch", " | warm first | cold first | launch"),
        "workloads": of_systems(
            "workloads", " | warm first | warm all | cold first | cold all | warm process | cold process"),
    },
    "docs/performance-store.md": {"store": store},
    "docs/performance-fleet.md": {
        "nodes": nodes, "fleet_operations": fleet_operations, "fleet_first": fleet_first,
        "fleet": of(
            "fleet", "nodes | start | requests | in the busiest second | sent | compiles | last rank runs after", fleet,
            lambda result: []),
    },
    "docs/performance-adapters.md": {
        "cuda_compute": of(
            "cuda_compute",
            "first result | without a cache, ms | from the cache, ms | from memory, ms | second call, ms",
            cuda_compute, ALONE),
        "triton_kernels": triton_kernels,
        "program_cache": of(
            "program_cache", "hit | first of a process, us | each program's first, us | later ones, us", program_cache,
            ALONE),
        "mlir": of(
            "mlir", "numba-cuda-mlir | first launch cold, ms | warm, ms | process, warm, ms | launch, own, us"
            " | CuPy's, us | PyTorch's, us", mlir, ALONE),
    },
    "docs/performance-programs.md": {
        "real_programs": of(
            "real_programs", "program | what | kernels of | cold, as published, s | cold, here, s"
            " | warm, as published, s | warm, here, s | results", real_programs, ALONE),
    },
    "docs/keys.md": {"header_corpus": header_corpus, "lookup": lookup},
    "docs/compatibility.md": {"suites": suites},
    "docs/install.md": {"sizes": of("project", " | MB", sizes, ALONE)},
}  # fmt: skip
TABLES = {name: (path, make) for path, tables in DOCUMENTS.items() for name, make in tables.items()}

ILLUSTRATED = ("docs/index.md", "docs/performance.md")
"""Pages with pictures."""


def written(name: str, document: str) -> str:
    """A document with one of its tables replaced by a new one."""
    try:
        content = TABLES[name][1]()
    except NoResult as missing:
        content = f"Not measured yet: `benchmarks/{missing}.py` measures it."
    except (KeyError, ValueError) as error:  # the benchmark was stopped by its time limit
        content = f"Not measured: the result of the last run lacks {error}."
    return _between(f"table: {name}", content, document)


def with_pictures(page: str) -> str:
    """A page with the pictures that exist."""
    for name in re.findall(r"<!-- picture: (\w+) -->", page):
        shown = [
            f"```{{image}} img/{name}-{kind}.svg\n:class: only-{kind}\n:alt: {name}, drawn from its table\n```\n"
            for kind in ("light", "dark")
            if (ROOT / f"docs/img/{name}-{kind}.svg").is_file()
        ]
        page = _between(f"picture: {name}", "\n" + "\n".join(shown), page)
    return page


def _between(mark: str, content: str, document: str) -> str:
    return re.sub(
        rf"(<!-- {mark} -->\n).*?(<!-- end -->)", lambda match: f"{match[1]}{content}\n{match[2]}", document, flags=re.S
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *TABLES], metavar="NAME", help=f"of {', '.join(TABLES)}")
    for name in parser.parse_args().names or TABLES:
        path = ROOT / TABLES[name][0]
        path.write_text(written(name, path.read_text()))
    for path in map(ROOT.joinpath, ILLUSTRATED):
        path.write_text(with_pictures(path.read_text()))
    for commit, results in commits().items():
        print(f"{commit or 'no commit named'}: {len(results)} results, {', '.join(results)}")


if __name__ == "__main__":
    main()
