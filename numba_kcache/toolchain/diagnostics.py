"""Rewrite positions in a compiler's log to lines of the user's file, and add the chain of includes to an error.

Promise     A position names a line of the user's file only where the source was found in that file; otherwise it
            stays a line of the source.
Method      Each line of the source is searched for in the file; each match votes for the offset between the two. A line
            gets the offset with most votes among its matches; a line without a match, that of its neighbours. This
            works for plain, raw, indented, dedented, concatenated and formatted strings alike (a placeholder matches
            any text, of several lines too), and needs no parsing of Python.
"""

from __future__ import annotations

import functools
import linecache
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from ..model import NamedTuple
from ..model.request import Origin

_SHORT = 3
"""Length up to which a line (`}`, `);`) matches in too many places to vote."""

_LONG = 12
"""Length from which a line with a single match is placed even if no other line votes for its offset."""

_PLACEHOLDER = r"(\{\{|\}\}|\{[^{}]*\})"
_QUOTES = r"^.*?(?:'''|\"\"\")|(?:'''|\"\"\").*$"
_INCLUDE = r"(?m)^[ \t]*#[ \t]*include[ \t]*([<\"])([^>\"\n]+)[>\"]"
_MOST_HEADERS = 2000
MAX_LOG_BYTES = 1 << 20
"""Limit of a log that is stored with the code; the log of a template error can have hundreds of MB."""

_COLUMNS = 160
"""Columns at which long lines of a compiler are folded."""


class _Overlay:
    """The mapping from lines of a source to lines of the file that defines it. Lines count from 0.

    Attributes:
        place_of: The line of the file for each line of the source, if known.
    """

    def __init__(self, source: str, origin: Origin) -> None:
        self._file = _index_of(tuple(linecache.getlines(origin.path)) if origin.path else ())
        self._defined_at = max(origin.line - 1, 0)
        lines = [line.strip() for line in source.splitlines()]
        self._wanted = [index for index, line in enumerate(lines) if line]
        shown = self._lines_showing({lines[index] for index in self._wanted})
        offsets = {index: [place - index for place in shown[lines[index]]] for index in self._wanted}
        self._all_votes = Counter(each for found in offsets.values() for each in found)
        long_lines = [index for index in self._wanted if len(lines[index]) > _SHORT]
        self._votes = Counter(each for index in long_lines for each in offsets[index])
        enough = min(2, len(long_lines))
        self.place_of: dict[int, int] = {}
        for index in self._wanted:
            likely = [each for each in offsets[index] if self._votes[each] >= enough]
            if not likely and len(lines[index]) >= _LONG and len(offsets[index]) == 1:
                likely = offsets[index]  # no other line votes for this offset, but the line matches nowhere else
            if likely:
                self.place_of[index] = index + max(likely, key=self._likelihood)
        self._fill()

    def _likelihood(self, offset: int) -> tuple[bool, int, bool, int]:
        is_after_definition = offset >= self._defined_at
        votes = self._votes[offset]
        return (
            is_after_definition and self._all_votes[offset] * 2 >= len(self._wanted),
            votes,
            is_after_definition,
            -offset,
        )

    def _lines_showing(self, texts: set[str]) -> dict[str, list[int]]:
        """Lines of the file that contain each text: alone on a line, beside quotes, or through placeholders."""
        _lines, alone, quoted, formatted = self._file

        def lines_of(text: str) -> set[int]:
            found = alone.get(text, set())
            if len(text) <= _SHORT:
                return found
            beside = {index for index, line in quoted if text in line}
            likely = formatted.get(text[:_SHORT], []) + formatted.get("", [])
            return found | beside | {index for index, template in likely if template.fullmatch(text)}

        return {text: sorted(lines_of(text)) for text in texts}

    def _fill(self) -> None:
        """Place lines without a match between their neighbours, if these are adjacent in the file as well."""
        known = sorted(self.place_of)
        for before, after in pairwise(known):
            if self.place_of[after] - self.place_of[before] == after - before:
                for index in range(before + 1, after):
                    self.place_of[index] = self.place_of[before] + index - before

    def first_line(self) -> int | None:
        """The line of the file for the source's first line, by the offset of at least half of all lines."""
        likely = [each for each in self._all_votes if each >= self._defined_at and self._fits(each)]
        best = max(likely, key=lambda each: (self._all_votes[each], -each), default=None)
        return None if best is None or self._all_votes[best] * 2 < len(self._wanted) else best

    def _fits(self, offset: int) -> bool:
        return offset + self._wanted[0] < self._file.lines


class _Index(NamedTuple):
    """The lines of a file, for `_Overlay`: their number, and where each text is, alone, quoted or formatted."""

    lines: int
    alone: dict[str, set[int]]
    quoted: list[tuple[int, str]]
    formatted: dict[str, list[tuple[int, re.Pattern[str]]]]


