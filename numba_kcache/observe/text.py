"""Format sizes, durations and tables for people; table cells are freed of control characters."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any, TypeVar

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


MOST_CHARACTERS = 160
"""Most characters of a value that are shown."""


def as_text(value: Any) -> str:
    """A value on one line of at most `MOST_CHARACTERS`."""
    text = value if isinstance(value, str) else json.dumps(value, default=repr)
    text = " ".join(text.split())
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 3] + "..."


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
    return REASONS[kind][0] if kind in REASONS else kind.replace("_", " ")


REASONS = {
    "never_stored": ("first compile of the kernel", "nothing of this kernel was stored here before",
        "it is stored when it is compiled; .compile() does that ahead of the first launch"),
    "other_targets": ("a bundle has it for other targets", "{name} has it for other targets: {new}",
        "compile it for this target, too, where the bundle is made: warm_up(..., arch=[...])"),
    "evicted_or_cleared": ("its entry was evicted or cleared",
        "it was stored before, and its entry is not there any more",
        "if it was evicted, raise max_size_bytes or max_entries"),
    "damaged": ("its entry is damaged", "its entry is damaged: {new}",
        "nothing to do: the next compile replaces it; if this happens again, check the disk"),
    "source_changed": ("the source changed", "source",
        "each source has its own entry; the old entry stays for the old source"),
    "value_changed": ("a global, default or closure variable changed", "value of",
        "Numba compiles the value into the code: pass it as an argument if it changes often"),
    "header_changed": ("a header changed", "header",
        "restore the header if the change was unintended"),
    "header_shadowed": ("a new header is found first",
        "{name} is there now, and is found before the header that was read",
        "remove that file, or change the order of include_dirs if the change was unintended"),
    "header_answer": ("a __has_include has another answer", "__has_include of",
        "restore or remove that file if the change was unintended"),
    "header_search": ("the folders searched for headers changed", "folders searched for headers",
        "keep include_dirs as they were; code that contains a path is reused only below it"),
    "toolkit": ("the toolkit's headers changed", "the toolkit's headers in",
        "install the same cuda-toolkit and CCCL, or accept other compilers' code with toolchain='any'"),
    "entry": ("another kernel of the source", "kernel wanted, by",
        "each kernel of a source has its own entry"),
    "options": ("a compile option changed", "option",
        "each set of options has its own entry"),
    "target": ("another target", "target",
        "compile ahead for each target with .compile(arch=...)"),
    "signature": ("other argument types", "signature",
        "each signature has its own entry; compile ahead with .compile(signature=...)"),
    "compiler": ("another compiler build", "compiler library",
        "install that build, or accept other compilers' code with toolchain='any'"),
    "version": ("another package version", "version of",
        "pin the version, or accept other compilers' code with toolchain='any'"),
    "environment": ("a setting or variable changed", "setting or variable",
        "set it as it was if the change was unintended"),
    "link_input": ("a linked file changed", "link input",
        "each link input has its own entry"),
    "component": ("a component of get_or_build changed", "component",
        "each set of components has its own entry"),
    "depends": ("what depends= names changed", "",
        "you named it in depends=: leave it out if the code does not depend on it"),
    "place": ("the file or line of the kernel, kept for debuggers, changed", "line table's",
        "lineinfo and debug put files and lines into the code: leave them out to share entries"),
    "mode": ("the mode does not look up entries", "mode={new} does not look up entries",
        "set mode='readwrite' to look up entries"),
    "uncacheable": ("the kernel cannot be keyed", "it cannot be keyed: {new}",
        "see docs/keys.md for what cannot be captured"),
    "unknown": ("the stored entry does not tell", "something",
        "nothing to do: the new entry records its components"),
}  # fmt: skip
"""For each kind of reason the words for it in a row; for its subject, before the values that differ, or in `ALONE` the
whole sentence; and the hint. A test compares the kinds with `ReasonKind`."""

ALONE = frozenset((
    "never_stored", "other_targets", "evicted_or_cleared", "damaged", "header_shadowed", "mode", "uncacheable",
))  # fmt: skip


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
