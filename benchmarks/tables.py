"""Write the tables of the documents from the committed results; no figure is typed by hand.

Method      A table is data: its result, the names of its columns, and the template of a row, which `results.row` fills
            from a record of the result. If the result of a table is not committed, the table states this.
Run         python benchmarks/tables.py [NAME ...]
Not here    The pictures (plots); the formats of figures and the lines below a table (results).
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from aims import aims
from results import NoResult, commits, digits, footer, found_at, machine_of, paragraph, result_of, row, script_of, table
from results import script_and_machine as ALONE

ROOT = Path(__file__).resolve().parent.parent
Result = dict[str, Any]
Record = Mapping[str, Any]
Part = Callable[[Result], list[str]]
"""Lines of a result's page: a table or a paragraph, with an empty line before."""


def columns(names: Iterable[str], form: str) -> str:
    """The cells of a row's template, all with the same format."""
    return " | ".join(f"{{{name}:{form}}}" for name in names)


def at(path: str, labels: Mapping[str, str] | None = None) -> Callable[[Result], Iterator[Record]]:
    """A record for each object in that at a path, with its name, or the label of it; others have no row."""

    def records(result: Result) -> Iterator[Record]:
        found = found_at(result, path)
        for name, label in (labels or {name: name for name in found}).items():
            if isinstance(found.get(name), dict):
                yield {"name": label, **found[name]}

    return records


def of_samples(result: Result) -> Iterator[Record]:
    """A record for each system of a result; for each system of each case, if its samples are by case first."""
    for name, found in result["samples"].items():
        if isinstance(next(iter(found.values()), None), dict):
            yield from ({"name": f"{name}: {system}", **each} for system, each in found.items())
        elif found:
            yield {"name": name, **found}


def rows(head: str, form: str, records: Callable[[Result], Iterable[Record]] = of_samples) -> Part:
    """A table with the names of the columns, the template of a row, and a record for each row; none without records."""

    def part(result: Result) -> list[str]:
        lines = [row(form, record) for record in records(result)]
        return ["", *table(head.format_map(result), lines)] if lines else []

    return part


def page(of: str, *parts: Part, foot: Part = footer) -> Callable[[], str]:
    """The parts of a result, and the lines below them."""

    def make() -> str:
        result = result_of(of)
        lines = [line for part in (*parts, foot) for line in part(result)]
        return "\n".join(lines[1:])

    return make


def in_ms(head: str, records: Callable[[Result], Iterable[Record]] = of_samples) -> Part:
    """A table whose columns have the names of the figures."""
    return rows(head, f"{{name}} | {columns(head.split(' | ')[1:], 'ms')}", records)


def says(template: str) -> Part:
    """A sentence with figures of the result."""
    return lambda result: ["", template.format_map(result)]


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
    lines = []
    for name, of, path, systems in PROGRAMS:
        found = dict[str, float]()
        for column, system in systems.items():
            with contextlib.suppress(KeyError):
                times = found_at(result_of(of), path.format(system))
                found[column] = median(times) * 1e3 if isinstance(times, list) else times
        bold = {value: "**{}**" if value == min(found.values()) else "{}" for value in found.values()}
        shown = {column: bold[value].format(digits(value)) for column, value in found.items()}
        other = next((f"{each} ({column})" for column, each in shown.items() if column not in COLUMNS), "–")
        script = script_of(of).partition(".")[0]
        lines.append(" | ".join((name, *(shown.get(column, "–") for column in COLUMNS), other, f"`{script}`")))
    compiled, eight = "", result_of("workloads")["samples"].get(EIGHT)
    if eight:
        here, there = (median(eight[system]["cold compiles"]) for system in (OURS, NUMBA))
        compiled = f"The 8 processes compile {here:.0f} kernels here, and {there:.0f} with Numba's cache."
    pair, machine = result_of("added")["added"]["RawKernel"], result_of("first_launch")["machine"]
    sentences = (
        "Medians; bold is the least of a row. A first launch begins after imports and ends when the result is there.",
        "Caches are filled where no row says otherwise.",
        compiled,
        "In pairs of whole processes that import CuPy anyway, a small kernel costs {added_ms:+.0f} ms".format_map(pair),
        "compared with `RawKernel` ({low_ms:.0f} to {high_ms:.0f}; `benchmarks/added.py`).".format_map(pair),
        "{gpu}, driver {driver}, Python {python}.".format_map(machine),
    )
    head = " | ".join(("ms, in a fresh process", *COLUMNS, "other", "`benchmarks/`"))
    return "\n".join([*table(head, lines), "", *paragraph(*sentences)])


