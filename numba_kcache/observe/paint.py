"""Colour plain text for a terminal, and wrap its columns between words.

Promise     Colours come from the patterns below, never from markup in the text: its characters stay the same, in the
            same order. For a stream that is not a terminal, the text is unchanged.
Source      `NO_COLOR` (no-color.org); ECMA-48, "SGR".
"""

from __future__ import annotations

import re
import shutil
from textwrap import TextWrapper
from typing import TextIO

from ..settings import takes_colours

_BOLD, _RED, _GREEN, _YELLOW, _CYAN, _BOLD_CYAN = "1", "1;31", "32", "33", "36", "1;36"
_STYLES = (
    (r"\b[0-9a-f]{64}\b|^[0-9a-f]{12}\b", _YELLOW),
    (r"^(?:numba_kcache, .*|what to do|what else could be done|components of the key|compile log|kernel \S+: .*)$",
     _BOLD),
    (r"^(?:key|kernel|setting) .* (?:hits|took|variable)$", _BOLD),
    (r"^ *hint:", _BOLD_CYAN),
    (r"^\s*error\b.*|^numba-kcache: cannot\b", _RED),
    (r"^wrong\b|\b(?!0 )\d+ (?:failed|damaged)\b|(?<!\S)failed$", _RED),
    (r"^note\b|: miss\b|\bwarning:", _YELLOW),
    (r"^fine\b|: hit\b|(?<!\S)(?:built|hit)$", _GREEN),
    (r"^ *(?!\d+\.)[a-z][\w .-]{0,40}?(?=  )", _CYAN),  # the name at the start of a row
)  # fmt: skip
"""Patterns and their SGR parameters; of two that match at one place, the first counts."""

_PATTERN = re.compile("|".join(f"({pattern})" for pattern, _ in _STYLES))
_COLUMN = re.compile(r"^ *(?:\d+\. |- |hint: )?|(?<=\S) {2,}")
"""Matches what comes before a column; a wrapped line is indented to the end of the last match."""


class _Wrapper(TextWrapper):
    wordsep_simple_re = re.compile(r"(\s+|(?<=/)(?=\S))")


def painted(text: str, stream: TextIO) -> str:
    """Prepare a text for a stream: coloured and wrapped for a terminal, unchanged for others."""
    if not stream.isatty():  # for grep and awk
        return text
    width = shutil.get_terminal_size().columns
    lines = [part for line in text.split("\n") for part in _wrapped(line, width)]
    return "\n".join(map(_coloured, lines) if takes_colours() else lines)


def _wrapped(line: str, width: int) -> list[str]:
    ends = [match.end() for match in _COLUMN.finditer(line)]
    column = max((end for end in ends if end <= width * 2 // 3), default=0)
    return _Wrapper(width, subsequent_indent=" " * column, break_on_hyphens=False).wrap(line) or [""]


def _coloured(line: str) -> str:
    return _PATTERN.sub(lambda match: f"\x1b[{_STYLES[(match.lastindex or 0) - 1][1]}m{match[0]}\x1b[0m", line)
