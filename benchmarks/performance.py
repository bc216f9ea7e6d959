"""Make the tables of docs/performance.md, each from one committed result; benchmarks/tables.py writes them."""

from __future__ import annotations

import ast
import json
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

RESULTS = Path(__file__).resolve().parent / "results"


class NoResult(Exception):
    """No result is committed for a table."""


def result_of(name: str) -> dict[str, Any]:
    """The committed result of one benchmark.

    Raises:
        NoResult: The benchmark has no committed result.
    """
    path = RESULTS / f"{name}.json"
    if not path.is_file():
        raise NoResult(name)
    found: dict[str, Any] = json.loads(path.read_text())
    return {**found, "script": name}


def commits() -> dict[str, list[str]]:
    """The commits at which the committed results were taken, the most frequent first, with the results of each."""
    found: dict[str, list[str]] = {}
    for path in sorted(RESULTS.glob("*.json")):
        result = json.loads(path.read_text())
        found.setdefault(commit_of(result), []).append(path.stem)
    return dict(sorted(found.items(), key=lambda each: -len(each[1])))


def commit_of(result: dict[str, Any]) -> str:
    """The commit that a result was taken at; "" if it names none."""
    return str(result["machine"].get("commit") or result.get("commit") or "")[:12]


def of_commit(result: dict[str, Any]) -> str:
    """A sentence with the commit of a result; empty if most results are of the same commit."""
    commit = commit_of(result)
    return f" Commit `{commit or 'not named'}`." if commit != next(iter(commits())) else ""


def run() -> str:
    """A sentence with the commit of most results, and with the results of other commits."""
    (commit, names), *others = commits().items()
    many = len(names) + sum(len(each) for _, each in others)
    if not others:
        return f"All {many} results are of one commit, `{commit}`." if commit else "No result names its commit."
    of = f"of commit `{commit}`" if commit else "of commits that they do not name"
    rest = "; ".join(f"`{each or 'not named'}`: {', '.join(sorted(those))}" for each, those in others)
    return "\n".join(textwrap.wrap(f"{len(names)} of {many} results are {of}; the others: {rest}.", 119))


def machine_of(result: dict[str, Any]) -> str:
    """The machine in a line, and the commit if it differs from that of most results."""
    machine = result["machine"]
    more = (" Few samples (`--quick`)." if result.get("quick") else "") + of_commit(result)
    if not machine["gpu"]:
        cores, day = machine.get("cores") or machine["cpus"], (machine.get("time") or machine["date"])[:10]
        return f"{cores} cores, no GPU, Python {machine['python']}, {day}.{more}"
    driver = machine["driver"] or f"for CUDA {machine['driver_cuda'] // 1000}"
    return f"{machine['gpu']}, driver {driver}, Python {machine['python']}, {machine['time'][:10]}.{more}"


def _counts(samples: Any) -> Iterator[int]:
    """Number of samples of each figure, at any depth of a result."""
    if isinstance(samples, dict):
        for each in samples.values():
            yield from _counts(each)
    elif isinstance(samples, list) and samples and all(isinstance(each, float) for each in samples):
        yield len(samples)


def samples_of(result: dict[str, Any]) -> str:
    """A sentence with the smallest and the largest number of samples of a figure."""
    counts = Counter(_counts(result["samples"])) if result["script"] not in ("growth", "fleet") else Counter[int]()
    least, most = (min(counts), max(counts)) if counts else (0, 0)
    return f" Samples of a figure: {least if least == most else f'{least} to {most}'}." if counts else ""


def cell(times_s: list[float]) -> str:
    """`0.28 (0.27–0.31)`, in milliseconds; one sample alone."""
    shown = [digits(value * 1e3) for value in (median(times_s), min(times_s), max(times_s))]
    return shown[0] if len(times_s) == 1 else f"{shown[0]} ({shown[1]}–{shown[2]})"


def digits(value: float | str) -> str:
    """Format a figure with three digits and no exponent; a dash for the text that a result has in place of a figure."""
    if isinstance(value, str):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def table(head: str, columns: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]]) -> list[str]:
    """The lines of one table."""
    lines = [f"| {head} | {' | '.join(columns)} |", "| --- |" + " --- |" * len(columns)]
    return [*lines, *(f"| {name} | {' | '.join(cells)} |" for name, cells in rows)]


def cells(rows: dict[str, list[float]], columns: Sequence[str]) -> list[str]:
    return [cell(rows[name]) if name in rows else "–" for name in columns]