def cases(result: Result) -> list[str]:
    """All kernels of a process, cold and warm, in a table for each number of kernels."""
    lines = list[str]()
    for case in result["samples"]:
        kernels, _, header = case.partition(", ")
        many = "one kernel" if kernels == "1" else f"{kernels} kernels"
        lines += ["", f"{many}{f', including {header}' if header else ''}:".capitalize()]
        lines += in_ms(" | warm first | cold first | warm process | cold process", at(f"samples > {case}"))(result)
    return lines


STEPS = "sum | import | decoration | first | exit | python | packages | arrays | result | end | all"


def steps(state: str) -> Part:
    """The parts of a start in milliseconds, and whole processes as multiples of the least warm one."""

    def records(result: Result) -> Iterator[Record]:
        least = median(result["samples"]["bare cuda.bindings, a cubin from a file"]["warm"]["all"])
        for name, states in result["samples"].items():
            if state in states:
                yield {"name": name, **states[state], "ratio": median(states[state]["all"]) / least}

    form = f"{{name}} | {columns(STEPS.split(' | '), 'ms')} | {{ratio:.2f}}"
    return rows(f"{state} | {STEPS} | all, of the least", form, records)


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
    pairs, lines = result["added"], list[str]()
    interval = "{added_ms:+,.0f} ({low_ms:+,.0f} to {high_ms:+,.0f})"
    for program, over, pair, system in ADDED:
        both = [pairs.get(name) for name in (pair, f"cold {pair}")]
        shown = (interval.format_map(each) if each else "–" for each in both)
        parts = row(columns(PARTS, "median_ms"), steps.get(f"{OURS}, {system}", {}).get("warm", {}))
        if any(both):
            lines.append(" | ".join((program, over, *shown, parts)))
    head = " | ".join(("program", "compared with", "added, ms", "with nothing stored, ms", *PARTS))
    return "\n".join([*table(head, lines), *footer(result)[:-2]])


def of_growth(is_launches: bool) -> Callable[[Result], Iterator[Record]]:
    """For each part of the kernels, or for that of launches: memory, and the seconds of the first and the last call."""

    def records(result: Result) -> Iterator[Record]:
        for part, each in result["samples"].items():
            (first_s, early, held), *_, (last_s, late, used) = each["tenths"]
            count, calls = each["count"], each["count"] // 10
            if (part == "launches") == is_launches:
                host, device = (late - early) / 1e3, (used - held) / 1e3
                yield {
                    "name": part, "count": count, "early": early / 1e6, "late": late / 1e6, "more": device / 1e3,
                    "host": host / (count - calls), "device": device / (count - calls),
                    "first_ms": first_s / calls * 1e3, "last_ms": last_s / calls * 1e3,
                    "first_us": first_s / calls * 1e6, "last_us": last_s / calls * 1e6,
                }  # fmt: skip

    return records


LABELS = {
    "all": "all sources together", "median": "median", "90 %": "90 % are below", "worst": "worst",
    "above 1.15": "above 1.15",
}  # fmt: skip


def of_nodes(result: Result) -> Iterator[Record]:
    """Nodes with one server: their times, and the compiles of all kernels and of one kernel at most."""
    for each in of_samples(result):
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


def of_redis(result: Result) -> list[str]:
    found = result["samples"]["first_resolution"]
    made, resolved = (found["redis"][what]["p50"] - found["local"][what]["p50"] for what in ("made_ms", "resolved_ms"))
    first = f"From Redis the first resolution takes {resolved:.1f} ms longer than from the local directory (medians),"
    return ["", f"{first} and", f"making a cache with tiers {made:.1f} ms longer."]


def fleets(result: Result) -> Iterator[Record]:
    """The simulated fleets."""
    for each in result["samples"]["fleet"]:
        warm = "warm, back-fill" if each["back_fill"] else "warm, no back-fill"
        cold = "cold, lease and back-fill" if each["leases"] else "cold, no lease"
        yield {**each, "start": warm if each["warm"] else cold}


CUB = "cub/block/block_reduce.cuh"
LOOKUPS = ("no includes, first", "no includes, after", f"{CUB}, first", f"{CUB}, after")