@functools.lru_cache(maxsize=1)  # of one file: its sources are mostly compiled in turn; its lines are the key
def _index_of(lines: tuple[str, ...]) -> _Index:
    alone: dict[str, set[int]] = {}
    quoted: list[tuple[int, str]] = []
    formatted: dict[str, list[tuple[int, re.Pattern[str]]]] = {}
    for index, line in enumerate(map(str.strip, lines)):
        alone.setdefault(line, set()).add(index)
        if "'" in line or '"' in line:
            quoted.append((index, re.sub(r"\\(['\"])", r"\1", line)))
        start, template = _template(line)
        if isinstance(template, str):
            alone.setdefault(template, set()).add(index)
        elif template is not None:
            formatted.setdefault(start, []).append((index, template))
    return _Index(len(lines), alone, quoted, formatted)


def _template(line: str) -> tuple[str, str | re.Pattern[str] | None]:
    """Interpret a line of a string literal: `{{` as `{`, two backslashes as one, `{n}` as any text.

    Returns:
        The known start of the text; and the text itself if there is no placeholder, a pattern if there is one, None
        if the line stands for itself or its pattern is too short to match.
    """
    if "{" not in line and "}" not in line and "\\" not in line:
        return "", None
    parts = re.split(_PLACEHOLDER, re.sub(_QUOTES, "", line).strip().replace("\\\\", "\\"))
    texts = [
        part[0] if part in ("{{", "}}") else part if number % 2 == 0 else None for number, part in enumerate(parts)
    ]
    if None not in texts:
        return "", "".join(filter(None, texts))
    if sum(len(text or "") for text in texts) <= _SHORT:
        return "", None
    start = texts[0] or ""
    pattern = re.compile("".join(".*" if text is None else re.escape(text) for text in texts))
    return start[:_SHORT] if len(start) >= _SHORT else "", pattern


def first_line(source: str, origin: Origin) -> int | None:
    """The line of `origin.path` that holds the first line of `source`; None if no file contains it."""
    if origin.is_whole_file:
        return 1
    if origin.is_cell:
        return None
    found = _Overlay(source, origin).first_line()
    return None if found is None else found + 1


def for_user(log: str, program_name: str, source: str, origin: Origin, label: str, folders: Sequence[str]) -> str:
    """Rewrite a log for the user.

    Positions become lines of the user's file or, where these are unknown, "line N of the source of <label>". After an
    error in a header come the includes that led to that header.

    Args:
        log: As the compiler wrote it.
        program_name: The compiler's name for the source, which is not the name of a file.
        source: The source that was compiled.
        origin: Its place in the user's files.
        label: Its name in messages.
        folders: The include folders in order, the source's own first.
    """
    log = with_includes(remap(log, program_name, source, origin), source, origin, program_name, folders)
    if origin.is_whole_file:
        return log
    log = re.sub(
        rf"(?m)(?:^|(?<=[\s\"])){re.escape(program_name)}\((\d+)\)",
        lambda match: f"line {match[1]} of the source of {label}",
        log,
    )
    return log.replace(f'"{program_name}"', f"the source of {label}")


def remap(log: str, program_name: str, source: str, origin: Origin) -> str:
    """The log with each `program_name(line)` turned into `file(line)` of the user's file, if it is known."""
    lines = _user_lines(source, origin)
    if not lines:
        return log
    name = re.escape(program_name)

    def place(match: re.Match[str]) -> str:
        line = lines.get(int(match[1]))
        return match[0] if line is None else f"{origin.path}({line})"

    def place_in_words(match: re.Match[str]) -> str:
        line = lines.get(int(match[1]))
        return match[0] if line is None else f'at line {line} of "{origin.path}"'

    rewritten, is_ours = [], False
    for text in log.splitlines():
        if re.match(r"\S.*\(\d+\): ", text):
            is_ours = text.startswith(f"{program_name}(")
        text = re.sub(rf"(?:^|(?<=[\s\"])){name}\((\d+)\)", place, text)
        text = re.sub(rf'\bat line (\d+) of "{name}"', place_in_words, text)
        rewritten.append(re.sub(r"\bat line (\d+)$", place_in_words, text) if is_ours else text)
    return "\n".join(rewritten).replace(f'"{program_name}"', f'"{origin.path}"')


def remap_ptx(log: str, source: str, origin: Origin) -> str:
    """The log of ptxas with the lines of the user's PTX turned into lines of the file that holds it."""
    lines, text = _user_lines(source, origin), source.splitlines()

    def place(match: re.Match[str]) -> str:
        number = int(match[1])
        where = f"{origin.path}({lines[number]})" if number in lines else f"line {number}"
        shown = f"\n  {text[number - 1].strip()}" if 0 < number <= len(text) else ""
        return f"{where}: {match[2]}: {match[3]}{shown}"

    return re.sub(r"(?m)^ptxas [^,\n]*, line (\d+); (\w+)\s*: (.*)$", place, log)


