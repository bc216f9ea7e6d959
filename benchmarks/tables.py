"""Write the tables of the documents from the committed results; nothing in them is typed by hand.

Run         python benchmarks/tables.py [NAME ...]
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def first_launch() -> str:
    """Cold and warm, first launch and whole process, by system: median (lowest to highest)."""
    result = json.loads((ROOT / "benchmarks/results/first_launch.json").read_text())
    columns = ("cold first", "warm first", "cold process", "warm process")
    lines = [f"| | {' | '.join(columns)} |", "| --- |" + " --- |" * len(columns)]
    for system, rows in result["samples"].items():
        lines.append(f"| {system} | {' | '.join(cell(rows[name]) for name in columns)} |")
    machine = result["machine"]
    lines.append("")
    lines.append(f"{machine['gpu']}, driver {machine['driver']}, Python {machine['python']}, {machine['time'][:10]}.")
    return "\n".join(lines)


def cell(times_s: list[float]) -> str:
    """`0.28 (0.27–0.31)`, in milliseconds."""
    shown = [f"{value * 1e3:.3g}" for value in (statistics.median(times_s), min(times_s), max(times_s))]
    return f"{shown[0]} ({shown[1]}–{shown[2]})"


def store() -> str:
    """Hits and publishes of the stores: median and, in brackets, as a multiple of a bare read or write."""
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
        lines += [f"\n### {verb.capitalize()}, median in us (multiple of the bare call)\n"]
        lines.append(f"| size, entries, processes | {' | '.join(systems)} |")
        lines.append("| --- |" + " --- |" * len(systems))
        for (size, entries, processes), by_system in columns.items():
            bare = by_system[systems[0]]
            cells = [f"{by_system[each]:.3g} ({by_system[each] / bare:.1f}x)" for each in systems]
            lines.append(f"| {size}, {entries:,}, {processes} | {' | '.join(cells)} |")
    fresh, many, machine = results[0]["fresh_process"], results[0]["20000_entries"], results[0]["machine"]
    versions = ", ".join(f"{name} {machine[name]}" for name in ("sqlite", "lmdb", "diskcache", "cuda-core"))
    lines += [
        "",
        f"A fresh process: import {fresh['import_ms']:.1f} ms, first hit of 50 KB {fresh['first_hit_ms']:.2f} ms.",
        f"At 20,000 entries: the size for `info()` {many['size_ms']:.1f} ms, counted file by file",
        f"{many['exact_size_ms']:.0f} ms, counters of 128 processes {many['counters_ms']:.1f} ms, every entry listed",
        f"{many['entries_ms']:.0f} ms.",
        "",
        f"{machine['cpu']}, {machine['cpus']} cores, no GPU, {machine['filesystem']}, Linux {machine['kernel']},",
        f"Python {machine['python']}, {versions}; load at the end {machine['load']:.1f}; {machine['date']}.",
    ]
    return "\n".join(lines).strip()


TABLES = {"first_launch": ("README.md", first_launch), "store": ("docs/performance-store.md", store)}


def main() -> None:
    for name in sys.argv[1:] or TABLES:
        document, table = TABLES[name]
        path = ROOT / document
        pattern = rf"(<!-- table: {name} -->\n).*?(<!-- end -->)"
        written = re.sub(
            pattern, lambda match, table=table: f"{match[1]}{table()}\n{match[2]}", path.read_text(), flags=re.S
        )
        path.write_text(written)


if __name__ == "__main__":
    main()
