"""Write the tables of the documents from the committed results; no figure is typed by hand.

Method      If the result of a table is not committed, the table states this.
Run         python benchmarks/tables.py [NAME ...]
Not here    The tables of docs/performance.md (performance) and the pictures (plots).
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from aims import aims
from performance import (
    PERFORMANCE,
    RESULTS,
    NoResult,
    added,
    commits,
    digits,
    footer,
    machine_of,
    of_commit,
    result_of,
    run,
    table,
)

ROOT = Path(__file__).resolve().parent.parent


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
    Program("small CUDA C++ kernel, first launch", "first_launch", "1", "warm first", OF_FIRST_LAUNCH,
            ("Triton", "Triton")),
    Program("the same, whole process, no array library here", "first_launch", "1", "warm process", OF_FIRST_LAUNCH,
            ("Triton", "Triton")),
    Program("the same, on CuPy's arrays, whole process", "first_launch", "1", "warm process",
            {"here": f"{OURS}, CuPy arrays", "CuPy": CUPY}),
    Program("the same, nothing stored yet, first launch", "first_launch", "1", "cold first", OF_FIRST_LAUNCH,
            ("Triton", "Triton")),
    Program("8 processes, 20 Numba kernels, nothing stored yet", "workloads", "20 Numba kernels, 8 processes",
            "cold all", OF_NUMBA),
)  # fmt: skip


def programs() -> str:
    """Median milliseconds of each program by system, the least of a row in bold."""
    rows = []
    for each in PROGRAMS:
        samples = result_of(each.of)["samples"]
        by_system = samples.get(each.case, {}) if each.case else samples
        found = {
            column: statistics.median(by_system[system][each.figure]) * 1e3
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
    if eight := result_of("workloads")["samples"].get("20 Numba kernels, 8 processes"):
        ours, theirs = (statistics.median(eight[system]["cold compiles"]) for system in (OURS, NUMBA))
        sentences.append(f"The 8 processes compile {ours:.0f} kernels here, and {theirs:.0f} with Numba's cache.")
    pair = result_of("added")["added"]["RawKernel"]
    between = f"{pair['low_ms']:.0f} to {pair['high_ms']:.0f}"
    sentences.append(
        f"In pairs of whole processes that import CuPy anyway, a small kernel costs {pair['added_ms']:+.0f} ms"
    )
    sentences.append(f"compared with `RawKernel` ({between}; `benchmarks/added.py`).")
    machine = result_of("first_launch")["machine"]
    sentences.append(f"{machine['gpu']}, driver {machine['driver']}, Python {machine['python']}.")
    head = table("ms, in a fresh process", (*COLUMNS, "other", "`benchmarks/`"), rows)
    return "\n".join([*head, "", *textwrap.wrap(" ".join(sentences), 119, break_on_hyphens=False)])


def _of_row(found: Mapping[str, float], other: str, of: str) -> list[str]:
    """The cells of one program: `**4.7**`, `439 (Triton)` or a dash, and the benchmark."""
    shown = {column: digits(value) for column, value in found.items()}
    shown |= {column: f"**{shown[column]}**" for column, value in found.items() if value == min(found.values())}
    last = f"{shown[other]} ({other})" if other in shown else "–"
    return [*(shown.get(column, "–") for column in COLUMNS), last, f"`{of}`"]


def microseconds(times_s: list[float]) -> str:
    """`126 (114–131)`."""
    median, low, high = (f"{each(times_s) * 1e6:.0f}" for each in (statistics.median, min, max))
    return f"{median} ({low}–{high})"


def store() -> str:
    """Tabulate hits and publishes of the stores: the median and, in brackets, its multiple of a bare read or write."""
    paths = sorted((ROOT / "benchmarks/results").glob("store*.json"))
    results = [json.loads(path.read_text()) for path in paths]
    rows = [row for result in results for row in result["rows"]]
    systems = list(dict.fromkeys(row["system"] for row in rows))
    lines = []
    for verb in ("hit", "put"):
        columns: dict[tuple[str, int, int], dict[str, float]] = {}
        for row in rows:
            if row["verb"] == verb:
                columns.setdefault((row["size"], row["entries"], row["processes"]), {})[row["system"]] = row["p50_us"]
        lines += [f"\n## {verb.capitalize()}, median in us (multiple of the bare call)\n"]
        lines.append(f"| size, entries, processes | {' | '.join(systems)} |")
        lines.append("| --- |" + " --- |" * len(systems))
        for (size, entries, processes), by_system in columns.items():
            bare = by_system[systems[0]]
            cells = [f"{by_system[each]:.3g} ({by_system[each] / bare:.1f}x)" for each in systems]
            lines.append(f"| {size}, {entries:,}, {processes} | {' | '.join(cells)} |")
    fresh, many, machine = results[0]["fresh_process"], results[0]["20000_entries"], results[0]["machine"]
    large = [
        f"{name} {each['hit_us'] / 1e3:.1f} ms ({each['stored_bytes'] / 1e6:.1f} MB in the file, a bare read of all "
        f"the bytes {each['bare_us'] / 1e3:.1f} ms)"
        for name, each in results[0]["large_first_hit"].items()
    ]
    versions = ", ".join(f"{name} {machine[name]}" for name in ("sqlite", "lmdb", "diskcache", "cuda-core"))
    lines += [
        "",
        f"A fresh process: import {fresh['import_ms']:.1f} ms, first hit of 50 KB {fresh['first_hit_ms']:.2f} ms.",
        f"Its first hit of 5 MB: {', '.join(large)}.",
        "At 20,000 entries: the size for `info()`, counted file by file,",
        f"{many['exact_size_ms']:.0f} ms, counters of 128 processes {many['counters_ms']:.1f} ms, every entry listed",
        f"{many['entries_ms']:.0f} ms.",
        "",
        f"{machine['cpu']}, {machine['cpus']} cores, no GPU, {machine['filesystem']}, Linux {machine['kernel']},",
        f"Python {machine['python']}, {versions}; load at the end {machine['load']:.1f};",
        f"{machine['date']}.{of_commit(results[0])}",
    ]
    return "\n".join(lines).strip()


def lookup() -> str:
    """Tabulate lookups and which systems serve stale code; the cost of learning headers; the outcome of each change."""
    result = result_of("lookup")
    samples = result["samples"]
    looked_up, stale = samples.get("lookup", {}), samples.get("stale", {})
    columns = sorted({name for rows in looked_up.values() if isinstance(rows, dict) for name in rows}, key=ORDER.index)
    rows = []
    for system in dict.fromkeys([*looked_up, *stale]):
        times = looked_up.get(system, {})
        shown = [microseconds(times[name]) if isinstance(times, dict) and name in times else "–" for name in columns]
        rows.append((system, [*shown, verdict(list(stale.get(system, {}).values()))]))
    lines = table("lookup before load, us", [*columns, "serves stale code"], rows)
    if learning := samples.get("learning"):
        lines += ["", "| learning | compile, ms | more on a new installation | later |", "| --- | --- | --- | --- |"]
        for header, by_way in learning.items():
            for way in dict.fromkeys(name.rpartition(", ")[0] for name in by_way):
                times = [by_way[f"{way}, {when}"] for when in ("first", "later")]
                first, later = (statistics.median(each["learn"]) for each in times)
                compiling = statistics.median(times[1]["compile"])
                cost = [f"{each * 1e3:.1f} ms ({each / compiling:.1%})" for each in (first, later)]
                lines.append(f"| `{header}`, {way} | {compiling * 1e3:.0f} | {' | '.join(cost)} |")
    if stale:
        changes = list(next(iter(stale.values())))
        lines += ["", *table("after the change", changes, (
            (system, [served(each) for each in outcomes.values()]) for system, outcomes in stale.items()
        ))]  # fmt: skip
    unable = {system: rows for system, rows in looked_up.items() if isinstance(rows, str)}
    return "\n".join([*lines, *footer({**result, "left_out": unable})])


ORDER = (
    "no includes, first", "no includes, after", "cub/block/block_reduce.cuh, first",
    "cub/block/block_reduce.cuh, after",
)  # fmt: skip
"""The columns of lookups."""


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
    lines = ["| | changes | special | changing the code | stale | needless | not learned |", "| --- |" + " --- |" * 6]
    results = [result_of("header_corpus"), result_of("header_corpus_12")]
    for result in results:
        trees, nvrtc = result["samples"].values(), result["machine"]["nvrtc"]
        steps = sum(sum(tree["steps"].values()) for tree in trees)
        changing = sum(sum(tree["changing"].values()) for tree in trees)
        special = sum(tree["steps"].get(kind, 0) for tree in trees for kind in ("same-size edit", "shadow", "answer"))
        stale, needless, not_learned = (
            sum(len(tree[what]) for tree in trees) for what in ("stale", "needless", "not learned")
        )
        lines.append(
            f"| NVRTC {'13.5' if nvrtc == 'installed' else nvrtc} | {steps} | {special} "
            f"| {changing} ({changing / steps:.0%}) | {stale} | {needless} ({needless / steps:.1%}) | {not_learned} |"
        )
    return "\n".join([*lines, "", *dict.fromkeys(map(machine_of, results))])


def nodes() -> str:
    """Tabulate nodes with one server: seconds until the last rank has its kernels, and the number of compiles."""
    result = result_of("nodes")
    rows = [
        (
            system,
            [
                *(
                    f"{digits(statistics.median(each[name]))} s" if name in each else "–"
                    for name in ("cold last", "cold ended", "warm last")
                ),
                f"{max(sum(compiles) for compiles in each['cold compiles'])}",
                f"{max(max(compiles) for compiles in each['cold compiles'])}",
            ],
        )
        for system, each in result["samples"].items()
    ]
    head = f"{result['nodes']} nodes of {result['ranks']} ranks, {result['kernels']} kernels"
    columns = (
        "cold",
        "until all have ended",
        "warm server, new directories",
        "compiles",
        "compiles of one kernel, at most",
    )
    return "\n".join([*table(head, columns, rows), *footer(result)])


def fleet_operations() -> str:
    """Tabulate the time of each operation of the tier, and the requests per second that the server answers."""
    result = result_of("fleet")
    found = result["samples"]["operations"]
    names = {
        "miss_us": "read, not there",
        "hit_us": "read, 20 KB",
        "claim_us": "claim a lease",
        "put_us": "write, 20 KB, behind the launch",
    }
    rows = ((name, [f"{found[key][p]:.0f} us" for p in ("p50", "p99")]) for key, name in names.items())
    small, large = found["get_3b_per_s"], found["get_20kb_per_s"]
    sentence = f"`redis-benchmark` gets {small:,.0f} small and {large:,.0f} 20 KB answers per second from that server."
    load = f"Load of the machine before: {result['machine']['load'][0]:.1f}."
    return "\n".join([*table("operation", ("median", "p99"), rows), "", sentence, *footer(result), load])


def fleet_first() -> str:
    """Tabulate the first resolution in a fresh process, by the store that has the entry."""
    found = result_of("fleet")["samples"]["first_resolution"]
    names = {
        "local": "from the local directory",
        "redis": "from Redis; the directory knows the compilers",
        "redis, new directory": "from Redis; a new directory",
    }
    cells_of = (("made_ms", "p50"), ("resolved_ms", "p50"), ("resolved_ms", "p90"))
    rows = ((name, [f"{digits(found[key][what][p])} ms" for what, p in cells_of]) for key, name in names.items())
    made, resolved = (found["redis"][what]["p50"] - found["local"][what]["p50"] for what in ("made_ms", "resolved_ms"))
    sentence = (
        f"From Redis the first resolution takes {resolved:.1f} ms longer than from the local directory (medians), and"
    )
    head = "first resolution of a kernel in a fresh process"
    columns = ("cache made", "resolved, median", "p90")
    return "\n".join([*table(head, columns, rows), "", sentence, f"making a cache with tiers {made:.1f} ms longer."])


def fleet() -> str:
    """Tabulate the simulated fleets."""
    columns = ("start", "requests", "in the busiest second", "sent", "compiles", "last rank runs after")
    rows = []
    for each in result_of("fleet")["samples"]["fleet"]:
        if each["warm"]:
            start = "warm, back-fill" if each["back_fill"] else "warm, no back-fill"
        else:
            start = "cold, lease and back-fill" if each["leases"] else "cold, no lease"
        numbers = (f"{each[name]:,}" for name in ("requests", "busiest_second"))
        more = (f"{each['gigabytes']:.2f} GB", f"{each['compiles']:,}", f"{each['last_rank_s']:.1f} s")
        rows.append((f"{each['nodes']:,}", [start, *numbers, *more]))
    return "\n".join(table("nodes", columns, rows))


def cuda_compute() -> str:
    """One line for each algorithm: milliseconds to its first result."""
    result = result_of("cuda_compute")
    rows = [
        (name, [digits(times.get(way, "not taken")) for way in ("build", "cache", "memory", "again")])
        for name, times in result["milliseconds"].items()
    ]
    columns = ("without a cache, ms", "from the cache, ms", "from memory, ms", "second call, ms")
    return "\n".join([*table("first result", columns, rows), "", script_and_machine(result)])


def triton_kernels() -> str:
    """Tabulate the milliseconds to the first launches with Triton's own directory and with this cache."""
    result = result_of("triton_kernels")
    found, names = result["found"], {"own": "Triton's directory", "cache": "this cache"}
    rows = [
        (name, [digits(found[way][figure]) for figure in ("cold_ms", "first_ms", "second_ms")])
        for way, name in names.items()
        if isinstance(found.get(way), dict)
    ]
    columns = ("both, nothing stored, ms", "first kernel, ms", "second kernel, ms")
    rows = rows or [("not taken", ["–"] * 3)]
    ranks = f"Eight processes at once on an empty cache compiled {found['ranks']['misses']} kernels for all."
    return "\n".join([*table("first launch", columns, rows), "", ranks, "", script_and_machine(result)])


