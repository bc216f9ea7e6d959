"""Write the tables of the documents from the committed results; no figure is typed by hand.

Method      A table is data: its result, the names of its columns, and the template of a row, which `results.row` fills
            from a record of the result. If the result of a table is not committed, the table states this.
Run         python benchmarks/tables.py [NAME ...]
Not here    The pictures (plots); the formats of figures and the lines below a table (results).
"""

from __future__ import annotations

import argparse
import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from aims import aims
from results import NoResult, commits, digits, footer, found_at, machine_of, paragraph, result_of, row, script_of, table
from results import script_and_machine as ALONE

ROOT = Path(__file__).resolve().parent.parent
Result = dict[str, Any]
Record = Mapping[str, Any]


def text(*parts: Iterable[str]) -> str:
    """The lines of tables and paragraphs, without an empty one before the first."""
    lines = [line for part in parts for line in part]
    return "\n".join(lines if lines[0] else lines[1:])


def columns(names: Iterable[str], form: str) -> str:
    """The cells of a row's template, all with the same format."""
    return " | ".join(f"{{{name}:{form}}}" for name in names)


def named(found: Mapping[str, Any]) -> Iterator[Record]:
    """A record for each member of an object, with its name."""
    yield from ({"name": name, **each} for name, each in found.items() if isinstance(each, dict))


def of_samples(result: Result) -> Iterator[Record]:
    """A record for each system of a result; for each system of each case, if its samples are by case first."""
    for name, found in result["samples"].items():
        if isinstance(next(iter(found.values()), None), dict):
            yield from ({"name": f"{name}: {system}", **each} for system, each in found.items())
        else:
            yield {"name": name, **found}


class Table(NamedTuple):
    """A table of one result.

    Args:
        of: The name of the result.
        head: The names of the columns.
        row: The template of a row.
        records: Makes a record for each row.
        foot: The lines below the table.
        more: A sentence between table and foot.
    """

    of: str
    head: str
    row: str
    records: Callable[[Result], Iterable[Record]] = of_samples
    foot: Callable[[Result], list[str]] = footer
    more: Callable[[Result], list[str]] = lambda result: []

    def __call__(self) -> str:
        result = result_of(self.of)
        rows = (row(self.row, record) for record in self.records(result))
        return text(table(self.head.format_map(result), rows), self.more(result), self.foot(result))


def in_ms(of: str, head: str) -> Table:
    """A table whose columns have the names of the figures."""
    _, *names = head.split(" | ")
    return Table(of, head, f"{{name}} | {columns(names, 'ms')}")


# -- the README -----------------------------------------------------------------------------------------

COLUMNS = ("here", "CuPy", "cuda.core", "Numba `cache=True`")
OURS, CUPY, CORE, NUMBA = "numba_kcache", "cupy RawKernel", "cuda.core FileStreamProgramCache", "Numba cache=True"
OF_FIRST = {"here": OURS, "CuPy": CUPY, "cuda.core": CORE}
OF_TRITON = {**OF_FIRST, "Triton": "Triton"}
OF_WORKLOADS = {"here": OURS, "CuPy": "cupy", "cuda.core": CORE}
OF_TORCH = {**OF_WORKLOADS, "`torch.cuda._compile_kernel`": "torch _compile_kernel"}
OF_NUMBA = {"here": OURS, "Numba `cache=True`": NUMBA}
ON_CUPY = {"here": f"{OURS}, CuPy arrays", "CuPy": CUPY}
FOUR, EIGHT = "20 Numba kernels in four files", "20 Numba kernels, 8 processes"
PROGRAMS = (
    ("Numba kernel, first launch", "numba_first_launch", "{} > warm first", OF_NUMBA),
    ("20 Numba kernels in four files, whole process", "workloads", f"{FOUR} > {{}} > warm process", OF_NUMBA),
    ("CUDA C++ with CUB's headers, first launch", "workloads", "block sum with CUB > {} > warm first", OF_TORCH),
    ("CUDA C++ with `cuda_fp16.h`, first launch", "first_launch", "1, cuda_fp16.h > {} > warm first", OF_FIRST),
    ("31 large kernels of one source, first launch", "workloads", "31 kernels of one source > {} > warm first",
     OF_WORKLOADS),
    ("small CUDA C++ kernel, first launch", "first_launch", "1 > {} > warm first", OF_TRITON),
    ("the same, whole process, no array library here", "first_launch", "1 > {} > warm process", OF_TRITON),
    ("the same, on CuPy's arrays, whole process", "first_launch", "1 > {} > warm process", ON_CUPY),
    ("the same, nothing stored yet, first launch", "first_launch", "1 > {} > cold first", OF_TRITON),
    ("8 processes, 20 Numba kernels, nothing stored yet", "workloads", f"{EIGHT} > {{}} > cold all", OF_NUMBA),
    ("`cuda.compute` reduction, first result", "cuda_compute", "milliseconds > reduction > {}",
     {"here": "cache", "no cache": "build"}),
)  # fmt: skip
"""The program and the timed interval; the result, and the path of a system's figure; for each column, and for a system
without a column, the name of the system in the result."""