def footer(result: dict[str, Any]) -> list[str]:
    """The lines below a table: machine, commit, samples, systems that were not measured, and "does not show"."""
    lines = ["", machine_of(result) + samples_of(result)]
    left_out: dict[str, list[str]] = {}
    for what, why in (result.get("left_out") or {}).items():
        left_out.setdefault(_plain(why), []).append(what)
    if left_out:
        reasons = "; ".join(f"{', '.join(whats)}: {why}" for why, whats in left_out.items())
        lines += ["", f"Not measured: {reasons}."]
    return [*lines, "", f"Does not show: {shows_not(result['script'])}"]


def shows_not(script: str) -> str:
    """The text of `Not shown` in a script's docstring."""
    docstring = ast.get_docstring(ast.parse(Path(__file__).with_name(f"{script}.py").read_text())) or ""
    (found,) = re.findall(r"^Not shown   (.*?)(?=^\S|\Z)", docstring, flags=re.M | re.S)
    text = " ".join(str(found).split())
    return text[:1].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text


_REASONS = (
    (r"not asked in this turn: .*", "systems without a row were left out of this run"),
    (r"ModuleNotFoundError: No module named.*", "not installed there"),
    (r".*\brefuses to build a key\b.*", "refuses to cache a source with include paths"),
    (r".*\b(\w+) is not installed here.*", r"does not start without \1"),
    (r"(\w+Error|\w+Exception): .*", r"failed in the benchmark (\1)"),
)
"""Patterns of the reasons that results have for systems that were not measured, each with the words of the tables."""


def _plain(why: str) -> str:
    """A reason in the words of the tables, without characters of Markdown."""
    for pattern, words in _REASONS:
        if found := re.fullmatch(pattern, why.strip(), re.DOTALL):
            why = found.expand(words)
            break
    return why.translate(str.maketrans("|<>`*", "/    ")).strip().rstrip(".")[:400]


def _by_system(name: str, head: str, columns: Sequence[str]) -> str:
    """A row for each system of a result whose samples are by system and column."""
    result = result_of(name)
    rows = ((system, cells(by_name, columns)) for system, by_name in result["samples"].items())
    return "\n".join([*table(head, columns, rows), *footer(result)])


def cold_warm() -> str:
    """Tabulate all kernels of a process, cold and warm, by their number."""
    result = result_of("first_launch")
    columns = ("warm first", "cold first", "warm process", "cold process")
    lines = []
    for case, systems in result["samples"].items():
        kernels, _, header = case.partition(", ")
        many = "one kernel" if kernels == "1" else f"{kernels} kernels"
        lines += ["", f"{many}{f', including {header}' if header else ''}:".capitalize(), ""]
        lines += table("", columns, ((system, cells(rows, columns)) for system, rows in systems.items()))
    return "\n".join([*lines[1:], *footer(result)])


def numba_first_launch() -> str:
    return _by_system("numba_first_launch", "", ("warm first", "cold first", "launch"))


def modules() -> str:
    """Tabulate a source of large kernels, cold and warm, and many small ones of the same parameters, with CuPy's."""
    result = result_of("modules")
    columns = ("warm bound", "warm first", "warm all", "cold bound", "cold first", "cold all")
    lines = table(
        "31 kernels of one source", columns, [(name, cells(rows, columns)) for name, rows in result["samples"].items()]
    )
    of_many = ("all", "first", "further", "process")
    if many := result.get("many"):
        note = (
            "Kernels with the same parameters on CuPy arrays, warm, each launched once. all: from the request of the "
            "first kernel to the last launch, without imports; further: the median of the kernels from the third on; "
            "process: the whole process."
        )
        rows_of_many = [(name, cells(rows, of_many)) for name, rows in many.items()]
        lines += ["", *textwrap.wrap(note, 119, break_on_hyphens=False), "", *table("", of_many, rows_of_many)]
    return "\n".join([*lines, *footer(result)])


def whole_process() -> str:
    """Tabulate whole processes and their parts, and their multiples of the least."""
    result = result_of("whole_process")
    columns = ("process", "import", "arrays", "first")
    least = median(result["samples"]["bare cuda.bindings, a cubin from a file"]["process"])
    rows = []
    for system, by_name in result["samples"].items():
        share = f"{median(by_name['process']) / least:.2f}"
        has_numba = "yes" if system in result["numba"] else "no"
        rows.append((system, [*cells(by_name, columns), share, has_numba]))
    return "\n".join([*table("", [*columns, "of the least", "imports Numba"], rows), *footer(result)])