def program_cache() -> str:
    """Tabulate the microseconds of a hit of cuda.core's file backend and of this cache."""
    result = result_of("program_cache")
    names = {"built": "get_or_build of 50 KB, numba_kcache"}
    rows = [
        (names.get(way, f"compile(cache=), {way}"), [digits(times[each]) for each in ("opening", "first", "again")])
        for way, times in result["microseconds"].items()
        if isinstance(times, dict)
    ]
    columns = ("first of a process, us", "each program's first, us", "later ones, us")
    return "\n".join([*table("hit", columns, rows), "", script_and_machine(result)])


def mlir() -> str:
    """Tabulate first launches, whole processes and launches of numba-cuda-mlir alone, with its cache and with this."""
    result = result_of("mlir")
    rows = []
    for name, figures in result["samples"].items():
        shown = []
        for figure, scale in (("cold first", 1e3), ("warm first", 1e3), ("warm process", 1e3), ("launch own", 1e6),
                              ("launch cupy", 1e6), ("launch torch", 1e6)):  # fmt: skip
            found = [each for each in figures.get(figure) or () if isinstance(each, float)]
            shown.append(digits(statistics.median(found) * scale) if found else "-")
        rows.append((name, shown))
    columns = (
        "first launch cold, ms", "warm, ms", "process, warm, ms", "launch, own, us", "CuPy's, us", "PyTorch's, us"
    )  # fmt: skip
    return "\n".join([*table("numba-cuda-mlir", columns, rows), "", script_and_machine(result)])