def programs() -> str:
    """Median milliseconds of each program by system, the least of a row in bold."""
    rows = []
    for name, of, path, systems in PROGRAMS:
        found = dict[str, float]()
        for column, system in systems.items():
            with contextlib.suppress(KeyError):
                times = found_at(result_of(of), path.format(system))
                found[column] = median(times) * 1e3 if isinstance(times, list) else times
        shown = {column: digits(value) for column, value in found.items()}
        shown |= {column: f"**{shown[column]}**" for column, value in found.items() if value == min(found.values())}
        other = next((f"{each} ({column})" for column, each in shown.items() if column not in COLUMNS), "–")
        script = script_of(of).partition(".")[0]
        rows.append(" | ".join((name, *(shown.get(column, "–") for column in COLUMNS), other, f"`{script}`")))
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


# -- first launches and whole processes -----------------------------------------------------------------


CASE = ("warm first", "cold first", "warm process", "cold process")


def cold_warm() -> str:
    """Tabulate all kernels of a process, cold and warm, by their number."""
    result, lines = result_of("first_launch"), list[str]()
    for case, systems in result["samples"].items():
        kernels, _, header = case.partition(", ")
        many = "one kernel" if kernels == "1" else f"{kernels} kernels"
        lines += ["", f"{many}{f', including {header}' if header else ''}:".capitalize(), ""]
        rows = (row(f"{{name}} | {columns(CASE, 'ms')}", each) for each in named(systems))
        lines += table(" | ".join(("", *CASE)), rows)
    return text(lines, footer(result))


def warm_steps() -> str:
    """Tabulate the parts of a start, warm and cold, in milliseconds, and whole processes as multiples of the least."""
    result, lines = result_of("warm_steps"), list[str]()
    samples = result["samples"]
    least = median(samples["bare cuda.bindings, a cubin from a file"]["warm"]["all"])
    order = ("sum", "import", "decoration", "first", "exit", "python", "packages", "arrays", "result", "end", "all")
    form = f"{{name}} | {columns(order, 'ms')} | {{ratio:.2f}}"
    for state in ("warm", "cold"):
        found = named({system: states[state] for system, states in samples.items() if state in states})
        rows = (row(form, {**each, "ratio": median(each["all"]) / least}) for each in found)
        lines += ["", *table(" | ".join((state, *order, "all, of the least")), rows)]
    return text(lines, footer(result))


CUBIN, NONE, KERNEL = "a bare cubin", "no kernel", "`RawKernel`"
ADDED = (
    ("CUDA C++ in a function, bare memory", CUBIN, "cubin", "CUDA C++"),
    ("CUDA C++ as a text, bare memory", CUBIN, "cubin of a text", ""),
    ("CUDA C++, CuPy arrays", KERNEL, "RawKernel", "CUDA C++ on CuPy arrays"),
    ("the same, arrays copied from the host", KERNEL, "RawKernel, copied", ""),
    ("CUDA C++ with `cuda_fp16.h`, CuPy arrays", KERNEL, "fp16", "CUDA C++ with cuda_fp16.h"),
    ("31 kernels of a module, CuPy arrays", "`RawModule`", "31 of a module", "31 kernels of a module"),
    ("300 kernels of a module, CuPy arrays", "`RawModule`", "300 of a module", ""),
    ("31 kernels of 31 sources, CuPy arrays", f"31 {KERNEL}", "31 sources", ""),
    ("CUDA C++, PyTorch tensors", NONE, "torch", "CUDA C++ on PyTorch tensors"),
    ("Numba kernel", NONE, "Numba", "Numba kernel"),
    ("Numba kernel under Numba's `cache=True`, without this package", NONE, "Numba cache=True", ""),
    ("numba-cuda-mlir kernel", NONE, "numba-cuda-mlir", "numba-cuda-mlir kernel"),
    ("numba-cuda-mlir kernel under its own `cache=True`", NONE, "numba-cuda-mlir cache=True", ""),
    ("`cuda.compute` reduction, CuPy arrays", "none", "cuda.compute", "cuda.compute reduction"),
)
"""The program, and the one that it is compared with; the name of its warm pair in added.py, which has "cold" in front
for the cold pair; its name in `warm_steps` after "numba_kcache, ", empty if its parts were not measured."""
PARTS = ("import", "decoration", "first", "exit")