def _user_lines(source: str, origin: Origin) -> dict[int, int]:
    """The line of the user's file for each line of the source, if known; both are counted from 1."""
    if origin.is_whole_file:
        return {number: number for number in range(1, source.count("\n") + 3)}
    return {index + 1: place + 1 for index, place in _Overlay(source, origin).place_of.items()}


def with_includes(log: str, source: str, origin: Origin, program_name: str, folders: Sequence[str]) -> str:
    """Add to the log, after each error in a header, the includes that led to that header.

    Args:
        log: The log, already remapped.
        source: The source that was compiled.
        origin: Its place in the user's files.
        program_name: The compiler's name for it.
        folders: The include folders in order, the source's own first.
    """
    heads = dict.fromkeys(re.findall(r"(?m)^(\S.*?)\(\d+\): (?:catastrophic )?error\b", log))
    wanted = {os.path.realpath(each): each for each in heads if each not in (origin.path, program_name)}
    if not wanted:
        return log
    chains = _chains(set(wanted), source, folders)
    lines = _user_lines(source, origin)

    def inclusions(chain: Sequence[tuple[str, int]]) -> Iterator[str]:
        for path, line in chain:
            known = lines.get(line) if not path else line
            yield f"          included from {path or (origin.path if known else program_name)}({known or line})"

    blocks = log.split("\n\n")
    for index, block in enumerate(blocks):
        head = re.match(r"(\S.*?)\(\d+\): (?:catastrophic )?error\b", block)
        chain = chains.get(os.path.realpath(head[1])) if head else None
        if chain:
            blocks[index] = "\n".join((block.rstrip("\n"), *inclusions(chain)))
    return "\n\n".join(blocks)


def _chains(wanted: set[str], source: str, folders: Sequence[str]) -> dict[str, tuple[tuple[str, int], ...]]:
    """For each header (by real path) the includes that lead to it, nearest first: (file or "" for the source, line)."""
    found: dict[str, tuple[tuple[str, int], ...]] = {}
    waiting: list[tuple[str, str, tuple[tuple[str, int], ...]]] = [("", source, ())]
    for path, text, chain in waiting:
        for match in re.finditer(_INCLUDE, text):
            own = os.path.dirname(path) if path else None
            header = _resolved(match[2], own if match[1] == '"' else None, folders)
            if header is None or header in found or len(found) > _MOST_HEADERS:
                continue
            found[header] = ((path, text.count("\n", 0, match.start()) + 1), *chain)
            try:
                with open(header, encoding="utf-8", errors="replace") as file:
                    waiting.append((header, file.read(), found[header]))
            except OSError:
                continue
        if wanted <= found.keys():
            break
    return found


def _resolved(name: str, own: str | None, folders: Sequence[str]) -> str | None:
    for folder in (*([own] if own else []), *folders):
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            return os.path.realpath(path)
    return None


def summary(log: str) -> str:
    """The first error line of a log, or its first line."""
    lines = [line for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\berror\b", line)]
    return (errors or lines or ["the compiler gave no reason"])[0].strip()


def bounded(log: bytes) -> bytes:
    """Cut a log down to `MAX_LOG_BYTES`, keeping its beginning and its end."""
    if len(log) <= MAX_LOG_BYTES:
        return log
    half = MAX_LOG_BYTES // 2
    return log[:half] + b"\n... %d bytes left out ...\n" % (len(log) - 2 * half) + log[-half:]


def excerpt(log: str, limit: int = 20) -> str:
    """At most `limit` lines of a log; if it is longer, errors come first. Long lines are folded, not cut."""
    lines = log.splitlines()
    if len(lines) > limit:
        blocks = re.split(r"\n[ \t]*\n", log)
        blocks.sort(key=lambda block: re.search(r"\b(?:error|fatal)\b", block.partition("\n")[0]) is None)
        lines = "\n\n".join(blocks).splitlines()
    more = [f"... {len(lines) - limit} more lines in .log"] if len(lines) > limit else []
    return "\n".join([*_folded(lines[:limit]), *more])


def _folded(lines: Sequence[str]) -> Iterator[str]:
    """Fold lines to `_COLUMNS`; a caret stays below the text that it marks."""
    from textwrap import wrap  # here: not needed if a compile succeeds

    carets = False
    for line, below in pairwise([*lines, ""]):
        if carets:  # this line of carets was written with the line above it
            carets = False
            continue
        carets = bool(re.fullmatch(r"\s*[\^~]+\s*", below))
        if not carets:
            yield from wrap(line, _COLUMNS, drop_whitespace=False, replace_whitespace=False) or [""]
            continue
        for start in range(0, len(line) or 1, _COLUMNS):
            yield line[start : start + _COLUMNS]
            if part := below[start : start + _COLUMNS].rstrip():
                yield part
