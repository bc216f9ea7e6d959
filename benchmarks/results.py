"""Read the committed results, and format their figures and the lines below a table."""

from __future__ import annotations

import ast
import json
import re
import string
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
GPU, NO_GPU = True, False
MEASUREMENTS = {
    "first_launch": ("first_launch", GPU), "warm_steps": ("first_launch", GPU), "added": ("added", GPU),
    "launch": ("launch", GPU), "numba_first_launch": ("first_launch", GPU), "mlir": ("first_launch", GPU),
    "modules": ("first_launch", GPU), "lookup": ("lookup", GPU), "workloads": ("workloads", GPU),
    "growth": ("growth", GPU), "cuda_compute": ("adapters", GPU), "triton_kernels": ("adapters", GPU),
    "program_cache": ("adapters", NO_GPU), "real_programs": ("real_programs", GPU),
    "compile_overhead": ("compile_overhead", NO_GPU), "nodes": ("fleet", NO_GPU), "fleet": ("fleet", NO_GPU),
    "project": ("project", NO_GPU), "first_minutes": ("project", NO_GPU),
}  # fmt: skip
"""The results, with the script of each and whether it needs a GPU. Those that README shows come first: a limit of the
whole time leaves out the last ones."""


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


def script_of(name: str) -> str:
    """The words that measure a result: a script, and the part of it if it has another name."""
    script, _ = MEASUREMENTS.get(name, (name, NO_GPU))
    return f"{script}.py" if script == name else f"{script}.py --part {name}"


def found_at(result: Mapping[str, Any], path: str) -> Any:
    """What a result has at a path like `added > cubin > added_ms`; if it has no such part, among its samples."""
    parts = path.split(" > ")
    found: Any = result if parts[0] in result else result["samples"]
    for part in parts:
        found = found[part]
    return found


def figure(result: Mapping[str, Any], path: str) -> float:
    """A figure of a result, or the median of its samples."""
    found = found_at(result, path)
    return float(median(found) if isinstance(found, list) else found)


def in_ms(result: Mapping[str, Any], path: str) -> str:
    """A figure as it stands, or the median of samples in milliseconds, with their number."""
    found = found_at(result, path)
    return f"{digits(median(found) * 1e3)} ms ({len(found)})" if isinstance(found, list) else digits(found)


def commits() -> dict[str, list[str]]:
    """The commits at which the committed results were taken, the most frequent first, with the results of each."""
    found: dict[str, list[str]] = {}
    for path in sorted(RESULTS.glob("*.json")):
        result = json.loads(path.read_text())
        found.setdefault(commit_of(result), []).append(path.stem)
    return dict(sorted(found.items(), key=lambda each: -len(each[1])))


def commit_of(result: Mapping[str, Any]) -> str:
    """The commit that a result was taken at; "" if it names none."""
    return str(result["machine"].get("commit") or result.get("commit") or "")[:12]


def machine_of(result: Mapping[str, Any]) -> str:
    """The machine in a line, whether the result is complete, and the commit if it differs from that of most results."""
    machine, commit = result["machine"], commit_of(result)
    more = " Stopped by its time limit." if result.get("is_cut") else ""
    more += " Few samples (`--quick`)." if result.get("quick") else ""
    more += f" Commit `{commit or 'not named'}`." if commit != next(iter(commits())) else ""
    day = (machine.get("time") or machine["date"])[:10]
    if not machine["gpu"]:
        return f"{machine.get('cores') or machine['cpus']} cores, no GPU, Python {machine['python']}, {day}.{more}"
    driver = machine["driver"] or f"for CUDA {machine['driver_cuda'] // 1000}"
    return f"{machine['gpu']}, driver {driver}, Python {machine['python']}, {day}.{more}"


def _counts(samples: Any) -> Iterator[int]:
    """Number of samples of each figure, at any depth of a result."""
    if isinstance(samples, dict):
        for each in samples.values():
            yield from _counts(each)
    elif isinstance(samples, list) and samples and all(isinstance(each, float) for each in samples):
        yield len(samples)


def cell(times: list[float], scale: float = 1e3, form: Callable[[float], str] | None = None) -> str:
    """`0.28 (0.27–0.31)`, in milliseconds; one sample alone."""
    shown = [(form or digits)(value * scale) for value in (median(times), min(times), max(times))]
    return shown[0] if len(times) == 1 else f"{shown[0]} ({shown[1]}–{shown[2]})"