def lookups(result: Result) -> Iterator[Record]:
    """Lookups of each system, and whether it serves stale code; one that was not measured has a reason instead."""
    looked_up, stale = result["samples"]["lookup"], result["samples"].get("stale", {})
    for system in dict.fromkeys([*looked_up, *stale]):
        times = looked_up.get(system, {})
        shown = {f"{at}": times[name] for at, name in enumerate(LOOKUPS) if name in times}
        words = [served(each) for each in stale.get(system, {}).values() if each != "–"]
        verdict = "no" if {*words} == {"right"} else "no: refuses headers"
        if "stale" in words:
            verdict = f"**yes**, after {words.count('stale')} of {len(words)} changes"
        yield {"name": system, **shown, "stale": verdict if words and "not run" not in words else "not run"}


def changes(result: Result) -> list[str]:
    """The outcome of each change: right or stale code, "refuses", or "not run" on that machine."""
    stale = result["samples"].get("stale", {})
    names = [*next(iter(stale.values()), ())]
    found = [{"name": system, **{name: served(each[name]) for name in names}} for system, each in stale.items()]
    head = " | ".join(("after the change", *names))
    return rows(head, f"{{name}} | {columns(names, '')}", lambda _: found)(result)


def served(outcome: str) -> str:
    return outcome if outcome in ("right", "stale", "–") else "refuses" if "refuses" in outcome else "not run"


def unable(result: Result) -> list[str]:
    """The lines below, with the systems that cannot look up here."""
    reasons = {system: why for system, why in result["samples"]["lookup"].items() if isinstance(why, str)}
    return footer({**result, "left_out": reasons})


def header_corpus() -> str:
    """By NVRTC: changes to trees of headers, and how many led to a stale hit or a needless miss."""
    lines, results = [], [result_of("header_corpus"), result_of("header_corpus_12")]
    for result in results:
        trees, nvrtc = result["samples"].values(), result["machine"]["nvrtc"]
        steps, changing = (sum(sum(tree[what].values()) for tree in trees) for what in ("steps", "changing"))
        special = sum(tree["steps"].get(kind, 0) for tree in trees for kind in ("same-size edit", "shadow", "answer"))
        stale, needless, not_learned = (
            sum(len(tree[what]) for tree in trees) for what in ("stale", "needless", "not learned")
        )
        lines.append(
            f"NVRTC {'13.5' if nvrtc == 'installed' else nvrtc} | {steps} | {special} | {changing} "
            f"({changing / steps:.0%}) | {stale} | {needless} ({needless / steps:.1%}) | {not_learned}"
        )
    head = "| changes | special | changing the code | stale | needless | not learned"
    return "\n".join([*table(head, lines), "", *dict.fromkeys(map(machine_of, results))])


MANAGERS = {"own": "Triton's directory", "cache": "this cache"}
CALLS = {
    "file backend": "compile(cache=), file backend", "numba_kcache": "compile(cache=), numba_kcache",
    "built": "get_or_build of 50 KB, numba_kcache", "published": "the same, nothing stored",
}  # fmt: skip
SUITES = {
    "numba_suite": "numba-cuda's, under `install(all=True)`",
    "mlir_suite": "numba-cuda-mlir's, under `install(all=True)`",
    "cupy_suite": "CuPy's of raw, elementwise, reduction, fused and jit kernels, under `install(cupy=True)`",
    "program_cache_suite": "cuda.core's of its program caches, over `ProgramCache`",
}


def suites() -> str:
    """Tabulate other packages' own tests: how many pass without this cache, and which of those fail with it."""
    lines, machines = [], []
    for name, of in SUITES.items():
        try:
            result = result_of(name)
        except NoResult:
            lines.append(" | ".join((of, *["not run"] * 4)))
            continue
        machines.append(machine_of(result))
        new = result.get("new") or {"cold": [*result.get("failed", ())], "warm": [*result.get("failed", ())]}
        if name == "numba_suite":
            passes = max(result["ran"].values()) - len(result["failing"]["plain"])
        else:
            passes = len(result["passed"]) + len(result.get("failed", ()))
        names = sorted({test.rpartition("::")[2].split(" ")[0].split("[")[0] for each in new.values() for test in each})
        lines.append(f"{of} | {passes:,} | {len(new['cold'])} | {len(new['warm'])} | {', '.join(names) or 'none'}")
    head = "tests | pass plainly | fail here, cold | fail here, warm | which"
    return "\n".join([*table(head, lines), "", *dict.fromkeys(machines)])