def real_programs() -> str:
    """Tabulate the seconds of the whole process of public programs, as published and with this cache."""
    result = result_of("real_programs")
    rows = []
    for name, found in result["samples"].items():
        times = [found[way][when] for when in ("cold", "warm_median") for way in ("plain", "numba_kcache")]
        shown = [f"{each:.2f}" if isinstance(each, float) else "-" for each in times]
        rows.append((name, [found["what"], found["kind"], *shown, found["results"]]))
    columns = (
        "what",
        "kernels of",
        "cold, as published, s",
        "cold, here, s",
        "warm, as published, s",
        "warm, here, s",
        "results",
    )
    return "\n".join([*table("program", columns, rows), "", script_and_machine(result)])


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
    columns = ("pass plainly", "fail here, cold", "fail here, warm", "which")
    machines = [machine_of(result_of(name)) for name in SUITES if (RESULTS / f"{name}.json").is_file()]
    return "\n".join([*table("tests", columns, rows), "", *dict.fromkeys(machines)])


def sizes() -> str:
    """Megabytes of an environment, by extras."""
    result = result_of("project")
    rows = [
        (f"`numba-kcache[{extras}]`" if extras else "`numba-kcache`", [f"{megabytes:,.0f}"])
        for extras, megabytes in result["samples"]["installed_mb"].items()
    ]
    return "\n".join([*table("", ("MB",), rows), "", script_and_machine(result)])


