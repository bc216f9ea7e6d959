"""Write the tables of README.md from the committed results; nothing in them is typed by hand."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def result_of(name: str) -> dict[str, Any]:
    """The committed result of one benchmark."""
    found: dict[str, Any] = json.loads((ROOT / f"benchmarks/results/{name}.json").read_text())
    return found


def first_launch() -> str:
    """Cold and warm, first launch and whole process, by system: median (lowest to highest)."""
    result = result_of("first_launch")
    columns = ("warm first", "cold first", "warm process", "cold process")
    lines = [f"| | {' | '.join(columns)} |", "| --- |" + " --- |" * len(columns)]
    for system, rows in result["samples"].items():
        lines.append(f"| {system} | {' | '.join(cell(rows[name]) for name in columns)} |")
    return "\n".join([*lines, "", machine_of(result)])


def launch() -> str:
    """Microseconds of one launch by number of arguments: medians."""
    result = result_of("launch")
    counts = ("0", "2", "4", "8", "16")
    lines = [f"| arguments | {' | '.join(counts)} |", "| --- |" + " --- |" * len(counts)]
    for system, rows in result["samples"].items():
        cells = (f"{statistics.median(rows[count]):.2f}" if rows.get(count) else "–" for count in counts)
        lines.append(f"| {system} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", machine_of(result)])


def import_time() -> str:
    """One sentence: what the import and three decorations add."""
    result = result_of("import_time")
    bare, ours = (statistics.median(times) * 1e3 for times in result["samples"].values())
    more = f"adds {ours - bare:.0f} ms to a bare Python of {bare:.0f} ms"
    where = f"(`benchmarks/import_time.py`, {machine_of(result)})"
    return f"Importing the package and decorating three kernels {more}\n{where}"


def cell(times_s: list[float]) -> str:
    """`0.28 (0.27–0.31)`, in milliseconds."""
    shown = [f"{value * 1e3:.3g}" for value in (statistics.median(times_s), min(times_s), max(times_s))]
    return f"{shown[0]} ({shown[1]}–{shown[2]})"


def machine_of(result: dict[str, Any]) -> str:
    """The machine in a line."""
    machine = result["machine"]
    parts = (machine["gpu"], f"driver {machine['driver'] or machine['driver_cuda']}", f"Python {machine['python']}")
    return f"{', '.join(parts)}, {machine['time'][:10]}."


def main() -> None:
    path = ROOT / "README.md"
    text = path.read_text()
    for name, table in (("first_launch", first_launch), ("launch", launch), ("import_time", import_time)):
        pattern = rf"(<!-- table: {name} -->\n).*?(<!-- end -->)"
        text = re.sub(pattern, lambda match, table=table: f"{match[1]}{table()}\n{match[2]}", text, flags=re.DOTALL)
    path.write_text(text)


if __name__ == "__main__":
    main()