def run() -> str:
    """A sentence with the commit of most results, and with the results of other commits."""
    (commit, names), *others = commits().items()
    many = len(names) + sum(len(each) for _, each in others)
    if not others:
        return f"All {many} results are of one commit, `{commit}`." if commit else "No result names its commit."
    of = f"of commit `{commit}`" if commit else "of commits that they do not name"
    rest = "; ".join(f"`{each or 'not named'}`: {', '.join(sorted(those))}" for each, those in others)
    return "\n".join(paragraph(f"{len(names)} of {many} results are {of}; the others: {rest}."))


TOOK = {
    "clone": "`git clone`, without a network",
    "demo": "`python3 tasks.py demo`, the first: all that developers use is installed",
    "again": "`python3 tasks.py demo`, again",
}


def of_project(result: Result) -> Iterator[Record]:
    """The project itself: distributions, tests, and the time to a first result."""
    found = result["samples"]
    yield from ({"name": name, "figure": f"{size_mb:.2f} MB"} for name, size_mb in found["size_mb"].items())
    took_s = {TOOK[name]: seconds for name, seconds in found["first_result_s"].items()}
    if "suite" in found:
        took_s = {f"suite of {found['suite']['tests']:,} tests": found["suite"]["seconds"], **took_s}
    yield from ({"name": name, "figure": f"{seconds:,.0f} s"} for name, seconds in took_s.items())


def sizes(result: Result) -> Iterator[Record]:
    """Megabytes of an environment, by extras."""
    for extras, megabytes in result["samples"]["installed_mb"].items():
        yield {"name": f"`numba-kcache{f'[{extras}]' if extras else ''}`", "megabytes": megabytes}


