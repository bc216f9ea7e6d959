"""Tables for people: aligned, in colours on a terminal alone, and safe to print whatever a cache holds.

Ground      rich does the layout; it is imported when a table goes to a terminal and not before.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .detail import plain


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Print rows under their columns; those of `right`, which are numbers, to the right."""
    cells = [[plain(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():  # for grep and awk: a line a row, whatever its length, and at once
        widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
        for row in (columns, *cells):
            aligned = [
                text.rjust(width) if name in right else text.ljust(width)
                for name, text, width in zip(columns, row, widths, strict=True)
            ]
            print("  ".join(aligned).rstrip())
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))
    Console().print(table)


def age_text(seconds: float) -> str:
    """How long ago, as people say it: `now`, `25 min`, `3 h`, `12 d`."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return "now"