def warm_steps() -> str:
    """Tabulate the parts of a start, warm and cold, in milliseconds, and whole processes as multiples of the least."""
    result = result_of("warm_steps")
    samples = result["samples"]
    least = median(samples["bare cuda.bindings, a cubin from a file"]["warm"]["all"])
    order = ("sum", "import", "decoration", "first", "exit", "python", "packages", "arrays", "result", "end", "all")
    lines = []
    for state in ("warm", "cold"):
        rows = {system: states[state] for system, states in samples.items() if state in states}
        shares = {system: f"{median(parts['all']) / least:.2f}" for system, parts in rows.items()}
        lines += [
            "",
            *table(
                state,
                (*order, "all, of the least"),
                ((system, [*cells(parts, order), shares[system]]) for system, parts in rows.items()),
            ),
        ]
    return "\n".join([*lines[1:], *footer(result)])


def _microseconds(times_s: list[float]) -> str:
    return f"{median(times_s) * 1e6:.0f} ({min(times_s) * 1e6:.0f}–{max(times_s) * 1e6:.0f})"


def processes() -> str:
    """Tabulate ranks that miss at once: milliseconds until the last result, and the number of compiles."""
    result = result_of("processes")
    columns = ("cold last", "warm last", "cold all", "warm all")
    rows = [
        (f"{count}, {system}", [*cells(each, columns), f"{median(each['cold compiles']):.0f}"])
        for count, systems in result["samples"].items() for system, each in systems.items()
    ]  # fmt: skip
    head = f"ranks with {result['kernels']} kernels"
    return "\n".join([*table(head, [*columns, "compiles when cold"], rows), *footer(result)])