ARGUMENTS = ("0", "2", "4", "8", "16")
OF_KERNELS = "warm, one after another | kernels | KB of host memory for each | KB of device memory"
OF_LAUNCHES = "launches | MB resident after a tenth | at the end | growth of device memory, MB"
DOCUMENTS: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {"programs": programs},
    "docs/performance.md": {
        "gains": programs, "run": run, "added": added, "aims": aims,
        "cold_warm": page("first_launch", cases), "warm_steps": page("warm_steps", steps("warm"), steps("cold")),
        "modules": page("modules", in_ms("warm | all | first | further | process")),
        "growth": page(
            "growth",
            rows(f"{OF_KERNELS} | ms for each of the first tenth | of the last tenth",
                 f"{{name}} | {{count:,}} | {columns(('host', 'device', 'first_ms', 'last_ms'), 'digits')}",
                 of_growth(is_launches=False)),
            rows(f"{OF_LAUNCHES} | us for each of the first tenth | of the last tenth",
                 f"{{count:,}} | {columns(('early', 'late', 'more', 'first_us', 'last_us'), 'digits')}",
                 of_growth(is_launches=True))),
        "compile_overhead": page(
            "compile_overhead",
            rows("{summary[sources]} sources | of NVRTC alone", "{name} | {figure:ratio}", lambda result: (
                {"name": label, "figure": result["summary"][name]} for name, label in LABELS.items())),
            rows("medians, by what is included | sources | NVRTC alone, ms | more, ms | of NVRTC alone",
                 "{name} | {sources} | {alone, ms:.1f} | {more, ms:.1f} | {median:.3f}",
                 at("summary > kinds"))),
        "project": page("project", rows("the project itself | ", "{name} | {figure}", of_project)),
        "first_minutes": page("first_minutes", rows(
            "the first program of | `venv`, s | `pip install`, s | first run, s | second run, s | MB | with",
            "{name} | {environment_s:.1f} | {install_s:.1f} | {first_s:.1f} | {second_s:.1f} | {megabytes:,.0f}"
            " | {packages:words}")),
        "launches": page("launch", rows(
            " | ".join(("arguments", *ARGUMENTS)), f"{{name}} | {columns(ARGUMENTS, 'median')}")),
        "numba_first_launch": page("numba_first_launch", in_ms(" | warm first | cold first | launch")),
        "workloads": page("workloads", in_ms(
            " | warm first | warm all | cold first | cold all | warm process | cold process")),
    },
    "docs/performance-fleet.md": {
        "nodes": page("nodes", rows(
            "{nodes} nodes of {ranks} ranks, {kernels} kernels | cold | until all have ended"
            " | warm server, new directories | compiles | compiles of one kernel, at most",
            "{name} | {cold last:median_s} | {cold ended:median_s} | {warm last:median_s} | {sum} | {most}", of_nodes)),
        "fleet_operations": page(
            "fleet", rows("operation | median | p99", "{name} | {p50:.0f} us | {p99:.0f} us",
                          at("operations", OPERATIONS)),
            says("`redis-benchmark` gets {samples[operations][get_3b_per_s]:,.0f} small and "
                 "{samples[operations][get_20kb_per_s]:,.0f} 20 KB answers per second from that server."),
            foot=lambda result: [
                *footer(result), f"Load of the machine before: {result['machine']['load'][0]:.1f}."]),
        "fleet_first": page(
            "fleet",
            rows("first resolution of a kernel in a fresh process | cache made | resolved, median | p90",
                 "{name} | {made_ms[p50]:digits} ms | {resolved_ms[p50]:digits} ms | {resolved_ms[p90]:digits} ms",
                 at("first_resolution", FIRSTS)), of_redis, foot=lambda _: []),
        "fleet": page("fleet", rows(
            "nodes | start | requests | in the busiest second | sent | compiles | last rank runs after",
            "{nodes:,} | {start} | {requests:,} | {busiest_second:,} | {gigabytes:.2f} GB | {compiles:,}"
            " | {last_rank_s:.1f} s", fleets), foot=lambda _: []),
    },
    "docs/performance-adapters.md": {
        "cuda_compute": page("cuda_compute", rows(
            "first result | without a cache, ms | from the cache, ms | from memory, ms | second call, ms",
            f"{{name}} | {columns(('build', 'cache', 'memory', 'again'), 'digits')}",
            at("milliseconds")), foot=ALONE),
        "triton_kernels": page("triton_kernels", rows(
            "first launch | both, nothing stored, ms | first kernel, ms | second kernel, ms",
            f"{{name}} | {columns(('cold_ms', 'first_ms', 'second_ms'), 'digits')}", at("found", MANAGERS)),
            says("Eight processes at once on an empty cache compiled {found[ranks][misses]} kernels for all."),
            foot=ALONE),
        "program_cache": page("program_cache", rows(
            "hit | first of a process, us | each program's first, us | later ones, us",
            f"{{name}} | {columns(('opening', 'first', 'again'), 'digits')}", at("microseconds", CALLS)), foot=ALONE),
        "mlir": page("mlir", rows(
            "numba-cuda-mlir | first launch cold, ms | warm, ms | process, warm, ms | launch, own, us"
            " | CuPy's, us | PyTorch's, us",
            f"{{name}} | {columns(('cold first', 'warm first', 'warm process'), 'median_ms')}"
            f" | {columns(('launch own', 'launch cupy', 'launch torch'), 'median_us')}"), foot=ALONE),
    },
    "docs/performance-programs.md": {
        "real_programs": page("real_programs", rows(
            "program | what | kernels of | cold, as published, s | cold, here, s"
            " | warm, as published, s | warm, here, s | results",
            "{name} | {what} | {kind} | {plain[cold]:s} | {numba_kcache[cold]:s} | {plain[warm_median]:s}"
            " | {numba_kcache[warm_median]:s} | {results}"), foot=ALONE),
    },
    "docs/keys.md": {
        "header_corpus": header_corpus,
        "lookup": page("lookup", rows(
            " | ".join(("lookup before load, us", *LOOKUPS, "serves stale code")),
            f"{{name}} | {columns('0123', 'us')} | {{stale}}", lookups), changes, foot=unable),
    },
    "docs/compatibility.md": {"suites": suites},
    "docs/install.md": {"sizes": page("project", rows(" | MB", "{name} | {megabytes:,.0f}", sizes), foot=ALONE)},
}  # fmt: skip
TABLES = {name: (path, make) for path, tables in DOCUMENTS.items() for name, make in tables.items()}


def written(name: str, document: str) -> str:
    """A document with one of its tables replaced by a new one."""
    try:
        content = TABLES[name][1]()
    except NoResult as missing:
        content = f"Not measured yet: `benchmarks/{script_of(f'{missing}')}` measures it."
    except (KeyError, ValueError) as error:  # the benchmark was stopped by its time limit
        content = f"Not measured: the result of the last run lacks {error}."
    marked = rf"(<!-- table: {name} -->\n).*?(<!-- end -->)"
    return re.sub(marked, lambda match: f"{match[1]}{content}\n{match[2]}", document, flags=re.S)


def main() -> None:
    """Write the tables of these names, or all."""
    for name in sys.argv[1:] or TABLES:
        path = ROOT / TABLES[name][0]
        path.write_text(written(name, path.read_text()))


if __name__ == "__main__":
    main()
