"""Write the tables of README.md from the committed results; nothing in them is typed by hand."""

from __future__ import annotations

import json
import re
import statistics
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


def main() -> None:
    path = ROOT / "README.md"
    text = path.read_text()
    for name, table in (("first_launch", first_launch),):
        pattern = rf"(<!-- table: {name} -->\n).*?(<!-- end -->)"
        text = re.sub(pattern, lambda match, table=table: f"{match[1]}{table()}\n{match[2]}", text, flags=re.DOTALL)
    path.write_text(text)


if __name__ == "__main__":
    main()