def growth() -> str:
    """Tabulate the memory and time of each kernel, kept and dropped; then those of many launches."""
    result = result_of("growth")
    samples = result["samples"]
    rows = []
    for part, each in samples.items():
        if part != "launches":
            early, late, more = each["tenths"][0], each["tenths"][-1], each["count"] - each["count"] // 10
            memory = [(late[index] - early[index]) / more / 1e3 for index in (1, 2)]
            seconds = [tenth[0] / (each["count"] // 10) * 1e3 for tenth in (early, late)]
            rows.append((part, [f"{each['count']:,}", *map(digits, (*memory, *seconds))]))
    columns = (
        "kernels", "KB of host memory for each", "KB of device memory", "ms for each of the first tenth",
        "of the last tenth",
    )  # fmt: skip
    lines = table("warm, one after another", columns, rows)
    if each := samples.get("launches"):
        early, late = each["tenths"][0], each["tenths"][-1]
        memory = [early[1] / 1e6, late[1] / 1e6, (late[2] - early[2]) / 1e6]
        took = [tenth[0] / (each["count"] // 10) * 1e6 for tenth in (early, late)]
        columns = (
            "MB resident after a tenth", "at the end", "growth of device memory, MB", "us for each of the first tenth",
            "of the last tenth",
        )  # fmt: skip
        lines += ["", *table("launches", columns, [(f"{each['count']:,}", [*map(digits, (*memory, *took))])])]
    return "\n".join([*lines, *footer(result)])


def workloads() -> str:
    """Tabulate real programs: milliseconds to the first result and to the last one."""
    result = result_of("workloads")
    columns = ("warm first", "warm all", "cold first", "cold all", "warm process", "cold process")
    rows = [
        (f"{workload}: {system}", cells(each, columns))
        for workload, systems in result["samples"].items() for system, each in systems.items()
    ]  # fmt: skip
    return "\n".join([*table("", columns, rows), *footer(result)])


def warm_up() -> str:
    """Tabulate many kernels compiled by many workers and by one warm worker."""
    result = result_of("warm_up")
    found = result["samples"]
    one, many = found["one"], found["many"]
    columns = ("seconds", "of one warm worker")
    rows = [
        ("one warm worker, without its start", [digits(one["compiles_s"]), "1.0"]),
        (f"{many['workers']} workers, with their starts", [digits(many["wall_s"]),
                                                         f"{found['times_one_warm_worker']:.1f} times as fast"]),
        ("start of a worker", [digits(found["start_s"]), "–"]),
    ]  # fmt: skip
    return "\n".join([*table(f"{found['kernels']} kernels with CUB", columns, rows), *footer(result)])


def compile_overhead() -> str:
    """Tabulate the CPU time of compiles after a process's first, as a multiple of that of NVRTC alone."""
    result = result_of("compile_overhead")
    summary = result["summary"]
    names = {"all": "all sources together", "median": "median", "90 %": "90 % are below", "worst": "worst"}
    rows = [(label, [f"{summary[name]:.3f}"]) for name, label in names.items()]
    rows.append(("above 1.15", [f"{summary['above 1.15']}"]))
    columns = "sources", "NVRTC alone, ms", "more, ms", "of NVRTC alone"
    kinds = [
        (kind, [f"{of['sources']}", f"{of['alone, ms']:.1f}", f"{of['more, ms']:.1f}", f"{of['median']:.3f}"])
        for kind, of in summary.get("kinds", {}).items()
    ]
    whole = table(f"{summary['sources']} sources", ("of NVRTC alone",), rows)
    return "\n".join([*whole, "", *table("medians, by what is included", columns, kinds), *footer(result)])


def cli() -> str:
    """Tabulate the milliseconds of each verb beyond the start of the interpreter."""
    result = result_of("cli")
    rows = ((name, [cell(times)]) for name, times in result["samples"].items())
    return "\n".join([*table("", ("ms",), rows), *footer(result)])


def launch() -> str:
    """Tabulate the median microseconds of one launch by number of arguments."""
    result = result_of("launch")
    counts = ("0", "2", "4", "8", "16")
    rows = (
        (system, [f"{median(by_count[count]):.2f}" if by_count.get(count) else "–" for count in counts])
        for system, by_count in result["samples"].items()
    )
    return "\n".join([*table("arguments", counts, rows), *footer(result)])


def import_time() -> str:
    """Tabulate whole interpreters, without and with the package and three decorations."""
    result = result_of("import_time")
    rows = ((name, [cell(times)]) for name, times in result["samples"].items())
    return "\n".join([*table("whole process", ("ms",), rows), *footer(result)])


def numba_fingerprint() -> str:
    """Tabulate the fingerprint of a Numba kernel in fresh processes."""
    result = result_of("numba_fingerprint")
    rows = ((name, [_microseconds(times)]) for name, times in result["samples"].items())
    return "\n".join([*table("", ("us",), rows), *footer(result)])


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


def added() -> str:
    """Tabulate the milliseconds that whole programs take longer, warm and cold, and the parts of a warm start."""
    result, steps = result_of("added"), result_of("warm_steps")
    pairs, rows = result["added"], []
    for each in ADDED:
        both = [pairs.get(name) for name in (each.pair, f"cold {each.pair}")]
        shown = [
            f"{pair['added_ms']:+,.0f} ({pair['low_ms']:+,.0f} to {pair['high_ms']:+,.0f})" if pair else "–"
            for pair in both
        ]
        parts = steps["samples"].get(each.steps, {}).get("warm", {})
        of_parts = [digits(median(parts[name]) * 1e3) if name in parts else "–" for name in _PARTS]
        if any(both):
            rows.append((each.program, [each.over, *shown, *of_parts]))
    columns = ("compared with", "added, ms", "with nothing stored, ms", *_PARTS)
    counts = [each["pairs"] for each in pairs.values()]
    note = (
        "Medians of pairs of whole processes, and the 95 % confidence interval of each; "
        f"{min(counts)} to {max(counts)} pairs of a row. The last four columns are parts of a warm start, in ms, "
        "of another run of processes (`benchmarks/warm_steps.py`, bare memory with the header and with 31 kernels)."
    )
    lines = table("program", columns, rows)
    return "\n".join([*lines, "", *textwrap.wrap(note, 119, break_on_hyphens=False), *footer(result)[:-2]])


_PARTS = ("import", "decoration", "first", "exit")

PERFORMANCE: dict[str, Callable[[], str]] = {
    "cold_warm": cold_warm,
    "launches": launch,
    "imports": import_time,
    "numba_fingerprint": numba_fingerprint,
    "numba_first_launch": numba_first_launch,
    "warm_steps": warm_steps,
    "whole_process": whole_process,
    "modules": modules,
    "processes": processes,
    "growth": growth,
    "workloads": workloads,
    "warm_up": warm_up,
    "compile_overhead": compile_overhead,
    "cli": cli,
}