def added() -> str:
    """Tabulate the milliseconds that whole programs take longer, warm and cold, and the parts of a warm start."""
    result, steps = result_of("added"), result_of("warm_steps")["samples"]
    pairs, rows = result["added"], list[str]()
    interval = "{added_ms:+,.0f} ({low_ms:+,.0f} to {high_ms:+,.0f})"
    for program, over, pair, system in ADDED:
        both = [pairs.get(name) for name in (pair, f"cold {pair}")]
        shown = (interval.format_map(each) if each else "–" for each in both)
        parts = row(columns(PARTS, "median_ms"), steps.get(f"{OURS}, {system}", {}).get("warm", {}))
        if any(both):
            rows.append(" | ".join((program, over, *shown, parts)))
    counts = [each["pairs"] for each in pairs.values()]
    note = (
        "Medians of pairs of whole processes, and the 95 % confidence interval of each; "
        f"{min(counts)} to {max(counts)} pairs of a row. The last four columns are parts of a warm start, in ms, "
        "of another run of processes (`--part warm_steps`, bare memory with the header and with 31 kernels)."
    )
    head = " | ".join(("program", "compared with", "added, ms", "with nothing stored, ms", *PARTS))
    return text(table(head, rows), [""], paragraph(note), footer(result)[:-2])


# -- many processes, kernels and compiles ---------------------------------------------------------------