def first_minutes() -> str:
    """Seconds from no environment to the results of each first program of the README."""
    result = result_of("first_minutes")
    steps = ("environment", "install", "first", "second")
    rows = [
        (
            heading,
            [*(f"{each[f'{step}_s']:.1f}" for step in steps), f"{each['megabytes']:,.0f}", ", ".join(each["packages"])],
        )
        for heading, each in result["samples"].items()
    ]
    columns = ("`venv`, s", "`pip install`, s", "first run, s", "second run, s", "MB", "with")
    return "\n".join([*table("the first program of", columns, rows), *footer(result)])


def project() -> str:
    """Tabulate the project itself: distributions, tests, and the time to a first result."""
    result = result_of("project")
    found = result["samples"]
    rows = [(name, [f"{megabytes:.2f} MB"]) for name, megabytes in found["size_mb"].items()]
    if "suite" in found:
        rows.append((f"suite of {found['suite']['tests']:,} tests", [f"{found['suite']['seconds']:,.0f} s"]))
    names = {
        "clone": "`git clone`, without a network",
        "demo": "`python3 tasks.py demo`, the first: all that developers use is installed",
        "again": "`python3 tasks.py demo`, again",
    }
    rows += [(names[name], [f"{seconds:,.0f} s"]) for name, seconds in found["first_result_s"].items()]
    return "\n".join([*table("the project itself", ("",), rows), *footer(result)])


