"""Colour plain text for a terminal, and wrap its columns between words.

Promise     Colours come from the patterns below, never from markup in the text: its characters stay the same, in the
            same order. For a stream that is not a terminal, the text is unchanged.
Source      rich knows terminals, their colours and `NO_COLOR`; it is imported once a text goes to a terminal.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.text import Text

_STYLES = (
    (r"^ *(?!\d+\.)[a-z][\w .-]{0,40}?(?=  )", "cyan"),  # the name at the start of a row
    (r"^fine\b|: hit\b|(?<!\S)(?:built|hit)$", "green"),
    (r"^note\b|: miss\b|\bwarning:", "yellow"),
    (r"^wrong\b|\b(?!0 )\d+ (?:failed|damaged)\b|(?<!\S)failed$", "bold red"),
    (r"^\s*error\b.*|^numba-kcache: cannot\b", "bold red"),
    (r"^ *hint:", "bold cyan"),
    (r"^(?:numba_kcache, .*|what to do|what else could be done|components of the key|compile log|kernel .*)$", "bold"),
    (r"\b[0-9a-f]{64}\b|^[0-9a-f]{12}\b", "yellow"),
)  # fmt: skip

_COLUMN = re.compile(r"^ *(?:\d+\. |- |hint: )?|(?<=\S) {2,}")
"""Matches what comes before a column; a wrapped line is indented to the end of the last match."""


def style(text: Text) -> Text:
    """Colour one line, or one cell of a table, by the patterns."""
    for pattern, name in _STYLES:
        text.highlight_regex(pattern, name)
    return text


def painted(text: str, stream: TextIO) -> str:
    """Prepare a text for a stream: coloured and wrapped for a terminal, unchanged for others."""
    if not stream.isatty():  # for grep and awk
        return text
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream, highlight=False)
    width = console.width
    if width < 1:  # as with COLUMNS=0
        return text
    with console.capture() as captured:
        for line in text.split("\n"):
            coloured = style(Text(line))
            ends = [match.end() for match in _COLUMN.finditer(line)]
            column = max((end for end in ends if end <= width * 2 // 3), default=0)
            for number, (start, end) in enumerate(_parts(line, column, width - column)):
                before = coloured[:column] if number == 0 else Text(" " * column)
                console.print(before + coloured[start:end], soft_wrap=True)
    return captured.get().removesuffix("\n")


def _parts(line: str, start: int, width: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of the pieces of a line, at most `width` characters each, split at spaces or else slashes."""
    pieces = []
    for word in re.finditer(r"^\s+|\S+\s*", line[start:]):
        fits = len(word[0].rstrip()) <= width
        names = [word[0]] if fits else re.findall(r"[^/]*/|[^/]+", word[0])
        for name in names:
            cuts = [*range(0, max(len(name.rstrip()), 1), width), len(name)]
            pieces += [name[at:end] for at, end in itertools.pairwise(cuts)]
    end = used = start
    for piece in pieces:
        if used + len(piece.rstrip()) - start > width and used > start:
            yield start, end
            start = used
        end, used = used + len(piece.rstrip()), used + len(piece)
    yield start, end