def growth() -> str:
    """Tabulate the memory and time of each kernel, kept and dropped; then those of many launches."""
    result = result_of("growth")
    kernels, launches = list[str](), list[str]()
    for part, each in result["samples"].items():
        early, late, count = each["tenths"][0], each["tenths"][-1], each["count"]
        first_s, last_s = early[0] / (count // 10), late[0] / (count // 10)
        if part == "launches":
            figures = early[1] / 1e6, late[1] / 1e6, (late[2] - early[2]) / 1e6, first_s * 1e6, last_s * 1e6
            launches.append(" | ".join((f"{count:,}", *map(digits, figures))))
        else:
            of_host, of_device = ((late[index] - early[index]) / (count - count // 10) / 1e3 for index in (1, 2))
            figures = of_host, of_device, first_s * 1e3, last_s * 1e3
            kernels.append(" | ".join((part, f"{count:,}", *map(digits, figures))))
    head = "warm, one after another | kernels | KB of host memory for each | KB of device memory"
    lines = table(f"{head} | ms for each of the first tenth | of the last tenth", kernels)
    head = "launches | MB resident after a tenth | at the end | growth of device memory, MB"
    more = table(f"{head} | us for each of the first tenth | of the last tenth", launches)
    return text(lines, ["", *more] if launches else [], footer(result))


def compile_overhead() -> str:
    """Tabulate the CPU time of compiles after a process's first, as a multiple of that of NVRTC alone."""
    result = result_of("compile_overhead")
    summary = result["summary"]
    labels = {"all": "all sources together", "median": "median", "90 %": "90 % are below", "worst": "worst"}
    rows = [f"{label} | {summary[name]:.3f}" for name, label in labels.items()]
    rows.append(f"above 1.15 | {summary['above 1.15']}")
    form = "{name} | {sources} | {alone, ms:.1f} | {more, ms:.1f} | {median:.3f}"
    kinds = (row(form, each) for each in named(summary.get("kinds", {})))
    head = "medians, by what is included | sources | NVRTC alone, ms | more, ms | of NVRTC alone"
    whole = table(f"{summary['sources']} sources | of NVRTC alone", rows)
    return text(whole, [""], table(head, kinds), footer(result))


# -- a fleet -----------------------------------------------------------------------------------------------


def of_nodes(result: Result) -> Iterator[Record]:
    """Nodes with one server: their times, and the compiles of all kernels and of one kernel at most."""
    for each in named(result["samples"]):
        compiles = each["cold compiles"]
        yield {**each, "sum": max(map(sum, compiles)), "most": max(map(max, compiles))}


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
    rows = (row(f"{name} | {{p50:.0f}} us | {{p99:.0f}} us", found[key]) for key, name in OPERATIONS.items())
    small, large = found["get_3b_per_s"], found["get_20kb_per_s"]
    sentence = f"`redis-benchmark` gets {small:,.0f} small and {large:,.0f} 20 KB answers per second from that server."
    load = f"Load of the machine before: {result['machine']['load'][0]:.1f}."
    return text(table("operation | median | p99", rows), ["", sentence], footer(result), [load])


def fleet_first() -> str:
    """Tabulate the first resolution in a fresh process, by the store that has the entry."""
    found = result_of("fleet")["samples"]["first_resolution"]
    form = "{made_ms[p50]:digits} ms | {resolved_ms[p50]:digits} ms | {resolved_ms[p90]:digits} ms"
    rows = (f"{name} | {row(form, found[key])}" for key, name in FIRSTS.items())
    made, resolved = (found["redis"][what]["p50"] - found["local"][what]["p50"] for what in ("made_ms", "resolved_ms"))
    sentences = [
        f"From Redis the first resolution takes {resolved:.1f} ms longer than from the local directory (medians), and",
        f"making a cache with tiers {made:.1f} ms longer.",
    ]
    head = "first resolution of a kernel in a fresh process | cache made | resolved, median | p90"
    return text(table(head, rows), ["", *sentences])


def fleets(result: Result) -> Iterator[Record]:
    """The simulated fleets."""
    for each in result["samples"]["fleet"]:
        warm = "warm, back-fill" if each["back_fill"] else "warm, no back-fill"
        cold = "cold, lease and back-fill" if each["leases"] else "cold, no lease"
        yield {**each, "start": warm if each["warm"] else cold}


# -- keys -----------------------------------------------------------------------------------------------

CUB = "cub/block/block_reduce.cuh"
LOOKUPS = ("no includes, first", "no includes, after", f"{CUB}, first", f"{CUB}, after")


def lookup() -> str:
    """Tabulate lookups and which systems serve stale code; the cost of learning headers; the outcome of each change."""
    result = result_of("lookup")
    looked_up, stale = (result["samples"].get(part, {}) for part in ("lookup", "stale"))
    able = {system: rows for system, rows in looked_up.items() if isinstance(rows, dict)}
    names = [name for name in LOOKUPS if any(name in rows for rows in able.values())]
    rows = []
    for system in dict.fromkeys([*looked_up, *stale]):
        times = able.get(system, {})
        shown = (between(times[name]) if name in times else "–" for name in names)
        rows.append(" | ".join((system, *shown, verdict(list(stale.get(system, {}).values())))))
    lines = table(" | ".join(("lookup before load, us", *names, "serves stale code")), rows)
    if stale:
        changes = next(iter(stale.values()))
        outcomes = (" | ".join((system, *map(served, found.values()))) for system, found in stale.items())
        lines += ["", *table(" | ".join(("after the change", *changes)), outcomes)]
    unable = {system: rows for system, rows in looked_up.items() if system not in able}
    return text(lines, footer({**result, "left_out": unable}))


def between(times_s: list[float]) -> str:
    """`126 (114–131)`, in microseconds."""
    middle, low, high = (f"{each(times_s) * 1e6:.0f}" for each in (median, min, max))
    return f"{middle} ({low}–{high})"


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
        steps, changing = (sum(sum(tree[what].values()) for tree in trees) for what in ("steps", "changing"))
        special = sum(tree["steps"].get(kind, 0) for tree in trees for kind in ("same-size edit", "shadow", "answer"))
        stale, needless, not_learned = (
            sum(len(tree[what]) for tree in trees) for what in ("stale", "needless", "not learned")
        )
        rows.append(
            f"NVRTC {'13.5' if nvrtc == 'installed' else nvrtc} | {steps} | {special} | {changing} "
            f"({changing / steps:.0%}) | {stale} | {needless} ({needless / steps:.1%}) | {not_learned}"
        )
    head = "| changes | special | changing the code | stale | needless | not learned"
    return text(table(head, rows), ["", *dict.fromkeys(map(machine_of, results))])


# -- adapters and programs of others --------------------------------------------------------------------


def of_triton(result: Result) -> Iterator[Record]:
    """Milliseconds to the first launches with Triton's own directory and with this cache."""
    for way, name in {"own": "Triton's directory", "cache": "this cache"}.items():
        if isinstance(result["found"].get(way), dict):
            yield {"name": name, **result["found"][way]}


def of_ranks(result: Result) -> list[str]:
    return [
        "",
        f"Eight processes at once on an empty cache compiled {result['found']['ranks']['misses']} kernels for all.",
    ]


BUILT = {"built": "get_or_build of 50 KB, numba_kcache", "published": "the same, nothing stored"}


def of_program_cache(result: Result) -> Iterator[Record]:
    """Microseconds of a call of cuda.core's file backend and of this cache."""
    for each in named(result["microseconds"]):
        yield {**each, "name": BUILT.get(each["name"], f"compile(cache=), {each['name']}")}


SUITES = {
    "numba_suite": "numba-cuda's, under `install(all=True)`",
    "mlir_suite": "numba-cuda-mlir's, under `install(all=True)`",
    "cupy_suite": "CuPy's of raw, elementwise, reduction, fused and jit kernels, under `install(cupy=True)`",
    "program_cache_suite": "cuda.core's of its program caches, over `ProgramCache`",
}


def suites() -> str:
    """Tabulate other packages' own tests: how many pass without this cache, and which of those fail with it."""
    rows, machines = [], []
    for name, of in SUITES.items():
        try:
            result = result_of(name)
        except NoResult:
            rows.append(" | ".join((of, *["not run"] * 4)))
            continue
        machines.append(machine_of(result))
        new = result.get("new") or {"cold": [*result.get("failed", ())], "warm": [*result.get("failed", ())]}
        if name == "numba_suite":
            ran = min(result.get("ran", {}).values(), default=0)  # cold or warm may have been cut
            passes = f"{ran - len(result['failing']['plain']):,}" if ran else "–"
        elif name == "program_cache_suite":
            passes = f"{len(result['passed']) + len(result['failed'])}"
        else:
            passes = f"{result['counts']['plain']['passed']:,}"
        names = sorted({test.rpartition("::")[2].split(" ")[0].split("[")[0] for each in new.values() for test in each})
        rows.append(f"{of} | {passes} | {len(new['cold'])} | {len(new['warm'])} | {', '.join(names) or 'none'}")
    head = "tests | pass plainly | fail here, cold | fail here, warm | which"
    return text(table(head, rows), ["", *dict.fromkeys(machines)])


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


def sizes(result: Result) -> Iterator[Record]:
    """Megabytes of an environment, by extras."""
    for extras, megabytes in result["samples"]["installed_mb"].items():
        yield {"name": f"`numba-kcache[{extras}]`" if extras else "`numba-kcache`", "megabytes": megabytes}


STEPS = {
    "clone": "`git clone`, without a network",
    "demo": "`python3 tasks.py demo`, the first: all that developers use is installed",
    "again": "`python3 tasks.py demo`, again",
}


def of_project(result: Result) -> Iterator[Record]:
    """The project itself: distributions, tests, and the time to a first result."""
    found = result["samples"]
    yield from ({"name": name, "figure": f"{size_mb:.2f} MB"} for name, size_mb in found["size_mb"].items())
    took_s = {STEPS[name]: seconds for name, seconds in found["first_result_s"].items()}
    if "suite" in found:
        took_s = {f"suite of {found['suite']['tests']:,} tests": found["suite"]["seconds"], **took_s}
    yield from ({"name": name, "figure": f"{seconds:,.0f} s"} for name, seconds in took_s.items())


# -- the documents --------------------------------------------------------------------------------------

ARGUMENTS = ("0", "2", "4", "8", "16")
DOCUMENTS: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {"programs": programs},
    "docs/performance.md": {
        "gains": programs, "run": run, "added": added, "aims": aims, "cold_warm": cold_warm, "warm_steps": warm_steps,
        "modules": in_ms("modules", "warm | all | first | further | process"),
        "growth": growth,
        "compile_overhead": compile_overhead,
        "project": Table("project", "the project itself | ", "{name} | {figure}", of_project),
        "first_minutes": Table(
            "first_minutes",
            "the first program of | `venv`, s | `pip install`, s | first run, s | second run, s | MB | with",
            "{name} | {environment_s:.1f} | {install_s:.1f} | {first_s:.1f} | {second_s:.1f} | {megabytes:,.0f}"
            " | {packages:words}"),
        "launches": Table(
            "launch", " | ".join(("arguments", *ARGUMENTS)), f"{{name}} | {columns(ARGUMENTS, 'median')}"),
        "numba_first_launch": in_ms("numba_first_launch", " | warm first | cold first | launch"),
        "workloads": in_ms(
            "workloads", " | warm first | warm all | cold first | cold all | warm process | cold process"),
    },
    "docs/performance-fleet.md": {
        "nodes": Table(
            "nodes", "{nodes} nodes of {ranks} ranks, {kernels} kernels | cold | until all have ended"
            " | warm server, new directories | compiles | compiles of one kernel, at most",
            "{name} | {cold last:median_s} | {cold ended:median_s} | {warm last:median_s} | {sum} | {most}", of_nodes),
        "fleet_operations": fleet_operations, "fleet_first": fleet_first,
        "fleet": Table(
            "fleet", "nodes | start | requests | in the busiest second | sent | compiles | last rank runs after",
            "{nodes:,} | {start} | {requests:,} | {busiest_second:,} | {gigabytes:.2f} GB | {compiles:,}"
            " | {last_rank_s:.1f} s", fleets, lambda result: []),
    },
    "docs/performance-adapters.md": {
        "cuda_compute": Table(
            "cuda_compute",
            "first result | without a cache, ms | from the cache, ms | from memory, ms | second call, ms",
            f"{{name}} | {columns(('build', 'cache', 'memory', 'again'), 'digits')}",
            lambda result: named(result["milliseconds"]), ALONE),
        "triton_kernels": Table(
            "triton_kernels", "first launch | both, nothing stored, ms | first kernel, ms | second kernel, ms",
            f"{{name}} | {columns(('cold_ms', 'first_ms', 'second_ms'), 'digits')}", of_triton, ALONE, of_ranks),
        "program_cache": Table(
            "program_cache", "hit | first of a process, us | each program's first, us | later ones, us",
            f"{{name}} | {columns(('opening', 'first', 'again'), 'digits')}", of_program_cache, ALONE),
        "mlir": Table(
            "mlir", "numba-cuda-mlir | first launch cold, ms | warm, ms | process, warm, ms | launch, own, us"
            " | CuPy's, us | PyTorch's, us",
            f"{{name}} | {columns(('cold first', 'warm first', 'warm process'), 'median_ms')}"
            f" | {columns(('launch own', 'launch cupy', 'launch torch'), 'median_us')}", foot=ALONE),
    },
    "docs/performance-programs.md": {
        "real_programs": Table(
            "real_programs", "program | what | kernels of | cold, as published, s | cold, here, s"
            " | warm, as published, s | warm, here, s | results",
            "{name} | {what} | {kind} | {plain[cold]:s} | {numba_kcache[cold]:s} | {plain[warm_median]:s}"
            " | {numba_kcache[warm_median]:s} | {results}", lambda result: named(result["samples"]), ALONE),
    },
    "docs/keys.md": {"header_corpus": header_corpus, "lookup": lookup},
    "docs/compatibility.md": {"suites": suites},
    "docs/install.md": {"sizes": Table("project", " | MB", "{name} | {megabytes:,.0f}", sizes, ALONE)},
}  # fmt: skip
TABLES = {name: (path, make) for path, tables in DOCUMENTS.items() for name, make in tables.items()}

ILLUSTRATED = ("docs/index.md", "docs/performance.md")
"""Pages with pictures."""


def written(name: str, document: str) -> str:
    """A document with one of its tables replaced by a new one."""
    try:
        content = TABLES[name][1]()
    except NoResult as missing:
        content = f"Not measured yet: `benchmarks/{script_of(f'{missing}')}` measures it."
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
    marked = rf"(<!-- {mark} -->\n).*?(<!-- end -->)"
    return re.sub(marked, lambda match: f"{match[1]}{content}\n{match[2]}", document, flags=re.S)


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
