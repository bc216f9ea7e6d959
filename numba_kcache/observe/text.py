"""Format sizes, durations and tables for people; table cells are freed of control characters."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar

from ..errors import plain

T = TypeVar("T")


def bytes_text(size_bytes: float) -> str:
    """A size as people read it: `1.4 MiB`."""
    for unit in ("B", "KiB", "MiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} GiB"


def seconds_text(seconds: float) -> str:
    """A duration as people read it: `85 us`, `2.1 ms`, `8.5 s`, `3 min 10 s`."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds // 60:.0f} min {seconds % 60:.0f} s"


def age_text(seconds: float) -> str:
    """An age in one unit: `now`, `25 min`, `3 h`, `12 d`."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return "now"


def counted(number: int, one: str, many: str = "") -> str:
    """A number of things: `1 hit`, `12 hits`.

    Args:
        number: The number of things.
        one: The word for one thing.
        many: The word for several; "" for one with an s.
    """
    return f"{number} {one if number == 1 else many or one + 's'}"


def entries_text(number: int) -> str:
    """A number of entries: `1 entry`, `12 entries`."""
    return counted(number, "entry", "entries")


def reason_text(kind: str) -> str:
    """The words for a kind of reason for misses, alone in a row: `first compile`."""
    return REASONS.get(kind, kind.replace("_", " "))


REASONS = {
    "never_stored": "first compile of the kernel", "other_targets": "a bundle has it for other targets",
    "evicted_or_cleared": "its entry was evicted or cleared",
    "damaged": "its entry is damaged", "source_changed": "the source changed",
    "value_changed": "a global, default or closure variable changed", "header_changed": "a header changed",
    "header_shadowed": "a new header is found first", "header_answer": "a __has_include has another answer",
    "header_search": "the folders searched for headers changed", "toolkit": "the toolkit's headers changed",
    "entry": "another kernel of the source", "options": "a compile option changed", "target": "another target",
    "signature": "other argument types", "compiler": "another compiler build", "version": "another package version",
    "environment": "a setting or variable changed", "link_input": "a linked file changed",
    "component": "a component of get_or_build changed", "depends": "what depends= names changed",
    "place": "the file or line of the kernel, kept for debuggers, changed", "mode": "the mode does not look up entries",
    "uncacheable": "the kernel cannot be keyed", "unknown": "the stored entry does not tell",
}  # fmt: skip
"""The words for each kind of reason. A test compares them with `ReasonKind`."""


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Align rows: each column is as wide as its longest cell, with two spaces between columns.

    Args:
        rows: The cells of each row.
        right: Columns, counted from 0, that are aligned at their right edge, as numbers are.
    """
    rows = [[plain(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = zip(row, widths, strict=True)
        padded = [cell.rjust(width) if at in right else cell.ljust(width) for at, (cell, width) in enumerate(cells)]
        lines.append("  ".join(padded).rstrip())
    return lines


def html(text: str) -> str:
    """Escape text for HTML, and what a terminal would act on."""
    from html import escape

    return escape("\n".join(map(plain, text.split("\n"))))


def preformatted(text: str) -> str:
    """Format a text as HTML, for a notebook."""
    return f"<pre>{html(text)}</pre>"


def shows_text(kind: type[T]) -> type[T]:
    """Decorate a class with a text: the text is its `repr` as well, and its HTML if it has none of its own."""

    def repr_html(self: T) -> str:
        return preformatted(str(self))

    for name, method in (("__repr__", kind.__str__), ("_repr_html_", repr_html)):
        if name not in vars(kind) or name == "__repr__":
            setattr(kind, name, method)
    return kind