def script_and_machine(result: dict[str, Any]) -> str:
    """Name the script and the machine of a result, in brackets."""
    return f"(`benchmarks/{result['script']}.py`, {machine_of(result)})"


TABLES = {
    "header_corpus": ("docs/keys.md", header_corpus),
    "lookup": ("docs/keys.md", lookup),
    "programs": ("README.md", programs),
    "gains": ("docs/performance.md", programs),
    "store": ("docs/performance-store.md", store),
    "nodes": ("docs/performance-fleet.md", nodes),
    "fleet_operations": ("docs/performance-fleet.md", fleet_operations),
    "fleet_first": ("docs/performance-fleet.md", fleet_first),
    "fleet": ("docs/performance-fleet.md", fleet),
    "cuda_compute": ("docs/performance-adapters.md", cuda_compute),
    "triton_kernels": ("docs/performance-adapters.md", triton_kernels),
    "program_cache": ("docs/performance-adapters.md", program_cache),
    "real_programs": ("docs/performance-programs.md", real_programs),
    "run": ("docs/performance.md", run),
    "project": ("docs/performance.md", project),
    "first_minutes": ("docs/performance.md", first_minutes),
    "suites": ("docs/compatibility.md", suites),
    "sizes": ("docs/install.md", sizes),
    "added": ("docs/performance.md", added),
    "aims": ("docs/performance.md", aims),
    "mlir": ("docs/performance-adapters.md", mlir),
    **{name: ("docs/performance.md", table) for name, table in PERFORMANCE.items()},
}


ILLUSTRATED = (
    "docs/index.md",
    "docs/performance.md",
    "docs/performance-store.md",
    "docs/performance-fleet.md",
    "docs/keys.md",
)
"""Pages with pictures."""


def written(name: str, text: str) -> str:
    """A document with one of its tables replaced by a new one."""
    try:
        content = TABLES[name][1]()
    except NoResult as missing:
        content = f"Not measured yet: `benchmarks/{missing}.py` measures it."
    except (KeyError, ValueError) as error:  # the benchmark was stopped by its time limit
        content = f"Not measured: the result of the last run lacks {error}."
    return _between(f"table: {name}", content, text)


def with_pictures(text: str) -> str:
    """A page with the pictures that exist."""
    for name in re.findall(r"<!-- picture: (\w+) -->", text):
        shown = [
            f"```{{image}} img/{name}-{page}.svg\n:class: only-{page}\n:alt: {name}, drawn from its table\n```\n"
            for page in ("light", "dark")
            if (ROOT / f"docs/img/{name}-{page}.svg").is_file()
        ]
        text = _between(f"picture: {name}", "\n" + "\n".join(shown), text)
    return text


def _between(mark: str, content: str, text: str) -> str:
    return re.sub(
        rf"(<!-- {mark} -->\n).*?(<!-- end -->)", lambda match: f"{match[1]}{content}\n{match[2]}", text, flags=re.S
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