def digits(value: float | str) -> str:
    """Format a figure with three digits and no exponent; a dash for the text that a result has in place of a figure."""
    if isinstance(value, str):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


class _Cells(string.Formatter):
    """Fills the template of a row from a record. A figure that the record lacks is a dash."""

    FORMS: Mapping[str, Callable[[Any], str]] = {
        "ms": cell,
        "us": lambda found: cell(found, 1e6, "{:.0f}".format),
        "digits": digits,
        "median": lambda found: f"{median(found):.2f}",
        "median_s": lambda found: f"{digits(median(found))} s",
        "median_ms": lambda found: digits(median(found) * 1e3),
        "median_us": lambda found: digits(median(found) * 1e6),
        "ratio": lambda found: f"{found:.3f}" if isinstance(found, float) else f"{found}",
        "s": lambda found: f"{found:.2f}" if isinstance(found, float) else "–",
        "words": ", ".join,
    }
    """Formats of a figure, or of a list of its samples, besides those of Python."""

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return kwargs.get(str(key))

    def format_field(self, value: Any, form: str) -> str:
        if form.startswith("median_"):
            value = [each for each in value or () if isinstance(each, float)]  # else the reason of a failure
        if value in (None, []):
            return "–"
        return self.FORMS[form](value) if form in self.FORMS else format(value, form)


def row(template: str, record: Mapping[str, Any]) -> str:
    """The cells of one row, with ` | ` between."""
    return _Cells().vformat(template, (), record)


def table(head: str, rows: Iterable[str]) -> list[str]:
    """The lines of one table; head and rows have ` | ` between their cells."""
    return [f"| {head} |", "| --- |" + " --- |" * head.count("|"), *(f"| {each} |" for each in rows)]


def paragraph(*sentences: str) -> list[str]:
    """The lines of a paragraph."""
    return textwrap.wrap(" ".join(sentences), 119, break_on_hyphens=False)


def script_and_machine(result: Mapping[str, Any]) -> list[str]:
    """The line below a table that names only the script and the machine of its result."""
    return ["", f"(`benchmarks/{script_of(result['script'])}`, {machine_of(result)})"]


def footer(result: Mapping[str, Any]) -> list[str]:
    """The lines below a table: machine, commit, samples, systems that were not measured, and "does not show"."""
    name, left_out = result["script"], dict[str, list[str]]()
    counts = {*_counts(result["samples"])} if name not in ("growth", "fleet") else ()
    samples = f" Samples of a figure: {' to '.join(map(str, sorted({min(counts), max(counts)})))}." if counts else ""
    lines = ["", machine_of(result) + samples]
    for what, why in (result.get("left_out") or {}).items():
        for pattern, words in _REASONS:
            if found := re.fullmatch(pattern, why.strip(), re.DOTALL):
                why = found.expand(words)
                break
        why = why.translate(str.maketrans("|<>`*", "/    ")).strip().rstrip(".")[:400]  # no characters of Markdown
        left_out.setdefault(why, []).append(what)
    if left_out:
        reasons = "; ".join(f"{', '.join(whats)}: {why}" for why, whats in left_out.items())
        lines += ["", f"Not measured: {reasons}."]
    # the text of `Not shown`, or of `Not shown of NAME`, in the docstring of the script
    docstring = ast.get_docstring(ast.parse(Path(__file__).with_name(script_of(name).split()[0]).read_text())) or ""
    *_, shown = re.findall(rf"^Not shown(?: of {name})?   (.*?)(?=^\S|\Z)", docstring, flags=re.M | re.S)
    text = " ".join(str(shown).split())
    text = text[:1].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text
    return [*lines, "", f"Does not show: {text}"]


_REASONS = (
    (r"not asked in this turn: .*", "systems without a row were left out of this run"),
    (r".*\bNo module named\b.*", "not installed there"),
    (r".*\brefuses to build a key\b.*", "refuses to cache a source with include paths"),
    (r".*\b(\w+) is not installed here.*", r"does not start without \1"),
    (r"(\w+Error|\w+Exception): .*", r"failed in the benchmark (\1)"),
)
"""Patterns of the reasons that results have for systems that were not measured, each with the words of the tables."""
